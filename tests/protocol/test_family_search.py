"""The search for a family of keys: what it finds does not depend on how busy the machine is."""

import random
import time
from itertools import combinations, count
from types import SimpleNamespace

import pytest
from small_rounds import round_of

from topk_secagg.algebra.field import DEFAULT_FIELD
from topk_secagg.protocol import family
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.messages import Points


@pytest.fixture
def busy(monkeypatch):
    """A machine that does other things for hours between any two looks at the clock."""
    hours = count(0, 3600)
    clock = SimpleNamespace(thread_time=time.thread_time, monotonic=lambda: next(hours))
    return lambda: monkeypatch.setattr(family, "time", clock)


def test_a_busy_machine_finds_the_same_families(busy):
    idle = families_of(6, 4, 2)
    assert len(idle) == family.SEARCH_TRIES
    busy()
    assert families_of(6, 4, 2) == idle


@pytest.fixture
def tries(monkeypatch):
    """How often a family is searched for."""
    searches = []
    search = family._Search

    def counted(*arguments, **options):
        searches.append(arguments)
        return search(*arguments, **options)

    monkeypatch.setattr(family, "_Search", counted)
    monkeypatch.setattr(family, "_found_families", {})
    return searches


def parameters(N, U, T, q=DEFAULT_FIELD):
    return round_of(N, U, T, q, L=4, K=1, P=1, construct="sketch", dealing="keys")


def families_of(N, U, T):
    p = parameters(N, U, T)
    return list(family._families(p, construction(p).points()))


def found_for(N, U, T):
    p = parameters(N, U, T)
    return family.find_family(p, construction(p).points())


@pytest.mark.parametrize(
    ("N", "U", "T"), [(3, 2, 1), (4, 2, 1), (4, 3, 1), (4, 3, 2), (5, 3, 1), (5, 4, 2), (5, 4, 3)]
)
def test_no_family_has_fewer_blocks_than_the_bound(N, U, T):
    p = parameters(N, U, T)
    points = construction(p).points()
    blocks = list(combinations(range(1, N + 1), N - U + 1))
    smaller = list(combinations(blocks, family._least_blocks(p) - 1))
    assert smaller
    assert all(family.lacking_coalition(p, points, few) is not None for few in smaller)


def test_no_time_is_spent_where_every_family_is_too_large(tries):
    # each of 5,005 coalitions misses two blocks, and a block is missed by ten of them
    assert found_for(15, 11, 9) is None
    assert not tries


LARGER = [(11, 6, 3), (11, 8, 4), (12, 9, 3), (13, 7, 3)]


@pytest.mark.parametrize(("N", "U", "T"), LARGER)
@pytest.mark.parametrize("q", [DEFAULT_FIELD, 65521])
def test_one_search_is_enough_for_more_users(N, U, T, q, tries):
    p = parameters(N, U, T, q)
    points = construction(p).points()
    blocks = family.find_family(p, points)
    assert blocks is not None
    family.check_family(p, points, blocks)
    assert len(tries) == 1


@pytest.mark.parametrize(("N", "U", "T"), [(11, 6, 3), (11, 8, 4)])
def test_a_family_for_other_points_may_not_fit(N, U, T):
    p = parameters(N, U, T)
    points = construction(p).points()
    fits = []
    for seed in range(8):
        drawn = random.Random(seed).sample(range(p.field), p.users + p.blocks)
        others = Points(alpha=tuple(drawn[: p.users]), beta=tuple(drawn[p.users :]))
        (blocks,) = family._families(p, others)
        assert family.lacking_coalition(p, others, blocks) is None
        fits.append(family.lacking_coalition(p, points, blocks) is None)
    assert not all(fits)


def test_a_search_ends_with_a_family_than_which_none_is_smaller(tries):
    # each of 5 coalitions misses two blocks, and a block is missed by two of them
    assert len(found_for(5, 3, 1)) == 5
    assert len(tries) < family.SEARCH_TRIES


def test_a_search_goes_on_while_a_smaller_family_may_exist(tries):
    assert len(found_for(10, 7, 3)) == 29
    assert len(tries) == family.SEARCH_TRIES


def test_another_family_is_taken_if_the_first_does_not_fit_the_points(tries, monkeypatch):
    first = families_of(5, 3, 1)[0]
    lacking = family.lacking_coalition

    def lacking_in_first(p, points, blocks):
        return (1,) if blocks == first else lacking(p, points, blocks)

    monkeypatch.setattr(family, "lacking_coalition", lacking_in_first)
    other = found_for(5, 3, 1)
    assert other is not None
    assert other != first
