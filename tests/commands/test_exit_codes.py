"""Every exit code through the command: one clear line and a hint, no traceback, nothing left half
done.

What damages files at random, kills commands and fills disks is in tests/faults; hostile gradients
in tests/gradients.
"""

import fcntl
import io
import itertools
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from played import (
    CONFIRMING,
    EXAMPLE,
    SCRIPT,
    Command,
    Result,
    Round,
    assert_one_error,
    call,
    changed,
    contents,
    document,
    edit,
    every,
    in_child,
    must,
    process,
    put,
    rewrite,
    words,
)

from topk_secagg.gradients.formats import suffixes_read

CERTAIN = (1, 2, 3, 4)  # D + 2T answers, for strict decoding
FIVE_USERS = "--users 5 --survivors 3 --colluders 1"
SMALL = f"{FIVE_USERS} --top-k 2 --length 4"


def read_strictly(r: Round, step: str) -> Command:
    """A step of user 1 that leaves out no file that it cannot read."""
    more = {"freeze": ("--only", "1-4"), "decode": ("--strict",)}
    return (*r.step(step), *more.get(step, ()))


def dealt_as(name: str) -> dict[str, str]:
    """How shares are dealt in a round of which `eliminate` reads this file: keys are read by
    `mask` alone."""
    return {"dealing": "shares"} if name.startswith("shares") else {}


def reads_no_masked(construction: str, step: str, name: str) -> bool:
    """Whether this is an X that `eliminate` does not read: answers to a sketch depend on none, and
    `decode` reads them all."""
    return construction == "sketch" and step == "eliminate" and name.startswith("masked")


def save(path: Path, values: object) -> Path:
    np.save(path, np.asarray(values))
    return path


LEDGER = "user-01.ledger.json"
NOT_OF_PERMUTATION = "picks do not belong to the construction permutation"


class TestMissingInput66:
    @every
    @pytest.mark.parametrize(
        ("stage", "lost", "step", "says"),
        [
            *(
                ("init", "session.json", step, "session.json is not there")
                for step in ("offline", "mask", "freeze", "eliminate", "decode")
            ),
            ("init", "", "mask", "user 1 has no secret"),
            ("init", "", "freeze", "user-01.ledger.json is not there"),
            ("masked", "", "eliminate", "survivors.json is not there"),
            ("offline", "secrets/user-01.h5", "mask", "user-01.h5 is not there"),
            *(
                (stage, "secrets/user-01.ledger.json", step, "user-01.ledger.json is not there")
                for stage, step in (
                    ("offline", "mask"),
                    ("offline", "offline"),
                    ("masked", "freeze"),
                    ("frozen", "eliminate"),
                )
            ),
            ("answered", "survivors.json", "decode", "survivors.json is not there"),
            ("frozen", "masked/user-02.h5", "eliminate", "no X has arrived from user 2"),
            ("frozen", "masked/user-01.h5", "eliminate", "no X has arrived from user 1"),
            (
                "frozen",
                "shares/user-01/from-03.h5",
                "eliminate",
                "no share for user 1 has arrived from user 3",
            ),
            (
                "frozen",
                "shares/user-01/from-01.h5",
                "eliminate",
                "no share for user 1 has arrived from user 1",
            ),
            ("frozen", "masked", "eliminate", "no X has arrived from users 1, 2, 3, 4"),
            ("frozen", "shares", "eliminate", "no share for user 1 has arrived from users 1, "),
            ("frozen", "secrets", "eliminate", "user-01.ledger.json is not there"),
            ("offline", "secrets", "mask", "user 1 has no secret"),
        ],
    )
    def test_a_file_or_folder_of_the_round_is_missing(
        self, refuses, round_at, construction, stage, lost, step, says
    ):
        if reads_no_masked(construction, step, lost):
            stage = "answered"
            step = "decode"
        r = round_at(stage, **dealt_as(lost))
        if lost:
            (r.folder / lost).rename(r.folder.with_name("away"))
        said = refuses(66, *r.step(step), says=says).err
        if lost.startswith(("masked", "shares/")):
            folder = (r.folder / lost).parent if lost.endswith(".h5") else r.folder / lost
            assert f" in {folder}" in said
        if lost and "." not in lost:  # once the folder is back, the round goes on
            shutil.rmtree(r.folder / lost, ignore_errors=True)
            r.folder.with_name("away").rename(r.folder / lost)
            must(*r.step(step))

    def test_a_file_that_is_given_as_the_folder_of_a_round(self, refuses, round_at):
        folder = round_at("answered").folder
        says = ("/session.json is not a folder", f"give the folder of the round, such as {folder}")
        for command in ("status", "decode", "audit", "freeze"):
            said = refuses(66, command, folder / "session.json").err
            assert all(phrase in said for phrase in says)

    def test_no_gradient(self, refuses, round_at, tmp_path):
        r = round_at("offline")
        (tmp_path / "folder.npy").mkdir()
        (tmp_path / "file").touch()
        for suffix in suffixes_read():
            os.mkfifo(tmp_path / f"pipe{suffix}")
            assert (
                "is not a file" in refuses(66, *r.mask(1, gradient=tmp_path / f"pipe{suffix}")).err
            )
            (tmp_path / f"pipe{suffix}").unlink()
            assert (
                "is not there" in refuses(66, *r.mask(1, gradient=tmp_path / f"gone{suffix}")).err
            )
        for name in ("gone.npy", "no/folder.npz", "gone.pt", "file/g.npy"):
            assert name in refuses(66, *r.mask(1, gradient=tmp_path / name)).err
        init = ("init", tmp_path / "round-2", *words(SMALL)[:-2])
        refuses(66, *init, "--like", tmp_path / "gone.npy", says="/gone.npy is not there")
        (tmp_path / "gradients").mkdir()
        for name in ("gradients", "folder.npy"):
            says = (f"/{name} is a folder", "mask --user all --gradients DIR")
            refuses(2, *r.mask(1, gradient=tmp_path / name), says=says)
        refuses(2, *r.mask(1, gradient=tmp_path / "file"), says="/file: it has no suffix")
        for name in ("gone.h5", "gone.json"):
            refuses(66, "inspect", tmp_path / name, says=f"/{name} is not there")


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


