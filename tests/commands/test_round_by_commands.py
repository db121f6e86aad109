"""The worked example of the paper, one command per step, and what each leaves on disk."""

from __future__ import annotations

import hashlib
import itertools
import json
import stat
from pathlib import Path

import h5py
import numpy as np
import pytest

from .cli_helpers import (
    ANSWERING,
    EXAMPLE,
    EXAMPLE_OPTIONS,
    MASKING,
    STAGES,
    SYMBOLS,
    USERS,
    RunCli,
    aggregate,
    attributes,
    contents,
    copy_round,
    datasets,
    gradient,
    leftovers,
    must,
    play,
    sparse_top,
    steps,
    words,
)
from .conftest import RoundAt

COMMON = {"format", "kind", "version", "session", "user", "insecure", "sha256"}
OWN = {
    "secret": {"randomness", "sharing"},
    "share": {"sender", "sharing"},
    "masked": {"sharing", "weight"},
    "elimination": {"survivors"},
    "aggregate": {"survivors"},
}
PARAMETERS = [
    "users", "survivors", "colluders", "blocks", "top_k", "length", "field",
    "construction", "picks", "buckets", "elimination", "clip", "scale",
]  # fmt: skip

# 2^20 steps per unit for five users: multiples of 2^-20 are quantised exactly
EXACT_CLIP = "409.5998"
EXACT_SCALE = 2**20


def files(folder: Path, kind: str) -> dict[tuple[int, int], Path]:
    """The files of a kind by user (and sender)."""
    if kind == "secret":
        return {(n, 0): folder / f"secrets/user-{n:02}.h5" for n in USERS}
    if kind == "share":
        return {(n, m): folder / f"shares/user-{n:02}/from-{m:02}.h5" for n in USERS for m in USERS}
    if kind == "masked":
        return {(n, 0): folder / f"masked/user-{n:02}.h5" for n in MASKING}
    if kind == "elimination":
        return {(n, 0): folder / f"elimination/user-{n:02}.h5" for n in ANSWERING}
    return {(0, 0): folder / "aggregate.h5"}


def expected_names() -> dict[str, set[str]]:
    """Which files each stage adds."""
    root = Path()
    return {
        "init": {"session.json"},
        "offline": {str(p) for kind in ("secret", "share") for p in files(root, kind).values()}
        | {f"secrets/user-{n:02}.ledger.json" for n in USERS},
        "masked": {str(p) for p in files(root, "masked").values()},
        "frozen": {"survivors.json"},
        "answered": {str(p) for p in files(root, "elimination").values()},
        "decoded": {"aggregate.h5"},
    }


def plain_sum(scale: int, users: range = MASKING) -> np.ndarray:
    """The sum of the sparse inputs as integers, for inputs that are multiples of 1/scale."""
    total = np.zeros(4, dtype=np.int64)
    for n in users:
        steps_of_user = sparse_top(np.load(gradient(n)).astype(np.float64), 2) * scale
        assert np.array_equal(steps_of_user, np.round(steps_of_user))
        total += steps_of_user.astype(np.int64)
    return total


def test_each_step_adds_exactly_its_files(stages: Path) -> None:
    there: set[str] = set()
    for stage in STAGES:
        there |= expected_names()[stage]
        assert set(contents(stages / stage)) == there, stage
        assert leftovers(stages / stage) == []


def test_a_step_changes_no_earlier_file_but_the_ledger(stages: Path) -> None:
    for earlier, later in itertools.pairwise(STAGES):
        after = contents(stages / later)
        for name, before in contents(stages / earlier).items():
            assert name.endswith("ledger.json") or after[name] == before, name


def test_secrets_ledgers_and_shares_are_for_their_owner_alone(stages: Path) -> None:
    folder = stages / "decoded"
    for name, (_, mode) in contents(folder).items():
        private = name.startswith(("secrets/", "shares/"))
        assert mode == (0o600 if private else 0o644), name
    assert stat.S_IMODE((folder / "secrets").stat().st_mode) == 0o700
    for n in USERS:
        assert stat.S_IMODE((folder / f"shares/user-{n:02}").stat().st_mode) == 0o700


