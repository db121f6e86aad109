"""Information-theoretic secure aggregation of top-K sparsified gradients.

    gradient ──> sparsify ──> quantise ──> mask ──> freeze ──> eliminate ──> decode ──> aggregate
                                           ▲                      ▲
    init ──> offline ── secret of user n ──┘                      │
                └────── shares for every user m ──────────────────┘

`aggregate` runs a whole round in memory. Every command of the command line is a function of the
same name, over the `Workspace` of a round's folder; `Access` says how a user takes part.

Six packages, each importing only those before it: `algebra` (the field), `gradients` (reals in and
out, which coordinates are sent), `protocol` (the phases of the paper, no files), `storage` (the
files of a round), `steps` (one function per command: read, compute, write) and `review` (plan,
status and audit). `docs/paper-map.md` leads from each symbol of the paper to the function that
computes it.

Names are loaded when first used: `topk-secagg --help` needs none of the numeric libraries.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import SecAggError
    from .protocol.parameters import Parameters
    from .protocol.round import run_round
    from .review.audit import audit
    from .review.plan import plan
    from .review.status import status
    from .steps.access import Access, keygen
    from .steps.aggregate import AggregateReport, aggregate
    from .steps.decode import decode
    from .steps.eliminate import eliminate
    from .steps.freeze import confirm, freeze
    from .steps.init import init
    from .steps.inspect import inspect
    from .steps.mask import mask
    from .steps.offline import offline
    from .steps.run import run
    from .steps.settle import forget, settle
    from .storage.workspace import Workspace

__all__ = [
    "Access", "AggregateReport", "Parameters", "SecAggError", "Workspace", "aggregate", "audit", "confirm", "decode",
    "eliminate", "forget", "freeze", "init", "inspect", "keygen", "mask", "offline", "plan", "run", "run_round",
    "settle", "status",
]  # fmt: skip
__version__ = "0.1.0"

_HOMES = {
    "Access": "steps.access",
    "AggregateReport": "steps.aggregate",
    "Parameters": "protocol.parameters",
    "SecAggError": "errors",
    "Workspace": "storage.workspace",
    "audit": "review.audit",
    "confirm": "steps.freeze",
    "forget": "steps.settle",
    "keygen": "steps.access",
    "plan": "review.plan",
    "run_round": "protocol.round",
    "status": "review.status",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f".{_HOMES.get(name, f'steps.{name}')}", __name__)
    globals()[name] = value = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return __all__
