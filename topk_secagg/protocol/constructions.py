"""The constructions that there are, by name."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .parameters import PERMUTATION, SKETCH, Parameters

if TYPE_CHECKING:
    from .construction import Construction

_HOMES = {  # imported when a round asks for one: a command starts in the time of its own
    PERMUTATION: (".permutation", "Permutation"),
    SKETCH: (".sketch", "Sketch"),
}


@lru_cache(maxsize=64)
def construction(p: Parameters) -> Construction[Any]:
    """The construction that the parameters name."""
    module, name = _HOMES[p.construction]
    chosen: type[Construction[Any]] = getattr(import_module(module, __package__), name)
    return chosen(p)
