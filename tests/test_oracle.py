"""The oracle itself: its numbers are right. Whole rounds are compared with it in
tests/protocol/test_round.py."""

from fractions import Fraction
from itertools import combinations, product

import oracle
import pytest

PRIMES = (7, 11, 13, 31, 61, 97, 251)


@pytest.mark.parametrize("q", PRIMES)
def test_the_generator_is_the_smallest_and_gamma_has_the_order_of_the_places(q):
    def order(a):
        return next(e for e in range(1, q) if pow(a, e, q) == 1)

    assert oracle.smallest_generator(q) == min(a for a in range(1, q) if order(a) == q - 1)
    for M in range(1, q):
        n = oracle.order_of_places(M, q)
        assert n == min(d for d in range(M, q) if (q - 1) % d == 0)
        assert order(oracle.element_of_order(n, q)) == n


def test_roundings_are_unbiased_and_near():
    for eighths in range(-40, 41):
        chances = oracle.roundings(eighths / 8, 3)
        y = Fraction(3 * eighths, 8)
        assert sum(chances.values()) == 1
        assert sum(v * p for v, p in chances.items()) == y
        assert all(p > 0 and abs(v - y) < 2 for v, p in chances.items())


def test_bucket_top_breaks_ties_to_the_lower_index():
    assert oracle.bucket_top([1, -2, 1, 2, -1, 2, 3], buckets=2, picks=2) == [0, 6, 1, 3]


@pytest.mark.parametrize(("n", "t", "W1"), [(3, 1, 2), (3, 2, 3), (6, 1, 2), (6, 2, 4)])
def test_recover_finds_the_sparse_vector_if_and_only_if_there_is_one(n, t, W1):
    q = 7
    gamma = oracle.element_of_order(n, q)
    known = {}
    for places in combinations(range(n), t):
        for values in product(range(q), repeat=t):
            vector = [0] * n
            for k, v in zip(places, values, strict=True):
                vector[k] = v
            sums = tuple(oracle.power_sums(vector, W1, gamma, q))
            assert known.setdefault(sums, vector) == vector, (
                "no other sparse vector has these power sums"
            )
    for sums in product(range(q), repeat=W1):
        assert oracle.recover(list(sums), n, t, gamma, q) == known.get(sums)


def test_a_table_has_every_coordinate_once():
    vector = list(range(1, 12))
    table = oracle.table_of(vector, buckets=3, W=5)
    assert table == [[1, 4, 7, 10, 0], [2, 5, 8, 11, 0], [3, 6, 9, 0, 0]]


@pytest.mark.parametrize(("length", "blocks", "buckets"), [(9, 2, 2), (16, 1, 1), (40, 4, 4)])
def test_buckets_of_what_is_sent_whole_fill_their_groups(length, blocks, buckets):
    assert oracle.buckets_of_whole(length, blocks) == buckets
