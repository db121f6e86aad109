"""Ten users, seven must survive, three lie together: by the commands, with signatures that fit."""

import shutil

import numpy as np
import pytest
from liars import Lie
from played import Round, call, datasets, every, must, rewrite

from topk_secagg.protocol import decoding
from topk_secagg.storage.keys import read_identity
from topk_secagg.storage.workspace import Workspace

TEN = tuple(range(1, 11))
LIARS = (8, 9, 10)
WIDE = {"users": 10, "survivors": 7, "colluders": 3, "masking": TEN, "answering": TEN}
CONFIRMED = {**WIDE, "sealed": True, "confirm": True}
PERMUTED = {"length": 40, "top_k": 4}
PICKED = {"length": 400, "top_k": 10, "picks": 2}
AGREE = "Y on one polynomial (Reed-Solomon)"


@pytest.fixture
def ten(round_at, construction):
    """All have answered: D = 4, D + T = 7 answers decode, and D + 2T = 10 exclude three liars."""
    shape = PERMUTED if construction == "permutation" else PICKED
    return lambda **more: round_at("answered", **{**CONFIRMED, **shape, **more})


def forge(r: Round, roots: tuple[int, ...], liars: tuple[int, ...] = LIARS) -> None:
    """The liars move their answers by a polynomial that vanishes at the roots, and sign them."""
    space = Workspace(r.folder)
    session = space.session
    honest = {n: datasets(space.answer_path(n))["y"] for n in liars}
    told = Lie(liars, roots).told(session.parameters, session.points, honest)
    for n, y in told.items():
        signer = read_identity(r.identity(n)) if r.recipe.sealed else None
        rewrite(space.answer_path(n), lambda _, found, y=y: found.update(y=y), signer)


def without(r: Round, *users: int) -> None:
    """These answers have not arrived."""
    for n in users:
        (r.folder / f"elimination/user-{n:02}.h5").unlink()


def is_forged(r: Round) -> bool:
    """Whether aggregate.h5 holds another sum than the survivors sent."""
    found = datasets(r.folder / "aggregate.h5")
    total = np.zeros(r.recipe.length, dtype=np.int64)
    total[found["index"]] = found["value"]
    return total.tolist() != r.total(TEN)


def old_rule(monkeypatch) -> None:
    """The twin: half of the surplus is corrected, and D+T answers that agree are enough."""
    monkeypatch.setattr(decoding, "is_correctable", lambda *_, **__: True)
    monkeypatch.setattr(decoding, "certain_quorum", lambda p: p.survivors)


