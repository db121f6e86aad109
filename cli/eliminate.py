"""topk-secagg eliminate."""

from __future__ import annotations

from pathlib import Path

import click

from .console import Console, answered, rates
from .console import users as listed
from .options import identity_option, round_argument, user_option


@click.command("eliminate", short_help="Answer for the survivors: Y_n.")
@round_argument
@user_option
@identity_option
@answered
def command(console: Console, round_folder: Path, user: int, identity: Path | None) -> None:
    """Mask-elimination phase of one user: Y_n for the frozen survivors.

    Reads survivors.json, the X of every survivor and the shares that this user holds of them, and writes
    the public file elimination/user-NN.h5. A user answers one survivor set per round.

    \b
    Example:
      topk-secagg eliminate round --user 3
    """
    from topk_secagg.protocol.rates import measured_r2, theorem_r2
    from topk_secagg.steps.eliminate import eliminate
    from topk_secagg.storage.workspace import Workspace

    space = Workspace(round_folder)
    with console.progress(f"user {user} eliminates") as progress:
        report = eliminate(space, user, progress, identity)
    p = space.session.parameters
    console.result(
        "eliminate",
        {
            "session": space.session.id,
            "user": user,
            "path": str(report.path),
            "survivors": report.survivors,
            "survivors_sha256": report.survivors_digest,
            "elimination": "syndrome" if report.syndromes else "dense",
            "payload_bytes": report.payload,
            "R2": measured_r2(p, report.payload),
            "R2_theorem": theorem_r2(p),
            "insecure": bool(space.session.insecure),
        },
        f"user {user} answered for {listed(report.survivors)}: {report.path}",
        rates(report.payload, "R2", measured_r2(p, report.payload), theorem_r2(p)),
    )
