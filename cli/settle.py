"""topk-secagg settle, and topk-secagg forget."""

from __future__ import annotations

import click

import topk_secagg as ts

from .console import Console, answered, listed
from .options import space_argument, user_option


@click.command("settle", short_help="Commit the residual of a survivor.")
@space_argument
@user_option
@answered
def command(console: Console, space: ts.Workspace, user: int) -> None:
    """Commit the residual of a survivor that missed the elimination phase.

    Its X is in the sum, so that its new residual holds, whether it answers or not. `eliminate` does the
    same.

    \b
    Example:
      topk-secagg settle round --user 3
    """
    report = ts.settle(space, user)
    done = f"residual of user {user}: {report.path}" + ("" if report.committed else " was committed already")
    console.result("settle", vars(report), done, space=space)


@click.command("forget", short_help="Erase a user's secret and shares.")
@space_argument
@user_option
@answered
def forget_command(console: Console, space: ts.Workspace, user: int) -> None:
    """Erase a user's secret, the shares that it holds, and its copies of those that it made.

    Do it once they have done their work: after its answer, or when it dropped out. With X, the secret
    reveals the input for ever. The ledger stays, so that nothing can be used twice. See docs/security.md
    for what deleting means on an SSD.

    \b
    Example:
      topk-secagg forget round --user 3
    """
    report = ts.forget(space, user)
    lines = [f"user {user} erased {len(report.erased)} files; its ledger stays"]
    if report.kept:
        lines.append(f"{len(report.kept)} sealed shares belong to other accounts; only your identity opens them")
    if report.needed_by:
        lines.append(f"its shares for user {listed(report.needed_by)}, who have not answered, stay")
    console.result("forget", vars(report), *lines, space=space)
