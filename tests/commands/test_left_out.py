"""What `freeze` and `decode` leave out, and say so: files that are damaged, stale, foreign or
impossible."""

import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from oracle import element_of_order, sketch_of
from played import (
    Round,
    attributes,
    call,
    datasets,
    document,
    edit,
    every,
    flip,
    judged,
    must,
    placed,
    rewrite,
)

from topk_secagg.storage import artifacts
from topk_secagg.storage.answer import AnswerFile
from topk_secagg.storage.artifacts import Artifact
from topk_secagg.storage.keys import Identity, read_identity

ALL = (1, 2, 3, 4, 5)
BUCKETS = 5
ORDER = 30  # n of the rounds with sketches: 5 buckets of 30 places
Q = 4281076801


def change(
    name: str, at: int, value: int, signer: Identity | None = None
) -> Callable[[Path], None]:
    """Put a value into a dataset of a file, whose digest then fits, and its signature if there is a
    signer."""

    def apply(path: Path) -> None:
        def put(_: object, found: dict[str, np.ndarray]) -> None:
            found[name].reshape(-1)[at] = value

        rewrite(path, put, signer)

    return apply


IMPOSSIBLE = {
    ("permutation", "x = q"): change("value", 1, Q),
    ("permutation", "x > q"): change("value", 0, 2**32 - 1),
    ("sketch", "x = q"): change("value", 7, Q),
    ("sketch", "x > q"): change("value", 0, 2**32 - 1),
}


@pytest.mark.parametrize(("construction", "what"), IMPOSSIBLE)
@pytest.mark.rule(4, 17)
def test_an_impossible_x_is_neither_frozen_nor_answered(round_at, refuses, construction, what):
    r = round_at("masked", masking=ALL)
    path = r.folder / "masked/user-02.h5"
    IMPOSSIBLE[construction, what](path)
    assert "user-02.h5" in refuses(65, *r.freeze("--only", "1-5")).err
    must(*r.freeze())
    frozen = document(r.folder / "survivors.json")["survivors"]
    assert [row["user"] for row in frozen] == [1, 3, 4, 5]
    # as if a freezer that does not look had frozen it
    found = attributes(path)
    row = {
        "user": 2,
        "sha256": found["sha256"],
        "weight": 1.0,
        "sharing": found["sharing"],
        "dealt": found.get("dealt"),
    }
    edit(r.folder / "survivors.json", lambda content: content["survivors"].insert(1, row))
    if construction != "sketch":
        assert "user-02.h5" in refuses(65, *r.eliminate(3)).err
        return
    for n in (3, 4, 5):  # no answer depends on X there, and the sum does
        must(*r.eliminate(n))
    assert "user-02.h5" in refuses(65, *r.decode(), besides=("decoded.json",)).err


NO_DIGEST = {
    "short": "ab",
    "upper case": "AB" * 32,
    "empty": "",
    "several words": "x y z",
}


@every
@pytest.mark.parametrize("what", NO_DIGEST)
class TestNoDigest:
    """One user names its shares, or its list of keys, as survivors.json cannot repeat it."""

    @pytest.mark.parametrize("name", ["sharing", "dealt"])
    def test_its_x_is_left_out_and_the_round_goes_on(self, round_at, refuses, what, name):
        r = round_at("masked")
        path = r.folder / "masked/user-04.h5"
        rewrite(path, lambda found, _: found.update({name: NO_DIGEST[what]}))
        says = "its attributes do not fit its kind"
        refuses(65, *r.freeze("--only", "1-4"), says=says)
        said = must(*r.freeze("--json")).json
        assert said["survivors"] == [1, 2, 3]
        assert says in said["left_out"]["4"]
        r.play(after="frozen").check_sum(survivors=(1, 2, 3))

    def test_else_nobody_could_read_what_was_frozen(self, round_at, refuses, monkeypatch, what):
        """The twin: not even the ledger of the freezer, whose part in the round is over."""
        r = round_at("masked")
        path = r.folder / "masked/user-04.h5"
        rewrite(path, lambda found, _: found.update(sharing=NO_DIGEST[what]))
        monkeypatch.setattr(artifacts, "is_sha256", lambda _: True)
        assert call(*r.freeze()).code == 65
        refuses(65, *r.freeze(), says="user-01.ledger.json: its survivors.sharing is not")
        for n in (1, 2, 3):
            refuses(65, *r.eliminate(n), says="survivors.json: its survivors.sharing is not")


