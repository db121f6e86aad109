"""topk-secagg eliminate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .console import Console, answered, listed, picked, rate_line
from .options import access_options, chosen_users, flag_option, for_users, jobs_option, space_argument, users_option

if TYPE_CHECKING:
    from topk_secagg.steps.access import Access
    from topk_secagg.steps.eliminate import EliminateReport
    from topk_secagg.storage.workspace import Workspace


@click.command("eliminate", short_help="Answer for the survivors: Y_n.")
@space_argument
@users_option
@flag_option("--fallback", "Answer once more with D = U - T, when too few answers came (--spare).")
@jobs_option
@access_options
@answered
def command(
    console: Console, space: Workspace, user: list[int] | str, fallback: bool, jobs: int | None, access: Access
) -> None:
    """Mask-elimination phase of a user: Y_n for the frozen survivors.

    Reads survivors.json, the X of every survivor and the shares that this user holds of them, and writes
    the public file elimination/user-NN.h5. A user answers one survivor set per round. `--user all` means
    all survivors.

    \b
    Example:
      topk-secagg eliminate round --user 3
    """
    from topk_secagg.steps.costs import rates
    from topk_secagg.steps.eliminate import eliminate
    from topk_secagg.storage import survivors

    users = chosen_users(space, survivors.read(space).users if user == "all" else user, access)

    def describe(report: EliminateReport) -> tuple[dict[str, Any], list[str]]:
        r2, short = rates(space.session.parameters, "R2", report.payload), report.survivors_digest[:16]
        facts = {
            "session": space.session.id,
            **picked(report, "user", "path", "survivors", "blocks", "fallback"),
            "survivors_sha256": report.survivors_digest,
            "answers_needed": report.quorum,
            "payload_bytes": report.payload,
            **r2,
        }
        return facts, [
            f"user {report.user} answered for {listed(report.survivors)}: {report.path}",
            f"session {space.session.fingerprint}, survivors.json {short}: compare with the others",
            rate_line(report.payload, r2),
        ]

    def step(user: int, progress: Any) -> EliminateReport:
        return eliminate(space, user, fallback=fallback, access=access, progress=progress)

    for_users(console, "eliminate", space, users, jobs, step, describe)
