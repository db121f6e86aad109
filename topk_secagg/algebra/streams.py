"""Sums of streams of uniform symbols, which are too long to be kept: each is read once, from its
beginning."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from . import native
from .field import Integers, Symbols, stored_type, to_montgomery
from .randomness import Randomness, acceptance_limit

SUMS_AT_ONCE = 1 << 16  # lazy sums of 16 bytes that are kept: what a processor has close by
WORDS_AT_ONCE = 1 << 18  # of several short streams
_SPREADS = 6  # by which more words are read than are probably needed
_RARE = 0.01  # rejected words, for which none are read ahead


class StreamSums:
    """sum_s matrix[x, s] stream_s for every x: rows of symbols, read from the first to the last.

    matrix (points, streams). The symbols of a stream are those of `Randomness.integers`. A stream
    belongs to this object alone: it reads somewhat ahead, since some words are rejected.
    """

    def __init__(self, sources: Sequence[Randomness], matrix: Integers, q: int) -> None:
        if matrix.shape[1] != len(sources):
            raise ValueError(f"{matrix.shape[1]} factors for {len(sources)} streams")
        self._sources = sources
        self._matrix_mm = to_montgomery(to_montgomery(matrix, q), q)  # a sum is divided by R^2
        self._q = q
        self._word = stored_type(q)
        self._limit = acceptance_limit(q)
        # words of each stream that were read, and not looked at yet
        self._ahead = [np.empty(0, self._word)] * len(sources)

    def read(self, count: int) -> Symbols:
        """The next `count` symbols of the sums, (points, count)."""
        points = len(self._matrix_mm)
        out = np.empty((points, count), np.uint32)
        step = max(1, SUMS_AT_ONCE // points)
        for start in range(0, count, step):
            part = np.empty((points, min(step, count - start)), np.uint32)
            self._read_part(part)
            out[:, start : start + step] = part
        return out

    def skip(self, count: int) -> None:
        """Pass over the next `count` symbols."""
        for start in range(0, count, SUMS_AT_ONCE):
            self.read(min(SUMS_AT_ONCE, count - start))

    def _read_part(self, out: Symbols) -> None:
        """The next symbols of the sums, few enough for a processor's cache."""
        points, count = out.shape
        sums = np.zeros((2, points, count), np.uint64)
        filled = np.zeros(len(self._sources), np.int64)
        at_once = max(1, WORDS_AT_ONCE // count)
        for first in range(0, len(self._sources), at_once):
            some = slice(first, min(first + at_once, len(self._sources)))
            self._add(some, sums, filled[some])
            for s in range(some.start, some.stop):
                while filled[s] < count:  # hardly ever
                    self._add(slice(s, s + 1), sums, filled[s : s + 1])
        native.reduce_sums(sums, self._q, out)

    def _add(self, some: slice, sums: native.Words, filled: native.Indices) -> None:
        """Add symbols of some streams to the sums; `filled` says up to where each has done it."""
        wanted = self._words_for(sums.shape[2] - int(filled.min()))
        words = np.empty((len(filled), wanted), self._word)
        for row, s in zip(words, range(some.start, some.stop), strict=True):
            ahead = self._ahead[s][:wanted]
            row[: ahead.size] = ahead
            if ahead.size < wanted:
                self._sources[s].fill(row[ahead.size :].view(np.uint8))
        read = native.add_streams(
            words.astype(np.uint32, copy=False),
            np.ascontiguousarray(self._matrix_mm[:, some]),
            limit=self._limit,
            filled=filled,
            sums=sums,
        )
        for row, s, end in zip(words, range(some.start, some.stop), read, strict=True):
            left = row[end:]
            self._ahead[s] = np.concatenate([left, self._ahead[s][wanted:]])

    def _words_for(self, count: int) -> int:
        """How many words have so many symbols, almost surely."""
        words = 1 << 8 * self._word.itemsize
        accepted = self._limit / words
        rejected = count * (1 - accepted) / accepted
        if rejected < _RARE:
            return count
        return count + math.ceil(rejected + _SPREADS * math.sqrt(rejected / accepted))
