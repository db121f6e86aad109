"""The search for a family of keys: what it finds does not depend on how busy the machine is."""

import time
from itertools import combinations, count
from types import SimpleNamespace

import pytest
from small_rounds import round_of

from topk_secagg.algebra.field import DEFAULT_FIELD
from topk_secagg.protocol import family
from topk_secagg.protocol.constructions import construction


@pytest.fixture
def busy(monkeypatch):
    """A machine that does other things for hours between any two looks at the clock."""
    hours = count(0, 3600)
    clock = SimpleNamespace(thread_time=time.thread_time, monotonic=lambda: next(hours))
    return lambda: monkeypatch.setattr(family, "time", clock)


def test_a_busy_machine_finds_the_same_families(busy):
    idle = list(family._families(6, 4, 2))
    assert len(idle) == family.SEARCH_TRIES
    busy()
    assert list(family._families(6, 4, 2)) == idle


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


def parameters(N, U, T):
    return round_of(N, U, T, DEFAULT_FIELD, L=4, K=1, P=1, construct="sketch", dealing="keys")


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


def test_a_search_ends_with_a_family_than_which_none_is_smaller(tries):
    # each of 5 coalitions misses two blocks, and a block is missed by two of them
    assert len(found_for(5, 3, 1)) == 5
    assert len(tries) < family.SEARCH_TRIES


def test_a_search_goes_on_while_a_smaller_family_may_exist(tries):
    assert len(found_for(10, 7, 3)) == 29
    assert len(tries) == family.SEARCH_TRIES


def test_another_family_is_taken_if_the_first_does_not_fit_the_points(tries, monkeypatch):
    first = next(iter(family._families(5, 3, 1)))
    lacking = family.lacking_coalition

    def lacking_in_first(p, points, blocks):
        return (1,) if blocks == first else lacking(p, points, blocks)

    monkeypatch.setattr(family, "lacking_coalition", lacking_in_first)
    other = found_for(5, 3, 1)
    assert other is not None
    assert other != first
