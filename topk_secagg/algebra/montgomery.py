"""Montgomery multiplication modulo q with R = 2^32, for use in compiled kernels.

An `_m` at the end of a name marks a factor in Montgomery form, a R mod q. For a_m = a R mod q and b < q,
p = a_m b;  m = (p mod R) q^-1 mod R;  a b = (p >> 32) - (m q >> 32)  (plus q when negative).
Symbols are held in 64-bit words, so that every product fits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .compiled import inlined
from .field import Integers

HALF = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)
ONE = np.uint64(1)


@lru_cache(maxsize=8)
def constants(q: int) -> tuple[np.uint64, np.uint64]:
    """q and q^-1 mod 2^32, for the odd modulus q."""
    return np.uint64(q), np.uint64(pow(q, -1, 2**32))


def to_montgomery(a: Integers, q: int) -> npt.NDArray[np.uint64]:
    """a R mod q, entry by entry (a < q, so a R fits 64 bits)."""
    result: npt.NDArray[np.uint64] = (a.astype(np.uint64) << HALF) % np.uint64(q)
    return result


@inlined
def lift(difference: Any, q: Any) -> Any:
    """A difference in (-q, q), wrapped to 64 bits, as its residue: its high half is a mask of its sign."""
    return difference + (q & (difference >> HALF))


@inlined
def times(a_m: Any, b: Any, q: Any, q_inverse: Any) -> Any:
    """a b mod q; the masks tell the compiler that 32 x 32 bit products will do."""
    p = (a_m & LOW) * (b & LOW)
    m = ((p & LOW) * (q_inverse & LOW)) & LOW
    return lift((p >> HALF) - ((m * (q & LOW)) >> HALF), q)


@inlined
def plus(a: Any, b: Any, q: Any) -> Any:
    """a + b mod q for a, b < q."""
    return lift(a + b - q, q)


@inlined
def montgomery(a: Any, q: Any) -> Any:
    """a R mod q."""
    return (a << HALF) % q


@inlined
def power_m(base_m: Any, exponent: Any, q: Any, q_inverse: Any) -> Any:
    """base^exponent in Montgomery form."""
    result = montgomery(ONE, q)
    while exponent:
        if exponent & ONE:
            result = times(result, base_m, q, q_inverse)
        base_m = times(base_m, base_m, q, q_inverse)
        exponent >>= ONE
    return result
