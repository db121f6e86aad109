"""How X goes over the wire: values at log2 q bits, indices as Elias-Fano, shifts at log2 n bits.

Bits are numbered from the least significant bit of the first byte; padding bits are zero.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..algebra.field import Symbols
from ..errors import BadData

Bytes = npt.NDArray[np.uint8]


def bits_below(bound: int) -> int:
    """Bits that hold any integer below `bound`: ceil(log2 bound)."""
    return (bound - 1).bit_length()


def packed_bytes(count: int, bits: int) -> int:
    """Bytes of `count` integers of `bits` bits each."""
    return (count * bits + 7) // 8


def pack(values: Symbols, bits: int) -> Bytes:
    """The low `bits` bits of each value, one after the other."""
    if bits == 32:
        return values.astype("<u4").view(np.uint8)
    spread = np.unpackbits(values.astype("<u4").view(np.uint8).reshape(-1, 4), axis=1, count=bits, bitorder="little")
    return np.packbits(spread.reshape(-1), bitorder="little")


def unpack(packed: Bytes, count: int, bits: int) -> Symbols:
    """The inverse of `pack`; padding must be zero."""
    if packed.size != packed_bytes(count, bits):
        raise BadData(f"{packed.size} bytes cannot hold {count} integers of {bits} bits")
    if bits == 32:
        return np.frombuffer(packed.tobytes(), dtype="<u4")
    flat = np.unpackbits(packed, bitorder="little")
    if np.any(flat[count * bits :]):
        raise BadData("padding bits are set")
    wide = np.zeros((count, 32), dtype=np.uint8)
    wide[:, :bits] = flat[: count * bits].reshape(count, bits)
    return np.packbits(wide.reshape(-1), bitorder="little").view("<u4")


def _low_bits(count: int, bound: int) -> int:
    """The split of an index into low and high bits that makes the code shortest."""
    return min(range(32), key=lambda low: count * low + ((bound - 1) >> low))


def elias_fano_bytes(count: int, bound: int) -> int:
    """Bytes of `count` increasing integers below `bound`."""
    low = _low_bits(count, bound)
    return packed_bytes(count, low) + (count + ((bound - 1) >> low) + 7) // 8


def elias_fano(index: Symbols, bound: int) -> Bytes:
    """Increasing integers below `bound`: their low bits packed, then a bit vector of their high parts.

    In the bit vector the i-th integer sets bit (index_i >> low) + i: for a few per cent of many integers,
    within 0.6 bit of log2 C(bound, count) / count for each.
    """
    low = _low_bits(index.size, bound)
    wide = index.astype(np.int64)
    upper = np.zeros(index.size + ((bound - 1) >> low), dtype=np.uint8)
    upper[(wide >> low) + np.arange(index.size)] = 1
    return np.concatenate([pack(index, low), np.packbits(upper, bitorder="little")])


def elias_fano_decode(packed: Bytes, count: int, bound: int) -> Symbols:
    """The inverse of `elias_fano`; anything but the one code of an increasing sequence is refused."""
    if packed.size != elias_fano_bytes(count, bound):
        raise BadData(f"{packed.size} bytes cannot hold {count} indices below {bound}")
    low = _low_bits(count, bound)
    split = packed_bytes(count, low)
    upper = np.unpackbits(packed[split:], bitorder="little")
    ones = np.flatnonzero(upper)
    if ones.size != count or (count and ones[-1] >= count + ((bound - 1) >> low)):
        raise BadData(f"the code does not hold exactly {count} indices")
    index = ((ones - np.arange(count)) << low) | unpack(packed[:split], count, low)
    if np.any(index[1:] <= index[:-1]) or np.any(index >= bound):
        raise BadData(f"the indices are not increasing and below {bound}")
    return index.astype("<u4")
