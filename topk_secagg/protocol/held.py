"""What a user holds of a dealer: shares that are written out, or the keys or the seed behind them.

Whoever computes an answer reads rows, and does not know the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..algebra.field import Integers, Symbols
from ..algebra.linear import combine
from .construction import CHUNK_SYMBOLS, Construction
from .deal import Block, Deal, Rows, symbol_stream
from .family import block_values


@dataclass(frozen=True)
class WrittenShares:
    """Shares in memory: f and h, g, or f alone, (rows, width) each."""

    tables: tuple[Symbols, ...]

    def __call__(self, rows: Integers) -> tuple[Symbols, ...]:
        """The given rows of each; without a copy if they are neighbours."""
        low = rows[0]
        high = rows[-1] + 1
        wanted = slice(low, high) if high - low == rows.size else rows
        return tuple(table[wanted] for table in self.tables)


class SeedShares:
    """A share that is the stream of a seed. Rows are read from the first to the last."""

    def __init__(self, c: Construction[Any], deal: Deal, user: int, seed: bytes) -> None:
        self._width = c.width
        self._rows = Rows(symbol_stream(deal, seed, (user,)), c.width, c.p.field)

    def __call__(self, rows: Integers) -> tuple[Symbols, ...]:
        """Neighbouring rows of the share."""
        first = _first_of_neighbours(rows)
        share = np.empty((rows.size, self._width), dtype=np.uint32)
        self._rows.read(first, share)
        return (share,)


class KeyShares:
    """f(alpha_m) = sum over the blocks R that contain m of G(key_R) g_R(alpha_m).

    Rows are read from the first to the last. A key that is missing is not zero: without its term an
    answer would be wrong, and say something of the dealer's input.
    """

    def __init__(
        self, c: Construction[Any], deal: Deal, user: int, keys: Mapping[Block, bytes]
    ) -> None:
        wanted = {block for block in deal.family if user in block}
        if set(keys) != wanted:
            raise ValueError(f"{len(keys)} keys of user {user}, who is in {len(wanted)} blocks")
        self._c = c
        alpha = deal.points.alpha[user - 1]
        self._factors = block_values(c.p, deal.points, family=list(keys), at=[alpha])
        self._streams = [
            Rows(symbol_stream(deal, key, block), c.width, c.p.field) for block, key in keys.items()
        ]

    def __call__(self, rows: Integers) -> tuple[Symbols, ...]:
        """Neighbouring rows of the share."""
        first = _first_of_neighbours(rows)
        width = self._c.width
        share = np.zeros((rows.size, width), dtype=np.uint32)
        if not self._streams:  # a user that is in no block: f is zero at its alpha
            return (share,)
        step = max(1, CHUNK_SYMBOLS // (len(self._streams) * width))
        for start in range(0, rows.size, step):
            part = share[start : start + step]
            drawn = np.empty((len(self._streams), *part.shape), dtype=np.uint32)
            for stream, symbols in zip(self._streams, drawn, strict=True):
                stream.read(first + start, symbols)
            every = np.arange(len(part))
            part[:] = combine(
                self._factors, drawn, row=np.zeros_like(every), group=every, q=self._c.p.field
            )
        return (share,)


def _first_of_neighbours(rows: Integers) -> int:
    """The first of rows that must be neighbours."""
    first = int(rows[0])
    if int(rows[-1]) - first + 1 != rows.size:
        raise ValueError("a stream is read row after row")
    return first