def test_session_json_has_the_documented_keys_and_its_digest_names_the_session(stages: Path) -> None:
    content = (stages / "decoded/session.json").read_bytes()
    session = json.loads(content)
    assert list(session)[:3] == ["format", "kind", "version"]
    assert (session["format"], session["kind"], session["version"]) == ("topk-secagg", "session", 1)
    assert list(session["parameters"]) == PARAMETERS
    expected = {"users": 5, "survivors": 3, "colluders": 1, "blocks": 2, "top_k": 2, "length": 4}
    assert {name: session["parameters"][name] for name in expected} == expected
    assert session["parameters"]["field"] == SYMBOLS
    assert session["parameters"]["scale"] == (SYMBOLS - 1) // 2 // 5
    points = session["points"]["alpha"] + session["points"]["beta"]
    assert len(set(points)) == len(points) == 5 + 3
    assert [slot["shape"] for slot in session["layout"]] == [[4]]
    assert session["insecure_seed"] is None
    assert len(session["nonce"]) == 32
    name = hashlib.sha256(content).hexdigest()
    for path in (stages / "decoded").rglob("*.h5"):
        assert attributes(path)["session"] == name


@pytest.mark.parametrize("kind", OWN)
def test_each_file_says_whose_it_is_in_fixed_length_attributes(stages: Path, kind: str) -> None:
    session = hashlib.sha256((stages / "decoded/session.json").read_bytes()).hexdigest()
    for (user, sender), path in files(stages / "decoded", kind).items():
        found = attributes(path)
        assert set(found) == COMMON | OWN[kind]
        assert found["format"] == "topk-secagg"
        assert found["version"] == 1
        assert found["kind"] == kind
        assert found["session"] == session
        assert found["user"] == user
        assert found["insecure"] == 0
        assert found.get("sender", 0) == sender
        assert len(bytes.fromhex(found["sha256"])) == 32


@pytest.mark.parametrize("kind", OWN)
def test_sha256_covers_attributes_and_datasets_in_the_documented_order(stages: Path, kind: str) -> None:
    for path in files(stages / "decoded", kind).values():
        found = attributes(path)
        digest = hashlib.sha256()
        for name in sorted(set(found) - {"sha256"}):
            digest.update(f"attribute {name} {found[name]}\n".encode())
        for name, array in sorted(datasets(path).items()):
            if kind == "share" and name in "fh":
                continue
            shape = ",".join(map(str, array.shape))
            digest.update(f"dataset {name} {array.dtype.str} {shape}\n".encode() + array.tobytes())
        assert digest.hexdigest() == found["sha256"]


def test_survivors_json_names_the_users_that_masked_with_their_digests(stages: Path) -> None:
    document = json.loads((stages / "decoded/survivors.json").read_text())
    assert [row["user"] for row in document["survivors"]] == list(MASKING)
    for row in document["survivors"]:
        path = files(stages / "decoded", "masked")[row["user"], 0]
        assert row["sha256"] == attributes(path)["sha256"]
    digest = hashlib.sha256((stages / "decoded/survivors.json").read_bytes()).hexdigest()
    for path in files(stages / "decoded", "elimination").values():
        assert attributes(path)["survivors"] == digest
    assert attributes(stages / "decoded/aggregate.h5")["survivors"] == digest


def test_the_ledger_records_what_each_user_shared_masked_and_answered(stages: Path) -> None:
    answered = hashlib.sha256((stages / "decoded/survivors.json").read_bytes()).hexdigest()
    for n in USERS:
        ledger = json.loads((stages / f"decoded/secrets/user-{n:02}.ledger.json").read_text())
        secret = attributes(files(stages / "decoded", "secret")[n, 0])
        assert ledger["user"] == n
        assert ledger["shared"] == secret["sharing"]
        masked = attributes(files(stages / "decoded", "masked")[n, 0])["sha256"] if n in MASKING else None
        assert ledger["masked"] == masked
        assert ledger["answered"] == (answered if n in ANSWERING else None)


def test_the_aggregate_is_the_sum_of_the_survivors_within_the_rounding(stages: Path) -> None:
    found = datasets(stages / "decoded/aggregate.h5")
    assert found["survivors"].tolist() == list(MASKING)
    assert found["answering"].tolist() == list(ANSWERING)
    assert found["corrected"].size == 0
    scale = (SYMBOLS - 1) // 2 // 5
    real = np.zeros(4)
    real[found["index"]] = found["real"]
    expected = sum(sparse_top(np.load(gradient(n)).astype(float), 2) for n in MASKING)
    assert np.abs(real - expected).max() <= len(MASKING) / scale
    signed = np.where(
        found["value"] > SYMBOLS // 2, found["value"].astype(np.int64) - SYMBOLS, found["value"]
    )
    assert np.array_equal(found["real"], signed / float(scale))


