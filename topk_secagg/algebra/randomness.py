"""Uniform field elements, places and permutations from an injected source of bytes.

Rejection sampling throughout: no value is ever reduced from a range that it does not divide.
numpy's and galois' generators are not for secrets and are not used.
"""

from __future__ import annotations

import hmac
from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import entropy
from .field import Symbols, stored_type

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

KEY_BYTES = 32
_OS_READ = 1 << 20
_WORTH_A_KERNEL = 1 << 14  # words
_ZEROS = memoryview(bytes(1 << 18))  # which a cipher turns into its key stream


class Randomness(ABC):
    """A source of uniform values; tests inject their own."""

    @abstractmethod
    def fill(self, out: npt.NDArray[np.uint8]) -> None:
        """Overwrite `out` with uniform bytes."""

    @abstractmethod
    def child(self, label: str) -> Randomness:
        """An independent source for the purpose `label`; asking again gives the same stream again
        where the source can be replayed."""

    def integers(self, bound: int, out: Symbols) -> Symbols:
        """Fill `out` (contiguous uint32) with uniform integers below `bound` <= 2^32.

        The words of the stream have the size of a stored symbol of F_bound, 1, 2 or 4 bytes. They
        are taken in their order, and those beyond the largest multiple of the bound are skipped.
        No word is read ahead: two calls give what one call for both would have given.
        """
        if not out.flags.c_contiguous:
            raise ValueError("only a contiguous array can be filled in place")
        symbols = out.reshape(-1)
        word = stored_type(bound)
        limit = acceptance_limit(bound)
        filled = 0
        while filled < symbols.size:
            drawn = np.empty(symbols.size - filled, dtype=word)
            self.fill(drawn.view(np.uint8))
            filled += _accept(drawn, limit, symbols[filled:])
        if limit != bound:
            np.remainder(symbols, np.uint32(bound), out=symbols)
        return out

    def bytes(self, count: int) -> bytes:
        """So many uniform bytes."""
        out = np.empty(count, dtype=np.uint8)
        self.fill(out)
        return out.tobytes()

    def permutation(self, n: int) -> Symbols:
        """A uniform permutation of range(n): the order of n distinct 64-bit keys."""
        while True:
            keys = np.empty(n, dtype=np.uint64)
            self.fill(keys.view(np.uint8))
            order = np.argsort(keys, kind="stable")
            ranked = keys[order]
            if not np.any(ranked[1:] == ranked[:-1]):
                return order.astype(np.uint32)


def acceptance_limit(bound: int) -> int:
    """Below which a word of a stream is accepted: the largest multiple of the bound among them."""
    words = 1 << 8 * stored_type(bound).itemsize
    return words // bound * bound


def _accept(words: npt.NDArray[Any], limit: int, out: Symbols) -> int:
    """Put the words below the limit to the front of `out`, in their order; how many there are."""
    if words.size < _WORTH_A_KERNEL:
        accepted = words[words < limit]
        out[: accepted.size] = accepted
        return accepted.size
    from . import native  # a process that draws little loads no kernels

    return native.accept(words.astype(np.uint32, copy=False), limit, out)


class CipherRandomness(Randomness):
    """The AES-256-CTR key stream of a key; children have keys derived with HMAC-SHA-256."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        self._key = key

    @cached_property
    def _stream(self) -> CipherContext:
        """Many sources only have children, and many commands draw nothing."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        return Cipher(algorithms.AES256(self._key), modes.CTR(bytes(16))).encryptor()

    def fill(self, out: npt.NDArray[np.uint8]) -> None:
        """Continue the key stream into `out`."""
        for start in range(0, out.size, len(_ZEROS)):
            part = out[start : start + len(_ZEROS)].data
            self._stream.update_into(_ZEROS[: len(part)], part)

    def child(self, label: str) -> CipherRandomness:
        """The stream of the key HMAC(key, label)."""
        return CipherRandomness(hmac.digest(self._key, label.encode(), "sha256"))


class SystemRandomness(Randomness):
    """Every byte from the operating system."""

    def fill(self, out: npt.NDArray[np.uint8]) -> None:
        """Read the operating system's generator into `out`."""
        for start in range(0, out.size, _OS_READ):
            part = out[start : start + _OS_READ]
            part[:] = np.frombuffer(entropy.draw(part.size, "a stream"), dtype=np.uint8)

    def child(self, label: str) -> SystemRandomness:  # noqa: ARG002 - nothing to derive
        """The operating system again."""
        return self


def source_of(kind: str, key: bytes) -> Randomness:
    """The operating system for the kind "os", and else the stream of a key."""
    return SystemRandomness() if kind == "os" else CipherRandomness(key)
