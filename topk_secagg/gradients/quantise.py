"""Reals to field elements and back: fixed point with stochastic rounding, wide enough that no sum
wraps."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..algebra.field import Symbols, to_field, to_signed
from ..algebra.randomness import Randomness
from ..errors import BadData

Reals = npt.NDArray[np.float64]

_ROUNDING_MARGIN = 2  # steps: rounding moves a value by less than that


@dataclass(frozen=True)
class FixedPoint:
    """How a round writes reals in its field: as multiples of 1/scale, of magnitude up to `clip`.

    `largest` is the largest magnitude of a quantised value, so that those of all users add up
    without wrapping. With `never_zero` no value becomes zero.
    """

    field: int
    scale: int
    clip: float
    largest: int
    never_zero: bool


def quantise(
    fixed: FixedPoint,
    values: Reals,
    source: Randomness,
    *,
    weight: float = 1.0,
    saturate: bool = False,
) -> tuple[Symbols, int]:
    """round(weight * value * scale), up or down at random so that the mean is exact; and how many
    values are beyond the clip.

    Within the last step before the clip the mean may be off by less than a step: no result is
    larger than `largest`. A value beyond the clip is refused, or moved to it when `saturate` is
    set. Where no value may be zero, a value y below one step becomes 1 with probability (1 + y) / 2,
    else -1.
    """
    clipped = check_clip(fixed, values, saturate=saturate)
    within = np.clip(values, -fixed.clip, fixed.clip) if clipped else values
    steps = within * weight * float(fixed.scale)
    chance = uniform(source, values.size)
    rounded = np.floor(steps)
    rounded += chance < steps - rounded
    if fixed.never_zero:
        small = np.abs(steps) < 1
        if small.any():
            rounded[small] = np.where(chance[small] < (1 + steps[small]) / 2, 1.0, -1.0)
    # np.clip takes longer
    bounded = np.minimum(np.maximum(rounded, -fixed.largest), fixed.largest)
    return to_field(bounded.astype(np.int64), fixed.field), clipped


def check_clip(fixed: FixedPoint, values: Reals, *, saturate: bool = False) -> int:
    """How many values are beyond the clip; unless they saturate, refuse them, and suggest a larger
    clip."""
    clipped = int(np.count_nonzero(np.abs(values) > fixed.clip))
    if clipped and not saturate:
        largest = float(np.abs(values).max())
        step = 10.0 ** (math.floor(math.log10(largest)) - 1)  # for two digits
        raise BadData(
            f"{clipped} of {values.size} selected values are beyond the clip of {fixed.clip:g}: "
            f"the largest is {largest:.6g}",
            f"clamp them, or start a round with a clip of {math.ceil(largest / step) * step:g}",
            "clip",
        )
    return clipped


def largest_sum(fixed: FixedPoint, weights: Iterable[float]) -> float:
    """The largest sum, in steps, of honest inputs with these weights."""
    return math.fsum(weight * fixed.clip * fixed.scale + _ROUNDING_MARGIN for weight in weights)


def beyond_clip(fixed: FixedPoint, value: Symbols, weights: Iterable[float]) -> int:
    """How many of these sums are larger than honest inputs with these weights can make them."""
    most = math.floor(largest_sum(fixed, weights))
    if most >= fixed.field // 2:  # the field has no room for anything larger
        return 0
    too_large = (value > np.uint32(most)) & (value < np.uint32(fixed.field - most))
    return int(np.count_nonzero(too_large))


def dequantise(fixed: FixedPoint, value: Symbols) -> Reals:
    """The real values of field elements of the aggregate."""
    return to_signed(value, fixed.field) / float(fixed.scale)


def rounding_source(source: Randomness, index: npt.NDArray[np.int64], values: Reals) -> Randomness:
    """The stream that decides the rounding: the same for the same selected values, so that masking
    the same gradient again gives the same X."""
    digest = hashlib.sha256(index.astype("<i8").tobytes() + values.astype("<f8").tobytes())
    return source.child(f"rounding {digest.hexdigest()}")


def uniform(source: Randomness, count: int) -> Reals:
    """Multiples of 2^-53 in [0, 1)."""
    words = np.empty(count, dtype=np.uint64)
    source.fill(words.view(np.uint8))
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
