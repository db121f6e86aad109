"""topk-secagg audit."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

import topk_secagg as ts
from topk_secagg.errors import BadData, CannotWrite

from .console import PROGRAM, Console, answered, warn_foreign_secrets
from .options import file_option, round_argument

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
    from topk_secagg.review.audit import gather
    from topk_secagg.review.report import condensed, page, summary
    from topk_secagg.storage.atomic import OWN, write_whole

    if report and report.suffix != ".html":
        raise click.UsageError(f"the report is a page of HTML, and {report} does not end in .html")
    if report and not report.absolute().parent.is_dir():
        raise CannotWrite(f"cannot write {report}: its folder is not there", "make the folder first")
    space = ts.Workspace(round_folder)
    with console.progress("auditing") as progress:
        found = gather(space, identity, progress)
    findings, session = found.findings, found.session
    if report:
        write_whole(report, page(found, program=f"{PROGRAM} {ts.__version__}"), OWN)
    if session:  # else it is too damaged to say whose secrets should not be here
        warn_foreign_secrets(console, space.foreign_secrets())
    failed = [f for f in findings if f.verdict == "fail"]
    facts = {
        "session": session and session.id,
        "verdict": "fail" if failed else "pass",
        "counts": {verdict: sum(f.verdict == verdict for f in findings) for verdict in _VERDICTS},
        "findings": [asdict(f) for f in findings],
        "report": report,
        "insecure": bool(session and session.insecure),
    }
    console.result("audit", facts)
    rows, before = [], ""
    for point, verdict, about, why in condensed(findings, everything=console.verbose):
        text = f"{about}: {why}" if why else about
        rows.append(("" if point == before else point, verdict.replace("fail", "FAIL"), text))
        before = point
    console.table(("point", "verdict", "on what, and why"), rows)
    console.line(summary(findings) + (f"; report: {report}" if report else ""))
    if failed:
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise BadData(
            f"{round_folder} failed the audit: {failed[0].subject}: {failed[0].why}{more}",
            "do not rely on this round before that is explained",
        )
