"""The kernels of sketches: places as powers of gamma, and the order of entries. Loads numba.

What a kernel is, and what it may rely on, stands in `kernels`; `recovery` has those that find a
sparse vector from its sketch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from .entry import IntegersAt, Size, SymbolsAt, Word, WordsAt, kernel
from .montgomery import part, plus, times


@kernel
def count_places(place_at: SymbolsAt, entries: Size, places: Size, counts_at: IntegersAt) -> None:
    """counts[p] += how many entries have place p."""
    place = carray(place_at, entries)
    counts = carray(counts_at, places)
    for i in range(entries):
        counts[place[i]] += 1


@kernel
def arrange(
    count_at: IntegersAt,
    place_at: SymbolsAt,
    value_at: SymbolsAt,
    rows: Size,
    entries: Size,
    places: Size,
    first: Word,
    buckets: Word,
    room: Size,
    ends_at: IntegersAt,
    indices_at: SymbolsAt,
    values_at: SymbolsAt,
) -> None:
    """Put the entries of some rows behind those of their place that are there already.

    ends[p] is where the next entry of place p goes, unless it is beyond the room. The index of an
    entry is place buckets + row.
    """
    count = carray(count_at, rows)
    place = carray(place_at, entries)
    value = carray(value_at, entries)
    ends = carray(ends_at, places)
    indices = carray(indices_at, room)
    values = carray(values_at, room)
    i = 0
    for row in range(rows):
        for _ in range(count[row]):
            p = place[i]
            end = ends[p]
            if 0 <= end < room:  # nobody else can check this without doing the work
                indices[end] = np.uint64(p) * buckets + first + np.uint64(row)
                values[end] = value[i]
            ends[p] = end + 1
            i += 1


@part
def _scale(factor_m: Any, vector: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """out = factor vector."""
    for j in range(len(out)):
        out[j] = times(factor_m, np.uint64(vector[j]), q, q_inverse)


@part
def _geometric(first: Any, ratio_m: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """out[j] = first ratio^j, twice as many with each step."""
    out[0] = first
    filled = 1
    while filled < len(out):
        _scale(ratio_m, out[:filled], q, q_inverse, out[filled : 2 * filled])
        ratio_m = times(ratio_m, ratio_m, q, q_inverse)
        filled *= 2


@kernel
def geometric(
    first: Word, ratio_m: Word, count: Size, q: Word, q_inverse: Word, out_at: WordsAt
) -> None:
    """out[j] = first ratio^j; there is at least one."""
    _geometric(first, ratio_m, q, q_inverse, carray(out_at, count))


@part
def _power_m(exponent: Any, low_m: Any, high_m: Any, q: Any, q_inverse: Any) -> Any:
    """gamma^exponent from two tables: low_m[e] = gamma^e, and high_m[e] = gamma^(e len(low))."""
    digit = np.uint64(len(low_m))
    return times(low_m[exponent % digit], high_m[exponent // digit], q, q_inverse)


@part
def _add(vector: Any, q: Any, out: Any) -> None:
    """out += vector."""
    for j in range(len(out)):
        out[j] = plus(np.uint64(vector[j]), np.uint64(out[j]), q)


@kernel
def sketch(
    row_at: IntegersAt,
    place_at: SymbolsAt,
    value_at: SymbolsAt,
    low_m_at: WordsAt,
    high_m_at: WordsAt,
    entries: Size,
    rows: Size,
    width: Size,
    low_size: Size,
    high_size: Size,
    q: Word,
    q_inverse: Word,
    out_at: SymbolsAt,
    one_at: WordsAt,
) -> None:
    """See `sketches.add_sketches`; `one` is room for that of one entry."""
    row = carray(row_at, entries)
    place = carray(place_at, entries)
    value = carray(value_at, entries)
    low_m = carray(low_m_at, low_size)
    high_m = carray(high_m_at, high_size)
    out = carray(out_at, (rows, width))
    one = carray(one_at, width)
    for i in range(entries):
        ratio_m = _power_m(np.uint64(place[i]), low_m, high_m, q, q_inverse)
        _geometric(np.uint64(value[i]), ratio_m, q, q_inverse, one)
        _add(one, q, out[row[i]])
