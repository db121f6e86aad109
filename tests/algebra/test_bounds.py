"""Kernels do not check indices. Compiled with such checks, they pass the same tests.

So none reaches beyond its arrays. numba compiles them itself here; an index that is out of bounds
is an exception that nobody can catch, which pytest makes an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CHECKED = """
import ctypes
import inspect
import sys
from topk_secagg.algebra import (
    calls, kernels, library, recovery, selection_kernels, sketch_kernels, sketches
)
from topk_secagg.algebra.entry import KERNELS, compiled

functions = []

def function(name, count):
    assert count == len(inspect.signature(KERNELS[name]).parameters)
    functions.append(compiled(KERNELS[name]))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_uint64] * count)(functions[-1].address)

library.function = function
"""
TESTS = """
import pytest

sys.exit(pytest.main(["-x", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""
TOO_SMALL = """
recovery.COLUMN_BLOCKS = 8  # the kernel uses nine
calls._ask = lambda name: None
"""


def checked(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Python with kernels that check their indices."""
    return subprocess.run(
        [sys.executable, "-c", CHECKED + code, *map(str, arguments)],
        env=os.environ | {"NUMBA_BOUNDSCHECK": "1"},
        capture_output=True,
        text=True,
    )


def test_no_kernel_reaches_beyond_its_arrays() -> None:
    files = ("test_sketches.py", "test_kernels.py", "test_streams.py")
    done = checked(TESTS, *(HERE / file for file in files))
    assert done.returncode == 0, done.stdout
    assert "IndexError" not in done.stdout + done.stderr


def test_twin_a_kernel_that_does_is_caught() -> None:
    """By one of the same tests, in the same way; the others need more kernels, and compile them."""
    test = "test_a_row_does_not_depend_on_those_beside_it"
    done = checked(TOO_SMALL + TESTS, f"{HERE / 'test_sketches.py'}::{test}")
    assert done.returncode == 1, done.stderr
    assert "IndexError: index is out of bounds" in done.stdout
