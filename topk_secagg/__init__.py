"""Secure aggregation of gradients: of their largest entries, of projections, or whole.

    gradient ──> reduce ──> quantise ──> mask ──> freeze ──> eliminate ──> decode ──> aggregate
                                         ▲                      ▲
    init ──> offline ── secret of user n ┘                      │
                └────── keys or shares for every user m ────────┘

`aggregate` runs a whole round in memory, and the next one with `after=`. Every command is a
function of the same name with the same options, and the one that the command line calls. A round, a
gradient and any other file may be given as a string or a path; each function returns a report.

Six packages, each importing only those before it: `algebra` (the field), `gradients` (reals in and
out, how they are reduced), `protocol` (the phases of the paper, no files), `storage` (the files of
a round), `rounds` (one function per command: load, decide, spend) and `review` (plan, status, log
and audit). `flower` is a seventh, which is optional: rounds over Flower.
`docs/paper-map.md` leads from each symbol of the paper to the function that computes it.

Names are loaded when first used: `topk-secagg --help` needs none of the numeric libraries.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import (
        BadData,
        Busy,
        CannotLock,
        CannotWrite,
        InputMissing,
        OfOtherSession,
        Refused,
        SecAggError,
        TooFewSurvivors,
        UsageError,
    )
    from .protocol.parameters import Parameters
    from .protocol.round import run_round
    from .review.commands import AuditReport, PlanReport, audit, plan
    from .review.evidence import Finding
    from .review.log import Log, LogRow, log
    from .review.status import Status, status
    from .rounds.access import keygen
    from .rounds.aggregate import AggregateReport, aggregate
    from .rounds.costs import Costs
    from .rounds.decode import DecodeReport, decode
    from .rounds.eliminate import EliminateReport, eliminate
    from .rounds.forget import ForgetReport, forget
    from .rounds.freeze import ConfirmReport, FreezeReport, confirm, freeze
    from .rounds.init import InitReport, init
    from .rounds.inspect import Description, inspect
    from .rounds.mask import MaskReport, mask
    from .rounds.offline import OfflineReport, offline
    from .rounds.run import RunReport, run
    from .storage.keys import Recipient
    from .storage.workspace import Workspace

__all__ = [
    "AggregateReport",
    "AuditReport",
    "BadData",
    "Busy",
    "CannotLock",
    "CannotWrite",
    "ConfirmReport",
    "Costs",
    "DecodeReport",
    "Description",
    "EliminateReport",
    "Finding",
    "ForgetReport",
    "FreezeReport",
    "InitReport",
    "InputMissing",
    "Log",
    "LogRow",
    "MaskReport",
    "OfOtherSession",
    "OfflineReport",
    "Parameters",
    "PlanReport",
    "Recipient",
    "Refused",
    "RunReport",
    "SecAggError",
    "Status",
    "TooFewSurvivors",
    "UsageError",
    "Workspace",
    "aggregate",
    "audit",
    "confirm",
    "decode",
    "eliminate",
    "forget",
    "freeze",
    "init",
    "inspect",
    "keygen",
    "log",
    "mask",
    "offline",
    "plan",
    "run",
    "run_round",
    "status",
]
__version__ = "0.1.0"

# where a name is defined
_HOMES = {
    "errors": (
        "BadData", "Busy", "CannotLock", "CannotWrite", "InputMissing", "OfOtherSession",
        "Refused", "SecAggError",
        "TooFewSurvivors", "UsageError",
    ),
    "protocol.parameters": ("Parameters",),
    "protocol.round": ("run_round",),
    "review.commands": ("AuditReport", "PlanReport", "audit", "plan"),
    "review.evidence": ("Finding",),
    "review.log": ("Log", "LogRow", "log"),
    "review.status": ("Status", "status"),
    "rounds.access": ("keygen",),
    "rounds.aggregate": ("AggregateReport", "aggregate"),
    "rounds.costs": ("Costs",),
    "rounds.decode": ("DecodeReport", "decode"),
    "rounds.eliminate": ("EliminateReport", "eliminate"),
    "rounds.forget": ("ForgetReport", "forget"),
    "rounds.freeze": ("ConfirmReport", "FreezeReport", "confirm", "freeze"),
    "rounds.init": ("InitReport", "init"),
    "rounds.inspect": ("Description", "inspect"),
    "rounds.mask": ("MaskReport", "mask"),
    "rounds.offline": ("OfflineReport", "offline"),
    "rounds.run": ("RunReport", "run"),
    "storage.keys": ("Recipient",),
    "storage.workspace": ("Workspace",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f".{_MODULE_OF[name]}", __name__)
    globals()[name] = value = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return __all__
