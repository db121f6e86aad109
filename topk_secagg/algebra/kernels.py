"""The bulk arithmetic, compiled with numba: one multiplication per step, exact for every prime q < 2^32.

Callers import this module inside functions: loading numba takes half a second, and steps without such arithmetic
must not pay for it. The kernels release the GIL, so writing can go on beside them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .compiled import kernel
from .field import Integers, Symbols
from .montgomery import HALF, LOW, constants, plus, times, to_montgomery


@kernel
def _add_products(factors_m: Any, vectors: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """out += sum_t factors[t] vectors[t]."""
    for t in range(len(factors_m)):
        factor_m, vector = factors_m[t], vectors[t]
        for j in range(len(out)):
            out[j] = plus(times(factor_m, np.uint64(vector[j]), q, q_inverse), np.uint64(out[j]), q)


@kernel
def _encode(
    dense: Any, sparse: Any, noise: Any, slot: Any, place: Any, scale: Any, q: Any, q_inverse: Any, shares: Any
) -> None:
    for i in range(noise.shape[0]):
        for m in range(len(dense)):
            out, j = shares[m, i], place[i]
            out[:] = 0
            _add_products(dense[m], noise[i], q, q_inverse, out)
            out[j] = plus(times(sparse[m, slot[i]], np.uint64(scale[i]), q, q_inverse), np.uint64(out[j]), q)


def encode(
    encoding: Integers, noise: Symbols, slot: Integers, place: Integers, scale: Symbols, q: int, shares: Symbols
) -> None:
    """Evaluate one polynomial per row at every user's point (eq. polynomial:1 and :2).

    encoding (N, D+T): the Lagrange matrix from the betas to the alphas; noise (rows, T, width);
    row i is `scale[i]` at entry place[i] of block slot[i] and zero elsewhere; shares (N, rows, width).
    The blocks are all but empty, so only the T noise blocks cost a product:
    shares[m, i] = sum_t encoding[m, D+t] noise[i, t] + encoding[m, slot[i]] scale[i] e_place[i].
    """
    sparse, dense = np.split(to_montgomery(encoding, q), [encoding.shape[1] - noise.shape[1]], axis=1)
    dense, sparse = np.ascontiguousarray(dense), np.ascontiguousarray(sparse)
    _encode(dense, sparse, noise, slot, place, scale, *constants(q), shares)


@kernel
def _eliminate(f: Any, h: Any, x_m: Any, q: Any, q_inverse: Any, total: Any) -> None:
    for i in range(len(f)):
        for j in range(len(total)):
            term = plus(times(x_m[i], np.uint64(f[i, j]), q, q_inverse), q - np.uint64(h[i, j]), q)
            total[j] = plus(term, np.uint64(total[j]), q)


def eliminate(f: Symbols, h: Symbols, x: Symbols, q: int, total: Symbols) -> None:
    """Add the terms of eq. second:message to `total` (width,): sum_i x[i] f[i] - h[i], f and h (rows, width)."""
    _eliminate(f, h, to_montgomery(x, q), *constants(q), total)


@kernel
def _combine(matrix_m: Any, y: Any, row: Any, group: Any, q: Any, q_inverse: Any, out: Any) -> None:
    for b in range(len(out)):
        _add_products(matrix_m[row[b]], y[:, group[b]], q, q_inverse, out[b])


def combine(matrix: Integers, y: Symbols, row: Integers, group: Integers, q: int) -> Symbols:
    """Blocks from the answers of several users: block b is sum_u matrix[row[b], u] y[u, group[b]].

    matrix (points, users), y (users, groups, width); the result is (blocks, width).
    """
    out = np.zeros((len(row), y.shape[2]), dtype=np.uint32)
    _combine(to_montgomery(matrix, q), y, row, group, *constants(q), out)
    return out


@kernel
def _inner(a: Any, b: Any, low: Any, high: Any) -> None:
    for i in range(a.shape[0]):
        for c in range(b.shape[0]):
            small, large = np.uint64(0), np.uint64(0)
            for j in range(a.shape[1]):
                p = np.uint64(a[i, j]) * np.uint64(b[c, j])
                small += p & LOW
                large += p >> HALF
            low[i, c], high[i, c] = small, large


def inner_products(a: Symbols, b: Symbols, q: int) -> Symbols:
    """The inner products of the rows of a (n, w) with those of b (c, w) in F_q: (n, c); w < 2^32.

    The low and the high halves of the products are summed separately, and reduced once at the end.
    """
    low, high = (np.empty((a.shape[0], b.shape[0]), dtype=np.uint64) for _ in range(2))
    _inner(a, b, low, high)
    half = np.uint64(2**32 % q)
    modulus = np.uint64(q)
    return ((high % modulus * half + low % modulus) % modulus).astype(np.uint32)
