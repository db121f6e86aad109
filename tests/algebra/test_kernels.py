"""The compiled kernels are exact for every q: compared with Python's integers, also at the
extremes."""

import random

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topk_secagg.algebra.field import (
    DEFAULT_FIELD,
    PIECE,
    SMALL_FIELD,
    montgomery_constants,
    to_montgomery,
)
from topk_secagg.algebra.linear import combine, eliminate, encode, weighted_sums
from topk_secagg.algebra.montgomery import montgomery, plus, power_m, times

LARGEST = 2**32 - 5
PRIMES = (5, 7, 97, SMALL_FIELD, 65537, 2**31 - 1, DEFAULT_FIELD, LARGEST)
primes = st.sampled_from(PRIMES) | st.integers(5, LARGEST).map(oracle.next_prime)
small = st.integers(1, 6)


class Values:
    """Arrays of symbols: `mixed` has the extreme ones often, the others are one symbol
    throughout."""

    def __init__(self, q: int, kind: str, seed: int) -> None:
        self.q = q
        self.kind = kind
        self.chance = random.Random(seed)

    def symbol(self) -> int:
        if self.kind == "mixed":
            return self.chance.choice([0, 1, self.q - 1, self.chance.randrange(self.q)])
        return {"largest": self.q - 1, "zero": 0, "random": self.chance.randrange(self.q)}[
            self.kind
        ]

    def array(self, *shape: int, dtype: type = np.uint32) -> np.ndarray:
        size = int(np.prod(shape))
        return np.array([self.symbol() for _ in range(size)], dtype=dtype).reshape(shape)

    def below(self, bound: int, count: int) -> np.ndarray:
        return np.array([self.chance.randrange(bound) for _ in range(count)], dtype=np.int64)


kinds = st.sampled_from(["mixed", "largest", "zero", "random"])


# Single products


def symbols(q: int) -> st.SearchStrategy[int]:
    return st.sampled_from([0, 1, q - 1]) | st.integers(0, q - 1)


@given(primes, st.data())
def test_montgomery_products_sums_and_powers_are_those_of_the_field(q, data):
    a = data.draw(symbols(q))
    b = data.draw(symbols(q))
    exponent = data.draw(st.integers(0, 2**32))
    modulus, inverse = map(np.uint64, montgomery_constants(q))
    assert (int(modulus), int(inverse) * q % 2**32) == (q, 1)
    for kind in (np.uint32, np.uint64):
        form = to_montgomery(np.array([a, b], dtype=kind), q)
        assert form.dtype == np.uint64
        assert form.tolist() == [a * 2**32 % q, b * 2**32 % q]
    a_m = np.uint64(montgomery(np.uint64(a), modulus))
    one = np.uint64(1)
    assert times(a_m, np.uint64(b), modulus, inverse) == a * b % q
    assert plus(np.uint64(a), np.uint64(b), modulus) == (a + b) % q
    power = np.uint64(power_m(a_m, np.uint64(exponent), modulus, inverse))
    assert times(power, one, modulus, inverse) == pow(a, exponent, q)


# Blocks from answers


def check_combine(
    values: Values, points: int, users: int, groups: int, width: int, blocks: int
) -> None:
    matrix = values.array(points, users, dtype=np.uint64)
    y = values.array(users, groups, width)
    row, group = values.below(points, blocks), values.below(groups, blocks)
    found = combine(matrix, y, row, group, values.q)
    assert found.dtype == np.uint32
    factors, answers = matrix.tolist(), y.tolist()
    assert found.tolist() == [
        [
            sum(factors[r][u] * answers[u][g][j] for u in range(users)) % values.q
            for j in range(width)
        ]
        for r, g in zip(row.tolist(), group.tolist(), strict=True)
    ]


@given(primes, kinds, small, small, small, small, st.integers(0, 6), st.integers(0, 999))
def test_combine_is_a_row_of_the_matrix_times_a_group_of_the_answers(
    q, kind, points, users, groups, width, blocks, seed
):
    check_combine(Values(q, kind, seed), points, users, groups, width, blocks)


