"""Gradients to what is sent, and sums back: the reduction of all tensors of a layout.

A flat vector (L,) becomes the reduced vector (n,): first the entries of the tensors of which some
are picked, then the symbols of those that are sent whole or projected, each in the layout's order.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np

from ..algebra.bases import Basis, SignedIntegers, next_basis
from ..brief import Brief
from ..errors import UsageError
from .low_rank import FIRST_SIDE, OTHER_SIDE, SIDES, is_projected, largest_rank
from .quantise import magnitude
from .reduced import LOW_RANK, TOP_K, WHOLE, Array, Picked, Reals, Reduced, Shape, Whole

CLIP_FACTOR = 2.0
CLIP_FACTOR_OF_BYTES = 0.25  # where symbols have one byte: coarse steps cost more than clamping
_SLOWEST_CLIP = 1 / 16  # of the last one
_FINE_BITS = 30  # of symbols that only look for a basis
_SUMMED_AT_ONCE = 1 << 13  # values: OpenBLAS uses one thread, and they stay near
_PUBLIC = bytes(16)  # a nonce for a basis that nobody else needs


@dataclass(frozen=True, repr=False)
class Reduction(Brief):
    """How the tensors of a layout become one vector.

    `flat` is the layout's vector (L,); `reduced` and `symbols` are (n,). Bases, clips and scales
    are lists with one for each tensor, in the layout's order. `rank` and `side` are None where
    nothing is projected by a rank.
    """

    tensors: tuple[Reduced, ...]
    rank: int | None = None
    side: str | None = None

    @classmethod
    def of(
        cls,
        shapes: Sequence[Shape],
        rank: int,
        side: str = FIRST_SIDE,
        whole: Container[int] = (),
    ) -> Reduction:
        """Low rank: project every tensor that has a matrix for this rank, but those at the
        positions `whole`."""
        if rank < 1:
            raise UsageError(f"a rank of {rank}", "keep rank >= 1; 2 or 4 are usual")
        tensors = tuple(
            SIDES[side](shape, rank)
            if is_projected(shape, rank) and position not in whole
            else Whole(shape)
            for position, shape in enumerate(shapes)
        )
        return cls(tensors, rank, side)

    @classmethod
    def top_k(cls, shapes: Sequence[Shape], whole: Container[int] = ()) -> Reduction:
        """Pick from all tensors but those at the positions `whole`."""
        tensors = (
            Whole(shape) if position in whole else Picked(shape)
            for position, shape in enumerate(shapes)
        )
        return cls(tuple(tensors))

    @classmethod
    def whole(cls, shapes: Sequence[Shape]) -> Reduction:
        """Send everything as it is."""
        return cls(tuple(map(Whole, shapes)))

    @classmethod
    def of_kinds(
        cls, shapes: Sequence[Shape], kinds: Sequence[str], rank: int | None, side: str | None
    ) -> Reduction:
        """What session.json says; ValueError for what no reduction has."""
        if (rank is None) != (side is None) or (rank is None and LOW_RANK in kinds):
            raise ValueError("a rank, a side and projected tensors belong together")
        whole = {position for position, kind in enumerate(kinds) if kind == WHOLE}
        if rank is not None and side is not None:
            if side not in SIDES:
                raise ValueError(f"the side of the basis is {side!r:.20}")
            found = cls.of(shapes, rank, side, whole)
        else:
            found = cls.top_k(shapes, whole)
        if found.kinds != tuple(kinds):
            raise ValueError("the tensors of the layout are not reduced as their shapes ask for")
        return found

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of each tensor."""
        return tuple(tensor.kind for tensor in self.tensors)

    @property
    def name(self) -> str:
        """'top-k', 'low-rank' or 'whole'."""
        if self.rank is not None:
            return LOW_RANK
        return TOP_K if self.is_top_k else WHOLE

    @property
    def is_top_k(self) -> bool:
        """Whether some of the entries are picked."""
        return TOP_K in self.kinds

    @property
    def shapes(self) -> list[Shape]:
        """Of the tensors."""
        return [tensor.shape for tensor in self.tensors]

    def kept_whole(self) -> set[int]:
        """The tensors that are whole although this reduction could pick from them, or project
        them."""
        if not self.is_top_k and self.rank is None:
            return set()
        return {
            position
            for position, tensor in enumerate(self.tensors)
            if tensor.kind == WHOLE and (self.rank is None or is_projected(tensor.shape, self.rank))
        }

    @property
    def has_basis(self) -> bool:
        """Whether a tensor is projected."""
        return LOW_RANK in self.kinds

    @property
    def entries(self) -> int:
        """L, the entries of all tensors."""
        return sum(tensor.entries for tensor in self.tensors)

    @property
    def length(self) -> int:
        """n, the symbols of all tensors."""
        return sum(tensor.symbols for tensor in self.tensors)

    @property
    def sent_whole(self) -> int:
        """The symbols at the end of the reduced vector that every user sends."""
        return sum(tensor.symbols for tensor in self.tensors if tensor.kind != TOP_K)

    @property
    def is_identity(self) -> bool:
        """Whether the reduced vector is the flat one."""
        is_whole = [kind == WHOLE for kind in self.kinds]
        return not self.has_basis and is_whole == sorted(is_whole)

    @property
    def entry_slices(self) -> list[slice]:
        """Where each tensor is in the flat vector."""
        return _slices([tensor.entries for tensor in self.tensors])

    @cached_property
    def symbol_slices(self) -> list[slice]:
        """Where each tensor's symbols are in the reduced vector."""
        order = self._order
        behind_each_other = _slices([self.tensors[position].symbols for position in order])
        places = dict(zip(order, behind_each_other, strict=True))
        return [places[position] for position in range(len(order))]

    @property
    def _order(self) -> list[int]:
        """The tensors as they follow each other in the reduced vector."""
        return sorted(range(len(self.tensors)), key=lambda at: self.tensors[at].kind != TOP_K)

    def check(self, field: int) -> None:
        """Refuse a rank at which sums in this field could not be decoded exactly."""
        if self.rank is not None and self.rank > largest_rank(field):
            raise UsageError(
                f"a rank of {self.rank} in a field of {field} elements",
                f"keep rank <= {largest_rank(field)}, or choose a smaller field",
            )

    def clip_runs(self, clips: Sequence[float]) -> Iterator[tuple[int, float]]:
        """How many symbols of the reduced vector have which clip, one behind the other."""
        return ((self.tensors[at].symbols, clips[at]) for at in self._order)

    # the phases

    def reduce(self, flat: Array, bases: Sequence[Basis]) -> Array:
        """The reduced vector of a gradient, (n,)."""
        if self.is_identity:
            return flat
        reduced = np.empty(self.length)
        for tensor, basis, entries, symbols in self._with(bases):
            part = flat[entries].reshape(tensor.shape)
            reduced[symbols] = tensor.reduce(part, basis).reshape(-1)
        return reduced

    def decode(
        self, symbols: SignedIntegers, bases: Sequence[Basis], scales: Sequence[float]
    ) -> Reals:
        """The flat vector (L,) of summed symbols, which have `scales` steps per unit."""
        flat = np.empty(self.entries)
        for (tensor, basis, entries, place), scale in zip(self._with(bases), scales, strict=True):
            part = symbols[place].reshape(tensor.symbols_shape)
            tensor.decode(part, basis, float(scale), flat[entries].reshape(tensor.shape))
        return flat

    def decode_one(
        self, position: int, symbols: SignedIntegers, basis: Basis, scale: float
    ) -> Reals:
        """The part of that vector which is one tensor."""
        tensor = self.tensors[position]
        out = np.empty(tensor.entries)
        part = symbols[self.symbol_slices[position]].reshape(tensor.symbols_shape)
        tensor.decode(part, basis, float(scale), out.reshape(tensor.shape))
        return out

    def largest(self, reduced: Array) -> list[float]:
        """The largest magnitude of each tensor's symbols; those that are picked from have that of
        all of them."""
        largest = [magnitude(reduced[place]) for place in self.symbol_slices]
        of_picked = [each for each, kind in zip(largest, self.kinds, strict=True) if kind == TOP_K]
        return [
            max(of_picked) if kind == TOP_K else each
            for each, kind in zip(largest, self.kinds, strict=True)
        ]

    # a series

    def next_side(self) -> str | None:
        """The side of a round that follows the sum of this one."""
        return None if self.side is None else OTHER_SIDE[self.side]

    def first_bases(self, names: Sequence[str], nonce: bytes) -> list[Basis]:
        """The bases of a series that has no sum yet: all columns from the nonce."""
        nothing = Reduction.whole(self.shapes)
        return self.next_bases(nothing, np.zeros(nothing.length, np.int8), names, nonce)

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

    def same_bases(self, bases: Sequence[Basis], names: Sequence[str], nonce: bytes) -> list[Basis]:
        """The bases of a round that follows one without a sum, on its side: the same, where the
        rank is; else a smaller one keeps the first columns, and a larger one has more."""
        return [
            _resized(tensor, basis, nonce, name)
            for tensor, basis, name in zip(self.tensors, bases, names, strict=True)
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
        largest = self.largest(self.reduce(last_sum, bases))
        return [
            max(factor * each, last * _SLOWEST_CLIP)
            for each, last in zip(largest, last_clips, strict=True)
        ]

    def _with(self, bases: Sequence[Basis]) -> Iterator[tuple[Reduced, Basis, slice, slice]]:
        """Every tensor, its basis, its entries and its symbols."""
        for tensor, basis in zip(self.tensors, bases, strict=True):
            if basis.shape != tensor.basis_shape:
                raise ValueError(f"a basis has shape {basis.shape}, not {tensor.basis_shape}")
        return zip(self.tensors, bases, self.entry_slices, self.symbol_slices, strict=True)


def _slices(sizes: Sequence[int]) -> list[slice]:
    """One behind the other."""
    return [slice(*ends) for ends in pairwise([0, *accumulate(sizes)])]


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


def _resized(tensor: Reduced, basis: Basis, nonce: bytes, name: str) -> Basis:
    """A basis of the same space, with fewer columns or more."""
    if basis.shape == tensor.basis_shape:
        return basis
    fits = basis.shape[0] == tensor.basis_shape[0]
    return _next_basis(tensor, basis if fits else basis[:0], nonce, name)


def energy_share(flat: Array, shapes: Sequence[Shape], rank: int) -> float:
    """The share of a gradient's energy (sum of squares) that this rank holds, with the basis that
    one half step finds: y = G B, and then the energy of C' G with the basis C of y."""
    names = [str(position) for position in range(len(shapes))]
    right = Reduction.of(shapes, rank)
    left = Reduction.of(shapes, rank, OTHER_SIDE[FIRST_SIDE])
    y = right.reduce(flat, right.first_bases(names, _PUBLIC))
    bases = left.next_bases(right, _fine_symbols(right, y), names, _PUBLIC)
    return kept_share(flat, left.reduce(flat, bases))


def _fine_symbols(reduction: Reduction, reduced: Reals) -> SignedIntegers:
    """Each tensor as integers of up to 2^30, as a sum of symbols would be."""
    symbols = np.empty(reduced.size, np.int64)
    for place in reduction.symbol_slices:
        part = reduced[place]
        symbols[place] = np.rint(part * (2.0**_FINE_BITS / (magnitude(part) or 1.0)))
    return symbols


def kept_share(flat: Array, sent: Array) -> float:
    """The share of a gradient's energy that is in these symbols (bases are orthonormal), 0 to 1; 1
    of a gradient that is zero."""
    largest = magnitude(flat)
    if not largest:
        return 1.0
    return min(1.0, _energy(sent, largest) / _energy(flat, largest))


def _energy(values: Array, unit: float) -> float:
    """The sum of squares, in units of which squares neither overflow nor vanish."""
    energy = 0.0
    for start in range(0, values.size, _SUMMED_AT_ONCE):
        scaled = values[start : start + _SUMMED_AT_ONCE].astype(np.float64) / unit
        energy += float(np.vdot(scaled, scaled))
    return energy
