"""Moments of sparse vectors: shared, summed, and turned back into the one sparse vector behind them.

The moments of place p are v_p = (gamma^(p j)) for j = 0, 1, ..., with gamma of order n in F_q*. The moments of
a vector w of length n are sum_p w_p v_p; moving a place by delta multiplies entry j by gamma^(delta j).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import BadData
from .field import LANES, Integers, Symbols, montgomery_constants, to_montgomery
from .native import run
from .parallel import cores, together

_ROWS_NAMED = 5
_WORTH_THREADS = 1 << 16  # entries


class Entries(NamedTuple):
    """The non-zero entries of several vectors, vector by vector: how many each has, and their places and values."""

    counts: Integers
    place: Symbols
    value: Symbols


def share(
    place: Symbols,
    factor: Symbols,
    point: Integers,
    matrix: Integers,
    noise: Symbols,
    gamma: int,
    q: int,
    shares: Symbols,
) -> None:
    """Shamir sharings of factor^-1 v_place, evaluated for every user: shares (N, rows, W).

    shares[m, i, j] = factor_i^-1 gamma^(place_i j) + sum_t matrix[point_i, m, t] noise[i, t, j],
    with matrix (points, N, T) and noise (rows, T, W).
    """
    inverse_m = _words(factor.size)
    run("invert", factor, *montgomery_constants(q), out=(inverse_m,))
    bits, out = int(place.max(initial=0)).bit_length(), (shares, _words(shares.shape[2]))
    tables = _power_tables(gamma, bits, q)
    run(
        "share",
        place,
        inverse_m,
        point,
        to_montgomery(matrix, q),
        noise,
        *tables,
        *montgomery_constants(q),
        out=out,
    )


def answer(
    g: Symbols,
    shift: Symbols,
    value: Symbols,
    scale: Symbols,
    group: Integers,
    gamma: int,
    q: int,
    total: Symbols,
) -> None:
    """Add the rows of g, moved and scaled, to their groups: total (groups, W1), g (rows, at least W1).

    total[group_i, j] += value_i scale_i gamma^(shift_i j) g[i, j]. The rows may be those of several users, one behind
    the other: `scale` and `group` are for the rows of one.
    """
    bits, width = (
        int(shift.max(initial=0)).bit_length(),
        min(-(-total.shape[1] // 8) * 8, g.shape[1]),
    )  # whole vectors
    if 1 << bits <= shift.size:  # each power is used more than once
        table = _all_moments(gamma, bits, width, q)
    else:
        table, shift = (
            _moments_of(shift, bits, gamma, width, q),
            np.arange(shift.size, dtype=np.uint32),
        )
    run(
        "answer",
        g,
        shift,
        value,
        scale,
        group,
        table,
        *montgomery_constants(q),
        out=(total, *_words(2, width)),
    )


def _moments_of(places: Symbols, bits: int, gamma: int, width: int, q: int) -> Symbols:
    """The first `width` moments of each place below 2^bits, times R^4."""
    table = np.empty((places.size, width), np.uint32)
    run(
        "tabulate",
        places,
        *_power_tables(gamma, bits, q),
        pow(2, 128, q),
        *montgomery_constants(q),
        out=(table,),
    )
    return table


@lru_cache(maxsize=2)
def _all_moments(gamma: int, bits: int, width: int, q: int) -> Symbols:
    return _moments_of(np.arange(1 << bits, dtype=np.uint32), bits, gamma, width, q)


def recover(
    moments: Symbols, weight: int, order: int, gamma: int, q: int, places: int | None = None
) -> Entries:
    """For each row of moments, the only vector with at most `weight` non-zero entries.

    moments (rows, W1) with W1 = order, or W1 = 2 weight; then only the first `places` are searched, and time and memory
    go with these, which may be far fewer. A row that no such vector has is BadData, whatever the reason: what is found
    must give back all W1 moments, and two vectors that both do would differ in at most W1 of the `order` places, hence
    nowhere.
    """
    rows, count = moments.shape
    if count not in (order, 2 * weight) or count > order:
        raise ValueError(f"{count} moments do not determine {weight} of {order} places")
    if moments.max(initial=0) >= q:
        raise BadData("a moment is not below the field's size")
    most = min(weight, order)
    found = np.empty(rows, np.int64)
    place, value = (np.empty(rows * most + 1, np.uint32) for _ in range(2))
    constants, out = montgomery_constants(q), (found, place, value)
    if count == order:
        run(
            "transform",
            moments,
            _powers(gamma, order, q),
            most,
            *constants,
            out=(*out, _words(3, order)),
        )
    else:
        searched = order if places is None else places
        turns = 4 if order % 4 == 0 and order <= 2 * searched else 1  # see recovery._search
        tried = searched if turns == 1 else order
        marks = _words(-(-tried // turns // 64), turns, LANES)
        scratch = _words(9, count + 5, LANES), _words(most + 1, 64), marks
        run(
            "solve",
            moments,
            _powers(gamma, tried, q),
            searched,
            tried // turns,
            *constants,
            out=(*out, *scratch),
        )
    bad = np.flatnonzero(found < 0)
    if bad.size:
        named = ", ".join(map(str, bad[:_ROWS_NAMED])) + (", ..." if bad.size > _ROWS_NAMED else "")
        what = f"no vector with at most {weight} non-zero entries has these moments"
        raise BadData(f"{what}: {bad.size} of {rows} rows ({named})")
    entries = int(found.sum())
    return Entries(found, place[:entries], value[:entries])


def arranged(parts: Sequence[Entries], places: int) -> tuple[Symbols, Symbols]:
    """The index, place B + row, and the value of all entries of B vectors, by index.

    A counting sort, on each core for a run of the parts: where the entries of a place go is known for every run.
    """
    firsts = np.cumsum([0, *(part.counts.size for part in parts)]).tolist()
    buckets, entries, size = (
        firsts[-1],
        sum(part.place.size for part in parts),
        -(-len(parts) // cores()) or 1,
    )
    runs = [
        list(zip(parts, firsts, strict=False))[at : at + size] for at in range(0, len(parts), size)
    ]

    def go(ends: Integers, *out: Symbols) -> None:
        def arrange(run_parts: Sequence[tuple[Entries, int]], own: Integers) -> None:
            for part, first in run_parts:
                run("arrange", *part, first, buckets, out=(own, *out))

        calls = (
            partial(arrange, run_parts, own) for run_parts, own in zip(runs, ends, strict=True)
        )
        together(calls, cores() if entries > _WORTH_THREADS else 0)

    counts = np.zeros((len(runs), places), np.int64)
    go(counts, *np.empty((2, 0), np.uint32))
    indices, values = (np.empty(entries, np.uint32) for _ in range(2))
    go(
        np.ascontiguousarray(np.cumsum(counts.T).reshape(places, -1).T) - counts, indices, values
    )  # place by place
    return indices, values


def _powers(ratio: int, count: int, q: int) -> NDArray[np.uint64]:
    """ratio^0, ratio^1, ... in Montgomery form."""
    powers_m = _words(count)
    if not count:
        return powers_m
    run("geometric", (1 << 32) % q, (ratio << 32) % q, *montgomery_constants(q), out=(powers_m,))
    return powers_m


@lru_cache(maxsize=8)
def _power_tables(gamma: int, bits: int, q: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Two small tables whose products are all powers of gamma below 2^bits: gamma^(i + j len(low))."""
    low = 1 << -(-bits // 2)
    return _powers(gamma, low, q), _powers(pow(gamma, low, q), 1 << bits // 2, q)


def _words(*shape: int) -> NDArray[np.uint64]:
    """Scratch space of a kernel."""
    return np.empty(shape, np.uint64)
