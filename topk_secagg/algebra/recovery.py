"""Kernels that find sparse vectors from their sketches, many vectors at a time. Loads numba.

LANES vectors lie side by side: column v of an array (rows, LANES) belongs to one of them, so that
the compiler can use the processor's vector instructions. `kernels` says what holds for all kernels,
and `montgomery` explains the arithmetic and lazy sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from .entry import IntegersAt, Size, SymbolsAt, Word, WordsAt, kernel
from .field import COLUMN_BLOCKS, EXTRA_ROWS, LANES, POINTS_AT_ONCE
from .montgomery import (
    HALF,
    LOW,
    ONE,
    TWO,
    ZERO,
    difference,
    lift,
    montgomery,
    part,
    plus,
    power_m,
    reduced,
    times,
)

ALL_BITS = np.uint64(2**64 - 1)

# The six highest bits of _DE_BRUIJN 2^i are different for every i: they tell which bit is set.
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_POSITION = np.argsort([(int(_DE_BRUIJN) << i) % 2**64 >> 58 for i in range(POINTS_AT_ONCE)])


# Rows of LANES numbers


@part
def _fill(value: Any, row: Any) -> None:
    """row = value; numpy's assignment would call a function for each row."""
    for v in range(LANES):
        row[v] = value


@part
def _product(a_m: Any, b: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """out = a b."""
    for v in range(LANES):
        out[v] = times(a_m[v], b[v], q, q_inverse)


@part
def _multiply(a_m: Any, b: Any, q: Any, q_inverse: Any) -> None:
    """b <- a b."""
    for v in range(LANES):
        b[v] = times(a_m[v], b[v], q, q_inverse)


@part
def _square(a_m: Any, q: Any, q_inverse: Any) -> None:
    """a <- a^2."""
    for v in range(LANES):
        a_m[v] = times(a_m[v], a_m[v], q, q_inverse)


# The locator: the shortest recurrence of a sequence


@part
def _discrepancies(
    now: Any, sketch: Any, n: Any, q: Any, q_inverse: Any, total: Any, out: Any
) -> None:
    """out = R^-2 sum_k now_k S_(n-k) mod q."""
    _fill(ZERO, total)
    _fill(ZERO, out)
    for k in range(min(n + 1, len(now))):
        c = now[k]
        s = sketch[n - k]
        for v in range(LANES):
            product = (c[v] & LOW) * (s[v] & LOW)
            total[v] += product
            out[v] += product >> HALF
    for v in range(LANES):
        out[v] = reduced(total[v], out[v], q, q_inverse)


@part
def _lengthen(n: Any, discrepancy: Any, width: Any, longer: Any) -> Any:
    """Where C becomes longer with term n, and how long it is then; `longer` is a mask of 64 bits.

    The result is the largest exponent in C and x B, before and after: x B goes up to n + 1 - width.
    """
    largest = ZERO
    for v in range(LANES):
        other = n + ONE - width[v]
        largest = max(largest, max(width[v], other))
        grows = (discrepancy[v] != 0) & (width[v] + width[v] <= n)
        longer[v] = ALL_BITS if grows else ZERO
        width[v] = other if grows else width[v]
    return np.int64(largest)


@part
def _step(
    c: Any, b: Any, divisor: Any, discrepancy: Any, longer: Any, q: Any, q_inverse: Any, kept: Any
) -> None:
    """One row of C <- d' C - d x B; `kept` is what comes into the next row of x B: C or x B."""
    for v in range(LANES):
        old = c[v]
        other = b[v]
        c[v] = difference(divisor[v], old, discrepancy[v], other, q, q_inverse)
        kept[v] = other ^ ((other ^ old) & longer[v])


@part
def _locators(sketch: Any, q: Any, q_inverse: Any, now: Any, before: Any, state: Any) -> None:
    """The shortest C = (c_0, ..., c_w) with sum_k c_k S_(n-k) = 0 for all n >= w; c_0 is not 0.

    The algorithm of Berlekamp and Massey, without inversions and branches. With d and d' the
    discrepancies of C and of an earlier locator B, each term of the sequence changes

        C <- d' C - d x B,      and where that is longer    B <- C and d' <- d,    else B <- x B.

    Only ratios count, so nothing is divided. C is left in `now`, and w in state[0]; C is cut off
    where w is too large for it. `before` holds x B, with a row more than C.
    """
    width = state[0]
    divisor = state[1]
    discrepancy = state[2]
    longer = state[3]
    total = state[4]
    now[:] = 0
    before[:] = 0
    _fill(ZERO, width)
    _fill(ONE, divisor)
    _fill(ONE, now[0])
    _fill(ONE, before[1])
    last = 0
    for n in range(len(sketch)):
        _discrepancies(now[: last + 1], sketch, n, q, q_inverse, total, discrepancy)
        last = min(_lengthen(np.uint64(n), discrepancy, width, longer), len(now) - 1)
        for k in range(last, -1, -1):
            _step(now[k], before[k], divisor, discrepancy, longer, q, q_inverse, before[k + 1])
        _fill(ZERO, before[0])
        for v in range(LANES):
            divisor[v] ^= (divisor[v] ^ discrepancy[v]) & longer[v]


# Its roots


@part
def _sum(
    rows: Any, factors: Any, first: Any, step: Any, q: Any, q_inverse: Any, total: Any, out: Any
) -> None:
    """out = R^-2 sum of factors_k rows_k mod q over k = first, first + step, ..."""
    _fill(ZERO, total)
    _fill(ZERO, out)
    k = first
    while k < len(rows):  # numba's `range` would look whether the step is zero
        row = rows[k]
        factor = factors[k]
        for v in range(LANES):
            product = (factor & LOW) * (row[v] & LOW)
            total[v] += product
            out[v] += product >> HALF
        k += step
    for v in range(LANES):
        out[v] = reduced(total[v], out[v], q, q_inverse)


@part
def _mark(sums: Any, i_m: Any, q: Any, q_inverse: Any, bit: Any, marks: Any) -> None:
    """Set the bit in marks[t] where A_0 + i^t A_1 + i^2t A_2 + i^3t A_3 = 0, for t = 0, ..., 3."""
    for v in range(LANES):
        even = plus(sums[0, v], sums[2, v], q)
        odd = plus(sums[1, v], sums[3, v], q)
        marks[0, v] |= bit if even == lift(ZERO - odd, q) else ZERO
        marks[2, v] |= bit if even == odd else ZERO
        even = lift(sums[0, v] - sums[2, v], q)
        odd = times(i_m, lift(sums[1, v] - sums[3, v], q), q, q_inverse)
        marks[1, v] |= bit if even == lift(ZERO - odd, q) else ZERO
        marks[3, v] |= bit if even == odd else ZERO


@part
def _tabulate_powers(points_m: Any, q: Any, q_inverse: Any, powers_mm: Any) -> None:
    """powers_mm[last - k, i] = points[i]^k."""
    last = len(powers_mm) - 1
    powers_mm[last] = montgomery(montgomery(ONE, q), q)
    for k in range(last - 1, -1, -1):
        row = powers_mm[k]
        below = powers_mm[k + 1]
        for i in range(len(points_m)):
            row[i] = times(points_m[i], below[i], q, q_inverse)


@part
def _search(
    now: Any, points_m: Any, h: Any, q: Any, q_inverse: Any, marks: Any, powers_mm: Any, sums: Any
) -> None:
    """Mark the roots of z^w C(1/z) among the points, in each column.

    Point t h + i is bit i % 64 of marks[i // 64, t]. With A_a the terms of C whose exponents are
    a mod 4, C(z) = A_0(z) + A_1(z) + A_2(z) + A_3(z); z i has the same A_a, times i^a, for
    i = gamma^h of order 4. So four values cost little more than one. Where `marks` has one turn
    only, each point is tried by itself.
    """
    turns = marks.shape[1]
    last = len(now) - 1
    marks[:] = 0
    for block in range(len(marks)):
        first = block * POINTS_AT_ONCE
        some_m = points_m[first : min(first + POINTS_AT_ONCE, h)]
        _tabulate_powers(some_m, q, q_inverse, powers_mm)
        for i in range(len(some_m)):
            bit = ONE << np.uint64(i)
            for a in range(turns):
                start = (last - a) % turns
                _sum(now, powers_mm[:, i], start, turns, q, q_inverse, sums[4], sums[a])
            if turns == 4:
                _mark(sums, points_m[h], q, q_inverse, bit, marks[block])
            else:
                for v in range(LANES):
                    marks[block, 0, v] |= bit if sums[0, v] == 0 else ZERO


@part
def _roots(marks: Any, v: Any, h: Any, searched: Any, most: Any, places: Any) -> Any:
    """How many roots are marked in column v among the places searched; these places, in order.

    A bit of `marks` stands for a point, as `_search` lays them out. A place is written to `places`
    first, and counted if it is one of those searched. The count stops at most + 1, for which
    `places` has room: the caller refuses that many.
    """
    roots = 0
    for t in range(marks.shape[1]):
        for block in range(len(marks)):
            bits = marks[block, t, v]
            first = t * h + block * POINTS_AT_ONCE
            while bits and roots <= most:
                lowest = bits & (ZERO - bits)
                place = first + _POSITION[(lowest * _DE_BRUIJN) >> np.uint64(58)]
                places[roots] = place
                roots += place < searched
                bits ^= lowest
    return roots


# The values at its roots


@part
def _polynomials(
    now: Any, sequence: Any, q: Any, q_inverse: Any, total: Any, numerator: Any, derivative: Any
) -> None:
    """The coefficients of z^(most-w) O(z) and of z^(most-w) C~'(z), the highest first; see `solve`.

    Instead of z^(most-w) C~' it is the derivative of z^(most-w) C~: at the roots they are the same.
    Those of O are divided by R^2, and the others by R.
    """
    most = len(numerator)
    for j in range(most):
        _discrepancies(now, sequence, j, q, q_inverse, total, numerator[j])
        _fill(np.uint64(most - j) % q, derivative[j])
        _multiply(now[j], derivative[j], q, q_inverse)


@part
def _evaluate_columns(
    numerator: Any,
    derivative: Any,
    z_m: Any,
    q: Any,
    q_inverse: Any,
    state: Any,
    above: Any,
    below: Any,
) -> None:
    """Two polynomials in every column, at its point z: lazy sums of products with powers of z."""
    power_mm = state[2]
    first = state[3]
    second = state[4]
    _fill(montgomery(montgomery(ONE, q), q), power_mm)
    _fill(ZERO, first)
    _fill(ZERO, second)
    _fill(ZERO, above)
    _fill(ZERO, below)
    for j in range(len(numerator) - 1, -1, -1):
        a = numerator[j]
        b = derivative[j]
        for v in range(LANES):
            power = power_mm[v]
            one = (power & LOW) * (a[v] & LOW)
            other = (power & LOW) * (b[v] & LOW)
            first[v] += one
            above[v] += one >> HALF
            second[v] += other
            below[v] += other >> HALF
            power_mm[v] = times(z_m[v], power, q, q_inverse)
    for v in range(LANES):
        above[v] = reduced(first[v], above[v], q, q_inverse)
        below[v] = reduced(second[v], below[v], q, q_inverse)


@part
def _divide(above: Any, below_m: Any, q: Any, q_inverse: Any, products_m: Any, base_m: Any) -> None:
    """above <- above / below, by one power for all rows: that of their product.

    Montgomery's trick, as in `kernels.invert`. products_m[k] is the product of the rows before k.
    """
    one_m = montgomery(ONE, q)
    _fill(one_m, products_m[0])
    for k in range(len(above)):
        _product(products_m[k], below_m[k], q, q_inverse, products_m[k + 1])
    inverse_m = products_m[len(above)]
    for v in range(LANES):
        base_m[v] = inverse_m[v]
        inverse_m[v] = one_m
    exponent = q - TWO
    while exponent:
        if exponent & ONE:
            _multiply(base_m, inverse_m, q, q_inverse)
        _square(base_m, q, q_inverse)
        exponent >>= ONE
    for k in range(len(above) - 1, -1, -1):
        _multiply(products_m[k], above[k], q, q_inverse)
        _multiply(inverse_m, above[k], q, q_inverse)
        _multiply(below_m[k], inverse_m, q, q_inverse)


@part
def _load(sketches: Any, columns: Any) -> None:
    """Sketches as columns; a column without a row is zero."""
    if len(sketches) < LANES:
        columns[:] = 0
    for v in range(len(sketches)):
        for j in range(sketches.shape[1]):
            columns[j, v] = sketches[v, j]


@kernel
def solve(
    sketches_at: SymbolsAt,
    powers_m_at: WordsAt,
    rows: Size,
    count: Size,
    tried: Size,
    searched: Size,
    h: Size,
    turns: Size,
    blocks: Size,
    q: Word,
    q_inverse: Word,
    weight_at: IntegersAt,
    places_at: SymbolsAt,
    values_at: SymbolsAt,
    columns_at: WordsAt,
    powers_mm_at: WordsAt,
    marks_at: WordsAt,
) -> None:
    """The sparse vector behind each sketch of `count` symbols: see `sketches.recover`.

    Written are its weight, or -1 where there is none, and its places and values, row by row.

    powers_m are gamma^k for the `tried` points, in `turns` runs of h points (see `_search`); roots
    among the first `searched` are places. `marks` has room for the roots, `powers_mm` for the
    powers of some points, and `columns` for all that is computed for LANES rows at a time; once the
    locators are known, `earlier` is free, and once they are searched, so are `sums`.

    With z^w C(1/z) = prod_k (z - gamma^k) = C~(z) over the places k, and O the polynomial part of
    C~(z) sum_j S_j z^(-j-1), the value at place i is O(gamma^i) / C~'(gamma^i) (Forney). In columns
    both are multiplied by z^(most - w), which cancels. C generates all the symbols and has w
    distinct roots: so they are the sketch of the vector with these values. None of these is zero,
    since then a shorter C would do.
    """
    most = count // 2
    room = rows * most + 1
    sketches = carray(sketches_at, (rows, count))
    powers_m = carray(powers_m_at, tried)
    weight = carray(weight_at, rows)
    places = carray(places_at, room)
    values = carray(values_at, room)
    columns = carray(columns_at, (COLUMN_BLOCKS, count + EXTRA_ROWS, LANES))
    powers_mm = carray(powers_mm_at, (most + 1, POINTS_AT_ONCE))
    marks = carray(marks_at, (blocks, turns, LANES))
    sequence = columns[0, :count]
    locator = columns[1, : most + 1]
    earlier = columns[2, : most + 2]
    points_m = columns[3, :most]
    numerator = columns[4, :most]
    derivative = columns[5, :most]
    sums = columns[6, :5]
    state = columns[8, :5]
    width = state[0]
    scratch = state[4]
    next_place = 0
    next_value = 0
    for first in range(0, rows, LANES):
        lanes = min(LANES, rows - first)
        _load(sketches[first : first + lanes], sequence)
        _locators(sequence, q, q_inverse, locator, earlier, state)
        _search(locator, powers_m, h, q, q_inverse, marks, powers_mm, sums)
        points_m[:] = montgomery(ONE, q)
        longest = 0
        for v in range(lanes):
            roots = _roots(marks, v, h, searched, most, places[next_place:])
            if roots != np.int64(width[v]) or roots > most:
                weight[first + v] = -1
                continue
            weight[first + v] = roots
            longest = max(longest, roots)
            for k in range(roots):
                points_m[k, v] = powers_m[places[next_place + k]]
            next_place += roots
        _polynomials(locator, sequence, q, q_inverse, scratch, numerator, derivative)
        above = columns[6, :longest]
        below_m = columns[7, :longest]
        for k in range(longest):
            _evaluate_columns(
                numerator, derivative, points_m[k], q, q_inverse, state, above[k], below_m[k]
            )
        for v in range(LANES):
            roots = max(0, weight[first + v]) if v < lanes else 0
            for k in range(roots, longest):
                below_m[k, v] = ONE  # nothing is divided there
        _divide(above, below_m, q, q_inverse, earlier, scratch)
        for v in range(lanes):
            for k in range(weight[first + v]):
                values[next_value] = above[k, v]
                next_value += 1


# As many symbols as places


@part
def _evaluate(coefficients: Any, points_m: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """sum_k c_k z^(n-1-k) at every point z, by Horner's rule: the highest coefficient is first."""
    out[:] = 0
    for k in range(len(coefficients)):
        coefficient = coefficients[k]
        for i in range(len(points_m)):
            out[i] = plus(times(out[i], points_m[i], q, q_inverse), coefficient, q)


@part
def _inverse_m(n: Any, q: Any, q_inverse: Any) -> Any:
    """1 / n in Montgomery form."""
    return power_m(montgomery(np.uint64(n) % q, q), q - TWO, q, q_inverse)


@kernel
def transform(
    sketches_at: SymbolsAt,
    powers_m_at: WordsAt,
    rows: Size,
    order: Size,
    most: Size,
    q: Word,
    q_inverse: Word,
    weight_at: IntegersAt,
    places_at: SymbolsAt,
    values_at: SymbolsAt,
    scratch_at: WordsAt,
) -> None:
    """As `solve`, for as many symbols as places: value_k = (1/n) sum_j S_j gamma^(-k j)."""
    sketches = carray(sketches_at, (rows, order))
    powers_m = carray(powers_m_at, order)
    weight = carray(weight_at, rows)
    places = carray(places_at, rows * most + 1)
    values = carray(values_at, rows * most + 1)
    scratch = carray(scratch_at, (3, order))
    backwards = scratch[0]
    points_m = scratch[1]
    vector = scratch[2]
    inverse_m = _inverse_m(order, q, q_inverse)
    points_m[0] = powers_m[0]
    for k in range(1, order):
        points_m[k] = powers_m[order - k]  # gamma^-k = gamma^(n-k)
    end = 0
    for r in range(rows):
        for j in range(order):
            backwards[j] = sketches[r, order - 1 - j]
        _evaluate(backwards, points_m, q, q_inverse, vector)
        nonzero = 0
        for k in range(order):
            nonzero += vector[k] != 0
        if nonzero > most:
            weight[r] = -1
            continue
        weight[r] = nonzero
        for k in range(order):
            if vector[k] != 0:
                places[end] = k
                values[end] = times(inverse_m, vector[k], q, q_inverse)
                end += 1
