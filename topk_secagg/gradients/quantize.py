"""Reals to field elements and back: fixed point with stochastic rounding, wide enough that no sum wraps."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ..algebra.field import Symbols, to_field, to_signed
from ..algebra.randomness import Randomness
from ..errors import BadData
from ..protocol.constructions import construction
from ..protocol.parameters import Parameters

Reals = npt.NDArray[np.float64]


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
    steps = (np.clip(values, -p.clip, p.clip) if clipped else values) * weight * float(p.scale)
    chance, rounded = uniform(source, values.size), np.floor(steps)
    rounded += chance < steps - rounded
    if construction(p).never_zero and (small := np.abs(steps) < 1).any():
        rounded[small] = np.where(chance[small] < (1 + steps[small]) / 2, 1.0, -1.0)
    bounded = np.minimum(np.maximum(rounded, -p.largest), p.largest).astype(
        np.int64
    )  # np.clip takes longer
    return to_field(bounded, p.field), clipped


def check_clip(p: Parameters, values: Reals, *, saturate: bool = False) -> int:
    """How many values are beyond the clip; unless they saturate, refuse them, and suggest a larger clip."""
    clipped = int(np.count_nonzero(np.abs(values) > p.clip))
    if clipped and not saturate:
        largest = float(np.abs(values).max())
        step = 10.0 ** (math.floor(math.log10(largest)) - 1)
        raise BadData(
            f"{clipped} of {values.size} selected values are beyond the clip of {p.clip:g}: "
            f"the largest is {largest:.6g}",
            f"clamp them, or start a round with a clip of {math.ceil(largest / step) * step:g}",  # two digits
            "clip",
        )
    return clipped


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
