"""How kernels are compiled: on first use, and kept beside the source or in the user's cache.

Import this module before numba or galois: where neither place can be written (a system-wide installation
and no home folder), both would refuse to load, so they are given a temporary folder.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def _writable(folder: Path) -> bool:
    """Whether files can be made in a folder, or the folder itself."""
    while not folder.exists():
        folder = folder.parent
    return os.access(folder, os.W_OK)


def _provide_cache() -> None:
    here, home = Path(__file__).parent / "__pycache__", Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    if "NUMBA_CACHE_DIR" in os.environ or (_writable(here) and _writable(_packages())) or _writable(_expanded(home)):
        return
    os.environ["NUMBA_CACHE_DIR"] = folder = tempfile.mkdtemp(prefix="topk-secagg-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _packages() -> Path:
    """Where galois is installed."""
    from importlib.util import find_spec

    found = find_spec("galois")
    return Path(found.origin).parent / "__pycache__" if found and found.origin else Path(__file__).parent


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # nobody's home
        return Path("/nonexistent")


_provide_cache()

import numba  # noqa: E402 - only once it has a place for its cache


def kernel(function: Function) -> Function:
    """A compiled function that releases the GIL."""
    return cast(Function, numba.njit(cache=True, nogil=True)(function))


def inlined(function: Function) -> Function:
    """A compiled function for use in kernels."""
    return cast(Function, numba.njit(inline="always")(function))
