"""Low rank and quantising in plain Python integers, fractions and floats. It imports nothing of the
library.

A float is used only where the scheme has one: for reals, and where one operation rounds them. A
matrix is a list of rows.
"""

import hashlib
import struct
from fractions import Fraction
from itertools import pairwise, product
from math import floor, frexp, ldexp, prod

import bases_oracle
import oracle

BASIS = 1 << 20
LEAST_EXPONENT = -900
OTHER = {"right": "left", "left": "right"}


def axes(shape):
    """out, in, height, width."""
    return shape if len(shape) == 4 else [shape[0], prod(shape[1:]), 1, 1]


def matrix_shape(shape):
    out, inputs, height, width = axes(shape)
    return out * height, inputs * width


def is_projected(shape, rank):
    return len(shape) > 1 and rank < min(matrix_shape(shape))


def places(shape):
    """(row, column) of every entry of a tensor, in C order."""
    out, inputs, height, width = axes(shape)
    for o, i, h, w in product(range(out), range(inputs), range(height), range(width)):
        yield o * height + h, i * width + w


def matrix(flat, shape):
    rows, columns = matrix_shape(shape)
    G = [[None] * columns for _ in range(rows)]
    for value, (row, column) in zip(flat, places(shape), strict=True):
        G[row][column] = value
    return G


def transposed(G):
    return [list(row) for row in zip(*G, strict=True)]


def times(left, right):
    """left right, of integers."""
    columns = transposed(right)
    return [[sum(a * b for a, b in zip(row, c, strict=True)) for c in columns] for row in left]


def projected(flat, shape, basis, side):
    """y = G B or B' G as rows; G is rounded so that every product of it is exact in 53 bits."""
    G = matrix(flat, shape)
    if side == "left":
        G = transposed(G)
    bits = 53 - 20 - -(-len(G[0]).bit_length() // 2) - 1
    exponent = max(frexp(max(map(abs, flat)))[1] - bits, LEAST_EXPONENT)
    whole = [[round(Fraction(x) / Fraction(2) ** exponent) for x in row] for row in G]
    y = [[ldexp(v, exponent - 20) for v in row] for row in times(whole, basis)]
    return transposed(y) if side == "left" else y


def unprojected(symbols, shape, basis, side, scale):
    """y B' or B y, as the flat tensor."""
    rank = len(basis[0])
    if side == "right":
        G = times(cut(symbols, rank), transposed(basis))
    else:
        G = times(basis, cut(symbols, len(symbols) // rank))
    return [G[row][column] / (scale * BASIS) for row, column in places(shape)]


def cut(flat, width):
    return [flat[at : at + width] for at in range(0, len(flat), width)]


def parts(flat, sizes):
    """One part behind the other."""
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    assert ends[-1] == len(flat)
    return [flat[start:stop] for start, stop in pairwise(ends)]


def symbol_count(shape, rank, side):
    if not is_projected(shape, rank):
        return prod(shape)
    return rank * matrix_shape(shape)[side == "left"]


def columns_of(symbols, shape, rank, side):
    """The columns of a projected tensor's symbols, whose space is the next basis; none of one that
    is whole."""
    if not is_projected(shape, rank):
        return []
    return transposed(cut(symbols, rank)) if side == "right" else cut(symbols, len(symbols) // rank)


def basis_length(shape, side):
    """Entries of a column of the basis."""
    return matrix_shape(shape)[side == "right"]


def basis(shape, rank, side, *, columns, nonce, name):
    """Rows of the basis of a tensor; none if it is whole."""
    if not is_projected(shape, rank):
        return []
    length = basis_length(shape, side)
    return transposed(bases_oracle.next_basis(columns, length, rank, nonce, name))


def digest(bases):
    hashed = hashlib.sha256()
    for rows in bases:
        for row in rows:
            hashed.update(struct.pack(f"<{len(row)}i", *row))
    return hashed.hexdigest()


def steps(q, users, clip, max_weight):
    """Per unit."""
    return floor((q - 1) // 2 / (users * (clip * max_weight)))


def rounding_key(key, index, values):
    """The key of the stream that rounds these values at these places."""
    content = struct.pack(f"<{len(index)}q", *index) + struct.pack(f"<{len(values)}d", *values)
    return oracle.child(key, f"rounding {hashlib.sha256(content).hexdigest()}")


def quantised(values, *, clips, scales, weight, largest, key):
    """Signed integers, and how many values were clamped. `clips` and `scales` are those of each
    value."""
    symbols = []
    stream = oracle.words(key, 8)
    for value, clip, scale in zip(values, clips, scales, strict=True):
        y = max(-clip, min(clip, value)) * weight * scale
        chance = (next(stream) >> 11) / (1 << 53)
        up = chance < y - floor(y)
        symbols.append(max(-largest, min(largest, floor(y) + up)))
    return symbols, sum(abs(value) > clip for value, clip in zip(values, clips, strict=True))
