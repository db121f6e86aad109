"""topk-secagg offline."""

from __future__ import annotations

from pathlib import Path

import click

from .console import Console, answered, size
from .options import identity_option, randomness_option, round_argument, user_option


@click.command("offline", short_help="Draw a user's secret and share it.")
@round_argument
@user_option
@randomness_option
@identity_option
@answered
def command(console: Console, round_folder: Path, user: int, randomness: str, identity: Path | None) -> None:
    """Offline phase of one user: draw its secret, and share it with every user.

    Writes secrets/user-NN.h5, which never leaves this machine, and shares/user-MM/from-NN.h5, each of
    which goes to user MM alone. An interrupted run goes on with the same shares.

    \b
    Example:
      topk-secagg offline round --user 3
    """
    from topk_secagg.steps.offline import offline
    from topk_secagg.storage.workspace import Workspace

    space = Workspace(round_folder)
    with console.progress(f"user {user} shares") as progress:
        report = offline(space, user, randomness, progress, identity)
    console.result(
        "offline",
        {
            "session": space.session.id,
            "user": user,
            "secret": str(space.secret_path(user)),
            "randomness": report.randomness,
            "shares_written": report.written,
            "shares_kept": report.kept,
            "share_bytes": report.share_bytes,
            "insecure": bool(space.session.insecure),
        },
        f"user {user} drew its secret: {space.secret_path(user)}"
        if report.written
        else f"user {user} has all its shares already; nothing was changed",
        f"user MM alone gets shares/user-MM/{space.share_path(user, user).name} ({size(report.share_bytes)})",
    )