@every
class TestFreeze:
    def spoiled(self, round_at) -> dict[str, Callable[[Path], object]]:
        other = round_at("masked", "other", name="other").folder
        return {
            "it is damaged, or not a file": lambda path: path.write_bytes(b"rubbish"),
            "does not match its digest": lambda path: flip(path, placed(path)["value"][0]),
            "it belongs to another session": lambda path: shutil.copy(
                other / "masked" / path.name, path
            ),
            "its user is 1, not 4": lambda path: shutil.copy(path.with_name("user-01.h5"), path),
        }

    def test_spoiled_x_are_left_out_and_named(self, round_at, refuses):
        r = round_at("masked")
        path = r.folder / "masked/user-04.h5"
        whole = path.read_bytes()
        for number, (why, spoil) in enumerate(self.spoiled(round_at).items()):
            copy = r.elsewhere(shutil.copytree(r.folder, r.folder.with_name(f"copy-{number}")))
            target = copy.folder / "masked/user-04.h5"
            target.write_bytes(whole)
            spoil(target)
            assert why in refuses(65, *copy.freeze("--only", "1-4")).err
            said = must(*copy.freeze("--json"))
            assert said.json["survivors"] == [1, 2, 3]
            assert why in said.json["left_out"]["4"]
            assert f"user 4 is left out: {said.json['left_out']['4']}" in said.err
            assert said.json["dropped"] == [4, 5]
            for n in (1, 2, 3):
                must(*copy.eliminate(n))
            must(*copy.decode())
            copy.check_sum(survivors=(1, 2, 3))

    def test_with_too_few_valid_x_nothing_is_frozen(self, round_at, refuses):
        r = round_at("masked")
        for n in (1, 2):
            (r.folder / f"masked/user-{n:02}.h5").write_bytes(b"")
        says = (
            "2 users have masked soundly, and 3 must survive; user 1 does not count: it is damaged",
            "; user 2 does not count: it is damaged",
            "hint: fetch X of users 1, 2 again, or wait for more users to mask",
        )
        refuses(69, *r.freeze(), says=says)
        says = (
            "2 users are named, and 3 must survive",
            "hint: name at least 3 users that have masked",
        )
        refuses(69, *r.freeze("--only", "3,4"), says=says)
        assert (
            "hint: user 5 has not masked; leave it out"
            in refuses(66, *r.freeze("--only", "3-5")).err
        )
        shared = round_at("offline", "shared")
        refuses(69, *shared.freeze(), says="0 users have masked soundly, and 3 must survive")

    def test_a_user_whose_share_too_few_hold_is_left_out(self, round_at, refuses):
        r = round_at("offline", masking=ALL, answering=(1, 2, 3, 5))
        kept = {n: r.folder / f"shares/user-{n:02}/from-04.h5" for n in (1, 2, 3)}
        contents = {n: path.read_bytes() for n, path in kept.items()}
        for path in kept.values():
            path.unlink()
        for n in ALL:
            said = must(*r.mask(n, "--json"))
            assert said.json["missing_shares"] == ([4] if n in kept else [])
            assert ("has not received the shares of user 4" in said.err) == (n in kept)
        assert "hold the shares of user 4" in refuses(69, *r.freeze("--only", "1-5")).err
        for n, path in kept.items():  # they arrive too late: X says what was there when it was made
            path.write_bytes(contents[n])
            again = must(*r.mask(n, "--json"))
            assert (again.json["missing_shares"], again.json["holds"]) == ([], [1, 2, 3, 5])
        said = must(*r.freeze("--json")).json
        assert (said["survivors"], said["left_out"]) == (
            [1, 2, 3, 5],
            {"4": "too few users hold its share"},
        )
        r.play(after="frozen").check_sum(survivors=(1, 2, 3, 5))

    def test_a_user_is_kept_while_enough_hold_its_share(self, round_at):
        r = round_at("offline", masking=ALL, answering=(2, 3, 4))
        for n in (1, 5):
            (r.folder / f"shares/user-{n:02}/from-04.h5").unlink()
        for n in ALL:
            must(*r.mask(n))
        assert must(*r.freeze("--json")).json["survivors"] == list(ALL)
        r.play(after="frozen").check_sum()


def attribute(**values: object) -> Callable[[Path], None]:
    """Change attributes of a file, whose digest then fits."""
    return lambda path: rewrite(path, lambda found, _: found.update(values))