# How a file is refused that is not what a step wrote, or not all of it
NOT_OURS = (
    "it is damaged, or not a file of a round",
    "is not a JSON document of this program",
    "has format version None, not 1",
    "is too large to be what its name says",
)
# What is said of a document without its last newline: JSON all the same, but of another digest
WITHOUT_NEWLINE = {
    "survivors.json": "survivors.json is not written as this program writes it",
    "session.json": "user-01.ledger.json belongs to another session",
}


def foreign_files() -> dict[str, bytes]:
    """Files that no step can have written."""
    archive, other = io.BytesIO(), io.BytesIO()
    np.savez(archive, index=np.arange(4), value=np.arange(4))
    with h5py.File(other, "w") as file:
        file["y"] = np.arange(4, dtype="<u4")
        file.attrs["format"] = "another program's"
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
    @every
    @pytest.mark.parametrize(("stage", "name", "step"), READERS)
    def test_a_foreign_or_truncated_file(self, refuses, round_at, construction, stage, name, step):
        if reads_no_masked(construction, step, name):
            stage = "answered"
            step = "decode"
        r = round_at(stage, answering=CERTAIN, **dealt_as(name))
        path = r.folder / name
        whole = path.read_bytes()
        for what, content in foreign_files().items():
            path.write_bytes(content)
            said = refuses(65, *read_strictly(r, step), says=path.name).err
            assert any(reason in said for reason in NOT_OURS), what
        # a ledger is JSON on its own; without its last newline it still is
        last = len(whole) - (2 if "ledger" in name else 1)
        for cut in (1, 8, 96, 500, len(whole) // 2, len(whole) - 50, last):
            if cut < len(whole):
                path.write_bytes(whole[:cut])
                said = refuses(65, *read_strictly(r, step)).err
                # (an HDF5 file may end with any byte)
                is_text = name in WITHOUT_NEWLINE and whole[cut:] == b"\n"
                reasons = [WITHOUT_NEWLINE[name]] if is_text else NOT_OURS
                assert any(reason in said for reason in reasons), cut
        path.write_bytes(whole)
        must(*read_strictly(r, step))

    @pytest.mark.parametrize(
        ("stage", "source", "target", "step", "says"),
        [
            *(
                (stage, f"../other/{name}", name, step, "another session")
                for stage, name, step in READERS[:-1]
            ),
            ("answered", "../other/session.json", "session.json", "offline", "its series is"),
            *(
                ("answered", "../other/session.json", "session.json", step, "to another session")
                for step in ("mask", "eliminate", "freeze", "decode")
            ),
            ("masked", "masked/user-02.h5", "masked/user-03.h5", "freeze", "user is 2, not 3"),
            ("frozen", "masked/user-02.h5", "masked/user-03.h5", "eliminate", "user is 2, not 3"),
            ("offline", "secrets/user-02.h5", "secrets/user-01.h5", "mask", "user is 2, not 1"),
            ("offline", "secrets/user-02.h5", "secrets/user-01.h5", "offline", "user is 2, not 1"),
            *(
                (
                    stage,
                    "secrets/user-02.ledger.json",
                    "secrets/user-01.ledger.json",
                    step,
                    "user-01.ledger.json belongs to another session or user",
                )
                for stage, step in (("offline", "mask"), ("frozen", "eliminate"))
            ),
            *(
                ("frozen", source, "shares/user-01/from-03.h5", "eliminate", says)
                for source, says in (
                    ("shares/user-02/from-03.h5", "from-03.h5: its user is 2, not 1"),
                    ("shares/user-01/from-02.h5", "from-03.h5: its sender is 2, not 3"),
                    ("masked/user-03.h5", "from-03.h5: it is of kind 'masked', not 'share'"),
                )
            ),
            ("frozen", "secrets/user-02.h5", "masked/user-02.h5", "eliminate", "kind 'secret'"),
            ("answered", "masked/user-02.h5", "elimination/user-02.h5", "decode", "kind 'masked'"),
            ("answered", "session.json", "survivors.json", "decode", "of kind 'session', not"),
            ("frozen", "survivors.json", "session.json", "eliminate", "of kind 'survivors', not"),
        ],
    )
    def test_a_file_of_another_session_user_or_kind(
        self, refuses, round_at, stage, source, target, step, says
    ):
        r = round_at(stage, answering=CERTAIN)
        round_at(stage, "other", name="other", answering=CERTAIN)
        shutil.copy(r.folder / source, r.folder / target)
        refuses(65, *read_strictly(r, step), says=says)

    @every
    def test_another_masked_input_than_the_frozen_or_the_sent_one(self, refuses, round_at):
        """Valid X of the same users and session."""
        frozen, masked, twin = (
            round_at("frozen"),
            round_at("masked", "masked"),
            round_at("offline", "twin"),
        )
        for n in (1, 2):
            must(*twin.mask(n, gradient=twin.gradient(5)))
        shutil.copy(twin.folder / "masked/user-02.h5", frozen.folder / "masked/user-02.h5")
        if frozen.recipe.construction == "sketch":  # an answer depends on no X, and the sum does
            for n in (1, 3, 4):
                must(*frozen.eliminate(n))
            said = refuses(65, *frozen.decode(), besides=("decoded.json",)).err
        else:
            said = refuses(65, *frozen.eliminate(1)).err
        assert "not the file that was frozen" in said
        shutil.copy(twin.folder / "masked/user-01.h5", masked.folder / "masked/user-01.h5")
        must(*masked.freeze())
        says = "user 1 has sent another X in this round than its ledger knows"
        refuses(77, *masked.eliminate(1), says=says)
        must(*masked.eliminate(2))

    @every
    def test_a_secret_with_impossible_values(self, refuses, round_at):
        r = round_at("offline", dealing="shares")
        path = r.folder / "secrets/user-01.h5"
        whole = path.read_bytes()
        wrong = {
            "permutation": [
                ("mask", 4281076801, "a mask is not below the field's size"),
                ("place", 4, "its places are not a permutation"),
            ],
            "sketch": [("mask", 4281076801, "a mask is not below the field's size")],
        }
        for name, value, says in wrong[r.recipe.construction]:
            rewrite(
                path, lambda _, found, name=name, value=value: found[name].__setitem__(-1, value)
            )
            refuses(65, *r.mask(1), says=says)
            path.write_bytes(whole)

    @every
    @pytest.mark.parametrize(
        ("name", "value", "says"),
        [
            ("users", 6, "too few or too many points"),
            ("users", True, "parameters.users is not what"),
            ("users", 5.0, "parameters.users is not what"),
            ("users", -5, "3 survivors of -5 users"),
            ("users", 10**30, "distinct points"),
            ("survivors", 2**70, "survivors of 5 users"),
            ("colluders", 3, "3 colluders among 3 survivors"),
            ("colluders", 0, "0 colluders"),
            ("blocks", 2, "its parameters is not what"),
            ("top_k", 999, "cannot select 999"),
            ("length", 5, {"permutation": "4 coordinates, not 5", "": "select 10 of 5"}),
            ("field", 2**32 - 6, "4294967290 is not a prime"),
            ("construction", "magic", "unknown construction 'magic'"),
            ("construction", "rotation", "unknown construction 'rotation'"),
            (
                "picks",
                1,
                {"permutation": NOT_OF_PERMUTATION, "": "do not fit K = 10 and P = 1"},
            ),
            ("buckets", 7, {"permutation": NOT_OF_PERMUTATION, "": "7 buckets do not fit"}),
            ("dealing", "magic", "does not deal 'magic'"),
            ("dealing", None, "parameters.dealing is not what"),
            ("dealing", "seeds", "does not deal 'seeds'"),
            ("clip", 1.0, "its parameters is not what"),
            ("max_weight", 0.0, "the largest weight is 0"),
            ("max_weight", 1e10, "no room for 5 values"),
            ("elimination", "dense", "its parameters is not what"),
        ],
    )
    def test_a_session_with_inadmissible_parameters(self, refuses, round_at, name, value, says):
        r = round_at("init")
        put(r.folder / "session.json", value, "parameters", name)
        own = says.get(r.recipe.construction) or says[""] if isinstance(says, dict) else says
        refuses(65, *r.offline(1), says=("session.json: ", own))

    @pytest.mark.parametrize(
        ("value", "place", "says"),
        [
            *(
                (value, place, f"its {place} is not what a session has there")
                for value, place in itertools.product(
                    (None, 3, "text", [], [1], {}, {"users": 1}), ("parameters", "points", "layout")
                )
                if (place, value) not in (("layout", []), ("layout", [1]))
            ),
            ([], "layout", "the names of the layout are neither distinct strings nor"),
            ([1], "layout", "a tensor of the layout has no clip"),
            (0.0, "layout 0 clip", "the clip is 0"),
            (1, "layout 0 clip", "a tensor of the layout has no clip"),
            (1e308, "layout 0 clip", "the clip is 1e+308"),
            (0, "freezer", "there is no user 0 to freeze"),
            (6, "freezer", "there is no user 6 to freeze"),
            (True, "freezer", "its freezer is not what"),
            (True, "confirm", "either users confirm the survivors, or one user freezes them"),
            (None, "freezer", "either users confirm the survivors, or one user freezes them"),
            (1, "confirm", "its confirm is not what"),
            ([], "recipients", "there are not the keys of users 1 to N"),
            ({}, "recipients", "its recipients is not what"),
            (5, "nonce", "its nonce is not what"),
            (5, "left_out", "its left_out is not what"),
            (1, "more", "does not have the keys of a session"),
            ([2**31, 2**31], "layout 0 shape", "has too many coordinates"),
        ],
        ids=str,
    )
    def test_a_session_with_impossible_values(self, refuses, round_at, value, place, says):
        r = round_at("init")
        keys = (int(key) if key.isdigit() else key for key in place.split())
        put(r.folder / "session.json", value, *keys)
        refuses(65, *r.offline(1), says=("session.json", says))

    @pytest.mark.parametrize(
        ("code", "name", "value", "place", "says"),
        [
            (65, "session.json", 5, ("recipients", 1, "age"), "its recipients.age is not what"),
            (65, "session.json", "age1x", ("recipients", 1, "age"), "keys of user 2 are not valid"),
            (65, "session.json", [], ("recipients", 1, "ed25519"), "recipients.ed25519 is not"),
            (65, "survivors.json", 7, ("signature",), "its signature is not what"),
            (65, "survivors.json", 10**30, ("survivors", 0, "user"), "each user once, in order"),
            (65, LEDGER, [1], ("user",), "its user is not what a ledger has there"),
            (65, LEDGER, 5, ("holds",), "its holds is not what a ledger has there"),
            (65, LEDGER, 0, ("residual",), "its residual is not what a ledger has there"),
            # a confirmation that is not sound is as if it were not there
            (66, "confirmed/user-02.json", ["f" * 128], ("signature",), "missing: users 2, 5"),
        ],
        ids=str,
    )
    def test_impossible_values_in_a_sealed_round(
        self, refuses, round_at, code, name, value, place, says
    ):
        at_the_start = name == "session.json"
        r = round_at("init" if at_the_start else "confirmed", **CONFIRMING)
        put(r.private(1) / name if name == LEDGER else r.folder / name, value, *place)
        refuses(code, *(r.offline(1) if at_the_start else r.eliminate(1)), says=says)

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            *(
                pytest.param(
                    lambda content, value=value: content.update(survivors=value),
                    "its survivors is not what",
                    id=str(value),
                )
                for value in (
                    *(None, 3, "x", {}, {"user": 1}),
                    *([None], [1], ["user"], [["user", "sha256"]], [{}]),
                )
            ),
            pytest.param(
                lambda content: content["survivors"].reverse(),
                "does not name each user once, in order",
                id="reversed",
            ),
            pytest.param(
                lambda content: content["survivors"].append(dict(content["survivors"][0])),
                "does not name each user once, in order",
                id="twice",
            ),
            *(
                pytest.param(
                    lambda content, row=row: content["survivors"][0].update(row), says, id=str(row)
                )
                for row, says in (
                    ({"user": 9}, "does not name each user once, in order"),
                    ({"weight": 1.5}, "names users or weights that are not in this round"),
                    ({"user": True}, "its survivors.user is not what"),
                    ({"user": "1"}, "its survivors.user is not what"),
                    ({"sha256": "A" * 64}, "its survivors.sha256 is not what"),
                    ({"sha256": "0" * 63}, "its survivors.sha256 is not what"),
                    ({"weight": 1}, "its survivors.weight is not what"),
                    ({"more": 1}, "its survivors is not what"),
                )
            ),
        ],
    )
    def test_a_survivors_json_that_no_freeze_wrote(self, refuses, round_at, change, says):
        r = round_at("answered")
        edit(r.folder / "survivors.json", change)
        for step in ("eliminate", "decode"):
            refuses(65, *r.step(step), says=("survivors.json", says))

    @every
    @pytest.mark.parametrize(
        ("bad", "said"),
        [
            (np.nan, "has 1 value that is not finite"),
            (-np.inf, "has 1 value that is not finite"),
            (1e9, "beyond the clip of 417870: the largest is 1e+09"),
            ("shape", "tensor (unnamed) has shape"),
            ("none", "it is damaged, or not what its name says"),
        ],
    )
    def test_a_gradient_that_cannot_be_sent(self, refuses, round_at, tmp_path, bad, said):
        r = round_at("offline")
        path = tmp_path / "g.npy"
        values = np.full(r.recipe.length + (bad == "shape"), 0.5)
        if isinstance(bad, float):
            values[-1] = bad
        save(path, values)
        if bad == "none":
            path.write_bytes(b"rubbish")
        # what it holds of the others' keys, and the key of its digests, do not depend on a gradient
        entered = ("user-01.chain.h5", "input.key")
        result = refuses(65, *r.mask(1, gradient=path), says=said, besides=entered)
        if bad == 1e9:
            assert "a clip of 1e+09: mask with --saturate, or init with --clip" in result.err

    @every
    def test_saturate_clamps_and_counts_even_where_the_energy_overflows(self, round_at, tmp_path):
        r = round_at("offline")
        values = np.full(r.recipe.length, 0.5)
        values[:2] = 1e300, -1e300
        said = must(*r.mask(1, "--saturate", "--json", gradient=save(tmp_path / "g.npy", values)))
        assert (said.json["clipped"], said.err) == (2, "")


