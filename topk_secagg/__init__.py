"""Information-theoretic secure aggregation of top-K sparsified gradients.

    gradient ──> sparsify ──> quantize ──> mask ──> freeze ──> eliminate ──> decode ──> aggregate
                                           ▲                      ▲
    init ──> offline ── secret of user n ──┘                      │
                └────── shares for every user m ──────────────────┘

Five rooms, each knowing only those before it: `algebra` (the field), `protocol` (the phases of
the paper, no files), `gradients` (reals in and out), `storage` (the files of a round), and `steps`
(one function per command: read, compute, write). `docs/paper-map.md` leads from each symbol of the
paper to the function that computes it.

Names are loaded when first used: `topk-secagg --help` needs none of the numeric libraries.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import SecAggError
    from .protocol.parameters import Parameters
    from .protocol.round import run_round
    from .storage.workspace import Workspace

__all__ = ["Parameters", "SecAggError", "Workspace", "run_round"]
__version__ = "0.1.0"

_HOMES = {
    "Parameters": ".protocol.parameters",
    "SecAggError": ".errors",
    "Workspace": ".storage.workspace",
    "run_round": ".protocol.round",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
