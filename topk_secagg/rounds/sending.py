"""What a user sends of its gradient: which coordinates, as what, and what stays behind.

`mask` and `aggregate` do this alike, with and without files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..algebra.randomness import Randomness
from ..errors import BadData, about
from ..gradients.arrays import Given, Vector, read_any
from ..gradients.quantise import (
    dequantise,
    quantise,
    rounding_error,
    rounding_source,
    uniform,
)
from ..gradients.select import kept_energy
from ..gradients.tensors import Gradient, is_path
from ..protocol.constructions import construction
from ..protocol.messages import Sparse
from ..protocol.parameters import Parameters
from ..storage.session import Session
from .arguments import SELECTIONS, check_choice, path_of


def clip_note(clip: float, *, residuals: bool) -> str:
    """Where a clip comes from that nobody gave."""
    also = ", residuals included" if residuals else ""
    return f"the clip is {clip:.6g}, the largest magnitude of all gradients{also}"


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


def with_residual(flat: Vector, carried: Vector) -> Vector:
    """The gradient and what was not sent before; two finite values can add up to one that is
    not."""
    with np.errstate(over="ignore"):
        total: Vector = flat + carried
    if not np.isfinite(total).all():
        raise BadData(
            "gradient and residual add up to values that are not finite",
            "remove the residual to start from zero",
        )
    return total


class Chosen(NamedTuple):
    """What a user sends: coordinates with their values in the field; how many of them were clipped,
    the share of the energy that they keep, and what rounding is expected to add to them (None if
    all are zero)."""

    sparse: Sparse
    clipped: int
    kept_energy: float
    rounding_error: float | None


@dataclass(frozen=True)
class Prepared:
    """What goes into X, chosen from a vector that is sent with a weight."""

    chosen: Chosen
    parameters: Parameters
    flat: Vector
    weight: float

    @cached_property
    def unsent(self) -> Vector:
        """The whole weighted vector less what was sent."""
        with np.errstate(over="ignore"):
            left = self.weight * self.flat.astype(np.float64)
        left[self.chosen.sparse.index] -= dequantise(
            self.parameters.fixed_point, self.chosen.sparse.value
        )
        if not np.isfinite(left).all():
            raise BadData(
                f"with a weight of {self.weight:g} the residual has values that are not finite",
                "choose a smaller weight",
            )
        return left


def prepare(
    s: Session, source: Randomness, flat: Vector, weight: float, select: str, *, saturate: bool
) -> Prepared:
    """Reduce and quantise a flat vector, to which the residual was added already."""
    p = s.parameters
    chosen = choose(p, source, flat=flat, weight=weight, select=select, saturate=saturate)
    return Prepared(chosen, p, flat, weight)


def choose(
    p: Parameters, source: Randomness, flat: Vector, weight: float, select: str, *, saturate: bool
) -> Chosen:
    """Which coordinates are sent, and as what.

    Random ones are those with the largest of L random keys.
    """
    check_choice("selection", select, SELECTIONS)
    index = construction(p).select(
        flat if select == "top" else uniform(source.child("select"), p.length)
    )
    values = flat[index].astype(np.float64)
    value, clipped = quantise(
        p.fixed_point,
        values,
        rounding_source(source, index, values),
        weight=weight,
        saturate=saturate,
    )
    return Chosen(
        sparse=Sparse(index, value),
        clipped=clipped,
        kept_energy=kept_energy(flat, index),
        rounding_error=rounding_error(p.fixed_point, values, weight),
    )


def unsent(p: Parameters, flat: Vector, sparse: Sparse, weight: float) -> npt.NDArray[np.float64]:
    """The new residual: what is left of the vector once these weighted values are sent."""
    left = flat.astype(np.float64)
    with np.errstate(over="ignore"):
        left[sparse.index] -= dequantise(p.fixed_point, sparse.value) / weight
    if not np.isfinite(left).all():
        raise BadData(
            f"with a weight of {weight:g} one step of the quantiser is too large for a residual",
            "choose a larger weight",
        )
    return left
