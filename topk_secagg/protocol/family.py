"""Families of blocks: which users hold a key together, so that T of them miss enough.

A block R is a set of N-U+1 users. Its polynomial g_R(x) = product over m not in R of (x - alpha_m)
has degree U-1 and is zero at the alphas of all users outside R. A dealer draws a key for every
block, gives it to the users in R, and its polynomial is f = sum over R of G(key_R) g_R.

*The condition.* For every set C of T users, the vectors (g_R(beta_1), ..., g_R(beta_D)) of the
blocks that C does not meet have rank D. Then the masks f(beta_1), ..., f(beta_D) are uniform given
all keys that C holds: without it, they are not.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from itertools import combinations, islice

import numpy as np
import numpy.typing as npt

from ..algebra.field import Integers, ceil_div
from ..errors import BadData, named_users
from .deal import Block
from .messages import Points
from .parameters import Parameters

MOST_BLOCKS = 512  # in a family
MOST_COALITIONS = 100_000  # sets of T users that are looked at one by one
MOST_STEPS = 1 << 31  # of checking them all: C(N,T) D^2 |F|, half a minute in the worst case
SEARCH_SECONDS = 5.0  # of computing: a busy machine finds the same families
SEARCH_TRIES = 6  # where a try is quick
_FIRST_SEED = 48  # from which on six tries find good families for ten users
_QUICK = 30_000  # blocks times coalitions
_COALITIONS_AT_ONCE = 4096
_NUMBERS_AT_ONCE = 1 << 17  # in the matrices of some coalitions: memory that does not grow with N
_MOST_CANDIDATES = 256  # blocks that are compared with each other in a step of the search
_MOST_COMPARED = 512  # coalitions for which they are compared
_STAND_IN = 65521  # the largest prime of 16 bits: sums of products fit into 64
_MOST_NUMBERS = 1 << 23  # that a search keeps: D^2 for each coalition

Members = npt.NDArray[np.bool_]  # (sets, N): who is in each


def block_size(p: Parameters) -> int:
    """N - U + 1: the users that are not in a block are U - 1, the degree of its polynomial."""
    return p.users - p.survivors + 1


def coalition_count(p: Parameters) -> int:
    """C(N, T)."""
    return math.comb(p.users, p.colluders)


def is_checkable(p: Parameters, blocks: int) -> bool:
    """Whether the condition can be checked for all coalitions, with so many blocks, in reasonable
    time."""
    coalitions = coalition_count(p)
    return coalitions <= MOST_COALITIONS and coalitions * p.blocks**2 * blocks <= MOST_STEPS


def block_values(
    p: Parameters, points: Points, family: Sequence[Block], at: Sequence[int]
) -> Integers:
    """g_R(x) for every x in `at` and every block R, (points, blocks)."""
    q = p.field
    values = np.ones((len(at), len(family)), dtype=np.uint64)
    members = _members(p, family)
    for m, alpha in enumerate(points.alpha):
        difference = np.array([(x - alpha) % q for x in at], dtype=np.uint64)[:, None]
        values = np.where(members[:, m], values, values * difference % np.uint64(q))
    return values


def check_family(p: Parameters, points: Points, family: Sequence[Block]) -> None:
    """BadData unless these are blocks, and the condition holds for all coalitions."""
    check_blocks(p, family)
    lacking = lacking_coalition(p, points, family)
    if lacking is not None:
        together = " together" if len(lacking) > 1 else ""
        raise BadData(
            f"{named_users(lacking)}{together} would learn more than the sum from these keys",
            "do not take part in this round: ask who started it",
        )


def check_blocks(p: Parameters, family: Sequence[Block]) -> None:
    """BadData unless these are distinct blocks in order, and few enough to look at them all."""
    if len(family) > MOST_BLOCKS:
        raise BadData(f"a family of {len(family)} blocks, and {MOST_BLOCKS} are the most")
    if not is_checkable(p, len(family)):
        raise BadData(f"{coalition_count(p)} coalitions are too many for keys with D = {p.blocks}")
    size = block_size(p)
    users = range(1, p.users + 1)
    for block in family:
        if len(block) != size or list(block) != sorted(set(block)) or not set(block) <= set(users):
            raise BadData(f"a block is not {size} users in increasing order")
    if list(family) != sorted(set(family)):
        raise BadData("the blocks are not distinct and in increasing order")


def lacking_coalition(
    p: Parameters, points: Points, family: Sequence[Block]
) -> tuple[int, ...] | None:
    """The first set of T users for which the condition does not hold."""
    members = _members(p, family)
    values = block_values(p, points, family=family, at=points.beta[: p.blocks]).T  # (blocks, D)
    for coalitions in _some_coalitions(p):
        missed = ~_met(members, coalitions)  # (coalitions, blocks)
        for at in _below_rank(missed, values, p.field):
            return tuple(int(m) + 1 for m in coalitions[at])
    return None


def _some_coalitions(p: Parameters) -> Iterator[Integers]:
    """All sets of T users, counted from 0, a few thousand at a time: (coalitions, T)."""
    every = combinations(range(p.users), p.colluders)
    count = max(1, min(_COALITIONS_AT_ONCE, _NUMBERS_AT_ONCE // p.blocks**2))
    while some := list(islice(every, count)):
        yield np.array(some)


def _members(p: Parameters, sets: Sequence[Block]) -> Members:
    """Who is in each set, (sets, N)."""
    members = np.zeros((len(sets), p.users), dtype=bool)
    for row, users in zip(members, sets, strict=True):
        row[[m - 1 for m in users]] = True
    return members


def _met(members: Members, coalitions: Integers) -> npt.NDArray[np.bool_]:
    """Whether each coalition has a user in each block, (coalitions, blocks)."""
    met = np.zeros((len(coalitions), len(members)), dtype=bool)
    for user in coalitions.T:
        met |= members[:, user].T
    return met


def _below_rank(missed: npt.NDArray[np.bool_], values: Integers, q: int) -> Iterator[int]:
    """The numbers of the coalitions for which the condition does not hold.

    missed (coalitions, blocks): which blocks have no user of a coalition. values (blocks, D): g_R
    at the betas. The rows of the blocks that a coalition misses must have rank D. The first D of
    them nearly always do, and are tried for all coalitions at once; only where they do not, all
    rows are looked at.
    """
    D = values.shape[1]
    has_enough = missed.sum(axis=1) >= D
    first_missed = np.argsort(~missed, axis=1, kind="stable")[:, :D]  # D blocks for each coalition
    has_rank = np.zeros(len(missed), dtype=bool)
    has_rank[has_enough] = _have_full_rank(values[first_missed[has_enough]], q)
    doubtful = np.flatnonzero(has_enough & ~has_rank)
    step = max(1, _NUMBERS_AT_ONCE // max(1, values.size))
    for first in range(0, doubtful.size, step):
        some = doubtful[first : first + step]
        # a block that is met counts as zero
        has_rank[some] = _have_full_rank(values * missed[some, :, None], q)
    yield from map(int, np.flatnonzero(~has_rank))


def _have_full_rank(matrices: Integers, q: int) -> npt.NDArray[np.bool_]:
    """Whether each of the matrices (count, rows, D) has rank D, by elimination."""
    m = matrices.copy()
    count, rows, D = m.shape
    if rows < D:
        return np.zeros(count, dtype=bool)
    every = np.arange(count)
    full = np.ones(count, dtype=bool)
    modulus = np.uint64(q)
    for column in range(D):
        pivot = column + np.argmax(m[:, column:, column] != 0, axis=1)
        swapped = m[every, pivot].copy()
        m[every, pivot] = m[:, column]
        m[:, column] = swapped
        full &= swapped[:, column] != 0
        # rows below: row * pivot - row[column] * pivot row, which keeps the rank
        below = m[:, column + 1 :]
        scaled = below * swapped[:, None, column, None] % modulus
        removed = below[:, :, column, None] * swapped[:, None] % modulus
        m[:, column + 1 :] = (scaled + (modulus - removed)) % modulus
    return full


# Search


def find_family(p: Parameters, points: Points) -> tuple[Block, ...] | None:
    """A small family that meets the condition; None where none is found within the limits.

    Which one is found depends on the time that there is: any that meets the condition will do.
    """
    if not is_checkable(p, p.blocks):  # a family has at least D
        return None
    asked = (p.users, p.survivors, p.colluders, p.field, points)
    if asked not in _found_families:
        _found_families[asked] = _smallest_fitting(p, points)
    return _found_families[asked]


_found_families: dict[tuple[int, int, int, int, Points], tuple[Block, ...] | None] = {}


def _smallest_fitting(p: Parameters, points: Points) -> tuple[Block, ...] | None:
    """The smallest of the families that are found and meet the condition with these points."""
    smallest = None
    for family in _families(p, points):
        if smallest is not None and len(family) >= len(smallest):
            continue
        if not is_checkable(p, len(family)):
            continue
        if lacking_coalition(p, points, family) is not None:
            continue
        smallest = family
        if len(family) == _least_blocks(p):
            break
    return smallest


def _least_blocks(p: Parameters) -> int:
    """No family is smaller: each of the C(N,T) coalitions misses D blocks or more, and a block is
    missed by the C(U-1,T) coalitions of users outside it."""
    missed = p.blocks * coalition_count(p)
    return ceil_div(missed, math.comb(p.survivors - 1, p.colluders))


def _families(p: Parameters, points: Points) -> Iterator[tuple[Block, ...]]:
    """Families for this session, as they are found.

    A large field is too slow to search in. A small one stands in for it: a rank that is full there
    is nearly always full in F_q too, which is checked. Other points would not do as well: those of
    a session are small integers, for which some ranks are lower than for most points.
    """
    if _least_blocks(p) > MOST_BLOCKS:
        return
    size = block_size(p)
    if size == 1 or p.blocks == 1:
        # all single users; or a block for each coalition, which only that block misses
        yield tuple(combinations(range(1, p.users + 1), size))
        return
    if coalition_count(p) * p.blocks**2 > _MOST_NUMBERS:
        return
    is_quick = math.comb(p.users, size) * coalition_count(p) <= _QUICK
    end = time.thread_time() + SEARCH_SECONDS
    is_found = False
    for attempt in range(SEARCH_TRIES if is_quick else 1):
        if is_found and time.thread_time() > end:
            break
        chance = random.Random(_FIRST_SEED + attempt)  # noqa: S311 - a family is public
        family = _Search(p, points, chance=chance, end=end).family()
        if family is not None:
            is_found = True
            yield family


class _Search:
    """A greedy search: again and again the block that raises the most coalitions' ranks.

    The rank of a coalition is that of the blocks it misses; it must become D. A block raises it if
    it is not in their span, so if it is not orthogonal to a random vector that is orthogonal to
    them all.
    """

    def __init__(self, p: Parameters, points: Points, chance: random.Random, end: float) -> None:
        self._users = p.users
        self._size = block_size(p)
        self._rank = p.blocks  # D
        self._q = min(p.field, _STAND_IN)
        self._chance = chance
        self._end = end
        self._coalitions = np.array(list(combinations(range(p.users), p.colluders)))
        beta = np.array(points.beta, dtype=np.int64)
        alpha = np.array(points.alpha, dtype=np.int64)
        self._differences = (beta[:, None] - alpha) % self._q  # (D, N)

    def family(self) -> tuple[Block, ...] | None:
        """A family, or None if it would be too large or take too long."""
        chosen: list[Block] = []
        spaces = _Orthogonal(len(self._coalitions), self._rank, q=self._q, chance=self._chance)
        while spaces.lacking.any():
            if len(chosen) == MOST_BLOCKS or time.thread_time() > self._end:
                return None
            block = self._best(set(chosen), spaces)
            if block is None:
                return None
            chosen.append(block)
            missed = self._missed([block])[0]
            spaces.add(np.flatnonzero(missed), self._values([block])[0])
        return self._pruned(sorted(chosen))

    def _best(self, chosen: set[Block], spaces: _Orthogonal) -> Block | None:
        """The block that helps most; some coalitions stand for all where there are many."""
        candidates = self._candidates(chosen)
        if not candidates:
            return None
        needy = np.flatnonzero(spaces.lacking)
        if needy.size > _MOST_COMPARED:
            needy = needy[self._chance.sample(range(needy.size), _MOST_COMPARED)]
        raised = self._values(candidates) @ spaces.vectors[needy].T % self._q != 0
        raised &= self._missed(candidates, needy)
        # who lacks most counts most: a few coalitions at the end are dear
        helped = raised @ np.square(spaces.lacking[needy])
        return candidates[self._chance.choice(np.flatnonzero(helped == helped.max()).tolist())]

    def _candidates(self, chosen: set[Block]) -> list[Block]:
        """Blocks that are not chosen yet: all, or as many random ones as can be compared."""
        users = range(1, self._users + 1)
        if math.comb(self._users, self._size) <= _MOST_CANDIDATES:
            return [block for block in combinations(users, self._size) if block not in chosen]
        order = np.argsort(_words(self._chance, _MOST_CANDIDATES, self._users), axis=1)
        drawn = np.sort(order[:, : self._size] + 1, axis=1)
        return sorted(set(map(tuple, drawn.tolist())) - chosen)

    def _members(self, blocks: Sequence[Block]) -> Members:
        members = np.zeros((len(blocks), self._users), dtype=bool)
        np.put_along_axis(members, np.array(blocks) - 1, values=True, axis=1)
        return members

    def _missed(self, blocks: Sequence[Block], some: Integers | slice = slice(None)) -> Members:
        """Which of some coalitions miss each block, (blocks, coalitions)."""
        missed = np.ones((len(blocks), len(self._coalitions[some])), dtype=bool)
        outside = ~self._members(blocks)
        for user in self._coalitions[some].T:
            missed &= outside[:, user]
        return missed

    def _values(self, blocks: Sequence[Block]) -> Integers:
        """g_R(beta_1), ..., g_R(beta_D) of each block, (blocks, D)."""
        outside = ~self._members(blocks)
        values = np.ones((len(blocks), self._rank), dtype=np.int64)
        for user in range(self._users):
            values = np.where(
                outside[:, user, None],
                values * self._differences[:, user] % self._q,
                values,
            )
        return values

    def _pruned(self, chosen: list[Block]) -> tuple[Block, ...]:
        """Without the blocks that no coalition needs, as far as time allows."""
        missed = self._missed(chosen)
        values = self._values(chosen).astype(np.uint64)
        kept = np.ones(len(chosen), dtype=bool)
        for at in self._chance.sample(range(len(chosen)), len(chosen)):
            if time.thread_time() > self._end:
                break
            kept[at] = False
            left = missed[:, missed[at]] & kept[:, None]  # of the coalitions that miss it
            scarce = left.sum(axis=0) < self._rank
            if scarce.any() or next(_below_rank(left.T, values, self._q), None) is not None:
                kept[at] = True
        return tuple(block for block, keep in zip(chosen, kept, strict=True) if keep)


class _Orthogonal:
    """For each coalition, a basis of the vectors that are orthogonal to the blocks it misses."""

    def __init__(self, coalitions: int, rank: int, *, q: int, chance: random.Random) -> None:
        self._q = q
        self._bases = np.broadcast_to(np.eye(rank, dtype=np.int64), (coalitions, rank, rank)).copy()
        self._chance = chance
        self.lacking = np.full(coalitions, rank)
        self.vectors = np.empty((coalitions, rank), dtype=np.int64)  # a random one of each space
        self._draw(np.arange(coalitions))

    def add(self, coalitions: Integers, values: Integers) -> None:
        """A block with these values that the coalitions miss.

        A basis vector that is not orthogonal to it clears the others, and becomes zero itself.
        """
        bases = self._bases[coalitions]
        products = bases @ values % self._q  # (coalitions, D)
        raised = products.any(axis=1)
        coalitions = coalitions[raised]
        bases = bases[raised]
        products = products[raised]
        every = np.arange(len(coalitions))
        pivot = (products != 0).argmax(axis=1)
        cleared = bases * products[every, pivot][:, None, None]
        cleared -= products[:, :, None] * bases[every, pivot][:, None]
        self._bases[coalitions] = cleared % self._q
        self.lacking[coalitions] -= 1
        self._draw(coalitions)

    def _draw(self, coalitions: Integers) -> None:
        rank = self._bases.shape[1]
        factors = 1 + _words(self._chance, len(coalitions), 1, rank) % (self._q - 1)
        self.vectors[coalitions] = (factors @ self._bases[coalitions] % self._q)[:, 0]


def _words(chance: random.Random, *shape: int) -> Integers:
    """Random numbers below 2^32. Importing numpy's generators would take a third of `init`'s own
    time."""
    words = np.frombuffer(chance.randbytes(4 * math.prod(shape)), dtype="<u4")
    return words.reshape(shape).astype(np.int64)
