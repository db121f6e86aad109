"""The bulk arithmetic, as numba compiles it: exact for every prime q < 2^32. Loaded only to compile; see `native`.

A kernel is a plain function of contiguous arrays and 64-bit integers. It returns nothing and allocates nothing: its
last arguments are the arrays it writes to, scratch space included. Symbols are 32-bit words, computed with in 64 bits;
`_m` marks a factor in Montgomery form.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from .montgomery import HALF, LOW, ONE, Function, lift, montgomery, plus, power_m, times

_OPTIONS = {"error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def machine_code(name: str, types: tuple[str, ...]) -> tuple[str, bytes]:
    """The symbol and the object file of a kernel: an argument is "int", or like "u4x2" for a type and dimensions."""
    arguments = [
        numba.types.uint64
        if kind == "int"
        else numba.types.Array(numba.from_dtype(np.dtype(kind[:2])), int(kind[3]), "C")
        for kind in types
    ]
    signature = numba.types.void(*arguments)
    result = numba.njit(signature, **_OPTIONS)(globals()[name]).get_compile_result(signature)
    return result.fndesc.llvm_func_name, result.library._get_compiled_object()


def _part(function: Function) -> Function:
    """A function that kernels call, too long to be inlined."""
    return numba.njit(**_OPTIONS)(function)  # type: ignore[no-any-return]


# Lagrange interpolation of vectors


@_part
def _add_products(factors_m: Any, vectors: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """out += sum_t factors[t] vectors[t]."""
    for t in range(len(factors_m)):
        factor_m, vector = factors_m[t], vectors[t]
        for j in range(len(out)):
            out[j] = plus(times(factor_m, np.uint64(vector[j]), q, q_inverse), np.uint64(out[j]), q)


def encode(
    dense: Any, sparse: Any, noise: Any, slot: Any, place: Any, scale: Any, q: Any, q_inverse: Any, shares: Any
) -> None:
    """See `linear.encode`."""
    for i in range(noise.shape[0]):
        for m in range(len(dense)):
            out, j = shares[m, i], place[i]
            out[:] = 0
            _add_products(dense[m], noise[i], q, q_inverse, out)
            out[j] = plus(times(sparse[m, slot[i]], np.uint64(scale[i]), q, q_inverse), np.uint64(out[j]), q)


def eliminate(f: Any, h: Any, x_m: Any, q: Any, q_inverse: Any, total: Any) -> None:
    """See `linear.eliminate`."""
    for i in range(len(f)):
        for j in range(len(total)):
            term = plus(times(x_m[i], np.uint64(f[i, j]), q, q_inverse), q - np.uint64(h[i, j]), q)
            total[j] = plus(term, np.uint64(total[j]), q)


def combine(matrix_m: Any, y: Any, row: Any, group: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """See `linear.combine`."""
    for b in range(len(out)):
        out[b] = 0
        _add_products(matrix_m[row[b]], y[:, group[b]], q, q_inverse, out[b])


def inner(a: Any, b: Any, low: Any, high: Any) -> None:
    """The sums of the low and of the high halves of the products of the rows of a with those of b."""
    for i in range(a.shape[0]):
        for c in range(b.shape[0]):
            small, large = np.uint64(0), np.uint64(0)
            for j in range(a.shape[1]):
                p = np.uint64(a[i, j]) * np.uint64(b[c, j])
                small += p & LOW
                large += p >> HALF
            low[i, c], high[i, c] = small, large


# Moments


@_part
def _scale(factor_m: Any, vector: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """out = factor vector."""
    for j in range(len(out)):
        out[j] = times(factor_m, vector[j], q, q_inverse)


@_part
def _add_product(factors_m: Any, vector: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """out += factors * vector, entry by entry."""
    for j in range(len(out)):
        out[j] = plus(times(factors_m[j], np.uint64(vector[j]), q, q_inverse), np.uint64(out[j]), q)


@_part
def _geometric(first: Any, ratio_m: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """out[j] = first ratio^j, twice as many with each step."""
    out[0] = first
    filled = 1
    while filled < len(out):
        _scale(ratio_m, out, q, q_inverse, out[filled : 2 * filled])
        ratio_m = times(ratio_m, ratio_m, q, q_inverse)
        filled *= 2


@_part
def _power_m(exponent: Any, low_m: Any, high_m: Any, q: Any, q_inverse: Any) -> Any:
    """gamma^exponent from two tables: low_m[e] = gamma^e, and high_m[e] = gamma^(e len(low))."""
    digit = np.uint64(len(low_m))
    return times(low_m[exponent % digit], high_m[exponent // digit], q, q_inverse)


@_part
def _invert(values: Any, q: Any, q_inverse: Any, inverses_m: Any) -> None:
    """The inverses of symbols that are not zero, by one power: of the product of all (Montgomery's trick)."""
    product_m = montgomery(ONE, q)
    for i in range(len(values)):
        inverses_m[i] = product_m
        product_m = times(product_m, montgomery(np.uint64(values[i]), q), q, q_inverse)
    product_m = power_m(product_m, q - np.uint64(2), q, q_inverse)
    for i in range(len(values) - 1, -1, -1):
        inverses_m[i] = times(inverses_m[i], product_m, q, q_inverse)
        product_m = times(product_m, montgomery(np.uint64(values[i]), q), q, q_inverse)


def geometric(first: Any, ratio_m: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """The powers of a ratio, times a factor."""
    _geometric(first, ratio_m, q, q_inverse, out)


def invert(values: Any, q: Any, q_inverse: Any, inverses_m: Any) -> None:
    """The inverses of symbols that are not zero."""
    _invert(values, q, q_inverse, inverses_m)


def share(
    place: Any, inverse_m: Any, point: Any, matrix_m: Any, noise: Any, low_m: Any, high_m: Any, q: Any, q_inverse: Any,
    shares: Any, secret: Any,
) -> None:  # fmt: skip
    """See `moments.share`."""
    users, rows, width = shares.shape
    for i in range(rows):
        ratio_m = _power_m(np.uint64(place[i]), low_m, high_m, q, q_inverse)
        _geometric(times(inverse_m[i], ONE, q, q_inverse), ratio_m, q, q_inverse, secret)
        for m in range(users):
            out = shares[m, i]
            for j in range(width):
                out[j] = secret[j]
            _add_products(matrix_m[point[i], m], noise[i], q, q_inverse, out)


def answer(
    g: Any, shift: Any, scale: Any, group: Any, low_m: Any, high_m: Any, q: Any, q_inverse: Any,
    total: Any, factors_m: Any,
) -> None:  # fmt: skip
    """See `moments.answer`."""
    for i in range(len(g)):
        ratio_m = _power_m(np.uint64(shift[i]), low_m, high_m, q, q_inverse)
        _geometric(montgomery(np.uint64(scale[i]), q), ratio_m, q, q_inverse, factors_m)
        _add_product(factors_m, g[i], q, q_inverse, total[group[i]])


# Recovery of sparse vectors


@_part
def _dot(left: Any, right: Any, q: Any) -> Any:
    """sum_i left_i * right_i mod q; the halves of the products are summed separately and cannot overflow."""
    low = high = np.uint64(0)
    for i in range(len(right)):
        product = (left[i] & LOW) * (right[i] & LOW)
        low += product & LOW
        high += product >> HALF
    high = (high + (low >> HALF)) % q
    return ((high << HALF) | (low & LOW)) % q


@_part
def _evaluate(coefficients: Any, points_m: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """sum_k c_k * z^(n-1-k) at every point z, by Horner's rule: the highest of n coefficients is first."""
    out[:] = 0
    for coefficient in coefficients:
        for i in range(len(points_m)):
            out[i] = plus(times(out[i], points_m[i], q, q_inverse), coefficient, q)


@_part
def _evaluate_all(coefficients: Any, points_m: Any, squares_m: Any, q: Any, q_inverse: Any, out: Any, odd: Any) -> None:
    """`_evaluate` at all powers of gamma; with squares, the second half of the points are the negatives of the first.

    Even and odd powers apart: A(z^2) + z B(z^2) and A(z^2) - z B(z^2) cost little more than one of them.
    """
    half = len(squares_m)
    if half == 0:
        _evaluate(coefficients, points_m, q, q_inverse, out)
        return
    last = len(coefficients) - 1
    _evaluate(coefficients[last % 2 :: 2], squares_m, q, q_inverse, out[:half])
    _evaluate(coefficients[1 - last % 2 :: 2], squares_m, q, q_inverse, odd[:half])
    for i in range(half):
        even, turned = out[i], times(points_m[i], odd[i], q, q_inverse)
        out[i] = plus(even, turned, q)
        out[half + i] = lift(even - turned, q)


@_part
def _locator(backwards: Any, q: Any, q_inverse: Any, now: Any, before: Any, saved: Any) -> Any:
    """Berlekamp and Massey: the shortest C = (c_0, ..., c_w) with sum_k c_k S_(n-k) = 0 for all n >= w; c_0 is not 0.

    The sequence comes last term first. C is left in `now`; the result is w, or -1 for a w above half of the terms.
    Without inversions: C <- d' C - d x^shift B, where d and d' are the discrepancies of C and of the earlier B.
    """
    count = len(backwards)
    now[:] = 0
    before[:] = 0
    now[0] = before[0] = ONE
    width, width_before, shift = 0, 0, 1
    divisor_m = montgomery(ONE, q)
    for n in range(count):
        discrepancy = _dot(backwards[count - 1 - n :], now[: width + 1], q)
        if discrepancy == 0:
            shift += 1
            continue
        factor_m = montgomery(discrepancy, q)
        longer = 2 * width <= n
        if longer:
            for k in range(width + 1):
                saved[k] = now[k]
        for k in range(width + 1):
            now[k] = times(divisor_m, now[k], q, q_inverse)
        shifted = now[shift : shift + width_before + 1]
        for k in range(len(shifted)):
            shifted[k] = lift(shifted[k] - times(factor_m, before[k], q, q_inverse), q)
        shift += 1
        if longer:
            for k in range(width + 1):
                before[k] = saved[k]
            width_before, width, shift, divisor_m = width, n + 1 - width, 1, factor_m
        if 2 * width > count:
            return -1
    return width


@_part
def _reproduces(moments: Any, values: Any, points_m: Any, q: Any, q_inverse: Any, terms: Any) -> Any:
    """Whether sum_k value_k * point_k^j is S_j for every j, and no value is zero."""
    good = True
    for k in range(len(values)):
        good &= values[k] != 0
        terms[k] = values[k]
    for j in range(len(moments)):
        total = np.uint64(0)
        for k in range(len(values)):
            total += terms[k]
            terms[k] = times(points_m[k], terms[k], q, q_inverse)
        good &= total % q == moments[j]
    return good


def solve(
    moments: Any, powers_m: Any, squares_m: Any, q: Any, q_inverse: Any,
    weight: Any, places: Any, values: Any, scratch: Any,
) -> None:  # fmt: skip
    """The sparse vector behind each row: its weight, or -1 where there is none; its places; its values.

    With z^w C(1/z) = prod_k (z - gamma^k) = C~(z) over the places k, and O the polynomial part of
    C~(z) * sum_j S_j z^(-j-1), the value at place i is O(gamma^i) / C~'(gamma^i) (Forney).
    """
    count, most = moments.shape[1], places.shape[1]
    backwards, now, before, saved = scratch[0, :count], scratch[1], scratch[2], scratch[3]
    for r in range(len(moments)):
        for j in range(count):
            backwards[j] = moments[r, count - 1 - j]
        degree = _locator(backwards, q, q_inverse, now[: count + 1], before[: count + 1], saved[: count + 1])
        weight[r] = -1
        if degree < 0 or degree > most:
            continue
        found = scratch[4, : len(powers_m)]
        _evaluate_all(now[: degree + 1], powers_m, squares_m, q, q_inverse, found, scratch[5])
        roots = 0
        for i in range(len(found)):
            if found[i] == 0 and roots < degree:
                places[r, roots] = i
                roots += 1
        if roots < degree:
            continue
        numerator, derivative, points_m = before[:degree], saved[:degree], scratch[5, :degree]
        for j in range(degree):
            numerator[j] = _dot(backwards[count - 1 - j :], now[: j + 1], q)
            derivative[j] = np.uint64(degree - j) * now[j] % q
            points_m[j] = powers_m[places[r, j]]
        above, below = values[r, :degree], scratch[4, :degree]
        _evaluate(numerator, points_m, q, q_inverse, above)
        _evaluate(derivative, points_m, q, q_inverse, below)
        _invert(below, q, q_inverse, numerator)
        for k in range(degree):
            above[k] = times(numerator[k], above[k], q, q_inverse)
        if _reproduces(moments[r], above, points_m, q, q_inverse, below):
            weight[r] = degree


def transform(
    moments: Any, powers_m: Any, q: Any, q_inverse: Any, weight: Any, places: Any, values: Any, scratch: Any
) -> None:
    """As `solve`, for as many moments as places: value_k = (1/n) sum_j S_j gamma^(-k j)."""
    order, most = moments.shape[1], places.shape[1]
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
            if found[k] != 0:
                if weight[r] == most:
                    weight[r] = -1
                    break
                places[r, weight[r]] = k
                values[r, weight[r]] = times(inverse_m, found[k], q, q_inverse)
                weight[r] += 1
