"""topk-secagg mask."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import Console, answered, rates
from .console import users as listed
from .options import (
    access_options,
    chosen_users,
    entry_option,
    file_option,
    jobs_option,
    prefix_option,
    saturate_option,
    select_option,
    show_outcome,
    space_argument,
    users_option,
)

if TYPE_CHECKING:
    from topk_secagg.steps.access import Access
    from topk_secagg.steps.mask import MaskReport
    from topk_secagg.storage.workspace import Workspace

_FEW = 10  # users that a warning lists


@click.command("mask", short_help="Mask a user's gradient: X_n.")
@space_argument
@users_option
@file_option("--gradient", ".pt, .pth, .bin, .ckpt, .safetensors, .npz or .npy.")
@file_option("--gradients", "A folder with one gradient for every user of the round.", "DIR")
@entry_option
@prefix_option
@click.option(
    "--weight",
    type=float,
    default=1.0,
    show_default=True,
    metavar="W",
    help="Scale the gradient; the weight is public, and decode --mean divides by the sum.",
)
@file_option("--residual", "Error feedback: add what was not sent before; keep what is not sent now.", "FILE.h5")
@select_option
@saturate_option
@jobs_option
@access_options
@answered
def command(
    console: Console,
    space: Workspace,
    user: list[int] | str,
    gradient: Path | None,
    gradients: Path | None,
    residual: Path | None,
    jobs: int | None,
    access: Access,
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
    from topk_secagg.steps.each import for_each
    from topk_secagg.steps.gather import gradient_files
    from topk_secagg.steps.mask import mask

    if (gradient is None) == (gradients is None):
        raise click.UsageError("give either --gradient FILE or --gradients DIR")
    users = chosen_users(space, user, access)
    if gradient is not None and len(users) > 1:
        raise click.UsageError("--gradient belongs to one user; give --gradients DIR for several")
    files = {users[0]: gradient} if gradient else {}
    if gradients is not None:
        found = gradient_files([gradients])
        if len(found) != len(space.users()):
            raise click.UsageError(f"{len(found)} gradients in {gradients} for {len(space.users())} users")
        files = {user: found[user - 1] for user in users}
        if residual is not None and len(users) > 1:
            raise click.UsageError("--residual belongs to one user; `run --residuals DIR` keeps one for each")

    def step(user: int) -> MaskReport:
        file = files[user]
        assert file is not None
        return mask(space, user, file, residual=residual, access=access, **options)

    with console.phases() as note:
        outcome = for_each(users, step, jobs, lambda user: note("mask", user, len(users)) if len(users) > 1 else None)
    say_notes(console, outcome.reports.values())
    for report in outcome.reports.values():
        warn_about(console, space, report)
    show_outcome(
        console,
        "mask",
        users,
        outcome,
        lambda report: _facts(space, report, options["weight"]),
        lambda report: _lines(space, report),
        bool(space.session.insecure),
    )


def _facts(space: Workspace, report: MaskReport, weight: float) -> dict[str, Any]:
    from topk_secagg.protocol.rates import measured_r1, theorem_r1

    p = space.session.parameters
    return {
        "session": space.session.id,
        "user": report.user,
        "path": str(report.path),
        "sha256": report.digest,
        "entries": report.entries,
        "weight": weight,
        "clipped": report.clipped,
        "late": report.late,
        "missing_shares": report.missing,
        "unsettled_round": report.unsettled,
        "kept_energy": report.kept_energy,
        "payload_bytes": report.payload,
        "R1": measured_r1(p, report.payload),
        "R1_theorem": theorem_r1(p),
    }


def _lines(space: Workspace, report: MaskReport) -> list[str]:
    from topk_secagg.protocol.rates import measured_r1, theorem_r1

    p = space.session.parameters
    return [
        f"user {report.user} masked {report.entries} of {p.length} coordinates: {report.path}",
        f"session {space.session.fingerprint}",
        rates(report.payload, "R1", measured_r1(p, report.payload), theorem_r1(p)),
        *kept_lines(report.kept_energy),
        *clipped_lines(report.clipped, p.clip),
    ]


def say_notes(console: Console, reports: Iterable[MaskReport]) -> None:
    """How the gradients were read, a line for all users with the same note."""
    told: dict[str, list[int]] = {}
    for report in reports:
        for note in report.notes:
            told.setdefault(note, []).append(report.user)
    for note, users in told.items():
        console.say(f"user {listed(users)}: {note}")


def warn_about(console: Console, space: Workspace, report: MaskReport) -> None:
    """What a user should know beyond its X."""
    secret = space.secret_path(report.user)
    if not report.private_secret:
        console.warn(f"{secret} can be read by others; run: chmod 600 {secret}")
    if report.late:
        console.warn(f"the survivors are fixed already: this X of user {report.user} comes too late")
    if report.missing:
        few = len(report.missing) <= _FEW
        whose = f"user {listed(report.missing)}" if few else f"{len(report.missing)} users"
        console.warn(
            f"user {report.user} has not received the shares of {whose}; its X says so, and "
            "freeze leaves out users whose shares too few hold"
        )
    if report.unsettled:
        console.warn(
            f"the residual of the round in {report.unsettled} was never settled; if user {report.user} was in its "
            f"sum, run `topk-secagg settle {report.unsettled} --user {report.user}` first"
        )


def kept_lines(energy: float | None, whose: str = "it keeps") -> list[str]:
    """How close the selection comes to the global top-K, where it is not that. Only the user itself sees it."""
    return [] if energy is None or energy == 1 else [f"{whose} {energy:.4f} of the energy of the global top-K"]


def clipped_lines(clipped: int, clip: float) -> list[str]:
    """How much --saturate has changed."""
    return [f"{clipped} values were clamped to the clip of {clip:g}"] if clipped else []
