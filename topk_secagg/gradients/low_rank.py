"""The reduction *low rank*: every tensor's matrix projected on a public basis, or the tensor whole.

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
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..algebra.bases import BASIS_BITS, LONGEST_COLUMN, Basis, SignedIntegers, next_basis
from ..algebra.field import ceil_div
from .quantise import magnitude

Array = npt.NDArray[Any]
Reals = npt.NDArray[np.float64]
Shape = tuple[int, ...]

RIGHT = "right"
LEFT = "left"
FIRST_SIDE = RIGHT
OTHER_SIDE = {RIGHT: LEFT, LEFT: RIGHT}

CLIP_FACTOR = 2.0
_SLOWEST_CLIP = 1 / 16  # of the last one
_EXACT_BITS = 53  # integers up to 2^53 are floats
_SPARE_BITS = 1  # a basis is orthonormal but for its rounding
_LEAST_EXPONENT = -900  # smaller values are 0: their products would not be floats any more
_EXACT_SQUARES = 2.0**66 * (1 - 2.0**-8)  # of sqrt(r) 2^20 times a symbol, below 2^53
_WORKED_AT_ONCE = 1 << 16  # entries, which a processor keeps near
_FINE_BITS = 30  # of symbols that only look for a basis
_PUBLIC = bytes(16)  # a nonce for a basis that nobody else needs


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


# One tensor


@dataclass(frozen=True)
class Reduced(ABC):
    """How one tensor is reduced. A basis that it does not need is empty, (0, 0)."""

    shape: Shape

    @property
    @abstractmethod
    def basis_shape(self) -> tuple[int, int]:
        """(k or m, r)."""

    @property
    @abstractmethod
    def symbols_shape(self) -> tuple[int, ...]:
        """(m, r) on the right, (r, k) on the left; the tensor's own when it is sent whole."""

    @abstractmethod
    def reduce(self, tensor: Array, basis: Basis) -> Reals:
        """y: the tensor (its shape) becomes an array of `symbols_shape`."""

    @abstractmethod
    def decode(self, symbols: SignedIntegers, basis: Basis, scale: float, out: Reals) -> None:
        """y B' or B y, divided by the symbols' steps per unit, into `out` (the tensor's shape)."""

    @abstractmethod
    def columns(self, symbols: SignedIntegers) -> SignedIntegers:
        """The columns whose space is the basis of the other side: (m, r), or (k, r)."""

    @property
    def entries(self) -> int:
        """Of the tensor."""
        return math.prod(self.shape)

    @property
    def symbols(self) -> int:
        """Of the reduced tensor."""
        return math.prod(self.symbols_shape)


@dataclass(frozen=True)
class Whole(Reduced):
    """A tensor that is sent as it is."""

    @property
    def basis_shape(self) -> tuple[int, int]:
        """None."""
        return 0, 0

    @property
    def symbols_shape(self) -> tuple[int, ...]:
        """One symbol for each entry."""
        return self.shape

    def reduce(self, tensor: Array, basis: Basis) -> Reals:  # noqa: ARG002 - it has none
        """The tensor itself."""
        return tensor.astype(np.float64)

    def decode(
        self,
        symbols: SignedIntegers,
        basis: Basis,  # noqa: ARG002 - it has none
        scale: float,
        out: Reals,
    ) -> None:
        """symbols / scale."""
        np.divide(symbols, scale, out=out)

    def columns(self, symbols: SignedIntegers) -> SignedIntegers:
        """None: a basis for this tensor comes from the nonce."""
        return symbols.reshape(-1)[:0].reshape(0, 0)


@dataclass(frozen=True)
class Right(Reduced):
    """y = G B, with B (k, r)."""

    rank: int

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
        for part, integers in integer_blocks(tensor, axes, exponent):
            np.matmul(integers, factor, out=y[part])
        return in_units(y.reshape(self.symbols_shape), exponent)

    def decode(self, symbols: SignedIntegers, basis: Basis, scale: float, out: Reals) -> None:
        """y B' / scale."""
        multiply(symbols, basis, Axes.of(self.shape), scale, out)

    def columns(self, symbols: SignedIntegers) -> SignedIntegers:
        """y."""
        return symbols.reshape(self.symbols_shape)


