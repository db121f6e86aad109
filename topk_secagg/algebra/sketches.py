"""Sketches of sparse vectors: added up, and turned back into the vector behind them.

The sketch of a vector w of length n is S_j = sum_p w_p gamma^(p j) for j = 0, ..., W - 1, its first
W power sums, with gamma of order n in F_q*. It is linear in w.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from ..errors import BadData
from . import native
from .field import Integers, Symbols, ceil_div
from .native import Words
from .parallel import cores, together

ROWS_NAMED = 5  # in an error
ENTRIES_WORTH_THREADS = 1 << 16
VECTOR_SYMBOLS = 8  # of 32 bits, that a processor adds at once
R = 1 << 32  # see montgomery.py


class Entries(NamedTuple):
    """The non-zero entries of several vectors, vector by vector.

    How many each has, and their places and values.
    """

    counts: Integers
    place: Symbols
    value: Symbols


def add_sketches(
    row: Integers, place: Symbols, value: Symbols, gamma: int, q: int, total: Symbols
) -> None:
    """Add the sketches of sparse entries to the rows of `total` (rows, W), in place.

    total[row_i, j] += value_i gamma^(place_i j), for every entry i.
    """
    native.sketch(
        row=np.ascontiguousarray(row, np.int64),
        place=np.ascontiguousarray(place, np.uint32),
        value=np.ascontiguousarray(value),
        powers_m=_power_tables(gamma, _bits(place), q),
        q=q,
        out=total,
    )


def recover(
    sketches: Symbols, weight: int, order: int, gamma: int, q: int, places: int | None = None
) -> Entries:
    """For each sketch, the only vector with at most `weight` non-zero entries.

    sketches (rows, W1) with W1 = order, or W1 = 2 weight; then only the first `places` are
    searched, and time and memory go with these, which may be far fewer. A sketch that no such
    vector has is BadData, whatever the reason: what is found must give back all W1 symbols, and two
    vectors that both do would differ in at most W1 of the `order` places, hence nowhere.
    """
    rows, count = sketches.shape
    if count not in (order, 2 * weight) or count > order:
        raise ValueError(f"{count} symbols do not determine {weight} of {order} places")
    if sketches.max(initial=0) >= q:
        raise BadData("a symbol is not below the field's size")
    most = min(weight, order)
    weights = np.empty(rows, np.int64)
    place = np.empty(rows * most + 1, np.uint32)
    value = np.empty(rows * most + 1, np.uint32)
    if count == order:
        native.transform(
            sketches=np.ascontiguousarray(sketches),
            powers_m=_powers(gamma, order, q),
            most=most,
            q=q,
            weight=weights,
            place=place,
            value=value,
        )
    else:
        searched = order if places is None else places
        turns = 4 if order % 4 == 0 and order <= 2 * searched else 1  # see recovery._search
        native.solve(
            sketches=np.ascontiguousarray(sketches),
            powers_m=_powers(gamma, searched if turns == 1 else order, q),
            searched=searched,
            turns=turns,
            q=q,
            weight=weights,
            place=place,
            value=value,
        )
    bad = np.flatnonzero(weights < 0)
    if bad.size:
        named = ", ".join(map(str, bad[:ROWS_NAMED])) + (", ..." if bad.size > ROWS_NAMED else "")
        what = f"no vector with at most {weight} non-zero entries has this sketch"
        raise BadData(f"{what}: {bad.size} of {rows} rows ({named})")
    entries = int(weights.sum())
    return Entries(weights, place[:entries], value[:entries])


class _Run(NamedTuple):
    """Some of the parts, with the number of the first row of each."""

    parts: Sequence[Entries]
    firsts: Sequence[int]


def arranged(parts: Sequence[Entries], places: int) -> tuple[Symbols, Symbols]:
    """The index, place B + row, and the value of all entries of B vectors, by index.

    A counting sort, on each core for a run of the parts: first each run counts its entries at every
    place, so that it is known where they go; then each puts them there.
    """
    *firsts, buckets = np.cumsum([0, *(part.counts.size for part in parts)]).tolist()
    entries = sum(part.place.size for part in parts)
    size = max(1, ceil_div(len(parts), cores()))
    runs = [
        _Run(parts[at : at + size], firsts[at : at + size]) for at in range(0, len(parts), size)
    ]
    threads = cores() if entries > ENTRIES_WORTH_THREADS else 0
    counts = np.zeros((len(runs), places), np.int64)
    together((partial(_count, *pair) for pair in zip(runs, counts, strict=True)), threads)
    # where the entries of each run begin: place by place, and of a place run by run
    ends = np.cumsum(counts.T).reshape(places, len(runs)).T - counts
    indices = np.empty(entries, np.uint32)
    values = np.empty(entries, np.uint32)

    def put(run: _Run, own_ends: Integers) -> None:
        for part, first in zip(run.parts, run.firsts, strict=True):
            native.arrange(
                count=part.counts,
                place=part.place,
                value=part.value,
                first=first,
                buckets=buckets,
                ends=own_ends,
                indices=indices,
                values=values,
            )

    pairs = zip(runs, np.ascontiguousarray(ends), strict=True)
    together((partial(put, *pair) for pair in pairs), threads)
    return indices, values


def _count(run: _Run, counts: Integers) -> None:
    """counts[p] += how many entries of the run have place p."""
    for part in run.parts:
        native.count_places(part.place, counts)


def _powers(ratio: int, count: int, q: int) -> Words:
    """ratio^0, ratio^1, ... in Montgomery form."""
    powers_m = np.empty(count, np.uint64)
    if count:
        native.geometric(R % q, ratio * R % q, q=q, out=powers_m)
    return powers_m


@lru_cache(maxsize=8)
def _power_tables(gamma: int, bits: int, q: int) -> tuple[Words, Words]:
    """Two small tables, gamma^i and gamma^(j len(low)).

    Their products are all powers of gamma below 2^bits.
    """
    low = 1 << ceil_div(bits, 2)
    return _powers(gamma, low, q), _powers(pow(gamma, low, q), 1 << bits // 2, q)


def _bits(numbers: Symbols) -> int:
    """How many bits the largest has."""
    return int(numbers.max(initial=0)).bit_length()
