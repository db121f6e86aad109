"""Low rank from round to round: sides, bases and clips, by the library's own mathematics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

import topk_secagg as ts
from topk_secagg.algebra.bases import Basis
from topk_secagg.gradients.low_rank import FIRST_SIDE, OTHER_SIDE
from topk_secagg.gradients.reduce import Reduction

Vector = npt.NDArray[np.float64]
Symbols = npt.NDArray[np.int64]
SMALLEST_CLIP = 1e-12


def scale_of(result: ts.AggregateReport) -> int:
    """Steps per unit, of a round with one clip."""
    (run,) = result.fixed_point.runs
    return run.scale


@dataclass
class Projection:
    """What a round's users project on, and the clip of each tensor."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    rank: int
    follows: float
    side: str
    bases: list[Basis]
    clips: list[float]

    @classmethod
    def first(cls, named: dict[str, Tensor], rank: int, follows: float, nonce: bytes) -> Projection:
        """Of the first round: bases from the nonce, and no clips yet."""
        names = tuple(named)
        shapes = tuple(tuple(tensor.shape) for tensor in named.values())
        bases = Reduction.of(shapes, rank, FIRST_SIDE).first_bases(names, nonce)
        return cls(names, shapes, rank, follows=follows, side=FIRST_SIDE, bases=bases, clips=[])

    @property
    def reduction(self) -> Reduction:
        """Of this side."""
        return Reduction.of(self.shapes, self.rank, self.side)

    def take_clips(self, inputs: Iterable[Vector]) -> None:
        """Of the first round: each tensor's largest magnitude."""
        reduction = self.reduction
        projected = [reduction.reduce(vector, self.bases) for vector in inputs]
        self.clips = [
            max(SMALLEST_CLIP, *(float(np.abs(y[place]).max()) for y in projected))
            for place in reduction.symbol_slices
        ]

    def reduce(self, vector: Vector) -> Vector:
        """The projection, in units of the clips."""
        reduction = self.reduction
        reduced = reduction.reduce(vector, self.bases)
        for place, clip in zip(reduction.symbol_slices, self.clips, strict=True):
            reduced[place] /= clip
        return reduced

    def decode(self, symbols: Symbols, result: ts.AggregateReport) -> Vector:
        """A vector of all entries."""
        scales = [scale_of(result) / clip for clip in self.clips]
        return self.reduction.decode(symbols, self.bases, scales)

    def next(self, total: Symbols, decoded: Vector, nonce: bytes) -> Projection:
        """The other side, the basis that the sum gives, and its clips."""
        side = OTHER_SIDE[self.side]
        after = Reduction.of(self.shapes, self.rank, side)
        bases = after.next_bases(self.reduction, total, self.names, nonce)
        clips = after.clips(decoded, bases, self.clips, self.follows)
        return Projection(
            self.names, self.shapes, self.rank, self.follows, side=side, bases=bases, clips=clips
        )
