"""Arithmetic modulo q on single numbers, for use in kernels. Loads numba.

**Montgomery's product.** A division by q costs more than everything else here, so products are
reduced without one. Let R = 2^32, q odd and below R, and write a factor a as a_m = a R mod q, its
*Montgomery form*. For b < q the product p = a_m b is below q R, and

    m = (p mod R) q^-1 mod R      makes      p - m q      a multiple of R, so that
    (p - m q) / R  =  (p >> 32) - (m q >> 32)  =  a b  (mod q),

a number between -q and q: add q when it is negative. One factor in Montgomery form is enough, and
the result then has the usual form. An `_m` at the end of a name marks a number in Montgomery form,
`_mm` one that was multiplied by R twice.

**Lazy sums.** In a sum of many products only the sum needs to be reduced. It is kept as two
numbers: the sum of the products modulo 2^64, and the sum of their high halves. Together they
determine a sum of fewer than 2^31 products; see `reduced`.

Symbols are held in 64-bit words, so that every product of two fits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

HALF = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)
ZERO = np.uint64(0)
ONE = np.uint64(1)
TWO = np.uint64(2)


def part(function: Function) -> Function:
    """A function that kernels call. Divisions by zero, which never happen, are not looked for."""
    return cast(Function, numba.njit(error_model="numpy")(function))


@part
def lift(difference: Any, q: Any) -> Any:
    """The residue of a number in (-q, q) that is wrapped to 64 bits.

    A negative number is a very large one before q is added, and a small one afterwards.
    """
    return min(difference, difference + q)


@part
def _divided_by_r(p: Any, q: Any, q_inverse: Any) -> Any:
    """p / R mod q, for p < q R. The masks tell the compiler that products of 32 bits will do."""
    m = ((p & LOW) * (q_inverse & LOW)) & LOW
    return lift((p >> HALF) - ((m * (q & LOW)) >> HALF), q)


@part
def times(a_m: Any, b: Any, q: Any, q_inverse: Any) -> Any:
    """a b mod q."""
    return _divided_by_r((a_m & LOW) * (b & LOW), q, q_inverse)


@part
def plus(a: Any, b: Any, q: Any) -> Any:
    """a + b mod q for a, b < q."""
    return lift(a + b - q, q)


@part
def difference(a_m: Any, b: Any, c_m: Any, d: Any, q: Any, q_inverse: Any) -> Any:
    """a b - c d mod q, reduced once: q R is added to a negative difference, which is then < q R."""
    first = (a_m & LOW) * (b & LOW)
    second = (c_m & LOW) * (d & LOW)
    p = first - second + (q << HALF if first < second else ZERO)
    return _divided_by_r(p, q, q_inverse)


@part
def reduced(total: Any, high: Any, q: Any, q_inverse: Any) -> Any:
    """R^-2 times a sum of products, mod q.

    `total` is the sum of the products modulo 2^64, and `high` the sum of their high halves. The sum
    is high R + low, where low is the sum of the low halves: it is below 2^64, so that the first
    line is exact. The sum is then divided by R twice.
    """
    low = total - (high << HALF)
    m = ((low & LOW) * (q_inverse & LOW)) & LOW
    once = high + (low >> HALF) + q - ((m * (q & LOW)) >> HALF)
    return _divided_by_r(once, q, q_inverse)


@part
def montgomery(a: Any, q: Any) -> Any:
    """a R mod q."""
    return (a << HALF) % q


@part
def power_m(base_m: Any, exponent: Any, q: Any, q_inverse: Any) -> Any:
    """base^exponent in Montgomery form, by squaring."""
    result_m = montgomery(ONE, q)
    while exponent:
        if exponent & ONE:
            result_m = times(result_m, base_m, q, q_inverse)
        base_m = times(base_m, base_m, q, q_inverse)
        exponent >>= ONE
    return result_m
