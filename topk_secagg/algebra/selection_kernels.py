"""The kernels that find the largest magnitudes of a gradient. Loads numba.

What a kernel is, and what it may rely on, stands in `kernels`.
"""

from __future__ import annotations

from typing import Any

from numba import carray

from .entry import DoublesAt, IntegersAt, SinglesAt, Size, kernel
from .montgomery import part

COMPARED_AT_ONCE = 16  # magnitudes


@part
def _any_above(values: Any, limits: Any) -> Any:
    """Whether a magnitude is above its limit."""
    above = False
    for i in range(len(values)):
        above |= abs(values[i]) > limits[i]
    return above


@part
def _insert(magnitude: Any, at: Any, count: Any, kept: Any, places: Any) -> None:
    """Put a magnitude and its place into a list that decreases, behind those that are as large;
    the last one goes if the list is full. The first `count` entries are there."""
    j = min(count, len(kept) - 1)
    while j > 0 and kept[j - 1] < magnitude:
        kept[j] = kept[j - 1]
        places[j] = places[j - 1]
        j -= 1
    kept[j] = magnitude
    places[j] = at


@part
def _bucket_top(gradient: Any, limits: Any, kept: Any, places: Any, counts: Any) -> None:
    """See `select.bucket_top`: limits (B,) are what a magnitude must exceed to be listed."""
    buckets, picks = kept.shape
    start = 0
    place = 0
    while start < len(gradient):
        row = gradient[start : min(start + buckets, len(gradient))]
        first = 0
        while first < len(row):
            last = min(first + COMPARED_AT_ONCE, len(row))
            if _any_above(row[first:last], limits[first:last]):
                for b in range(first, last):
                    magnitude = abs(row[b])
                    if magnitude > limits[b]:
                        _insert(magnitude, place, counts[b], kept[b], places[b])
                        counts[b] = min(counts[b] + 1, picks)
                        if counts[b] == picks:
                            limits[b] = kept[b, picks - 1]
            first = last
        start += buckets
        place += 1


@kernel
def bucket_top_of_singles(
    gradient_at: SinglesAt,
    length: Size,
    buckets: Size,
    picks: Size,
    limits_at: SinglesAt,
    kept_at: SinglesAt,
    places_at: IntegersAt,
    counts_at: IntegersAt,
) -> None:
    """See `native.bucket_top`."""
    _bucket_top(
        carray(gradient_at, length),
        carray(limits_at, buckets),
        carray(kept_at, (buckets, picks)),
        carray(places_at, (buckets, picks)),
        carray(counts_at, buckets),
    )


@kernel
def bucket_top_of_doubles(
    gradient_at: DoublesAt,
    length: Size,
    buckets: Size,
    picks: Size,
    limits_at: DoublesAt,
    kept_at: DoublesAt,
    places_at: IntegersAt,
    counts_at: IntegersAt,
) -> None:
    """See `native.bucket_top`."""
    _bucket_top(
        carray(gradient_at, length),
        carray(limits_at, buckets),
        carray(kept_at, (buckets, picks)),
        carray(places_at, (buckets, picks)),
        carray(counts_at, buckets),
    )
