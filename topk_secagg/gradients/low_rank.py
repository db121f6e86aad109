"""The reduction *low rank*: a tensor's matrix projected on a public basis.

The matrix G (m, k) of a tensor has its first dimension as rows. That of a convolution out x in x h
x w has rows (out, h) and columns (in, w): it is nearly square, so that fewer symbols hold more.

    right    basis B (k, r)    symbols y = G B  (m, r)    decoded y B'
    left     basis B (m, r)    symbols y = B' G (r, k)    decoded B y

A round's side is the other one than that of the round whose sum it follows; the basis then is that
of the sum's symbols (`algebra.bases`). The first side is the right one.

**Every machine computes the same bits, in any order of summation.** A basis is a table of integers,
in steps of 2^-20. For projecting, a tensor is rounded to integers too, in steps of 2^t, so few that
no partial sum of a product reaches 2^53: float64 holds all of them, and BLAS may add as it likes.
Symbols are integers from the start, so decoding is exact. What rounding leaves behind is at most
2^-25 of the tensor's largest magnitude up to 4,095 columns (rows on the left), and half a bit more
for each doubling; error feedback keeps it as it keeps all else that was not sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ..algebra.bases import BASIS_BITS, LONGEST_COLUMN, Basis, SignedIntegers
from ..algebra.field import ceil_div
from .quantise import magnitude
from .reduced import LOW_RANK, Array, Reals, Reduced, Shape

RIGHT = "right"
LEFT = "left"
FIRST_SIDE = RIGHT
OTHER_SIDE = {RIGHT: LEFT, LEFT: RIGHT}

_EXACT_BITS = 53  # integers up to 2^53 are floats
_SPARE_BITS = 1  # a basis is orthonormal but for its rounding
_LEAST_EXPONENT = -900  # smaller values are 0: their products would not be floats any more
_EXACT_SQUARES = 2.0**66 * (1 - 2.0**-8)  # of sqrt(r) 2^20 times a symbol, below 2^53
# products up to which OpenBLAS uses one thread: waiting for another one takes longer than the work
_PRODUCTS_AT_ONCE = 1 << 18


class Axes(NamedTuple):
    """A tensor as (outputs, inputs, height, width): rows (outputs, height), columns (inputs,
    width)."""

    outputs: int
    inputs: int
    height: int
    width: int

    @classmethod
    def of(cls, shape: Shape) -> Axes:
        """A tensor of four dimensions is a convolution; of others the first dimension is the
        rows."""
        return cls(*shape) if len(shape) == 4 else cls(shape[0], math.prod(shape[1:]), 1, 1)

    @property
    def rows(self) -> int:
        """m."""
        return self.outputs * self.height

    @property
    def columns(self) -> int:
        """k."""
        return self.inputs * self.width

    @property
    def entries_of_output(self) -> int:
        """In memory they lie one behind the other."""
        return self.inputs * self.height * self.width


def matrix_shape(shape: Shape) -> tuple[int, int]:
    """(m, k) of a tensor with two dimensions or more."""
    axes = Axes.of(shape)
    return axes.rows, axes.columns


def is_projected(shape: Shape, rank: int) -> bool:
    """Whether a tensor has a matrix with rank < min(m, k), and no side too long for a basis."""
    if len(shape) < 2:
        return False
    sides = matrix_shape(shape)
    return rank < min(sides) and max(sides) <= LONGEST_COLUMN


@dataclass(frozen=True)
class Projected(Reduced):
    """A tensor whose matrix is projected."""

    kind: ClassVar[str] = LOW_RANK
    rank: int


@dataclass(frozen=True)
class Right(Projected):
    """y = G B, with B (k, r)."""

    @property
    def basis_shape(self) -> tuple[int, int]:
        """(k, r)."""
        return Axes.of(self.shape).columns, self.rank

    @property
    def symbols_shape(self) -> tuple[int, ...]:
        """(m, r)."""
        return Axes.of(self.shape).rows, self.rank

    def reduce(self, tensor: Array, basis: Basis) -> Reals:
        """y = G B.

        The basis is spread over the height, so that the tensor need not be transposed.
        """
        axes = Axes.of(self.shape)
        exponent = step_exponent(tensor, length=axes.columns)
        factor = spread(basis, axes)
        y = np.empty((axes.outputs, factor.shape[1]))
        for part, integers in integer_blocks(tensor, axes, exponent, self.rank):
            np.matmul(integers, factor, out=y[part])
        return in_units(y.reshape(self.symbols_shape), exponent)

    def decode(self, symbols: SignedIntegers, basis: Basis, scale: float, out: Reals) -> None:
        """y B' / scale."""
        multiply(symbols, basis, Axes.of(self.shape), scale, out)

    def columns(self, symbols: SignedIntegers) -> SignedIntegers:
        """y."""
        return symbols.reshape(self.symbols_shape)


