"""The encoding of shares against galois' own matrix product of the same operands, on one core.

Usage: encode.py. Both get the same (N x (D+T)) matrix and the same dense blocks, and must agree.
"""

from __future__ import annotations

import os

import galois
import numpy as np
from floors import best

from topk_secagg.algebra.field import DEFAULT_FIELD
from topk_secagg.algebra.linear import encode
from topk_secagg.algebra.lagrange import default_points, lagrange_matrix

N, U, T, D, WIDTH, ROWS = 10, 5, 3, 2, 2048, 4
Q = DEFAULT_FIELD


def main() -> None:
    """Print nanoseconds per symbol of share, and the ratio."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
    rng = np.random.default_rng(0)
    alpha, beta = default_points(N, U)
    matrix = lagrange_matrix(beta[: D + T], alpha, Q)
    noise = rng.integers(0, Q, (ROWS, T, WIDTH), dtype=np.uint32)
    slot, place = rng.integers(0, D, ROWS), rng.integers(0, WIDTH, ROWS)
    scale = rng.integers(0, Q, ROWS, dtype=np.uint32)
    shares = np.empty((N, ROWS, WIDTH), dtype=np.uint32)
    blocks = np.zeros((ROWS, D + T, WIDTH), dtype=np.uint64)
    blocks[:, D:] = noise
    blocks[np.arange(ROWS), slot, place] = scale

    encode(matrix, noise, slot, place, scale, Q, shares)
    kernel = best(lambda: encode(matrix, noise, slot, place, scale, Q, shares))
    field = galois.GF(Q)
    left, right = field(matrix), [field(block) for block in blocks]
    products = [left @ block for block in right]
    peer = best(lambda: [left @ block for block in right])
    assert all(np.array_equal(np.asarray(p).astype(np.uint64), shares[:, i]) for i, p in enumerate(products))
    print(f"galois {peer / shares.size * 1e9:.0f} ns a symbol, kernel {kernel / shares.size * 1e9:.2f} ns")
    print(f"encode: {peer / kernel:.0f} times faster than galois (at least 30 wanted)")


if __name__ == "__main__":
    main()
