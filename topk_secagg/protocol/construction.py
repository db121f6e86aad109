"""What a construction is: everything that differs between the ways to hide which coordinates a
user sends."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from .. import labels
from ..algebra.field import Integers, Symbols
from ..algebra.lagrange import lagrange_matrix
from ..algebra.linear import combine
from ..algebra.randomness import KEY_BYTES, Randomness
from ..errors import BadData
from . import wire
from .deal import Block, Deal
from .messages import (
    AnswerChunk,
    AnswerShape,
    HeldShares,
    Masked,
    MaskedInputs,
    Points,
    Secret,
    ShareChunk,
    Sparse,
)
from .parameters import KEYS, Parameters

DecodedGroups = TypeVar("DecodedGroups")  # what `decode_groups` makes of a few groups
ShareRows = Callable[[str, slice, Symbols, Symbols], None]

COMMITMENT_BYTES = 64  # of a key, in hexadecimal digits
CHUNK_SYMBOLS = 1 << 20  # symbols of all users' shares that are held at a time


class Construction(ABC, Generic[DecodedGroups]):
    """The verbs of the phases, for given parameters.

    Shares are tables of `rows` rows of `width` symbols, with a checksum for every `check_rows`
    rows. X has `entries` entries, with indices below `index_bound`. There are `beta_count` points
    besides the alphas; the shares of U users determine a secret.
    """

    share_names: ClassVar[tuple[str, ...]]
    index_name: ClassVar[str]  # of the indices in X; nothing where there are none
    answer_needs_inputs: ClassVar[bool]  # every X of the survivors
    decoding_needs_inputs: ClassVar[bool]  # and their sum
    rows: int
    width: int
    entries: int
    beta_count: int
    index_bound: int
    index_code: wire.Packed | wire.EliasFano  # the indices of X on the wire
    check_rows: int

    def __init__(self, p: Parameters) -> None:
        self.p = p

    @property
    def has_indices(self) -> bool:
        """Whether X has indices beside its values."""
        return bool(self.index_name)

    # offline phase

    @property
    def place_count(self) -> int:
        """The secret places of a user."""
        return self.rows

    @property
    def mask_count(self) -> int:
        """The masks of a user."""
        return self.rows

    def points(self) -> Points:
        """Public, pairwise distinct points: beta_u = u - 1, then alpha_1..alpha_N."""
        betas = range(self.beta_count)
        alphas = range(self.beta_count, self.beta_count + self.p.users)
        return Points(alpha=tuple(alphas), beta=tuple(betas))

    @abstractmethod
    def draw_secret(self, deal: Deal, source: Randomness) -> Secret:
        """The secret places and masks of a user."""

    def secret_of_keys(
        self,
        deal: Deal,  # noqa: ARG002
        keys: tuple[bytes, ...],  # noqa: ARG002
    ) -> Secret:
        """The secret that follows from the keys of the family's blocks."""
        raise ValueError(f"{self.p.construction} deals no keys")

    @abstractmethod
    def check_secret(self, secret: Secret) -> None:
        """Refuse a secret that cannot have been drawn."""

    @abstractmethod
    def sharing(self, deal: Deal, secret: Secret) -> ShareRows:
        """What fills shares[name] (users, rows, width) of these rows of a secret, from noise
        (rows, T, width)."""

    @property
    def chunk_rows(self) -> int:
        """Rows that are drawn and encoded at a time, a multiple of `check_rows`.

        Part of the format: the noise of a chunk comes from a stream of its own.
        """
        fitting = min(self.rows, CHUNK_SYMBOLS // (self.p.users * self.width))
        return max(1, fitting // self.check_rows) * self.check_rows

    def share_chunks(self, deal: Deal, secret: Secret, source: Randomness) -> Iterator[ShareChunk]:
        """The shares of all users, written out, `chunk_rows` rows at a time.

        Two sets of buffers take turns: a chunk is valid until the next but one is drawn.
        """
        step = self.chunk_rows
        users = self.p.users
        share = self.sharing(deal, secret)
        buffers = [
            [np.empty(users * step * self.width, dtype=np.uint32) for _ in self.share_names]
            for _ in range(2)
        ]
        for turn, start in enumerate(range(0, self.rows, step)):
            rows = slice(start, min(start + step, self.rows))
            noise = self._noise(rows, source.child(labels.noise(start)))
            shares = {}
            for name, buffer in zip(self.share_names, buffers[turn % 2], strict=True):
                shares[name] = front(buffer, users, rows.stop - rows.start, self.width)
                share(name, rows, next(noise), shares[name])
            yield ShareChunk(rows.start, rows.stop, shares)

    def _noise(self, rows: slice, source: Randomness) -> Iterator[Symbols]:
        """Uniform values (rows, T, width), as often as asked for."""
        z = np.empty((rows.stop - rows.start, self.p.colluders, self.width), dtype=np.uint32)
        while True:
            yield source.integers(self.p.field, z)

    def held_bytes(self, user: int, family: Sequence[Block]) -> int:
        """What a user holds of a dealer: the bytes of its keys or its share."""
        if self.p.dealing == KEYS:
            return KEY_BYTES * sum(user in block for block in family)
        return self.share_bytes

    def offline_bytes(self, family: Sequence[Block] = ()) -> int:
        """The most that a user sends before it has a gradient: to all others, and to each."""
        held = [self.held_bytes(m, family) for m in range(1, self.p.users + 1)]
        return len(family) * COMMITMENT_BYTES + sum(held) - min(held)

    @property
    def share_bytes(self) -> int:
        """A share that is written out, in bytes."""
        return len(self.share_names) * self.rows * self.width * self.p.symbol_bytes

    @abstractmethod
    def shared_places(
        self,
        points: Points,
        users: Sequence[int],
        first: int,
        shares: Mapping[str, Symbols],
        secret: Secret | None,
    ) -> Integers:
        """The places that rows first, first+1, ... of one sender's shares for `users` determine,
        (users, rows, width) each.

        BadData when they determine nothing that an honest sender could have shared, or not what is
        in `secret`.
        """

    def interpolated(
        self, points: Points, users: Sequence[int], shares: Symbols, beta: Integers, row: Integers
    ) -> Symbols:
        """The polynomials of these rows of the shares (users, rows, width) at betas of these
        numbers.

        BadData unless there are enough shares, and all lie on one polynomial.
        """
        q = self.p.field
        quorum = self.p.survivors  # D + T
        if len(users) < quorum:
            raise BadData(f"{len(users)} shares do not determine a selector")
        matrix = decoding_matrix(points, tuple(users[:quorum]), others=tuple(users[quorum:]), q=q)
        every = np.arange(shares.shape[1])
        for alpha, theirs in enumerate(shares[quorum:], start=len(points.beta)):
            expected = combine(
                matrix, shares[:quorum], row=np.full_like(every, alpha), group=every, q=q
            )
            if np.any(expected != theirs):
                raise BadData("the shares do not lie on one polynomial")
        return combine(matrix, shares[:quorum], row=beta, group=row, q=q)

    # masked-input phase

    @property
    def coordinate_count(self) -> int:
        """The coordinates that a user sends."""
        return self.entries

    @abstractmethod
    def select(self, gradient: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The coordinates of largest magnitude, in the order in which they are masked."""

    @abstractmethod
    def mask(self, secret: Secret, sparse: Sparse) -> Masked:
        """X_n: the hidden indices with the masked values (eq. message:first, message:phase:1)."""

    @abstractmethod
    def unmask(self, secret: Secret, masked: Masked) -> Sparse:
        """The input behind X_n."""

    def check_masked(self, masked: Masked) -> None:
        """Refuse what no honest user could have sent: another count, or a value out of range."""
        indices = self.index_code.count
        if masked.index.shape != (indices,) or masked.value.shape != (self.entries,):
            raise BadData(f"it does not have exactly {self.entries} entries")
        if np.any(masked.value >= np.uint32(self.p.field)):
            raise BadData("a value is not below the field's size")

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
    def answer_shape(self, survivor_count: int) -> AnswerShape:
        """How Y is laid out for |U1| survivors."""

    def answer_bytes(self, survivor_count: int) -> int:
        """The payload of Y for |U1| survivors."""
        return self.bytes_of_answer(self.answer_shape(survivor_count))

    def bytes_of_answer(self, shape: AnswerShape) -> int:
        """The payload of a Y of this shape: the one place where its size is computed."""
        return shape.groups * shape.width * self.p.symbol_bytes

    @abstractmethod
    def answer_chunks(
        self, masked: MaskedInputs, shares: HeldShares, shape: AnswerShape
    ) -> Iterator[AnswerChunk]:
        """Y_n, a few groups at a time."""

    # decoding

    @abstractmethod
    def decode_groups(
        self,
        matrix: Integers,
        shape: AnswerShape,
        first: int,
        y: Symbols,
        masked_sum: Symbols | None,
    ) -> DecodedGroups:
        """The aggregate in groups first, first+1, ... from exactly D+T answers,
        y (users, groups, width).

        matrix (betas, users): from values at these users' alphas to those at the betas. masked_sum
        is the sum of all X, where `decoding_needs_inputs`.
        """

    @abstractmethod
    def join_groups(self, parts: Sequence[DecodedGroups]) -> Sparse:
        """The results of `decode_groups` for all groups, which come in their order, by increasing
        coordinate."""


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
