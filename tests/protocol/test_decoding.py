"""Wrong answers in a round: corrected and named within the limit, refused beyond, never believed.

test_coordinated_lies.py has users that lie together."""

from itertools import combinations
from typing import Any

import numpy as np
import oracle
import pytest
from liars import Lie
from small_rounds import SteppedRound, in_small_blocks, round_of, source

from topk_secagg.algebra import native
from topk_secagg.algebra.field import PIECE, Symbols
from topk_secagg.errors import BadData, TooFewSurvivors
from topk_secagg.protocol import decoding
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.held import WrittenShares
from topk_secagg.protocol.parameters import CONSTRUCTIONS
from topk_secagg.protocol.round import reader_of

N = 8
T = 2
EVERYBODY = range(1, N + 1)
FOUR = {"N": N, "U": 4, "T": T, "L": 83, "K": 4}
KINDS = {
    "permutation": FOUR,
    "permutation, small field": {**FOUR, "q": 97},
    "sketch by keys": {**FOUR, "P": 2, "dealing": "keys"},
    "sketch, small field": {**FOUR, "P": 2, "q": 97},
    "sketch, large field": {**FOUR, "P": 1, "q": 2**32 - 5},
    "sketch, four picks, U = 5": {**FOUR, "U": 5, "P": 4, "q": 65521},
    "sketch, U = 6": {**FOUR, "U": 6, "P": 1},
    "sketch, everything whole": {"N": N, "U": 4, "T": T, "L": 84, "whole": 84, "dealing": "keys"},
}


