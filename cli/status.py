"""topk-secagg status."""

from __future__ import annotations

import shlex
import time

import click

import topk_secagg as ts
from topk_secagg.errors import Busy

from .console import PROGRAM, Console, answered, listed, picked, warn_foreign_secrets
from .options import space_argument, value_option

_POLL = 0.5  # seconds


@click.command("status", short_help="Who has done what, and what to do next.")
@space_argument
@value_option("--user", "n", "From the point of view of this user.")
@value_option("--wait", "SECONDS", "Wait until the next step can be run, or exit 75.", click.FloatRange(min=0))
@answered
def command(console: Console, space: ts.Workspace, user: int | None, wait: float | None) -> None:
    """Show who has done what in a round, which files of whom are missing, and the next command.

    With --user, also what this user should send to whom. --wait returns when the next step can be run
    (exit 0), or when the time is up (exit 75).

    \b
    Example:
      topk-secagg status round --user 3 --wait 600
    """
    end = time.monotonic() + (wait or 0)
    while True:
        found = ts.status(space, user)
        if wait is None or found.next.ready or time.monotonic() >= end:
            break
        time.sleep(min(_POLL, max(0.0, end - time.monotonic())))
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
    warn_foreign_secrets(console, found.foreign_secrets)
    for problem in found.problems:
        console.warn(problem)
    console.result("status", facts, space=space)
    console.line(f"session {space.session.fingerprint}, {space.session.parameters.summary()}")
    rows = []
    for u in found.users:
        lacking = [m for m in space.users() if m not in (u.holds or [])]
        shares = f"all {N}" if not lacking else f"lacks {listed(lacking)}" if u.holds is not None else ""
        survivor = "" if u.survivor is None else "yes" if u.survivor else "dropped out"
        confirmed = ["yes" if u.confirmed else ""] if space.session.confirm else []
        rows.append([str(u.user), shares, u.masked, survivor, *confirmed, u.answered])
    columns = ["user", "shares received", "X", "survivor", *(["confirmed"] if space.session.confirm else []), "Y"]
    console.table(columns, rows)
    for path, whom in found.send:
        console.line(f"send {path} to {whom}")
    console.line(f"next: {following}" if following else "nothing is left to do")
    if found.next.waits_for:
        now = "; it can be run without them" if found.next.possible and found.next.step != "offline" else ""
        console.line(f"waiting for {found.next.waits_for}{now}")
    if wait is not None and not found.next.ready:
        raise Busy(f"{found.next.step} still waits for {found.next.waits_for}", "run this again later")


def _command(space: ts.Workspace, step: str, user: int | None) -> str:
    """The command for a step, to be pasted; "" if there is none."""
    by = "" if step in ("freeze", "decode") else f" --user {user or 'n'}"
    call = shlex.join([PROGRAM, step, str(space.root)]) + by
    return f"{call} --gradient FILE" if step == "mask" else call if step else ""
