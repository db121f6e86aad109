"""topk-secagg mask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import topk_secagg as ts

from . import options as o
from .console import Console, answered, listed, picked, rated

if TYPE_CHECKING:
    from topk_secagg.steps.mask import MaskReport

_FEW = 10  # users that a warning lists


@click.command("mask", short_help="Mask a user's gradient: X_n.")
@o.space_argument
@o.users_option
@o.file_option("--gradient", ".pt, .pth, .bin, .ckpt, .safetensors, .npz or .npy.")
@o.file_option("--gradients", "A folder with one gradient for every user of the round.", "DIR")
@o.entry_option
@o.prefix_option
@o.value_option(
    "--weight",
    "W",
    "Scale the gradient; the weight is public, and decode --mean divides by the sum.",
    float,
    default=1.0,
)
@o.file_option("--residual", "Error feedback: add what was not sent before; keep what is not sent now.", "FILE.h5")
@o.select_option
@o.saturate_option
@o.jobs_option
@o.access_options
@answered
def command(
    console: Console,
    space: ts.Workspace,
    user: list[int] | str,
    gradient: Path | None,
    gradients: Path | None,
    residual: Path | None,
    jobs: int | None,
    access: ts.Access,
    **options: Any,
) -> None:
    """Masked-input phase of a user: X_n from its gradient.

    Keeps the coordinates of largest magnitude (moments: the largest of every bucket), quantises and masks
    them, and writes the public file masked/user-NN.h5. A user masks one gradient per round; its ledger
    refuses a second one.

    \b
    Example:
      topk-secagg mask round --user 3 --gradient gradients/user-03.pt
    """
    from topk_secagg.steps.gather import gradient_files

    if (gradient is None) == (gradients is None):
        raise click.UsageError("give either --gradient FILE or --gradients DIR")
    users = o.chosen_users(space, user, access)
    if gradient is not None and len(users) > 1:
        raise click.UsageError("--gradient belongs to one user; give --gradients DIR for several")
    if gradients is not None:
        found = gradient_files([gradients])
        if len(found) != len(space.users()):
            raise click.UsageError(f"{len(found)} gradients in {gradients} for {len(space.users())} users")
        if residual is not None and len(users) > 1:
            raise click.UsageError("--residual belongs to one user; `run --residuals DIR` keeps one for each")

    def step(user: int, _progress: object) -> o.Told:
        report = ts.mask(space, user, gradient or found[user - 1], residual=residual, access=access, **options)
        p = space.session.parameters
        r1, payload = rated(p, "R1", report.payload)
        facts = {
            **picked(report, "user", "path", "entries", "clipped", "late", "kept_energy"),
            "sha256": report.digest,
            "weight": options["weight"],
            "missing_shares": report.missing,
            "unsettled_round": report.unsettled,
            "payload_bytes": report.payload,
            **r1,
        }
        lines = [
            f"user {user} masked {report.entries} of {p.length} coordinates: {report.path}",
            f"session {space.session.fingerprint}",
            payload,
            *selection_lines(p, report.kept_energy, report.clipped),
        ]
        return o.Told(facts, lines, report.notes, list(_warnings(space, report)))

    o.for_users(console, "mask", space, users, jobs, step)


def _warnings(space: ts.Workspace, report: MaskReport) -> Iterator[str]:
    """What a user should know beyond its X."""
    user, secret = report.user, space.secret_path(report.user)
    if not report.private_secret:
        yield f"{secret} can be read by others; run: chmod 600 {secret}"
    if report.late:
        yield f"the survivors are fixed already: this X of user {user} comes too late"
    if report.missing:
        few = len(report.missing) <= _FEW
        whose = f"user {listed(report.missing)}" if few else f"{len(report.missing)} users"
        yield (
            f"user {user} has not received the shares of {whose}; its X says so, and "
            "freeze leaves out users whose shares too few hold"
        )
    if report.unsettled:
        again = f"topk-secagg settle {report.unsettled} --user {user}"
        yield (
            f"the residual of the round in {report.unsettled} was never settled; "
            f"if user {user} was in its sum, run `{again}` first"
        )


def selection_lines(p: ts.Parameters, energy: float | None, clipped: int, whose: str = "it keeps") -> Iterator[str]:
    """How close the selection comes to the global top-K, where it is not that, and how much --saturate has changed.
    Only the user itself sees it."""
    if energy not in (None, 1):
        yield f"{whose} {energy:.4f} of the energy of the global top-K"
    if clipped:
        yield f"{clipped} values were clamped to the clip of {p.clip:g}"
