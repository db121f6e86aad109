"""topk-secagg eliminate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .console import Console, answered, rates
from .console import users as listed
from .options import access_options, chosen_users, jobs_option, show_outcome, space_argument, users_option

if TYPE_CHECKING:
    from topk_secagg.steps.access import Access
    from topk_secagg.steps.eliminate import EliminateReport
    from topk_secagg.storage.workspace import Workspace


@click.command("eliminate", short_help="Answer for the survivors: Y_n.")
@space_argument
@users_option
@click.option("--fallback", is_flag=True, help="Answer once more with D = U - T, when too few answers came (--spare).")
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
    from topk_secagg.protocol.rates import measured_r2, theorem_r2
    from topk_secagg.steps.each import for_each
    from topk_secagg.steps.eliminate import eliminate
    from topk_secagg.storage import survivors

    users = chosen_users(space, survivors.read(space).users if user == "all" else user, access)
    s = space.session
    p = s.parameters

    def facts(report: EliminateReport) -> dict[str, Any]:
        return {
            "session": s.id,
            "user": report.user,
            "path": str(report.path),
            "survivors": report.survivors,
            "survivors_sha256": report.survivors_digest,
            "blocks": report.blocks,
            "answers_needed": report.quorum,
            "fallback": report.fallback,
            "payload_bytes": report.payload,
            "R2": measured_r2(p, report.payload),
            "R2_theorem": theorem_r2(p),
        }

    def lines(report: EliminateReport) -> list[str]:
        return [
            f"user {report.user} answered for {listed(report.survivors)}: {report.path}",
            f"session {s.fingerprint}, survivors.json {report.survivors_digest[:16]}: compare with the others",
            rates(report.payload, "R2", measured_r2(p, report.payload), theorem_r2(p)),
        ]

    with console.progress(f"user {users[0]} eliminates") as bar, console.phases() as note:
        progress = bar if len(users) == 1 else (lambda _: None)
        outcome = for_each(
            users,
            lambda user: eliminate(space, user, fallback=fallback, access=access, progress=progress),
            jobs,
            lambda user: note("eliminate", user, len(users)) if len(users) > 1 else None,
        )
    show_outcome(console, "eliminate", users, outcome, facts, lines, bool(s.insecure))
