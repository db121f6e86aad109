"""topk-secagg freeze."""

from __future__ import annotations

from pathlib import Path

import click

from .console import Console, answered
from .console import users as listed
from .options import UserList, round_argument


@click.command("freeze", short_help="Fix the survivors: U1.")
@round_argument
@click.option("--only", type=UserList(), metavar="1,2,3", help="These users alone, though more have masked.")
@answered
def command(console: Console, round_folder: Path, only: list[int] | None) -> None:
    """Fix the survivors U1 of the masked-input phase in survivors.json.

    Takes every user that has a file in masked/. All users must answer the same survivors.json; once it
    is there it never changes, because answers for two sets would reveal what one user sent.

    \b
    Example:
      topk-secagg freeze round --only 1,2,3,4
    """
    from topk_secagg.steps.freeze import freeze
    from topk_secagg.storage.workspace import Workspace

    space = Workspace(round_folder)
    report = freeze(space, only)
    console.result(
        "freeze",
        {
            "session": space.session.id,
            "path": str(space.survivors_path),
            "survivors": report.survivors,
            "dropped": [n for n in space.users() if n not in report.survivors],
            "survivors_sha256": report.digest,
            "written": report.written,
            "insecure": bool(space.session.insecure),
        },
        f"survivors {listed(report.survivors)}: {space.survivors_path}",
    )
