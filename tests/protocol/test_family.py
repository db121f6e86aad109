"""Families of blocks: the condition, checked against ranks in plain integers for all coalitions."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_rounds import round_of

from topk_secagg.algebra.field import DEFAULT_FIELD, SMALL_FIELD
from topk_secagg.errors import BadData
from topk_secagg.protocol import family as families
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.deal import Block
from topk_secagg.protocol.family import (
    block_size,
    block_values,
    check_family,
    find_family,
    lacking_coalition,
)
from topk_secagg.protocol.messages import Points
from topk_secagg.protocol.parameters import Parameters

Family = tuple[Block, ...]
SMALL = [(N, U, T) for N in range(2, 7) for U in range(2, N + 1) for T in range(1, U)]


@pytest.fixture(autouse=True)
def _first_family_will_do(monkeypatch):
    """And it is always the same: which others are found depends on the time that there is.

    Other tests in this process must not find what was found here.
    """
    monkeypatch.setattr(families, "SEARCH_TRIES", 1)
    monkeypatch.setattr(families, "_found_families", {})


def parameters(N: int, U: int, T: int, q: int = DEFAULT_FIELD) -> Parameters:
    return round_of(N, U, T, q, L=4, K=1, P=1, construct="sketch", dealing="keys")


def all_blocks(p: Parameters) -> Family:
    return tuple(combinations(range(1, p.users + 1), block_size(p)))


def coalitions(p: Parameters) -> list[tuple[int, ...]]:
    return list(combinations(range(1, p.users + 1), p.colluders))


def first_lacking(p: Parameters, points: Points, family: Family) -> tuple[int, ...] | None:
    """By the oracle."""
    lacking = (
        C for C in coalitions(p) if oracle.lacks(family, C, points.alpha, points.beta, p.field)
    )
    return next(lacking, None)


def refusal(p: Parameters, points: Points, family: Family) -> str:
    with pytest.raises(BadData) as refused:
        check_family(p, points, family)
    return refused.value.message


# The condition


@pytest.mark.parametrize("q", ["smallest", 97, DEFAULT_FIELD])
@pytest.mark.parametrize(("N", "U", "T"), SMALL)
def test_the_condition_is_the_oracles_for_all_coalitions(N, U, T, q):
    """For all blocks, for random families, and for these with one more or one less."""
    p = parameters(N, U, T, oracle.next_prime(2 * N + 1) if q == "smallest" else q)
    points = construction(p).points()
    blocks = all_blocks(p)
    chance = random.Random(f"{N} {U} {T} {q}")
    tried = [blocks, ()]
    for _ in range(6):
        some = sorted(chance.sample(blocks, chance.randint(1, len(blocks))))
        tried += [tuple(some), tuple(some[1:])]
    for family in tried:
        expected = first_lacking(p, points, family)
        assert lacking_coalition(p, points, family) == expected
        if expected is None:
            check_family(p, points, family)
        else:
            named = ", ".join(map(str, expected))
            who = f"users {named} together" if p.colluders > 1 else f"user {named}"
            assert f"{who} would learn more" in refusal(p, points, family)


@pytest.mark.parametrize(("N", "U", "T"), SMALL)
def test_a_family_that_is_found_meets_the_condition_and_is_refused_without_a_block_it_needs(
    N, U, T
):
    p = parameters(N, U, T)
    points = construction(p).points()
    family = find_family(p, points)
    assert family
    check_family(p, points, family)
    assert first_lacking(p, points, family) is None
    refused = 0
    for block in family:
        fewer = tuple(b for b in family if b != block)
        if first_lacking(p, points, fewer) is None:
            check_family(p, points, fewer)
        else:
            assert "would learn more than the sum" in refusal(p, points, fewer)
            refused += 1
    assert refused == len(family), "the search drops what is not needed"


@settings(max_examples=40)
@given(st.sampled_from([(7, 4, 2), (7, 5, 3), (8, 5, 2), (8, 6, 4)]), st.data())
def test_larger_families_with_any_points_and_in_any_field(users, data):
    q = data.draw(st.sampled_from([17, 19, 31, 97, SMALL_FIELD, DEFAULT_FIELD]))
    p = parameters(*users, q)
    count = p.users + p.blocks
    chosen = data.draw(st.lists(st.integers(0, q - 1), min_size=count, max_size=count, unique=True))
    points = Points(alpha=tuple(chosen[: p.users]), beta=tuple(chosen[p.users :]))
    blocks = all_blocks(p)
    size = data.draw(st.sampled_from([len(blocks), len(blocks) // 2, len(blocks) // 3]))
    family = tuple(sorted(random.Random(q + size).sample(blocks, size)))
    assert lacking_coalition(p, points, family) == first_lacking(p, points, family)


def test_values_of_blocks_are_the_products_of_the_oracle_and_zero_outside():
    p = parameters(5, 3, 1, 97)
    points = Points(alpha=(96, 3, 50, 12, 7), beta=(0, 95))
    family = all_blocks(p)
    at = [*points.beta, *points.alpha]
    values = block_values(p, points, family, at).tolist()
    assert values == [[oracle.block_polynomial(R, points.alpha, x, 97) for R in family] for x in at]
    for m, row in enumerate(values[2:], start=1):
        assert [v != 0 for v in row] == [m in R for R in family]


def test_a_family_for_one_field_may_not_do_for_another():
    """Counting blocks is not enough: the points of the session decide."""
    p = parameters(10, 7, 3)
    family = find_family(p, construction(p).points())
    assert family
    held = {}
    for q in (23, 29, 31, 37, 41, 43, 47, 53, 59, 61):
        small = parameters(10, 7, 3, q)
        points = construction(small).points()
        lacking = first_lacking(small, points, family)
        held[q] = lacking is None
        if lacking is None:
            check_family(small, points, family)
        else:
            assert oracle.lacks(family, lacking, points.alpha, points.beta, q)
            missed = [R for R in family if not set(R) & set(lacking)]
            assert len(missed) >= small.blocks, "there are enough blocks, and still they fail"
            assert "would learn more" in refusal(small, points, family)
        found = find_family(small, points)
        if found is not None:
            assert first_lacking(small, points, found) is None
    assert not all(held.values())


@pytest.mark.parametrize(("N", "U", "T"), [(10, 5, 3), (10, 7, 3), (12, 9, 4), (10, 10, 3)])
def test_families_of_ten_users_and_more(N, U, T):
    p = parameters(N, U, T)
    points = construction(p).points()
    family = find_family(p, points)
    assert family
    check_family(p, points, family)
    for coalition in random.Random(0).sample(coalitions(p), 20):
        assert not oracle.lacks(family, coalition, points.alpha, points.beta, p.field)
    if U == N:
        assert family == tuple((m,) for m in range(1, N + 1))


# What is no family


def changed(family: Family, at: int, block: Block) -> Family:
    return tuple(block if i == at else other for i, other in enumerate(family))


MALFORMED = {
    "a block too large": (lambda f: changed(f, 0, (1, 2, 3, 4)), "a block is not 3 users"),
    "a block too small": (lambda f: changed(f, 0, (1, 2)), "a block is not 3 users"),
    "no users": (lambda f: changed(f, 0, ()), "a block is not 3 users"),
    "not increasing": (lambda f: changed(f, 0, (2, 1, 3)), "in increasing order"),
    "a user twice": (lambda f: changed(f, 0, (1, 1, 2)), "in increasing order"),
    "user 0": (lambda f: changed(f, 0, (0, 1, 2)), "a block is not 3 users"),
    "user 6": (lambda f: changed(f, 9, (3, 4, 6)), "a block is not 3 users"),
    "a negative user": (lambda f: changed(f, 0, (-1, 1, 2)), "a block is not 3 users"),
    "a block twice": (lambda f: (f[0], *f), "not distinct and in increasing order"),
    "blocks in another order": (lambda f: f[::-1], "not distinct and in increasing order"),
    "too many blocks": (lambda f: f * 52, "a family of 520 blocks, and 512 are the most"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_family_is_refused_before_any_coalition_is_looked_at(name, monkeypatch):
    p = parameters(5, 3, 1)
    points = construction(p).points()
    good = all_blocks(p)
    check_family(p, points, good)
    spoil, says = MALFORMED[name]
    monkeypatch.setattr(families, "_some_coalitions", None)
    monkeypatch.setattr(families, "block_values", None)
    assert says in refusal(p, points, spoil(good))


def test_twin_without_the_check_a_block_that_is_too_large_meets_no_condition_but_small_ones_do():
    """Only the size keeps the degree: with blocks of N-U users f has degree U, and U answers do not
    decode."""
    p = parameters(5, 3, 1)
    points = construction(p).points()
    large = tuple(combinations(range(1, 6), 4))
    assert lacking_coalition(p, points, large) == (1,)
    small = tuple(combinations(range(1, 6), 2))
    assert lacking_coalition(p, points, small) is None
    for wrong in (large, small):
        assert "a block is not 3 users" in refusal(p, points, wrong)


def test_too_many_coalitions_are_refused_before_any_is_looked_at(monkeypatch):
    p = parameters(30, 20, 10)
    points = construction(p).points()
    monkeypatch.setattr(families, "_some_coalitions", None)
    monkeypatch.setattr(families, "block_values", None)
    monkeypatch.setattr(families, "_families", None)
    assert "30045015 coalitions are too many" in refusal(p, points, ())
    assert find_family(p, points) is None


@pytest.mark.parametrize(("N", "T"), [(100, 2), (512, 1)])
def test_few_coalitions_are_too_many_where_each_takes_long(N, T, monkeypatch):
    """All within the other limits, but for a matrix of D x D each: a gigabyte, and minutes."""
    p = parameters(N, N, T)
    assert families.coalition_count(p) <= families.MOST_COALITIONS
    points = construction(p).points()
    monkeypatch.setattr(families, "_some_coalitions", None)
    monkeypatch.setattr(families, "block_values", None)
    singles = tuple((n,) for n in range(1, N + 1))
    assert "coalitions are too many for keys with D =" in refusal(p, points, singles)
    assert find_family(p, points) is None


@pytest.mark.parametrize(("N", "U", "T"), [(10, 5, 3), (20, 14, 6), (60, 60, 2), (120, 120, 1)])
def test_the_matrices_of_a_few_coalitions_are_in_memory_at_a_time(N, U, T):
    p = parameters(N, U, T)
    sizes = [len(some) for some in families._some_coalitions(p)]
    assert sum(sizes) == families.coalition_count(p)
    assert max(sizes) * p.blocks**2 <= max(1 << 17, p.blocks**2)


def in_front(p: Parameters, users: int) -> Family:
    """All blocks of some users, which come first and have too small a rank, and some others."""
    return tuple(b for b in all_blocks(p) if b[-1] <= users or b[0] > users // 2)


@pytest.mark.parametrize(("N", "U", "T", "users"), [(7, 6, 2, 5), (8, 7, 2, 6), (8, 6, 2, 6)])
def test_families_whose_first_blocks_are_dependent(N, U, T, users, monkeypatch):
    """And the twin, which looks at the first D blocks that a coalition misses and no further."""
    p = parameters(N, U, T, q=257)
    points = construction(p).points()
    verdicts = set()
    for family in (in_front(p, users), in_front(p, users)[:-3], all_blocks(p)):
        expected = first_lacking(p, points, family)
        assert lacking_coalition(p, points, family) == expected
        verdicts.add(expected is None)
    assert verdicts == {True, False}
    usual = families._have_full_rank
    first_only = lambda m, q: usual(m, q) & (m.shape[1] == m.shape[2])  # noqa: E731
    monkeypatch.setattr(families, "_have_full_rank", first_only)
    assert any(
        lacking_coalition(p, points, family) != first_lacking(p, points, family)
        for family in (in_front(p, users), all_blocks(p))
    )


@pytest.mark.parametrize("q", [2, 3, 7, 97, DEFAULT_FIELD])
@pytest.mark.parametrize(("rows", "D"), [(1, 1), (2, 2), (3, 3), (5, 3), (4, 1), (2, 3), (6, 5)])
def test_ranks_are_those_of_plain_integers_however_many_zeros_there_are(q, rows, D):
    """Pivots are seldom zero in a large field: elimination could go wrong there and nobody see."""
    chance = np.random.default_rng([q, rows, D])
    numbers = chance.integers(0, q, (400, rows, D), dtype=np.uint64)
    some = numbers * (chance.random(numbers.shape) < 0.6)
    expected = [oracle.rank(matrix.tolist(), q) == D for matrix in some]
    assert families._have_full_rank(some, q).tolist() == expected
    assert len(set(expected)) == (1 if rows < D else 2)  # of both kinds, where there can be
