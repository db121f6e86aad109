"""The bulk arithmetic, as numba compiles it: exact for every prime q < 2^32. Loads numba.

Only `machine_code` loads this module, to compile it; `native` calls the kernels, and checks what it
gives them. The functions here check nothing.

A kernel is a C function. It takes pointers (`..._at`), the sizes of the arrays behind them, and
numbers; every kernel gets q and q^-1 mod 2^32. It returns nothing and allocates nothing: its last
arguments are the arrays it writes to, scratch space included. What it writes to never overlaps
another of its arrays, and the same holds for the functions that it calls: the compiler relies on it
(see `machine_code`). Symbols are 32-bit words, computed with in 64 bits. `montgomery` explains the
arithmetic; `_m` marks a number in Montgomery form.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from .entry import DoublesAt, IntegersAt, SinglesAt, Size, SymbolsAt, Word, WordsAt, kernel
from .field import PIECE
from .montgomery import (
    HALF,
    LOW,
    ONE,
    TWO,
    ZERO,
    montgomery,
    part,
    plus,
    power_m,
    reduced,
    times,
)

# The sum of so many products of 22 and 32 bits, and of one symbol, is below 2^64.
PRODUCTS_AT_ONCE = 1000
COMPARED_AT_ONCE = 16  # magnitudes
ACCEPTED_AT_ONCE = 32  # words; with the default field, nine runs in ten have none that is rejected


# Uniform symbols


@part
def _none_beyond(words: Any, most: Any) -> Any:
    """Whether no word is larger than `most`."""
    beyond = np.uint32(0)
    for i in range(len(words)):
        beyond |= np.uint32(words[i] > most)
    return beyond == 0


@part
def _copy(words: Any, out: Any) -> None:
    """out = words. (An assignment of slices would allocate, in case that they overlap.)"""
    for i in range(len(words)):
        out[i] = words[i]


@part
def _accepted(words: Any, most: Any, out: Any) -> Any:
    """The words that are at most `most`, in their order, until `out` is full: how many of the words
    were looked at, and how many were accepted.

    Few words are rejected, so a run of words without any is copied as it is. In the other runs every
    word is written, and the next one over it if it is rejected.
    """
    start = 0
    end = 0
    while start < len(words) and end < len(out):
        stop = min(start + ACCEPTED_AT_ONCE, len(words), start + len(out) - end)
        run = words[start:stop]
        if _none_beyond(run, most):
            _copy(run, out[end : end + len(run)])
            end += len(run)
        else:
            for i in range(len(run)):
                out[end] = run[i]
                end += run[i] <= most
        start = stop
    return start, end


@kernel
def accept(
    words_at: SymbolsAt, count: Size, limit: Word, out_at: SymbolsAt, accepted_at: IntegersAt
) -> None:
    """The words below the limit, in their order, and how many there are; there is room for all."""
    words = carray(words_at, count)
    out = carray(out_at, count)
    accepted = carray(accepted_at, 1)
    _, accepted[0] = _accepted(words, np.uint32(limit - ONE), out)


@part
def _add_lazily(factor: Any, vector: Any, total: Any, high: Any) -> None:
    """Add factor vector to a lazy sum (see `montgomery`)."""
    for j in range(len(vector)):
        product = (factor & LOW) * np.uint64(vector[j])
        total[j] += product
        high[j] += product >> HALF


@kernel
def add_streams(
    words_at: SymbolsAt,
    matrix_mm_at: WordsAt,
    streams: Size,
    length: Size,
    points: Size,
    count: Size,
    limit: Word,
    read_at: IntegersAt,
    filled_at: IntegersAt,
    total_at: WordsAt,
    high_at: WordsAt,
    scratch_at: SymbolsAt,
) -> None:
    """See `streams`: lazy sums (points, count) of the symbols of streams, times the matrix.

    filled[s] of the sums have the symbols of stream s already, and it goes on from there; read[s]
    says how many of its words were looked at.
    """
    words = carray(words_at, (streams, length))
    matrix_mm = carray(matrix_mm_at, (points, streams))
    read = carray(read_at, streams)
    filled = carray(filled_at, streams)
    total = carray(total_at, (points, count))
    high = carray(high_at, (points, count))
    scratch = carray(scratch_at, count)
    most = np.uint32(limit - ONE)
    for s in range(streams):
        first = filled[s]
        looked_at, accepted = _accepted(words[s], most, scratch[first:])
        last = first + accepted
        for x in range(points):
            _add_lazily(
                matrix_mm[x, s], scratch[first:last], total[x, first:last], high[x, first:last]
            )
        read[s] = looked_at
        filled[s] = last


@part
def _reduce(total: Any, high: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """out = R^-2 times a lazy sum."""
    for j in range(len(out)):
        out[j] = reduced(total[j], high[j], q, q_inverse)


@kernel
def reduce_sums(
    total_at: WordsAt, high_at: WordsAt, count: Size, q: Word, q_inverse: Word, out_at: SymbolsAt
) -> None:
    """out = R^-2 times lazy sums."""
    _reduce(carray(total_at, count), carray(high_at, count), q, q_inverse, carray(out_at, count))


# Lagrange interpolation of vectors


@part
def _add_products(factors_m: Any, vectors: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """out += sum_t factors[t] vectors[t]."""
    for t in range(len(factors_m)):
        factor_m = factors_m[t]
        vector = vectors[t]
        for j in range(len(out)):
            product = times(factor_m, np.uint64(vector[j]), q, q_inverse)
            out[j] = plus(product, np.uint64(out[j]), q)


@kernel
def encode(
    dense_m_at: WordsAt,
    sparse_m_at: WordsAt,
    noise_at: SymbolsAt,
    slot_at: IntegersAt,
    place_at: IntegersAt,
    scale_at: SymbolsAt,
    users: Size,
    blocks: Size,
    rows: Size,
    noises: Size,
    width: Size,
    q: Word,
    q_inverse: Word,
    shares_at: SymbolsAt,
) -> None:
    """See `linear.encode`."""
    dense_m = carray(dense_m_at, (users, noises))
    sparse_m = carray(sparse_m_at, (users, blocks))
    noise = carray(noise_at, (rows, noises, width))
    slot = carray(slot_at, rows)
    place = carray(place_at, rows)
    scale = carray(scale_at, rows)
    shares = carray(shares_at, (users, rows, width))
    for i in range(rows):
        for m in range(users):
            out = shares[m, i]
            out[:] = 0
            _add_products(dense_m[m], noise[i], q, q_inverse, out)
            entry = times(sparse_m[m, slot[i]], np.uint64(scale[i]), q, q_inverse)
            out[place[i]] = plus(entry, np.uint64(out[place[i]]), q)


@part
def _add_term(x_m: Any, f: Any, h: Any, q: Any, q_inverse: Any, total: Any) -> None:
    """total += x f - h."""
    for j in range(len(total)):
        product = times(x_m, np.uint64(f[j]), q, q_inverse)
        term = plus(product, q - np.uint64(h[j]), q)
        total[j] = plus(term, np.uint64(total[j]), q)


@kernel
def eliminate(
    f_at: SymbolsAt,
    h_at: SymbolsAt,
    x_m_at: WordsAt,
    rows: Size,
    width: Size,
    q: Word,
    q_inverse: Word,
    total_at: SymbolsAt,
) -> None:
    """See `linear.eliminate`."""
    f = carray(f_at, (rows, width))
    h = carray(h_at, (rows, width))
    x_m = carray(x_m_at, rows)
    total = carray(total_at, width)
    for i in range(rows):
        _add_term(x_m[i], f[i], h[i], q, q_inverse, total)


@part
def _add_halves(a: Any, x: Any, b: Any, y: Any, c: Any, z: Any, total: Any, high: Any) -> None:
    """Add a x + b y + c z to a lazy sum (see `montgomery`); three at a time save loads and stores.

    total += a x + b y + c z modulo 2^64, and high += the high halves of these products.
    """
    for j in range(len(total)):
        first = (a & LOW) * np.uint64(x[j])
        second = (b & LOW) * np.uint64(y[j])
        third = (c & LOW) * np.uint64(z[j])
        total[j] += first + second + third
        high[j] += (first >> HALF) + (second >> HALF) + (third >> HALF)


@kernel
def combine(
    matrix_mm_at: WordsAt,
    y_at: SymbolsAt,
    row_at: IntegersAt,
    group_at: IntegersAt,
    points: Size,
    users: Size,
    groups: Size,
    width: Size,
    blocks: Size,
    q: Word,
    q_inverse: Word,
    out_at: SymbolsAt,
    total_at: WordsAt,
    high_at: WordsAt,
) -> None:
    """See `linear.combine`."""
    matrix_mm = carray(matrix_mm_at, (points, users))
    y = carray(y_at, (users, groups, width))
    row = carray(row_at, blocks)
    group = carray(group_at, blocks)
    out = carray(out_at, (blocks, width))
    total = carray(total_at, width)
    high = carray(high_at, width)
    last = users - 1
    for b in range(blocks):
        factors = matrix_mm[row[b]]
        g = group[b]
        total[:] = 0
        high[:] = 0
        for u in range(0, users, 3):
            v = min(u + 1, last)
            w = min(u + 2, last)
            second = factors[v] if v > u else ZERO
            third = factors[w] if w > v else ZERO
            _add_halves(factors[u], y[u, g], second, y[v, g], third, y[w, g], total, high)
        _reduce(total, high, q, q_inverse, out[b])


@part
def _add_pieces(pieces: Any, factors: Any, sums: Any) -> None:
    """sums[v] += sum_r factors[r] pieces[r PIECE + v]."""
    for r in range(len(factors)):
        piece = pieces[r * PIECE : (r + 1) * PIECE]
        factor = np.uint64(factors[r])
        for v in range(PIECE):
            sums[v] += factor * np.uint64(piece[v])


@part
def _weigh(symbols: Any, factors: Any, q: Any, sums: Any) -> None:
    """sums[v] = sum_r factors[r] symbols[r PIECE + v] mod q, for factors below 2^22."""
    pieces = len(symbols) // PIECE
    sums[:] = 0
    for j in range(pieces * PIECE, len(symbols)):
        sums[j % PIECE] = np.uint64(factors[pieces]) * np.uint64(symbols[j])
    for first in range(0, max(1, pieces), PRODUCTS_AT_ONCE):
        last = min(first + PRODUCTS_AT_ONCE, pieces)
        _add_pieces(symbols[first * PIECE : last * PIECE], factors[first:last], sums)
        for v in range(PIECE):
            sums[v] %= q


@kernel
def weigh(
    y_at: SymbolsAt,
    factors_at: SymbolsAt,
    users: Size,
    symbols: Size,
    count: Size,
    pieces: Size,
    q: Word,
    sums_at: WordsAt,
) -> None:
    """See `linear.weighted_sums`."""
    y = carray(y_at, (users, symbols))
    factors = carray(factors_at, (count, pieces))
    sums = carray(sums_at, (users, count, PIECE))
    for u in range(users):
        for c in range(count):
            _weigh(y[u], factors[c], q, sums[u, c])


# Moments


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


@kernel
def invert(values_at: SymbolsAt, count: Size, q: Word, q_inverse: Word, out_m_at: WordsAt) -> None:
    """The inverses of symbols that are not zero, by one power (Montgomery's trick).

    On the way up out[i] is the product of the values before i; the power inverts the product of
    all; on the way down it loses one value with each step.
    """
    values = carray(values_at, count)
    out_m = carray(out_m_at, count)
    product_m = montgomery(ONE, q)
    for i in range(count):
        out_m[i] = product_m
        product_m = times(product_m, montgomery(np.uint64(values[i]), q), q, q_inverse)
    inverse_m = power_m(product_m, q - TWO, q, q_inverse)
    for i in range(count - 1, -1, -1):
        out_m[i] = times(out_m[i], inverse_m, q, q_inverse)
        inverse_m = times(inverse_m, montgomery(np.uint64(values[i]), q), q, q_inverse)


@kernel
def share(
    place_at: SymbolsAt,
    inverse_m_at: WordsAt,
    point_at: IntegersAt,
    matrix_m_at: WordsAt,
    noise_at: SymbolsAt,
    low_m_at: WordsAt,
    high_m_at: WordsAt,
    points: Size,
    users: Size,
    rows: Size,
    noises: Size,
    width: Size,
    low_size: Size,
    high_size: Size,
    q: Word,
    q_inverse: Word,
    shares_at: SymbolsAt,
    secret_at: WordsAt,
) -> None:
    """See `moments.share`; `secret` is room for the moments of one place."""
    place = carray(place_at, rows)
    inverse_m = carray(inverse_m_at, rows)
    point = carray(point_at, rows)
    matrix_m = carray(matrix_m_at, (points, users, 1 + noises))
    noise = carray(noise_at, (rows, noises, width))
    low_m = carray(low_m_at, low_size)
    high_m = carray(high_m_at, high_size)
    shares = carray(shares_at, (users, rows, width))
    secret = carray(secret_at, width)
    for i in range(rows):
        ratio_m = _power_m(np.uint64(place[i]), low_m, high_m, q, q_inverse)
        inverse = times(inverse_m[i], ONE, q, q_inverse)
        _geometric(inverse, ratio_m, q, q_inverse, secret)
        for m in range(users):
            out = shares[m, i]
            factors_m = matrix_m[point[i], m]
            _scale(factors_m[0], secret, q, q_inverse, out)
            _add_products(factors_m[1:], noise[i], q, q_inverse, out)


@kernel
def tabulate(
    exponent_at: SymbolsAt,
    low_m_at: WordsAt,
    high_m_at: WordsAt,
    rows: Size,
    width: Size,
    low_size: Size,
    high_size: Size,
    first: Word,
    q: Word,
    q_inverse: Word,
    table_at: SymbolsAt,
) -> None:
    """Row i of the table: first gamma^(exponent_i j)."""
    exponent = carray(exponent_at, rows)
    low_m = carray(low_m_at, low_size)
    high_m = carray(high_m_at, high_size)
    table = carray(table_at, (rows, width))
    for i in range(rows):
        ratio_m = _power_m(np.uint64(exponent[i]), low_m, high_m, q, q_inverse)
        _geometric(first, ratio_m, q, q_inverse, table[i])


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
    moments_at: WordsAt,
) -> None:
    """See `moments.sketch`; `moments` is room for those of one entry."""
    row = carray(row_at, entries)
    place = carray(place_at, entries)
    value = carray(value_at, entries)
    low_m = carray(low_m_at, low_size)
    high_m = carray(high_m_at, high_size)
    out = carray(out_at, (rows, width))
    moments = carray(moments_at, width)
    for i in range(entries):
        ratio_m = _power_m(np.uint64(place[i]), low_m, high_m, q, q_inverse)
        _geometric(np.uint64(value[i]), ratio_m, q, q_inverse, moments)
        _add(moments, q, out[row[i]])


@part
def _add_moved(
    powers: Any, factor: Any, vector: Any, q: Any, q_inverse: Any, total: Any, high: Any
) -> None:
    """Add factor powers[j] vector[j] to lazy sums (see `montgomery`), for every j.

    The powers of gamma move a place; `answer` says by which powers of R these are multiplied.
    """
    for j in range(len(total)):
        moved = times(np.uint64(powers[j]), factor, q, q_inverse)
        product = (moved & LOW) * np.uint64(vector[j])
        total[j] += product
        high[j] += product >> HALF


@part
def _add_reduced(total: Any, high: Any, q: Any, q_inverse: Any, out: Any) -> None:
    """out += R^-2 times a lazy sum."""
    for j in range(len(out)):
        out[j] = plus(reduced(total[j], high[j], q, q_inverse), np.uint64(out[j]), q)


@kernel
def answer(
    g_at: SymbolsAt,
    shift_at: SymbolsAt,
    value_at: SymbolsAt,
    scale_at: SymbolsAt,
    group_at: IntegersAt,
    table_at: SymbolsAt,
    terms: Size,
    length: Size,
    rows: Size,
    table_rows: Size,
    width: Size,
    groups: Size,
    out_width: Size,
    q: Word,
    q_inverse: Word,
    out_at: SymbolsAt,
    total_at: WordsAt,
    high_at: WordsAt,
) -> None:
    """See `moments.answer`: g (terms, length), and `rows` of the terms are of one user.

    The table (table_rows, width) has R^4 gamma^(shift j). A product with the factor divides that by
    R, the factor itself was divided by R, and the sum is divided by R^2. The width may be more than
    is written to `out` (groups, out_width): whole vectors are faster.
    """
    g = carray(g_at, (terms, length))
    shift = carray(shift_at, terms)
    value = carray(value_at, terms)
    scale = carray(scale_at, rows)
    group = carray(group_at, rows)
    table = carray(table_at, (table_rows, width))
    out = carray(out_at, (groups, out_width))
    total = carray(total_at, width)
    high = carray(high_at, width)
    end = 0
    while end < rows:
        first = end
        while end < rows and group[end] == group[first]:
            end += 1
        total[:] = 0
        high[:] = 0
        start = 0
        while start < terms:  # numba's `range` would look whether the step is zero
            for k in range(first, end):
                i = start + k
                factor = times(np.uint64(value[i]), np.uint64(scale[k]), q, q_inverse)
                _add_moved(table[shift[i]], factor, g[i], q, q_inverse, total, high)
            start += rows
        _add_reduced(total, high, q, q_inverse, out[group[first]])


# The largest magnitudes of buckets


@part
def _any_above(values: Any, limits: Any) -> Any:
    """Whether a magnitude is above its limit."""
    above = False
    for i in range(len(values)):
        above |= abs(values[i]) > limits[i]
    return above


@part
def _insert(magnitude: Any, at: Any, count: Any, kept: Any, places: Any) -> None:
    """Put a magnitude and its place into a list that decreases, behind those that are as large;
    the last one goes if the list is full. The first `count` entries are there."""
    j = min(count, len(kept) - 1)
    while j > 0 and kept[j - 1] < magnitude:
        kept[j] = kept[j - 1]
        places[j] = places[j - 1]
        j -= 1
    kept[j] = magnitude
    places[j] = at


@part
def _bucket_top(gradient: Any, limits: Any, kept: Any, places: Any, counts: Any) -> None:
    """See `select.bucket_top`: limits (B,) are what a magnitude must exceed to be listed."""
    buckets, picks = kept.shape
    start = 0
    place = 0
    while start < len(gradient):
        row = gradient[start : min(start + buckets, len(gradient))]
        first = 0
        while first < len(row):
            last = min(first + COMPARED_AT_ONCE, len(row))
            if _any_above(row[first:last], limits[first:last]):
                for b in range(first, last):
                    magnitude = abs(row[b])
                    if magnitude > limits[b]:
                        _insert(magnitude, place, counts[b], kept[b], places[b])
                        counts[b] = min(counts[b] + 1, picks)
                        if counts[b] == picks:
                            limits[b] = kept[b, picks - 1]
            first = last
        start += buckets
        place += 1


@kernel
def bucket_top_of_singles(
    gradient_at: SinglesAt,
    length: Size,
    buckets: Size,
    picks: Size,
    limits_at: SinglesAt,
    kept_at: SinglesAt,
    places_at: IntegersAt,
    counts_at: IntegersAt,
) -> None:
    """See `native.bucket_top`."""
    _bucket_top(
        carray(gradient_at, length),
        carray(limits_at, buckets),
        carray(kept_at, (buckets, picks)),
        carray(places_at, (buckets, picks)),
        carray(counts_at, buckets),
    )


@kernel
def bucket_top_of_doubles(
    gradient_at: DoublesAt,
    length: Size,
    buckets: Size,
    picks: Size,
    limits_at: DoublesAt,
    kept_at: DoublesAt,
    places_at: IntegersAt,
    counts_at: IntegersAt,
) -> None:
    """See `native.bucket_top`."""
    _bucket_top(
        carray(gradient_at, length),
        carray(limits_at, buckets),
        carray(kept_at, (buckets, picks)),
        carray(places_at, (buckets, picks)),
        carray(counts_at, buckets),
    )
