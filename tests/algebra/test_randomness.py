"""Uniform values from bytes: exact rejection sampling, uniform permutations, replayable streams."""

import hashlib
import hmac
import os
from collections import Counter
from itertools import permutations, product

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from topk_secagg.algebra.field import DEFAULT_FIELD
from topk_secagg.algebra.randomness import (
    CipherRandomness,
    Randomness,
    SystemRandomness,
)

KEY = bytes(range(32))


class Words(Randomness):
    """Gives out chosen words, least significant byte first, and remembers what is left."""

    def __init__(self, words: list[int], size: int = 4) -> None:
        self.left = b"".join(word.to_bytes(size, "little") for word in words)

    def fill(self, out: npt.NDArray[np.uint8]) -> None:
        assert len(self.left) >= out.size, "more bytes were asked for than foreseen"
        out[:] = np.frombuffer(self.left[: out.size], dtype=np.uint8)
        self.left = self.left[out.size :]

    def child(self, label: str) -> Randomness:
        raise AssertionError(label)


class ModuloBiased(CipherRandomness):
    """Sabotage: reduce every word, reject none."""

    def integers(self, bound: int, out: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        words = np.empty(out.size, dtype=f"<u{word_size(bound)}")
        self.fill(words.view(np.uint8))
        out[:] = words % bound
        return out


def drawn(source: Randomness, bound: int, count: int) -> list[int]:
    return source.integers(bound, np.empty(count, dtype=np.uint32)).tolist()


def word_size(bound: int) -> int:
    """As a symbol of F_bound is stored."""
    if bound < 2**8:
        return 1
    return 2 if bound < 2**16 else 4


@pytest.mark.parametrize(
    "bound",
    [3, 5, 7, 97, 101, 251, 257, 65521, 65537, 2**31 - 1, 3 * 2**30, 4294967279, DEFAULT_FIELD],
)
def test_words_from_the_last_multiple_of_the_bound_on_are_skipped(bound):
    size = word_size(bound)
    largest = 256**size - 1
    limit = 256**size // bound * bound
    words = [limit, limit - 1, 0, largest, limit - bound, limit, 1, largest, 2, 77]
    source = Words(words, size)
    assert drawn(source, bound, 5) == [bound - 1, 0, 0, 1, 2]
    assert source.left == (77).to_bytes(size, "little"), "what is not needed is not drawn"


@pytest.mark.parametrize("bound", [1, 2, 4, 2**7, 2**8, 2**15, 2**16, 2**31, 2**32])
def test_a_bound_that_divides_the_range_rejects_nothing(bound):
    size = word_size(bound)
    half = 256**size // 2
    words = [0, 1, half - 1, half, 256**size - 1]
    source = Words(words, size)
    assert drawn(source, bound, 5) == [word % bound for word in words]
    assert not source.left


bounds = (
    st.integers(1, 2**32)
    | st.integers(1, 2**16)
    | st.integers(1, 2**8)
    | st.sampled_from([65521, DEFAULT_FIELD])
)


@given(bounds, st.data())
def test_accepted_words_are_reduced_in_their_order_and_all_residues_are_equally_likely(bound, data):
    size = word_size(bound)
    limit = 256**size // bound * bound
    near = st.integers(max(0, limit - 2), min(limit + 1, 256**size - 1))
    words = data.draw(st.lists(near | st.integers(0, 256**size - 1), min_size=1, max_size=20))
    expected = [word % bound for word in words if word < limit]
    source = Words([*words, *[0] * 20], size)
    assert drawn(source, bound, 20) == [*expected, *[0] * (20 - len(expected))]
    assert len(source.left) == size * len(expected)
    assert limit % bound == 0


@pytest.mark.parametrize("bound", [97, 40_000, 65521, 3 * 2**30, DEFAULT_FIELD])
@given(st.lists(st.integers(0, 60), min_size=1, max_size=8))
def test_integers_do_not_depend_on_how_many_are_asked_for_at_a_time(bound, counts):
    """Two thirds of the range, or less, is a bound that rejects many words."""
    whole = drawn(CipherRandomness(KEY), bound, sum(counts))
    source = CipherRandomness(KEY)
    assert [value for count in counts for value in drawn(source, bound, count)] == whole


@pytest.mark.parametrize("bound", [40_000, 3 * 2**30, DEFAULT_FIELD])
def test_many_words_are_accepted_by_a_kernel_as_few_are_without(bound):
    many = 1 << 15
    source = CipherRandomness(KEY)
    some = [value for _ in range(many >> 8) for value in drawn(source, bound, 256)]
    assert drawn(CipherRandomness(KEY), bound, many) == some


def test_an_array_of_any_shape_is_filled_in_order():
    out = np.zeros((2, 3, 2), dtype=np.uint32)
    assert Words(list(range(12)), 1).integers(97, out) is out
    assert out.reshape(-1).tolist() == list(range(12))


@pytest.mark.parametrize("bound", [5, 97, 65521, 2**31 - 1, DEFAULT_FIELD])
def test_modulo_bias_is_found_exactly(bound):
    """The words that a biased source keeps do not make whole rounds through the residues."""
    size = word_size(bound)
    words = 256**size
    surplus = words - words // bound * bound
    assert surplus % bound != 0
    kept = Words([words - 1], size)
    biased = np.empty(1, dtype=np.uint32)
    ModuloBiased.integers(kept, bound, biased)
    assert biased.tolist() == [(words - 1) % bound], "the sabotaged source keeps the surplus word"
    assert drawn(Words([words - 1, 3], size), bound, 1) == [3], "the sound one skips it"


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_every_order_of_the_keys_gives_a_different_permutation(n):
    """All orders of distinct keys are equally likely, so the permutations are as well."""
    keys = [0, 7, 2**32, 2**63, 2**64 - 1][:n]
    found = Counter(
        tuple(Words(list(order), 8).permutation(n).tolist()) for order in permutations(keys)
    )
    assert sorted(found) == sorted(permutations(range(n)))
    assert set(found.values()) == {1}


@pytest.mark.parametrize("tied", [[5, 5, 1], [1, 5, 5], [5, 1, 5], [2**64 - 1] * 3, [0, 0, 0]])
def test_equal_keys_are_all_drawn_again(tied):
    source = Words([*tied, *tied[::-1], 30, 10, 20], 8)
    assert source.permutation(3).tolist() == [1, 2, 0]
    assert not source.left


def test_keys_that_differ_in_the_last_bit_are_not_equal():
    assert Words([2**63 + 1, 2**63, 2**63 + 2], 8).permutation(3).tolist() == [1, 0, 2]


def test_with_redrawing_all_small_keys_give_each_permutation_equally_often():
    """All 27 triples of keys below 3; a triple with ties is drawn again and does not count."""
    counts = Counter()
    biased = Counter()
    marker = [9, 8, 7]
    for keys in product(range(3), repeat=3):
        source = Words([*keys, *marker], 8)
        order = tuple(source.permutation(3).tolist())
        if source.left:  # the marker was not needed
            counts[order] += 1
        biased[tuple(np.argsort(keys, kind="stable").tolist())] += 1
    assert set(counts.values()) == {1}
    assert len(counts) == 6
    assert len(set(biased.values())) > 1, "keeping ties would not be uniform"


def test_a_long_permutation_has_every_element_once():
    order = CipherRandomness(KEY).permutation(50_000)
    assert order.dtype == np.uint32
    assert np.array_equal(np.sort(order), np.arange(50_000))
    fixed = np.count_nonzero(order == np.arange(50_000))
    assert fixed < 12, "one fixed point is expected"


def stream(source: Randomness, *sizes: int) -> bytes:
    parts = [np.empty(size, dtype=np.uint8) for size in sizes]
    for part in parts:
        source.fill(part)
    return b"".join(part.tobytes() for part in parts)


def test_the_key_stream_of_the_zero_key_is_the_published_one():
    """AES-256 of the blocks 0, 1 and 2 under the zero key: H, E(Y0) and C of NIST's GCM test cases
    13, 14."""
    published = (
        "dc95c078a2408989ad48a21492842087530f8afbc74536b9"
        "a963b4f1c4cb738bcea7403d4d606b6e074ec5d3baf39d18"
    )
    assert stream(CipherRandomness(bytes(32)), 48).hex() == published


@pytest.mark.parametrize(
    "key", [KEY, bytes(32), b"\xff" * 32, hashlib.sha256(b"some key").digest()]
)
def test_the_stream_is_the_cipher_of_the_counters(key):
    block_cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    blocks = b"".join(block_cipher.update(i.to_bytes(16, "big")) for i in range(300))
    assert stream(CipherRandomness(key), len(blocks)) == blocks


@given(st.lists(st.integers(0, 70), max_size=12))
def test_the_stream_does_not_depend_on_how_it_is_read(sizes):
    whole = stream(CipherRandomness(KEY), sum(sizes))
    assert stream(CipherRandomness(KEY), *sizes) == whole


def test_what_was_in_the_array_before_does_not_show():
    out = np.full(100, 0xAB, dtype=np.uint8)
    CipherRandomness(KEY).fill(out)
    assert out.tobytes() == stream(CipherRandomness(KEY), 100)


def test_a_child_has_the_key_that_hmac_derives():
    derived = hmac.new(KEY, b"noise 40", hashlib.sha256).digest()
    assert stream(CipherRandomness(KEY).child("noise 40"), 64) == stream(
        CipherRandomness(derived), 64
    )


def test_children_are_reproducible_independent_and_leave_the_parent_alone():
    parent, untouched = CipherRandomness(KEY), CipherRandomness(KEY)
    labels = ["place", "mask", "noise 0", "noise 1", "noise 10", ""]
    streams = {}
    for label in labels:
        child = parent.child(label)
        streams[label] = stream(child, 64)
        stream(parent, 5)
        assert stream(parent.child(label), 64) == streams[label], (
            "the position in the parent's stream does not matter"
        )
        assert stream(child.child(label), 64) != streams[label]
    everything = [stream(CipherRandomness(KEY), 64), *streams.values()]
    blocks = [part[i : i + 16] for part in everything for i in range(0, 64, 16)]
    assert len(set(blocks)) == len(blocks), "no block comes twice"
    assert stream(untouched, 5 * len(labels)) == stream(CipherRandomness(KEY), 30)
    assert stream(parent, 10) == stream(CipherRandomness(KEY), 30, 10)[30:]


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_key_of_another_length_is_refused(size):
    with pytest.raises(ValueError, match="32 bytes"):
        CipherRandomness(bytes(size))


@pytest.mark.parametrize("size", [0, 1, 5, 2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20 + 7])
def test_every_byte_comes_from_the_operating_system_once(size, monkeypatch):
    given_out = []

    def urandom(count):
        part = hashlib.shake_128(len(given_out).to_bytes(4, "big")).digest(count)
        given_out.append(part)
        return part

    monkeypatch.setattr(os, "urandom", urandom)
    out = np.zeros(size, dtype=np.uint8)
    SystemRandomness().fill(out)
    assert out.tobytes() == b"".join(given_out)
    assert len(out) == size


def test_children_of_the_system_source_do_not_repeat():
    source = SystemRandomness()
    assert stream(source.child("mask"), 32) != stream(source.child("mask"), 32)
