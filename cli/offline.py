"""topk-secagg offline."""

from __future__ import annotations

from typing import Any

import click

import topk_secagg as ts

from . import options as o
from .console import Console, answered, picked, size


@click.command("offline", short_help="Draw a user's secret and share it.")
@o.space_argument
@o.users_option
@o.randomness_option
@o.jobs_option
@o.access_options
@answered
def command(
    console: Console, space: ts.Workspace, user: list[int] | str, randomness: str, jobs: int | None, access: ts.Access
) -> None:
    """Offline phase of a user: draw its secret, and share it with every user.

    Writes secrets/user-NN.h5, which never leaves this machine, and shares/user-MM/from-NN.h5, which you
    send to user MM only. An interrupted run continues with the same shares.

    \b
    Example:
      topk-secagg offline round --user 3
    """

    def step(user: int, progress: Any) -> o.Told:
        report = ts.offline(space, user, randomness=randomness, access=access, progress=progress)
        facts = {
            "secret": space.secret_path(user),
            **picked(report, "user", "randomness", "share_bytes"),
            "shares_written": report.written,
            "shares_kept": report.kept,
        }
        done = f"user {user} drew its secret: {space.secret_path(user)}"
        lines = [
            done if report.written else f"user {user} has all its shares already; nothing was changed",
            f"session {space.session.fingerprint}",
            f"send shares/user-MM/{space.share_path(user, user).name} to user MM only ({size(report.share_bytes)})",
        ]
        return o.Told(facts, lines)

    o.for_users(console, "offline", space, o.chosen_users(space, user, access), jobs, step)
