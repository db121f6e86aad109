"""A question for each kernel whose answer is known; `calls` asks it when it loads the kernel.

Each function here has the name of a kernel, and says whether the kernel answers rightly. Rows are
longer than the processor's vectors, and not a multiple of them, so that every part of a vectorised
loop is used. The right answers come from numpy and from Python's integers. What a kernel writes to
is zero before, so that a kernel that does nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from . import native
from .calls import DOUBLE, SINGLE
from .field import DEFAULT_FIELD, PIECE, Symbols, to_montgomery

Q = DEFAULT_FIELD
R = 2**32
WIDTH = 37
ORDER = 40
GAMMA = 1534276952  # of that order in F_Q


def accept() -> bool:
    """Words of which three are rejected, the first and the last among them, with a long run of
    others between them."""
    count = 4 * WIDTH
    words = _symbols(count)
    words[[0, 5, count - 1]] = Q
    out = np.zeros(count, np.uint32)
    accepted = native.accept(words, Q, out)
    return accepted == count - 3 and np.array_equal(out[:accepted], words[words < Q])


def add_streams() -> bool:
    """Two streams at two points. The first has words to spare, and one that is rejected; the second
    gave three symbols before, and has too few words."""
    count = WIDTH - 2
    words = _symbols(2, WIDTH)
    words[0, 1] = Q
    words[1, WIDTH - 10 :] = Q
    matrix = _symbols(2, 2).astype(np.uint64)
    filled = np.array([0, 3])
    sums = np.zeros((2, 2, count), np.uint64)
    read = native.add_streams(words, matrix, limit=Q, filled=filled, sums=sums)
    symbols = np.zeros((2, count), np.uint64)
    symbols[0] = words[0, words[0] < Q][:count]
    symbols[1, 3 : WIDTH - 7] = words[1, : WIDTH - 10]
    expected = _product(matrix[:, :, None], symbols).sum(axis=1)
    counted = (read.tolist(), filled.tolist())
    total, high = sums
    low = total - (high << np.uint64(32))
    reduced = (_product(high % np.uint64(Q), R % Q) + low % np.uint64(Q)) % np.uint64(Q)
    return counted == ([WIDTH - 1, WIDTH], [count, WIDTH - 7]) and np.array_equal(
        reduced, expected % Q
    )


def reduce_sums() -> bool:
    """A lazy sum at two points."""
    a = _symbols(2, WIDTH).astype(np.uint64)
    b = a[::-1] * np.uint64(2) + np.uint64(1)
    sums = np.stack([a * b, (a * b) >> np.uint64(32)])
    out = np.zeros((2, WIDTH), np.uint32)
    native.reduce_sums(sums, q=Q, out=out)
    inverse = pow(R, -2, Q)
    return np.array_equal(out, _product(_product(a, b), inverse))


def encode() -> bool:
    """Two users, and two rows of two blocks and two noises."""
    matrix = _symbols(2, 4)
    noise = _symbols(2, 2, WIDTH)
    slot = np.array([1, 0])
    place = np.array([0, WIDTH - 1])
    scale = _symbols(2)
    shares = np.zeros((2, 2, WIDTH), np.uint32)
    native.encode(
        dense_m=to_montgomery(matrix[:, 2:], Q),
        sparse_m=to_montgomery(matrix[:, :2], Q),
        noise=noise,
        slot=slot,
        place=place,
        scale=scale,
        q=Q,
        shares=shares,
    )
    expected = _product(matrix[:, None, 2:, None], noise[None]).sum(axis=2)
    for i in range(2):
        expected[:, i, place[i]] += _product(matrix[:, slot[i]], scale[i])
    return np.array_equal(shares, expected % Q)


def eliminate() -> bool:
    """Three rows."""
    f = _symbols(3, WIDTH)
    h = _symbols(3, WIDTH)[::-1].copy()
    x = _symbols(3)
    total = _symbols(WIDTH)
    expected = total + (_product(x[:, None], f) + (Q - h.astype(np.uint64))).sum(axis=0)
    native.eliminate(f, h, x_m=to_montgomery(x, Q), q=Q, total=total)
    return np.array_equal(total, expected % Q)


def combine() -> bool:
    """Four users: three that are added at once, and one more."""
    matrix = _symbols(2, 4)
    y = _symbols(4, 3, WIDTH)
    row = np.array([1, 0, 1])
    group = np.array([2, 0, 1])
    out = np.zeros((3, WIDTH), np.uint32)
    twice = to_montgomery(to_montgomery(matrix, Q), Q)
    native.combine(matrix_mm=twice, y=y, row=row, group=group, q=Q, out=out)
    expected = _product(matrix[row][:, :, None], y[:, group].swapaxes(0, 1)).sum(axis=1)
    return np.array_equal(out, expected % Q)


def weigh() -> bool:
    """Two pieces and a part of a third."""
    y = _symbols(2, 2 * PIECE + 5)
    factors = _symbols(2, 3) >> np.uint32(10)
    sums = np.zeros((2, 2, PIECE), np.uint64)
    native.weigh(y, factors, q=Q, sums=sums)
    pieces = np.zeros((2, 3 * PIECE), np.uint32)
    pieces[:, : y.shape[1]] = y
    expected = _product(factors[None, :, :, None], pieces.reshape(2, 1, 3, PIECE)).sum(axis=2)
    return np.array_equal(sums, expected % Q)


def count_places() -> bool:
    """Four entries at three places."""
    counts = np.array([1, 0, 0])
    native.count_places(np.array([2, 0, 2, 2], np.uint32), counts)
    return np.array_equal(counts, [2, 0, 3])


def arrange() -> bool:
    """Rows 5 and 6 of ten, with three entries at two places."""
    ends = np.array([1, 2])
    indices = np.zeros(4, np.uint32)
    values = np.zeros(4, np.uint32)
    native.arrange(
        count=np.array([1, 2]),
        place=np.array([1, 0, 1], np.uint32),
        value=np.array([7, 8, 9], np.uint32),
        first=5,
        buckets=10,
        ends=ends,
        indices=indices,
        values=values,
    )
    answer = (ends.tolist(), indices.tolist(), values.tolist())
    return answer == ([2, 4], [0, 6, 15, 16], [0, 8, 7, 9])


def geometric() -> bool:
    """The powers of a number."""
    out = np.zeros(WIDTH, np.uint64)
    native.geometric(3, GAMMA * R % Q, q=Q, out=out)
    return out.tolist() == [3 * power % Q for power in _powers(WIDTH)]


def sketch() -> bool:
    """Three entries, two of them in one row."""
    row = np.array([1, 0, 1])
    place = np.array([3, 0, 39], np.uint32)
    value = _symbols(3)
    out = _symbols(2, WIDTH)
    expected = out.astype(np.uint64)
    for i in range(3):
        expected[row[i]] += _product(value[i], _ones(place)[i])
    native.sketch(row=row, place=place, value=value, powers_m=_tables(), q=Q, out=out)
    return np.array_equal(out, expected % Q)


def solve() -> bool:
    """Vectors with none, one and two entries, and a sketch that no such vector has."""
    sketches = np.zeros((4, 4), np.uint32)
    sketches[1] = _product(_ones(np.array([36]))[0, :4], 5)
    sketches[2] = (_ones(np.array([1]))[0, :4] + _product(_ones(np.array([17]))[0, :4], 7)) % Q
    sketches[3, 3] = 1
    powers_m = to_montgomery(np.array(_powers(ORDER)), Q)
    return all(
        _found(sketches, powers_m, turns) == ([0, 1, 2, -1], [36, 1, 17], [5, 1, 7])
        for turns in (1, 4)
    )


def _found(
    sketches: Symbols, powers_m: native.Words, turns: int
) -> tuple[list[int], list[int], list[int]]:
    """What `solve` finds among the first 37 places."""
    weight = np.zeros(4, np.int64)
    place = np.zeros(9, np.uint32)
    value = np.zeros(9, np.uint32)
    native.solve(
        sketches=sketches,
        powers_m=powers_m,
        searched=37,
        turns=turns,
        q=Q,
        weight=weight,
        place=place,
        value=value,
    )
    return weight.tolist(), place[:3].tolist(), value[:3].tolist()


def transform() -> bool:
    """A vector with two entries, and one with more than two."""
    sketches = np.zeros((2, ORDER), np.uint32)
    first, second = _ones(np.array([2, 39]), ORDER)
    sketches[0] = (_product(first, 5) + _product(second, Q - 1)) % Q
    sketches[1, 0] = 1  # the same everywhere
    weight = np.zeros(2, np.int64)
    place = np.zeros(5, np.uint32)
    value = np.zeros(5, np.uint32)
    native.transform(
        sketches=sketches,
        powers_m=to_montgomery(np.array(_powers(ORDER)), Q),
        most=2,
        q=Q,
        weight=weight,
        place=place,
        value=value,
    )
    answer = (weight.tolist(), place[:2].tolist(), value[:2].tolist())
    return answer == ([2, -1], [2, 39], [5, Q - 1])


def bucket_top_of_singles() -> bool:
    """Single precision."""
    return _bucket_top(native.bucket_top_of_singles, SINGLE)


def bucket_top_of_doubles() -> bool:
    """Double precision."""
    return _bucket_top(native.bucket_top_of_doubles, DOUBLE)


def _bucket_top(kernel: Callable[..., native.Indices], kind: np.dtype[Any]) -> bool:
    """The two largest magnitudes of each of 20 buckets, the last of which have a place less; two in
    bucket 1 are equal, and bucket 2 has one above its limit."""
    gradient = (np.arange(77) * 29 % 77 - 38).astype(kind)
    gradient[21] = -39
    gradient[61] = 39
    limits = np.full(20, -1, kind)
    limits[2] = sorted(abs(gradient[2::20]))[-2]
    places = np.full((20, 2), -1)
    counts = kernel(gradient, limits, places)
    expected = [
        sorted(range(len(gradient[b::20])), key=lambda k: (-abs(gradient[b::20][k]), k))[:2]
        for b in range(20)
    ]
    expected[2][1] = -1
    return counts.tolist() == [2, 2, 1] + [2] * 17 and places.tolist() == expected


# What questions and answers are made of


def _symbols(*shape: int) -> Symbols:
    """Symbols of all sizes, the largest among them."""
    count = np.arange(int(np.prod(shape)), dtype=np.uint64)
    return (Q - 1 - count * np.uint64(2654435769) % Q).astype(np.uint32).reshape(shape)


def _product(a: npt.NDArray[Any] | int, b: npt.NDArray[Any] | int) -> npt.NDArray[np.uint64]:
    """a b mod q, entry by entry; also of single numbers, which numpy 1 would make fractions."""
    product: npt.NDArray[np.uint64] = np.asarray(a, np.uint64) * np.asarray(b, np.uint64)
    return product % np.uint64(Q)


def _powers(count: int) -> list[int]:
    """gamma^0, gamma^1, ..."""
    return [pow(GAMMA, j, Q) for j in range(count)]


def _ones(places: npt.NDArray[Any], count: int = WIDTH) -> npt.NDArray[np.uint64]:
    """Row i: gamma^(place_i j), the sketch of a one at this place."""
    powers = np.array(_powers(ORDER), np.uint64)
    exponents = places.astype(np.int64)[:, None] * np.arange(count) % ORDER
    sketches: npt.NDArray[np.uint64] = powers[exponents]
    return sketches


def _tables() -> tuple[native.Words, native.Words]:
    """gamma^0, ..., gamma^7, and gamma^0, gamma^8, ..., gamma^56."""
    low = [pow(GAMMA, e, Q) for e in range(8)]
    high = [pow(GAMMA, 8 * e, Q) for e in range(8)]
    return to_montgomery(np.array(low), Q), to_montgomery(np.array(high), Q)
