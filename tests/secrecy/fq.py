"""Linear algebra over a small prime field, affine spaces in canonical form, and mixtures of
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import galois
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]


class NotAffine(AssertionError):
    """A map of the package is not affine where this check needs it to be."""


def times(a: Array, b: Array, q: int) -> Array:
    """The product a b in F_q; sums of products of small q are exact in float64, and faster."""
    return np.mod(a.astype(np.float64) @ b.astype(np.float64), q).astype(np.int64)


@dataclass(frozen=True)
class Basis:
    """The reduced row echelon form of a space of row vectors; it is unique, and the key is made of
    it."""

    rows: Array = field(compare=False)
    pivots: Array = field(compare=False)
    q: int
    key: bytes

    @property
    def dimension(self) -> int:
        return len(self.pivots)

    def reduced(self, vectors: Array) -> Array:
        """The representatives of vectors modulo the space that are zero at the pivots."""
        return (vectors - times(vectors[..., self.pivots], self.rows, self.q)) % self.q


class Solver(NamedTuple):
    """All solutions t of A t = y: particular @ y + free @ anything, if check @ y = 0."""

    particular: Array
    check: Array
    free: Array


class Elimination:
    """Gaussian elimination over F_q. Every result is certified by galois; results are
    remembered."""

    def __init__(self, q: int) -> None:
        self.q = q
        self.field = galois.GF(q)
        self._bases: dict[tuple[tuple[int, ...], bytes], Basis] = {}
        self._solvers: dict[tuple[tuple[int, ...], bytes], Solver] = {}

    def basis(self, vectors: Array) -> Basis:
        """The space that the rows span."""
        name = (vectors.shape, vectors.astype(np.uint8).tobytes())
        if name not in self._bases:
            rows, pivots, _ = self.echelon(vectors)
            rows = rows[: len(pivots)]
            key = bytes(str(rows.shape), "ascii") + rows.astype(np.uint8).tobytes()
            self._bases[name] = Basis(rows, pivots, self.q, key)
        return self._bases[name]

    def solver(self, matrix: Array) -> Solver:
        """How to solve matrix @ t = y."""
        name = (matrix.shape, matrix.astype(np.uint8).tobytes())
        if name not in self._solvers:
            rows, pivots, transform = self.echelon(matrix)
            rank = len(pivots)
            unknowns = matrix.shape[1]
            particular = np.zeros((unknowns, matrix.shape[0]), dtype=np.int64)
            particular[pivots] = transform[:rank]
            others = np.setdiff1d(np.arange(unknowns), pivots)
            free = np.zeros((unknowns, len(others)), dtype=np.int64)
            free[others, np.arange(len(others))] = 1
            free[pivots] = -rows[:rank, others] % self.q
            self._solvers[name] = Solver(particular, transform[rank:], free)
        return self._solvers[name]

    def echelon(self, matrix: Array) -> tuple[Array, Array, Array]:
        """The reduced row echelon form R, its pivots, and an invertible E with E matrix = R.

        galois multiplies the proof: E matrix = R and the matrix vanishes modulo R, so that both
        have the same row space; and R has the form that only one matrix with this row space has.
        """
        q = self.q
        count, width = matrix.shape
        work = np.hstack([matrix % q, np.eye(count, dtype=np.int64)])
        pivots: list[int] = []
        for column in range(width):
            below = np.flatnonzero(work[len(pivots) :, column])
            if not below.size:
                continue
            top = len(pivots)
            if below[0]:
                work[[top, top + below[0]]] = work[[top + below[0], top]]
            work[top] = work[top] * pow(int(work[top, column]), -1, q) % q
            others = np.flatnonzero(work[:, column])
            others = others[others != top]
            work[others] = (work[others] - np.multiply.outer(work[others, column], work[top])) % q
            pivots.append(column)
            if len(pivots) == count:
                break
        rows = work[:, :width]
        transform = work[:, width:]
        at = np.array(pivots, dtype=np.int64)
        rank = len(pivots)
        if rank:
            F = self.field
            assert np.array_equal(F(transform) @ F(matrix % q), F(rows))
            assert np.array_equal(F(matrix[:, at] % q) @ F(rows[:rank]), F(matrix % q))
        assert not np.any(rows[rank:])
        assert np.array_equal(rows[:rank, at], np.eye(rank, dtype=np.int64))
        assert not any(np.any(row[:pivot]) for row, pivot in zip(rows, pivots, strict=False))
        return rows, at, transform


@dataclass(frozen=True)
class AffineSpace:
    """offset + span of the basis, in canonical form: equal sets are equal objects."""

    basis: Basis
    offset: bytes

    @staticmethod
    def of(basis: Basis, reduced: Array) -> AffineSpace:
        """From an offset that is reduced already."""
        return AffineSpace(basis, reduced.astype(np.uint8).tobytes())

    @property
    def origin(self) -> Array:
        return np.frombuffer(self.offset, dtype=np.uint8).astype(np.int64)

    def contains(self, point: Array) -> bool:
        return self.basis.reduced(point).astype(np.uint8).tobytes() == self.offset

    def density(self, point: Array) -> Fraction:
        """The probability of a point under the uniform law on the space."""
        return (
            Fraction(1, self.basis.q**self.basis.dimension) if self.contains(point) else Fraction(0)
        )


Law = dict[AffineSpace, Fraction]  # a mixture: weights of uniform laws on affine spaces


def probability(law: Law, point: Array) -> Fraction:
    return sum((weight * space.density(point) for space, weight in law.items()), Fraction(0))


class Affine(NamedTuple):
    """v -> offset + matrix v; the last axis of the matrix is that of v."""

    offset: Array
    matrix: Array


def affine_map(
    function: Callable[[Array], Array], size: int, q: int, trials: Iterable[Array]
) -> Affine:
    """The affine map that the function is, read off at zero and the unit vectors, and tried
    elsewhere."""
    offset = function(np.zeros(size, dtype=np.int64))
    units = np.eye(size, dtype=np.int64)
    columns = [(function(unit) - offset) % q for unit in units]
    matrix = np.stack(columns, axis=-1) if columns else np.zeros((*offset.shape, 0), dtype=np.int64)
    for point in trials:
        if not np.array_equal(function(point), (offset + times(matrix, point, q)) % q):
            raise NotAffine
    return Affine(offset, matrix)
