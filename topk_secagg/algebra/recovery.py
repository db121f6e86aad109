"""Kernels that find sparse vectors from their moments, many vectors at a time. Loads numba.

LANES vectors lie side by side: column v of an array (rows, LANES) belongs to one of them, so that the compiler can use
the processor's vector instructions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .field import LANES
from .montgomery import (
    HALF,
    LOW,
    ONE,
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

ALL = np.uint64(2**64 - 1)
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)  # its bits from i to i + 5 differ for all i
_POSITION = np.argsort([(int(_DE_BRUIJN) << i) % 2**64 >> 58 for i in range(64)])


@part
def _fill(value: Any, row: Any) -> None:
    """row = value; numpy's assignment would call a function for each row."""
    for v in range(LANES):
        row[v] = value


@part
def _discrepancies(
    now: Any, moments: Any, n: Any, q: Any, q_inverse: Any, low: Any, out: Any
) -> None:
    """out = R^-2 sum_k now_k S_(n-k) mod q."""
    _fill(ZERO, low)
    _fill(ZERO, out)
    for k in range(min(n + 1, len(now))):
        c, s = now[k], moments[n - k]
        for v in range(LANES):
            product = (c[v] & LOW) * (s[v] & LOW)
            low[v] += product
            out[v] += product >> HALF
    for v in range(LANES):
        out[v] = reduced(low[v], out[v], q, q_inverse)


@part
def _lengthen(n: Any, discrepancy: Any, width: Any, longer: Any) -> Any:
    """Where C becomes longer with term n, and how long it is then; `longer` is a mask of 64 bits.

    The result is the largest exponent in C and x B, before and after: x B goes up to n + 1 - width.
    """
    largest = ZERO
    for v in range(LANES):
        largest = max(largest, max(width[v], n + ONE - width[v]))
        grows = (discrepancy[v] != 0) & (width[v] + width[v] <= n)
        longer[v] = ALL if grows else ZERO
        width[v] = n + ONE - width[v] if grows else width[v]
    return np.int64(largest)


@part
def _step(
    c: Any, b: Any, divisor: Any, discrepancy: Any, longer: Any, q: Any, q_inverse: Any, kept: Any
) -> None:
    """One row of C <- d' C - d x B; `kept` is what comes into the next row of x B: C or x B."""
    for v in range(LANES):
        old, other = c[v], b[v]
        c[v] = difference(divisor[v], old, discrepancy[v], other, q, q_inverse)
        kept[v] = other ^ ((other ^ old) & longer[v])


@part
def _locators(moments: Any, q: Any, q_inverse: Any, now: Any, before: Any, state: Any) -> None:
    """Berlekamp and Massey: the shortest C = (c_0, ..., c_w) with sum_k c_k S_(n-k) = 0 for all n >= w; c_0 is not 0.

    C is left in `now`, and w in state[0]; C is cut off where w is too large for it. Without inversions and branches:
    C <- d' C - d x B and, where that is longer, B <- C and d' <- d, else B <- x B. Here d and d' are the
    discrepancies of C and of the earlier B; `before` holds x B, with a row more than C. Only ratios count.
    """
    width, divisor, discrepancy, longer, low = state[0], state[1], state[2], state[3], state[4]
    now[:] = 0
    before[:] = 0
    width[:] = 0
    now[0] = before[1] = divisor[:] = ONE
    last = 0
    for n in range(len(moments)):
        _discrepancies(now[: last + 1], moments, n, q, q_inverse, low, discrepancy)
        last = min(_lengthen(np.uint64(n), discrepancy, width, longer), len(now) - 1)
        for k in range(last, -1, -1):
            _step(now[k], before[k], divisor, discrepancy, longer, q, q_inverse, before[k + 1])
        _fill(ZERO, before[0])
        for v in range(LANES):
            divisor[v] ^= (divisor[v] ^ discrepancy[v]) & longer[v]


