"""topk-secagg mask."""

from __future__ import annotations

from pathlib import Path

import click

from .console import Console, answered, rates
from .options import round_argument, saturate_option, user_option


@click.command("mask", short_help="Mask a user's gradient: X_n.")
@round_argument
@user_option
@click.option(
    "--gradient", type=click.Path(path_type=Path), required=True, metavar="FILE", help=".npy or .npz."
)
@saturate_option
@answered
def command(console: Console, round_folder: Path, user: int, gradient: Path, saturate: bool) -> None:
    """Masked-input phase of one user: X_n from its gradient.

    Keeps the coordinates of largest magnitude, quantises and masks them, and writes the public file
    masked/user-NN.h5. A user masks one gradient per round; the ledger sees to it.

    \b
    Example:
      topk-secagg mask round --user 3 --gradient gradients/user-03.npy
    """
    from topk_secagg.protocol.rates import measured_r1, theorem_r1
    from topk_secagg.steps.mask import mask
    from topk_secagg.storage.workspace import Workspace

    space = Workspace(round_folder)
    report = mask(space, user, gradient, saturate=saturate)
    p = space.session.parameters
    if not report.private_secret:
        console.warn(
            f"{space.secret_path(user)} can be read by others; run: chmod 600 {space.secret_path(user)}"
        )
    console.result(
        "mask",
        {
            "session": space.session.id,
            "user": user,
            "path": str(report.path),
            "sha256": report.digest,
            "entries": report.entries,
            "clipped": report.clipped,
            "kept_energy": report.kept_energy,
            "payload_bytes": report.payload,
            "R1": measured_r1(p, report.payload),
            "R1_theorem": theorem_r1(p),
            "insecure": bool(space.session.insecure),
        },
        f"user {user} masked {report.entries} of {p.length} coordinates: {report.path}",
        rates(report.payload, "R1", measured_r1(p, report.payload), theorem_r1(p)),
        *([f"{report.clipped} values were clamped to the clip of {p.clip:g}"] if report.clipped else []),
    )
