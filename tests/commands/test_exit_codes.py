"""Every exit code through the command: one clear line and a hint, no traceback, nothing left half done.

What damages files at random, kills commands and fills disks is in tests/faults; hostile gradients in tests/gradients.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from rounds import (
    EXAMPLE,
    SCRIPT,
    Command,
    Result,
    Round,
    assert_one_error,
    call,
    document,
    edit,
    leftovers,
    must,
    python,
    rewrite,
    shell,
    words,
)

from .conftest import Refuses, RoundAt, both

SMALL = "--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4"


def read_strictly(r: Round, step: str) -> Command:
    """A step of user 1 that leaves out no file that it cannot read."""
    more = {"freeze": ("--only", "1-4"), "decode": ("--strict",)}
    return (*r.step(step), *more.get(step, ()))


def save(path: Path, values: object) -> Path:
    np.save(path, np.asarray(values))
    return path


class TestMissingInput66:
    @pytest.mark.parametrize("step", ["offline", "mask", "freeze", "eliminate", "decode"])
    def test_no_session(self, refuses: Refuses, round_at: RoundAt, tmp_path: Path, step: str) -> None:
        r = round_at("init").elsewhere(tmp_path / "nowhere")
        assert "session.json" in refuses(66, *r.step(step)).err

    @both
    @pytest.mark.parametrize(
        ("stage", "lost", "step"),
        [
            ("init", "", "mask"),
            ("init", "", "freeze"),  # whose ledger does not exist yet
            ("masked", "", "eliminate"),
            ("offline", "secrets/user-01.h5", "mask"),
            ("offline", "secrets/user-01.ledger.json", "mask"),
            ("offline", "secrets/user-01.ledger.json", "offline"),
            ("masked", "secrets/user-01.ledger.json", "freeze"),
            ("frozen", "secrets/user-01.ledger.json", "eliminate"),
            ("answered", "survivors.json", "decode"),
            ("frozen", "masked/user-02.h5", "eliminate"),
            ("frozen", "masked/user-01.h5", "eliminate"),
            ("frozen", "shares/user-01/from-03.h5", "eliminate"),
            ("frozen", "shares/user-01/from-01.h5", "eliminate"),
        ],
    )
    def test_a_file_of_the_round_is_missing(
        self, refuses: Refuses, round_at: RoundAt, stage: str, lost: str, step: str
    ) -> None:
        r = round_at(stage)
        if lost:
            (r.folder / lost).unlink()
        said = refuses(66, *r.step(step)).err
        if lost.startswith(("masked", "shares")):
            assert f"users {int(lost[-5:-3])}" in said
            assert str((r.folder / lost).parent) in said
        else:
            assert Path(lost).name in said

    def test_no_gradient(self, refuses: Refuses, round_at: RoundAt, tmp_path: Path) -> None:
        r = round_at("offline")
        (tmp_path / "folder.npy").mkdir()
        (tmp_path / "file").touch()
        for name in ("gone.npy", "no/folder.npz", "gone.pt", "folder.npy", "file/g.npy"):
            assert name in refuses(66, *r.mask(1, gradient=tmp_path / name)).err
        refuses(66, "init", tmp_path / "round-2", *words(SMALL)[:-2], "--like", tmp_path / "gone.npy")
        for name in ("gone.h5", "gone.json"):
            refuses(66, "inspect", tmp_path / name)


# Which step reads which file, at which stage of the round
READERS = [
    ("offline", "secrets/user-01.h5", "mask"),
    ("offline", "secrets/user-01.h5", "offline"),
    ("masked", "masked/user-02.h5", "freeze"),
    ("frozen", "masked/user-02.h5", "eliminate"),
    ("frozen", "shares/user-01/from-02.h5", "eliminate"),
    ("answered", "elimination/user-02.h5", "decode"),
    ("offline", "secrets/user-01.ledger.json", "mask"),
    ("offline", "secrets/user-01.ledger.json", "offline"),
    ("masked", "secrets/user-01.ledger.json", "freeze"),
    ("frozen", "secrets/user-01.ledger.json", "eliminate"),
    ("frozen", "survivors.json", "eliminate"),
    ("frozen", "survivors.json", "freeze"),
    ("answered", "survivors.json", "decode"),
    ("offline", "session.json", "mask"),
]


def foreign_files() -> dict[str, bytes]:
    """Files that no step can have written."""
    archive, other = io.BytesIO(), io.BytesIO()
    np.savez(archive, index=np.arange(4), value=np.arange(4))
    with h5py.File(other, "w") as file:
        file["y"] = np.arange(4, dtype="<u4")
        file.attrs["format"] = "somebody else's"
    return {
        "empty": b"",
        "random bytes": np.random.default_rng(1).bytes(3000),
        "text": b"The quick brown fox jumps over the lazy dog.\n" * 20,
        "binary zeros": bytes(4096),
        "an npz": archive.getvalue(),
        "another HDF5 file": other.getvalue(),
        "only the signature of HDF5": b"\x89HDF\r\n\x1a\n",
        "JSON": b'{"format": "topk-secagg"}',
        "deep JSON": b"[" * 200_000,
        "a JSON number": b"1" * 6000,
        "not a number": b'{"format": "topk-secagg", "kind": NaN, "version": 1}',
    }


class TestBadData65:
    @both
    @pytest.mark.parametrize(("stage", "name", "step"), READERS)
    def test_a_foreign_or_truncated_file(
        self, refuses: Refuses, round_at: RoundAt, stage: str, name: str, step: str
    ) -> None:
        r = round_at(stage)
        path = r.folder / name
        whole = path.read_bytes()
        for what, content in foreign_files().items():
            path.write_bytes(content)
            assert path.name in refuses(65, *read_strictly(r, step)).err, what
        # a ledger is JSON on its own; without its last newline it still is
        last = len(whole) - (2 if "ledger" in name else 1)
        for cut in (1, 8, 96, 500, len(whole) // 2, len(whole) - 50, last):
            if cut < len(whole):
                path.write_bytes(whole[:cut])
                refuses(65, *read_strictly(r, step))
        path.write_bytes(whole)
        must(*read_strictly(r, step))

    @pytest.mark.parametrize(("stage", "name", "step"), READERS[:-1])
    def test_a_file_of_another_session(
        self, refuses: Refuses, round_at: RoundAt, stage: str, name: str, step: str
    ) -> None:
        r = round_at(stage)
        shutil.copy(round_at(stage, "other", name="other").folder / name, r.folder / name)
        assert "session" in refuses(65, *read_strictly(r, step)).err

    def test_a_session_that_was_replaced_fits_no_file(self, refuses: Refuses, round_at: RoundAt) -> None:
        r = round_at("answered")
        shutil.copy(round_at("answered", "other", name="other").folder / "session.json", r.folder / "session.json")
        for step in ("offline", "mask", "eliminate", "freeze", "decode"):
            refuses(65, *r.step(step))

    @pytest.mark.parametrize(
        ("stage", "source", "target", "step"),
        [
            ("masked", "masked/user-02.h5", "masked/user-03.h5", "freeze"),
            ("frozen", "masked/user-02.h5", "masked/user-03.h5", "eliminate"),
            ("offline", "secrets/user-02.h5", "secrets/user-01.h5", "mask"),
            ("offline", "secrets/user-02.h5", "secrets/user-01.h5", "offline"),
            ("offline", "secrets/user-02.ledger.json", "secrets/user-01.ledger.json", "mask"),
            ("frozen", "secrets/user-02.ledger.json", "secrets/user-01.ledger.json", "eliminate"),
            ("frozen", "shares/user-02/from-03.h5", "shares/user-01/from-03.h5", "eliminate"),
            ("frozen", "shares/user-01/from-02.h5", "shares/user-01/from-03.h5", "eliminate"),
            ("frozen", "masked/user-03.h5", "shares/user-01/from-03.h5", "eliminate"),
            ("frozen", "secrets/user-02.h5", "masked/user-02.h5", "eliminate"),
            ("answered", "masked/user-02.h5", "elimination/user-02.h5", "decode"),
            ("answered", "session.json", "survivors.json", "decode"),
            ("frozen", "survivors.json", "session.json", "eliminate"),
        ],
    )
    def test_the_file_of_another_user_or_kind(
        self, refuses: Refuses, round_at: RoundAt, stage: str, source: str, target: str, step: str
    ) -> None:
        r = round_at(stage)
        shutil.copy(r.folder / source, r.folder / target)
        refuses(65, *read_strictly(r, step))

    @both
    def test_another_masked_input_than_the_frozen_or_the_sent_one(self, refuses: Refuses, round_at: RoundAt) -> None:
        """Valid X of the same users and session."""
        frozen, masked, twin = round_at("frozen"), round_at("masked", "masked"), round_at("offline", "twin")
        for n in (1, 2):
            must(*twin.mask(n, gradient=twin.gradient(5)))
        shutil.copy(twin.folder / "masked/user-02.h5", frozen.folder / "masked/user-02.h5")
        assert "not the file that was frozen" in refuses(65, *frozen.eliminate(1)).err
        shutil.copy(twin.folder / "masked/user-01.h5", masked.folder / "masked/user-01.h5")
        must(*masked.freeze())
        assert "did not send" in refuses(65, *masked.eliminate(1)).err
        must(*masked.eliminate(2))

    @both
    def test_a_secret_with_impossible_values(self, refuses: Refuses, round_at: RoundAt) -> None:
        r = round_at("offline")
        path = r.folder / "secrets/user-01.h5"
        whole = path.read_bytes()
        wrong = [("mask", 4281076801), ("place", 150 if r.recipe.construction == "moments" else 4)]
        for name, value in wrong + [("mask", 0)] * (r.recipe.construction == "moments"):
            rewrite(path, lambda _, found, name=name, value=value: found[name].__setitem__(-1, value))
            refuses(65, *r.mask(1))
            path.write_bytes(whole)

    @pytest.mark.parametrize("key", ["parameters", "points", "layout"])
    @pytest.mark.parametrize("value", [None, 3, "text", [], [1], {}, {"users": 1}], ids=str)
    def test_a_session_with_nonsense_in_it(self, refuses: Refuses, round_at: RoundAt, key: str, value: object) -> None:
        r = round_at("init")
        edit(r.folder / "session.json", lambda content: content.update({key: value}))
        refuses(65, *r.offline(1))

    @both
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("users", 6), ("users", True), ("users", 5.0), ("users", -5), ("colluders", 3), ("colluders", 0),
            ("blocks", 3), ("top_k", 999), ("length", 5), ("field", 2**32 - 6), ("construction", "magic"),
            ("construction", "rotation"), ("picks", 1), ("buckets", 7), ("spare", -1), ("spare", "1"), ("clip", 0.0),
            ("clip", "1.0"), ("max_weight", 0.0), ("max_weight", 2.0), ("scale", 1), ("scale", None),
            ("survivors", 2**70), ("elimination", "dense"),
        ],
    )  # fmt: skip
    def test_a_session_with_inadmissible_parameters(
        self, refuses: Refuses, round_at: RoundAt, name: str, value: object
    ) -> None:
        r = round_at("init")
        edit(r.folder / "session.json", lambda content: content["parameters"].update({name: value}))
        refuses(65, *r.offline(1))

    @pytest.mark.parametrize(
        ("key", "value"),
        [("freezer", 0), ("freezer", 6), ("freezer", True), ("confirm", True), ("confirm", 1), ("recipients", []),
         ("recipients", {}), ("nonce", 5), ("insecure_seed", "x"), ("left_out", 5), ("more", 1)],
    )  # fmt: skip
    def test_a_session_with_something_else_that_cannot_be(
        self, refuses: Refuses, round_at: RoundAt, key: str, value: object
    ) -> None:
        r = round_at("init")
        edit(r.folder / "session.json", lambda content: content.update({key: value}))
        refuses(65, *r.offline(1))

    @pytest.mark.parametrize(
        "survivors",
        [None, 3, "text", {}, {"user": 1}, [None], [1], ["user"], [["user", "sha256", "weight"]], [{}]],
        ids=str,
    )
    def test_a_survivors_json_with_nonsense_in_it(self, refuses: Refuses, round_at: RoundAt, survivors: object) -> None:
        r = round_at("answered")
        edit(r.folder / "survivors.json", lambda content: content.update(survivors=survivors))
        for step in ("eliminate", "decode", "freeze"):
            refuses(65, *r.step(step))

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(lambda rows: rows.reverse(), id="reversed"),
            pytest.param(lambda rows: rows.append(dict(rows[0])), id="twice"),
            pytest.param(lambda rows: rows[0].update(user=9), id="user 9"),
            pytest.param(lambda rows: rows[0].update(user=True), id="true"),
            pytest.param(lambda rows: rows[0].update(user="1"), id="text"),
            pytest.param(lambda rows: rows[0].update(sha256=rows[0]["sha256"].upper()), id="upper case"),
            pytest.param(lambda rows: rows[0].update(sha256="0" * 63), id="short digest"),
            pytest.param(lambda rows: rows[0].update(weight=1.5), id="beyond the largest weight"),
            pytest.param(lambda rows: rows[0].update(weight=1), id="an integer"),
            pytest.param(lambda rows: rows[0].update(more=1), id="one more key"),
        ],
    )
    def test_a_survivors_json_that_no_freeze_wrote(
        self, refuses: Refuses, round_at: RoundAt, change: Callable[[list[dict[str, object]]], object]
    ) -> None:
        r = round_at("answered")
        edit(r.folder / "survivors.json", lambda content: change(content["survivors"]))
        for step in ("eliminate", "decode"):
            refuses(65, *r.step(step))

    @both
    @pytest.mark.parametrize(
        ("bad", "said"), [(np.nan, "finite"), (-np.inf, "finite"), (1e9, "clip"), ("shape", "shape"), ("none", "read")]
    )
    def test_a_gradient_that_cannot_be_sent(
        self, refuses: Refuses, round_at: RoundAt, tmp_path: Path, bad: object, said: str
    ) -> None:
        r, path = round_at("offline"), tmp_path / "g.npy"
        values = np.full(r.recipe.length + (bad == "shape"), 0.5)
        if isinstance(bad, float):
            values[-1] = bad
        save(path, values)
        if bad == "none":
            path.write_bytes(b"rubbish")
        result = refuses(65, *r.mask(1, gradient=path))
        assert said in result.err or bad == "none"
        if bad == 1e9:
            assert "the largest is 1e+09" in result.err
            assert "a clip of 1e+09: mask with --saturate, or init with --clip" in result.err

    @both
    def test_saturate_clamps_and_counts_even_where_the_energy_overflows(
        self, round_at: RoundAt, tmp_path: Path
    ) -> None:
        r = round_at("offline")
        values = np.full(r.recipe.length, 0.5)
        values[:2] = 1e300, -1e300
        said = must(*r.mask(1, "--saturate", "--json", gradient=save(tmp_path / "g.npy", values)))
        assert (said.json["clipped"], said.err) == (2, "")


class TestTooFewSurvivors69:
    """freeze and decode: test_left_out.py; the fallback: test_spare.py."""

    @pytest.mark.parametrize("count", [0, 1, 2])
    def test_nobody_answers_a_survivor_set_below_u(self, refuses: Refuses, round_at: RoundAt, count: int) -> None:
        r = round_at("frozen")
        edit(r.folder / "survivors.json", lambda content: content.update(survivors=content["survivors"][:count]))
        assert "it would reveal inputs" in refuses(69, *r.eliminate(1)).err

    def test_run_with_too_many_drop_outs_shares_nothing(self, tmp_path: Path) -> None:
        options = words("--survivors 3 --colluders 1 --top-k 2 --construction permutation --drop-masking")
        for name, drops in (("a", ["1,2,3"]), ("b", ["1,2", "--drop-elimination", "3"])):
            result = call("run", tmp_path / name, "--gradients", EXAMPLE, *options, *drops)
            assert result.code == 69
            assert_one_error(result)
            assert [path.name for path in (tmp_path / name).iterdir() if path.name != ".lock"] == ["session.json"]


class TestRefused77:
    @both
    def test_a_round_of_other_parameters(self, refuses: Refuses, round_at: RoundAt) -> None:
        r = round_at("decoded")
        for more in (
            "--clip 2",
            "--max-weight 2",
            "--insecure-seed 1",
            "--field 4294967291",
            "--freezer 2",
            "--users 6",
        ):
            assert "with other parameters" in refuses(77, *r.init(*words(more))).err
        refuses(77, *r.run("--clip", 2))

    @both
    @pytest.mark.parametrize("stage", ["masked", "decoded"])
    def test_a_second_input(self, refuses: Refuses, round_at: RoundAt, stage: str) -> None:
        r = round_at(stage)
        calls = [r.mask(1, gradient=r.gradient(2)), r.mask(1, "--weight", "0.5")]
        if r.recipe.construction == "moments":  # among so few of the other, random places may be the largest by chance
            calls.append(r.mask(1, "--select", "random"))
        for command in calls:
            assert "already masked another input" in refuses(77, *command).err
        (r.folder / "masked/user-01.h5").unlink()
        (r.folder / "survivors.json").unlink(missing_ok=True)
        for command in calls:
            refuses(77, *command)

    @both
    @pytest.mark.parametrize("dropped", [1, 2, 3])
    def test_answering_another_survivor_set(self, refuses: Refuses, round_at: RoundAt, dropped: int) -> None:
        """Two answers would decode to exactly one user's input."""
        r = round_at("answered")
        edit(r.folder / "survivors.json", lambda content: content["survivors"].pop(dropped))
        assert "another survivor set" in refuses(77, *r.eliminate(1)).err
        (r.folder / "elimination/user-01.h5").unlink()
        refuses(77, *r.eliminate(1))


