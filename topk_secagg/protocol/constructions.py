"""The constructions that there are, by name."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from .construction import Construction
from .moments import Moments
from .parameters import MOMENTS, PERMUTATION, SKETCH, Parameters
from .permutation import Permutation
from .sketch import Sketch

_BY_NAME: dict[str, type[Construction[Any]]] = {
    PERMUTATION: Permutation,
    MOMENTS: Moments,
    SKETCH: Sketch,
}


@lru_cache(maxsize=64)
def construction(p: Parameters) -> Construction[Any]:
    """The construction that the parameters name."""
    return _BY_NAME[p.construction](p)
