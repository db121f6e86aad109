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

from .entry import IntegersAt, Size, SymbolsAt, Word, WordsAt, kernel
from .field import PIECE
from .montgomery import (
    HALF,
    LOW,
    ONE,
    ZERO,
    part,
    plus,
    reduced,
    times,
)

# The sum of so many products of 22 and 32 bits, and of one symbol, is below 2^64.
PRODUCTS_AT_ONCE = 1000
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

    Few words are rejected, so a run of words without any is copied as it is. In the other runs
    every word is written, and the next one over it if it is rejected.
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
def add_products(factors_m: Any, vectors: Any, q: Any, q_inverse: Any, out: Any) -> None:
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
            add_products(dense_m[m], noise[i], q, q_inverse, out)
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
