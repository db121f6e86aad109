"""Where compiled kernels are kept. Loads nothing else, so that a command can look before numba is loaded."""

from __future__ import annotations

import os
from pathlib import Path


def is_cached() -> bool:
    """Whether the kernels have been compiled before, beside the source or in the cache of the user."""
    here = Path(__file__).parent
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    places = [here / "__pycache__", Path(os.environ.get("NUMBA_CACHE_DIR") or home / "numba")]
    return any(next(place.rglob("moments.*.nbi"), None) for place in places if place.is_dir())
