"""Small arithmetic over F_q on numpy arrays and Python integers.

Symbols are unsigned 32-bit integers in memory; files store them little-endian, in one byte when
q < 2^8, in two when q < 2^16 and in four otherwise. q is any prime with 5 <= q < 2^32.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

DEFAULT_FIELD = 4281076801  # 2^6 3^5 5^2 7 11^2 13 + 1: q - 1 has 1512 divisors
SMALL_FIELD = 65521  # 2^4 3^2 5 7 13 + 1: symbols of two bytes

Symbols = npt.NDArray[np.uint32]
Integers = npt.NDArray[Any]


def stored_type(q: int) -> np.dtype[Any]:
    """How files store a symbol of F_q."""
    if q < 2**8:
        return np.dtype("u1")
    return np.dtype("<u2" if q < 2**16 else "<u4")


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


@lru_cache(maxsize=8)
def divisors(n: int) -> tuple[int, ...]:
    """All divisors of n, increasing: those up to its root, and n divided by each.

    For n < 2^32 at most 65536 numbers are tried.
    """
    numbers = np.arange(1, math.isqrt(n) + 1, dtype=np.uint64)
    low = numbers[n % numbers == 0].tolist()
    return tuple(sorted({*low, *(n // d for d in low)}))


def is_prime(q: int) -> bool:
    """Whether q has exactly two divisors."""
    return q > 1 and len(divisors(q)) == 2


@lru_cache(maxsize=8)
def smallest_generator(q: int) -> int:
    """The smallest g whose powers are all of F_q*."""
    primes: list[int] = []  # that divide q - 1
    for d in divisors(q - 1)[1:]:
        if all(d % prime for prime in primes):
            primes.append(d)
    return next(g for g in range(1, q) if all(pow(g, (q - 1) // prime, q) != 1 for prime in primes))


def add(a: Symbols, b: Symbols, q: int) -> Symbols:
    """a + b in F_q, entry by entry. A sum that wraps, or is not below q, is q too large."""
    total = a + b
    total -= np.uint32(q) * ((total < a) | (total >= np.uint32(q)))
    return total


def subtract(a: Symbols, b: Symbols, q: int) -> Symbols:
    """a - b in F_q, entry by entry. A difference that wraps is q too small."""
    difference = a - b
    difference += np.uint32(q) * (a < b)
    return difference


def to_field(signed: npt.NDArray[np.int64], q: int) -> Symbols:
    """Any integer as its residue: -1 becomes q - 1."""
    return np.mod(signed, np.int64(q)).astype(np.uint32)


def to_signed(symbols: Symbols, q: int) -> npt.NDArray[np.int32]:
    """The centred lift: the representative in [-(q-1)/2, (q-1)/2]."""
    return (symbols - (symbols > (q - 1) // 2) * np.uint32(q)).view(np.int32)


def is_beyond(symbols: Symbols, bound: int, q: int) -> bool:
    """Whether the centred lift of a symbol is larger than the bound, which is below q/2, in
    magnitude."""
    return bool(np.any((symbols > bound) & (symbols < q - bound)))


# For kernels: Montgomery form, a R mod q with R = 2^32

LANES = 32  # sparse vectors that are recovered side by side
PIECE = 64  # symbols that a random combination weighs alike
POINTS_AT_ONCE = 64  # that are tried as roots: a bit of a word for each

# The scratch space of `recovery.solve` is so many arrays (symbols + EXTRA_ROWS, LANES).
COLUMN_BLOCKS = 9
EXTRA_ROWS = 5


@lru_cache(maxsize=8)
def montgomery_constants(q: int) -> tuple[int, int]:
    """q and q^-1 mod R, for the odd modulus q."""
    return q, pow(q, -1, 2**32)


def to_montgomery(a: Integers, q: int) -> npt.NDArray[np.uint64]:
    """a R mod q, entry by entry (a < q, so a R fits 64 bits)."""
    result: npt.NDArray[np.uint64] = (a.astype(np.uint64) << np.uint64(32)) % np.uint64(q)
    return result
