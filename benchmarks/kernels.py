"""The kernels, one thread each, against a copy of the bytes that they write or read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from measuring import Figure, seconds

from topk_secagg.algebra import native
from topk_secagg.algebra.field import DEFAULT_FIELD, smallest_generator
from topk_secagg.algebra.linear import combine
from topk_secagg.algebra.sketches import add_sketches, recover

Q = DEFAULT_FIELD
N = 10
T = 3
P = 2
D = 5
ORDER = 200  # of gamma
ROWS = 2000
WIDTH = 2 * N * P
CALLS = 20


def figures(repeats: int) -> list[Figure]:
    """At the sizes of the paper's experiment: 2,000 buckets, sketches of 40 symbols."""
    rng = np.random.default_rng(0)
    gamma = pow(smallest_generator(Q), (Q - 1) // ORDER, Q)

    def symbols(*shape: int, low: int = 0, high: int = Q) -> np.ndarray:
        return rng.integers(low, high, size=shape, dtype=np.uint32)

    y = symbols(D + T, ROWS // D, WIDTH)
    decoding = symbols(N - T, D + T).astype(np.uint64)
    bucket = np.arange(ROWS)
    sums = np.zeros((ROWS, WIDTH), np.uint32)  # of N P random entries in every bucket
    entries = np.concatenate([rng.choice(ORDER, N * P, replace=False) for _ in range(ROWS)]).astype(
        np.uint32
    )
    value = symbols(ROWS * N * P, low=1)
    rows = np.arange(ROWS).repeat(N * P)
    add_sketches(rows, entries, value, gamma=gamma, q=Q, total=sums)
    words = symbols(4, ROWS * WIDTH, high=2**32)
    factors = symbols(1, 4).astype(np.uint64)
    lazy = np.zeros((2, 1, ROWS * WIDTH), np.uint64)

    works = {
        "combine (decode)": (
            sums,
            lambda: combine(decoding, y, row=bucket % (N - T), group=bucket // D, q=Q),
        ),
        "sketch (mask)": (
            sums,
            lambda: add_sketches(rows, entries, value, gamma=gamma, q=Q, total=sums.copy()),
        ),
        "add_streams (drawing)": (
            words,
            lambda: native.add_streams(
                words, factors, limit=Q, filled=np.zeros(4, np.int64), sums=lazy
            ),
        ),
        "recover (decode)": (
            sums,
            lambda: recover(sums, weight=N * P, order=ORDER, gamma=gamma, q=Q),
        ),
    }
    measured = []
    for name, (array, work) in works.items():
        copy = partial(np.copyto, np.empty_like(array), array)
        work()
        ours, theirs = zip(*((shortest(work), shortest(copy)) for _ in range(repeats)), strict=True)
        measured.append(
            Figure(
                part="kernels",
                name=name,
                ours=list(ours),
                against=f"a copy of {array.nbytes / 1e3:,.0f} kB",
                theirs=list(theirs),
            )
        )
    return measured


def shortest(work: Callable[[], object]) -> float:
    """Of a few calls."""
    return min(seconds(work) for _ in range(CALLS))
