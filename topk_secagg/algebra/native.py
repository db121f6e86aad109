"""The kernels as typed functions: what they are given is checked here, and nothing else calls them.

Each function checks the type, size and layout of every array, and every number that a kernel uses
as an index; see `calls` for how, and for what happens when a process first uses a kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .calls import (
    DOUBLE,
    INTEGER,
    SINGLE,
    SYMBOL,
    WORD,
    call,
    check_indices,
    input_at,
    output_at,
    sizes,
)
from .field import (
    COLUMN_BLOCKS,
    EXTRA_ROWS,
    LANES,
    PIECE,
    POINTS_AT_ONCE,
    Symbols,
    ceil_div,
    montgomery_constants,
)

Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]
Singles = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


# Uniform symbols; see `randomness`


def accept(words: Symbols, limit: int, out: Symbols) -> int:
    """Put the words below the limit to the front of `out`, in their order; how many there are.

    What lies behind them in `out` may be overwritten too: it has room for all words.
    """
    count = sizes(words, 1)[0]
    accepted = np.empty(1, INTEGER)
    call(
        "accept",
        input_at(words, SYMBOL, (count,)),
        count,
        limit,
        output_at(out, SYMBOL, (count,)),
        output_at(accepted, INTEGER, (1,)),
    )
    return int(accepted[0])


# Sums of streams of uniform symbols; see `streams`


def add_streams(
    words: Symbols, matrix_mm: Words, limit: int, filled: Indices, sums: Words
) -> Indices:
    """Add matrix[x, s] times the words below the limit of each stream s to the lazy sums of x.

    words (streams, length); the sums (2, points, count) have filled[s] symbols of stream s already;
    `filled` moves on, to `count` at the most. How many words of each stream were looked at.
    """
    streams, length = sizes(words, 2)
    _, points, count = sizes(sums, 3)
    check_indices(filled, count + 1)
    read = np.empty(streams, INTEGER)
    scratch = np.empty(count, SYMBOL)
    total_at = output_at(sums, WORD, (2, points, count))
    call(
        "add_streams",
        input_at(words, SYMBOL, (streams, length)),
        input_at(matrix_mm, WORD, (points, streams)),
        streams,
        length,
        points,
        count,
        limit,
        output_at(read, INTEGER, (streams,)),
        output_at(filled, INTEGER, (streams,)),
        total_at,
        total_at + points * count * WORD.itemsize,
        output_at(scratch, SYMBOL, (count,)),
    )
    return read


def reduce_sums(sums: Words, q: int, out: Symbols) -> None:
    """out (points, count) = R^-2 times the lazy sums (2, points, count)."""
    points, count = sizes(out, 2)
    total_at = input_at(sums, WORD, (2, points, count))
    call(
        "reduce_sums",
        total_at,
        total_at + points * count * WORD.itemsize,
        points * count,
        *montgomery_constants(q),
        output_at(out, SYMBOL, (points, count)),
    )


# Lagrange interpolation of vectors; see `linear`


def encode(
    dense_m: Words,
    sparse_m: Words,
    noise: Symbols,
    slot: Indices,
    place: Indices,
    scale: Symbols,
    q: int,
    shares: Symbols,
) -> None:
    """shares[m, i] = sum_t dense[m, t] noise[i, t] + sparse[m, slot_i] scale_i e_(place_i)."""
    users, rows, width = sizes(shares, 3)
    blocks = sizes(sparse_m, 2)[1]
    noises = sizes(dense_m, 2)[1]
    check_indices(slot, blocks)
    check_indices(place, width)
    call(
        "encode",
        input_at(dense_m, WORD, (users, noises)),
        input_at(sparse_m, WORD, (users, blocks)),
        input_at(noise, SYMBOL, (rows, noises, width)),
        input_at(slot, INTEGER, (rows,)),
        input_at(place, INTEGER, (rows,)),
        input_at(scale, SYMBOL, (rows,)),
        users,
        blocks,
        rows,
        noises,
        width,
        *montgomery_constants(q),
        output_at(shares, SYMBOL, (users, rows, width)),
    )


def eliminate(f: Symbols, h: Symbols, x_m: Words, q: int, total: Symbols) -> None:
    """total += sum_i x_i f_i - h_i."""
    rows, width = sizes(f, 2)
    call(
        "eliminate",
        input_at(f, SYMBOL, (rows, width)),
        input_at(h, SYMBOL, (rows, width)),
        input_at(x_m, WORD, (rows,)),
        rows,
        width,
        *montgomery_constants(q),
        output_at(total, SYMBOL, (width,)),
    )


def combine(
    matrix_mm: Words, y: Symbols, row: Indices, group: Indices, q: int, out: Symbols
) -> None:
    """out[b] = sum_u matrix[row_b, u] y[u, group_b]; the matrix is multiplied by R^2."""
    users, groups, width = sizes(y, 3)
    points = sizes(matrix_mm, 2)[0]
    blocks = sizes(row, 1)[0]
    check_indices(row, points)
    check_indices(group, groups)
    sums = np.empty((2, width), WORD)
    sums_at = output_at(sums, WORD, (2, width))
    call(
        "combine",
        input_at(matrix_mm, WORD, (points, users)),
        input_at(y, SYMBOL, (users, groups, width)),
        input_at(row, INTEGER, (blocks,)),
        input_at(group, INTEGER, (blocks,)),
        points,
        users,
        groups,
        width,
        blocks,
        *montgomery_constants(q),
        output_at(out, SYMBOL, (blocks, width)),
        sums_at,
        sums_at + width * WORD.itemsize,
    )


def weigh(y: Symbols, factors: Symbols, q: int, sums: Words) -> None:
    """sums[u, c, v] = sum_r factors[c, r] y[u, r PIECE + v] mod q; factors are below 2^22."""
    users, symbols = sizes(y, 2)
    count, pieces = sizes(factors, 2)
    if pieces * PIECE < symbols:
        raise ValueError(f"{pieces} factors are not enough for {symbols} symbols")
    call(
        "weigh",
        input_at(y, SYMBOL, (users, symbols)),
        input_at(factors, SYMBOL, (count, pieces)),
        users,
        symbols,
        count,
        pieces,
        q,
        output_at(sums, WORD, (users, count, PIECE)),
    )


# Sketches; see `sketches`


def count_places(place: Symbols, counts: Indices) -> None:
    """counts[p] += how many entries have place p."""
    entries = sizes(place, 1)[0]
    places = sizes(counts, 1)[0]
    check_indices(place, places)
    call(
        "count_places",
        input_at(place, SYMBOL, (entries,)),
        entries,
        places,
        output_at(counts, INTEGER, (places,)),
    )


def arrange(
    count: Indices,
    place: Symbols,
    value: Symbols,
    first: int,
    buckets: int,
    ends: Indices,
    indices: Symbols,
    values: Symbols,
) -> None:
    """Put entry i, of row r, to where ends[place_i] says, and move that on.

    Its index is place_i B + r. Row first + j has count_j entries. Entries that `ends` sends beyond
    the room are left out.
    """
    rows = sizes(count, 1)[0]
    entries = sizes(place, 1)[0]
    places = sizes(ends, 1)[0]
    room = sizes(indices, 1)[0]
    check_indices(place, places)
    if count.min(initial=0) < 0 or count.sum() != entries:
        raise ValueError(f"the rows do not have {entries} entries")
    call(
        "arrange",
        input_at(count, INTEGER, (rows,)),
        input_at(place, SYMBOL, (entries,)),
        input_at(value, SYMBOL, (entries,)),
        rows,
        entries,
        places,
        first,
        buckets,
        room,
        output_at(ends, INTEGER, (places,)),
        output_at(indices, SYMBOL, (room,)),
        output_at(values, SYMBOL, (room,)),
    )


def geometric(first: int, ratio_m: int, q: int, out: Words) -> None:
    """out[j] = first ratio^j, both below q; `out` is not empty."""
    count = sizes(out, 1)[0]
    if not count:
        raise ValueError("a geometric sequence has a first number")
    call(
        "geometric",
        first,
        ratio_m,
        count,
        *montgomery_constants(q),
        output_at(out, WORD, (count,)),
    )


def sketch(
    row: Indices,
    place: Symbols,
    value: Symbols,
    powers_m: tuple[Words, Words],
    q: int,
    out: Symbols,
) -> None:
    """out[row_i, j] += value_i gamma^(place_i j).

    `powers_m` are the tables of `sketches` with the powers of gamma.
    """
    entries = sizes(place, 1)[0]
    rows, width = sizes(out, 2)
    low_m, high_m = powers_m
    low_size = sizes(low_m, 1)[0]
    high_size = sizes(high_m, 1)[0]
    check_indices(row, rows)
    check_indices(place, low_size * high_size)
    if not width:
        raise ValueError("a sketch has at least one symbol")
    one = np.empty(width, WORD)
    call(
        "sketch",
        input_at(row, INTEGER, (entries,)),
        input_at(place, SYMBOL, (entries,)),
        input_at(value, SYMBOL, (entries,)),
        input_at(low_m, WORD, (low_size,)),
        input_at(high_m, WORD, (high_size,)),
        entries,
        rows,
        width,
        low_size,
        high_size,
        *montgomery_constants(q),
        output_at(out, SYMBOL, (rows, width)),
        output_at(one, WORD, (width,)),
    )


# Sparse vectors from their sketches; see `sketches.recover`


def solve(
    sketches: Symbols,
    powers_m: Words,
    searched: int,
    turns: int,
    q: int,
    weight: Indices,
    place: Symbols,
    value: Symbols,
) -> None:
    """The vector behind each sketch, among the first `searched` places.

    powers_m[k] = gamma^k, for all places that are tried. They are cut into `turns` runs, 1 or 4.
    """
    rows, count = sizes(sketches, 2)
    tried = sizes(powers_m, 1)[0]
    most = count // 2
    if turns not in (1, 4) or tried % turns or not 0 <= searched <= tried:
        raise ValueError(f"{searched} of {tried} places cannot be searched in {turns} turns")
    room = rows * most + 1
    points = tried // turns
    blocks = ceil_div(points, POINTS_AT_ONCE)
    columns = np.empty((COLUMN_BLOCKS, count + EXTRA_ROWS, LANES), WORD)
    powers_mm = np.empty((most + 1, POINTS_AT_ONCE), WORD)
    marks = np.empty((blocks, turns, LANES), WORD)
    call(
        "solve",
        input_at(sketches, SYMBOL, (rows, count)),
        input_at(powers_m, WORD, (tried,)),
        rows,
        count,
        tried,
        searched,
        points,
        turns,
        blocks,
        *montgomery_constants(q),
        output_at(weight, INTEGER, (rows,)),
        output_at(place, SYMBOL, (room,)),
        output_at(value, SYMBOL, (room,)),
        output_at(columns, WORD, columns.shape),
        output_at(powers_mm, WORD, powers_mm.shape),
        output_at(marks, WORD, marks.shape),
    )


def transform(
    sketches: Symbols,
    powers_m: Words,
    most: int,
    q: int,
    weight: Indices,
    place: Symbols,
    value: Symbols,
) -> None:
    """As `solve`, for as many symbols as places; a vector has at most `most` entries."""
    rows, order = sizes(sketches, 2)
    if not order or most < 0:
        raise ValueError(f"{order} symbols do not determine {most} places")
    room = rows * most + 1
    scratch = np.empty((3, order), WORD)
    call(
        "transform",
        input_at(sketches, SYMBOL, (rows, order)),
        input_at(powers_m, WORD, (order,)),
        rows,
        order,
        most,
        *montgomery_constants(q),
        output_at(weight, INTEGER, (rows,)),
        output_at(place, SYMBOL, (room,)),
        output_at(value, SYMBOL, (room,)),
        output_at(scratch, WORD, scratch.shape),
    )


# The largest magnitudes of buckets; see `gradients/select`


def bucket_top_of_singles(gradient: Singles, limits: Singles, places: Indices) -> Indices:
    """The places (B, P) of the largest magnitudes above the limit (B,) of each bucket, from the
    largest on, and how many there are. Equal ones are listed from the first place on.

    Coordinate k lies in bucket k mod B at place k // B. The limits are raised to the smallest
    magnitude of a bucket that has P.
    """
    return _bucket_top("bucket_top_of_singles", SINGLE, gradient, limits=limits, places=places)


def bucket_top_of_doubles(gradient: Doubles, limits: Doubles, places: Indices) -> Indices:
    """The same in double precision."""
    return _bucket_top("bucket_top_of_doubles", DOUBLE, gradient, limits=limits, places=places)


def _bucket_top(
    name: str,
    kind: np.dtype[Any],
    gradient: npt.NDArray[Any],
    limits: npt.NDArray[Any],
    places: Indices,
) -> Indices:
    """What both do."""
    length = sizes(gradient, 1)[0]
    buckets, picks = sizes(places, 2)
    if not buckets or not picks:
        raise ValueError("there are no buckets, or no picks")
    kept = np.empty((buckets, picks), kind)
    counts = np.zeros(buckets, INTEGER)
    call(
        name,
        input_at(gradient, kind, (length,)),
        length,
        buckets,
        picks,
        output_at(limits, kind, (buckets,)),
        output_at(kept, kind, (buckets, picks)),
        output_at(places, INTEGER, (buckets, picks)),
        output_at(counts, INTEGER, (buckets,)),
    )
    return counts
