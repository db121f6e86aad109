"""Small arithmetic over F_q, compared with Python's integers."""

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topk_secagg.algebra.field import (
    DEFAULT_FIELD,
    SMALL_FIELD,
    divisors,
    is_prime,
    smallest_generator,
    stored_type,
    to_field,
    to_signed,
)

LARGEST = 2**32 - 5
PRIMES = (5, 7, 97, SMALL_FIELD, 65537, 2**31 - 1, DEFAULT_FIELD, LARGEST)
primes = st.sampled_from(PRIMES) | st.integers(5, LARGEST).map(oracle.next_prime)


def test_primes_below_twenty_thousand_by_trial_division():
    assert [n for n in range(-3, 20_000) if is_prime(n)] == [
        n for n in range(-3, 20_000) if oracle.is_prime(n)
    ]


def test_primes_around_the_upper_end_by_trial_division():
    around = range(2**32 - 60, 2**32 + 20)
    found = [n for n in around if is_prime(n)]
    assert found == [n for n in around if oracle.is_prime(n)]
    assert max(n for n in found if n < 2**32) == LARGEST


@pytest.mark.parametrize(
    "n",
    [
        561, 1105, 1729, 41041, 825265, 321197185,  # Carmichael numbers
        2047, 3277, 4033, 4681, 8321, 42799,  # strong pseudoprimes to base 2
        703, 2101, 2353, 14089, 20197, 29857,  # to base 7
        341, 1261, 2701, 6541, 6697, 7613,  # to base 61
        79381, 178709, 916327, 2205967, 2269093, 2284453, 3539101, 9006401,  # to two of them
        3215031751,  # to bases 2, 3, 5 and 7
        49, 3721, 65521**2, 65519 * 65521, 61 * 70409299, 2 * 2147483647, 2**32 - 1,
    ],
)  # fmt: skip
def test_composites_that_fool_weaker_tests_are_not_primes(n):
    assert not is_prime(n)


def test_the_fields_of_practice_are_primes_with_many_divisors_below_them():
    assert oracle.is_prime(DEFAULT_FIELD)
    assert len(divisors(DEFAULT_FIELD - 1)) == 1512
    assert oracle.is_prime(SMALL_FIELD)
    assert len(divisors(SMALL_FIELD - 1)) == 120


def test_divisors_are_all_of_them_in_order():
    for n in range(1, 1000):
        assert divisors(n) == tuple(d for d in range(1, n + 1) if n % d == 0)


def test_the_generator_is_the_smallest_one():
    for q in [n for n in range(5, 600) if oracle.is_prime(n)] + list(PRIMES):
        assert smallest_generator(q) == oracle.smallest_generator(q)


@pytest.mark.parametrize(
    ("q", "stored"),
    [
        (5, "u1"),
        (251, "u1"),
        (257, "<u2"),
        (SMALL_FIELD, "<u2"),
        (65537, "<u4"),
        (DEFAULT_FIELD, "<u4"),
    ],
)
def test_symbols_are_stored_in_one_two_or_four_bytes(q, stored):
    assert stored_type(q) == np.dtype(stored)


@given(primes, st.data())
def test_signed_integers_come_back_from_the_field(q, data):
    half = (q - 1) // 2
    signed = data.draw(
        st.lists(st.sampled_from([-half, -1, 0, half]) | st.integers(-half, half), max_size=8)
    )
    symbols = to_field(np.array(signed, dtype=np.int64), q)
    assert symbols.dtype == np.uint32
    assert symbols.tolist() == [v % q for v in signed]
    assert (
        to_signed(symbols, q).tolist() == signed == [oracle.lifted(v, q) for v in symbols.tolist()]
    )
