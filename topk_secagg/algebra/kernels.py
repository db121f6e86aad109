"""The bulk arithmetic, as numba compiles it: exact for every prime q < 2^32. Loaded only to compile; see `native`.

A kernel is a plain function of contiguous arrays and 64-bit integers. It returns nothing and allocates nothing: its
last arguments are the arrays it writes to, scratch space included. What a call writes to never overlaps another of its
arrays, in calls of parts neither: the compiler relies on it. Symbols are 32-bit words, computed with in 64 bits; `_m`
marks a factor in Montgomery form.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from .field import PIECE
from .montgomery import (
    HALF,
    LOW,
    ONE,
    OPTIONS,
    ZERO,
    montgomery,
    part,
    plus,
    power_m,
    reduced,
    times,
)
from .recovery import solve, transform  # noqa: F401 - kernels too


def machine_code(name: str, types: tuple[str, ...]) -> tuple[str, bytes]:
    """The symbol and the object file of a kernel: an argument is "int", or like "u4x2" for a type and dimensions."""
    arguments = [
        numba.types.uint64
        if kind == "int"
        else numba.types.Array(numba.from_dtype(np.dtype(kind[:2])), int(kind[3]), "C")
        for kind in types
    ]
    signature = numba.types.void(*arguments)
    function = getattr(
        globals()[name], "py_func", globals()[name]
    )  # a kernel may be a part of others
    result = numba.njit(signature, **OPTIONS)(function).get_compile_result(signature)
    return result.fndesc.llvm_func_name, result.library._get_compiled_object()


# Lagrange interpolation of vectors


@part
def _add_products(factors_m: Any, vectors: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """out += sum_t factors[t] vectors[t]."""
    for t in range(len(factors_m)):
        factor_m, vector = factors_m[t], vectors[t]
        for j in range(len(out)):
            out[j] = plus(times(factor_m, np.uint64(vector[j]), q, q_inverse), np.uint64(out[j]), q)


def encode(
    dense: Any,
    sparse: Any,
    noise: Any,
    slot: Any,
    place: Any,
    scale: Any,
    q: Any,
    q_inverse: Any,
    shares: Any,
) -> None:
    """See `linear.encode`."""
    for i in range(noise.shape[0]):
        for m in range(len(dense)):
            out, j = shares[m, i], place[i]
            out[:] = 0
            _add_products(dense[m], noise[i], q, q_inverse, out)
            out[j] = plus(
                times(sparse[m, slot[i]], np.uint64(scale[i]), q, q_inverse), np.uint64(out[j]), q
            )


def eliminate(f: Any, h: Any, x_m: Any, q: Any, q_inverse: Any, total: Any) -> None:
    """See `linear.eliminate`."""
    for i in range(len(f)):
        for j in range(len(total)):
            term = plus(times(x_m[i], np.uint64(f[i, j]), q, q_inverse), q - np.uint64(h[i, j]), q)
            total[j] = plus(term, np.uint64(total[j]), q)


@part
def _add_halves(a: Any, x: Any, b: Any, y: Any, c: Any, z: Any, low: Any, high: Any) -> None:
    """low and high += the halves of a x, b y and c z: sums of products that are reduced once, at the end."""
    for j in range(len(low)):
        first, second = (a & LOW) * np.uint64(x[j]), (b & LOW) * np.uint64(y[j])
        third = (c & LOW) * np.uint64(z[j])
        low[j] += first + second + third
        high[j] += (first >> HALF) + (second >> HALF) + (third >> HALF)


def combine(
    matrix: Any, y: Any, row: Any, group: Any, q: Any, q_inverse: Any, out: Any, low: Any, high: Any
) -> None:
    """See `linear.combine`."""
    last = len(y) - 1
    for b in range(len(out)):
        factors, g, sums = matrix[row[b]], group[b], out[b]
        low[:] = 0
        high[:] = 0
        for u in range(0, last + 1, 3):
            v, w = min(u + 1, last), min(u + 2, last)
            second, third = factors[v] if v > u else ZERO, factors[w] if w > v else ZERO
            _add_halves(factors[u], y[u, g], second, y[v, g], third, y[w, g], low, high)
        for j in range(len(sums)):
            sums[j] = reduced(low[j], high[j], q, q_inverse)


@part
def _add_pieces(pieces: Any, factors: Any, sums: Any) -> None:
    """sums[v] += sum_r factors[r] pieces[r PIECE + v]."""
    for r in range(len(factors)):
        piece, factor = pieces[r * PIECE : (r + 1) * PIECE], np.uint64(factors[r])
        for v in range(PIECE):
            sums[v] += factor * np.uint64(piece[v])


@part
def _weigh(symbols: Any, factors: Any, q: Any, sums: Any) -> None:
    """sums[v] = sum_r factors[r] symbols[r PIECE + v] mod q; a thousand products of 22 and 32 bits do not overflow."""
    pieces = len(symbols) // PIECE
    sums[:] = 0
    for j in range(pieces * PIECE, len(symbols)):
        sums[j % PIECE] = np.uint64(factors[pieces]) * np.uint64(symbols[j])
    for first in range(0, max(1, pieces), 1000):
        last = min(first + 1000, pieces)
        _add_pieces(symbols[first * PIECE : last * PIECE], factors[first:last], sums)
        for v in range(PIECE):
            sums[v] %= q


def weigh(y: Any, factors: Any, q: Any, sums: Any) -> None:
    """See `linear.weighted_sums`."""
    for u in range(len(y)):
        for c in range(len(factors)):
            _weigh(y[u], factors[c], q, sums[u, c])


# Moments


def arrange(
    count: Any,
    place: Any,
    value: Any,
    first: Any,
    buckets: Any,
    ends: Any,
    indices: Any,
    values: Any,
) -> None:
    """Put entries behind those of their place that are there; ends[p] is where the next one of place p goes.

    Where there is no room at all, they are only counted.
    """
    i = 0
    for row in range(len(count)):
        for _ in range(count[row]):
            p = place[i]
            if len(indices):
                indices[ends[p]], values[ends[p]] = (
                    np.uint64(p) * buckets + first + np.uint64(row),
                    value[i],
                )
            ends[p] += 1
            i += 1


@part
def _scale(factor_m: Any, vector: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """out = factor vector."""
    for j in range(len(out)):
        out[j] = times(factor_m, np.uint64(vector[j]), q, q_inverse)


@part
def geometric(first: Any, ratio_m: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """out[j] = first ratio^j, twice as many with each step."""
    out[0] = first
    filled = 1
    while filled < len(out):
        _scale(ratio_m, out[:filled], q, q_inverse, out[filled : 2 * filled])
        ratio_m = times(ratio_m, ratio_m, q, q_inverse)
        filled *= 2


@part
def _power_m(exponent: Any, low_m: Any, high_m: Any, q: Any, q_inverse: Any) -> Any:
    """gamma^exponent from two tables: low_m[e] = gamma^e, and high_m[e] = gamma^(e len(low))."""
    digit = np.uint64(len(low_m))
    return times(low_m[exponent % digit], high_m[exponent // digit], q, q_inverse)


def invert(values: Any, q: Any, q_inverse: Any, inverses_m: Any) -> None:
    """The inverses of symbols that are not zero, by one power: of the product of all (Montgomery's trick)."""
    product_m = montgomery(ONE, q)
    for i in range(len(values)):
        inverses_m[i] = product_m
        product_m = times(product_m, montgomery(np.uint64(values[i]), q), q, q_inverse)
    product_m = power_m(product_m, q - np.uint64(2), q, q_inverse)
    for i in range(len(values) - 1, -1, -1):
        inverses_m[i] = times(inverses_m[i], product_m, q, q_inverse)
        product_m = times(product_m, montgomery(np.uint64(values[i]), q), q, q_inverse)


def share(
    place: Any, inverse_m: Any, point: Any, matrix_m: Any, noise: Any, low_m: Any, high_m: Any, q: Any, q_inverse: Any,
    shares: Any, secret: Any,
) -> None:  # fmt: skip
    """See `moments.share`."""
    users, rows, width = shares.shape
    for i in range(rows):
        ratio_m = _power_m(np.uint64(place[i]), low_m, high_m, q, q_inverse)
        geometric(times(inverse_m[i], ONE, q, q_inverse), ratio_m, q, q_inverse, secret)
        for m in range(users):
            out = shares[m, i]
            for j in range(width):
                out[j] = secret[j]
            _add_products(matrix_m[point[i], m], noise[i], q, q_inverse, out)


def tabulate(
    exponent: Any, low_m: Any, high_m: Any, first: Any, q: Any, q_inverse: Any, table: Any
) -> None:
    """Row i of the table: first gamma^(exponent_i j)."""
    for i in range(len(table)):
        ratio_m = _power_m(np.uint64(exponent[i]), low_m, high_m, q, q_inverse)
        geometric(first, ratio_m, q, q_inverse, table[i])


@part
def _add_moved(
    powers: Any, factor: Any, vector: Any, q: Any, q_inverse: Any, total: Any, high: Any
) -> None:
    """Add the products of the vector with factor powers[j] to the sums: see `montgomery.reduced`."""
    for j in range(len(total)):
        product = (times(np.uint64(powers[j]), factor, q, q_inverse) & LOW) * np.uint64(vector[j])
        total[j] += product
        high[j] += product >> HALF


def answer(
    g: Any, shift: Any, value: Any, scale: Any, group: Any, table_m4: Any, q: Any, q_inverse: Any,
    out: Any, total: Any, high: Any,
) -> None:  # fmt: skip
    """See `moments.answer`. The table has R^4 gamma^(shift j): it is divided by R twice, and so is the sum."""
    rows, end = len(group), 0
    while end < rows:
        first = end
        while end < rows and group[end] == group[first]:
            end += 1
        total[:] = 0
        high[:] = 0
        for start in range(0, len(g), rows):
            for k in range(first, end):
                i = start + k
                factor = times(np.uint64(value[i]), np.uint64(scale[k]), q, q_inverse)
                _add_moved(table_m4[shift[i]], factor, g[i], q, q_inverse, total, high)
        sums = out[group[first]]
        for j in range(len(sums)):
            sums[j] = plus(reduced(total[j], high[j], q, q_inverse), np.uint64(sums[j]), q)
