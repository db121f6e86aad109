"""What a construction is: everything that differs between the ways to hide which coordinates a user sends."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ..algebra.field import Integers, Symbols
from ..algebra.lagrange import lagrange_matrix
from ..algebra.linear import combine
from ..algebra.randomness import Randomness
from ..errors import BadData
from . import wire
from .messages import (
    AnswerBlock,
    AnswerShape,
    Held,
    Inputs,
    Masked,
    Points,
    Secret,
    ShareBlock,
    Sparse,
)
from .parameters import Parameters, require

Part = TypeVar("Part")  # what is decoded at a time
BLOCK_SYMBOLS = 1 << 20  # symbols of all users' shares that are held at a time


class Construction(ABC, Generic[Part]):
    """The verbs of the phases, for given parameters, which are checked when it is made.

    Shares are tables of `rows` rows of `width` symbols, with a checksum for every `check_rows` rows. X has `entries`
    entries, with indices below `index_bound`. There are `beta_count` points besides the alphas; the shares of
    `share_quorum` users determine a secret.
    """

    share_names: ClassVar[tuple[str, ...]]
    index_name: ClassVar[str]
    never_zero: ClassVar[bool]  # the values of X
    distinct: ClassVar[bool]  # the indices of X
    letters: dict[str, int | None]  # the parameters that only this construction has
    rows: int
    width: int
    entries: int
    beta_count: int
    share_quorum: int
    index_bound: int
    index_code: wire.Packed | wire.EliasFano  # the indices of X on the wire
    check_rows: int

    def __init__(self, p: Parameters) -> None:
        self.p = p

    @property
    def block_rows(self) -> int:
        """Rows that are drawn and encoded at a time, a multiple of `check_rows`. Part of the format: the noise
        of a block comes from a stream of its own."""
        unit = self.check_rows
        fitting = min(self.rows, BLOCK_SYMBOLS // (self.p.users * self.width))
        return max(1, fitting // unit) * unit

    @property
    def share_bytes(self) -> int:
        """The symbols that one user sends another offline, in bytes."""
        return len(self.share_names) * self.rows * self.width * self.p.symbol_bytes

    @property
    def offline_bytes(self) -> int:
        """The same for all ordered pairs of users."""
        return self.p.users**2 * self.share_bytes

    # offline phase

    @abstractmethod
    def draw(self, source: Randomness) -> Secret:
        """The secret places and masks of a user."""

    @abstractmethod
    def check_secret(self, secret: Secret) -> str:
        """What is wrong with a secret, or nothing."""

    @abstractmethod
    def sharing(
        self, points: Points, secret: Secret
    ) -> Callable[[str, slice, Symbols, Symbols], None]:
        """What fills shares[name] (N, rows, width) of these rows of a secret, from noise (rows, T, width)."""

    def share_blocks(
        self, points: Points, secret: Secret, noise: Randomness
    ) -> Iterator[ShareBlock]:
        """The shares for all users, `block_rows` rows at a time; every block draws from a stream of its own.

        Two sets of buffers take turns: a block is valid until the next but one is drawn.
        """
        p, width, step, share = self.p, self.width, self.block_rows, self.sharing(points, secret)
        buffers = [
            [np.empty(p.users * step * width, dtype=np.uint32) for _ in self.share_names]
            for _ in range(2)
        ]
        z = np.empty((step, p.colluders, width), dtype=np.uint32)
        for turn, first in enumerate(range(0, self.rows, step)):
            rows, source = slice(first, min(first + step, self.rows)), noise.child(f"noise {first}")
            count = rows.stop - first
            shares = [front(buffer, p.users, count, width) for buffer in buffers[turn % 2]]
            for name, out in zip(self.share_names, shares, strict=True):
                share(name, rows, source.integers(p.field, z[:count]), out)
            yield ShareBlock(first, rows.stop, dict(zip(self.share_names, shares, strict=True)))

    @abstractmethod
    def check_shares(
        self,
        points: Points,
        users: Sequence[int],
        first: int,
        shares: Mapping[str, Symbols],
        secret: Secret | None,
    ) -> Integers:
        """What rows first, first+1, ... of one sender's shares for `users` determine, (users, rows, width) each.

        BadData when they determine nothing that an honest sender could have shared, or not what is in `secret`.
        """

    def interpolated(
        self, points: Points, users: Sequence[int], shares: Symbols, beta: Integers, row: Integers
    ) -> Symbols:
        """The polynomials of these rows of the shares (users, rows, width) at betas of these numbers.

        BadData unless there are enough shares, and all lie on one polynomial.
        """
        q, quorum, every = self.p.field, self.share_quorum, np.arange(shares.shape[1])
        if len(users) < quorum:
            raise BadData(f"{len(users)} shares do not determine a selector")
        matrix = decoding_matrix(points, tuple(users[:quorum]), tuple(users[quorum:]), q)
        for alpha, theirs in enumerate(shares[quorum:], start=len(points.beta)):
            if np.any(
                combine(matrix, shares[:quorum], np.full_like(every, alpha), every, q) != theirs
            ):
                raise BadData("the shares do not lie on one polynomial")
        return combine(matrix, shares[:quorum], beta, row, q)

    # masked-input phase

    @abstractmethod
    def select(self, gradient: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The coordinates of largest magnitude, in the order in which they are masked."""

    @abstractmethod
    def mask(self, secret: Secret, sparse: Sparse) -> Masked:
        """X_n."""

    @abstractmethod
    def unmask(self, secret: Secret, masked: Masked) -> Sparse:
        """The input behind X_n."""

    @property
    def value_code(self) -> wire.Packed:
        """The values of X on the wire, at log2 q bits."""
        return wire.Packed(self.entries, self.p.field)

    @property
    def masked_bytes(self) -> int:
        """The payload of X: the same for every input, or its size would leak."""
        return self.index_code.size + self.value_code.size

    # mask-elimination phase

    @abstractmethod
    def answer_shape(self, survivors: int, *, fallback: bool = False) -> AnswerShape:
        """How Y is laid out for |U1| survivors; the fallback decodes from any U answers."""

    def answer_bytes(self, survivors: int, *, fallback: bool = False) -> int:
        """The payload of Y."""
        shape = self.answer_shape(survivors, fallback=fallback)
        return shape.groups * shape.width * self.p.symbol_bytes

    @abstractmethod
    def answer_blocks(
        self, points: Points, user: int, masked: Inputs, shares: Held, shape: AnswerShape
    ) -> Iterator[AnswerBlock]:
        """Y_n, a few groups at a time."""

    # decoding

    @abstractmethod
    def decoded(self, matrix: Integers, shape: AnswerShape, first: int, y: Symbols) -> Part:
        """The aggregate in groups first, first+1, ... from exactly D+T answers, y (users, groups, width).

        matrix (betas, users): from values at these users' alphas to those at the betas.
        """

    @abstractmethod
    def joined(self, parts: Sequence[Part]) -> Sparse:
        """The results of `decoded` for all groups, which come in their order, by increasing coordinate."""


@lru_cache(maxsize=64)
def construction(p: Parameters) -> Construction[Any]:
    """The construction that the parameters name."""
    from .moments import Moments
    from .permutation import Permutation

    kinds: dict[str, type[Construction[Any]]] = {"permutation": Permutation, "moments": Moments}
    require(
        p.construction in kinds,
        f"unknown construction {p.construction!r}",
        f"one of {', '.join(kinds)}",
    )
    return kinds[p.construction](p)


@lru_cache(maxsize=4)
def decoding_matrix(
    points: Points, users: tuple[int, ...], others: tuple[int, ...], q: int
) -> npt.NDArray[np.uint64]:
    """From values at these users' alphas to those at all betas, and at the alphas of `others`."""
    targets = [*points.beta, *(points.alpha[n - 1] for n in others)]
    return lagrange_matrix([points.alpha[n - 1] for n in users], targets, q)


def front(buffer: Symbols, *shape: int) -> Symbols:
    """An array of this shape at the beginning of a buffer."""
    return buffer[: math.prod(shape)].reshape(shape)


def stacked(parts: Sequence[Integers]) -> Integers:
    """Arrays one behind the other; a single one as it is."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
