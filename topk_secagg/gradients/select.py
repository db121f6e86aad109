"""Which coordinates of a gradient are sent: the K largest of all, or the P largest of each bucket.

Applied to random numbers instead of a gradient, the same functions select random coordinates.
"""

from __future__ import annotations

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
    sample = np.sort(np.abs(gradient[:: max(1, gradient.size // _SAMPLE_SIZE)]))[::-1]
    rank = 2 * k * sample.size // gradient.size + _SAMPLE_MARGIN
    if rank >= sample.size:
        return np.arange(gradient.size)
    threshold = sample[rank]
    starts = range(0, gradient.size, _SCAN_SIZE)
    return np.concatenate(
        [
            np.flatnonzero(np.abs(gradient[start : start + _SCAN_SIZE]) >= threshold) + start
            for start in starts
        ]
    )


def bucket_top(gradient: Vector, buckets: int, picks: int) -> Coordinates:
    """The `picks` largest magnitudes among the coordinates k with k mod B = b, for b = 0..B-1:
    (B P,), bucket by bucket and increasing within one; ties go to the lower coordinate.

    A few buckets at a time are copied side by side, and their largest is taken out `picks` times.
    """
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


def kept_energy(gradient: Vector, index: Coordinates) -> float:
    """How good a selection is: the energy (sum of squares) of what it keeps, divided by that of
    the best selection of the same size. At least one coordinate is selected."""
    values = gradient[index].astype(np.float64)
    best = gradient[top_k(gradient, index.size)].astype(np.float64)
    largest = np.abs(best).max()
    if not largest:
        return 1.0
    # divided by the largest, so that squares neither overflow nor vanish
    return float(np.square(values / largest).sum() / np.square(best / largest).sum())
