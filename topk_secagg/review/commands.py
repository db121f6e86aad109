"""`plan` and `audit` as callers ask for them: by the options of the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from ..brief import Brief
from ..errors import CannotWrite, UsageError
from ..progress import Progress, unheard
from ..protocol.parameters import Parameters
from ..rounds.access import Pins, taking_part
from ..rounds.arguments import AnyPath, AnyRound, optional_path, path_of
from ..rounds.options import Choice, UsersOptions, choose_rounds, with_fit
from ..storage.atomic import OWN, write_whole
from .audit import collect_evidence
from .evidence import Evidence, Finding, Verdict
from .plan import Plan, measure_speed
from .plan import plan as compare
from .report import page

_PAGE = ".html"


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanReport(Plan):
    """A Plan, the parameters that `init` would choose, and why; `notes` say how the example was
    read, and how the clip fits it."""

    parameters: Parameters = field(repr=False)  # which `best` shows
    reason: str
    notes: tuple[str, ...]


def plan(
    *,
    measure_in: AnyPath | None = None,
    top_k: int | Sequence[int] | None = None,
    density: float | Sequence[float] | None = None,
    rank: int | Sequence[int] | None = None,
    whole: bool = False,
    **options: Unpack[UsersOptions],
) -> PlanReport:
    """What a round would cost: each way to reduce a gradient, beside plain averaging and others.

    Arguments:
    measure_in: a folder in which the speed of this machine is measured, to estimate how long each
        choice takes; by default it is not.
    users: N.
    survivors: U, the users that must remain at least.
    colluders: T, the users that together learn nothing but the sum.
    like: a gradient, as a file or in memory: for its layout, and what share of its energy each
        choice sends.
    length: L, for gradients that are one flat vector.
    entry: the entry of a PyTorch checkpoint that holds the tensors.
    strip_prefix: taken off tensor names that begin with it.
    only: patterns; only tensors with such a name.
    exclude: patterns; no tensors with such a name. By default the buffers of batch norm.
    max_weight: the largest weight that a user may give its gradient; 1 by default.
    top_k: K, the coordinates that each user sends, or several; or
    density: K as a share of the gradient's length, such as 0.01, or several; or
    rank: low rank: every matrix is projected on so many columns, or several; or
    whole: everything is sent.
    whole_tensors: patterns; tensors with such a name are sent whole.
    field: q, a prime below 2^32; 65521 by default with low rank.
    construction: "permutation" (the paper's) or "sketch"; by default permutation while its offline
        files stay below 256 MiB, and else sketch.
    dealing: "keys" (sketch) or "shares", which are written out.
    picks: P, in the construction sketch.
    clip: the largest magnitude of a gradient's values; 1 by default.

    Returns a PlanReport: its `rows`, the `best` of them, which `init` would choose for the first
    size, and `remarks`.
    """
    sizes = {"top_k": top_k, "density": density, "rank": rank, "whole": True if whole else None}
    choices = choose_rounds(options, {name: _several(name, each) for name, each in sizes.items()})
    choice = with_fit(choices[0], options.get("like"))
    return _planned(choices, choice, optional_path("measure_in", measure_in))


def _planned(choices: list[Choice], choice: Choice, folder: Path | None) -> PlanReport:
    """The plan, with times if the machine's speed is to be measured in a folder."""
    speed = None if folder is None else measure_speed(choice.parameters, folder)
    return PlanReport(
        **vars(compare(choices, speed)),
        parameters=choice.parameters,
        reason=choice.reason,
        notes=choice.notes,
    )


def _several(name: str, given: Any) -> list[Any]:
    """One value, or a list of them, as a list."""
    if given is None:
        return []
    if isinstance(given, str):
        raise UsageError(f"{name} is {given!r:.60}, which is not a number", "give a number")
    return list(given) if isinstance(given, Iterable) else [given]


@dataclass(frozen=True, repr=False)
class AuditReport(Brief):
    """What an audit found: `failed` are the findings that fail; if there are none, it passes."""

    findings: list[Finding]
    failed: list[Finding]
    page: Path | None
    evidence: Evidence = field(repr=False)


def audit(
    round: AnyRound,
    *,
    identity: AnyPath | Sequence[AnyPath] = (),
    report: AnyPath | None = None,
    program: str = "topk-secagg",
    progress: Progress = unheard,
    **pins: Unpack[Pins],
) -> AuditReport:
    """Check a round point by point. Damaged files become findings; only a missing session.json
    raises, and one that is not the pinned one.

    Arguments:
    round: the folder of the round.
    identity: an identity file, or several, to open the sealed shares for these users.
    report: write the findings to this page (.html) too.
    program: the name and version that the page gives.
    progress: called with the share that is done, 0 to 1.
    secrets: the folder of secrets and ledgers, instead of the round's own.
    session: refuse any other session than this one; at least 16 of its digits.
    series: the same of the series of the round, whose name `init` and `inspect` say.
    recipients: refuse a session that has other keys than this file.

    Returns an AuditReport: each of its `findings` has a `verdict` ("pass", "fail" or "not
    checkable"), and says on what and why.
    """
    space, access = taking_part(round, **pins)
    page_path = optional_path("report", report)
    if page_path is not None:
        _check_page(page_path)
    paths = [identity] if isinstance(identity, str | PathLike) else identity
    identities = [path_of("identity", path) for path in paths]
    evidence = collect_evidence(space, identities, progress, access=access)
    if page_path is not None:
        write_whole(page_path, page(evidence, program=program), OWN)
    findings = evidence.findings
    failed = [finding for finding in findings if finding.verdict is Verdict.FAIL]
    return AuditReport(findings=findings, failed=failed, page=page_path, evidence=evidence)


def _check_page(path: Path) -> None:
    """Refuse a report that could not be written, before the audit."""
    if path.suffix != _PAGE:
        raise UsageError(
            f"the report is a page of HTML, and {path} does not end in {_PAGE}",
            "choose such a name",
        )
    if not path.absolute().parent.is_dir():
        raise CannotWrite(f"cannot write {path}: its folder is not there", "make the folder first")
