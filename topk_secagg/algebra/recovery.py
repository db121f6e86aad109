"""Kernels that find sparse vectors from their moments, many vectors at a time. Loads numba.

LANES vectors lie side by side: column v of an array (rows, LANES) belongs to one of them, so that the compiler can use
the processor's vector instructions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .field import LANES
from .montgomery import HALF, LOW, ONE, ZERO, lift, montgomery, part, plus, power_m, reduced, times

ALL = np.uint64(2**64 - 1)


@part
def _discrepancies(now: Any, moments: Any, n: Any, q: Any, q_inverse: Any, low: Any, out: Any) -> None:
    """out = R^-2 sum_k now_k S_(n-k) mod q; the halves of the products are summed separately and cannot overflow."""
    low[:] = 0
    out[:] = 0
    for k in range(min(n + 1, len(now))):
        c, s = now[k], moments[n - k]
        for v in range(LANES):
            product = (c[v] & LOW) * (s[v] & LOW)
            low[v] += product & LOW
            out[v] += product >> HALF
    for v in range(LANES):
        out[v] = reduced(low[v], out[v], q, q_inverse)


@part
def _lengthen(n: Any, discrepancy: Any, width: Any, longer: Any) -> None:
    """Where C becomes longer with term n, and how long it is then; `longer` is a mask of 64 bits."""
    for v in range(LANES):
        grows = (discrepancy[v] != 0) & (width[v] + width[v] <= n)
        longer[v] = ALL if grows else ZERO
        width[v] = n + ONE - width[v] if grows else width[v]


@part
def _step(c: Any, b: Any, divisor: Any, discrepancy: Any, longer: Any, q: Any, q_inverse: Any, kept: Any) -> None:
    """One row of C <- d' C - d x B; `kept` is what comes into the next row of x B: C or x B."""
    for v in range(LANES):
        old, other = c[v], b[v]
        scaled = times(divisor[v], old, q, q_inverse)
        c[v] = lift(scaled - times(discrepancy[v], other, q, q_inverse), q)
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
    for n in range(len(moments)):
        _discrepancies(now, moments, n, q, q_inverse, low, discrepancy)
        _lengthen(np.uint64(n), discrepancy, width, longer)
        for k in range(min(n + 2, len(now)) - 1, -1, -1):
            _step(now[k], before[k], divisor, discrepancy, longer, q, q_inverse, before[k + 1])
        before[0] = 0
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
def _evaluate_all(coefficients: Any, points_m: Any, turns_m: Any, q: Any, q_inverse: Any, out: Any, parts: Any) -> None:
    """`_evaluate` at all powers of gamma; with turns, n = 4 h and turns[a - 1, i] = gamma^(a i) for i < h.

    C(z) = A_0(z^4) + z A_1(z^4) + z^2 A_2(z^4) + z^3 A_3(z^4), and gamma^i times 1, gamma^h, gamma^(2 h) or gamma^(3 h)
    has the same fourth power: four values cost little more than one.
    """
    h, last = turns_m.shape[1], len(coefficients) - 1
    if h == 0:
        _evaluate(coefficients, points_m, q, q_inverse, out)
        return
    for a in range(4):
        _evaluate(coefficients[(last - a) % 4 :: 4], turns_m[3], q, q_inverse, parts[a])
    first, second, third, fourth, i_m = out[:h], out[h : 2 * h], out[2 * h : 3 * h], out[3 * h :], points_m[h]
    for k in range(h):
        one = times(turns_m[0, k], parts[1, k], q, q_inverse)
        two = times(turns_m[1, k], parts[2, k], q, q_inverse)
        three = times(turns_m[2, k], parts[3, k], q, q_inverse)
        even, odd = plus(parts[0, k], two, q), plus(one, three, q)
        first[k], third[k] = plus(even, odd, q), lift(even - odd, q)
        even, odd = lift(parts[0, k] - two, q), times(i_m, lift(one - three, q), q, q_inverse)
        second[k], fourth[k] = plus(even, odd, q), lift(even - odd, q)


@part
def _evaluate_columns(coefficients: Any, points_m: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """`_evaluate` in every column: its coefficients at its points."""
    out[:] = 0
    for j in range(len(coefficients)):
        for k in range(len(out)):
            values, z_m, coefficient = out[k], points_m[k], coefficients[j]
            for v in range(LANES):
                values[v] = plus(times(z_m[v], values[v], q, q_inverse), coefficient[v], q)


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
def _roots(
    now: Any, width: Any, v: Any, powers_m: Any, turns_m: Any, searched: Any, q: Any, q_inverse: Any,
    places: Any, scratch: Any,
) -> Any:  # fmt: skip
    """The degree w of C in column v, if it fits and w of the powers searched are its roots, or else -1; their places.

    `places` has room for one more: it is written before it is known whether it counts.
    """
    if width >= len(now):
        return -1
    found = scratch[0]
    _evaluate_all(now[: width + 1, v], powers_m, turns_m, q, q_inverse, found, scratch[1:])
    roots = 0
    for i in range(np.int64(searched)):
        places[roots] = i
        roots += found[i] == 0
    return width if roots == width else -1


def solve(
    moments: Any, powers_m: Any, turns_m: Any, searched: Any, q: Any, q_inverse: Any,
    weight: Any, places: Any, values: Any, columns: Any, scratch: Any,
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
        sequence[:] = 0
        for v in range(rows):
            for j in range(count):
                sequence[j, v] = moments[first + v, j]
        _locators(sequence, q, q_inverse, now, before, state)
        points_m[:] = montgomery(ONE, q)
        longest = 0
        for v in range(rows):
            found = _roots(now, np.int64(width[v]), v, powers_m, turns_m, searched, q, q_inverse, places[end:], scratch)
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
        _evaluate_columns(numerator, points_m, q, q_inverse, above)
        _evaluate_columns(derivative, points_m, q, q_inverse, below_m)
        for v in range(LANES):
            for k in range(max(0, weight[first + v]) if v < rows else 0, longest):
                below_m[k, v] = ONE  # nothing is divided there
        _divide(above, below_m, q, q_inverse, before, state[2])
        for v in range(rows):
            for k in range(weight[first + v]):
                values[start] = above[k, v]
                start += 1


def transform(
    moments: Any, powers_m: Any, most: Any, q: Any, q_inverse: Any, weight: Any, places: Any, values: Any, scratch: Any
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
