"""Products of Lagrange matrices with vectors of symbols, over any F_q with q < 2^32."""

from __future__ import annotations

import numpy as np

from .field import PIECE, Integers, Symbols, montgomery_constants, to_montgomery
from .native import run


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
    sparse, dense = np.split(
        to_montgomery(encoding, q), [encoding.shape[1] - noise.shape[1]], axis=1
    )
    run("encode", dense, sparse, noise, slot, place, scale, *montgomery_constants(q), out=(shares,))


def eliminate(f: Symbols, h: Symbols, x: Symbols, q: int, total: Symbols) -> None:
    """Add the terms of eq. second:message to `total` (width,): sum_i x[i] f[i] - h[i], f and h (rows, width)."""
    run("eliminate", f, h, to_montgomery(x, q), *montgomery_constants(q), out=(total,))


def combine(matrix: Integers, y: Symbols, row: Integers, group: Integers, q: int) -> Symbols:
    """Blocks from the answers of several users: block b is sum_u matrix[row[b], u] y[u, group[b]].

    matrix (points, users), y (users, groups, width); the result is (blocks, width).
    """
    blocks, halves = (
        np.empty((len(row), y.shape[2]), dtype=np.uint32),
        np.empty((2, y.shape[2]), dtype=np.uint64),
    )
    twice = to_montgomery(to_montgomery(matrix, q), q)  # the kernel divides by R^2
    run("combine", twice, y, row, group, *montgomery_constants(q), out=(blocks, *halves))
    return blocks


def weighted_sums(y: Symbols, factors: Symbols, q: int) -> Integers:
    """The rows of y (users, symbols), cut into pieces of PIECE symbols, times factors (count, pieces), below 2^22.

    The result (users, count, PIECE) is sum_r factors[c, r] y[u, r PIECE + v] mod q; a last piece may be shorter.
    """
    sums = np.empty((len(y), len(factors), PIECE), dtype=np.uint64)
    if len(factors):  # else no kernel is loaded for nothing
        run("weigh", y, factors, q, out=(sums,))
    return sums
