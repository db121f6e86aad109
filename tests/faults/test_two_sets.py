"""A sample of the attacks of two_sets.py, what they find where a check is missing, and why one set
is the rule."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pytest
from fault_lab import scratch
from oracle import lagrange_matrix, lifted, recover, solved
from small_rounds import SteppedRound, round_of
from two_sets import SETTINGS, run_attacks

from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.messages import Sparse
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.protocol.round import answer
from topk_secagg.storage import survivors
from topk_secagg.storage.ledger import Ledger
from topk_secagg.storage.session import Session

ATTACKS = 6


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.rule(2)
def test_two_survivor_sets_are_never_answered(name):
    """By one user in any round, and by all honest users together where the round protects them from
    that."""
    with scratch() as folder:
        counts, violations = run_attacks(folder, SETTINGS[name], ATTACKS)
    assert violations == []
    assert counts["attacks"] == ATTACKS
    assert counts["eliminate 0"] > 0
    if SETTINGS[name].protected:
        assert counts["1 sets answered"] > 0
        assert counts["2 sets answered"] == 0
    else:  # else these attacks would not tell anything about the others
        assert counts["2 sets answered"] > 0


BROKEN = {
    "the ledger": ("plain, honest freezer", Ledger, "check_survivors", lambda *_: None),
    "the signature": (
        "sealed, honest freezer",
        survivors,
        "check_signature",
        lambda *_, **__: None,
    ),
    "the ledger of a confirmed round": (
        "confirmed, corrupt freezer",
        Ledger,
        "check_survivors",
        lambda *_: None,
    ),
    "a majority": ("confirmed, corrupt freezer", Session, "confirmations", 2),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.rule(2)
def test_the_attacks_succeed_without(what, monkeypatch):
    name, where, attribute, broken = BROKEN[what]
    monkeypatch.setattr(where, attribute, broken)
    with scratch() as folder:
        _, violations = run_attacks(folder, SETTINGS[name], ATTACKS)
    assert violations


# --- why: one answer to another set gives away an input -------------------------------------------

SMALL = 1000  # the largest value that a user sends, in steps: far below q
Rows = list[list[int]]


class View:
    """What colluders see of a round: everything public, and the shares that they hold
    themselves."""

    def __init__(self, p: Parameters, seed: int) -> None:
        rng = np.random.default_rng(seed)
        users = range(1, p.users + 1)
        self.p = p
        self.c = construction(p)
        self.inputs: dict[int, dict[int, int]] = {}
        sparse = {}
        for n in users:
            index = self.c.select(rng.uniform(-1, 1, p.length)).astype(np.int64)
            steps = rng.integers(1, SMALL, index.size) * rng.choice([-1, 1], index.size)
            self.inputs[n] = dict(zip(index.tolist(), steps.tolist(), strict=True))
            sparse[n] = Sparse(index, (steps % p.field).astype(np.uint32))
        self.round = SteppedRound.of(p, f"leak {seed}", sparse)
        self.points = self.round.points
        self.held = self.round.shares
        self.x = self.round.masked(users)

    def alpha(self, *users: int) -> list[int]:
        return [self.points.alpha[n - 1] for n in users]

    def answer(self, user: int, survivors: list[int]) -> Rows:
        """Y of a user for this set."""
        shape = construction(self.p).answer_shape(len(survivors))
        held = {n: self.held[user][n] for n in survivors}
        return answer(self.p, {n: self.x[n] for n in survivors}, held, shape).tolist()

    def foretold(self, user: int, survivors: list[int], answering: list[int]) -> Rows:
        """The same from the answers of D + T others, which lie on one polynomial of degree D + T -
        1."""
        known = [self.answer(n, survivors) for n in answering]
        q = self.p.field
        (weights,) = lagrange_matrix(self.alpha(*answering), self.alpha(user), q)
        return [
            [combined(weights, column, q) for column in zip(*rows, strict=True)]
            for rows in zip(*known, strict=True)
        ]


def combined(weights: Iterable[int], values: Iterable[int], q: int) -> int:
    return sum(w * v for w, v in zip(weights, values, strict=True)) % q


def told_apart(
    mixed: int, factors: Mapping[int, int], support: set[int], q: int
) -> Iterator[tuple[int, int]]:
    """Which of D coordinates a sum of e w is from, and the value there: one that is in the sum,
    where it is small.

    (Two entries of one sum, which these rounds do not have, would take a search.)
    """
    for k, e in factors.items():
        w = lifted(mixed * pow(e, -1, q) % q, q)
        if 0 < abs(w) <= SMALL and k in support:
            yield k, w


def leak_of_permutation(
    view: View, helper: int, colluders: list[int], victim: int, at_helper: Rows, support: set[int]
) -> dict[int, int]:
    """The victim's polynomial at T + 1 points: weights that cancel its T noise vectors leave a sum
    of its D blocks."""
    p = view.p
    q = p.field
    D = p.blocks
    rows = lagrange_matrix(
        view.points.beta, view.alpha(helper, *colluders), q
    )  # by blocks, then noise
    minus = [-v % q for v in rows[0][D : D + p.colluders]]
    rest = solved(
        [list(c) for c in zip(*(row[D : D + p.colluders] for row in rows[1:]), strict=True)],
        minus,
        q,
    )
    assert rest is not None
    factors = [combined([1, *rest], (row[d] for row in rows), q) for d in range(D)]
    own = [
        view.answer(n, [victim])[0] for n in colluders
    ]  # from its public X, and their own shares
    found: dict[int, int] = {}
    for column, symbols in enumerate(zip(at_helper[0], *own, strict=True)):
        coordinates = {d * view.c.width + column: e for d, e in enumerate(factors)}
        found.update(told_apart(combined([1, *rest], symbols, q), coordinates, support, q))
    return found


def leak_of_sketch(
    view: View, helper: int, colluders: list[int], victim: int, at_helper: Rows, support: set[int]
) -> dict[int, int]:
    """The victim's polynomial at T + 1 points gives a sum of its masks at the D betas of a group;
    taken from the same sum of its X, that leaves a sum of its sketches there."""
    p = view.p
    q = p.field
    D = p.blocks
    x = view.x[victim].value.reshape(p.buckets, -1).tolist()
    known = {n: view.held[n][victim] for n in colluders}
    betas = list(view.points.beta[:D])
    (basis,) = lagrange_matrix([*betas, *view.alpha(*colluders)], view.alpha(helper), q)
    weights, others = basis[:D], basis[D:]
    found: dict[int, int] = {}
    for group, symbols in enumerate(at_helper):
        buckets = range(group * D, group * D + D)
        shares = [known[n](np.array([group]))[0][0].tolist() for n in colluders]
        moments = [
            combined([*weights, *others, -1], [*sent, *own, symbol], q)
            for symbol, *values in zip(symbols, *(x[b] for b in buckets), *shares, strict=False)
            for sent, own in [(values[:D], values[D:])]
        ]
        mixed = recover(moments, view.c.order, len(moments) // 2, view.c.gamma, q)
        for place, v in enumerate(mixed or ()):
            factors = zip(buckets, weights, strict=True)
            coordinates = {place * p.buckets + b: e for b, e in factors}
            found.update(told_apart(v, coordinates, support, q))
    return found


LEAKS = {"permutation": leak_of_permutation, "sketch": leak_of_sketch}


@pytest.mark.parametrize("name", LEAKS)
@pytest.mark.parametrize(("users", "colluders"), [(4, [4]), (5, [2, 5])])
def test_one_answer_to_another_set_reveals_an_input(name, users, colluders):
    """D honest users answer A, one answers A without the victim, and T collude: they have all
    entries of the victim."""
    T = len(colluders)
    everybody = list(range(1, users + 1))
    p = round_of(users, 2 + T, T, L=120, K=4, P=2 if name == "sketch" else None)
    view = View(p, seed=2)
    helper, victim, *_ = honest = [n for n in everybody if n not in colluders]
    answering = [*honest[1 : 1 + p.blocks], *colluders]
    a, b = everybody, [n for n in everybody if n != victim]
    total, _ = view.round.decode(
        everybody, {n: np.array(view.answer(n, a), np.uint32) for n in answering}
    )
    support = {k for k, v in enumerate(total) if v}
    expected = view.foretold(helper, a, answering)
    assert expected == view.answer(helper, a)  # which it never gave

    def leak(other):
        given = view.answer(helper, other)
        at_helper = [
            [(v - u) % p.field for v, u in zip(*rows, strict=False)]
            for rows in zip(expected, given, strict=True)
        ]
        return LEAKS[name](view, helper, colluders, victim, at_helper, support)

    assert leak(b) == view.inputs[victim]
    assert leak(a) != view.inputs[victim]  # an answer to the same set tells nothing new
