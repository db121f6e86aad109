"""Which coordinates a user sends: the K largest magnitudes, or the P largest of every bucket."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..algebra.randomness import Randomness
from ..protocol.parameters import Parameters
from .quantize import uniform

Index = npt.NDArray[np.int64]


def select_top(p: Parameters, gradient: npt.NDArray[Any]) -> Index:
    """The coordinates of largest magnitude, in the order in which the construction masks them."""
    return bucket_top(gradient, p.buckets, p.picks) if p.buckets else top_k(gradient, p.top_k)


def select_random(p: Parameters, source: Randomness) -> Index:
    """As many coordinates, but picked at random: those of the largest of L random keys."""
    return select_top(p, uniform(source, p.length))


def top_k(gradient: npt.NDArray[Any], k: int) -> Index:
    """The k coordinates of largest magnitude, increasing; ties go to the lower one (eq. TopK:expression)."""
    magnitude = np.abs(gradient)
    rank = magnitude.size - k
    magnitude.partition(rank)
    threshold = magnitude[rank]
    np.abs(gradient, out=magnitude)
    above = np.flatnonzero(magnitude > threshold)
    level = np.flatnonzero(magnitude == threshold)[: k - above.size]
    return np.sort(np.concatenate([above, level]))


def bucket_top(gradient: npt.NDArray[Any], buckets: int, picks: int) -> Index:
    """The `picks` largest magnitudes among the coordinates k with k mod B = b, for b = 0..B-1: (B P,).

    Goes through the places once, and sorts into the best so far only what beats the last of them. A
    bucket may end in a place of padding, k >= L, which is picked only when nothing else is left.
    """
    best = np.full((picks, buckets), -np.inf, dtype=gradient.dtype)
    places = np.zeros((picks, buckets), dtype=np.int64)
    for place in range(-(-gradient.size // buckets)):
        row = np.abs(gradient[place * buckets : (place + 1) * buckets])
        if row.size < buckets:
            row = np.concatenate([row, np.full(buckets - row.size, -1, dtype=row.dtype)])
        columns = np.flatnonzero(row > best[-1])
        carried, at = row[columns], np.full(columns.size, place)
        better = np.zeros(columns.size, dtype=bool)
        for j in range(picks):
            here, there = best[j, columns], places[j, columns]
            better |= carried > here  # from where the newcomer goes in, all move down by one
            best[j, columns], carried = np.where(better, carried, here), np.where(better, here, carried)
            places[j, columns], at = np.where(better, at, there), np.where(better, there, at)
    return (np.sort(places, axis=0) * buckets + np.arange(buckets)).T.reshape(-1)


def values_at(gradient: npt.NDArray[Any], index: Index) -> npt.NDArray[np.float64]:
    """The gradient's values at the selected coordinates; padding is zero."""
    inside = np.minimum(index, gradient.size - 1)
    return np.where(index < gradient.size, gradient[inside], 0.0).astype(np.float64)


def kept_energy(p: Parameters, gradient: npt.NDArray[Any], values: npt.NDArray[np.float64]) -> float:
    """The energy of the selected values as a share of that of as many of the largest magnitudes."""
    best = values_at(gradient, top_k(gradient, min(p.entries, p.length)))
    largest = np.abs(best).max()
    if not largest:
        return 1.0
    return float(np.square(values / largest).sum() / np.square(best / largest).sum())