class Decoding:
    """A round of eight users that all answer."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.round = SteppedRound.of(round_of(**raw), "decoding")
        self.quorum = raw["U"]  # D + T
        self.most = max(0, min(T, N - self.quorum - T))  # wrong ones that leave D + 2T to agree
        self.findable = (N - self.quorum) // 2
        self.answers = self.round.answers(EVERYBODY)
        self.plain = self.round.plain_sum(EVERYBODY)

    def decode(
        self, answers: dict[int, Symbols], *, strict: bool = False
    ) -> tuple[list[int], list[int]]:
        return self.round.decode(EVERYBODY, answers, strict=strict)

    def spoiled(self, wrong: tuple[int, ...], how: str) -> dict[int, Symbols]:
        rng = np.random.default_rng(2)
        q = self.round.p.field
        answers = {n: y.copy() for n, y in self.answers.items()}
        for n in wrong:
            y = answers[n].reshape(-1)
            if how == "one symbol":
                y[n % y.size] = (int(y[n % y.size]) + 1) % q
            elif how == "all symbols":
                y[:] = rng.integers(q, size=y.size)
            else:  # the same lie for all: another polynomial
                y[:] = (y.astype(np.uint64) + 12345 + self.round.points.alpha[n - 1]) % q
        return answers


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def eight(request):
    return Decoding(request.param)


@pytest.mark.parametrize("how", ["one symbol", "all symbols", "a common lie"])
def test_wrong_users_are_corrected_and_named_while_enough_others_agree(eight, how):
    assert eight.decode(eight.answers) == (eight.plain, [])
    for count in range(1, eight.most + 1):
        for wrong in combinations(EVERYBODY, count):
            assert eight.decode(eight.spoiled(wrong, how)) == (eight.plain, list(wrong))


@pytest.mark.parametrize("how", ["one symbol", "all symbols"])
def test_beyond_the_limit_the_result_is_refused(eight, how):
    """Where the code could still find them, too."""
    for count in range(eight.most + 1, eight.findable + 2):
        least = "1 is wrong" if count == 1 else f"{count} are wrong"
        for wrong in list(combinations(EVERYBODY, count))[::3]:
            with pytest.raises(BadData, match=f"at least {least}, and nobody can be named"):
                eight.decode(eight.spoiled(wrong, how))


def test_strict_refuses_at_the_first_inconsistency_and_too_few_answers(eight):
    if eight.quorum + T > N:
        with pytest.raises(BadData, match="strict decoding asks for"):
            eight.decode(eight.answers, strict=True)
        return
    assert eight.decode(eight.answers, strict=True) == (eight.plain, [])
    spoiled = eight.spoiled((3,), "one symbol")
    why = "does not agree with the others, and strict" if eight.most else "nobody can be named"
    with pytest.raises(BadData, match=why):
        eight.decode(spoiled, strict=True)
    few = {n: eight.answers[n] for n in range(1, eight.quorum + T)}
    with pytest.raises(BadData, match=f"{len(few)} answers agree, and strict decoding asks for"):
        eight.decode(few, strict=True)


def test_one_answer_beyond_the_quorum_detects_but_cannot_name(eight):
    some = range(1, eight.quorum + 2)
    assert eight.decode({n: eight.answers[n] for n in some}) == (eight.plain, [])
    for wrong in some:
        spoiled = eight.spoiled((wrong,), "one symbol")
        with pytest.raises(BadData, match="at least 1 is wrong, and nobody can be named"):
            eight.decode({n: spoiled[n] for n in some})


def test_with_no_more_answers_than_needed_a_wrong_one_shows_as_the_sum_is_not_sparse(eight):
    for wrong in range(1, eight.quorum + 1):
        spoiled = eight.spoiled((wrong,), "all symbols")
        some = {n: spoiled[n] for n in range(1, eight.quorum + 1)}
        if eight.round.p.whole:  # with no padding, nothing shows
            assert eight.decode(some)[0] != eight.plain
            continue
        with pytest.raises(BadData, match="an answer or a share is wrong"):
            eight.decode(some)


def test_answers_are_combined_only_if_there_are_more_than_needed(eight, monkeypatch):
    """The kernel is not even loaded where there is nothing to compare."""
    called = []
    weigh = native.weigh
    monkeypatch.setattr(
        native,
        "weigh",
        lambda *given, **named: (called.append("weigh"), weigh(*given, **named)),
    )
    for count in (eight.quorum, eight.quorum + 1):
        assert eight.decode({n: eight.answers[n] for n in range(1, count + 1)}) == (eight.plain, [])
        assert ("weigh" in called) == (count > eight.quorum)


def test_fewer_answers_than_determine_the_polynomial_are_refused(eight):
    few = {n: eight.answers[n] for n in range(1, eight.quorum)}
    with pytest.raises(
        TooFewSurvivors, match=f"{eight.quorum - 1} answers, and {eight.quorum} are needed"
    ):
        eight.decode(few)


def test_without_the_check_a_wrong_answer_changes_the_sum(eight, monkeypatch):
    """The twin: with the check taken out, a wrong answer goes through as a wrong sum."""
    whole = eight.round
    others = tuple(range(2, eight.quorum + 1))
    told = Lie(liars=(1,), roots=others).told(whole.p, whole.points, eight.answers)
    monkeypatch.setattr(decoding, "_wrong_users", lambda *_, **__: [])
    total, corrected = eight.decode(told)
    assert corrected == []
    assert total != eight.plain


# Lies that would cancel in a combination with factors that repeat

GROUP = 32  # symbols


@pytest.fixture(scope="module")
def long():
    """A round whose answers are longer than a few pieces."""
    raw = {"N": N, "U": 4, "T": T, "L": 4000, "K": 60, "P": 2}
    long = Decoding(raw)
    assert construction(long.round.p).answer_shape(N).width == GROUP
    assert long.answers[1].size > 4 * PIECE
    return long


def cancelling(long: Decoding, first: int, distance: int) -> dict[int, Symbols]:
    """User 1 adds 1 to a symbol, and takes it from another."""
    answers = {n: y.copy() for n, y in long.answers.items()}
    y = answers[1].reshape(-1)
    q = long.round.p.field
    y[first] = (int(y[first]) + 1) % q
    y[first + distance] = (int(y[first + distance]) - 1) % q
    return answers


DISTANCES = {
    "two symbols of a piece": 1,
    "a symbol of two pieces": PIECE,
    "a symbol of two groups": GROUP,
}


@pytest.mark.parametrize("distance", DISTANCES.values(), ids=DISTANCES)
@pytest.mark.parametrize("apart", [False, True], ids=["read at once", "read group by group"])
def test_lies_that_cancel_each_other_are_corrected(long, apart, distance, monkeypatch):
    if apart:
        in_small_blocks(monkeypatch, long.round.p, symbols=GROUP)
    for first in (0, 1, GROUP - 1, PIECE, 2 * PIECE + 5):
        assert long.decode(cancelling(long, first, distance)) == (long.plain, [1])


class Ones:
    """Factors that anybody can guess."""

    def child(self, _: str) -> "Ones":
        return self

    def integers(self, _: int, out: Symbols) -> Symbols:
        out[:] = 1
        return out


@pytest.mark.parametrize("distance", DISTANCES.values(), ids=DISTANCES)
def test_with_factors_that_are_all_alike_such_lies_agree(long, distance, monkeypatch):
    """The twin: nobody is corrected, and only the sum shows that something is wrong."""
    monkeypatch.setattr("small_rounds.source", lambda _: Ones())
    with pytest.raises(BadData, match="an answer or a share is wrong"):
        long.decode(cancelling(long, 0, distance))


def test_progress_grows_to_one(long, monkeypatch):
    p = long.round.p
    in_small_blocks(monkeypatch, p, symbols=GROUP)
    shown: list[float] = []
    decoding.decode(
        p,
        long.round.points,
        construction(p).answer_shape(N),
        {n: reader_of(y) for n, y in long.answers.items()},
        source("progress"),
        masked_sum=long.round.masked_sum(tuple(EVERYBODY), construction(p).answer_shape(N)),
        progress=shown.append,
    )
    assert len(shown) > 2
    assert shown == sorted(set(shown))
    assert shown[-1] == 1


# Dealers and inputs that are wrong, while all answers agree


@pytest.mark.parametrize("construct", CONSTRUCTIONS)
def test_wrong_shares_of_a_dealer_are_noticed_without_naming_a_user(construct):
    whole = SteppedRound.of(round_of(5, 3, 1, L=200, K=4, construct=construct), "dealer")
    for m in range(1, 6):  # the same for every user: another constant term of the polynomial
        garbage = np.random.default_rng(1)
        tables = whole.shares[m][4].tables
        wrong = [
            (t + garbage.integers(whole.p.field, size=t.shape)) % whole.p.field for t in tables
        ]
        whole.shares[m][4] = WrittenShares(tuple(t.astype(np.uint32) for t in wrong))
    with pytest.raises(BadData, match="an answer or a share is wrong"):
        whole.decode(range(1, 6), whole.answers(range(1, 6)))


def test_a_sum_with_a_value_in_the_padding_is_refused():
    whole = SteppedRound.of(round_of(4, 3, 1, q=97, L=7, K=2), "padding")
    answers = whole.answers(range(1, 5))
    basis = oracle.lagrange_matrix(whole.points.beta[:3], whole.points.alpha, 97)
    for n, y in answers.items():
        y[0, 3] = (int(y[0, 3]) + basis[n - 1][1]) % 97
    with pytest.raises(BadData, match="beyond the gradient's end"):
        whole.decode(range(1, 5), answers)
