"""Which coordinates of a gradient are sent: the K largest of all, or the P largest of each bucket.

Applied to random numbers instead of a gradient, the same functions select random coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[Any]
Coordinates = npt.NDArray[np.int64]

_SAMPLE_SIZE = 1 << 14  # magnitudes that suggest a threshold
_SAMPLE_MARGIN = 64  # ranks by which the suggestion is more careful than the sample
_SCAN_SIZE = 1 << 18  # coordinates that are compared with the threshold at a time
_BUCKET_CELLS = 1 << 17  # entries of buckets that are compared with each other at a time
_LEAST_BUCKETS = 64  # that are looked at together, however large they are
_PICKS_WORTH_A_KERNEL = 8
_COMPARISONS_WORTH_A_KERNEL = 1 << 21
_SPREADS = 5  # standard deviations by which the number of a bucket's coordinates may vary
_TAKEN = -1  # below every magnitude


def top_k(gradient: Vector, k: int) -> Coordinates:
    """The k coordinates of largest magnitude, increasing; ties go to the lower one
    (eq. TopK:expression).

    A sample suggests a magnitude that somewhat more than k reach. Only those that do are compared
    with each other; if they are fewer than k, all of the gradient is.
    """
    candidates = _probable_top(gradient, k)
    if candidates.size < k:
        candidates = np.arange(gradient.size)
    magnitude = np.abs(gradient[candidates])
    threshold = np.partition(magnitude, magnitude.size - k)[magnitude.size - k]
    above = candidates[magnitude > threshold]
    level = candidates[magnitude == threshold][: k - above.size]
    return np.sort(np.concatenate([above, level]))


def _probable_top(gradient: Vector, k: int) -> Coordinates:
    """The coordinates whose magnitude reaches a threshold that probably at least k reach."""
    threshold = _threshold(gradient, 2 * k)
    starts = range(0, gradient.size, _SCAN_SIZE)
    return np.concatenate(
        [
            np.flatnonzero(np.abs(gradient[start : start + _SCAN_SIZE]) >= threshold) + start
            for start in starts
        ]
    )


def _threshold(gradient: Vector, count: int) -> float:
    """A magnitude that about `count` coordinates reach, rather more than fewer, by a sample."""
    sample = np.abs(gradient[:: max(1, gradient.size // _SAMPLE_SIZE)])
    rank = count * sample.size // gradient.size + _SAMPLE_MARGIN
    if rank >= sample.size:
        return _TAKEN
    at = sample.size - 1 - rank
    return float(np.partition(sample, at)[at])


def bucket_top(gradient: Vector, buckets: int, picks: int) -> Coordinates:
    """The `picks` largest magnitudes among the coordinates k with k mod B = b, for b = 0..B-1:
    (B P,), bucket by bucket and increasing within one; ties go to the lower coordinate.

    Where there is little to compare, some buckets at a time are copied side by side, and their
    largest is taken out `picks` times. Else a kernel lists the largest of all buckets while it goes
    through the gradient once.
    """
    if picks >= _PICKS_WORTH_A_KERNEL and picks * gradient.size >= _COMPARISONS_WORTH_A_KERNEL:
        return _listed_top(gradient, buckets, picks)
    whole, rest = divmod(gradient.size, buckets)
    table = gradient[: whole * buckets].reshape(whole, buckets)
    last = gradient[whole * buckets :]  # the last place, which not all buckets have
    places = np.empty((buckets, picks), dtype=np.int64)
    step = max(_LEAST_BUCKETS, _BUCKET_CELLS // max(1, whole))
    for first in range(0, buckets, step):
        part = slice(first, min(first + step, buckets))
        cells = np.empty((part.stop - first, whole + (rest > 0)), dtype=gradient.dtype)
        cells[:, :whole] = np.abs(table[:, part]).T
        if rest:
            cells[:, -1] = _TAKEN
            cells[: last[part].size, -1] = np.abs(last[part])
        rows = np.arange(len(cells))
        for j in range(picks):
            largest = cells.argmax(axis=1)
            places[part, j] = largest
            cells[rows, largest] = _TAKEN
    places.sort(axis=1)
    return (places * buckets + np.arange(buckets)[:, None]).reshape(-1)


def _listed_top(gradient: Vector, buckets: int, picks: int) -> Coordinates:
    """`bucket_top` by a kernel.

    It lists only magnitudes above a limit, which a sample suggests. Should a bucket have too few
    of them, there is no limit.
    """
    from ..algebra import native  # a process that compares little loads no kernels

    single = gradient.dtype == np.float32
    gradient = np.ascontiguousarray(gradient, np.float32 if single else np.float64)
    listed: Callable[..., Coordinates] = (
        native.bucket_top_of_singles if single else native.bucket_top_of_doubles
    )
    places = np.empty((buckets, picks), dtype=np.int64)
    enough = picks + _SPREADS * math.sqrt(picks)  # in the mean: then hardly any has too few
    for limit in (_threshold(gradient, math.ceil(buckets * enough)), _TAKEN):
        limits = np.full(buckets, limit, dtype=gradient.dtype)
        if listed(gradient, limits, places).min() == picks:
            break
    places.sort(axis=1)
    return (places * buckets + np.arange(buckets)[:, None]).reshape(-1)
