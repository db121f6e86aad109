"""Reals to field elements and back: fixed point with stochastic rounding, wide enough that no sum wraps."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..algebra.field import Symbols, to_field, to_signed
from ..algebra.randomness import Randomness
from ..errors import BadData
from ..protocol.constructions import construction
from ..protocol.parameters import Parameters

Reals = npt.NDArray[np.float64]

LARGEST_CLIP = 2.0**53
_SMALLEST_CLIP = 2.0**-900  # with a smaller one, the steps per unit are no double any more
_CLIP_OF_ZEROS = 1.0


def quantise(
    p: Parameters, values: Reals, source: Randomness, *, weight: float = 1.0, saturate: bool = False
) -> tuple[Symbols, int]:
    """round(weight * value * scale), up or down at random so that the mean is exact; how many are beyond the clip.

    Within the last step before the clip the mean may be off by less than a step: no result is larger
    than `p.largest`, so that N of them never wrap. A value beyond the clip is refused, or moved to it when
    `saturate` is set. Where the construction cannot send zero, a value y below one step becomes 1 with probability
    (1 + y) / 2, else -1.
    """
    clipped = check_clip(p, values, saturate=saturate)
    steps = _in_steps(p, values, weight)
    chance, rounded = uniform(source, values.size), np.floor(steps)
    rounded += chance < steps - rounded
    if construction(p).never_zero and (small := np.abs(steps) < 1).any():
        rounded[small] = np.where(chance[small] < (1 + steps[small]) / 2, 1.0, -1.0)
    bounded = np.minimum(np.maximum(rounded, -p.largest), p.largest).astype(
        np.int64
    )  # np.clip takes longer
    return to_field(bounded, p.field), clipped


def _in_steps(p: Parameters, values: Reals, weight: float) -> Reals:
    """weight * value * scale, not rounded yet; a value beyond the clip is moved to it."""
    beyond = np.abs(values) > p.clip
    within = np.clip(values, -p.clip, p.clip) if beyond.any() else values
    steps: Reals = within * weight * float(p.scale)
    return steps


def rounding_error(p: Parameters, values: Reals, weight: float = 1.0) -> float | None:
    """What rounding is expected to add to these values, rms, as a share of their own rms.

    A value of y steps that becomes one of its two neighbours has the variance f (1 - f), where
    f = y - floor(y). Where zero cannot be sent, a value below one step becomes +-1 and has 1 - y^2.
    None if all values are zero.
    """
    steps = _in_steps(p, values, weight)
    fraction = steps - np.floor(steps)
    variance = fraction * (1 - fraction)
    if construction(p).never_zero:
        small = np.abs(steps) < 1
        variance[small] = 1 - steps[small] ** 2
    energy = float(np.square(steps).sum())
    return math.sqrt(float(variance.sum())) / math.sqrt(energy) if energy else None


def check_clip(p: Parameters, values: Reals, *, saturate: bool = False) -> int:
    """How many values are beyond the clip; unless they saturate, refuse them, and suggest a larger clip."""
    clipped = int(np.count_nonzero(np.abs(values) > p.clip))
    if clipped and not saturate:
        largest = magnitude(values)
        raise BadData(
            f"{clipped} of {values.size} selected values are beyond the clip of {p.clip:g}: "
            f"the largest is {largest:.6g}",
            f"clamp them, or start a round with a clip of {sufficient_clip(largest):g}",
            "clip",
        )
    return clipped


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
        f"values of user {', '.join(beyond)} are beyond the clip of {clip:g}: "
        f"the largest is {most:.6g}",
        f"clamp them, or choose a clip of {enough}",
        f"clips {enough}",
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


def largest_sum(p: Parameters, weights: Iterable[float]) -> float:
    """The largest sum, in steps, of honest inputs with these weights: rounding adds less than two to each."""
    return math.fsum(weight * p.clip * p.scale + 2 for weight in weights)


def beyond_clip(p: Parameters, value: Symbols, weights: Iterable[float]) -> int:
    """How many of these sums are larger than honest inputs with these weights can make them."""
    most = math.floor(largest_sum(p, weights))
    if most >= p.field // 2:  # the field has no room for anything larger
        return 0
    return int(np.count_nonzero((value > np.uint32(most)) & (value < np.uint32(p.field - most))))


def dequantise(p: Parameters, value: Symbols) -> Reals:
    """The real values of field elements of the aggregate."""
    return to_signed(value, p.field) / float(p.scale)


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
