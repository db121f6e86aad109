"""Users that lie together cannot forge the sum: what they bring about is refused, or the result
says that so many liars are not excluded. They may lie blindly, or after they have seen all honest
answers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from liars import Lie, all_lies
from small_rounds import SteppedRound, round_of

from topk_secagg.algebra.field import Symbols
from topk_secagg.algebra.reed_solomon import agree, wrong_positions
from topk_secagg.errors import BadData
from topk_secagg.protocol import agreement, decoding
from topk_secagg.protocol.agreement import certain_quorum, liars_excluded
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.messages import AnswerShape

KINDS = {
    "permutation": {"L": 20, "K": 2},
    "permutation, small field": {"L": 20, "K": 2, "q": 97},
    "sketch": {"L": 120, "K": 4, "P": 1, "dealing": "keys"},
    "sketch, W = M": {"L": 12, "K": 4, "P": 1, "q": 65521},
}
GOAL = 55  # what the liars want coordinate 0 of the sum to be, once they know it


def brute_force(alpha: list[int], words: Symbols, dimension: int, q: int) -> list[int] | None:
    """What `wrong_positions` finds, by trying all sets of rows: it is faster for a few users."""
    users = range(len(alpha))
    for count in range((len(alpha) - dimension) // 2 + 1):
        for wrong in combinations(users, count):
            right = [i for i in users if i not in wrong]
            if agree([alpha[i] for i in right], words[right], dimension, q):
                return list(wrong)
    return None


@settings(max_examples=30)
@given(st.integers(2, 7), st.data())
def test_trying_all_sets_of_rows_finds_the_same(users, data):
    dimension = data.draw(st.integers(1, users))
    q = data.draw(st.sampled_from([11, 97, 65521]))
    alpha = list(range(1, users + 1))
    symbol = st.integers(0, 2)  # so that rows agree by chance too
    words = np.array(
        [[data.draw(symbol) for _ in range(2)] for _ in alpha],
        dtype=np.uint32,
    )
    assert wrong_positions(alpha, words, dimension, q) == brute_force(alpha, words, dimension, q)


@dataclass(frozen=True)
class Attack:
    """Answers of which some are lies, and what they should have been."""

    whole: SteppedRound
    shape: AnswerShape
    answers: dict[int, Symbols]
    plain: list[int]
    lie: Lie

    def decode(self, *, rushing: bool, strict: bool = False) -> decoding.Decoded:
        """The result of the lie."""
        p = self.whole.p
        points = self.whole.points
        change = (GOAL - self.plain[0]) % p.field or 1
        factor = self.lie.factor_for(p, points, change) if rushing else 1
        told = self.lie.told(p, points, self.answers, factor)
        u1 = range(1, self.shape.survivor_count + 1)
        return self.whole.decoded(u1, told, strict=strict)

    def total(self, found: decoding.Decoded) -> list[int]:
        return self.whole.dense(found.total)

    @property
    def surplus(self) -> int:
        return len(self.answers) - self.whole.p.survivors

    @property
    def outvotes(self) -> bool:
        """Whether the code would correct the honest answers off the liars' polynomial, being
        few."""
        return len(self.answers) - self.lie.agreeing() <= self.surplus // 2


def thresholds(users: int) -> list[tuple[int, int]]:
    """All U and T for so many users."""
    return [(U, T) for U in range(2, users + 1) for T in range(1, U)]


@cache
def played(kind: str, N: int, U: int, T: int) -> SteppedRound:
    return SteppedRound.of(round_of(N, U, T, **KINDS[kind]), f"liars {kind}")


def attacks(kind: str, N: int, *, fewest_roots: int | None = None) -> Iterator[Attack]:
    """All lies of at most T users, when nobody drops out, or a user before masking, or some before
    they answer."""
    for U, T in thresholds(N):
        whole = played(kind, N, U, T)
        for survivors in range(max(U, N - 1), N + 1):
            u1 = range(1, survivors + 1)
            shape = construction(whole.p).answer_shape(survivors)
            answers = whole.answers(u1)
            plain = whole.plain_sum(u1)
            for count in range(U, survivors + 1):
                given = {n: answers[n] for n in range(1, count + 1)}
                for lie in all_lies(list(given), T, U, fewest_roots=fewest_roots):
                    yield Attack(whole, shape, given, plain, lie)


def outcome(attack: Attack, *, rushing: bool) -> decoding.Decoded | BadData:
    try:
        return attack.decode(rushing=rushing)
    except BadData as error:
        return error


def check(attack: Attack, *, rushing: bool) -> str:
    """What must hold of every lie; how it ended."""
    p = attack.whole.p
    liars = attack.lie.liars
    honest = len(attack.answers) - len(liars)
    found = outcome(attack, rushing=rushing)
    if isinstance(found, BadData):
        assert honest < certain_quorum(p)  # with as many the sum could be told
        if "larger than so many values can be" in found.message:
            return "no such sum"  # the answers agree on one that cannot be
        assert "do not agree with each other" in found.message
        assert "nobody can be named for certain" in found.message
        return "refused"
    if found.corrected:
        assert attack.total(found) == attack.plain
        assert found.corrected == list(liars)  # and nobody else is blamed
        assert found.liars_excluded == p.colluders
        return "corrected"
    assert found.liars_excluded < len(liars)
    if attack.lie.agreeing() == len(attack.answers):
        assert attack.total(found) != attack.plain
        assert attack.total(found)[0] == GOAL or not rushing or attack.plain[0] == GOAL
    with pytest.raises(BadData, match=r"strict decoding asks for \d+ \(D \+ 2T\)"):
        attack.decode(rushing=rushing, strict=True)
    return "not excluded"


@pytest.mark.parametrize("N", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_no_lie_of_so_many_as_are_excluded_changes_the_sum(kind, N, monkeypatch):
    monkeypatch.setattr(decoding, "wrong_positions", brute_force)
    endings = set()
    for number, attack in enumerate(attacks(kind, N)):
        for rushing in (False, True) if N < 6 else (number % 2 == 0,):
            endings.add(check(attack, rushing=rushing))
    assert "not excluded" in endings
    if N > 3:
        assert endings - {"no such sum"} == {"refused", "corrected", "not excluded"}


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_roots_do_not_help(kind, monkeypatch):
    monkeypatch.setattr(decoding, "wrong_positions", brute_force)
    for attack in attacks(kind, 4, fewest_roots=0):
        check(attack, rushing=False)


@pytest.mark.parametrize("kind", ["permutation", "sketch"])
def test_the_same_with_the_solver_that_finds_wrong_answers(kind):
    endings = [check(attack, rushing=True) for attack in attacks(kind, 4)]
    assert set(endings) == {"refused", "corrected", "not excluded"}


@pytest.mark.parametrize("N", [4, 5])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "W = M" not in kind])
@pytest.mark.rule(9)
def test_the_old_rule_lets_every_lie_through_that_outvotes_the_honest(kind, N, monkeypatch):
    """The twin: half of the surplus is corrected, and any surplus that agrees is believed.

    (Where W = M a lie may show as a sum that is too large.)"""
    monkeypatch.setattr(decoding, "wrong_positions", brute_force)
    monkeypatch.setattr(decoding, "is_correctable", lambda *_, **__: True)
    monkeypatch.setattr(decoding, "certain_quorum", lambda p: p.survivors)
    monkeypatch.setattr(
        decoding,
        "liars_excluded",
        lambda p, agreeing: p.colluders if agreeing > p.survivors else 0,
    )
    believed = blamed = 0
    for attack in attacks(kind, N):
        if not attack.surplus:
            continue
        if not attack.outvotes:
            ending = outcome(attack, rushing=True)
            if isinstance(ending, BadData):
                assert "do not agree" in ending.message
            else:
                assert attack.total(ending) == attack.plain
            continue
        found = attack.decode(rushing=True)
        assert attack.total(found) != attack.plain
        assert found.liars_excluded >= len(attack.lie.liars)  # it is called certain
        believed += 1
        blamed += bool(found.corrected)
        assert not set(found.corrected) & set(attack.lie.liars)
        if not found.corrected:
            attack.decode(rushing=True, strict=True)
    assert believed
    assert blamed or N == 4


# The numbers


@pytest.mark.parametrize(
    ("agreeing", "excluded"), [(7, 0), (8, 1), (9, 2), (10, 3), (11, 3), (12, 3)]
)
def test_how_many_liars_are_excluded(agreeing, excluded):
    p = round_of(12, 7, 3, L=20, K=2)
    assert liars_excluded(p, agreeing) == excluded
    assert (excluded == p.colluders) == (agreeing >= certain_quorum(p) == 10)


def spoiled(whole: SteppedRound, count: int, wrong: int, survivors: int | None = None) -> BadData:
    """Why `count` answers are refused of which so many are wrong, each in its own way."""
    survivors = survivors or whole.p.users
    u1 = range(1, survivors + 1)
    answers = whole.answers(u1)
    given = {n: answers[n].copy() for n in range(1, count + 1)}
    for n in range(1, wrong + 1):
        given[n][0, 0] = (int(given[n][0, 0]) + n**3) % whole.p.field
    with pytest.raises(BadData) as refused:
        whole.decoded(u1, given, strict=not wrong)
    return refused.value


def test_a_refusal_says_how_many_are_wrong_and_how_many_more_answers_would_settle_it():
    whole = SteppedRound.of(round_of(10, 5, 2, L=20, K=2), "numbers")  # D + T = 5, D + 2T = 7
    error = spoiled(whole, 7, 1)
    assert "the 7 answers do not agree with each other: at least 1 is wrong" in error.message
    assert error.hint == "wait for at least 1 more user to answer"
    error = spoiled(whole, 6, 1)
    assert error.hint == "wait for at least 2 more users to answer"
    error = spoiled(whole, 8, 2)
    assert "at least 2 are wrong" in error.message
    assert error.hint == "wait for at least 1 more user to answer"
    error = spoiled(whole, 7, 1, survivors=7)
    assert "no number of answers of this round is enough: it takes 8, and there are 7" in error.hint
    assert error.hint.endswith(agreement._CAUSE)
    assert error.advice is None, "strict or not: a wrong answer is there"
    error = spoiled(whole, 10, 3)
    assert "at least 3 are wrong" in error.message
    assert "more than T = 2 are wrong, and no further answer can help" in error.hint
    answers = whole.answers(range(1, 11))
    answers[3][0, 0] = (int(answers[3][0, 0]) + 1) % whole.p.field
    found = whole.decoded(range(1, 11), {n: answers[n] for n in range(1, 9)})
    assert (found.corrected, found.liars_excluded) == ([3], 2)


def test_strict_decoding_says_how_many_answers_are_missing():
    whole = SteppedRound.of(round_of(10, 5, 2, L=20, K=2), "numbers")
    error = spoiled(whole, 5, 0)
    assert error.message == "5 answers agree, and strict decoding asks for 7 (D + 2T): 2 missing"
    assert error.hint == "wait for at least 2 more users to answer"
    assert "it takes 7, and there are 6 survivors" in spoiled(whole, 6, 0, survivors=6).hint