@pytest.mark.parametrize("q", PRIMES)
def test_a_long_sum_of_the_largest_products_does_not_overflow(q):
    check_combine(Values(q, "largest", 0), 1, 3000, 1, 1, 1)


@pytest.mark.parametrize("q", [5, 7, 97])
def test_every_pair_of_symbols_is_multiplied_exactly(q):
    matrix = np.arange(q, dtype=np.uint64).reshape(q, 1)
    y = np.arange(q, dtype=np.uint32).reshape(1, 1, q)
    product = combine(matrix, y, np.arange(q), np.zeros(q, dtype=np.int64), q)
    assert product.tolist() == [[a * b % q for b in range(q)] for a in range(q)]


# Shares of selectors


@given(primes, kinds, small, small, small, small, small, st.integers(0, 999))
def test_encode_is_the_whole_matrix_product_of_blocks_and_noise(
    q, kind, users, blocks, noises, rows, width, seed
):
    values = Values(q, kind, seed)
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
                [
                    sum(c * v[j] for c, v in zip(factors, vectors, strict=True)) % q
                    for j in range(width)
                ]
            )
        expected.append(of_user)
    assert shares.tolist() == expected


def test_a_kernel_refuses_arrays_that_it_cannot_write_to():
    values = Values(97, "mixed", 3)
    buffer = np.full((3, 6, 4), 1234, dtype=np.uint32)
    matrix = values.array(3, 2, dtype=np.uint64)
    noise = values.array(2, 1, 4)
    zeros = np.zeros(2, dtype=np.int64)
    scale = values.array(2)
    fixed = np.full((3, 2, 4), 1234, dtype=np.uint32)
    fixed.flags.writeable = False
    for shares in (buffer[:, :2], fixed):
        with pytest.raises(ValueError, match="contiguous"):
            encode(matrix, noise, zeros, zeros, scale, 97, shares)
    assert np.all(buffer == 1234)
    assert np.all(fixed == 1234)


# Answers


@given(primes, kinds, st.integers(0, 6), small, st.integers(0, 999))
def test_eliminate_adds_x_f_minus_h(q, kind, rows, width, seed):
    values = Values(q, kind, seed)
    f = values.array(rows, width)
    h = values.array(rows, width)
    x = values.array(rows)
    total = values.array(width)
    expected = [
        (int(total[j]) + sum(int(x[i]) * int(f[i, j]) - int(h[i, j]) for i in range(rows))) % q
        for j in range(width)
    ]
    eliminate(f, h, x, q, total)
    assert total.tolist() == expected


# Random combinations


MOST = 2**22 - 1


def check_weighted_sums(y: np.ndarray, factors: np.ndarray, q: int) -> None:
    found = weighted_sums(y, factors, q)
    expected = np.zeros(found.shape, object)
    for (u, j), symbol in np.ndenumerate(y):
        for c in range(len(factors)):
            expected[u, c, j % PIECE] += int(symbol) * int(factors[c, j // PIECE])
    assert found.tolist() == (expected % q).tolist()


@pytest.mark.parametrize("kind", ["mixed", "largest"])
@pytest.mark.parametrize("q", PRIMES)
@pytest.mark.parametrize("pieces", [1, 999, 1000, 1001, 2001])
def test_sums_of_long_rows_do_not_overflow(q, kind, pieces):
    size = pieces * PIECE - 1  # the last piece is shorter
    check_weighted_sums(Values(q, kind, 6).array(1, size), np.full((2, pieces), MOST, np.uint32), q)


@given(primes, kinds, small, small, st.integers(0, 3 * PIECE), st.integers(0, 999))
def test_weighted_sums_of_any_shape(q, kind, rows, columns, width, seed):
    values = Values(q, kind, seed)
    pieces = -(-width // PIECE)
    factors = values.below(MOST + 1, columns * pieces).astype(np.uint32).reshape(columns, pieces)
    check_weighted_sums(values.array(rows, width), factors, q)
