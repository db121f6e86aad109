"""Reals to field elements and back: fixed point with stochastic rounding, wide enough that no sum
wraps."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import labels
from ..algebra.field import Symbols, to_signed
from ..algebra.randomness import Randomness
from ..brief import Brief
from ..errors import Advice, BadData, UsageError, named_users

Reals = npt.NDArray[np.float64]
Index = npt.NDArray[Any]  # places in the reduced vector

LARGEST_CLIP = 2.0**53  # up to which all integers are floats
_SMALLEST_CLIP = 2.0**-900  # with a smaller one, the steps per unit are no double any more
_CLIP_OF_ZEROS = 1.0
_ROUNDING_MARGIN = 2  # steps: rounding moves a value by less than that


class Run(NamedTuple):
    """Symbols behind each other that have one clip, and steps per unit."""

    length: int
    clip: float
    scale: int


@dataclass(frozen=True, repr=False)
class FixedPoint(Brief):
    """How a round writes reals in its field: as multiples of 1/scale, of magnitude up to a clip.

    Clip and scale belong to tensors, and `runs` has them for the reduced vector. `largest` is the
    largest magnitude of a quantised value, so that those of all users add up without wrapping.
    """

    field: int
    largest: int
    runs: tuple[Run, ...]

    @staticmethod
    def of(
        field: int, users: int, max_weight: float, clips: Iterable[tuple[int, float]]
    ) -> FixedPoint:
        """With the most steps that N weighted values can have; `clips` says how many symbols have
        which, one behind the other."""
        runs: list[Run] = []
        for length, clip in clips:
            if runs and runs[-1].clip == clip:
                runs[-1] = runs[-1]._replace(length=runs[-1].length + length)
            else:
                scale = quantisation_scale(field, users, clip, max_weight)
                runs.append(Run(length, clip, scale))
        fixed = FixedPoint(field, (field - 1) // 2 // users, tuple(runs))
        fixed._check(users, max_weight)
        return fixed

    def _check(self, users: int, max_weight: float) -> None:
        """At least one step, and N of the largest values without wrapping."""
        for run in self.runs:
            if not 0 < run.clip <= LARGEST_CLIP:
                raise UsageError(f"the clip is {run.clip:g}", "choose a positive number up to 2^53")
            if run.scale < 1 or self.largest < 1:
                raise UsageError(
                    f"a field of {self.field} elements has no room for {users} values "
                    f"up to {run.clip * max_weight:g}",
                    "choose another clip, a smaller largest weight, or a larger field",
                )

    @property
    def clip(self) -> float:
        """The largest of all."""
        return max(run.clip for run in self.runs)

    @property
    def step(self) -> float:
        """The coarsest of all."""
        return 1 / min(run.scale for run in self.runs)

    @property
    def length(self) -> int:
        """n, of the reduced vector."""
        return sum(run.length for run in self.runs)

    def clips_at(self, index: Index) -> Reals | float:
        """Of the symbols at these places of the reduced vector."""
        return self._at([run.clip for run in self.runs], index)

    def scales_at(self, index: Index) -> Reals | float:
        """The same, steps per unit."""
        return self._at([float(run.scale) for run in self.runs], index)

    def _at(self, values: list[float], index: Index) -> Reals | float:
        if len(values) == 1:
            return values[0]
        ends = np.cumsum([run.length for run in self.runs])
        return np.array(values)[np.searchsorted(ends, index, side="right")]


def quantisation_scale(field: int, users: int, clip: float, max_weight: float = 1.0) -> int:
    """Steps per unit: floor((q-1)/2 / (N clip max_weight)), so that N weighted values never
    wrap."""
    try:
        return math.floor((field - 1) // 2 / (users * (clip * max_weight)))
    except (OverflowError, ValueError, ZeroDivisionError):  # numbers that no field or round has
        return 0


def quantise(
    fixed: FixedPoint,
    index: Index,
    values: Reals,
    source: Randomness,
    *,
    weight: float = 1.0,
    saturate: bool = False,
) -> tuple[Symbols, int]:
    """round(weight * value * scale), up or down at random so that the mean is exact; and how many
    values are beyond the clip. `index` says where in the reduced vector the values are.

    Within the last step before the clip the mean may be off by less than a step: no result is
    larger than `largest`. A value beyond its clip is refused, or moved to it when `saturate` is
    set.
    """
    clips = fixed.clips_at(index)
    clipped = _count_beyond(values, clips)
    if clipped and not saturate:
        excess = np.abs(values) / clips
        at = int(excess.argmax())
        worst = float(np.abs(values[at]))
        clip = float(np.broadcast_to(clips, values.shape)[at])
        raise BadData(
            f"{clipped} of {values.size} selected values are beyond the clip of {clip:g}: "
            f"the largest is {worst:.6g}",
            f"clamp them, or start a round with a clip of {sufficient_clip(worst):g}",
            Advice.CLIP,
        )
    steps = _in_steps(fixed, index, values, weight)
    rounded = np.floor(steps)
    rounded += uniform(source, values.size) < steps - rounded
    # np.clip takes longer
    np.maximum(rounded, -fixed.largest, out=rounded)
    np.minimum(rounded, fixed.largest, out=rounded)
    rounded += fixed.field * (rounded < 0)  # integers below 2^33, and so exact
    return rounded.astype(np.uint32), clipped


def _count_beyond(values: Reals, clips: Reals | float) -> int:
    """How many magnitudes are larger than their clips."""
    if isinstance(clips, float) and magnitude(values) <= clips:
        return 0
    return int(np.count_nonzero(np.abs(values) > clips))


def _in_steps(fixed: FixedPoint, index: Index, values: Reals, weight: float) -> Reals:
    """weight * value * scale, not rounded yet; a value beyond its clip is moved to it."""
    clips = fixed.clips_at(index)
    within = np.clip(values, -clips, clips) if _count_beyond(values, clips) else values
    weighted = within if weight == 1 else within * weight
    steps: Reals = weighted * fixed.scales_at(index)
    return steps


def rounding_error(
    fixed: FixedPoint, index: Index, values: Reals, weight: float = 1.0
) -> float | None:
    """What rounding is expected to add to these values, rms, as a share of their own rms.

    The values are taken as they are sent: times the weight, and clamped to the clip. What clamping
    takes away is not counted.

    A value of y steps that becomes one of its two neighbours has the variance f (1 - f), where
    f = y - floor(y). None if all values are zero.
    """
    steps = _in_steps(fixed, index, values, weight)
    fraction = steps - np.floor(steps)
    # in units of the largest: with one scale it is left out, and squares stay small
    units = _units(fixed, index)
    variance = fraction * (1 - fraction) * units**2
    energy = float(np.square(steps * units).sum())
    return math.sqrt(float(np.sum(variance))) / math.sqrt(energy) if energy else None


def _units(fixed: FixedPoint, index: Index) -> Reals | float:
    """What a step is worth, the coarsest being 1."""
    coarsest = float(min(run.scale for run in fixed.runs))
    return 1.0 if len(fixed.runs) == 1 else coarsest / fixed.scales_at(index)


def check_clips(clips: Sequence[float], largest: Mapping[str, Sequence[float]]) -> None:
    """Refuse users with values beyond the clip of a tensor, all at once.

    `largest` has the largest magnitudes of each user, tensor by tensor. The hint has the one clip
    that would do for all.
    """
    beyond = {
        user: [(value, clip) for value, clip in zip(values, clips, strict=True) if value > clip]
        for user, values in largest.items()
    }
    beyond = {user: pairs for user, pairs in beyond.items() if pairs}
    if not beyond:
        return
    most, clip = max(pair for pairs in beyond.values() for pair in pairs)
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
    """The largest sum of honest inputs with these weights, as a real."""
    weights = list(weights)
    return max(_largest_steps(run, weights) / run.scale for run in fixed.runs)


def _largest_steps(run: Run, weights: Iterable[float]) -> float:
    """The largest sum of honest symbols, in steps."""
    return math.fsum(weight * run.clip * run.scale + _ROUNDING_MARGIN for weight in weights)


def beyond_clip(fixed: FixedPoint, index: Index, value: Symbols, weights: Iterable[float]) -> int:
    """How many of these sums are larger than honest inputs with these weights can make them."""
    weights = list(weights)
    most = [float(math.floor(_largest_steps(run, weights))) for run in fixed.runs]
    magnitudes = np.abs(to_signed(value, fixed.field))
    return int(np.count_nonzero(magnitudes > fixed._at(most, index)))


def dequantise(fixed: FixedPoint, index: Index, value: Symbols) -> Reals:
    """The real values of field elements of the aggregate, at these places of the reduced
    vector."""
    reals: Reals = to_signed(value, fixed.field) / fixed.scales_at(index)
    return reals


def rounding_source(source: Randomness, index: npt.NDArray[np.int64], values: Reals) -> Randomness:
    """The stream that decides the rounding: the same for the same selected values, so that masking
    the same gradient again gives the same X."""
    digest = hashlib.sha256()
    digest.update(np.ascontiguousarray(index, "<i8").data)
    digest.update(np.ascontiguousarray(values, "<f8").data)
    return source.child(labels.rounding(digest.hexdigest()))


def uniform(source: Randomness, count: int) -> Reals:
    """Multiples of 2^-53 in [0, 1)."""
    words = np.empty(count, dtype=np.uint64)
    source.fill(words.view(np.uint8))
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
