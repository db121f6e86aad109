"""topk-secagg decode."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import topk_secagg as ts

from .console import Console, answered, listed, picked, rated, warn_foreign_secrets
from .options import flag_option, mean_option, output_option, round_argument

if TYPE_CHECKING:
    from topk_secagg.steps.decode import DecodeReport


def described(console: Console, space: ts.Workspace, report: DecodeReport) -> tuple[dict[str, Any], list[str]]:
    """Warn of what deserves attention in an aggregate; what else is said about it, as facts and in lines."""
    for n, why in report.left_out.items():
        console.warn(f"the answer of user {n} is left out: {why}")
    if report.beyond:
        console.warn(
            f"{report.beyond} coordinates are larger than the survivors' clipped gradients can make them: "
            "a user cheated, or a share is wrong"
        )
    p, spare = space.session.parameters, len(report.answering) - report.quorum
    r1, x = rated(p, "R1", report.masked_payload)
    r2, y = rated(p, "R2", report.answer_payload)
    facts = {
        **picked(report, "path", "survivors", "answering", "corrected", "left_out", "nonzero", "blocks"),
        "beyond_clip": report.beyond,
        "masked_payload_bytes": report.masked_payload,
        **r1,
        "answer_payload_bytes": report.answer_payload,
        **r2,
        "checked_answers": spare,
    }
    agreement = f"{spare} more answers than needed, and all agree"
    if report.corrected:
        agreement = f"WRONG ANSWERS from user {listed(report.corrected)}, left out; the sum is exact without them"
    elif not spare:
        agreement = "no more answers than needed: nothing could be checked"
    return facts, [
        f"sum of users {listed(report.survivors)}, decoded from {listed(report.answering)}: {report.path}",
        f"{report.nonzero} of {p.length} coordinates are not zero",
        f"X: {x}",
        f"Y: {y}",
        agreement,
    ]


@click.command("decode", short_help="Decode the aggregate.")
@round_argument
@output_option
@mean_option
@flag_option("--strict", "Refuse if any answer is damaged or disagrees.")
@answered
def command(console: Console, round_folder: Path, output: Path | None, mean: bool, strict: bool) -> None:
    """Decode the sum of the survivors' inputs from the answers in elimination/.

    Writes aggregate.h5: the sum, sparse, in the field and as reals. --output writes it in the shape of
    the gradient as well. An answer that cannot be read counts as missing.

    \b
    Example:
      topk-secagg decode round --output sum.pt
    """
    if mean and output is None:
        raise click.UsageError("--mean is about what --output gets; give --output FILE")
    space = ts.Workspace(round_folder)
    with console.progress("decoding") as progress:
        report = ts.decode(space, output, mean=mean, strict=strict, progress=progress)
    facts, lines = described(console, space, report)
    warn_foreign_secrets(console, space.foreign_secrets())
    console.result("decode", facts, *lines, space=space)
