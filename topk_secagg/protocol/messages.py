"""What the phases hand to each other: small records of arrays, named as in the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..algebra.field import Integers, Symbols


@dataclass(frozen=True)
class Points:
    """The public, pairwise distinct points alpha_1..alpha_N and beta_1..beta_U."""

    alpha: tuple[int, ...]
    beta: tuple[int, ...]


@dataclass(frozen=True)
class Secret:
    """What user n alone knows from the offline phase, apart from the noise.

    permutation: place[k] = pi_n(k) and mask[k] = r_{n,k} for every coordinate k.
    rotation: place[i] = s and mask[i] = r for pick i = b P + j of bucket b.
    """

    place: Symbols
    mask: Symbols


class Selectors(NamedTuple):
    """Row i is 1 at entry place[i] of block slot[i] and 0 elsewhere; h scales it by mask[i]. (rows,) each."""

    slot: Integers
    place: Integers
    mask: Symbols


class ShareBlock(NamedTuple):
    """Rows start, start+1, ... of every user's shares: f and h, (N, rows, width) each."""

    start: int
    f: Symbols
    h: Symbols


@dataclass(frozen=True)
class Sparse:
    """A sparse input or output: coordinates and their values in the field, (K,) each."""

    index: npt.NDArray[np.int64]
    value: Symbols


@dataclass(frozen=True)
class Masked:
    """X_n: permuted indices (or rotations) and masked values, (entries,) each."""

    index: Symbols
    value: Symbols


class Terms(NamedTuple):
    """The share rows that the entries of X name, how far each is rotated, and the group it adds to."""

    row: Integers
    rotation: Integers
    group: Integers


class AnswerBlock(NamedTuple):
    """Groups start, start+1, ... of Y_n: (groups, answer width)."""

    start: int
    answer: Symbols


class ShareRows(Protocol):
    """The shares f(alpha_n), h(alpha_n) that user n holds of one user, read row by row."""

    def read(self, rows: Integers) -> tuple[Symbols, Symbols]:
        """Increasing `rows` of f and of h, (len(rows), width) each."""


class AnswerRows(Protocol):
    """The answer Y_n of one user, read group by group."""

    def read(self, start: int, stop: int) -> Symbols:
        """Groups start..stop-1, (stop - start, answer width)."""
