"""Orthonormal bases that come out bit-equal on every machine: the next basis of a low-rank series.

Vectors stay on the grid of multiples of 2^-24, and R rounds half-even to it. Their norms are at
most 1.01, or 5.1 where it is said. So the product of two entries is a multiple of 2^-48; by Cauchy
and Schwarz the magnitudes of the products of v.b add up to less than 2^5; and *every* partial
sum, in any order, is a multiple of 2^-48 below 2^5, which are 53 bits: float64 holds it exactly.
BLAS, a loop, fused or not, give the same bits. All else that is computed (multiplying by a power of
two, one subtraction, quotients, square roots, rounding) is one correctly rounded operation of
IEEE 754 on one entry. Nothing here may be compiled with `fastmath`, or call another function of
libm.

The columns have fewer than 2^26 entries. Where each step needs that is said beside it.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Iterable, Iterator
from itertools import chain, count
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import labels
from .field import ceil_div
from .randomness import CipherRandomness

Basis = npt.NDArray[np.int32]  # (k, r): 2^20 times the entries of orthonormal columns
SignedIntegers = npt.NDArray[np.signedinteger[Any]]
Vector = npt.NDArray[np.float64]  # (k,): multiples of 2^-24

BASIS_BITS = 20  # an entry of a finished basis is a multiple of 2^-20
LONGEST_COLUMN = (1 << 26) - 1
_GRID = 2.0**24
_PERTURBATION = 2.0**-10  # how much of the nonce is in a column of the sum
_LACKING = 2.0**-14  # the squared norm below which nothing of a column is left
_PASSES = 2
_LARGEST_SYMBOL = 1 << 53  # up to which all integers are floats


def next_basis(symbols: SignedIntegers, rank: int, nonce: bytes, name: str) -> Basis:
    """An orthonormal basis (k, rank) of the space of the columns of `symbols` (k, any number).

    Columns beyond the rank are left out; missing ones are taken from the nonce, as all are of the
    first basis of a series, where `symbols` is (k, 0). `name` is the tensor's.
    """
    _check(symbols, rank)
    missing = np.zeros((len(symbols), max(0, rank - symbols.shape[1])), symbols.dtype)
    columns = np.hstack([symbols[:, :rank], missing]).T
    basis: list[Vector] = []
    for j, column in enumerate(columns):
        drawn = drawn_units(nonce, name, j, column.size)
        basis.append(_next_column(_perturbed(column, next(drawn)), basis, drawn))
    return np.rint(np.column_stack(basis) * 2.0**BASIS_BITS).astype(np.int32)


def digest(bases: Iterable[Basis]) -> str:
    """SHA-256 of the entries as little-endian 32-bit integers, row by row, basis after basis."""
    hashed = hashlib.sha256()
    for basis in bases:
        hashed.update(basis.astype("<i4").tobytes())
    return hashed.hexdigest()


def drawn_integers(nonce: bytes, name: str, column: int, attempt: int, length: int) -> Any:
    """Odd 16-bit integers (length,) that follow from a public nonce.

    The key HMAC-SHA-256(nonce, "basis COLUMN ATTEMPT NAME"), with both numbers in decimal from 0
    and all in UTF-8, gives the stream AES-256-CTR from the counter 0. Each two bytes, least
    significant first, are a word w; the integer is w | 1, read as two's complement: -32767, -32765,
    ..., 32767. Only the name can contain a space more, and it comes last: labels are distinct.
    """
    label = labels.basis(column, attempt, name)
    stream = CipherRandomness(hmac.digest(nonce, label, "sha256"))
    words = np.frombuffer(stream.bytes(2 * length), dtype="<u2")
    return (words | np.uint16(1)).astype(np.uint16).view(np.int16)


def drawn_units(nonce: bytes, name: str, column: int, length: int) -> Iterator[Vector]:
    """z: unit vectors that follow from the nonce, as many as are asked for."""
    for attempt in count():
        yield unit(drawn_integers(nonce, name, column, attempt, length))


def unit(y: SignedIntegers) -> Vector:
    """y divided by its norm, for integers that are not all zero; norm 1 within 2^-25 sqrt(k).

    With h = ceil(bits(k)/2) the largest magnitude of y 2^-s is between 2^-(1+h) and 2^-h: the
    norm of the first R(...) is at most 1, and not 0, since h <= 13. It is off by at most
    2^-25 sqrt(k), so the norm of the second is at most 1 + sqrt(k) 2^(h-24) + 2^-12 < 5.1 for
    k < 2^26, and its square below 2^5. For k = 2^26 that fails: one entry of 2^-15 among others of
    2^-25, which the first rounds to 0, makes it 8.
    """
    h = ceil_div(y.size.bit_length(), 2)
    scaled = y.astype(np.float64) * 2.0 ** -(_magnitude(y).bit_length() + h)
    v = _rounded(scaled / _norm(_rounded(scaled)))
    return _rounded(v / _norm(v))


def _perturbed(column: SignedIntegers, z: Vector) -> Vector:
    """R(unit(column) + z 2^-10): the sum is a multiple of 2^-34, and exact. z for a zero column."""
    return _rounded(unit(column) + z * _PERTURBATION) if column.any() else z


def _next_column(v: Vector, basis: list[Vector], drawn: Iterator[Vector]) -> Vector:
    """v, orthogonal to the basis and of norm 1; else the first drawn vector of which enough is
    left."""
    apart = (_orthonormal(candidate, basis) for candidate in chain([v], drawn))
    return next(column for column in apart if column is not None)


def _orthonormal(v: Vector, basis: list[Vector]) -> Vector | None:
    """v without its parts along the basis, of norm 1; None if too little of it is left.

    v shrinks in a pass, so that its rounding weighs more: it gets its norm back before the next.
    """
    for _ in range(_PASSES):
        for b in basis:
            v = _without(v, b)
        if _dot(v, v) < _LACKING:
            return None
        v = _rounded(v / _norm(v))
    return v


def _without(v: Vector, b: Vector) -> Vector:
    """R(v - R(v.b) b): the product and the difference are multiples of 2^-48 below 2^5, so exact,
    and it does not matter whether they are fused."""
    return _rounded(v - _rounded_number(_dot(v, b)) * b)


def _dot(v: Vector, b: Vector) -> float:
    """v.b, exact in any order of summation; BLAS would wake its threads for so little."""
    return float(np.einsum("i,i->", v, b))


def _norm(v: Vector) -> float:
    """The correctly rounded square root of v.v."""
    return math.sqrt(_dot(v, v))


def _rounded(v: Vector) -> Vector:
    """R: half-even to multiples of 2^-24."""
    steps: Vector = v * _GRID
    np.rint(steps, out=steps)
    steps *= 1 / _GRID
    return steps


def _rounded_number(x: float) -> float:
    """R of one number: Python rounds half-even too, and to an integer exactly."""
    return round(x * _GRID) / _GRID


def _magnitude(y: SignedIntegers) -> int:
    return max(int(y.max(initial=0)), -int(y.min(initial=0)))


def _check(symbols: SignedIntegers, rank: int) -> None:
    """The limits that the comments of this module rely on."""
    if not 0 < rank <= len(symbols) <= LONGEST_COLUMN:
        raise ValueError(f"no basis of rank {rank} has columns of {len(symbols)} entries")
    if _magnitude(symbols) > _LARGEST_SYMBOL:
        raise ValueError("a symbol is beyond 2^53")
