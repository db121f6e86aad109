"""Reals to field elements and back: fixed point with stochastic rounding, wide enough that no sum
wraps."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..algebra.field import Symbols, to_field, to_signed
from ..algebra.randomness import Randomness
from ..errors import Advice, BadData, named_users

Reals = npt.NDArray[np.float64]

LARGEST_CLIP = 2.0**53  # up to which all integers are floats
_SMALLEST_CLIP = 2.0**-900  # with a smaller one, the steps per unit are no double any more
_CLIP_OF_ZEROS = 1.0
_ROUNDING_MARGIN = 2  # steps: rounding moves a value by less than that


@dataclass(frozen=True)
class FixedPoint:
    """How a round writes reals in its field: as multiples of 1/scale, of magnitude up to `clip`.

    `largest` is the largest magnitude of a quantised value, so that those of all users add up
    without wrapping.
    """

    field: int
    scale: int
    clip: float
    largest: int


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
    set.
    """
    clipped = int(np.count_nonzero(np.abs(values) > fixed.clip))
    if clipped and not saturate:
        largest = magnitude(values)
        raise BadData(
            f"{clipped} of {values.size} selected values are beyond the clip of {fixed.clip:g}: "
            f"the largest is {largest:.6g}",
            f"clamp them, or start a round with a clip of {sufficient_clip(largest):g}",
            Advice.CLIP,
        )
    steps = _in_steps(fixed, values, weight)
    rounded = np.floor(steps)
    rounded += uniform(source, values.size) < steps - rounded
    # np.clip takes longer
    bounded = np.minimum(np.maximum(rounded, -fixed.largest), fixed.largest)
    return to_field(bounded.astype(np.int64), fixed.field), clipped


def _in_steps(fixed: FixedPoint, values: Reals, weight: float) -> Reals:
    """weight * value * scale, not rounded yet; a value beyond the clip is moved to it."""
    beyond = np.abs(values) > fixed.clip
    within = np.clip(values, -fixed.clip, fixed.clip) if beyond.any() else values
    steps: Reals = within * weight * float(fixed.scale)
    return steps


def rounding_error(fixed: FixedPoint, values: Reals, weight: float = 1.0) -> float | None:
    """What rounding is expected to add to these values, rms, as a share of their own rms.

    The values are taken as they are sent: times the weight, and clamped to the clip. What clamping
    takes away is not counted.

    A value of y steps that becomes one of its two neighbours has the variance f (1 - f), where
    f = y - floor(y). None if all values are zero.
    """
    steps = _in_steps(fixed, values, weight)
    fraction = steps - np.floor(steps)
    variance = fraction * (1 - fraction)
    energy = float(np.square(steps).sum())
    return math.sqrt(float(variance.sum())) / math.sqrt(energy) if energy else None


def check_clips(clip: float, largest: Mapping[str, float]) -> None:
    """Refuse users with values beyond the clip, all at once.

    `largest` has the largest magnitude of each. The hint has the one clip that would do for all.
    """
    beyond = {user: value for user, value in largest.items() if value > clip}
    if not beyond:
        return
    most = max(beyond.values())
    enough = f"{sufficient_clip(most):g}"
    raise BadData(
        f"values of {named_users(beyond)} are beyond the clip of {clip:g}: "
        f"the largest is {most:.6g}",
        f"clamp them, or choose a clip of {enough}",
        Advice.CLIPS,
        clip=enough,
    )


def magnitude(vector: npt.NDArray[Any]) -> float:
    """The largest magnitude in a vector; 0 if it is empty."""
    return max(float(vector.max()), -float(vector.min())) if vector.size else 0.0


def sufficient_clip(largest: float) -> float:
    """The next number of two digits that is not smaller: what a person would type."""
    step = 10.0 ** (math.floor(math.log10(largest)) - 1)
    digits = math.floor(largest / step)
    while (rounded := float(f"{digits * step:g}")) < largest:  # division rounds, up or down
        digits += 1
    return rounded


def clip_of(largest: Iterable[float]) -> float:
    """The clip for users with these largest magnitudes, none of whose values it cuts."""
    most = max(largest, default=0.0)
    if most > LARGEST_CLIP:
        raise BadData(
            f"the largest magnitude is {most:g}, and values up to 2^53 can be sent",
            "scale the gradients down",
        )
    return max(most, _SMALLEST_CLIP) if most else _CLIP_OF_ZEROS


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
