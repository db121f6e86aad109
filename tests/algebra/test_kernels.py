"""The compiled kernels are exact for every q: held against Python's integers, at the extremes too."""

from __future__ import annotations

import random

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topk_secagg.algebra.field import DEFAULT_FIELD
from topk_secagg.algebra.kernels import eliminate, encode, inner_products, matmul

PRIMES = (5, 7, 97, 65537, 2**31 - 1, 4294967279, DEFAULT_FIELD)
primes = st.sampled_from(PRIMES) | st.integers(5, DEFAULT_FIELD).map(oracle.next_prime)
small = st.integers(1, 6)


class Values:
    """Arrays of symbols: `mixed` has the extreme ones often, the others are one symbol throughout."""

    def __init__(self, q: int, kind: str, seed: int) -> None:
        self.q, self.kind, self.chance = q, kind, random.Random(seed)

    def symbol(self) -> int:
        if self.kind == "mixed":
            return self.chance.choice([0, 1, self.q - 1, self.chance.randrange(self.q)])
        return {"largest": self.q - 1, "zero": 0, "random": self.chance.randrange(self.q)}[self.kind]

    def array(self, *shape: int, dtype: type = np.uint32) -> np.ndarray:
        size = int(np.prod(shape))
        return np.array([self.symbol() for _ in range(size)], dtype=dtype).reshape(shape)

    def below(self, bound: int, count: int) -> np.ndarray:
        return np.array([self.chance.randrange(bound) for _ in range(count)], dtype=np.int64)


kinds = st.sampled_from(["mixed", "largest", "zero", "random"])


def plain_matmul(a: np.ndarray, b: np.ndarray, q: int) -> list[list[int]]:
    rows, columns = a.tolist(), list(zip(*b.tolist(), strict=True))
    return [[sum(x * y for x, y in zip(row, c, strict=True)) % q for c in columns] for row in rows]


def check_matmul(values: Values, rows: int, inner: int, width: int) -> None:
    a, b = values.array(rows, inner, dtype=np.uint64), values.array(inner, width)
    product = matmul(a, b, values.q)
    assert product.dtype == np.uint32
    assert product.tolist() == plain_matmul(a, b, values.q)


@pytest.mark.parametrize("kind", ["mixed", "largest", "zero", "random"])
@pytest.mark.parametrize("q", PRIMES)
def test_matmul_is_the_product_in_the_field(q: int, kind: str) -> None:
    check_matmul(Values(q, kind, 1), 4, 9, 11)


@given(primes, kinds, small, small, small, st.integers(0, 999))
def test_matmul_of_any_shape(q: int, kind: str, rows: int, inner: int, width: int, seed: int) -> None:
    check_matmul(Values(q, kind, seed), rows, inner, width)


def test_matmul_of_no_rows_is_empty() -> None:
    empty = matmul(np.empty((0, 3), dtype=np.uint64), np.ones((3, 5), dtype=np.uint32), 97)
    assert empty.shape == (0, 5)


@pytest.mark.parametrize("q", PRIMES)
def test_a_long_sum_of_the_largest_products_does_not_overflow(q: int) -> None:
    check_matmul(Values(q, "largest", 0), 1, 3000, 1)


@pytest.mark.parametrize("q", [5, 7, 97])
def test_matmul_multiplies_every_pair_of_symbols_exactly(q: int) -> None:
    every = np.arange(q)
    product = matmul(every.astype(np.uint64).reshape(q, 1), every.astype(np.uint32).reshape(1, q), q)
    assert product.tolist() == [[a * b % q for b in range(q)] for a in range(q)]


def check_encode(values: Values, users: int, blocks: int, noises: int, rows: int, width: int) -> None:
    q = values.q
    matrix = values.array(users, blocks + noises, dtype=np.uint64)
    noise = values.array(rows, noises, width)
    slot, place = values.below(blocks, rows), values.below(width, rows)
    scale = values.array(rows)
    shares = np.full((users, rows, width), 0xFFFFFFFF, dtype=np.uint32)
    encode(matrix, noise, slot, place, scale, q, shares)
    expected = []
    for m in range(users):
        of_user = []
        for i in range(rows):
            vectors = [[0] * width for _ in range(blocks)] + noise[i].tolist()
            vectors[slot[i]][place[i]] = int(scale[i])
            factors = matrix[m].tolist()
            of_user.append(
                [sum(c * v[j] for c, v in zip(factors, vectors, strict=True)) % q for j in range(width)]
            )
        expected.append(of_user)
    assert shares.tolist() == expected


