"""Small arithmetic over F_q, held against Python's integers."""

from __future__ import annotations

import random

import galois
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topk_secagg.algebra.field import (
    DEFAULT_FIELD,
    SYMBOL,
    Montgomery,
    add,
    is_prime,
    to_field,
    to_montgomery,
    to_signed,
)

PRIMES = (5, 7, 97, 65537, 2**31 - 1, 4294967279, DEFAULT_FIELD)
primes = st.sampled_from(PRIMES) | st.integers(5, DEFAULT_FIELD).map(oracle.next_prime)


def test_primes_below_twenty_thousand_by_trial_division() -> None:
    assert [n for n in range(-3, 20_000) if is_prime(n)] == [
        n for n in range(-3, 20_000) if oracle.is_prime(n)
    ]


def test_primes_around_the_upper_end_by_trial_division() -> None:
    around = range(2**32 - 60, 2**32 + 20)
    found = [n for n in around if is_prime(n)]
    assert found == [n for n in around if oracle.is_prime(n)]
    assert max(n for n in found if n < 2**32) == DEFAULT_FIELD == 2**32 - 5


def test_random_numbers_against_galois() -> None:
    chance = random.Random(2)
    numbers = [chance.randrange(2**31, 2**32) | 1 for _ in range(3000)]
    assert [n for n in numbers if is_prime(n)] == [n for n in numbers if galois.is_prime(n)]


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
def test_composites_that_fool_weaker_tests_are_not_primes(n: int) -> None:
    assert not is_prime(n)


@given(primes, st.data())
def test_add_is_addition_modulo_q(q: int, data: st.DataObject) -> None:
    symbols = st.lists(st.sampled_from([0, 1, q - 1]) | st.integers(0, q - 1), min_size=6, max_size=6)
    a, b = data.draw(symbols), data.draw(symbols)
    total = add(np.array(a, dtype=SYMBOL), np.array(b, dtype=SYMBOL), q)
    assert total.dtype == SYMBOL
    assert total.tolist() == [(x + y) % q for x, y in zip(a, b, strict=True)]


@given(primes, st.data())
def test_signed_integers_come_back_from_the_field(q: int, data: st.DataObject) -> None:
    half = (q - 1) // 2
    signed = data.draw(st.lists(st.sampled_from([-half, -1, 0, half]) | st.integers(-half, half), max_size=8))
    symbols = to_field(np.array(signed, dtype=np.int64), q)
    assert symbols.dtype == SYMBOL
    assert symbols.tolist() == [v % q for v in signed]
    assert to_signed(symbols, q).tolist() == signed


@pytest.mark.parametrize("q", [5, 7, 97])
def test_the_centred_lift_is_a_bijection(q: int) -> None:
    lifted = to_signed(np.arange(q, dtype=SYMBOL), q).tolist()
    assert sorted(lifted) == list(range(-(q - 1) // 2, (q - 1) // 2 + 1))
    assert lifted == [oracle.lifted(v, q) for v in range(q)]


@given(primes, st.data())
def test_montgomery_constants_and_form(q: int, data: st.DataObject) -> None:
    constants = Montgomery.of(q)
    assert int(constants.q) == q
    assert int(constants.inverse) * q % 2**32 == 1
    values = data.draw(st.lists(st.sampled_from([0, 1, q - 1]) | st.integers(0, q - 1), max_size=8))
    for kind in (np.uint32, np.uint64):
        form = to_montgomery(np.array(values, dtype=kind), q)
        assert form.dtype == np.uint64
        assert form.tolist() == [v * 2**32 % q for v in values]
