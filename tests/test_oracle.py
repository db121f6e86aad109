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


@pytest.mark.parametrize("rounding", [oracle.roundings, oracle.roundings_never_zero])
def test_roundings_are_unbiased_and_near(rounding):
    for eighths in range(-40, 41):
        chances = rounding(eighths / 8, 3)
        y = Fraction(3 * eighths, 8)
        assert sum(chances.values()) == 1
        assert sum(v * p for v, p in chances.items()) == y
        assert all(p > 0 and abs(v - y) < 2 for v, p in chances.items())
        if rounding is oracle.roundings_never_zero:
            assert 0 not in chances


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
            moments = tuple(oracle.moments_of(vector, W1, gamma, q))
            assert known.setdefault(moments, vector) == vector, (
                "no other sparse vector has these moments"
            )
    for moments in product(range(q), repeat=W1):
        assert oracle.recover(list(moments), n, t, gamma, q) == known.get(moments)
