"""How kernels are entered: C functions of pointers and 64-bit integers. Loads numba.

The types stand in the annotations of a kernel, and nowhere else: numba compiles it for these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_type_hints

import numba
from numba.types import CPointer, float32, float64, int64, uint32, uint64, void

Kernel = TypeVar("Kernel", bound=Callable[..., None])

SymbolsAt = Annotated[Any, CPointer(uint32)]
WordsAt = Annotated[Any, CPointer(uint64)]
IntegersAt = Annotated[Any, CPointer(int64)]
SinglesAt = Annotated[Any, CPointer(float32)]
DoublesAt = Annotated[Any, CPointer(float64)]
Size = Annotated[Any, int64]
Word = Annotated[Any, uint64]

KERNELS: dict[str, Callable[..., None]] = {}


def kernel(function: Kernel) -> Kernel:
    """List a function as one that can be called from outside, by its name."""
    KERNELS[function.__name__] = function
    return function


def compiled(function: Callable[..., None]) -> Any:
    """The kernel as a C function (numba.cfunc)."""
    hints = get_type_hints(function, include_extras=True)
    del hints["return"]
    types = [hint.__metadata__[0] for hint in hints.values()]
    return numba.cfunc(void(*types))(function)