class TestTooFewSurvivors69:
    """freeze and decode: test_left_out.py."""

    @pytest.mark.parametrize("count", [0, 1, 2])
    def test_a_survivor_set_below_u_is_not_answered(self, refuses, round_at, count):
        r = round_at("frozen")
        edit(
            r.folder / "survivors.json",
            lambda content: content.update(survivors=content["survivors"][:count]),
        )
        assert "it would reveal inputs" in refuses(69, *r.eliminate(1)).err

    def test_run_with_too_many_drop_outs_shares_nothing(self, tmp_path):
        options = words(
            "--survivors 3 --colluders 1 --top-k 2 --construction permutation --drop-masking"
        )
        for name, drops, says in (
            ("a", ["1,2,3"], "2 users would mask, and 3 are needed"),
            ("b", ["1,2", "--drop-elimination", "3"], "2 users would answer, and 3 are needed"),
        ):
            result = call("run", tmp_path / name, "--gradients", EXAMPLE, *options, *drops)
            assert result.code == 69
            assert_one_error(result)
            assert says in result.err
            assert contents(tmp_path / name) == {}

    def test_run_with_fewer_gradients_than_survivors_says_what_n_is(self, refuses, tmp_path):
        one = min(EXAMPLE.iterdir())
        options = words("--survivors 3 --colluders 1 --top-k 2")
        says = ("3 survivors of 1 user\n", "N is the number of gradients that were given: 1")
        refuses(2, "run", tmp_path / "round", "--gradients", one, *options, says=says)

    def test_folders_without_files_are_as_if_nobody_had_sent_any(self, refuses, round_at):
        for stage, folder, step, says in (
            ("masked", "masked", "freeze", "0 users have masked soundly, and 3 must survive"),
            ("answered", "elimination", "decode", "0 sound answers, and 3 are needed"),
        ):
            r = round_at(stage, stage)
            away = (r.folder / folder).rename(r.folder.with_name("away"))
            refuses(69, *r.step(step), says=says)
            shutil.rmtree(r.folder / folder, ignore_errors=True)
            away.rename(r.folder / folder)
            must(*r.step(step))


