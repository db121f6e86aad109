"""Products of Lagrange matrices with vectors of symbols, over any F_q with q < 2^32."""

from __future__ import annotations

import numpy as np

from . import native
from .field import PIECE, Integers, Symbols, to_montgomery


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
    row i is `scale[i]` at entry place[i] of block slot[i] and zero elsewhere; shares
    (N, rows, width). The blocks are all but empty, so only the T noise blocks cost a product:
    shares[m, i] = sum_t encoding[m, D+t] noise[i, t] + encoding[m, slot[i]] scale[i] e_place[i].
    """
    matrix_m = to_montgomery(encoding, q)
    blocks = encoding.shape[1] - noise.shape[1]
    native.encode(
        dense_m=np.ascontiguousarray(matrix_m[:, blocks:]),
        sparse_m=np.ascontiguousarray(matrix_m[:, :blocks]),
        noise=np.ascontiguousarray(noise),
        slot=np.ascontiguousarray(slot, np.int64),
        place=np.ascontiguousarray(place, np.int64),
        scale=np.ascontiguousarray(scale),
        q=q,
        shares=shares,
    )


def eliminate(f: Symbols, h: Symbols, x: Symbols, q: int, total: Symbols) -> None:
    """Add the terms of eq. second:message to `total` (width,): sum_i x[i] f[i] - h[i].

    f and h are (rows, width).
    """
    native.eliminate(
        np.ascontiguousarray(f), np.ascontiguousarray(h), x_m=to_montgomery(x, q), q=q, total=total
    )


def combine(matrix: Integers, y: Symbols, row: Integers, group: Integers, q: int) -> Symbols:
    """Blocks from the answers of several users: block b is sum_u matrix[row[b], u] y[u, group[b]].

    matrix (points, users), y (users, groups, width); the result is (blocks, width).
    """
    blocks = np.empty((len(row), y.shape[2]), dtype=np.uint32)
    native.combine(
        matrix_mm=to_montgomery(to_montgomery(matrix, q), q),  # the kernel divides by R^2
        y=np.ascontiguousarray(y),
        row=np.ascontiguousarray(row, np.int64),
        group=np.ascontiguousarray(group, np.int64),
        q=q,
        out=blocks,
    )
    return blocks


def weighted_sums(y: Symbols, factors: Symbols, q: int) -> Integers:
    """Random combinations of the rows of y (users, symbols), cut into pieces of PIECE symbols.

    With factors (count, pieces) below 2^22, the result (users, count, PIECE) is
    sum_r factors[c, r] y[u, r PIECE + v] mod q; a last piece may be shorter.
    """
    sums = np.empty((len(y), len(factors), PIECE), dtype=np.uint64)
    if len(factors):  # else no kernel is loaded for nothing
        native.weigh(np.ascontiguousarray(y), np.ascontiguousarray(factors), q=q, sums=sums)
    return sums
