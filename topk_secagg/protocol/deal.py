"""One user's dealing in one round, and the keys and seeds that it sends instead of shares.

What a dealer may choose freely, it may choose as the output of a generator, and send the key. Each
key and seed serves one dealing: its label names the session, the dealer and who receives it. The
stream of symbols has a label of its own, with the dealer's `sharing` besides: the same keys in
another session, or in the same session prepared twice, give other symbols.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..algebra.field import Symbols
from ..algebra.randomness import KEY_BYTES, CipherRandomness, Randomness
from .messages import Points

Block = tuple[int, ...]  # users that hold the same key, increasing


@dataclass(frozen=True)
class Deal:
    """What one dealing has of its own: session, dealer and `sharing`, its random public name.

    `family` are the blocks of users that hold a key each, where shares are dealt by keys.
    """

    points: Points
    session: str
    dealer: int
    sharing: str
    family: tuple[Block, ...] = ()

    def key_label(self, receivers: Sequence[int]) -> str:
        """Under which the dealer derives the key, or the seed, of these users."""
        return f"key {self.session} {self.dealer} {_listed(receivers)}"

    def symbols_label(self, receivers: Sequence[int]) -> str:
        """Under which symbols follow from the key, or the seed, of these users."""
        return f"symbols {self.session} {self.dealer} {_listed(receivers)} {self.sharing}"


def _listed(users: Sequence[int]) -> str:
    return ",".join(map(str, users))


def drawn_key(deal: Deal, source: Randomness, receivers: Sequence[int]) -> bytes:
    """The key of these users, or the seed of a single one: a child of the dealer's own key."""
    return source.child(deal.key_label(receivers)).bytes(KEY_BYTES)


def symbol_stream(deal: Deal, key: bytes, receivers: Sequence[int]) -> Randomness:
    """G(key): the stream of the symbols that these users share with the dealer."""
    return CipherRandomness(key).child(deal.symbols_label(receivers))


def commitment(key: bytes, dealer: int, block: Block) -> bytes:
    """What the dealer publishes of a key: it binds, and says nothing of the symbols."""
    return hmac.digest(key, f"commitment {dealer} {_listed(block)}".encode(), "sha256")


def next_key(key: bytes) -> bytes:
    """The key of the next generation of a series."""
    return hmac.digest(key, b"next", "sha256")


class Rows:
    """A table (rows, width) of uniform symbols, drawn row by row from a stream."""

    def __init__(self, stream: Randomness, width: int, field: int) -> None:
        self._stream = stream
        self._width = width
        self._field = field
        self._row = 0  # the next one

    def read(self, first: int, out: Symbols) -> None:
        """Rows first, first + 1, ... into `out` (rows, width); never an earlier row than before."""
        if first < self._row:
            raise ValueError(f"row {first} of a stream was passed at row {self._row}")
        if first > self._row:
            skipped = np.empty((first - self._row, self._width), dtype=np.uint32)
            self._stream.integers(self._field, skipped)
        self._stream.integers(self._field, out)
        self._row = first + len(out)
