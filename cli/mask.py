"""topk-secagg mask."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .console import Console, answered, rates
from .options import (
    entry_option,
    identity_option,
    round_argument,
    saturate_option,
    select_option,
    user_option,
)

if TYPE_CHECKING:
    pass


@click.command("mask", short_help="Mask a user's gradient: X_n.")
@round_argument
@user_option
@click.option(
    "--gradient",
    type=click.Path(path_type=Path, readable=False),
    required=True,
    metavar="FILE",
    help=".pt, .pth, .bin, .safetensors, .npz or .npy.",
)
@identity_option
@entry_option
@click.option(
    "--weight",
    type=float,
    default=1.0,
    show_default=True,
    metavar="W",
    help="Scale the gradient; the weight is public, and decode --mean divides by the sum.",
)
@click.option(
    "--residual",
    type=click.Path(path_type=Path, readable=False),
    metavar="FILE.h5",
    help="Error feedback: add what was not sent before; `eliminate` keeps what is not sent now.",
)
@select_option
@saturate_option
@answered
def command(
    console: Console,
    round_folder: Path,
    user: int,
    gradient: Path,
    identity: Path | None,
    entry: str,
    weight: float,
    residual: Path | None,
    select: str,
    saturate: bool,
) -> None:
    """Masked-input phase of one user: X_n from its gradient.

    Keeps the coordinates of largest magnitude (in rotation: the largest of every bucket, and says how much
    of the energy of the global top-K that keeps), quantises and masks them, and writes the public file
    masked/user-NN.h5. A user masks one gradient per round; the ledger sees to it.

    \b
    Example:
      topk-secagg mask round --user 3 --gradient gradients/user-03.pt
    """
    from topk_secagg.protocol.rates import measured_r1, theorem_r1
    from topk_secagg.steps.mask import mask
    from topk_secagg.storage.workspace import Workspace

    space = Workspace(round_folder)
    report = mask(
        space,
        user,
        gradient,
        entry=entry,
        weight=weight,
        residual=residual,
        select=select,
        saturate=saturate,
        identity=identity,
    )
    p = space.session.parameters
    if not report.private_secret:
        console.warn(
            f"{space.secret_path(user)} can be read by others; run: chmod 600 {space.secret_path(user)}"
        )
    if report.late:
        console.warn(f"the survivors of this round are fixed already: this X of user {user} comes too late")
    console.result(
        "mask",
        {
            "session": space.session.id,
            "user": user,
            "path": str(report.path),
            "sha256": report.digest,
            "entries": report.entries,
            "weight": weight,
            "clipped": report.clipped,
            "late": report.late,
            "kept_energy": report.kept_energy,
            "payload_bytes": report.payload,
            "R1": measured_r1(p, report.payload),
            "R1_theorem": theorem_r1(p),
            "insecure": bool(space.session.insecure),
        },
        f"user {user} masked {report.entries} of {p.length} coordinates: {report.path}",
        rates(report.payload, "R1", measured_r1(p, report.payload), theorem_r1(p)),
        *kept_lines(report.kept_energy, p.construction, select),
        *clipped_lines(report.clipped, p.clip),
    )


def kept_lines(energy: float | None, construction: str, select: str) -> list[str]:
    """How close the selection comes to the global top-K, where it is not that."""
    if energy is None or (construction == "permutation" and select == "top"):
        return []
    return [f"it keeps {energy:.4f} of the energy of the global top-K (this is for the user's eyes only)"]


def clipped_lines(clipped: int, clip: float) -> list[str]:
    """How much --saturate has changed."""
    return [f"{clipped} values were clamped to the clip of {clip:g}"] if clipped else []