@part
def _evaluate(coefficients: Any, points_m: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """sum_k c_k * z^(n-1-k) at every point z, by Horner's rule: the highest of n coefficients is first."""
    out[:] = 0
    for coefficient in coefficients:
        for i in range(len(points_m)):
            out[i] = plus(times(out[i], points_m[i], q, q_inverse), coefficient, q)


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
    """`_evaluate` in every column, of two polynomials at its point z: sums of products with the powers of z."""
    power_mm, first, second = state[2], state[3], state[4]
    _fill(montgomery(montgomery(ONE, q), q), power_mm)
    _fill(ZERO, first)
    _fill(ZERO, second)
    _fill(ZERO, above)
    _fill(ZERO, below)
    for j in range(len(numerator) - 1, -1, -1):
        a, b = numerator[j], derivative[j]
        for v in range(LANES):
            power = power_mm[v]
            one, other = (power & LOW) * (a[v] & LOW), (power & LOW) * (b[v] & LOW)
            first[v] += one
            above[v] += one >> HALF
            second[v] += other
            below[v] += other >> HALF
            power_mm[v] = times(z_m[v], power, q, q_inverse)
    for v in range(LANES):
        above[v] = reduced(first[v], above[v], q, q_inverse)
        below[v] = reduced(second[v], below[v], q, q_inverse)


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


@part
def _divide(above: Any, below_m: Any, q: Any, q_inverse: Any, product_m: Any, power_m: Any) -> None:
    """above <- above / below, by one power for all rows: that of their product (Montgomery's trick)."""
    product_m[0] = montgomery(ONE, q)
    for k in range(len(above)):
        _product(product_m[k], below_m[k], q, q_inverse, product_m[k + 1])
    inverse_m = product_m[len(above)]
    for v in range(LANES):
        power_m[v], inverse_m[v] = inverse_m[v], montgomery(ONE, q)
    exponent = q - np.uint64(2)
    while exponent:
        if exponent & ONE:
            _multiply(power_m, inverse_m, q, q_inverse)
        _square(power_m, q, q_inverse)
        exponent >>= ONE
    for k in range(len(above) - 1, -1, -1):
        _multiply(product_m[k], above[k], q, q_inverse)
        _multiply(inverse_m, above[k], q, q_inverse)
        _multiply(below_m[k], inverse_m, q, q_inverse)


@part
def _sum(
    rows: Any, factors: Any, first: Any, step: Any, q: Any, q_inverse: Any, total: Any, out: Any
) -> None:
    """out = R^-2 sum of factors_k rows_k mod q over k = first, first + step, ..."""
    _fill(ZERO, total)
    _fill(ZERO, out)
    for k in range(first, len(rows), step):
        row, factor = rows[k], factors[k]
        for v in range(LANES):
            product = (factor & LOW) * (row[v] & LOW)
            total[v] += product
            out[v] += product >> HALF
    for v in range(LANES):
        out[v] = reduced(total[v], out[v], q, q_inverse)


@part
def _mark(sums: Any, i_m: Any, q: Any, q_inverse: Any, bit: Any, marks: Any) -> None:
    """Set the bit in marks[t] where A_0 + i^t A_1 + i^2t A_2 + i^3t A_3 = 0, for t = 0, ..., 3."""
    for v in range(LANES):
        even, odd = plus(sums[0, v], sums[2, v], q), plus(sums[1, v], sums[3, v], q)
        marks[0, v] |= bit if even == lift(ZERO - odd, q) else ZERO
        marks[2, v] |= bit if even == odd else ZERO
        even = lift(sums[0, v] - sums[2, v], q)
        odd = times(i_m, lift(sums[1, v] - sums[3, v], q), q, q_inverse)
        marks[1, v] |= bit if even == lift(ZERO - odd, q) else ZERO
        marks[3, v] |= bit if even == odd else ZERO


@part
def _search(
    now: Any, points_m: Any, h: Any, q: Any, q_inverse: Any, marks: Any, powers: Any, sums: Any
) -> None:
    """Mark the roots among the points of z^w C(1/z) in each column: bit i % 64 of marks[i // 64, t] for point t h + i.

    With A_a the terms of C whose exponents are a mod 4, C(z) = A_0(z) + A_1(z) + A_2(z) + A_3(z); z i has the same A_a,
    times i^a, for i = gamma^h of order 4. Four values cost little more than one.
    """
    turns, last = marks.shape[1], len(now) - 1
    marks[:] = 0
    for block in range(len(marks)):
        first = block * 64
        some_m = points_m[first : min(first + 64, h)]
        powers[last] = montgomery(montgomery(ONE, q), q)
        for k in range(last - 1, -1, -1):
            row, before = powers[k], powers[k + 1]
            for i in range(len(some_m)):
                row[i] = times(some_m[i], before[i], q, q_inverse)
        for i in range(len(some_m)):
            bit = ONE << np.uint64(i)
            for a in range(turns):
                _sum(now, powers[:, i], (last - a) % turns, turns, q, q_inverse, sums[4], sums[a])
            if turns == 4:
                _mark(sums, points_m[h], q, q_inverse, bit, marks[block])
            else:
                for v in range(LANES):
                    marks[block, 0, v] |= bit if sums[0, v] == 0 else ZERO


@part
def _roots(marks: Any, v: Any, h: Any, searched: Any, places: Any) -> Any:
    """How many roots are marked in column v among the places searched; these places, in order.

    `places` has room for one more: it is written before it is known whether it counts.
    """
    roots = 0
    for t in range(marks.shape[1]):
        for block in range(len(marks)):
            bits, first = marks[block, t, v], t * h + block * 64
            while bits:
                lowest = bits & (ZERO - bits)
                place = first + _POSITION[(lowest * _DE_BRUIJN) >> np.uint64(58)]
                places[roots] = place
                roots += place < searched
                bits ^= lowest
    return roots


def solve(
    moments: Any, powers_m: Any, searched: Any, h: Any, q: Any, q_inverse: Any,
    weight: Any, places: Any, values: Any, columns: Any, powers: Any, marks: Any,
) -> None:  # fmt: skip
    """The sparse vector behind each row: its weight, or -1 where there is none; its places and values, row by row.

    With z^w C(1/z) = prod_k (z - gamma^k) = C~(z) over the places k, and O the polynomial part of
    C~(z) * sum_j S_j z^(-j-1), the value at place i is O(gamma^i) / C~'(gamma^i) (Forney). In columns both are
    multiplied by z^(most - w), which cancels. C generates all the moments and has w distinct roots: so they are the
    moments of the vector with these values. None of these is zero, since then a shorter C would do.
    """
    count, most = moments.shape[1], moments.shape[1] // 2
    sequence, now, before = columns[0, :count], columns[1, : most + 1], columns[2, : most + 2]
    points_m, numerator, derivative = columns[3, :most], columns[4, :most], columns[5, :most]
    state = columns[8, :5]
    width = state[0]
    end = 0
    for first in range(0, len(moments), LANES):
        rows, start = min(LANES, len(moments) - first), end
        if rows < LANES:
            sequence[:] = 0
        for v in range(rows):
            for j in range(count):
                sequence[j, v] = moments[first + v, j]
        _locators(sequence, q, q_inverse, now, before, state)
        points_m[:] = montgomery(ONE, q)
        longest = 0
        _search(now, powers_m, np.int64(h), q, q_inverse, marks, powers, columns[6, :5])
        for v in range(rows):
            found = _roots(marks, v, np.int64(h), np.int64(searched), places[end:])
            found = found if found == np.int64(width[v]) else -1
            weight[first + v] = found
            longest = max(longest, found)
            for k in range(found):
                points_m[k, v] = powers_m[places[end + k]]
            end += max(0, found)
        for j in range(most):
            _discrepancies(now, sequence, j, q, q_inverse, state[4], numerator[j])
            derivative[j] = np.uint64(most - j) % q
            _multiply(now[j], derivative[j], q, q_inverse)
        above, below_m = columns[6, :longest], columns[7, :longest]
        for k in range(longest):
            _evaluate_columns(
                numerator, derivative, points_m[k], q, q_inverse, state, above[k], below_m[k]
            )
        for v in range(LANES):
            for k in range(max(0, weight[first + v]) if v < rows else 0, longest):
                below_m[k, v] = ONE  # nothing is divided there
        _divide(above, below_m, q, q_inverse, before, state[2])
        for v in range(rows):
            for k in range(weight[first + v]):
                values[start] = above[k, v]
                start += 1


def transform(
    moments: Any,
    powers_m: Any,
    most: Any,
    q: Any,
    q_inverse: Any,
    weight: Any,
    places: Any,
    values: Any,
    scratch: Any,
) -> None:
    """As `solve`, for as many moments as places: value_k = (1/n) sum_j S_j gamma^(-k j)."""
    order, end = moments.shape[1], 0
    inverse_m = power_m(montgomery(np.uint64(order) % q, q), q - np.uint64(2), q, q_inverse)
    backwards, points_m, found = scratch[0, :order], scratch[1, :order], scratch[2, :order]
    for k in range(order):
        points_m[k] = powers_m[(order - k) % order]  # gamma^-k = gamma^(n-k)
    for r in range(len(moments)):
        for j in range(order):
            backwards[j] = moments[r, order - 1 - j]
        _evaluate(backwards, points_m, q, q_inverse, found)
        weight[r] = 0
        for k in range(order):
            weight[r] += found[k] != 0
        if weight[r] > np.int64(most):
            weight[r] = -1
            continue
        for k in range(order):
            if found[k] != 0:
                places[end], values[end] = k, times(inverse_m, found[k], q, q_inverse)
                end += 1
