"""topk-secagg freeze, and topk-secagg confirm."""

from __future__ import annotations

import click

import topk_secagg as ts

from .console import Console, answered, listed, picked
from .options import UserSet, access_options, space_argument, user_option, value_option


@click.command("freeze", short_help="Fix the survivors: U1.")
@space_argument
@value_option("--only", "1,2,3", "Only these users, although more have masked.", UserSet())
@value_option("--user", "n", "Who freezes.  [default: the session's freezer]")
@access_options
@answered
def command(console: Console, space: ts.Workspace, only: list[int] | None, user: int | None, access: ts.Access) -> None:
    """Fix the survivors U1 of the masked-input phase in survivors.json.

    This is the step of the session's freezer; in rounds with --confirm, of any user. It takes every user
    whose X is sound, unless too few users hold its share. All users must answer the same survivors.json,
    because answers for two sets would reveal what one user sent: once it exists it never changes.

    \b
    Example:
      topk-secagg freeze round --only 1,2,3,4
    """
    report = ts.freeze(space, only, user=user, access=access)
    for n, why in report.left_out.items():
        console.warn(f"user {n} is left out: {why}")
    console.result(
        "freeze",
        {
            "path": space.survivors_path,
            "freezer": report.user,
            **picked(report, "survivors", "left_out", "written"),
            "dropped": [n for n in space.users() if n not in report.survivors],
            "survivors_sha256": report.digest,
        },
        f"survivors {listed(report.survivors)}: {space.survivors_path}",
        f"digest {report.digest[:16]}: everybody must answer this one",
        space=space,
    )


@click.command("confirm", short_help="Confirm the survivors, in rounds with --confirm.")
@space_argument
@user_option
@access_options
@answered
def confirm_command(console: Console, space: ts.Workspace, user: int, access: ts.Access) -> None:
    """Sign survivors.json, in a round that was started with --confirm.

    Users answer only once more than (N+T)/2 users have confirmed the same survivors.json. A user confirms
    one per round. Writes the public file confirmed/user-NN.json.

    \b
    Example:
      topk-secagg confirm round --user 3 --identity user-03.identity
    """
    report = ts.confirm(space, user, access=access)
    console.result(
        "confirm",
        picked(report, "user", "path", "survivors", "confirmed", "needed") | {"survivors_sha256": report.digest},
        f"user {user} confirmed survivors {listed(report.survivors)}: {report.path}",
        f"session {space.session.fingerprint}, digest {report.digest[:16]}",
        f"confirmations of {listed(report.confirmed)} are here; {report.needed} are needed",
        space=space,
    )
