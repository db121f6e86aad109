"""topk-secagg offline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .console import Console, answered, picked, size
from .options import (
    access_options,
    chosen_users,
    for_users,
    jobs_option,
    randomness_option,
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
    from topk_secagg.steps.offline import offline

    def describe(report: OfflineReport) -> tuple[dict[str, Any], list[str]]:
        user, secret = report.user, space.secret_path(report.user)
        facts = {
            "session": space.session.id,
            "secret": secret,
            **picked(report, "user", "randomness", "share_bytes"),
            "shares_written": report.written,
            "shares_kept": report.kept,
        }
        done = f"user {user} drew its secret: {secret}"
        return facts, [
            done if report.written else f"user {user} has all its shares already; nothing was changed",
            f"session {space.session.fingerprint}",
            f"send shares/user-MM/{space.share_path(user, user).name} to user MM only ({size(report.share_bytes)})",
        ]

    def step(user: int, progress: Any) -> OfflineReport:
        return offline(space, user, randomness=randomness, access=access, progress=progress)

    for_users(console, "offline", space, chosen_users(space, user, access), jobs, step, describe)
