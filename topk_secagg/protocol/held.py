"""What a user holds of a dealer: shares that are written out, or the keys behind them.

Whoever computes an answer reads rows, and does not know the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..algebra.field import Integers, Symbols
from ..algebra.streams import StreamSums
from .construction import Construction
from .deal import Block, Deal, symbol_stream
from .family import block_values


@dataclass(frozen=True)
class WrittenShares:
    """Shares in memory: f and h, or f alone, (rows, width) each."""

    tables: tuple[Symbols, ...]

    def __call__(self, rows: Integers) -> tuple[Symbols, ...]:
        """The given rows of each; without a copy if they are neighbours."""
        low = rows[0]
        high = rows[-1] + 1
        wanted = slice(low, high) if high - low == rows.size else rows
        return tuple(table[wanted] for table in self.tables)


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
        alpha = deal.points.alpha[user - 1]
        factors = block_values(c.p, deal.points, family=list(keys), at=[alpha])
        streams = [symbol_stream(deal, key, block) for block, key in keys.items()]
        self._sums = StreamSums(streams, factors, c.p.field)
        self._width = c.width
        self._row = 0  # the next one

    def __call__(self, rows: Integers) -> tuple[Symbols, ...]:
        """Neighbouring rows of the share. (For a user that is in no block they are zero.)"""
        first = _first_of_neighbours(rows)
        if first < self._row:
            raise ValueError(f"row {first} of a stream was passed at row {self._row}")
        self._sums.skip((first - self._row) * self._width)
        self._row = first + rows.size
        return (self._sums.read(rows.size * self._width).reshape(rows.size, self._width),)


def _first_of_neighbours(rows: Integers) -> int:
    """The first of rows that must be neighbours."""
    first = int(rows[0])
    if int(rows[-1]) - first + 1 != rows.size:
        raise ValueError("a stream is read row after row")
    return first
