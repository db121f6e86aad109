"""The kernels, one thread each, against a copy of the bytes that they write or read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from measuring import Figure, seconds
from topk_secagg.algebra.moments import add_moments, answer, recover, share

from topk_secagg.algebra import native
from topk_secagg.algebra.field import DEFAULT_FIELD, smallest_generator
from topk_secagg.algebra.linear import combine

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
    """At the sizes of the paper's experiment: 2,000 picks, 40 moments each."""
    rng = np.random.default_rng(0)
    gamma = pow(smallest_generator(Q), (Q - 1) // ORDER, Q)

    def symbols(*shape: int, low: int = 0, high: int = Q) -> np.ndarray:
        return rng.integers(low, high, size=shape, dtype=np.uint32)

    place = symbols(ROWS, high=ORDER)
    factor = symbols(ROWS, low=1)
    point = np.arange(ROWS) % (N - T)
    matrix = symbols(N - T, N, 1 + T).astype(np.uint64)
    noise = symbols(ROWS, T, WIDTH)
    shares = symbols(N, ROWS, WIDTH)
    group = np.arange(ROWS) // (P * D)
    total = np.zeros((ROWS // (P * D), WIDTH), np.uint32)
    y = symbols(D + T, ROWS // D, WIDTH)
    decoding = symbols(N - T, D + T).astype(np.uint64)
    bucket = np.arange(ROWS)
    sums = np.zeros((ROWS, WIDTH), np.uint32)  # of N P random entries in every bucket
    entries = np.concatenate([rng.choice(ORDER, N * P, replace=False) for _ in range(ROWS)]).astype(
        np.uint32
    )
    value = symbols(ROWS * N * P, low=1)
    rows = np.arange(ROWS).repeat(N * P)
    add_moments(rows, entries, value, gamma=gamma, q=Q, total=sums)
    words = symbols(4, ROWS * WIDTH, high=2**32)
    factors = symbols(1, 4).astype(np.uint64)
    lazy = np.zeros((2, 1, ROWS * WIDTH), np.uint64)

    works = {
        "share (offline)": (
            shares,
            lambda: share(
                place=place,
                factor=factor,
                point=point,
                matrix=matrix,
                noise=noise,
                gamma=gamma,
                q=Q,
                shares=shares,
            ),
        ),
        "answer (eliminate)": (
            shares[0],
            lambda: answer(
                g=shares[0],
                shift=place,
                value=factor,
                scale=factor,
                group=group,
                gamma=gamma,
                q=Q,
                total=total,
            ),
        ),
        "combine (decode)": (
            sums,
            lambda: combine(decoding, y, row=bucket % (N - T), group=bucket // D, q=Q),
        ),
        "sketch (mask)": (
            sums,
            lambda: add_moments(rows, entries, value, gamma=gamma, q=Q, total=sums.copy()),
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