class TestRefused77:
    @every
    def test_a_round_of_other_parameters(self, refuses, round_at):
        r = round_at("decoded")
        clip = r.recipe.clip
        for more, differs in {
            "--clip 2": f": the clip is {clip:g} there and 2 here",
            "--max-weight 2": ": max_weight is 1.0 there and 2.0 here",
            "--field 4294967291": ": field is 4281076801 there and 4294967291 here",
            "--freezer 2": ": freezer is 1 there and 2 here",
            "--users 6": ": users is 5 there and 6 here",
            "--users 6 --clip 2": (
                f": users is 5 there and 6 here, the clip is {clip:g} there and 2 here"
            ),
            "--length 2000": f": length is {r.recipe.length} there and 2000 here, the layout of",
        }.items():
            said = refuses(77, *r.init(*words(more))).err
            assert f"session.json exists, with other parameters{differs}" in said
        assert f"the clip is {clip:g} there and 2 here" in refuses(77, *r.run("--clip", 2)).err

    @every
    @pytest.mark.parametrize("stage", ["masked", "decoded"])
    def test_a_second_input(self, refuses, round_at, stage):
        r = round_at(stage)
        calls = [r.mask(1, gradient=r.gradient(2)), r.mask(1, "--weight", "0.5")]
        for command in calls:
            assert "already masked another input" in refuses(77, *command).err
        (r.folder / "masked/user-01.h5").unlink()
        (r.folder / "survivors.json").unlink(missing_ok=True)
        for command in calls:
            refuses(77, *command, says="already masked another input")

    @every
    @pytest.mark.parametrize("dropped", [1, 2, 3])
    def test_answering_another_survivor_set(self, refuses, round_at, dropped):
        """Two answers would decode to exactly one user's input."""
        r = round_at("answered")
        edit(r.folder / "survivors.json", lambda content: content["survivors"].pop(dropped))
        assert "another survivor set" in refuses(77, *r.eliminate(1)).err
        (r.folder / "elimination/user-01.h5").unlink()
        refuses(77, *r.eliminate(1), says="another survivor set")