def test_inputs_that_quantise_exactly_give_the_bit_equal_sum(tmp_path: Path) -> None:
    play(tmp_path / "round", options=(*EXAMPLE_OPTIONS, "--clip", EXACT_CLIP))
    session = json.loads((tmp_path / "round/session.json").read_text())
    assert session["parameters"]["scale"] == EXACT_SCALE
    assert np.array_equal(aggregate(tmp_path / "round"), plain_sum(EXACT_SCALE) % SYMBOLS)


@pytest.mark.parametrize(
    "how",
    [
        "--construction permutation",
        "--construction permutation --elimination syndrome",
        "--construction rotation --picks 1",
        "--construction rotation --picks 2 --blocks 1",
        "--construction rotation --picks 1 --elimination syndrome",
        "--randomness os",
        "--field 4294967189",
        "--blocks 1",
    ],
)
def test_run_gives_the_bit_equal_sum_in_every_construction(tmp_path: Path, how: str) -> None:
    drops = words("--drop-masking 5 --drop-elimination 4")
    # four coordinates of four: the constructions agree on what is sent
    options = words(f"--survivors 3 --colluders 1 --top-k 4 --clip {EXACT_CLIP}")
    output = tmp_path / "sum.npy"
    result = must(
        "run", tmp_path / "round", "--gradients", EXAMPLE, *options, *drops, *how.split(), "--output", output
    )
    assert "sum of users 1, 2, 3, 4" in result.out
    parameters = json.loads((tmp_path / "round/session.json").read_text())["parameters"]
    assert parameters["scale"] == EXACT_SCALE
    total = sum(np.load(gradient(n)).astype(np.float64) for n in MASKING)
    assert np.array_equal(
        aggregate(tmp_path / "round"), (total * EXACT_SCALE).astype(np.int64) % parameters["field"]
    )
    assert np.array_equal(np.load(output), total.astype(np.float32))


def test_run_writes_the_same_files_as_the_single_commands(tmp_path: Path) -> None:
    seed = ("--insecure-seed", "7")
    single = play(tmp_path / "single", options=(*EXAMPLE_OPTIONS, *seed))
    options = words("--survivors 3 --colluders 1 --top-k 2 --length 4")
    drops = words("--drop-masking 5 --drop-elimination 4")
    must("run", tmp_path / "run", "--gradients", EXAMPLE, *options, *seed, *drops)
    assert contents(tmp_path / "run") == contents(single)


def test_init_and_run_again_change_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "round"
    options = words("--survivors 3 --colluders 1 --top-k 2 --length 4")
    call = ("run", folder, "--gradients", EXAMPLE, *options, *words("--drop-masking 5 --select random"))
    must(*call)
    before = contents(folder)
    must(*call)
    assert json.loads(must("init", folder, *EXAMPLE_OPTIONS, "--json").out)["written"] is False
    assert contents(folder) == before


def test_another_run_is_refused_before_it_spends_anything(tmp_path: Path, run_cli: RunCli) -> None:
    options = words("--survivors 3 --colluders 1 --top-k 2")
    call = ("run", tmp_path / "round", "--gradients", EXAMPLE, *options)
    must(*call, "--drop-masking", "2")
    before = contents(tmp_path / "round")
    assert run_cli(*call).code == 77
    assert run_cli(*call, "--drop-masking", "1,2,3").code == 69
    assert run_cli(*call, "--drop-masking", "2", "--drop-elimination", "1,3,4").code == 69
    assert run_cli(*call, "--drop-masking", "2", "--output", tmp_path / "nowhere" / "sum.npy").code == 73
    assert contents(tmp_path / "round") == before
    must(*call, "--drop-masking", "2")


def test_run_says_what_was_clamped_and_how_much_is_kept(tmp_path: Path) -> None:
    options = words("--survivors 3 --colluders 1 --top-k 2 --construction rotation --picks 1 --clip 0.05")
    said = must("run", tmp_path / "round", "--gradients", EXAMPLE, *options, "--saturate").out
    assert "values were clamped to the clip of 0.05" in said
    assert "of the energy of the global top-K" in said


def test_an_x_after_the_freeze_is_told_that_it_is_late(round_at: RoundAt) -> None:
    folder = round_at("frozen")
    call = ("mask", folder, "--gradient", gradient(5), "--user")
    assert "comes too late" in must(*call, 5).err
    assert "comes too late" not in must("mask", folder, "--gradient", gradient(1), "--user", 1).err


def test_inspect_shows_what_it_can(tmp_path: Path, run_cli: RunCli, round_at: RoundAt) -> None:
    folder = round_at("decoded")
    (folder / "bad.h5").write_bytes(b"bad")
    result = run_cli("inspect", folder / "bad.h5", folder / "session.json")
    assert result.code == 65
    assert "session.json: session, intact" in result.out
    assert "bad.h5" in result.err
    assert run_cli("inspect", folder / "bad.h5", "--json").out == ""