class TestCannotWrite73:
    def test_something_in_the_way(self, refuses: Refuses, round_at: RoundAt, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for folder in (tmp_path / "file", tmp_path / "file" / "round"):
            refuses(73, "init", folder, *words(SMALL))
        done, shared = round_at("decoded"), round_at("offline", "shared")
        (tmp_path / "sum.npy").mkdir()
        for output in (tmp_path / "nowhere" / "sum.npy", tmp_path / "sum.npy"):
            assert str(output) in refuses(73, *done.decode("--output", output)).err
        (shared.folder / "masked").touch()
        refuses(73, *shared.mask(1))
        refuses(73, *shared.mask(1, "--residual", tmp_path / "nowhere" / "r.h5"))

    def test_a_round_that_the_disk_cannot_hold(self, refuses: Refuses, tmp_path: Path) -> None:
        options = words("--users 500 --survivors 300 --colluders 100 --top-k 100000 --length 4000000")
        said = refuses(73, "init", tmp_path / "round", *options, "--construction", "permutation").err
        assert "need" in said
        assert "topk-secagg plan" in said

    def test_results_that_cannot_be_printed(self, round_at: RoundAt) -> None:
        r = round_at("frozen")
        with Path("/dev/full").open("w") as full:
            end = subprocess.run([SCRIPT, *r.freeze()], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert end.returncode == 73
        assert_one_error(Result(73, "", end.stderr))

    def test_a_closed_standard_output_or_error_is_no_bug_of_the_program(self, round_at: RoundAt) -> None:
        r = round_at("decoded")
        for command, codes in (
            (f"freeze '{r.folder}' >&-", (0, 73)),
            (f"inspect '{r.folder}/session.json' >&-", (0, 73)),
            (f"offline '{r.folder}' --user 1 2>&-", (0,)),
            (f"decode '{r.folder}' 2>&-", (0,)),
        ):
            end = subprocess.run(
                ["sh", "-c", f'exec "{SCRIPT}" {command}'], capture_output=True, text=True, check=False
            )
            assert "a bug" not in end.stderr
            assert end.returncode in codes, (command, end)

    def test_a_pipe_that_nobody_reads_ends_the_command_silently(self, round_at: RoundAt) -> None:
        r = round_at("frozen")
        for command in (r.freeze(), ("inspect", r.folder / "session.json")):
            reader, writer = os.pipe()
            os.close(reader)
            end = subprocess.run([SCRIPT, *command], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
            os.close(writer)
            assert (end.returncode, end.stderr) == (141, "")


@pytest.fixture
def held() -> Iterator[Callable[[Path], None]]:
    """held(path): another process is at work (locks are per open file, so this one will do)."""
    open_files = []

    def hold(path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        stream = path.open("w")
        fcntl.flock(stream, fcntl.LOCK_EX)
        open_files.append(stream)

    yield hold
    for stream in open_files:
        stream.close()


class TestBusy75:
    @pytest.mark.parametrize("step", ["offline", "mask", "freeze", "eliminate"])
    def test_a_step_of_the_same_user_is_running(
        self, refuses: Refuses, round_at: RoundAt, held: Callable[[Path], None], step: str
    ) -> None:
        r = round_at("frozen")
        held(r.folder / "secrets/.user-01.lock")
        assert "again" in refuses(75, *r.step(step)).err
        if step != "freeze":
            must(*r.step(step, 2))

    def test_a_step_of_the_round_is_running(
        self, refuses: Refuses, round_at: RoundAt, held: Callable[[Path], None], tmp_path: Path
    ) -> None:
        r = round_at("answered")
        held(r.folder / ".lock")
        refuses(75, *r.decode())
        held(tmp_path / "new" / ".lock")
        refuses(75, "init", tmp_path / "new", *words(SMALL))


class TestUsage2:
    @pytest.mark.parametrize(
        "more",
        [
            "--colluders 3", "--colluders 0", "--colluders -1", "--users 2", "--users 0 --survivors 0 --colluders 0",
            "--top-k 0", "--top-k 5", "--length 0", "--length -4", "--blocks 3", "--blocks 0", "--field 12",
            "--field 7", "--field 4294967311", "--field -7", "--clip 0", "--clip -1", "--clip nan", "--clip inf",
            "--clip 1e20", "--max-weight 0", "--max-weight -1", "--max-weight nan", "--max-weight inf",
            "--max-weight 1e20", "--picks 0", "--picks -1", "--top-k 4 --picks 3", "--construction magic",
            "--construction rotation", "--elimination dense", "--density 0.5", "--like x.npy", "--users five",
            "--length 1e3", "--nonsense", "--entry a", "--confirm",
        ],
    )  # fmt: skip
    def test_inadmissible_options_of_init(self, refuses: Refuses, tmp_path: Path, more: str) -> None:
        refuses(2, "init", tmp_path / "round", *words(SMALL), *words(more))
        assert not (tmp_path / "round").exists()

    @pytest.mark.parametrize(
        "options",
        [
            "--users 5 --survivors 3 --colluders 1 --density 0 --length 4",
            "--users 5 --survivors 3 --colluders 1 --density 1.5 --length 4",
            "--users 5 --survivors 3 --colluders 1 --density nan --length 4",
            "--users 5 --survivors 3 --colluders 1 --length 4",
            "--users 5 --survivors 3 --colluders 1 --top-k 2",
            "--users 5 --survivors 3 --colluders 1 --top-k 2 --like x.txt",
            "--survivors 3 --colluders 1 --top-k 2 --length 4",
            "--users 5 --colluders 1 --top-k 2 --length 4",
            "--users 5 --survivors 3 --top-k 2 --length 4",
        ],
    )
    def test_options_of_init_that_are_not_enough(self, refuses: Refuses, tmp_path: Path, options: str) -> None:
        refuses(2, "init", tmp_path / "round", *words(options))
        assert not (tmp_path / "round").exists()

    def test_freezing_a_user_that_does_not_exist(self, refuses: Refuses, round_at: RoundAt) -> None:
        r = round_at("masked")
        for only in ("1,2,9", "0,1,2", "1,2,x", "1;2;3", "1-99999999999"):
            refuses(2, *r.freeze("--only", only))
        refuses(2, *r.freeze("--user", 9))

    def test_a_user_that_dropped_out_has_nothing_to_answer(self, refuses: Refuses, round_at: RoundAt) -> None:
        assert "survivors" in refuses(2, *round_at("frozen").eliminate(5)).err

    @pytest.mark.parametrize(
        "arguments",
        ["mask ROUND", "offline ROUND", "offline --user 1", "eliminate", "freeze", "confirm ROUND", "settle ROUND",
         "forget", "decode", "inspect", "run ROUND", "nonsense", "mask ROUND --user", "freeze ROUND extra",
         "decode ROUND --mean"],
    )  # fmt: skip
    def test_missing_and_unknown_options(self, refuses: Refuses, round_at: RoundAt, arguments: str) -> None:
        folder = round_at("frozen").folder
        refuses(2, *(folder if word == "ROUND" else word for word in words(arguments)))

    def test_no_command_at_all_shows_the_help_as_it_is(self) -> None:
        result = call()
        shown = result.out + result.err
        assert result.code in (0, 2)
        assert shown.startswith("Usage: topk-secagg ")
        assert call("--help").out.strip() in shown

    @pytest.mark.parametrize("name", ["sum.txt", "sum", "sum.h5", "sum.NPY", ".npy"])
    def test_an_output_nobody_can_write_is_refused_before_any_work(
        self, refuses: Refuses, round_at: RoundAt, name: str
    ) -> None:
        r = round_at("answered")
        refuses(2, *r.decode("--output", r.folder.parent / name))

    def test_a_gradient_of_an_unknown_type(self, refuses: Refuses, round_at: RoundAt, tmp_path: Path) -> None:
        (tmp_path / "g.csv").write_text("1,2,3,4\n")
        refuses(2, *round_at("offline").mask(1, gradient=tmp_path / "g.csv"))

    def test_nonsense_in_the_environment(
        self, refuses: Refuses, round_at: RoundAt, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TOPK_SECAGG_OFFLINE_USER", "one")
        refuses(2, "offline", round_at("init").folder)


class TestWhichConstruction:
    """Without --construction: the paper's while its files stay below 1 GiB."""

    def chosen(self, folder: Path, options: str) -> tuple[str, str]:
        said = must("init", folder, *words(options))
        return document(folder / "session.json")["parameters"]["construction"], said.err

    def test_permutation_while_it_is_small_and_moments_beyond(self, tmp_path: Path) -> None:
        common = "--users 5 --survivors 3 --colluders 1 --top-k 100"
        name, said = self.chosen(tmp_path / "small", f"{common} --length 2000")
        assert (name, said.count("\n")) == ("permutation", 1)
        assert said.startswith("construction permutation, the paper's construction: its offline files take ")
        name, said = self.chosen(tmp_path / "large", f"{common} --length 20000")
        assert (name, said.count("\n")) == ("moments", 1)
        assert said.startswith("construction moments: its offline files take ")
        assert "the paper's would take 40 GB" in said

    def test_options_that_only_one_has_choose_it_without_a_word(self, tmp_path: Path) -> None:
        common = "--users 5 --survivors 3 --colluders 1 --top-k 10 --length 150"
        for number, (more, name) in enumerate(
            (("--picks 2", "moments"), ("--spare 1", "moments"), ("--blocks 1", "permutation"))
        ):
            assert self.chosen(tmp_path / str(number), f"{common} {more}") == (name, "")

    def test_run_says_it_too(self, tmp_path: Path) -> None:
        options = words("--survivors 3 --colluders 1 --top-k 2")
        said = must("run", tmp_path / "round", "--gradients", EXAMPLE, *options).err
        assert said.startswith("construction permutation, the paper's construction: ")

    def test_where_neither_fits_nothing_is_started(self, refuses: Refuses, tmp_path: Path) -> None:
        options = words("--users 5 --survivors 3 --colluders 1 --top-k 1 --length 70000 --field 65521")
        assert "moments does not fit here" in refuses(2, "init", tmp_path / "round", *options).err


# In a process of its own: strikes at the k-th write to a file, in whatever thread it happens
STRIKING = """
import os, sys
from topk_secagg_cli.main import main
left, number, pwrite = {writes}, {number}, os.pwrite

def counted(*args):
    global left
    left -= 1
    if left == -1:
        os.kill(os.getpid(), number)
    return pwrite(*args)

os.pwrite = counted
sys.argv[0] = "topk-secagg"
main()
"""


@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize("users", ["1", "all"])
def test_a_signal_leaves_no_half_file_and_the_step_can_be_repeated(
    round_at: RoundAt, number: signal.Signals, code: int, said: str, users: str
) -> None:
    r = round_at("init")
    end = python(STRIKING.format(writes=17, number=int(number)), "offline", r.folder, "--user", users, "--jobs", 1)
    assert end.returncode == code, end
    assert_one_error(Result(code, end.stdout, end.stderr.removeprefix("\n")))  # after the ^C of a terminal
    assert said in end.stderr
    assert leftovers(r.folder) == []
    r.play(after="init").check_sum()


def test_an_unexpected_error_is_called_a_bug_and_shows_no_traceback(
    round_at: RoundAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    import topk_secagg.steps.freeze as module

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(module, "freeze", broken)
    result = call(*round_at("masked").freeze())
    assert result.code == 1
    assert result.err.splitlines()[0] == "topk-secagg: a bug: ZeroDivisionError: on purpose"
    assert "Traceback" not in result.err


def test_the_installed_command_answers_with_the_same_codes(round_at: RoundAt, tmp_path: Path) -> None:
    r = round_at("masked")
    for code, command in (
        (0, r.freeze()),
        (2, ("freeze",)),
        (66, ("freeze", tmp_path / "nowhere")),
        (69, r.decode()),
        (77, r.freeze("--only", "1,2,3")),
    ):
        end = shell(*command)
        assert end.returncode == code, end
        if code:
            assert_one_error(Result(code, end.stdout, end.stderr))
