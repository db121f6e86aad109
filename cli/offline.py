"""topk-secagg offline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .console import Console, answered, size
from .options import (
    access_options,
    chosen_users,
    jobs_option,
    randomness_option,
    show_outcome,
    space_argument,
    users_option,
)

if TYPE_CHECKING:
    from topk_secagg.steps.access import Access
    from topk_secagg.steps.offline import OfflineReport
    from topk_secagg.storage.workspace import Workspace


@click.command("offline", short_help="Draw a user's secret and share it.")
@space_argument
@users_option
@randomness_option
@jobs_option
@access_options
@answered
def command(
    console: Console, space: Workspace, user: list[int] | str, randomness: str, jobs: int | None, access: Access
) -> None:
    """Offline phase of a user: draw its secret, and share it with every user.

    Writes secrets/user-NN.h5, which never leaves this machine, and shares/user-MM/from-NN.h5, which you
    send to user MM only. An interrupted run goes on with the same shares.

    \b
    Example:
      topk-secagg offline round --user 3
    """
    from topk_secagg.steps.each import for_each
    from topk_secagg.steps.offline import offline

    users = chosen_users(space, user, access)
    s = space.session

    def facts(report: OfflineReport) -> dict[str, Any]:
        return {
            "session": s.id,
            "user": report.user,
            "secret": str(space.secret_path(report.user)),
            "randomness": report.randomness,
            "shares_written": report.written,
            "shares_kept": report.kept,
            "share_bytes": report.share_bytes,
        }

    def lines(report: OfflineReport) -> list[str]:
        user = report.user
        done = f"user {user} drew its secret: {space.secret_path(user)}"
        return [
            done if report.written else f"user {user} has all its shares already; nothing was changed",
            f"session {s.fingerprint}",
            f"send shares/user-MM/{space.share_path(user, user).name} to user MM only ({size(report.share_bytes)})",
        ]

    with console.progress(f"user {users[0]} shares") as bar, console.phases() as note:
        progress = bar if len(users) == 1 else (lambda _: None)
        outcome = for_each(
            users,
            lambda user: offline(space, user, randomness=randomness, access=access, progress=progress),
            jobs,
            lambda user: note("offline", user, len(users)) if len(users) > 1 else None,
        )
    show_outcome(console, "offline", users, outcome, facts, lines, bool(s.insecure))
