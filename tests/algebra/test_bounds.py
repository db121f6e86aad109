"""Kernels do not check indices. Compiled with such checks, they pass the same tests: none reaches beyond its arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TOO_SMALL = """
import numpy as np
from topk_secagg.algebra import moments

words = moments._words
moments._words = lambda rows, *shape: words(min(rows, 2), *shape)  # a row of scratch space is missing
moments.recover(np.ones((3, 8), np.uint32), 8, 8, 33, 97)
"""


def checked(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Python with kernels that check their indices."""
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1"}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True
    )


def test_no_kernel_reaches_beyond_its_arrays() -> None:
    done = checked(
        "-m",
        "pytest",
        "-x",
        "-p",
        "no:cacheprovider",
        HERE / "test_moments.py",
        HERE / "test_kernels.py",
    )
    assert done.returncode == 0, done.stdout


def test_twin_a_kernel_that_does_is_caught() -> None:
    assert "AssertionError: transform failed" in checked("-c", TOO_SMALL).stderr
