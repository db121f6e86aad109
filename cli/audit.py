"""topk-secagg audit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .console import PROGRAM, PUBLIC_SEED, Console, answered, warn_foreign_secrets
from .options import file_option, round_argument

if TYPE_CHECKING:
    from topk_secagg.review.evidence import Finding

_VERDICTS = ("pass", "fail", "not checkable")


@click.command("audit", short_help="Check a round, point by point.")
@round_argument
@file_option("--identity", "A user's keys, to open the sealed shares for that user. Repeatable.", multiple=True)
@file_option("--report", "Write the findings as a page too.", "FILE.html")
@answered
def command(console: Console, round_folder: Path, identity: tuple[Path, ...], report: Path | None) -> None:
    """Check a round point by point: pass, fail, or not checkable and why. Exits with 65 if anything fails.

    Public files are enough for much of it. Where secrets and shares are available too, it also checks that
    the shares interpolate to selectors, that masks and places fit X, and that Y can be recomputed. It
    changes nothing in the round, and shows no secret value.

    \b
    Example:
      topk-secagg audit round --report audit.html
    """
    from topk_secagg import __version__
    from topk_secagg.errors import BadData, CannotWrite
    from topk_secagg.review.audit import audit
    from topk_secagg.review.report import page, summary
    from topk_secagg.storage.atomic import OWN, write_whole
    from topk_secagg.storage.workspace import Workspace

    if report and report.suffix != ".html":
        raise click.UsageError(f"the report is a page of HTML, and {report} does not end in .html")
    if report and not report.absolute().parent.is_dir():
        raise CannotWrite(f"cannot write {report}: its folder is not there", "make the folder first")
    space = Workspace(round_folder)
    with console.progress("auditing") as progress:
        findings = audit(space, identity, progress)
    if report:
        write_whole(report, page(space, findings, program=f"{PROGRAM} {__version__}"), OWN)
    session = None
    with suppress(BadData):  # session.json may be too damaged to say whose secrets should not be here
        session = space.session
        warn_foreign_secrets(console, space.foreign_secrets())
    failed = [f for f in findings if f.verdict == "fail"]
    if console.as_json:
        facts = {
            "session": session and session.id,
            "verdict": "fail" if failed else "pass",
            "counts": {verdict: sum(f.verdict == verdict for f in findings) for verdict in _VERDICTS},
            "findings": [asdict(f) for f in findings],
            "report": report,
            "insecure": bool(session and session.insecure),
        }
        console.result("audit", facts)
    else:
        if any(f.point == "no public seed" and f.verdict != "pass" for f in findings):
            console.warn(PUBLIC_SEED)
        _show(console, findings)
        console.line(summary(findings) + (f"; report: {report}" if report else ""))
    if failed:
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise BadData(
            f"{round_folder} failed the audit: {failed[0].subject}: {failed[0].why}{more}",
            "do not rely on this round before that is explained",
        )


def _show(console: Console, findings: Sequence[Finding]) -> None:
    """A line for each thing that failed or could not be checked, and a count of the passes of each point."""
    from topk_secagg.review.report import condensed

    rows, before = [], ""
    for point, verdict, about, why in condensed(findings, everything=console.verbose):
        text = f"{about}: {why}" if why else about
        rows.append(("" if point == before else point, verdict.replace("fail", "FAIL"), text))
        before = point
    console.table(("point", "verdict", "on what, and why"), rows)
