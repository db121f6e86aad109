"""What `moments` and `sketch` have in common: buckets of coordinates, places, and their moments.

Coordinate k lies in bucket b = k mod B at place k // B. The moments of place p are gamma^(p j) for
j < W, with gamma of order n >= ceil(L / B).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..algebra.field import Symbols, smallest_generator
from ..algebra.moments import Entries, arranged, recover
from ..errors import BadData
from ..gradients.select import bucket_top
from .construction import Construction
from .messages import Sparse
from .parameters import Parameters

CHECK_BYTES = 1 << 16  # of a share under one checksum: all rows are read


class Buckets(Construction[Entries]):
    """P picks of every bucket; a sum is found from its moments."""

    distinct = False

    def __init__(self, p: Parameters) -> None:
        super().__init__(p)
        q = p.field
        self.order = p.order  # n
        self.gamma = pow(smallest_generator(q), (q - 1) // self.order, q)
        self.width = self.moment_count(p.users)  # W: what N survivors could need
        self.check_rows = max(1, CHECK_BYTES // (self.width * p.symbol_bytes))

    def moment_count(self, survivor_count: int) -> int:
        """W1 = min(2 |U1| P, n): so many moments determine |U1| P of n places."""
        return min(2 * survivor_count * self.p.picks, self.order)

    def select(self, gradient: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The P largest magnitudes of every bucket; everything where buckets have no more."""
        p = self.p
        if p.length // p.buckets < p.picks:
            return np.arange(p.length)
        return bucket_top(gradient, p.buckets, p.picks)

    def recovered(self, first: int, moments: Symbols, survivor_count: int) -> Entries:
        """The sums in buckets first, first+1, ... from their moments (buckets, W1).

        BadData unless each has at most |U1| P non-zero entries, where |U1| is the number of
        survivors, and all of them at places that are coordinates.
        """
        p = self.p
        entries = recover(
            moments,
            weight=survivor_count * p.picks,
            order=self.order,
            gamma=self.gamma,
            q=p.field,
            places=p.places,
        )
        last = p.places - 1  # the only place that not all buckets have
        full = p.length - last * p.buckets  # the buckets that have it: they are the first
        suspects = np.flatnonzero(entries.place >= last)
        bucket = first + np.searchsorted(np.cumsum(entries.counts), suspects, side="right")
        if np.any(entries.place[suspects] > last) or np.any(bucket >= full):
            raise BadData("the aggregate has values at places that are no coordinates")
        return entries

    def join_groups(self, parts: Sequence[Entries]) -> Sparse:
        """All entries by place k // B; those of a place come bucket by bucket."""
        return Sparse(*arranged(parts, self.p.places))
