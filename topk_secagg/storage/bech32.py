"""Bech32 (BIP 173), in which age writes keys: a prefix, words of five bits, and a checksum."""

from __future__ import annotations

from collections.abc import Iterable

_LETTERS = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_GENERATOR = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_CHECKED = 6  # words of the checksum


def encode(prefix: str, payload: bytes) -> str:
    """The payload in lower case, after the prefix and the separator 1."""
    words = [*_words(payload)]
    spread = [*(ord(c) >> 5 for c in prefix), 0, *(ord(c) & 31 for c in prefix)]
    check = _remainder([*spread, *words, *[0] * _CHECKED]) ^ 1
    words += [check >> 5 * (_CHECKED - 1 - i) & 31 for i in range(_CHECKED)]
    return f"{prefix}1{''.join(_LETTERS[word] for word in words)}"


def decode(prefix: str, text: str) -> bytes:
    """The payload of a text that `encode` gives with this prefix; any other spelling of it is a
    ValueError."""
    start = len(prefix) + 1
    words = [_LETTERS.index(letter) for letter in text[start:-_CHECKED]]
    bits = "".join(f"{word:05b}" for word in words)
    size = len(bits) // 8
    payload = int(bits[: 8 * size] or "0", 2).to_bytes(size)
    if encode(prefix, payload) != text:
        raise ValueError("a key has one spelling only")
    return payload


def _words(payload: bytes) -> Iterable[int]:
    """The bits of the payload, five at a time, filled up with zeros."""
    bits = "".join(f"{byte:08b}" for byte in payload)
    return (int(bits[i : i + 5].ljust(5, "0"), 2) for i in range(0, len(bits), 5))


def _remainder(words: Iterable[int]) -> int:
    """Of the polynomial with these coefficients, by the generator of the code."""
    value = 1
    for word in words:
        top = value >> 25
        value = (value & 0x1FFFFFF) << 5 ^ word
        for bit, divisor in enumerate(_GENERATOR):
            value ^= divisor if top >> bit & 1 else 0
    return value
