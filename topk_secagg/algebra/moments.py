"""Moments of sparse vectors: shared, summed, and turned back into the one sparse vector behind them.

The moments of place p are v_p = (gamma^(p j)) for j = 0, 1, ..., with gamma of order n in F_q*. The moments of
a vector w of length n are sum_p w_p v_p; moving a place by delta multiplies entry j by gamma^(delta j).
Kernels hold symbols below q < 2^32 in 64-bit words; `_m` marks a factor in Montgomery form.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import BadData
from .compiled import kernel
from .field import Integers, Symbols
from .montgomery import HALF, LOW, ONE, constants, lift, montgomery, plus, power_m, times, to_montgomery

Words = NDArray[np.uint64]
Places = NDArray[np.int64]

_LANES = 8  # consecutive moments that are computed side by side
_ROWS_NAMED = 5


class Entries(NamedTuple):
    """The non-zero entries of several vectors: vector `row` has `value` at `place`; in this order."""

    row: Places
    place: Places
    value: Symbols


@kernel
def _geometric(first: Any, ratio_m: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """out[j] = first ratio^j. Several lanes at once: each waits for its own last product only."""
    count = len(out)
    step_m = ratio_m
    for j in range(min(_LANES, count)):
        out[j] = first
        first = times(ratio_m, first, q, q_inverse)
        if j:
            step_m = times(step_m, ratio_m, q, q_inverse)
    for j in range(_LANES, count):
        out[j] = times(step_m, np.uint64(out[j - _LANES]), q, q_inverse)


@kernel
def _share(
    place: Any, factor: Any, point: Any, matrix_m: Any, noise: Any, gamma_m: Any, q: Any, q_inverse: Any, shares: Any
) -> None:
    users, rows, width = shares.shape
    secret = np.empty(width, np.uint64)
    for i in range(rows):
        inverse_m = power_m(montgomery(np.uint64(factor[i]), q), q - np.uint64(2), q, q_inverse)
        ratio_m = power_m(gamma_m, np.uint64(place[i]), q, q_inverse)
        _geometric(times(inverse_m, ONE, q, q_inverse), ratio_m, q, q_inverse, secret)
        for m in range(users):
            out, factors_m = shares[m, i], matrix_m[point[i], m]
            out[:] = secret
            for t in range(noise.shape[1]):
                factor_m, z = factors_m[t], noise[i, t]
                for j in range(width):
                    out[j] = plus(times(factor_m, np.uint64(z[j]), q, q_inverse), np.uint64(out[j]), q)


def share(
    place: Symbols,
    factor: Symbols,
    point: Integers,
    matrix: Integers,
    noise: Symbols,
    gamma: int,
    q: int,
    shares: Symbols,
) -> None:
    """Shamir sharings of factor^-1 v_place, evaluated for every user: shares (N, rows, W).

    shares[m, i, j] = factor_i^-1 gamma^(place_i j) + sum_t matrix[point_i, m, t] noise[i, t, j],
    with matrix (points, N, T) and noise (rows, T, W).
    """
    gamma_m = to_montgomery(np.array(gamma), q)[()]
    _share(place, factor, point, to_montgomery(matrix, q), noise, gamma_m, *constants(q), shares)


@kernel
def _answer(g: Any, shift: Any, scale: Any, group: Any, gamma_m: Any, q: Any, q_inverse: Any, total: Any) -> None:
    width = total.shape[1]
    factors_m = np.empty(width, np.uint64)
    for i in range(len(g)):
        ratio_m = power_m(gamma_m, np.uint64(shift[i]), q, q_inverse)
        _geometric(montgomery(np.uint64(scale[i]), q), ratio_m, q, q_inverse, factors_m)
        out = total[group[i]]
        for j in range(width):
            out[j] = plus(times(factors_m[j], np.uint64(g[i, j]), q, q_inverse), np.uint64(out[j]), q)


def answer(g: Symbols, shift: Symbols, scale: Symbols, group: Integers, gamma: int, q: int, total: Symbols) -> None:
    """Add the rows of g, moved and scaled, to their groups: total (groups, W1), g (rows, at least W1).

    total[group_i, j] += scale_i gamma^(shift_i j) g[i, j].
    """
    gamma_m = to_montgomery(np.array(gamma), q)[()]
    _answer(g, shift, scale, group, gamma_m, *constants(q), total)


def recover(moments: Symbols, weight: int, order: int, gamma: int, q: int, places: int | None = None) -> Entries:
    """For each row of moments, the only vector with at most `weight` non-zero entries, all within the first `places`.

    moments (rows, W1) with W1 = order, or W1 = 2 weight. A row that no such vector has is BadData, whatever
    the reason: what is found must give back all W1 moments, and two vectors that both do would differ
    in at most W1 of the `order` places, hence nowhere. Time and memory go with `places`, which may be far fewer.
    """
    rows, count = moments.shape
    if count not in (order, 2 * weight) or count > order:
        raise ValueError(f"{count} moments do not determine {weight} of {order} places")
    powers = np.empty(order if count == order or places is None else places, np.uint64)
    _geometric(to_montgomery(np.array(1), q)[()], to_montgomery(np.array(gamma), q)[()], *constants(q), powers)
    most = min(weight, order)
    solve = _transform if count == order else _solve
    found, place, value = solve(np.ascontiguousarray(moments), most, powers, *constants(q))
    bad = np.flatnonzero(found < 0)
    if bad.size:
        named = ", ".join(map(str, bad[:_ROWS_NAMED])) + (", ..." if bad.size > _ROWS_NAMED else "")
        what = f"no vector with at most {weight} non-zero entries has these moments"
        raise BadData(f"{what}: {bad.size} of {rows} rows ({named})")
    filled = np.arange(most) < found[:, None]
    row = np.repeat(np.arange(rows, dtype=np.int64), found)
    return Entries(row, place[filled], value[filled].astype(np.uint32))


@kernel
def _dot(left: Any, right: Words, q: np.uint64) -> np.uint64:
    """sum_i left_i * right_i mod q; the halves of the products are summed separately and cannot overflow."""
    low = high = np.uint64(0)
    for i in range(len(right)):
        product = (np.uint64(left[i]) & LOW) * (right[i] & LOW)
        low += product & LOW
        high += product >> HALF
    high = (high + (low >> HALF)) % q
    return ((high << HALF) | (low & LOW)) % q


@kernel
def _evaluate(coefficients: Words, points_m: Words, q: np.uint64, q_inverse: np.uint64) -> Words:
    """sum_k c_k * z^(n-1-k) at every point z, by Horner's rule: the highest of n coefficients is first."""
    values = np.zeros(len(points_m), np.uint64)
    for coefficient in coefficients:
        for i in range(len(points_m)):
            values[i] = plus(times(values[i], points_m[i], q, q_inverse), coefficient, q)
    return values


