"""Products of Lagrange matrices with vectors of symbols, over any F_q with q < 2^32."""

from __future__ import annotations

import numpy as np

from .field import Integers, Symbols, montgomery_constants, to_montgomery
from .native import run


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
    run("encode", dense, sparse, noise, slot, place, scale, *montgomery_constants(q), out=(shares,))


def eliminate(f: Symbols, h: Symbols, x: Symbols, q: int, total: Symbols) -> None:
    """Add the terms of eq. second:message to `total` (width,): sum_i x[i] f[i] - h[i], f and h (rows, width)."""
    run("eliminate", f, h, to_montgomery(x, q), *montgomery_constants(q), out=(total,))


def combine(matrix: Integers, y: Symbols, row: Integers, group: Integers, q: int) -> Symbols:
    """Blocks from the answers of several users: block b is sum_u matrix[row[b], u] y[u, group[b]].

    matrix (points, users), y (users, groups, width); the result is (blocks, width).
    """
    blocks, halves = np.empty((len(row), y.shape[2]), dtype=np.uint32), np.empty((2, y.shape[2]), dtype=np.uint64)
    twice = to_montgomery(to_montgomery(matrix, q), q)  # the kernel divides by R^2
    run("combine", twice, y, row, group, *montgomery_constants(q), out=(blocks, *halves))
    return blocks


def inner_products(a: Symbols, b: Symbols, q: int) -> Symbols:
    """The inner products of the rows of a (n, w) with those of b (c, w) in F_q: (n, c); w < 2^32.

    The low and the high halves of the products are summed separately, and reduced once at the end.
    """
    low, high = (np.empty((a.shape[0], b.shape[0]), dtype=np.uint64) for _ in range(2))
    run("inner", a, b, out=(low, high))
    half, modulus = np.uint64(2**32 % q), np.uint64(q)
    return ((high % modulus * half + low % modulus) % modulus).astype(np.uint32)
