"""Users that lie together: they move their answers to a polynomial through honest answers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from topk_secagg.algebra.field import Symbols
from topk_secagg.protocol.messages import Points
from topk_secagg.protocol.parameters import Parameters


@dataclass(frozen=True)
class Lie:
    """Delta(x) = factor * product over the roots of (x - alpha), of degree < D+T, in one symbol of
    Y or in one place of the first buckets. The honest users at the roots agree with the liars."""

    liars: tuple[int, ...]
    roots: tuple[int, ...]

    def at(self, points: Points, x: int, q: int) -> int:
        """Delta(x) with factor 1."""
        return math.prod(x - points.alpha[n - 1] for n in self.roots) % q

    def told(
        self,
        p: Parameters,
        points: Points,
        answers: Mapping[int, Symbols],
        factor: int = 1,
    ) -> dict[int, Symbols]:
        """The answers, with those of the liars moved by factor * Delta.

        In `permutation` it is the first symbol of Y; else all of the first group, by the same
        number: the sketch of place 0. So the sum changes at coordinate 0 (and others), and is
        still one that honest users could have.
        """
        q = p.field
        columns = slice(None) if p.buckets else slice(0, 1)
        moved = {n: y.copy() for n, y in answers.items()}
        for n in self.liars:
            delta = factor * self.at(points, points.alpha[n - 1], q) % q
            assert delta
            row = moved[n][0, columns].astype(np.uint64)
            moved[n][0, columns] = (row + np.uint64(delta)) % np.uint64(q)
        return moved

    def factor_for(self, p: Parameters, points: Points, change: int) -> int:
        """The factor that changes coordinate 0 of the sum, which lies at beta_1, by so much.

        In `sketch` the answers are masks, which are taken away.
        """
        if p.construction == "sketch":
            change = -change
        return change * pow(self.at(points, points.beta[0], p.field), -1, p.field) % p.field

    def agreeing(self) -> int:
        """How many answers lie on the polynomial of the liars."""
        return len(self.liars) + len(self.roots)


def all_lies(
    answering: Collection[int], most_liars: int, quorum: int, *, fewest_roots: int | None = None
) -> Iterator[Lie]:
    """Every set of at most so many liars, with all choices of roots: as many as they can have, or
    fewer too."""
    for count in range(1, most_liars + 1):
        for liars in combinations(answering, count):
            honest = [n for n in answering if n not in liars]
            most = min(quorum - 1, len(honest))
            least = most if fewest_roots is None else min(most, fewest_roots)
            for size in range(least, most + 1):
                for roots in combinations(honest, size):
                    yield Lie(liars, roots)
