"""How a kernel is called: with arrays that were checked, and after it has answered a question.

A kernel is machine code and checks nothing, so a wrong size would read or write somebody else's
memory. A mistake is a ValueError: these are our own, never the user's.

When a process first uses a kernel, the kernel has to answer a question whose answer is known
(`questions`): a compiler that goes wrong, or other versions than we have tried, must not corrupt a
round silently. Kernels release the GIL.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from . import library

SYMBOL = np.dtype(np.uint32)
WORD = np.dtype(np.uint64)
INTEGER = np.dtype(np.int64)
SINGLE = np.dtype(np.float32)
DOUBLE = np.dtype(np.float64)

_answered: dict[str, library.Function] = {}  # the kernels that have answered their question
_questioned: dict[str, library.Function] = {}
_lock = RLock()  # a question calls its kernel, and comes back here


# What a kernel may be given


def sizes(array: npt.NDArray[Any], dimensions: int) -> tuple[int, ...]:
    """The shape of an array with so many dimensions."""
    if array.ndim != dimensions:
        raise ValueError(f"a kernel takes an array of {dimensions} dimensions, not {array.ndim}")
    return array.shape


def input_at(array: npt.NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """The address of an array of this type and shape, whose entries lie one behind the other."""
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(
            f"a kernel takes {dtype} of shape {shape}, not {array.dtype} of shape {array.shape}"
        )
    if not array.flags.c_contiguous:
        raise ValueError("a kernel takes contiguous arrays only")
    address: int = array.__array_interface__["data"][0]
    return address


def output_at(array: npt.NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """The same of an array that may be written to."""
    if not array.flags.writeable:
        raise ValueError("a kernel writes to contiguous, writable arrays only")
    return input_at(array, dtype, shape)


def check_indices(indices: npt.NDArray[Any], size: int) -> None:
    """All are at least 0 and below the size. A negative number is a very large one without sign."""
    unsigned = indices.view(WORD) if indices.dtype == INTEGER else indices
    if int(unsigned.max(initial=0)) >= size and indices.size:
        raise ValueError(f"an index is not below {size}")


# Kernels that are loaded


def call(name: str, *arguments: int) -> None:
    """Call a kernel."""
    function = _answered.get(name) or _questioned_kernel(name, len(arguments))
    function(*arguments)


def _questioned_kernel(name: str, count: int) -> library.Function:
    """A kernel that has shown, in this process, that it computes what it should."""
    with _lock:
        if name in _answered:  # asked by another thread meanwhile
            return _answered[name]
        if name in _questioned:  # it is its question that calls
            return _questioned[name]
        _questioned[name] = library.function(name, count)
        try:
            _ask(name)
            _answered[name] = _questioned[name]
        finally:
            del _questioned[name]
        return _answered[name]


def _ask(name: str) -> None:
    """RuntimeError if a kernel gives a wrong answer."""
    from . import questions

    question: Callable[[], bool] = getattr(questions, name)
    if not question():
        raise RuntimeError(
            f"the kernel {name} computes wrongly: compiled with {library.compilers()}, "
            f"on the processor {library.processor()}"
        )
