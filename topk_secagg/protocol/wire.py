"""How X goes over the wire: values at log2 q bits, indices as Elias-Fano.

Bits are numbered from the least significant bit of the first byte; padding bits are zero.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..algebra.field import Symbols
from ..errors import BadData

Bytes = npt.NDArray[np.uint8]


class Packed:
    """The code of `count` integers below `bound`, one after the other at ceil(log2 bound) bits:
    `size` bytes. Integers of whole bytes are what little-endian arrays hold."""

    def __init__(self, count: int, bound: int) -> None:
        self.count = count
        self.bits = (bound - 1).bit_length()
        self.size = (count * self.bits + 7) // 8
        self._whole = np.dtype(f"<u{self.bits // 8}") if self.bits in (8, 16, 32) else None

    def pack(self, values: Symbols) -> Bytes:
        """The low bits of each value, one after the other."""
        if self._whole:
            return values.astype(self._whole).view(np.uint8)
        octets = values.astype("<u4").view(np.uint8)
        spread = np.unpackbits(octets.reshape(-1, 4), axis=1, count=self.bits, bitorder="little")
        return np.packbits(spread.reshape(-1), bitorder="little")

    def unpack(self, packed: Bytes) -> Symbols:
        """The inverse of `pack`; padding must be zero."""
        count = self.count
        bits = self.bits
        if packed.size != self.size:
            raise BadData(f"{packed.size} bytes cannot hold {count} integers of {bits} bits")
        if self._whole:
            return np.ascontiguousarray(packed).view(self._whole).astype("<u4", copy=False)
        flat = np.unpackbits(packed, bitorder="little")
        if np.any(flat[count * bits :]):
            raise BadData("padding bits are set")
        wide = np.zeros((count, 32), dtype=np.uint8)
        wide[:, :bits] = flat[: count * bits].reshape(count, bits)
        return np.packbits(wide.reshape(-1), bitorder="little").view("<u4")


class EliasFano:
    """The code of `count` increasing integers below `bound`: their low bits packed, then a bit
    vector of their high parts.

    In the bit vector the i-th integer sets bit (index_i >> low) + i: for a few per cent of many
    integers, within 0.6 bit of log2 C(bound, count) / count for each.
    """

    def __init__(self, count: int, bound: int) -> None:
        self.count = count
        self.bound = bound
        # makes the code shortest
        self.low = min(range(32), key=lambda low: count * low + ((bound - 1) >> low))
        self.lower = Packed(count, 1 << self.low)
        self.upper_bits = count + ((bound - 1) >> self.low)
        self.size = self.lower.size + (self.upper_bits + 7) // 8

    def pack(self, index: Symbols) -> Bytes:
        """The code of these integers."""
        upper = np.zeros(self.upper_bits, dtype=np.uint8)
        upper[(index.astype(np.int64) >> self.low) + np.arange(self.count)] = 1
        return np.concatenate([self.lower.pack(index), np.packbits(upper, bitorder="little")])

    def unpack(self, packed: Bytes) -> Symbols:
        """The inverse of `pack`; anything but the one code of an increasing sequence is refused."""
        count = self.count
        bound = self.bound
        if packed.size != self.size:
            raise BadData(f"{packed.size} bytes cannot hold {count} indices below {bound}")
        lower, upper = np.split(packed, [self.lower.size])
        ones = np.flatnonzero(np.unpackbits(upper, bitorder="little"))
        if ones.size != count:
            raise BadData(f"the code does not hold exactly {count} indices")
        index = ((ones - np.arange(count)) << self.low) | self.lower.unpack(lower)
        if np.any(index[1:] <= index[:-1]) or np.any(index >= bound):
            raise BadData(f"the indices are not increasing and below {bound}")
        return index.astype("<u4")