@dataclass(frozen=True)
class Left(Reduced):
    """y = B' G, with B (m, r)."""

    rank: int

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
        for part, integers in integer_blocks(tensor, axes, exponent):
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


def integer_blocks(tensor: Array, axes: Axes, exponent: int) -> Iterator[tuple[slice, Reals]]:
    """tensor / 2^exponent, rounded half-even: some outputs at a time, each (outputs, all else)."""
    matrix = tensor.reshape(axes.outputs, -1)
    for part in blocks(axes):
        integers = matrix[part].astype(np.float64)
        integers *= 2.0**-exponent
        yield part, np.rint(integers, out=integers)


def in_units(y: Reals, exponent: int) -> Reals:
    """2^exponent y 2^-20: products of integers and a basis as reals."""
    with np.errstate(over="ignore"):  # an infinite value is beyond every clip
        scaled: Reals = np.ldexp(y, exponent - BASIS_BITS)
    return scaled


def blocks(axes: Axes) -> Iterator[slice]:
    """Outputs that are worked at together."""
    size = max(1, _WORKED_AT_ONCE // axes.entries_of_output)
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
    for part in blocks(axes):
        np.matmul(rows[part], factor, out=matrix[part])
        matrix[part] /= scale * 2.0**BASIS_BITS


def largest_rank(field: int) -> int:
    """At which decoding sums in F_q is exact: 16 for q < 2^32, and any rank for q < 2^16.

    Symbols are at most (q-1)/2, and the squares of a row of a basis add up to at most 2^40 (1 +
    2^-8). By Cauchy and Schwarz the products of row and symbols are at most sqrt(r) 2^20 (q-1)/2.
    """
    return int(_EXACT_SQUARES / ((field - 1) // 2) ** 2)


# All tensors


@dataclass(frozen=True)
class Reduction:
    """How the tensors of a layout become one vector: each is projected or whole, in their order.

    `flat` is the layout's vector (L,), `reduced` and `symbols` are (n,). Bases, scales and clips
    are lists with one for each tensor.
    """

    tensors: tuple[Reduced, ...]

    @classmethod
    def of(
        cls, shapes: Sequence[Shape], rank: int, side: str, whole: Container[int] = ()
    ) -> Reduction:
        """Project every tensor that has a matrix for this rank, but those at the positions
        `whole`."""
        return cls(
            tuple(
                SIDES[side](shape, rank)
                if is_projected(shape, rank) and position not in whole
                else Whole(shape)
                for position, shape in enumerate(shapes)
            )
        )

    @property
    def length(self) -> int:
        """n, the symbols of all tensors."""
        return sum(tensor.symbols for tensor in self.tensors)

    @property
    def entry_slices(self) -> list[slice]:
        """Where each tensor is in the flat vector."""
        return _slices([tensor.entries for tensor in self.tensors])

    @property
    def symbol_slices(self) -> list[slice]:
        """Where each tensor's symbols are in the reduced vector."""
        return _slices([tensor.symbols for tensor in self.tensors])

    def reduce(self, flat: Array, bases: Sequence[Basis]) -> Reals:
        """The reduced vector of a gradient, (n,)."""
        reduced = np.empty(self.length)
        for tensor, basis, entries, symbols in self._with(bases):
            part = flat[entries].reshape(tensor.shape)
            reduced[symbols] = tensor.reduce(part, basis).reshape(-1)
        return reduced

    def decode(
        self, symbols: SignedIntegers, bases: Sequence[Basis], scales: Sequence[float]
    ) -> Reals:
        """The flat vector (L,) of summed symbols, which have `scales` steps per unit."""
        flat = np.empty(sum(tensor.entries for tensor in self.tensors))
        for (tensor, basis, entries, place), scale in zip(self._with(bases), scales, strict=True):
            part = symbols[place].reshape(tensor.symbols_shape)
            tensor.decode(part, basis, scale, flat[entries].reshape(tensor.shape))
        return flat

    def first_bases(self, names: Sequence[str], nonce: bytes) -> list[Basis]:
        """The bases of a series that has no sum yet: all columns from the nonce."""
        nothing = Reduction(tuple(Whole(tensor.shape) for tensor in self.tensors))
        return self.next_bases(nothing, np.zeros(nothing.length, np.int32), names, nonce)

    def next_bases(
        self, last: Reduction, symbols: SignedIntegers, names: Sequence[str], nonce: bytes
    ) -> list[Basis]:
        """The bases that follow from the summed symbols of the last reduction, on the other
        side."""
        parts = (symbols[place] for place in last.symbol_slices)
        return [
            _next_basis(tensor, before.columns(part), nonce, name)
            for tensor, before, part, name in zip(
                self.tensors, last.tensors, parts, names, strict=True
            )
        ]

    def clips(
        self,
        last_sum: Reals,
        bases: Sequence[Basis],
        last_clips: Sequence[float],
        factor: float = CLIP_FACTOR,
    ) -> list[float]:
        """Of each tensor F times the largest magnitude of the last decoded sum (L,), projected on
        these bases; at least 1/16 of its last clip, since a sum may be zero."""
        projected = self.reduce(last_sum, bases)
        return [
            max(factor * magnitude(projected[place]), last * _SLOWEST_CLIP)
            for place, last in zip(self.symbol_slices, last_clips, strict=True)
        ]

    def _with(self, bases: Sequence[Basis]) -> Iterator[tuple[Reduced, Basis, slice, slice]]:
        """Every tensor, its basis, its entries and its symbols."""
        for tensor, basis in zip(self.tensors, bases, strict=True):
            if basis.shape != tensor.basis_shape:
                raise ValueError(f"a basis has shape {basis.shape}, not {tensor.basis_shape}")
        return zip(self.tensors, bases, self.entry_slices, self.symbol_slices, strict=True)


def _slices(sizes: Sequence[int]) -> list[slice]:
    """One behind the other."""
    ends = list(accumulate(sizes))
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _next_basis(tensor: Reduced, columns: SignedIntegers, nonce: bytes, name: str) -> Basis:
    """The basis of a tensor: empty where it is whole, from the nonce where it was."""
    length, rank = tensor.basis_shape
    if not rank:
        return np.empty((0, 0), np.int32)
    if not columns.size:
        columns = np.empty((length, 0), np.int32)
    if len(columns) != length:
        raise ValueError(f"columns of {len(columns)} symbols, and a basis of {length}")
    return next_basis(columns, rank, nonce, name)


def energy_share(flat: Array, shapes: Sequence[Shape], rank: int) -> float:
    """The share of a gradient's energy (sum of squares) that this rank holds, with the basis that
    one half step finds: y = G B, and then the energy of C' G with the basis C of y."""
    names = [str(position) for position in range(len(shapes))]
    right, left = Reduction.of(shapes, rank, RIGHT), Reduction.of(shapes, rank, LEFT)
    largest = magnitude(flat)
    if not largest:
        return 1.0
    y = right.reduce(flat, right.first_bases(names, _PUBLIC))
    bases = left.next_bases(right, _fine_symbols(right, y), names, _PUBLIC)
    return _energy(left.reduce(flat, bases), largest) / _energy(flat, largest)


def _fine_symbols(reduction: Reduction, reduced: Reals) -> SignedIntegers:
    """Each tensor as integers of up to 2^30, as a sum of symbols would be."""
    symbols = np.empty(reduced.size, np.int64)
    for place in reduction.symbol_slices:
        part = reduced[place]
        symbols[place] = np.rint(part * (2.0**_FINE_BITS / (magnitude(part) or 1.0)))
    return symbols


def _energy(values: Array, unit: float) -> float:
    """The sum of squares, in units of which squares neither overflow nor vanish."""
    scaled = values.astype(np.float64) / unit
    return float(np.vdot(scaled, scaled))