@kernel
def _locator(backwards: Words, q: np.uint64, q_inverse: np.uint64) -> Words:
    """Berlekamp and Massey: the shortest C = (1, c_1, ..., c_w) with sum_k c_k S_(n-k) = 0 for all n >= w.

    The sequence comes last term first. A length w above half of its terms is refused: C is empty.
    """
    count = len(backwards)
    now = np.zeros(count + 1, np.uint64)
    now[0] = ONE
    before = now.copy()
    width, width_before, shift = 0, 0, 1
    inverse_m = montgomery(ONE, q)
    for n in range(count):
        discrepancy = _dot(backwards[count - 1 - n : count - n + width], now[: width + 1], q)
        if discrepancy == 0:
            shift += 1
            continue
        saved = now.copy()
        factor_m = times(montgomery(discrepancy, q), inverse_m, q, q_inverse)
        shifted = now[shift : shift + width_before + 1]
        for k in range(len(shifted)):
            shifted[k] = lift(shifted[k] - times(factor_m, before[k], q, q_inverse), q)
        shift += 1
        if 2 * width <= n:
            before, width_before, width, shift = saved, width, n + 1 - width, 1
            inverse_m = power_m(montgomery(discrepancy, q), q - np.uint64(2), q, q_inverse)
        if 2 * width > count:
            return now[:0]
    return now[: width + 1]


