"""The bulk arithmetic, compiled with numba: one multiplication per step, exact for every prime q < 2^32.

Callers import this module inside functions: loading numba takes half a second, and `mask` and
`--help` must not pay for it. The kernels release the GIL, so writing can go on beside them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .compiled import inlined, kernel
from .field import Integers, Montgomery, Symbols, to_montgomery

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@inlined
def product(a_mont: Any, b: Any, q: Any, inverse: Any) -> Any:
    """A b mod q for a in Montgomery form (see field.Montgomery)."""
    p = a_mont * b
    m = ((p & _LOW) * inverse) & _LOW
    high, borrow = p >> _HALF, (m * q) >> _HALF
    return high - borrow + q * np.uint64(high < borrow)


@inlined
def reduced(a: Any, q: Any) -> Any:
    """A mod q for a < 2 q."""
    return a - q * np.uint64(a >= q)


@kernel
def _encode(
    dense: Any, sparse: Any, noise: Any, slot: Any, place: Any, scale: Any, q: Any, inverse: Any, shares: Any
) -> None:
    users, terms = dense.shape
    rows, _, width = noise.shape
    for i in range(rows):
        for m in range(users):
            out = shares[m, i]
            for j in range(width):
                out[j] = 0
            for t in range(terms):
                factor, z = dense[m, t], noise[i, t]
                for j in range(width):
                    value = product(factor, np.uint64(z[j]), q, inverse) + np.uint64(out[j])
                    out[j] = np.uint32(reduced(value, q))
            j = place[i]
            value = product(sparse[m, slot[i]], np.uint64(scale[i]), q, inverse) + np.uint64(out[j])
            out[j] = np.uint32(reduced(value, q))


def encode(
    encoding: Integers,
    noise: Symbols,
    slot: Integers,
    place: Integers,
    scale: Symbols,
    q: int,
    shares: Symbols,
) -> None:
    """Evaluate one polynomial per row at every user's point (eq. polynomial:1 and :2).

    encoding (N, D+T): the Lagrange matrix from the betas to the alphas; noise (rows, T, width);
    row i is `scale[i]` at entry place[i] of block slot[i] and zero elsewhere; shares (N, rows, width).
    The blocks are all but empty, so only the T noise blocks cost a product:
    shares[m, i] = sum_t encoding[m, D+t] noise[i, t] + encoding[m, slot[i]] scale[i] e_place[i].
    """
    blocks = encoding.shape[1] - noise.shape[1]
    matrix = to_montgomery(encoding, q)
    constants = Montgomery.of(q)
    _encode(
        np.ascontiguousarray(matrix[:, blocks:]),
        np.ascontiguousarray(matrix[:, :blocks]),
        noise,
        slot,
        place,
        scale,
        constants.q,
        constants.inverse,
        shares,
    )


@kernel
def _eliminate(f: Any, h: Any, x: Any, rotation: Any, group: Any, q: Any, inverse: Any, total: Any) -> None:
    rows, width = f.shape
    for i in range(rows):
        out, shift, factor = total[group[i]], rotation[i], x[i]
        for start, stop, move in ((0, width - shift, shift), (width - shift, width, shift - width)):
            for j in range(start, stop):
                value = product(factor, np.uint64(f[i, j]), q, inverse) + q - np.uint64(h[i, j])
                value = reduced(value, q) + np.uint64(out[j + move])
                out[j + move] = np.uint32(reduced(value, q))


def eliminate(
    f: Symbols, h: Symbols, x: Symbols, rotation: Integers, group: Integers, q: int, total: Symbols
) -> None:
    """Add the terms of eq. second:message to `total`, row by row.

    total[group[i]] += rotate(x[i] f[i] - h[i], rotation[i]); f and h (rows, width), total (groups, width).
    """
    constants = Montgomery.of(q)
    _eliminate(f, h, to_montgomery(x, q), rotation, group, constants.q, constants.inverse, total)


@kernel
def _inner(a: Any, b: Any, low: Any, high: Any) -> None:
    for i in range(a.shape[0]):
        for c in range(b.shape[0]):
            small, large = np.uint64(0), np.uint64(0)
            for j in range(a.shape[1]):
                p = np.uint64(a[i, j]) * np.uint64(b[c, j])
                small += p & _LOW
                large += p >> _HALF
            low[i, c], high[i, c] = small, large


def inner_products(a: Symbols, b: Symbols, q: int) -> Symbols:
    """The inner products of the rows of a (n, w) with those of b (c, w) in F_q: (n, c); w < 2^32.

    The low and the high halves of the products are summed apart, and reduced once at the end.
    """
    low, high = (np.empty((a.shape[0], b.shape[0]), dtype=np.uint64) for _ in range(2))
    _inner(a, b, low, high)
    half = np.uint64(2**32 % q)
    modulus = np.uint64(q)
    return ((high % modulus * half + low % modulus) % modulus).astype(np.uint32)


@kernel
def _matmul(a: Any, b: Any, q: Any, inverse: Any, out: Any) -> None:
    rows, inner = a.shape
    width = b.shape[1]
    for i in range(rows):
        for j in range(width):
            out[i, j] = 0
        for t in range(inner):
            factor = a[i, t]
            for j in range(width):
                value = product(factor, np.uint64(b[t, j]), q, inverse) + np.uint64(out[i, j])
                out[i, j] = np.uint32(reduced(value, q))


def matmul(a: Integers, b: Symbols, q: int) -> Symbols:
    """The matrix product a b in F_q; a is small, b may be wide."""
    out: npt.NDArray[np.uint32] = np.empty((a.shape[0], b.shape[1]), dtype=np.uint32)
    constants = Montgomery.of(q)
    _matmul(to_montgomery(a, q), b, constants.q, constants.inverse, out)
    return out