def instead(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Put something else in the place of a file."""
    return lambda path: (path.unlink(), make(path))


JUNK: dict[str, tuple[Callable[[Path], object], str]] = {
    "rubbish": (lambda path: path.write_bytes(b"rubbish"), "it is damaged"),
    "empty": (lambda path: path.write_bytes(b""), "it is damaged"),
    "half": (lambda path: path.write_bytes(path.read_bytes()[:700]), "it is damaged"),
    "a bit": (lambda path: flip(path, placed(path)["y"][0]), "does not match its digest"),
    "a symbol": (change("y", -1, Q), "not below the field's size"),
    "another set": (attribute(survivors_sha256="0" * 64), "another survivor set"),
    "another user's": (
        lambda path: shutil.copy(path.with_name("user-01.h5"), path),
        "its user is 1, not 3",
    ),
    "an X": (
        lambda path: shutil.copy(path.parents[1] / "masked" / path.name, path),
        "it is of kind 'masked'",
    ),
    "two terabytes": (lambda path: os.truncate(path, 2 << 40), "it is damaged"),
    "a folder": (instead(Path.mkdir), "is not a file"),
    "a pipe": (instead(os.mkfifo), "is not a file"),
    "endless zeros": (instead(lambda path: path.symlink_to("/dev/zero")), "is not a file"),
}


@every
class TestDecode:
    @pytest.mark.parametrize("what", JUNK)
    def test_an_unusable_answer_is_left_out_and_not_called_missing(self, round_at, refuses, what):
        r = round_at("answered", answering=(1, 2, 3, 4))
        spoil, why = JUNK[what]
        spoil(r.folder / "elimination/user-03.h5")
        readable = what != "two terabytes"  # all files are compared before and after
        if readable:
            assert why in refuses(65, *r.decode("--strict")).err
        said = must(*r.decode("--json"))
        assert why in said.json["left_out"]["3"]
        assert f"the answer of user 3 is left out: {said.json['left_out']['3']}" in said.err
        r.check_sum(answering=(1, 2, 4))
        (r.folder / "elimination/user-01.h5").unlink()
        if readable:
            failed = refuses(69, *r.decode(), says="2 sound answers, and 3 are needed")
            assert "(missing: user 1); the answer of user 3 does not count" in failed.err
            assert why in failed.err
            assert "fetch the answer of user 3 again, or wait for more users" in failed.err

    @pytest.mark.parametrize(
        "user", [1, 5]
    )  # the first answers determine the sum, the last are compared with them
    def test_a_damaged_answer_is_left_out_where_it_could_be_corrected_too(
        self, round_at, monkeypatch, user
    ):
        r = round_at("answered", masking=ALL, answering=ALL)
        path = r.folder / f"elimination/user-{user:02}.h5"
        flip(path, placed(path)["y"][0])
        said = must(*r.decode("--json")).json
        assert (list(said["left_out"]), said["corrected"]) == ([str(user)], [])
        monkeypatch.setattr(
            AnswerFile, "is_intact", lambda _: True
        )  # the twin: nobody looks at the digest
        monkeypatch.setattr(Artifact, "verify", lambda *_, **__: None)
        said = must(*r.decode("--json")).json
        assert (list(said["left_out"]), said["corrected"]) == ([], [user])

    def test_a_digest_that_does_not_fit_is_refused_where_all_answers_must_be_sound(
        self, round_at, refuses
    ):
        """Answers beyond those that determine the sum are only hashed with --strict: it is enough
        that they agree."""
        r = round_at("answered", masking=ALL, answering=ALL)
        with h5py.File(r.folder / "elimination/user-05.h5", "r+") as file:
            file.attrs.modify("sha256", np.bytes_("0" * 64))
        assert "does not match its digest" in refuses(65, *r.decode("--strict")).err
        must(*r.decode())
        r.check_sum(answering=ALL)

    def test_wrong_answers_are_corrected_and_named_or_refused(self, round_at, refuses):
        """The files are sound; with two answers to spare one wrong one is found."""
        r = round_at("answered", masking=ALL, answering=ALL)
        change("y", 0, 5)(r.folder / "elimination/user-02.h5")
        assert "strict" in refuses(65, *r.decode("--strict")).err
        said = must(*r.decode())
        assert "WRONG ANSWERS from user 2" in said.out
        r.check_sum(answering=ALL)
        assert datasets(r.folder / "aggregate.h5")["corrected"].tolist() == [2]
        (r.folder / "elimination/user-05.h5").unlink()
        assert "nobody can be named for certain" in refuses(65, *r.decode()).err

    def test_a_sum_that_clipped_gradients_cannot_make_is_flagged(self, round_at):
        r = round_at("masked", masking=(1, 2, 3))
        add_to_the_input(r, 2, (Q - 1) // 2 - 10**7)
        must(*r.freeze())
        must("eliminate", r.folder, "--user", "1,3")
        edit(r.folder / "secrets/user-02.ledger.json", lambda content: content.update(
            masked=attributes(r.folder / "masked/user-02.h5")["sha256"]))  # fmt: skip
        must(*r.eliminate(2))
        said = must(*r.decode("--json"))
        assert said.json["beyond_clip"] == 1
        assert "1 coordinate is larger than any sum of the survivors' clipped gradients" in said.err

    def test_strict_refuses_such_a_sum(self, round_at, refuses):
        r = round_at("masked", masking=(1, 2, 3, 4))
        add_to_the_input(r, 2, (Q - 1) // 2 - 10**7)
        must(*r.freeze())
        must("eliminate", r.folder, "--user", "1,3,4")
        edit(r.folder / "secrets/user-02.ledger.json", lambda content: content.update(
            masked=attributes(r.folder / "masked/user-02.h5")["sha256"]))  # fmt: skip
        must(*r.eliminate(2))
        refuses(65, *r.decode("--strict"), says="larger than any sum")
        assert not (r.folder / "aggregate.h5").exists()
        must(*r.decode())


def add_to_the_input(r: Round, user: int, more: int) -> None:
    """Make one of the values that a user sends larger, in X and beyond all clips."""
    coordinate, _ = r.sent(user)[0]

    def put(_: object, found: dict[str, np.ndarray]) -> None:
        value = found["value"].astype(object)
        if r.recipe.construction == "sketch":
            gamma = element_of_order(ORDER, Q)
            width = len(value) // BUCKETS
            added = sketch_of([(coordinate, more)], BUCKETS, width, gamma, Q)
            value += np.array(added, dtype=object).reshape(-1)
        else:
            value[0] += more
        found["value"][:] = (value % Q).astype(np.uint32)

    rewrite(r.folder / f"masked/user-{user:02}.h5", put)


def test_an_answer_that_its_user_did_not_sign_counts_as_missing(round_at, refuses):
    r = round_at("answered", sealed=True, answering=(1, 2, 3, 4))
    change("y", 0, 5)(r.folder / "elimination/user-03.h5")
    assert "did not sign" in refuses(65, *r.decode("--strict")).err
    assert "did not sign" in must(*r.decode("--json")).json["left_out"]["3"]
    r.check_sum(answering=(1, 2, 4))


def test_a_signed_answer_that_was_made_to_agree_with_a_wrong_one_is_left_out(round_at, monkeypatch):
    """User 1 lies; whoever delivers the answers changes that of user 5, below its signature, so
    that the two agree."""
    r = round_at("answered", sealed=True, survivors=4, length=6, masking=ALL, answering=ALL)
    first, last = (r.folder / f"elimination/user-{n:02}.h5" for n in (1, 5))
    alpha = document(r.folder / "session.json")["points"]["alpha"]
    factor = math.prod((alpha[4] - a) * pow(alpha[0] - a, -1, Q) for a in alpha[1:4])
    before = [int(datasets(path)["y"].flat[0]) for path in (first, last)]
    change("y", 0, (before[0] + 1) % Q, read_identity(r.identity(1)))(first)
    with h5py.File(last, "r+") as file:
        file["y"][0, 0] = (before[1] + factor) % Q
    said = must(*r.decode("--json")).json
    assert (list(said["left_out"]), said["checked_answers"]) == (["5"], 0)
    monkeypatch.setattr(
        AnswerFile, "is_intact", lambda _: True
    )  # the twin: nobody looks at the digest
    said = must(*r.decode("--json")).json
    assert (list(said["left_out"]), said["checked_answers"]) == ([], 1)


@pytest.mark.parametrize("looked_at", [True, False])  # without the digest, the twin
def test_an_answer_that_changes_after_it_was_checked_is_refused(round_at, monkeypatch, looked_at):
    r = round_at("answered", length=6, answering=(1, 2, 3, 4))
    first, last = (r.folder / f"elimination/user-{n:02}.h5" for n in (1, 4))
    flip(last, placed(last)["y"][0])  # so that all are checked before they are decoded
    verify = Artifact.verify

    def verify_and_change(artifact: Artifact, *arguments: Any) -> None:
        verify(artifact, *arguments)
        if artifact.path == first:
            flip(first, placed(first)["y"][0])

    monkeypatch.setattr(Artifact, "verify", verify_and_change)
    if not looked_at:
        monkeypatch.setattr(AnswerFile, "is_intact", lambda _: True)
    said = judged(*r.decode())
    assert said.code == (65 if looked_at else 0)
    assert ("was changed while it was read" in said.err) == looked_at


def test_an_honest_round_has_no_warnings(round_at):
    """The twin of the tests above."""
    said = must(*round_at("answered").decode("--json"))
    assert (said.json["left_out"], said.json["beyond_clip"], said.json["corrected"], said.err) == (
        {},
        0,
        [],
        "",
    )
