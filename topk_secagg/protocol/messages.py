"""What the phases hand to each other: small records of arrays, named as in the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..algebra.field import Integers, Symbols
from ..brief import Brief


@dataclass(frozen=True, repr=False)
class Points(Brief):
    """The public, pairwise distinct points alpha_1..alpha_N and beta_1, beta_2, ..."""

    alpha: tuple[int, ...]
    beta: tuple[int, ...]


@dataclass(frozen=True)
class Secret:
    """What user n alone knows from the offline phase, apart from the noise.

    permutation: place[k] = pi_n(k) and mask[k] = r_{n,k} for every coordinate k.
    sketch: mask[b W + j] = u for symbol j of bucket b's sketch, up to the end of the last group;
    no places.
    `keys` are those of the family's blocks, where shares are dealt by keys.
    """

    place: Symbols = field(repr=False)
    mask: Symbols = field(repr=False)
    keys: tuple[bytes, ...] = field(default=(), repr=False)


class ShareChunk(NamedTuple):
    """Rows start, ..., stop-1 of the shares that are written out, by name: (users, rows, width)
    each."""

    start: int
    stop: int
    shares: Mapping[str, Symbols]


@dataclass(frozen=True)
class Sparse:
    """A sparse input or output: coordinates and their values in the field, (K,) each."""

    index: Integers
    value: Symbols


@dataclass(frozen=True)
class Masked:
    """X_n: permuted indices and masked values, (entries,) each; in `sketch` values alone."""

    index: Symbols
    value: Symbols


@dataclass(frozen=True)
class AnswerShape:
    """How Y is laid out for `survivor_count` = |U1|: (groups, width) symbols."""

    survivor_count: int
    groups: int
    width: int


class AnswerChunk(NamedTuple):
    """Groups start, start+1, ... of Y_n: (groups, width)."""

    start: int
    groups: Symbols


# X_m of every survivor m
MaskedInputs = Mapping[int, Masked]

# What one user holds of every survivor m: gives increasing rows of f and h, or of f alone,
# (rows, width) each
HeldShares = Mapping[int, Callable[[Integers], tuple[Symbols, ...]]]

# Fills an array (groups, width) with groups start, start+1, ... of Y_n
AnswerReader = Callable[[int, Symbols], object]

# Y_n of every user n that answered
Answers = Mapping[int, AnswerReader]
