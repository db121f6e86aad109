"""The kernels of moments: places as powers of gamma, their shares and answers. Loads numba.

What a kernel is, and what it may rely on, stands in `kernels`; `recovery` has those that find a
sparse vector from its moments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from .entry import IntegersAt, Size, SymbolsAt, Word, WordsAt, kernel
from .kernels import add_products
from .montgomery import HALF, LOW, ONE, TWO, montgomery, part, plus, power_m, reduced, times


@kernel
def count_places(place_at: SymbolsAt, entries: Size, places: Size, counts_at: IntegersAt) -> None:
    """counts[p] += how many entries have place p."""
    place = carray(place_at, entries)
    counts = carray(counts_at, places)
    for i in range(entries):
        counts[place[i]] += 1


@kernel
def arrange(
    count_at: IntegersAt,
    place_at: SymbolsAt,
    value_at: SymbolsAt,
    rows: Size,
    entries: Size,
    places: Size,
    first: Word,
    buckets: Word,
    room: Size,
    ends_at: IntegersAt,
    indices_at: SymbolsAt,
    values_at: SymbolsAt,
) -> None:
    """Put the entries of some rows behind those of their place that are there already.

    ends[p] is where the next entry of place p goes, unless it is beyond the room. The index of an
    entry is place buckets + row.
    """
    count = carray(count_at, rows)
    place = carray(place_at, entries)
    value = carray(value_at, entries)
    ends = carray(ends_at, places)
    indices = carray(indices_at, room)
    values = carray(values_at, room)
    i = 0
    for row in range(rows):
        for _ in range(count[row]):
            p = place[i]
            end = ends[p]
            if 0 <= end < room:  # nobody else can check this without doing the work
                indices[end] = np.uint64(p) * buckets + first + np.uint64(row)
                values[end] = value[i]
            ends[p] = end + 1
            i += 1


@part
def _scale(factor_m: Any, vector: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """out = factor vector."""
    for j in range(len(out)):
        out[j] = times(factor_m, np.uint64(vector[j]), q, q_inverse)


@part
def _geometric(first: Any, ratio_m: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """out[j] = first ratio^j, twice as many with each step."""
    out[0] = first
    filled = 1
    while filled < len(out):
        _scale(ratio_m, out[:filled], q, q_inverse, out[filled : 2 * filled])
        ratio_m = times(ratio_m, ratio_m, q, q_inverse)
        filled *= 2


@kernel
def geometric(
    first: Word, ratio_m: Word, count: Size, q: Word, q_inverse: Word, out_at: WordsAt
) -> None:
    """out[j] = first ratio^j; there is at least one."""
    _geometric(first, ratio_m, q, q_inverse, carray(out_at, count))


@part
def _power_m(exponent: Any, low_m: Any, high_m: Any, q: Any, q_inverse: Any) -> Any:
    """gamma^exponent from two tables: low_m[e] = gamma^e, and high_m[e] = gamma^(e len(low))."""
    digit = np.uint64(len(low_m))
    return times(low_m[exponent % digit], high_m[exponent // digit], q, q_inverse)


@kernel
def invert(values_at: SymbolsAt, count: Size, q: Word, q_inverse: Word, out_m_at: WordsAt) -> None:
    """The inverses of symbols that are not zero, by one power (Montgomery's trick).

    On the way up out[i] is the product of the values before i; the power inverts the product of
    all; on the way down it loses one value with each step.
    """
    values = carray(values_at, count)
    out_m = carray(out_m_at, count)
    product_m = montgomery(ONE, q)
    for i in range(count):
        out_m[i] = product_m
        product_m = times(product_m, montgomery(np.uint64(values[i]), q), q, q_inverse)
    inverse_m = power_m(product_m, q - TWO, q, q_inverse)
    for i in range(count - 1, -1, -1):
        out_m[i] = times(out_m[i], inverse_m, q, q_inverse)
        inverse_m = times(inverse_m, montgomery(np.uint64(values[i]), q), q, q_inverse)


@kernel
def share(
    place_at: SymbolsAt,
    inverse_m_at: WordsAt,
    point_at: IntegersAt,
    matrix_m_at: WordsAt,
    noise_at: SymbolsAt,
    low_m_at: WordsAt,
    high_m_at: WordsAt,
    points: Size,
    users: Size,
    rows: Size,
    noises: Size,
    width: Size,
    low_size: Size,
    high_size: Size,
    q: Word,
    q_inverse: Word,
    shares_at: SymbolsAt,
    secret_at: WordsAt,
) -> None:
    """See `moments.share`; `secret` is room for the moments of one place."""
    place = carray(place_at, rows)
    inverse_m = carray(inverse_m_at, rows)
    point = carray(point_at, rows)
    matrix_m = carray(matrix_m_at, (points, users, 1 + noises))
    noise = carray(noise_at, (rows, noises, width))
    low_m = carray(low_m_at, low_size)
    high_m = carray(high_m_at, high_size)
    shares = carray(shares_at, (users, rows, width))
    secret = carray(secret_at, width)
    for i in range(rows):
        ratio_m = _power_m(np.uint64(place[i]), low_m, high_m, q, q_inverse)
        inverse = times(inverse_m[i], ONE, q, q_inverse)
        _geometric(inverse, ratio_m, q, q_inverse, secret)
        for m in range(users):
            out = shares[m, i]
            factors_m = matrix_m[point[i], m]
            _scale(factors_m[0], secret, q, q_inverse, out)
            add_products(factors_m[1:], noise[i], q, q_inverse, out)


@kernel
def tabulate(
    exponent_at: SymbolsAt,
    low_m_at: WordsAt,
    high_m_at: WordsAt,
    rows: Size,
    width: Size,
    low_size: Size,
    high_size: Size,
    first: Word,
    q: Word,
    q_inverse: Word,
    table_at: SymbolsAt,
) -> None:
    """Row i of the table: first gamma^(exponent_i j)."""
    exponent = carray(exponent_at, rows)
    low_m = carray(low_m_at, low_size)
    high_m = carray(high_m_at, high_size)
    table = carray(table_at, (rows, width))
    for i in range(rows):
        ratio_m = _power_m(np.uint64(exponent[i]), low_m, high_m, q, q_inverse)
        _geometric(first, ratio_m, q, q_inverse, table[i])


@part
def _add(vector: Any, q: Any, out: Any) -> None:
    """out += vector."""
    for j in range(len(out)):
        out[j] = plus(np.uint64(vector[j]), np.uint64(out[j]), q)


@kernel
def sketch(
    row_at: IntegersAt,
    place_at: SymbolsAt,
    value_at: SymbolsAt,
    low_m_at: WordsAt,
    high_m_at: WordsAt,
    entries: Size,
    rows: Size,
    width: Size,
    low_size: Size,
    high_size: Size,
    q: Word,
    q_inverse: Word,
    out_at: SymbolsAt,
    moments_at: WordsAt,
) -> None:
    """See `moments.add_moments`; `moments` is room for those of one entry."""
    row = carray(row_at, entries)
    place = carray(place_at, entries)
    value = carray(value_at, entries)
    low_m = carray(low_m_at, low_size)
    high_m = carray(high_m_at, high_size)
    out = carray(out_at, (rows, width))
    moments = carray(moments_at, width)
    for i in range(entries):
        ratio_m = _power_m(np.uint64(place[i]), low_m, high_m, q, q_inverse)
        _geometric(np.uint64(value[i]), ratio_m, q, q_inverse, moments)
        _add(moments, q, out[row[i]])


@part
def _add_moved(
    powers: Any, factor: Any, vector: Any, q: Any, q_inverse: Any, total: Any, high: Any
) -> None:
    """Add factor powers[j] vector[j] to lazy sums (see `montgomery`), for every j.

    The powers of gamma move a place; `answer` says by which powers of R these are multiplied.
    """
    for j in range(len(total)):
        moved = times(np.uint64(powers[j]), factor, q, q_inverse)
        product = (moved & LOW) * np.uint64(vector[j])
        total[j] += product
        high[j] += product >> HALF


@part
def _add_reduced(total: Any, high: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """out += R^-2 times a lazy sum."""
    for j in range(len(out)):
        out[j] = plus(reduced(total[j], high[j], q, q_inverse), np.uint64(out[j]), q)


@kernel
def answer(
    g_at: SymbolsAt,
    shift_at: SymbolsAt,
    value_at: SymbolsAt,
    scale_at: SymbolsAt,
    group_at: IntegersAt,
    table_at: SymbolsAt,
    terms: Size,
    length: Size,
    rows: Size,
    table_rows: Size,
    width: Size,
    groups: Size,
    out_width: Size,
    q: Word,
    q_inverse: Word,
    out_at: SymbolsAt,
    total_at: WordsAt,
    high_at: WordsAt,
) -> None:
    """See `moments.answer`: g (terms, length), and `rows` of the terms are of one user.

    The table (table_rows, width) has R^4 gamma^(shift j). A product with the factor divides that by
    R, the factor itself was divided by R, and the sum is divided by R^2. The width may be more than
    is written to `out` (groups, out_width): whole vectors are faster.
    """
    g = carray(g_at, (terms, length))
    shift = carray(shift_at, terms)
    value = carray(value_at, terms)
    scale = carray(scale_at, rows)
    group = carray(group_at, rows)
    table = carray(table_at, (table_rows, width))
    out = carray(out_at, (groups, out_width))
    total = carray(total_at, width)
    high = carray(high_at, width)
    end = 0
    while end < rows:
        first = end
        while end < rows and group[end] == group[first]:
            end += 1
        total[:] = 0
        high[:] = 0
        start = 0
        while start < terms:  # numba's `range` would look whether the step is zero
            for k in range(first, end):
                i = start + k
                factor = times(np.uint64(value[i]), np.uint64(scale[k]), q, q_inverse)
                _add_moved(table[shift[i]], factor, g[i], q, q_inverse, total, high)
            start += rows
        _add_reduced(total, high, q, q_inverse, out[group[first]])
