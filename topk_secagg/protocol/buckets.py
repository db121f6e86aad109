"""The buckets of `sketch`: how coordinates are dealt out to them, and the symbols of each.

A gradient has two parts, whose buckets follow each other: coordinates of which the largest are
picked, and then those that are sent whole. All buckets have W symbols. Where a bucket has no more
places than symbols its entries are its sketch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..algebra.field import Symbols, ceil_div
from ..errors import BadData

MOST_PLACES = 16  # of a bucket, where all coordinates are sent whole


@dataclass(frozen=True)
class Part:
    """Coordinates start, start+1, ..., so many as `length`, in B buckets from bucket `first` on.

    The k-th of them lies in bucket k mod B of the part, at place k // B.
    """

    start: int
    length: int
    first: int
    buckets: int

    @property
    def places(self) -> int:
        """M = ceil(length / B)."""
        return ceil_div(self.length, self.buckets) if self.buckets else 0

    def table(self, vector: Symbols, width: int) -> Symbols:
        """The entries (length,) bucket by bucket, with zeros for symbols that none has:
        (B, width)."""
        padded = np.zeros(self.places * self.buckets, dtype=np.uint32)
        padded[: self.length] = vector
        table = np.zeros((self.buckets, width), dtype=np.uint32)
        table[:, : self.places] = padded.reshape(self.places, self.buckets).T
        return table

    def vector(self, table: Symbols) -> Symbols:
        """The inverse of `table`; BadData where a symbol that no entry has is not zero."""
        flat = table[:, : self.places].T.reshape(-1)
        if np.any(flat[self.length :]) or np.any(table[:, self.places :]):
            raise BadData("the aggregate has values at places that are no coordinates")
        return flat[: self.length]


@dataclass(frozen=True)
class Buckets:
    """The parts of a gradient, and W, the symbols of each bucket."""

    width: int
    sparse: Part
    whole: Part

    @property
    def count(self) -> int:
        """Those of both parts."""
        return self.sparse.buckets + self.whole.buckets

    @property
    def is_direct(self) -> bool:
        """W = M: the entries of a sparse bucket, if there are any, are its sketch."""
        return self.sparse.places <= self.width


def bucket_count(top_k: int, picks: int) -> int:
    """B = ceil(K / P) buckets of the sparse part; none where nothing is picked."""
    return ceil_div(top_k, picks) if picks > 0 else 0


def buckets_for(
    *, users: int, blocks: int, picks: int, buckets: int, length: int, whole: int
) -> Buckets:
    """W = min(2 N P, M) for P picks of each of B sparse buckets with M places.

    `blocks` is D, and the last `whole` of `length` coordinates are sent whole: in buckets of this
    width, or in those that fill groups of D best where all are.
    """
    sparse = Part(start=0, length=length - whole, first=0, buckets=buckets)
    if buckets:
        width = min(2 * users * picks, sparse.places)
        count = ceil_div(whole, max(1, width))
    else:
        count = _whole_buckets(whole, blocks)
        width = ceil_div(whole, max(1, count))
    return Buckets(
        width=width,
        sparse=sparse,
        whole=Part(start=length - whole, length=whole, first=buckets, buckets=count),
    )


def _whole_buckets(length: int, blocks: int) -> int:
    """B = ceil(L / M), with the M up to 16 for which groups of D buckets waste least."""

    def symbols(count: int) -> int:
        return ceil_div(count, blocks) * blocks * ceil_div(length, max(1, count))

    counts = [ceil_div(length, places) for places in range(MOST_PLACES, 0, -1)]
    return min(counts, key=lambda count: (symbols(count), count))