@every
class TestThreeLiars:
    def test_with_ten_answers_no_honest_user_is_blamed(self, ten, refuses, monkeypatch):
        r = ten()
        forge(r, roots=(2, 3, 4, 5, 6, 7))  # only user 1 does not agree with them
        for more in ((), ("--strict",)):
            said = refuses(65, *r.decode(*more), besides=("decoded.json",)).err
            assert "the 10 answers do not agree with each other: at least 1 is wrong" in said
            assert "nobody can be named for certain" in said
            assert "no number of answers of this round is enough: it takes 11" in said
            assert "there are 10 survivors" in said
        old_rule(monkeypatch)
        said = must(*r.decode("--json")).json
        assert said["corrected"] == [1]
        assert is_forged(r)

    def test_with_nine_answers_that_agree_strict_refuses(self, ten, refuses, monkeypatch):
        r = ten()
        forge(r, roots=(2, 3, 4, 5, 6, 7))
        without(r, 1)
        said = refuses(65, *r.decode("--strict"), besides=("decoded.json",)).err
        assert "9 answers agree, and strict decoding asks for 10 (D + 2T): 1 missing" in said
        assert "hint: wait for at least 1 more user to answer" in said
        said = must(*r.decode("--json"))
        assert (said.json["liars_excluded"], said.json["corrected"]) == (2, [])
        assert is_forged(r)  # by three, which are more than two
        words = must(*r.decode()).out
        assert "all agree: the sum is right unless more than 2 users lie" in words
        assert "T = 3 liars are excluded by 10 answers" in words
        old_rule(monkeypatch)
        must(*r.decode("--strict"))
        assert is_forged(r)

    def test_two_liars_are_noticed_among_nine(self, ten, refuses):
        """As `liars_excluded` says."""
        r = ten()
        forge(r, roots=(2, 3, 4, 5, 6, 7), liars=(9, 10))
        without(r, 1)
        said = refuses(65, *r.decode(), besides=("decoded.json",)).err
        assert "the 9 answers do not agree with each other: at least 1 is wrong" in said
        assert "it takes 11, and there are 10 survivors" in said

    def test_exactly_as_many_as_needed_hold_if_nobody_lied(self, ten, refuses):
        r = ten()
        without(r, 1, 2, 3)
        said = must(*r.decode("--json")).json
        assert said["liars_excluded"] == 0
        assert "the sum is right if nobody lied" in must(*r.decode()).out
        r.check_sum(answering=range(4, 11))
        said = refuses(65, *r.decode("--strict"), besides=("decoded.json",)).err
        assert "7 answers agree, and strict decoding asks for 10 (D + 2T): 3 missing" in said
        assert "wait for at least 3 more users to answer" in said

    def test_ten_that_agree_exclude_three(self, ten):
        r = ten()
        assert must(*r.decode("--strict", "--json")).json["liars_excluded"] == 3
        words = must(*r.decode("--strict")).out
        assert "all agree: the sum is right unless more than 3 users lie (T)" in words
        r.check_sum(answering=TEN)

    def test_where_no_answer_can_help_the_hint_says_what_can(self, ten, refuses):
        r = ten(survivors=8)
        said = refuses(65, *r.decode("--strict"), besides=("decoded.json",)).err
        assert "10 answers agree, and strict decoding asks for 11 (D + 2T): 1 missing" in said
        assert "it takes 11, and there are 10 survivors; without --strict" in said

    def test_the_audit_and_its_page_say_it(self, ten):
        r = ten()
        page = r.folder.with_name("page.html")
        audit = ("audit", r.folder, "--report", page, "--json")

        def agreement(found):
            return next(f for f in found["findings"] if f["point"] == AGREE)

        must(*r.decode())
        found = must(*audit).json
        assert found["liars_excluded"] == 3
        assert "no 3 users together can have falsified the sum (T = 3)" in agreement(found)["why"]
        assert "no 3 users together can have falsified the sum (T = 3)." in page.read_text()
        copy = r.elsewhere(shutil.copytree(r.folder, r.folder.with_name("fewer")))
        without(copy, 1, 2)
        audit = ("audit", copy.folder, "--report", page, "--json")
        found = must(*audit).json
        assert found["liars_excluded"] == 1
        assert (
            "no user alone can have falsified the sum, but T = 3 could" in agreement(found)["why"]
        )
        assert "no user alone can have falsified the sum, but T = 3 could" in page.read_text()
        without(copy, 3)
        found = must(*audit).json
        assert found["liars_excluded"] == 0
        assert agreement(found)["verdict"] == "not checkable"
        assert "the sum is right if nobody lied" in agreement(found)["why"]
        assert "the sum is right if nobody lied" in page.read_text()

    def test_the_audit_refuses_what_decode_refuses(self, ten, monkeypatch):
        r = ten()
        forge(r, roots=(2, 3, 4, 5, 6, 7))
        with monkeypatch.context() as old:
            old_rule(old)
            old.setattr("topk_secagg.storage.aggregate.is_correctable", lambda *_, **__: True)
            must(*r.decode())
            shutil.rmtree(r.folder / "shares")
            shutil.rmtree(r.folder / "secrets")
            blamed = self.failures(r)  # the twin: an honest user fails the audit, the sum passes
            assert blamed == [(AGREE, "elimination/user-01.h5")]
        assert set(self.failures(r)) == {(AGREE, "elimination"), ("ranges", "aggregate.h5")}

    def failures(self, r: Round) -> list[tuple[str, str]]:
        """What an audit that ends with 65 finds fault with; it prints its findings all the same."""
        result = call("audit", r.folder, "--json")
        assert result.code == 65
        return [
            (f["point"], f["subject"]) for f in result.json["findings"] if f["verdict"] == "fail"
        ]


def test_one_wrong_answer_is_left_out_while_enough_others_agree(round_at, refuses):
    """U + T + 1 <= N; the words have the condition, and do not call the user guilty."""
    r = round_at("answered", **{**WIDE, **PERMUTED, "survivors": 6})
    forge(r, roots=(), liars=(4,))
    said = must(*r.decode("--json")).json
    assert (said["corrected"], said["liars_excluded"]) == ([4], 3)
    r.check_sum(answering=TEN)
    words = must(*r.decode()).out
    assert "WRONG ANSWERS from user 4, left out: the 9 others agree" in words
    assert "the sum is right unless more than 3 users lie (T)" in words
    assert "may be innocent" in words
    assert (
        "the answer of user 4 does not agree"
        in refuses(65, *r.decode("--strict"), besides=("decoded.json",)).err
    )
    without(r, 1)
    said = refuses(65, *r.decode(), besides=("decoded.json",)).err
    assert "wait for at least 1 more user to answer" in said


def test_run_says_it_too(new_round):
    r = new_round(**WIDE, **PERMUTED)
    assert must(*r.run("--json")).json["liars_excluded"] == 3


def test_an_aggregate_that_was_corrected_with_too_few_others_is_refused(round_at):
    r = round_at("decoded", **{**WIDE, **PERMUTED})
    rewrite(
        r.folder / "aggregate.h5",
        lambda _, found: found.update(corrected=np.array([1], dtype="<u4")),
    )
    result = call("audit", r.folder)
    assert result.code == 65
    assert "it leaves out 1 answer as wrong, and the 9 others are too few to tell" in result.err
