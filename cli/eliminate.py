"""topk-secagg eliminate."""

from __future__ import annotations

from typing import Any

import click

import topk_secagg as ts

from . import options as o
from .console import Console, answered, listed, picked, rated


@click.command("eliminate", short_help="Answer for the survivors: Y_n.")
@o.space_argument
@o.users_option
@o.flag_option("--fallback", "Answer once more with D = U - T, when too few answers came (--spare).")
@o.jobs_option
@o.access_options
@answered
def command(
    console: Console, space: ts.Workspace, user: list[int] | str, fallback: bool, jobs: int | None, access: ts.Access
) -> None:
    """Mask-elimination phase of a user: Y_n for the frozen survivors.

    Reads survivors.json, the X of every survivor and the shares that this user holds of them, and writes
    the public file elimination/user-NN.h5. A user answers one survivor set per round. `--user all` means
    all survivors.

    \b
    Example:
      topk-secagg eliminate round --user 3
    """
    from topk_secagg.storage import survivors

    users = o.chosen_users(space, survivors.read(space).users if user == "all" else user, access)

    def step(user: int, progress: Any) -> o.Told:
        report = ts.eliminate(space, user, fallback=fallback, access=access, progress=progress)
        r2, payload = rated(space.session.parameters, "R2", report.payload)
        facts = {
            **picked(report, "user", "path", "survivors", "blocks", "fallback"),
            "survivors_sha256": report.survivors_digest,
            "answers_needed": report.quorum,
            "payload_bytes": report.payload,
            **r2,
        }
        digests = f"session {space.session.fingerprint}, survivors.json {report.survivors_digest[:16]}"
        lines = [
            f"user {user} answered for {listed(report.survivors)}: {report.path}",
            f"{digests}: compare with the others",
            payload,
        ]
        return o.Told(facts, lines)

    o.for_users(console, "eliminate", space, users, jobs, step)