@dataclass(frozen=True)
class Left(Projected):
    """y = B' G, with B (m, r)."""

    @property
    def basis_shape(self) -> tuple[int, int]:
        """(m, r)."""
        return Axes.of(self.shape).rows, self.rank

    @property
    def symbols_shape(self) -> tuple[int, ...]:
        """(r, k)."""
        return self.rank, Axes.of(self.shape).columns

    def reduce(self, tensor: Array, basis: Basis) -> Reals:
        """y = B' G.

        For every two heights, (outputs,) of the basis times (outputs, ...) of the tensor; of these
        products the sum over equal heights is y.
        """
        axes = Axes.of(self.shape)
        exponent = step_exponent(tensor, length=axes.rows)
        factor = basis.astype(np.float64).reshape(axes.outputs, -1)
        products = np.zeros((factor.shape[1], axes.entries_of_output))
        for part, integers in integer_blocks(tensor, axes, exponent, self.rank):
            products += factor[part].T @ integers
        by_height = products.reshape(axes.height, self.rank, *axes[1:])
        y = np.einsum("hjihw->jiw", by_height)
        return in_units(y.reshape(self.symbols_shape), exponent)

    def decode(self, symbols: SignedIntegers, basis: Basis, scale: float, out: Reals) -> None:
        """B y / scale."""
        multiply(basis, symbols.T, Axes.of(self.shape), scale, out)

    def columns(self, symbols: SignedIntegers) -> SignedIntegers:
        """y'."""
        return symbols.reshape(self.symbols_shape).T


SIDES: dict[str, type[Right] | type[Left]] = {RIGHT: Right, LEFT: Left}


# Exact products


def step_exponent(tensor: Array, length: int) -> int:
    """t: the tensor is rounded to multiples of 2^t, so that sums of `length` products with a column
    of a basis are exact.

    It becomes integers of at most 2^bits, and the entries of a basis are integers whose squares add
    up to 2^40. By Cauchy and Schwarz the magnitudes of the products add up to at most sqrt(length)
    2^bits 2^20; that is below 2^53 with bits = 33 - ceil(bits(length) / 2), and one bit is spare.
    """
    bits = _EXACT_BITS - BASIS_BITS - ceil_div(length.bit_length(), 2) - _SPARE_BITS
    return max(math.frexp(magnitude(tensor))[1] - bits, _LEAST_EXPONENT)


def integer_blocks(
    tensor: Array, axes: Axes, exponent: int, rank: int
) -> Iterator[tuple[slice, Reals]]:
    """tensor / 2^exponent, rounded half-even: some outputs at a time, each (outputs, all else)."""
    matrix = tensor.reshape(axes.outputs, -1)
    for part in blocks(axes, rank):
        integers = matrix[part].astype(np.float64)
        integers *= 2.0**-exponent
        yield part, np.rint(integers, out=integers)


def in_units(y: Reals, exponent: int) -> Reals:
    """2^exponent y 2^-20: products of integers and a basis as reals."""
    with np.errstate(over="ignore"):  # an infinite value is beyond every clip
        scaled: Reals = np.ldexp(y, exponent - BASIS_BITS)
    return scaled


def blocks(axes: Axes, rank: int) -> Iterator[slice]:
    """Outputs that are worked at together."""
    products = axes.entries_of_output * axes.height * rank  # of one
    size = max(1, _PRODUCTS_AT_ONCE // products)
    return (slice(first, first + size) for first in range(0, axes.outputs, size))


def spread(factor: SignedIntegers, axes: Axes) -> Reals:
    """A factor (inputs width, r) for a tensor that is not transposed: S (inputs height width,
    height r) with S[(i,h,w),(h,j)] = factor[(i,w),j], and 0 between different heights."""
    _, inputs, height, width = axes
    spread = np.zeros((inputs, height, width, height, factor.shape[1]))
    for h in range(height):
        spread[:, h, :, h] = factor.reshape(inputs, width, -1)
    return spread.reshape(axes.entries_of_output, -1)


def multiply(
    tall: SignedIntegers, wide: SignedIntegers, axes: Axes, scale: float, out: Reals
) -> None:
    """tall wide' 2^-20 / scale as a tensor, for symbols and a basis: tall (m, r), wide (k, r).

    The product is exact (see `largest_rank`), so only dividing by the scale rounds.
    """
    factor = spread(wide, axes).T
    rows = tall.astype(np.float64).reshape(axes.outputs, -1)
    matrix = out.reshape(axes.outputs, -1)
    for part in blocks(axes, tall.shape[1]):
        np.matmul(rows[part], factor, out=matrix[part])
        matrix[part] /= scale * 2.0**BASIS_BITS


def largest_rank(field: int) -> int:
    """At which decoding sums in F_q is exact: 16 for q < 2^32, and any rank for q < 2^16.

    Symbols are at most (q-1)/2, and the squares of a row of a basis add up to at most 2^40 (1 +
    2^-8). By Cauchy and Schwarz the products of row and symbols are at most sqrt(r) 2^20 (q-1)/2.
    """
    return int(_EXACT_SQUARES / ((field - 1) // 2) ** 2)
