"""What a user sends of its gradient, as what, and what stays behind.

`mask` and `aggregate` do this alike, with and without files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .. import labels
from ..algebra.bases import Basis, SignedIntegers
from ..algebra.field import Integers, to_signed
from ..algebra.randomness import Randomness
from ..errors import BadData, about
from ..gradients.arrays import Given, Vector, read_any
from ..gradients.quantise import (
    FixedPoint,
    clip_of,
    dequantise,
    quantise,
    rounding_error,
    rounding_source,
    uniform,
)
from ..gradients.reduce import Reduction, kept_share
from ..gradients.reduced import Reals
from ..gradients.tensors import Gradient, is_path
from ..protocol.constructions import construction
from ..protocol.messages import Sparse
from ..protocol.parameters import Parameters
from ..storage.session import Session
from .arguments import SELECTIONS, check_choice, path_of


def fitting_clips(reduction: Reduction, largest: Iterable[Sequence[float]]) -> tuple[float, ...]:
    """The clip of every tensor for users with these largest magnitudes, none of which it cuts."""
    every = [*largest] or [[0.0] * len(reduction.tensors)]
    return tuple(clip_of(of_tensor) for of_tensor in zip(*every, strict=True))


def clip_note(clips: Sequence[float], *, residuals: bool) -> str:
    """Where clips come from that nobody gave."""
    also = ", residuals included" if residuals else ""
    least, most = min(clips), max(clips)
    if least == most:
        return f"the clip is {most:.6g}, the largest magnitude of all gradients{also}"
    return (
        f"every tensor has its clip, the largest magnitude of all gradients{also}: "
        f"{least:.6g} to {most:.6g}"
    )


def subject_of(user: int, gradient: Given) -> str:
    """How an error names a gradient: by its file, or by its user."""
    return (
        str(path_of("gradient", gradient)) if is_path(gradient) else f"the gradient of user {user}"
    )


def read_gradient_of(user: int, gradient: Given, entry: str, strip_prefix: str) -> Gradient:
    """The tensors of a user's gradient, a file or in memory; every error names it."""
    if is_path(gradient):  # whose reader does so itself
        return read_any(gradient, entry, strip_prefix)
    with about(subject_of(user, gradient)):
        return read_any(gradient, entry, strip_prefix)


@dataclass(frozen=True)
class Encoding:
    """How the gradients of a round become symbols, and its sum a gradient."""

    parameters: Parameters
    reduction: Reduction
    bases: Sequence[Basis]
    clips: Sequence[float]

    @staticmethod
    def of(session: Session, bases: Sequence[Basis]) -> Encoding:
        """That of a session, on these bases."""
        return Encoding(session.parameters, session.reduction, bases, session.clips)

    @cached_property
    def fixed(self) -> FixedPoint:
        """How symbols stand for reals."""
        return self.parameters.fixed_point(self.reduction.clip_runs(self.clips))

    @cached_property
    def scales(self) -> list[int]:
        """Steps per unit, of each tensor."""
        return [self.parameters.scale(clip) for clip in self.clips]

    def reduced(self, flat: Vector) -> Vector:
        """The reduced vector of a gradient."""
        return self.reduction.reduce(flat, self.bases)

    def decoded(self, sparse: Sparse) -> Reals:
        """The flat vector (L,) behind the symbols of one user, or of a sum."""
        if self.reduction.is_identity:
            flat = np.zeros(self.reduction.entries)
            flat[sparse.index] = dequantise(self.fixed, sparse.index, sparse.value)
            return flat
        return self.reduction.decode(self.symbols(sparse), self.bases, self.scales)

    def each_decoded(self, sparse: Sparse) -> Callable[[int], Reals]:
        """The same tensor by tensor: the part of each, by its position, when it is asked for."""
        if not self.reduction.is_identity:
            symbols = self.symbols(sparse)
            return lambda at: self.reduction.decode_one(
                at, symbols, self.bases[at], self.scales[at]
            )
        slices = self.reduction.entry_slices

        def part(at: int) -> Reals:
            start, stop = slices[at].start, slices[at].stop
            inside = (sparse.index >= start) & (sparse.index < stop)
            index = sparse.index[inside]
            values = np.zeros(stop - start)
            values[index - start] = dequantise(self.fixed, index, sparse.value[inside])
            return values

        return part

    def symbols(self, sparse: Sparse) -> SignedIntegers:
        """The reduced vector as signed integers, (n,)."""
        symbols = np.zeros(self.reduction.length, np.int64)
        symbols[sparse.index] = to_signed(sparse.value, self.fixed.field)
        return symbols


class Chosen(NamedTuple):
    """What a user sends: coordinates with their values in the field; how many of them were clipped,
    the share of the gradient's energy that they keep, and what rounding is expected to add to them
    (None if all are zero)."""

    sparse: Sparse
    clipped: int
    kept_energy: float
    rounding_error: float | None


@dataclass(frozen=True)
class Prepared:
    """What goes into X, chosen from a vector that is sent with a weight."""

    chosen: Chosen
    encoding: Encoding
    flat: Vector
    weight: float

    @cached_property
    def unsent(self) -> Reals:
        """The whole weighted vector less what was sent."""
        with np.errstate(over="ignore"):
            left = self.weight * self.flat.astype(np.float64)
        sparse = self.chosen.sparse
        if self.encoding.reduction.is_identity:
            left[sparse.index] -= dequantise(self.encoding.fixed, sparse.index, sparse.value)
        else:
            left -= self.encoding.decoded(sparse)
        if not np.isfinite(left).all():
            raise BadData(
                f"with a weight of {self.weight:g} the residual has values that are not finite",
                "choose a smaller weight",
            )
        return left


def prepare(
    encoding: Encoding,
    source: Randomness,
    flat: Vector,
    weight: float,
    select: str,
    *,
    saturate: bool,
    reduced: Vector | None = None,
) -> Prepared:
    """Reduce and quantise a flat vector, to which the residual was added already; `reduced` is its
    reduced vector where that is known.

    Random coordinates are those with the largest of L random keys.
    """
    check_choice("selection", select, SELECTIONS)
    p = encoding.parameters
    if reduced is None:
        reduced = encoding.reduced(flat)
    index = construction(p).select(
        reduced if select == "top" else uniform(source.child(labels.SELECT), p.length)
    )
    values = reduced[index].astype(np.float64)
    value, clipped = quantise(
        encoding.fixed,
        index,
        values,
        rounding_source(source, index, values),
        weight=weight,
        saturate=saturate,
    )
    chosen = Chosen(
        sparse=Sparse(index, value),
        clipped=clipped,
        kept_energy=1.0 if _is_all(encoding.reduction, index) else kept_share(flat, values),
        rounding_error=rounding_error(encoding.fixed, index, values, weight),
    )
    return Prepared(chosen, encoding, flat, weight)


def _is_all(reduction: Reduction, index: Integers) -> bool:
    """Whether what is sent is all of the gradient."""
    return reduction.is_identity and index.size == reduction.entries