@pytest.mark.parametrize("kind", ["mixed", "largest", "zero", "random"])
@pytest.mark.parametrize("q", PRIMES)
def test_encode_is_the_whole_matrix_product_of_blocks_and_noise(q: int, kind: str) -> None:
    check_encode(Values(q, kind, 2), users=4, blocks=3, noises=2, rows=5, width=7)


@given(primes, kinds, small, small, small, small, small, st.integers(0, 999))
def test_encode_of_any_shape(
    q: int, kind: str, users: int, blocks: int, noises: int, rows: int, width: int, seed: int
) -> None:
    check_encode(Values(q, kind, seed), users, blocks, noises, rows, width)


def test_encode_writes_into_part_of_a_buffer_and_nowhere_else() -> None:
    values = Values(97, "mixed", 3)
    buffer = np.full((3, 6, 4), 1234, dtype=np.uint32)
    matrix, noise = values.array(3, 2, dtype=np.uint64), values.array(2, 1, 4)
    zeros, scale = np.zeros(2, dtype=np.int64), values.array(2)
    encode(matrix, noise, zeros, zeros, scale, 97, buffer[:, :2])
    whole = np.empty((3, 2, 4), dtype=np.uint32)
    encode(matrix, noise, zeros, zeros, scale, 97, whole)
    assert np.array_equal(buffer[:, :2], whole)
    assert np.all(buffer[:, 2:] == 1234)


def check_eliminate(values: Values, rows: int, groups: int, width: int, rotation: np.ndarray) -> None:
    q = values.q
    f, h, x = values.array(rows, width), values.array(rows, width), values.array(rows)
    group = np.sort(values.below(groups, rows))
    total = values.array(groups, width)
    expected = total.tolist()
    for i in range(rows):
        out = expected[group[i]]
        for j in range(width):
            to = (j + int(rotation[i])) % width
            out[to] = (out[to] + int(x[i]) * int(f[i, j]) - int(h[i, j])) % q
    eliminate(f, h, x, rotation, group, q, total)
    assert total.tolist() == expected


@pytest.mark.parametrize("kind", ["mixed", "largest", "zero", "random"])
@pytest.mark.parametrize("q", PRIMES)
def test_eliminate_adds_x_f_minus_h(q: int, kind: str) -> None:
    check_eliminate(Values(q, kind, 4), 6, 2, 7, np.zeros(6, dtype=np.int64))


@pytest.mark.parametrize("q", PRIMES)
def test_eliminate_rotates_by_every_amount(q: int) -> None:
    check_eliminate(Values(q, "mixed", 5), 9, 3, 9, np.arange(9, dtype=np.int64))


@given(primes, kinds, small, small, small, st.integers(0, 999))
def test_eliminate_of_any_shape(q: int, kind: str, rows: int, groups: int, width: int, seed: int) -> None:
    values = Values(q, kind, seed)
    check_eliminate(values, rows, groups, width, values.below(width, rows))


@pytest.mark.parametrize("q", PRIMES)
def test_eliminate_subtracts_the_largest_mask_from_nothing(q: int) -> None:
    total = np.zeros((1, 1), dtype=np.uint32)
    one, zero = np.array([[q - 1]], dtype=np.uint32), np.zeros(1, dtype=np.int64)
    eliminate(
        np.zeros((1, 1), dtype=np.uint32), one, np.array([q - 1], dtype=np.uint32), zero, zero, q, total
    )
    assert total.tolist() == [[1]]


def check_inner_products(values: Values, rows: int, columns: int, width: int) -> None:
    a, b = values.array(rows, width), values.array(columns, width)
    found = inner_products(a, b, values.q)
    assert found.dtype == np.uint32
    assert found.tolist() == plain_matmul(a, b.T, values.q)


@pytest.mark.parametrize("kind", ["mixed", "largest", "zero", "random"])
@pytest.mark.parametrize("q", PRIMES)
def test_inner_products_are_those_of_the_field(q: int, kind: str) -> None:
    check_inner_products(Values(q, kind, 6), 3, 2, 2000)


@given(primes, kinds, small, small, small, st.integers(0, 999))
def test_inner_products_of_any_shape(
    q: int, kind: str, rows: int, columns: int, width: int, seed: int
) -> None:
    check_inner_products(Values(q, kind, seed), rows, columns, width)
