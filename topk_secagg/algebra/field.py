"""Small arithmetic over F_q on numpy arrays, and what the compiled kernels need to know of q.

Symbols are little-endian uint32; q is any prime with 5 <= q < 2^32.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

DEFAULT_FIELD = 2**32 - 5
SYMBOL = np.dtype("<u4")

Symbols = npt.NDArray[np.uint32]
Integers = npt.NDArray[Any]


def is_prime(q: int) -> bool:
    """Miller-Rabin with the bases 2, 7, 61: exact for every q below 4,759,123,141."""
    if q < 2:
        return False
    for p in (2, 3, 5, 7, 61):
        if q % p == 0:
            return q == p
    odd, twos = q - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 7, 61):
        x = pow(base, odd, q)
        if x in (1, q - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % q
            if x == q - 1:
                break
        else:
            return False
    return True


def add(a: Symbols, b: Symbols, q: int) -> Symbols:
    """a + b in F_q, entry by entry."""
    return ((a.astype(np.uint64) + b) % np.uint64(q)).astype(SYMBOL)


def to_field(signed: npt.NDArray[np.int64], q: int) -> Symbols:
    """A signed integer as its residue: -1 becomes q - 1."""
    return np.mod(signed, np.int64(q)).astype(SYMBOL)


def to_signed(symbols: Symbols, q: int) -> npt.NDArray[np.int64]:
    """The centred lift: the representative in [-(q-1)/2, (q-1)/2]."""
    lifted = symbols.astype(np.int64)
    return np.where(lifted > (q - 1) // 2, lifted - q, lifted)


class Montgomery(NamedTuple):
    """The constants of Montgomery multiplication modulo q with R = 2^32.

    For a' = a R mod q and b < q the kernels compute a b mod q as
    p = a' b;  m = (p mod R) q^-1 mod R;  a b = (p >> 32) - (m q >> 32)  (plus q when negative).
    """

    q: np.uint64
    inverse: np.uint64

    @staticmethod
    @lru_cache(maxsize=8)
    def of(q: int) -> Montgomery:
        """The constants for the odd modulus q."""
        return Montgomery(np.uint64(q), np.uint64(pow(q, -1, 2**32)))


def to_montgomery(a: Integers, q: int) -> npt.NDArray[np.uint64]:
    """a R mod q, entry by entry (a < q, so a R fits 64 bits)."""
    result: npt.NDArray[np.uint64] = (a.astype(np.uint64) << np.uint64(32)) % np.uint64(q)
    return result