def test_run_takes_single_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    options = words("--survivors 3 --colluders 1 --top-k 2 --insecure-seed 7")
    scattered = [gradient(n) for n in (3, 1, 5, 2, 4)]
    must("run", tmp_path / "files", "--gradients", *scattered, *options)
    must("run", tmp_path / "folder", "--gradients", EXAMPLE, *options)
    assert contents(tmp_path / "files") == contents(tmp_path / "folder")


def test_output_is_the_sum_and_mean_divides_it(round_at: RoundAt, run_cli: RunCli, tmp_path: Path) -> None:
    folder = round_at("answered")
    scale = (SYMBOLS - 1) // 2 // 5
    expected = sum(sparse_top(np.load(gradient(n)).astype(float), 2) for n in MASKING)
    for option, divisor in (((), 1), (("--mean",), len(MASKING))):
        assert run_cli("decode", folder, "--output", tmp_path / "out.npy", *option).code == 0
        assert np.abs(np.load(tmp_path / "out.npy") - expected / divisor).max() <= len(MASKING) / scale


@pytest.mark.parametrize("stage", STAGES[1:])
def test_repeating_a_step_gives_identical_files_and_exit_0(stages: Path, tmp_path: Path, stage: str) -> None:
    folder = copy_round(stages / stage, tmp_path / "round")
    before = contents(folder)
    for command in steps(folder)[stage]:
        must(*command)
        assert contents(folder) == before, command


@pytest.mark.parametrize("stage", STAGES[1:])
def test_repeating_a_step_at_the_end_of_the_round_changes_nothing(
    stages: Path, tmp_path: Path, stage: str
) -> None:
    folder = copy_round(stages / "decoded", tmp_path / "round")
    before = contents(folder)
    for command in steps(folder)[stage]:
        must(*command)
    assert contents(folder) == before


@pytest.mark.parametrize(
    "lost",
    [
        "masked/user-01.h5",
        "elimination/user-02.h5",
        "aggregate.h5",
        "shares/user-02/from-01.h5",
        "survivors.json",
    ],
)
def test_a_lost_file_is_made_again_with_the_same_bytes(stages: Path, tmp_path: Path, lost: str) -> None:
    folder = copy_round(stages / "decoded", tmp_path / "round")
    before = contents(folder)
    (folder / lost).unlink()
    for commands in list(steps(folder).values())[1:]:
        for command in commands:
            if lost != "masked/user-01.h5" or command[0] not in ("freeze", "eliminate"):
                must(*command)
    assert contents(folder) == before


def test_decoding_again_with_one_more_answer_gives_the_same_sum(round_at: RoundAt, run_cli: RunCli) -> None:
    folder = round_at("decoded")
    before = aggregate(folder)
    assert run_cli("eliminate", folder, "--user", 4).code == 0
    assert run_cli("decode", folder, "--json").json["checked_answers"] == 1
    assert np.array_equal(aggregate(folder), before)
    assert datasets(folder / "aggregate.h5")["answering"].tolist() == [1, 2, 3, 4]


