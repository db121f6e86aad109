"""topk-secagg init."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import Console, answered, size
from .options import chosen_layout, chosen_parameters, round_argument, round_options, this_call_with

if TYPE_CHECKING:
    from topk_secagg.storage.workspace import Workspace


_NAMES_SHOWN = 4


def start_round(
    console: Console,
    root: Path,
    *,
    like: Path | None,
    length: int | None,
    entry: str,
    only: tuple[str, ...],
    exclude: tuple[str, ...],
    insecure_seed: int | None,
    distributed: bool = False,
    recipients: Path | None = None,
    **options: Any,
) -> tuple[Workspace, bool]:
    """Choose the parameters, see whether the disk can hold the round, and write session.json if it is new."""
    from topk_secagg.review.plan import check_disk, free_bytes
    from topk_secagg.steps.init import init
    from topk_secagg.storage.keys import read_recipients

    layout = chosen_layout(like, length, entry, only, exclude)
    parameters = chosen_parameters(layout, free=free_bytes(root), distributed=distributed, **options)
    new = not (root / "session.json").exists()
    if new:
        check_disk(root, parameters, this_call_with, distributed=distributed)
    keys = read_recipients(recipients, parameters.users) if recipients else None
    space = init(root, parameters, layout, insecure_seed, keys)
    if layout.left_out:
        shown = ", ".join(layout.left_out[:_NAMES_SHOWN])
        more = (
            f" and {len(layout.left_out) - _NAMES_SHOWN} more" if len(layout.left_out) > _NAMES_SHOWN else ""
        )
        console.say(f"left out, as no gradients: {shown}{more}")
    return space, new


@click.command("init", short_help="Start a round: write session.json.")
@round_argument
@round_options
@click.option(
    "--distributed", is_flag=True, help="Every user has a machine of its own: room for one user is enough."
)
@click.option(
    "--recipients",
    type=click.Path(path_type=Path, readable=False),
    metavar="FILE",
    help="The users' public keys, a line each as `keygen` prints it: seals and signs the shares.",
)
@answered
def command(
    console: Console,
    round_folder: Path,
    users: int | None,
    **options: Any,
) -> None:
    """Start a round: fix what all users agree on, and write ROUND/session.json.

    Everybody works with the same session.json; its SHA-256 names the session. A round that was started
    with the same options is left as it is.

    \b
    Example:
      topk-secagg init round --users 5 --survivors 3 --colluders 1 --top-k 2 --length 4
    """
    if users is None:
        raise click.UsageError("give --users N")
    space, new = start_round(console, round_folder, users=users, **options)
    session = space.session
    p = session.parameters
    console.result(
        "init",
        {
            "session": session.id,
            "path": str(space.session_path),
            "written": new,
            **p.as_dict(),
            "entries": p.entries,
            "left_out": list(session.layout.left_out),
            "share_bytes": p.share_bytes,
            "offline_bytes": p.offline_bytes,
            "sealed": session.recipients is not None,
            "insecure": bool(session.insecure),
        },
        f"session {session.id[:16]}: {space.session_path}" + ("" if new else " was there already"),
        p.summary(),
        f"offline files: {size(p.share_bytes)} a pair of users, {size(p.offline_bytes)} in all",
    )
