"""The kernels as typed functions: what they are given is checked here, and nothing else calls them.

A kernel is machine code and checks nothing, so a wrong size would read or write somebody else's
memory. Each function here checks the type, size and layout of every array, and every number that a
kernel uses as an index. A mistake is a ValueError: these are our own, never the user's.

When a process first uses a kernel, the kernel has to answer a question whose answer is known
(`questions`): a compiler that goes wrong, or other versions than we have tried, must not corrupt a
round silently. Kernels release the GIL.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from . import library
from .field import (
    COLUMN_BLOCKS,
    LANES,
    PIECE,
    POINTS_AT_ONCE,
    SPARE_ROWS,
    Symbols,
    ceil_div,
    montgomery_constants,
)

Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]
Singles = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

SYMBOL = np.dtype(np.uint32)
WORD = np.dtype(np.uint64)
INTEGER = np.dtype(np.int64)
SINGLE = np.dtype(np.float32)
DOUBLE = np.dtype(np.float64)

_answered: dict[str, library.Function] = {}  # the kernels that have answered their question
_questioned: dict[str, library.Function] = {}
_lock = RLock()  # a question calls its kernel, and comes back here


# Uniform symbols; see `randomness`


def accept(words: Symbols, limit: int, out: Symbols) -> int:
    """Put the words below the limit to the front of `out`, in their order; how many there are.

    What lies behind them in `out` may be overwritten too: it has room for all words.
    """
    count = _sizes(words, 1)[0]
    accepted = np.empty(1, INTEGER)
    _call(
        "accept",
        _read(words, SYMBOL, (count,)),
        count,
        limit,
        _write(out, SYMBOL, (count,)),
        _write(accepted, INTEGER, (1,)),
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
    streams, length = _sizes(words, 2)
    _, points, count = _sizes(sums, 3)
    _check_indices(filled, count + 1)
    read = np.empty(streams, INTEGER)
    scratch = np.empty(count, SYMBOL)
    total_at = _write(sums, WORD, (2, points, count))
    _call(
        "add_streams",
        _read(words, SYMBOL, (streams, length)),
        _read(matrix_mm, WORD, (points, streams)),
        streams,
        length,
        points,
        count,
        limit,
        _write(read, INTEGER, (streams,)),
        _write(filled, INTEGER, (streams,)),
        total_at,
        total_at + points * count * WORD.itemsize,
        _write(scratch, SYMBOL, (count,)),
    )
    return read


def reduce_sums(sums: Words, q: int, out: Symbols) -> None:
    """out (points, count) = R^-2 times the lazy sums (2, points, count)."""
    points, count = _sizes(out, 2)
    total_at = _read(sums, WORD, (2, points, count))
    _call(
        "reduce_sums",
        total_at,
        total_at + points * count * WORD.itemsize,
        points * count,
        *montgomery_constants(q),
        _write(out, SYMBOL, (points, count)),
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
    users, rows, width = _sizes(shares, 3)
    blocks = _sizes(sparse_m, 2)[1]
    noises = _sizes(dense_m, 2)[1]
    _check_indices(slot, blocks)
    _check_indices(place, width)
    _call(
        "encode",
        _read(dense_m, WORD, (users, noises)),
        _read(sparse_m, WORD, (users, blocks)),
        _read(noise, SYMBOL, (rows, noises, width)),
        _read(slot, INTEGER, (rows,)),
        _read(place, INTEGER, (rows,)),
        _read(scale, SYMBOL, (rows,)),
        users,
        blocks,
        rows,
        noises,
        width,
        *montgomery_constants(q),
        _write(shares, SYMBOL, (users, rows, width)),
    )


def eliminate(f: Symbols, h: Symbols, x_m: Words, q: int, total: Symbols) -> None:
    """total += sum_i x_i f_i - h_i."""
    rows, width = _sizes(f, 2)
    _call(
        "eliminate",
        _read(f, SYMBOL, (rows, width)),
        _read(h, SYMBOL, (rows, width)),
        _read(x_m, WORD, (rows,)),
        rows,
        width,
        *montgomery_constants(q),
        _write(total, SYMBOL, (width,)),
    )


def combine(
    matrix_mm: Words, y: Symbols, row: Indices, group: Indices, q: int, out: Symbols
) -> None:
    """out[b] = sum_u matrix[row_b, u] y[u, group_b]; the matrix is multiplied by R^2."""
    users, groups, width = _sizes(y, 3)
    points = _sizes(matrix_mm, 2)[0]
    blocks = _sizes(row, 1)[0]
    _check_indices(row, points)
    _check_indices(group, groups)
    sums = np.empty((2, width), WORD)
    sums_at = _write(sums, WORD, (2, width))
    _call(
        "combine",
        _read(matrix_mm, WORD, (points, users)),
        _read(y, SYMBOL, (users, groups, width)),
        _read(row, INTEGER, (blocks,)),
        _read(group, INTEGER, (blocks,)),
        points,
        users,
        groups,
        width,
        blocks,
        *montgomery_constants(q),
        _write(out, SYMBOL, (blocks, width)),
        sums_at,
        sums_at + width * WORD.itemsize,
    )


def weigh(y: Symbols, factors: Symbols, q: int, sums: Words) -> None:
    """sums[u, c, v] = sum_r factors[c, r] y[u, r PIECE + v] mod q; factors are below 2^22."""
    users, symbols = _sizes(y, 2)
    count, pieces = _sizes(factors, 2)
    if pieces * PIECE < symbols:
        raise ValueError(f"{pieces} factors are not enough for {symbols} symbols")
    _call(
        "weigh",
        _read(y, SYMBOL, (users, symbols)),
        _read(factors, SYMBOL, (count, pieces)),
        users,
        symbols,
        count,
        pieces,
        q,
        _write(sums, WORD, (users, count, PIECE)),
    )


# Moments; see `moments`


def count_places(place: Symbols, counts: Indices) -> None:
    """counts[p] += how many entries have place p."""
    entries = _sizes(place, 1)[0]
    places = _sizes(counts, 1)[0]
    _check_indices(place, places)
    _call(
        "count_places",
        _read(place, SYMBOL, (entries,)),
        entries,
        places,
        _write(counts, INTEGER, (places,)),
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
    rows = _sizes(count, 1)[0]
    entries = _sizes(place, 1)[0]
    places = _sizes(ends, 1)[0]
    room = _sizes(indices, 1)[0]
    _check_indices(place, places)
    if count.min(initial=0) < 0 or count.sum() != entries:
        raise ValueError(f"the rows do not have {entries} entries")
    _call(
        "arrange",
        _read(count, INTEGER, (rows,)),
        _read(place, SYMBOL, (entries,)),
        _read(value, SYMBOL, (entries,)),
        rows,
        entries,
        places,
        first,
        buckets,
        room,
        _write(ends, INTEGER, (places,)),
        _write(indices, SYMBOL, (room,)),
        _write(values, SYMBOL, (room,)),
    )


def geometric(first: int, ratio_m: int, q: int, out: Words) -> None:
    """out[j] = first ratio^j, both below q; `out` is not empty."""
    count = _sizes(out, 1)[0]
    if not count:
        raise ValueError("a geometric sequence has a first number")
    _call(
        "geometric",
        first,
        ratio_m,
        count,
        *montgomery_constants(q),
        _write(out, WORD, (count,)),
    )


def invert(values: Symbols, q: int, out_m: Words) -> None:
    """out[i] = 1 / values[i], in Montgomery form; no value is zero."""
    count = _sizes(values, 1)[0]
    _call(
        "invert",
        _read(values, SYMBOL, (count,)),
        count,
        *montgomery_constants(q),
        _write(out_m, WORD, (count,)),
    )


def share(
    place: Symbols,
    inverse_m: Words,
    point: Indices,
    matrix_m: Words,
    noise: Symbols,
    powers_m: tuple[Words, Words],
    q: int,
    shares: Symbols,
) -> None:
    """shares[m, i, j] = matrix[point_i, m, 0] inverse_i gamma^(place_i j)
    + sum_t matrix[point_i, m, 1 + t] noise[i, t, j].

    `powers_m` are the tables of `moments` with the powers of gamma.
    """
    users, rows, width = _sizes(shares, 3)
    points = _sizes(matrix_m, 3)[0]
    noises = _sizes(noise, 3)[1]
    low_m, high_m = powers_m
    low_size = _sizes(low_m, 1)[0]
    high_size = _sizes(high_m, 1)[0]
    _check_indices(point, points)
    _check_indices(place, low_size * high_size)
    if not width:
        raise ValueError("a place has at least one moment")
    secret = np.empty(width, WORD)
    _call(
        "share",
        _read(place, SYMBOL, (rows,)),
        _read(inverse_m, WORD, (rows,)),
        _read(point, INTEGER, (rows,)),
        _read(matrix_m, WORD, (points, users, 1 + noises)),
        _read(noise, SYMBOL, (rows, noises, width)),
        _read(low_m, WORD, (low_size,)),
        _read(high_m, WORD, (high_size,)),
        points,
        users,
        rows,
        noises,
        width,
        low_size,
        high_size,
        *montgomery_constants(q),
        _write(shares, SYMBOL, (users, rows, width)),
        _write(secret, WORD, (width,)),
    )


def tabulate(
    exponent: Symbols, powers_m: tuple[Words, Words], first: int, q: int, table: Symbols
) -> None:
    """table[i, j] = first gamma^(exponent_i j); `powers_m` as in `share`."""
    rows, width = _sizes(table, 2)
    low_m, high_m = powers_m
    low_size = _sizes(low_m, 1)[0]
    high_size = _sizes(high_m, 1)[0]
    _check_indices(exponent, low_size * high_size)
    if not width:
        raise ValueError("a place has at least one moment")
    _call(
        "tabulate",
        _read(exponent, SYMBOL, (rows,)),
        _read(low_m, WORD, (low_size,)),
        _read(high_m, WORD, (high_size,)),
        rows,
        width,
        low_size,
        high_size,
        first,
        *montgomery_constants(q),
        _write(table, SYMBOL, (rows, width)),
    )


def sketch(
    row: Indices,
    place: Symbols,
    value: Symbols,
    powers_m: tuple[Words, Words],
    q: int,
    out: Symbols,
) -> None:
    """out[row_i, j] += value_i gamma^(place_i j); `powers_m` as in `share`."""
    entries = _sizes(place, 1)[0]
    rows, width = _sizes(out, 2)
    low_m, high_m = powers_m
    low_size = _sizes(low_m, 1)[0]
    high_size = _sizes(high_m, 1)[0]
    _check_indices(row, rows)
    _check_indices(place, low_size * high_size)
    if not width:
        raise ValueError("a place has at least one moment")
    moments = np.empty(width, WORD)
    _call(
        "sketch",
        _read(row, INTEGER, (entries,)),
        _read(place, SYMBOL, (entries,)),
        _read(value, SYMBOL, (entries,)),
        _read(low_m, WORD, (low_size,)),
        _read(high_m, WORD, (high_size,)),
        entries,
        rows,
        width,
        low_size,
        high_size,
        *montgomery_constants(q),
        _write(out, SYMBOL, (rows, width)),
        _write(moments, WORD, (width,)),
    )


def answer(
    g: Symbols,
    shift: Symbols,
    value: Symbols,
    scale: Symbols,
    group: Indices,
    table: Symbols,
    q: int,
    out: Symbols,
) -> None:
    """out[group_k, j] += sum of value_i scale_k table[shift_i, j] g[i, j] / R^4.

    Row i of g is row k = i mod rows of a user, for `rows` entries of scale and group.
    """
    terms, length = _sizes(g, 2)
    rows = _sizes(scale, 1)[0]
    table_rows, width = _sizes(table, 2)
    groups, out_width = _sizes(out, 2)
    if not out_width <= width <= length:
        raise ValueError(f"{length} symbols of {width} moments do not make {out_width}")
    if terms % rows if rows else terms:
        raise ValueError(f"{terms} rows are not those of users with {rows} each")
    _check_indices(shift, table_rows)
    _check_indices(group, groups)
    sums = np.empty((2, width), WORD)
    sums_at = _write(sums, WORD, (2, width))
    _call(
        "answer",
        _read(g, SYMBOL, (terms, length)),
        _read(shift, SYMBOL, (terms,)),
        _read(value, SYMBOL, (terms,)),
        _read(scale, SYMBOL, (rows,)),
        _read(group, INTEGER, (rows,)),
        _read(table, SYMBOL, (table_rows, width)),
        terms,
        length,
        rows,
        table_rows,
        width,
        groups,
        out_width,
        *montgomery_constants(q),
        _write(out, SYMBOL, (groups, out_width)),
        sums_at,
        sums_at + width * WORD.itemsize,
    )


# Sparse vectors from moments; see `moments.recover`


def solve(
    moments: Symbols,
    powers_m: Words,
    searched: int,
    turns: int,
    q: int,
    weight: Indices,
    place: Symbols,
    value: Symbols,
) -> None:
    """The vector behind each row of moments, among the first `searched` places.

    powers_m[k] = gamma^k, for all places that are tried. They are cut into `turns` runs, 1 or 4.
    """
    rows, count = _sizes(moments, 2)
    tried = _sizes(powers_m, 1)[0]
    most = count // 2
    if turns not in (1, 4) or tried % turns or not 0 <= searched <= tried:
        raise ValueError(f"{searched} of {tried} places cannot be searched in {turns} turns")
    room = rows * most + 1
    points = tried // turns
    blocks = ceil_div(points, POINTS_AT_ONCE)
    columns = np.empty((COLUMN_BLOCKS, count + SPARE_ROWS, LANES), WORD)
    powers_mm = np.empty((most + 1, POINTS_AT_ONCE), WORD)
    marks = np.empty((blocks, turns, LANES), WORD)
    _call(
        "solve",
        _read(moments, SYMBOL, (rows, count)),
        _read(powers_m, WORD, (tried,)),
        rows,
        count,
        tried,
        searched,
        points,
        turns,
        blocks,
        *montgomery_constants(q),
        _write(weight, INTEGER, (rows,)),
        _write(place, SYMBOL, (room,)),
        _write(value, SYMBOL, (room,)),
        _write(columns, WORD, columns.shape),
        _write(powers_mm, WORD, powers_mm.shape),
        _write(marks, WORD, marks.shape),
    )


def transform(
    moments: Symbols,
    powers_m: Words,
    most: int,
    q: int,
    weight: Indices,
    place: Symbols,
    value: Symbols,
) -> None:
    """As `solve`, for as many moments as places; a vector has at most `most` entries."""
    rows, order = _sizes(moments, 2)
    if not order or most < 0:
        raise ValueError(f"{order} moments do not determine {most} places")
    room = rows * most + 1
    scratch = np.empty((3, order), WORD)
    _call(
        "transform",
        _read(moments, SYMBOL, (rows, order)),
        _read(powers_m, WORD, (order,)),
        rows,
        order,
        most,
        *montgomery_constants(q),
        _write(weight, INTEGER, (rows,)),
        _write(place, SYMBOL, (room,)),
        _write(value, SYMBOL, (room,)),
        _write(scratch, WORD, scratch.shape),
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
    length = _sizes(gradient, 1)[0]
    buckets, picks = _sizes(places, 2)
    if not buckets or not picks:
        raise ValueError("there are no buckets, or no picks")
    kept = np.empty((buckets, picks), kind)
    counts = np.zeros(buckets, INTEGER)
    _call(
        name,
        _read(gradient, kind, (length,)),
        length,
        buckets,
        picks,
        _write(limits, kind, (buckets,)),
        _write(kept, kind, (buckets, picks)),
        _write(places, INTEGER, (buckets, picks)),
        _write(counts, INTEGER, (buckets,)),
    )
    return counts


# What a kernel may be given


def _sizes(array: npt.NDArray[Any], dimensions: int) -> tuple[int, ...]:
    """The shape of an array with so many dimensions."""
    if array.ndim != dimensions:
        raise ValueError(f"a kernel takes an array of {dimensions} dimensions, not {array.ndim}")
    return array.shape


def _read(array: npt.NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """The address of an array of this type and shape, whose entries lie one behind the other."""
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(
            f"a kernel takes {dtype} of shape {shape}, not {array.dtype} of shape {array.shape}"
        )
    if not array.flags.c_contiguous:
        raise ValueError("a kernel takes contiguous arrays only")
    address: int = array.__array_interface__["data"][0]
    return address


def _write(array: npt.NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """The same of an array that may be written to."""
    if not array.flags.writeable:
        raise ValueError("a kernel writes to contiguous, writable arrays only")
    return _read(array, dtype, shape)


def _check_indices(indices: npt.NDArray[Any], size: int) -> None:
    """All are at least 0 and below the size. A negative number is a very large one without sign."""
    unsigned = indices.view(WORD) if indices.dtype == INTEGER else indices
    if int(unsigned.max(initial=0)) >= size and indices.size:
        raise ValueError(f"an index is not below {size}")


# Kernels that are loaded


def _call(name: str, *arguments: int) -> None:
    """Call a kernel."""
    function = _answered.get(name) or _questioned_kernel(name, len(arguments))
    function(*arguments)


def _questioned_kernel(name: str, count: int) -> library.Function:
    """A kernel that has shown, in this process, that it computes what it should."""
    with _lock:
        if name in _answered:  # asked by another thread meanwhile
            return _answered[name]
        if name in _questioned:  # it is its question that calls
            return _questioned[name]
        _questioned[name] = library.function(name, count)
        try:
            _ask(name)
            _answered[name] = _questioned[name]
        finally:
            del _questioned[name]
        return _answered[name]


def _ask(name: str) -> None:
    """RuntimeError if a kernel gives a wrong answer."""
    from . import questions

    question: Callable[[], bool] = getattr(questions, name)
    if not question():
        raise RuntimeError(
            f"the kernel {name} computes wrongly: compiled with {library.compilers()}, "
            f"on the processor {library.processor()}"
        )