def test_freezing_fewer_than_masked_sums_only_those(round_at: RoundAt, run_cli: RunCli) -> None:
    folder = round_at("masked")
    assert run_cli("freeze", folder, "--only", "1,2,4").code == 0
    for n in (1, 2, 4):
        assert run_cli("eliminate", folder, "--user", n).code == 0
    assert run_cli("decode", folder).code == 0
    found = datasets(folder / "aggregate.h5")
    assert found["survivors"].tolist() == [1, 2, 4]
    real = np.zeros(4)
    real[found["index"]] = found["real"]
    expected = sum(sparse_top(np.load(gradient(n)).astype(float), 2) for n in (1, 2, 4))
    assert np.abs(real - expected).max() <= 3 / ((SYMBOLS - 1) // 2 // 5)


class TestInsecureSeed:
    def test_the_same_seed_gives_byte_identical_rounds(self, seeded_stages: Path, tmp_path: Path) -> None:
        again = play(tmp_path / "again", options=(*EXAMPLE_OPTIONS, "--insecure-seed", "7"))
        assert contents(again) == contents(seeded_stages / "decoded")

    def test_another_seed_gives_another_round(self, seeded_stages: Path, tmp_path: Path) -> None:
        other = play(tmp_path / "other", "masked", options=(*EXAMPLE_OPTIONS, "--insecure-seed", "8"))
        before = contents(seeded_stages / "masked")
        assert all(before[name] != file for name, file in contents(other).items())

    def test_without_a_seed_no_two_files_of_two_rounds_agree(self, stages: Path, other_stages: Path) -> None:
        one, two = contents(stages / "decoded"), contents(other_stages / "decoded")
        assert set(one) == set(two)
        assert [name for name in one if one[name] == two[name]] == []
        for n in USERS:
            name = f"decoded/secrets/user-{n:02}.h5"
            for dataset in ("mask", "key"):
                assert not np.array_equal(
                    datasets(stages / name)[dataset], datasets(other_stages / name)[dataset]
                )

    def test_every_file_is_marked(self, seeded_stages: Path) -> None:
        marked = 0
        for name in contents(seeded_stages / "decoded"):
            path = seeded_stages / "decoded" / name
            if path.suffix == ".h5":
                assert attributes(path)["insecure"] == 1, name
            else:
                document = json.loads(path.read_text())
                assert document.get("insecure") == 1 or document.get("insecure_seed") == 7, name
            marked += 1
        assert marked == 1 + 5 + 5 + 25 + 4 + 1 + 3 + 1

    def test_init_and_run_warn_even_when_quiet(self, run_cli: RunCli, tmp_path: Path) -> None:
        seed = ("--insecure-seed", "7", "-q")
        init = run_cli("init", tmp_path / "init", *EXAMPLE_OPTIONS, *seed)
        options = words("--survivors 3 --colluders 1 --top-k 2")
        run = run_cli("run", tmp_path / "run", "--gradients", EXAMPLE, *options, *seed)
        for result in (init, run):
            assert (result.code, result.out) == (0, "")
            assert result.err.startswith("topk-secagg: warning: ")
            assert "seed" in result.err

    def test_inspect_shows_the_mark_of_every_file(self, seeded_round_at: RoundAt, run_cli: RunCli) -> None:
        folder = seeded_round_at("decoded")
        for name in contents(folder):
            shown = run_cli("inspect", folder / name)
            assert shown.code == 0
            assert "INSECURE" in shown.out, name
            assert run_cli("inspect", folder / name, "--json").json["files"][0]["insecure"] is True

    def test_inspect_shows_no_mark_on_a_secure_round(self, round_at: RoundAt, run_cli: RunCli) -> None:
        folder = round_at("decoded")
        for name in contents(folder):
            assert "INSECURE" not in run_cli("inspect", folder / name).out, name
            assert run_cli("inspect", folder / name, "--json").json["files"][0]["insecure"] is False

    def test_a_file_with_the_mark_removed_is_refused(self, seeded_round_at: RoundAt, run_cli: RunCli) -> None:
        folder = seeded_round_at("masked")
        with h5py.File(folder / "masked/user-01.h5", "r+") as file:
            file.attrs["insecure"] = np.uint64(0)
        assert run_cli("freeze", folder).code == 65


def test_users_are_in_order_of_their_numbers_beyond_a_hundred(tmp_path: Path, run_cli: RunCli) -> None:
    """user-100 comes after user-11, though its file name does not."""
    folder = tmp_path / "round"
    must("init", folder, *words("--users 100 --survivors 3 --colluders 1 --top-k 1 --length 2"))
    for n in (9, 11, 100):
        must("offline", folder, "--user", n)
        must("mask", folder, "--user", n, "--gradient", _two(tmp_path))
    assert run_cli("freeze", folder, "--json").json["survivors"] == [9, 11, 100]
    for n in (9, 11, 100):
        must("eliminate", folder, "--user", n)
    assert run_cli("decode", folder, "--json").json["answering"] == [9, 11, 100]
    assert datasets(folder / "aggregate.h5")["answering"].tolist() == [9, 11, 100]


def _two(folder: Path) -> Path:
    np.save(folder / "two.npy", np.array([0.5, 0.25], dtype=np.float32))
    return folder / "two.npy"


def test_writing_an_output_removes_no_file_of_another_name(round_at: RoundAt, tmp_path: Path) -> None:
    """Left-overs of the same name are removed; a star in that name is a star."""
    folder = round_at("answered")
    theirs = [tmp_path / ".sum.npy.1.tmp", tmp_path / ".s1.npy.1.tmp", tmp_path / "sum.npy"]
    for path in theirs:
        path.touch()
    for name in ("s*.npy", "s[0-9].npy", "s?m.npy"):
        must("decode", folder, "--output", tmp_path / name)
        assert (tmp_path / name).exists()
    assert [path for path in theirs if not path.exists()] == []