class TestCannotWrite73:
    def test_something_in_the_way(self, refuses, round_at, tmp_path):
        (tmp_path / "file").touch()
        for name, why in (("file", "it is a file"), ("file/round", "not a directory")):
            says = f"cannot write /{name}: {why}"
            refuses(73, "init", tmp_path / name, *words(SMALL), says=says)
        done, shared = round_at("decoded"), round_at("offline", "shared")
        (tmp_path / "sum.npy").mkdir()
        for name, why in (
            ("nowhere/sum.npy", "its folder is not there"),
            ("sum.npy", "is a directory"),
            ("file/sum.npy", "its folder is not there"),
            ("/dev/full/sum.npy", "its folder is not there"),
        ):
            said = refuses(73, *done.decode("--output", tmp_path / name)).err
            assert f"cannot write {tmp_path / name}: {why}" in said
        (shared.folder / "masked").touch()
        says = "cannot write /shared/masked: it is a file"
        refuses(73, *shared.mask(1), says=says, besides=("input.key",))

    def test_a_round_that_the_disk_cannot_hold(self, refuses, tmp_path):
        options = words(
            "--users 500 --survivors 300 --colluders 100 --top-k 100000 --length 4000000"
        )
        said = refuses(
            73, "init", tmp_path / "round", *options, "--construction", "permutation"
        ).err
        assert "need" in said
        assert "topk-secagg plan" in said

    def test_results_that_cannot_be_printed(self, round_at):
        r = round_at("frozen")
        with Path("/dev/full").open("w") as full:
            end = subprocess.run(
                [SCRIPT, *r.freeze()], stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert end.returncode == 73
        assert_one_error(Result(73, "", end.stderr))
        assert "no space left on device" in end.stderr

    def test_messages_that_cannot_be_printed(self, round_at):
        r = round_at("frozen")
        for command, code in (
            (r.decode(), 69),
            (["decode", "nowhere"], 66),
            (["nonsense"], 2),
            (r.mask(1), 0),
        ):
            with Path("/dev/full").open("w") as full:
                end = subprocess.run(
                    [SCRIPT, *map(str, command)], stdout=subprocess.PIPE, stderr=full, check=False
                )
            assert end.returncode == code, command

    def test_a_closed_standard_output_or_error_is_not_reported_as_a_bug(self, round_at):
        r = round_at("decoded")
        for command, codes in (
            (f"freeze '{r.folder}' >&-", (0, 73)),
            (f"inspect '{r.folder}/session.json' >&-", (0, 73)),
            (f"offline '{r.folder}' --user 1 2>&-", (0,)),
            (f"decode '{r.folder}' 2>&-", (0,)),
        ):
            end = process(["sh", "-c", f'exec "{SCRIPT}" {command}'])
            assert "a bug" not in end.stderr
            assert end.returncode in codes, (command, end)

    def test_a_pipe_without_a_reader_ends_the_command_silently(self, round_at):
        r = round_at("frozen")
        for command in (r.freeze(), ("inspect", r.folder / "session.json")):
            reader, writer = os.pipe()
            os.close(reader)
            end = subprocess.run(
                [SCRIPT, *command], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
            )
            os.close(writer)
            assert (end.returncode, end.stderr) == (141, "")


@contextmanager
def held(path: Path) -> Iterator[None]:
    """As if another process held this lock: locks belong to open files, so one in this process is
    enough."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as stream:
        path.chmod(0o600)
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def test_init_warns_if_one_honest_user_may_be_alone(tmp_path):
    options = words("--users 4 --colluders 1 --top-k 2 --length 6 --survivors")
    assert "U = T + 1" in must("init", tmp_path / "a", *options, 2).err
    assert "U = T + 1" not in must("init", tmp_path / "b", *options, 3).err


def test_a_session_that_asks_for_more_memory_than_there_is_is_an_error_and_not_a_bug(
    tmp_path, monkeypatch
):
    limit = (3 << 30, 3 << 30)  # bytes of address space
    disk = SimpleNamespace(f_bavail=1 << 70, f_frsize=1 << 10)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    options = words(
        "--users 3 --survivors 2 --colluders 1 --top-k 2"
        " --length 1000000000 --construction permutation"
    )
    must("init", tmp_path / "round", *options)
    offline = ("offline", tmp_path / "round", "--user", 1, "--max-memory", "1TB")
    end = in_child(*offline, before=lambda: resource.setrlimit(resource.RLIMIT_AS, limit))
    assert end.code == 65, end.err
    assert end.err.startswith("topk-secagg: not enough memory\nhint: ")
    assert not list((tmp_path / "round").rglob("*.tmp"))


class TestBusy75:
    @pytest.mark.parametrize("step", ["offline", "mask", "freeze", "eliminate"])
    def test_a_step_of_the_same_user_is_running(self, refuses, round_at, step):
        r = round_at("frozen")
        with held(r.folder / "secrets/.user-01.lock"):
            refuses(75, *r.step(step), says="another process is at work on /round/secrets")
            if step != "freeze":
                must(*r.step(step, 2))

    def test_a_step_of_the_round_is_running(self, refuses, round_at, tmp_path):
        r = round_at("answered")
        name = f".account-{os.geteuid()}.lock"
        with held(r.folder / name), held(tmp_path / "new" / name):
            refuses(75, *r.decode(), says="another process is at work on /round")
            init = ("init", tmp_path / "new", *words(SMALL))
            refuses(75, *init, says="another process is at work on /new")
            must(*r.init())  # as a second `run` does: it stops no other step


class TestUsage2:
    @pytest.mark.parametrize(
        ("more", "says"),
        [
            ("--colluders 3", "3 colluders among 3 survivors"),
            ("--colluders -1", "-1 colluders"),
            ("--users 2", "3 survivors of 2 users"),
            ("--users 0 --survivors 0 --colluders 0", "0 colluders: at least one"),
            ("--top-k 5", "cannot select 5 of 4 coordinates"),
            ("--length -4", "a gradient of -4 coordinates"),
            ("--field 12", "the field size 12 is not a prime"),
            ("--field 4294967311", "4294967311 is not a prime below 2^32"),
            ("--clip nan", "the clip is nan"),
            ("--clip 1e20", "the clip is 1e+20"),
            ("--max-weight 0", "the largest weight is 0"),
            ("--max-weight inf", "the largest weight is inf"),
            ("--picks 0", "0 picks per bucket"),
            ("--picks -1", "-1 picks per bucket"),
            ("--top-k 3 --picks 5", "cannot pick more than the 4 coordinates"),
            ("--picks 2 --construction permutation", NOT_OF_PERMUTATION),
            ("--blocks 2", "no such option '--blocks'"),
            ("--spare 1", "no such option '--spare'"),
            ("--minimise total", "no such option '--minimise'"),
            ("--construction moments", "invalid value for '--construction': 'moments'"),
            ("--dealing seeds", "invalid value for '--dealing': 'seeds'"),
            ("--dealing magic", "invalid value for '--dealing': 'magic'"),
            ("--construction magic", "invalid value for '--construction': 'magic'"),
            ("--construction rotation", "invalid value for '--construction': 'rotation'"),
            ("--elimination dense", "no such option '--elimination'"),
            ("--density 0.5", "give one of --top-k K, --density SHARE, --rank R and --whole"),
            (
                "--like x.npy",
                ("both a gradient file and a length", "give either --like FILE or --length L"),
            ),
            ("--users five", "invalid value for '--users': 'five'"),
            ("--length 1e3", "invalid value for '--length': '1e3'"),
            ("--nonsense", "no such option '--nonsense'"),
            ("--entry a", "entries and names of tensors need a gradient file"),
            ("--confirm", "confirmations are signatures, and there are no keys"),
            ("--freezer 0", "there is no user 0 to freeze"),
            ("--freezer 6", "there is no user 6 to freeze"),
            ("--freezer -1", "there is no user -1 to freeze"),
        ],
    )
    def test_inadmissible_and_unknown_options_of_init(self, refuses, tmp_path, more, says):
        refuses(2, "init", tmp_path / "round", *changed(words(SMALL), words(more)), says=says)
        assert not (tmp_path / "round").exists()

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (f"{FIVE_USERS} --density 0 --length 4", "a density of 0 is not between"),
            (f"{FIVE_USERS} --density 1.5 --length 4", "a density of 1.5 is not between"),
            (f"{FIVE_USERS} --density nan --length 4", "a density of nan is not between"),
            (f"{FIVE_USERS} --length 4", "give one of --top-k K, --density SHARE, --rank R"),
            (f"{FIVE_USERS} --top-k 2", "give either --like FILE or --length L"),
            (f"{FIVE_USERS} --top-k 2 --like x.txt", "no reader for '.txt' files"),
            ("--survivors 3 --colluders 1 --top-k 2 --length 4", "missing option '--users'"),
            ("--users 5 --colluders 1 --top-k 2 --length 4", "missing option '--survivors'"),
            ("--users 5 --survivors 3 --top-k 2 --length 4", "missing option '--colluders'"),
        ],
    )
    def test_missing_options_of_init_and_values_out_of_range(
        self, refuses, tmp_path, options, says
    ):
        refuses(2, "init", tmp_path / "round", *words(options), says=says)
        assert not (tmp_path / "round").exists()

    def test_confirming_without_keys_names_the_option(self, refuses, tmp_path):
        says = "hint: give the users' public keys: --recipients FILE"
        refuses(2, "init", tmp_path / "round", *words(f"{SMALL} --confirm"), says=says)

    def test_freezing_a_user_that_does_not_exist(self, refuses, round_at):
        r = round_at("masked")
        for only, says in (
            ("1,2,9", "there is no user 9 in this round"),
            ("0,1,2", "there is no user 0 in this round"),
            ("1,2,x", "'1,2,x' is not a list of users"),
            ("1;2;3", "'1;2;3' is not a list of users"),
            ("1-99999999999", "'1-99999999999' is not a list of users"),
        ):
            refuses(2, *r.freeze("--only", only), says=says)
        refuses(2, *r.freeze("--user", 9), says="there is no user 9 in this round")
        refuses(77, *r.freeze("--user", 2), says="user 1 freezes this round, not user 2")

    def test_a_user_that_dropped_out_has_nothing_to_answer(self, refuses, round_at):
        assert "survivors" in refuses(2, *round_at("frozen").eliminate(5)).err

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ("mask ROUND", "missing option '--user'"),
            ("offline ROUND", "missing option '--user'"),
            ("confirm ROUND", "missing option '--user'"),
            ("offline --user 1", "missing argument 'ROUND'"),
            ("eliminate", "missing argument 'ROUND'"),
            ("freeze", "missing argument 'ROUND'"),
            ("forget", "missing argument 'ROUND'"),
            ("decode", "missing argument 'ROUND'"),
            ("inspect", "missing argument 'FILE...|ROUND'"),
            ("run ROUND", "missing option '--gradients'"),
            ("mask ROUND --user", "option '--user' requires an argument"),
            ("freeze ROUND extra", "unexpected extra argument (extra)"),
            ("decode ROUND --mean", "give --output FILE"),
        ],
    )
    def test_missing_and_unknown_options(self, refuses, round_at, arguments, says):
        folder = round_at("frozen").folder
        command = [folder if word == "ROUND" else word for word in words(arguments)]
        refuses(2, *command, says=(says, f"hint: see `topk-secagg {command[0]} --help`"))

    def test_an_unknown_command(self, refuses):
        refuses(
            2, "nonsense", says=("no such command 'nonsense'", "hint: see `topk-secagg --help`")
        )
        says = ("no such command 'runn'", "hint: did you mean run? see `topk-secagg --help`")
        refuses(2, "runn", says=says)

    @pytest.mark.parametrize(
        ("arguments", "hint"),
        [
            ("mask ROUND --gradeint x", "did you mean --gradient or --gradients? see"),
            ("mask ROUND --survivors 5", "--survivors is an option of init, run, plan; see"),
            ("plan --gradient x", "--gradient is an option of mask; see"),
            (
                "run ROUND --gradient x",
                "did you mean --gradients? --gradient is an option of mask;",
            ),
            ("decode ROUND --zzz", "see"),
        ],
    )
    def test_an_unknown_option(self, refuses, arguments, hint):
        """What is not close is not suggested."""
        command, *_ = words(arguments)
        option = next(word for word in words(arguments) if word.startswith("--"))
        said = refuses(2, *words(arguments), says=f"no such option '{option}'\n").err
        assert f"\nhint: {hint}" in said
        assert said.endswith(f"see `topk-secagg {command} --help`\n")

    def test_without_a_command_the_help_is_shown(self):
        result = call()
        shown = result.out + result.err
        assert result.code in (0, 2)
        assert shown.startswith("Usage: topk-secagg ")
        assert call("--help").out.strip() in shown

    @pytest.mark.parametrize("name", ["sum.txt", "sum", "sum.h5", "sum.NPY", ".npy"])
    def test_an_output_of_an_unknown_type_is_refused_before_any_work(self, refuses, round_at, name):
        r = round_at("answered")
        suffix = Path(name).suffix
        what = f"no writer for '{suffix}' files" if suffix else "it has no suffix"
        says = (f"/{name}: {what}", "its name must end in .pt, .safetensors, .npz or .npy")
        refuses(2, *r.decode("--output", r.folder.parent / name), says=says)

    @pytest.mark.parametrize(
        ("arguments", "name"),
        [
            (f"init EMPTY {SMALL}", "ROUND"),
            (f"init new {SMALL} --recipients EMPTY", "--recipients"),
            (f"init new {FIVE_USERS} --top-k 2 --like EMPTY", "--like"),
            ("init new --from EMPTY", "--from"),
            ("offline ROUND --user 1 --secrets EMPTY", "--secrets"),
            ("offline ROUND --user 1 --from EMPTY", "--from"),
            ("offline EMPTY --user 1", "ROUND"),
            ("mask ROUND --user 1 --gradient EMPTY", "--gradient"),
            ("mask ROUND --user 1 --gradients EMPTY", "--gradients"),
            ("eliminate ROUND --user 1 --identity EMPTY", "--identity"),
            ("freeze ROUND --recipients EMPTY", "--recipients"),
            ("decode ROUND --output EMPTY", "--output"),
            ("audit ROUND --report EMPTY", "--report"),
            ("audit ROUND --identity EMPTY", "--identity"),
            ("inspect EMPTY", "FILE...|ROUND"),
            ("keygen --user 1 --secrets EMPTY", "--secrets"),
            ("run new --gradients EMPTY", "--gradients"),
            ("run new --gradients a.npy --weights EMPTY", "--weights"),
        ],
    )
    def test_an_empty_path_is_not_the_current_folder(
        self, refuses, round_at, tmp_path, monkeypatch, arguments, name
    ):
        """`--secrets ''` once put a secret into the current folder."""
        given = {"ROUND": round_at("answered").folder, "EMPTY": ""}
        here = tmp_path / "here"
        here.mkdir()
        monkeypatch.chdir(here)
        command = [given.get(word, word) for word in words(arguments)]
        refuses(2, *command, says=f"invalid value for '{name}': the path is empty")

    def test_nonsense_in_the_environment(self, refuses, round_at, monkeypatch):
        monkeypatch.setenv("TOPK_SECAGG_OFFLINE_USER", "one")
        says = "invalid value for '--user': 'one'"
        refuses(2, "offline", round_at("init").folder, says=says)


class TestWhichConstruction:
    """Without --construction: the paper's while its files stay below 256 MiB, else sketch."""

    @pytest.mark.parametrize(
        ("options", "name", "start", "more"),
        [
            (
                "--top-k 100 --length 1000",
                "permutation",
                "construction permutation, the paper's construction: ",
                "its offline files take 102 MB",
            ),
            (
                "--top-k 100 --length 2000",
                "sketch",
                "construction sketch: ",
                "the paper's offline files would take 403 MB in all",
            ),
            (
                "--top-k 100 --length 20000",
                "sketch",
                "construction sketch: ",
                "the paper's offline files would take 40 GB in all",
            ),
            ("--top-k 10 --length 150 --picks 2", "sketch", "", ""),
            ("--top-k 10 --length 150 --dealing keys", "sketch", "", ""),
        ],
    )
    def test_init_says_what_it_chooses_unless_options_choose(
        self, tmp_path, options, name, start, more
    ):
        said = must(
            "init", tmp_path / "round", *words(f"--users 5 --survivors 3 --colluders 1 {options}")
        ).err
        assert document(tmp_path / "round/session.json")["parameters"]["construction"] == name
        assert said.startswith(start)
        assert (more in said, said.count("\n")) == (True, 1 if start else 0)

    def test_run_says_it_too(self, tmp_path):
        options = words("--survivors 3 --colluders 1 --top-k 2")
        said = must("run", tmp_path / "round", "--gradients", EXAMPLE, *options).err
        assert said.splitlines()[1].startswith(
            "construction permutation, the paper's construction: "
        )

    def test_where_neither_fits_nothing_is_started(self, refuses, tmp_path):
        options = words(
            "--users 5 --survivors 3 --colluders 1 --top-k 1 --length 70000 --field 65521"
        )
        says = "sketch does not fit here: a field of 65521 elements has no 70000 places"
        refuses(2, "init", tmp_path / "round", *options, says=says)


def test_an_unexpected_error_is_reported_as_a_bug_without_a_traceback(round_at, monkeypatch):
    import topk_secagg as module

    def broken(*_, **__):
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(module, "freeze", broken)
    result = call(*round_at("masked").freeze())
    assert result.code == 1
    assert result.err.splitlines()[0] == "topk-secagg: a bug: ZeroDivisionError: on purpose"
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "program",
    [
        [SCRIPT],
        [sys.executable, "-m", "topk_secagg"],
        [sys.executable, "-m", "topk_secagg_cli"],
    ],
    ids=["topk-secagg", "-m topk_secagg", "-m topk_secagg_cli"],
)
def test_every_way_to_start_the_program_answers_with_the_same_codes(round_at, tmp_path, program):
    r = round_at("masked")
    for code, command, says in (
        (0, r.freeze(), ""),
        (2, ("freeze",), "missing argument 'ROUND'"),
        (66, ("freeze", tmp_path / "nowhere"), "there is no folder"),
        (69, r.decode(), "0 sound answers, and 3 are needed"),
        (77, r.freeze("--only", "1,2,3"), "are fixed already: 1, 2, 3, 4"),
    ):
        end = process([*program, *map(str, command)])
        assert end.returncode == code, end
        assert says in end.stderr
        if code:
            assert_one_error(Result(code, end.stdout, end.stderr))
