"""Which coordinates a user sends: the K largest magnitudes, or the P largest of every bucket."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..protocol.parameters import Parameters

Index = npt.NDArray[np.int64]


def select(p: Parameters, gradient: npt.NDArray[Any]) -> Index:
    """The coordinates that the construction sends, in the order in which it masks them."""
    return bucket_top(gradient, p.buckets, p.picks) if p.buckets else top_k(gradient, p.top_k)


def top_k(gradient: npt.NDArray[Any], k: int) -> Index:
    """The k coordinates of largest magnitude, increasing; ties go to the lower one (eq. TopK:expression)."""
    magnitude = np.abs(gradient)
    threshold = np.partition(magnitude, magnitude.size - k)[magnitude.size - k]
    above = np.flatnonzero(magnitude > threshold)
    level = np.flatnonzero(magnitude == threshold)[: k - above.size]
    return np.sort(np.concatenate([above, level]))


def bucket_top(gradient: npt.NDArray[Any], buckets: int, picks: int) -> Index:
    """The `picks` largest magnitudes among the coordinates k with k mod B = b, for b = 0..B-1: (B P,).

    A bucket may end in a place of padding, k >= L, which is picked only when nothing else is left.
    """
    places = -(-gradient.size // buckets)
    magnitude = np.full(places * buckets, -1.0, dtype=gradient.dtype)
    np.abs(gradient, out=magnitude[: gradient.size])
    grid = magnitude.reshape(places, buckets)
    chosen = np.empty((buckets, picks), dtype=np.int64)
    columns = np.arange(buckets)
    for j in range(picks):
        chosen[:, j] = place = np.argmax(grid, axis=0)
        grid[place, columns] = -2.0
    return (np.sort(chosen, axis=1) * buckets + columns[:, None]).reshape(-1)


def values_at(gradient: npt.NDArray[Any], index: Index) -> npt.NDArray[np.float64]:
    """The gradient's values at the selected coordinates; padding is zero."""
    inside = np.minimum(index, gradient.size - 1)
    return np.where(index < gradient.size, gradient[inside], 0.0).astype(np.float64)
