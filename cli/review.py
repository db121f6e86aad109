"""Looking at a round: its status, its files, and whether everything in it is right."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import click

import topk_secagg as ts
from topk_secagg.errors import BadData, Busy, CannotWrite

from . import options as o
from .console import PROGRAM, Console, picked, plain

_POLL = 0.5  # seconds


@o.command(
    "Who has done what, and what to do next.",
    *o.space_options,
    o.value("--user", "n", "From the point of view of this user."),
    o.value(
        "--wait",
        "SECONDS",
        "Wait until the next step can be run, or exit 75.",
        click.FloatRange(min=0),
    ),
    *o.pin_options,
    example="round --user 3 --wait 600",
)
def status(
    console: Console,
    space: ts.Workspace,
    user: int | None,
    wait: float | None,
    access: ts.Access,
) -> None:
    """Show who has done what in a round, which files of whom are missing, and the next command.

    With --user, also what this user should send to whom. --wait returns when the next step can be run
    (exit 0), or when the time is up (exit 75).
    """
    end = time.monotonic() + (wait or 0)
    found = ts.status(space, user, access=access)
    while not found.next.ready and (left := end - time.monotonic()) > 0:
        time.sleep(min(_POLL, left))
        found = ts.status(space, user, access=access)
    N, following = len(found.users), _command(space, found.next.step, found.next.user or user)
    facts = {
        "users": [vars(u) for u in found.users],
        "survivors": found.survivors.users if found.survivors else None,
        "survivors_sha256": found.survivors.digest if found.survivors else None,
        "next": {
            **picked(found.next, "user", "ready", "possible", "missing"),
            "step": found.next.step or None,
            "waits_for": found.next.waits_for or None,
            "command": following or None,
        },
        "send": [{"path": path, "to": whom} for path, whom in found.send],
        **picked(found, "foreign_secrets", "problems"),
    }
    console.warn_foreign_secrets(found.foreign_secrets)
    console.warn(*found.problems)
    console.result(facts, space=space)
    console.line(f"session {space.session.fingerprint}, {space.session.parameters.summary()}")
    rows = []
    for u in found.users:
        lacking = [m for m in space.users() if m not in (u.holds or [])]
        shares = (
            f"all {N}" if not lacking else f"lacks {plain(lacking)}" if u.holds is not None else ""
        )
        survivor = "" if u.survivor is None else "yes" if u.survivor else "dropped out"
        confirmed = ["yes" if u.confirmed else ""] if space.session.confirm else []
        rows.append([str(u.user), shares, u.masked, survivor, *confirmed, u.answered])
    columns = [
        "user",
        "shares received",
        "X",
        "survivor",
        *(["confirmed"] if space.session.confirm else []),
        "Y",
    ]
    console.table(columns, rows)
    sent = (f"send {path} to {whom}" for path, whom in found.send)
    console.line(*sent, f"next: {following}" if following else "nothing is left to do")
    if found.next.waits_for:
        now = (
            "; it can be run without them"
            if found.next.possible and found.next.step != "offline"
            else ""
        )
        console.line(f"waiting for {found.next.waits_for}{now}")
    if wait is not None and not found.next.ready:
        raise Busy(
            f"{found.next.step} still waits for {found.next.waits_for}", "run this again later"
        )


def _command(space: ts.Workspace, step: str, user: int | None) -> str:
    """The command for a step, to be pasted; "" if there is none."""
    by = "" if step in ("freeze", "decode") else f" --user {user or 'n'}"
    call = shlex.join([PROGRAM, step, str(space.root)]) + by
    return f"{call} --gradient FILE" if step == "mask" else call if step else ""


@o.command(
    "Show what a file of a round holds.",
    click.Argument(["files"], metavar="FILE...", nargs=-1, required=True, type=o.PATH),
    o.flag("--reveal", "Show the values in secret files too."),
    example="round/session.json round/masked/user-03.h5",
)
def inspect(console: Console, files: tuple[Path, ...], reveal: bool) -> None:
    """Show what files of a round hold: kind, session, user, shapes, ranges, and whether they are intact.

    The values in secrets/ and shares/ are shown only with --reveal.
    """
    found, failure = [], None
    for path in files:
        try:
            found.append(ts.inspect(path, reveal=reveal))
        except ts.SecAggError as error:
            failure = failure or error
    if found:
        shown = [
            d.facts | picked(d, "path", "kind", "intact", "datasets", "problems") for d in found
        ]
        console.result({"files": shown})
    for d in found:
        state = "intact" if d.intact else "NOT INTACT"
        insecure = ", INSECURE: drawn from a public seed" if d.facts.get("insecure") else ""
        console.line(f"{d.path}: {d.kind}, {state}{insecure}")
        facts = [
            (key.replace("_", " "), plain(value))
            for key, value in d.facts.items()
            if key != "insecure"
        ]
        console.table((), facts + [("problem", problem) for problem in d.problems])
        rows = []
        for name, info in d.datasets.items():
            shape = f"{info['type']} {'x'.join(map(str, info['shape']))}"
            extent = f"{plain(info['low'])} to {plain(info['high'])}" if "low" in info else ""
            rows.append((name, shape, extent, plain(info.get("values", ""))))
        if rows:
            console.table(("dataset", "type and shape", "range", "first values"), rows)
        console.line("")
    if failure:
        raise failure
    for d in found:
        if d.problems:
            raise BadData(f"{d.path}: {d.problems[0]}", "fetch or make the file again")


@o.command(
    "Check a round, point by point.",
    o.round_argument,
    o.file(
        "--identity",
        "A user's keys, to open the sealed shares for that user. Repeatable.",
        multiple=True,
    ),
    o.file("--report", "Write the findings as a page too.", "FILE.html"),
    *o.pin_options,
    example="round --report audit.html",
)
def audit(
    console: Console,
    space: ts.Workspace,
    identity: tuple[Path, ...],
    report: Path | None,
    access: ts.Access,
) -> None:
    """Check a round point by point: pass, fail, or not checkable and why. Exits with 65 if anything fails.

    Public files are enough for much of it. Where secrets and shares are available too, it also checks that
    the shares interpolate to selectors, that masks and places fit X, and that Y can be recomputed. It
    changes nothing in the round, and shows no secret value.
    """
    from topk_secagg.review.audit import gather
    from topk_secagg.review.report import condensed, page, summary, unpinned
    from topk_secagg.storage.atomic import OWN, write_whole

    if report and report.suffix != ".html":
        raise click.UsageError(f"the report is a page of HTML, and {report} does not end in .html")
    if report and not report.absolute().parent.is_dir():
        raise CannotWrite(
            f"cannot write {report}: its folder is not there", "make the folder first"
        )
    with console.progress() as note:
        found = gather(space, identity, lambda done: note("auditing", 0, 1, done), access=access)
    findings, session = found.findings, found.session
    if report:
        write_whole(report, page(found, program=f"{PROGRAM} {ts.__version__}"), OWN)
    if session:  # else it is too damaged to say whose secrets should not be here
        console.warn_foreign_secrets(space.foreign_secrets())
    failed = [f for f in findings if f.verdict == "fail"]
    keys = session.recipients or () if session else ()
    facts = {
        "session": session and session.id,
        "fingerprints": {key.user: key.fingerprint for key in keys},
        **picked(found, "session_pinned", "keys_pinned"),
        "verdict": "fail" if failed else "pass",
        "counts": {
            v: sum(f.verdict == v for f in findings) for v in ("pass", "fail", "not checkable")
        },
        "findings": [vars(f) for f in findings],
        "report": report,
        "insecure": bool(session and session.insecure),
    }
    console.result(facts)
    rows, before = [], ""
    for point, verdict, about, why in condensed(findings, everything=console.verbose):
        text = f"{about}: {why}" if why else about
        rows.append(("" if point == before else point, verdict.replace("fail", "FAIL"), text))
        before = point
    console.table(("point", "verdict", "on what, and why"), rows)
    if session:
        console.line(f"session {session.fingerprint}")
    console.line(summary(findings) + (f"; report: {report}" if report else ""))
    if remark := unpinned(found):
        console.warn(remark)
    if failed:
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise BadData(
            f"{space.root} failed the audit: {failed[0].subject}: {failed[0].why}{more}",
            "do not rely on this round before that is explained",
        )
