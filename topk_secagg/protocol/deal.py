"""One user's dealing in one round, and the keys that it sends instead of shares.

What a dealer may choose freely, it may choose as the output of a generator, and send the key. Each
key serves one dealing: its label names the session, the dealer and who receives it. The stream of
symbols has a label of its own, with the dealer's `sharing` besides: the same keys in another
session, or in the same session prepared twice, give other symbols.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from .. import labels
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

    def key_label(self, block: Block) -> str:
        """Under which the dealer derives the key of these users."""
        return labels.key(self.session, self.dealer, block)

    def symbols_label(self, block: Block) -> str:
        """Under which symbols follow from the key of these users."""
        return labels.symbols(self.session, self.dealer, block, self.sharing)


def drawn_key(deal: Deal, source: Randomness, block: Block) -> bytes:
    """The key of these users: a child of the dealer's own key."""
    return source.child(deal.key_label(block)).bytes(KEY_BYTES)


def symbol_stream(deal: Deal, key: bytes, block: Block) -> Randomness:
    """G(key): the stream of the symbols that these users share with the dealer."""
    return CipherRandomness(key).child(deal.symbols_label(block))


def commitment(key: bytes, dealer: int, block: Block) -> bytes:
    """What the dealer publishes of a key: it binds, and says nothing of the symbols."""
    return hmac.digest(key, labels.commitment(dealer, block), "sha256")


def next_key(key: bytes) -> bytes:
    """The key of the next generation of a series."""
    return hmac.digest(key, labels.NEXT, "sha256")