@kernel
def _solve(
    moments: Symbols, most: int, powers_m: Words, q: np.uint64, q_inverse: np.uint64
) -> tuple[Places, Places, Words]:
    """The sparse vector behind each row: (weight, or -1 where there is none; places; values).

    With z^w C(1/z) = prod_k (z - gamma^k) = C~(z) over the places k, and O the polynomial part of
    C~(z) * sum_j S_j z^(-j-1), the value at place i is O(gamma^i) / C~'(gamma^i) (Forney).
    """
    rows, count = moments.shape
    weight = np.zeros(rows, np.int64)
    places = np.zeros((rows, most), np.int64)
    values = np.zeros((rows, most), np.uint64)
    for r in range(rows):
        backwards = moments[r, ::-1].astype(np.uint64)
        locator = _locator(backwards, q, q_inverse)
        degree = len(locator) - 1
        if degree < 0:
            weight[r] = -1
            continue
        roots = np.flatnonzero(_evaluate(locator, powers_m, q, q_inverse) == 0)
        if len(roots) != degree or degree > most:
            weight[r] = -1
            continue
        numerator = np.empty(degree, np.uint64)
        derivative = np.empty(degree, np.uint64)
        for j in range(degree):
            numerator[j] = _dot(backwards[count - 1 - j :], locator[: j + 1], q)
            derivative[j] = np.uint64(degree - j) * locator[j] % q
        points_m = powers_m[roots]
        above = _evaluate(numerator, points_m, q, q_inverse)
        below = _evaluate(derivative, points_m, q, q_inverse)
        for k in range(degree):
            inverse_m = power_m(montgomery(below[k], q), q - np.uint64(2), q, q_inverse)
            above[k] = times(inverse_m, above[k], q, q_inverse)
        weight[r] = degree if _reproduces(moments[r], above, points_m, q, q_inverse) else -1
        places[r, :degree] = roots
        values[r, :degree] = above
    return weight, places, values


@kernel
def _reproduces(moments: Any, values: Words, points_m: Words, q: np.uint64, q_inverse: np.uint64) -> bool:
    """Whether sum_k value_k * point_k^j is S_j for every j, and no value is zero."""
    terms = values.copy()
    good = bool(np.all(values != 0))
    for j in range(len(moments)):
        good &= terms.sum() % q == moments[j]
        for k in range(len(terms)):
            terms[k] = times(points_m[k], terms[k], q, q_inverse)
    return good


@kernel
def _transform(
    moments: Symbols, most: int, powers_m: Words, q: np.uint64, q_inverse: np.uint64
) -> tuple[Places, Places, Words]:
    """As `_solve`, for as many moments as places: value_k = (1/n) sum_j S_j gamma^(-k j)."""
    rows, order = moments.shape
    weight = np.zeros(rows, np.int64)
    places = np.zeros((rows, most), np.int64)
    values = np.zeros((rows, most), np.uint64)
    inverse_m = power_m(montgomery(np.uint64(order) % q, q), q - np.uint64(2), q, q_inverse)
    points_m = powers_m.copy()
    points_m[1:] = powers_m[:0:-1]  # gamma^-k = gamma^(n-k)
    for r in range(rows):
        found = _evaluate(moments[r, ::-1].astype(np.uint64), points_m, q, q_inverse)
        filled = np.flatnonzero(found)
        if len(filled) > most:
            weight[r] = -1
            continue
        weight[r] = len(filled)
        for k in range(len(filled)):
            places[r, k] = filled[k]
            values[r, k] = times(inverse_m, found[filled[k]], q, q_inverse)
    return weight, places, values
