"""Montgomery multiplication modulo q with R = 2^32, for use in kernels. Loads numba.

An `_m` at the end of a name marks a factor in Montgomery form, a R mod q. For a_m = a R mod q and b < q,
p = a_m b;  m = (p mod R) q^-1 mod R;  a b = (p >> 32) - (m q >> 32)  (plus q when negative).
Symbols are held in 64-bit words, so that every product fits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core.compiler import Compiler

Function = TypeVar("Function", bound=Callable[..., Any])

HALF = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)
ZERO, ONE = np.uint64(0), np.uint64(1)
numba.config.DISABLE_JIT = 0  # whatever the environment says: there is no other way to run a kernel


class _Apart(Compiler):  # type: ignore[misc] # numba has no types
    """numba's compiler, told that the arrays of a call do not overlap: else each loop checks that again."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        with suppress(AttributeError):  # a numba without this flag is as right, and a little slower
            self.state.flags.noalias = True


OPTIONS = {
    "error_model": "numpy",
    "_nrt": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": _Apart,
}


def inlined(function: Function) -> Function:
    """A function that kernels call."""
    return cast(Function, numba.njit(inline="always", error_model="numpy")(function))


def part(function: Function) -> Function:
    """A function that kernels call, too long to be inlined."""
    return cast(Function, numba.njit(**OPTIONS)(function))


@inlined
def lift(difference: Any, q: Any) -> Any:
    """A difference in (-q, q), wrapped to 64 bits, as its residue: a negative one is the larger before q is added."""
    return min(difference, difference + q)


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
def difference(a_m: Any, b: Any, c_m: Any, d: Any, q: Any, q_inverse: Any) -> Any:
    """a b - c d mod q, reduced once: q R is added to a negative difference, which is then below q R."""
    one, other = (a_m & LOW) * (b & LOW), (c_m & LOW) * (d & LOW)
    p = one - other + (q << HALF if one < other else ZERO)
    m = ((p & LOW) * (q_inverse & LOW)) & LOW
    return lift((p >> HALF) - ((m * (q & LOW)) >> HALF), q)


@inlined
def reduced(total: Any, high: Any, q: Any, q_inverse: Any) -> Any:
    """R^-2 times a sum of products, mod q; given are the sum mod R^2 and the sum of the high halves of the products."""
    low = total - (high << HALF)  # the sum of the low halves
    m = ((low & LOW) * (q_inverse & LOW)) & LOW
    rest = high + (low >> HALF) + q - ((m * (q & LOW)) >> HALF)
    m = ((rest & LOW) * (q_inverse & LOW)) & LOW
    return lift((rest >> HALF) - ((m * (q & LOW)) >> HALF), q)


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
