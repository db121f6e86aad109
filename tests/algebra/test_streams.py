"""Sums of streams: compared with Python's integers over the words of each stream, however they are
read."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topk_secagg.algebra import streams
from topk_secagg.algebra.field import DEFAULT_FIELD, SMALL_FIELD, stored_type
from topk_secagg.algebra.randomness import CipherRandomness, Randomness
from topk_secagg.algebra.streams import StreamSums

FIELDS = [97, SMALL_FIELD, 3221225473, DEFAULT_FIELD]  # of the third a quarter is rejected


def plain_symbols(source: Randomness, q: int, count: int) -> list[int]:
    """Words of 2 or 4 bytes in their order, without those beyond the last multiple of q."""
    size = stored_type(q).itemsize
    limit = 256**size - 256**size % q
    symbols: list[int] = []
    while len(symbols) < count:
        word = int.from_bytes(source.bytes(size), "little")
        symbols += [word % q] if word < limit else []
    return symbols


def sources(count: int) -> list[CipherRandomness]:
    return [CipherRandomness(bytes(32)).child(f"stream {s}") for s in range(count)]


@pytest.mark.parametrize("q", FIELDS)
@given(
    st.integers(1, 3),
    st.integers(0, 4),
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
    st.sampled_from([1, 7, 1000]),
    st.sampled_from([1, 50, 1000]),
)
def test_the_sums_are_those_of_all_symbols(q, points, count, lengths, at_once, words):
    matrix = np.array(
        [[(7 + 13 * x + s * s) * (q - 3) % q for s in range(count)] for x in range(points)],
        dtype=np.uint64,
    ).reshape(points, count)
    symbols = [plain_symbols(source, q, sum(lengths)) for source in sources(count)]
    expected = [
        [
            sum(int(matrix[x, s]) * symbols[s][j] for s in range(count)) % q
            for j in range(sum(lengths))
        ]
        for x in range(points)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "SUMS_AT_ONCE", at_once)
        patch.setattr(streams, "WORDS_AT_ONCE", words)
        sums = StreamSums(sources(count), matrix, q)
        for start, length in zip(itertools.accumulate(lengths, initial=0), lengths, strict=False):
            if length % 3:
                found = sums.read(length).tolist()
                assert found == [row[start : start + length] for row in expected]
            else:
                sums.skip(length)


class Unlucky(CipherRandomness):
    """A stream whose first words are all rejected."""

    def __init__(self, rejected: int) -> None:
        super().__init__(bytes(32))
        self._left = rejected

    def fill(self, out) -> None:
        super().fill(out)
        rejected = min(self._left, out.size)
        out[:rejected] = 255
        self._left -= rejected


@pytest.mark.parametrize("rejected", [4, 200, 4000])
def test_a_stream_of_which_much_is_rejected_is_read_on(rejected):
    q = DEFAULT_FIELD
    matrix = np.array([[5, 7]], dtype=np.uint64)
    found = StreamSums([Unlucky(rejected), CipherRandomness(bytes(32))], matrix, q).read(100)
    unlucky = plain_symbols(Unlucky(rejected), q, 100)
    other = plain_symbols(CipherRandomness(bytes(32)), q, 100)
    assert found.tolist() == [[(5 * a + 7 * b) % q for a, b in zip(unlucky, other, strict=True)]]


def test_there_is_a_factor_for_every_stream():
    with pytest.raises(ValueError, match="2 factors for 1 streams"):
        StreamSums(sources(1), np.ones((1, 2), dtype=np.uint64), DEFAULT_FIELD)
