"""topk-secagg decode."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import Console, answered, rates
from .console import users as listed
from .options import round_argument

if TYPE_CHECKING:
    from topk_secagg.steps.decode import DecodeReport
    from topk_secagg.storage.workspace import Workspace

output_option = click.option(
    "--output",
    type=click.Path(path_type=Path, readable=False),
    metavar="FILE",
    help="Write the sum as .pt, .safetensors, .npz or .npy too.",
)
mean_option = click.option(
    "--mean",
    is_flag=True,
    help="Divide what --output gets by the sum of the survivors' weights (1 each by default).",
)


def decoded_facts(space: Workspace, report: DecodeReport) -> dict[str, Any]:
    """What is said about an aggregate."""
    from topk_secagg.protocol.rates import measured_r1, measured_r2, theorem_r1, theorem_r2

    p = space.session.parameters
    return {
        "session": space.session.id,
        "path": str(report.path),
        "survivors": report.survivors,
        "answering": report.answering,
        "corrected": report.corrected,
        "nonzero": report.nonzero,
        "masked_payload_bytes": report.masked_payload,
        "R1": measured_r1(p, report.masked_payload),
        "R1_theorem": theorem_r1(p),
        "answer_payload_bytes": report.answer_payload,
        "R2": measured_r2(p, report.answer_payload),
        "R2_theorem": theorem_r2(p),
        "checked_answers": len(report.answering) - p.quorum,
        "insecure": bool(space.session.insecure),
    }


def decoded_lines(space: Workspace, report: DecodeReport) -> list[str]:
    """The same for people."""
    from topk_secagg.protocol.rates import measured_r1, measured_r2, theorem_r1, theorem_r2

    p = space.session.parameters
    spare = len(report.answering) - p.quorum
    return [
        f"sum of users {listed(report.survivors)}, decoded from {listed(report.answering)}: {report.path}",
        f"{report.nonzero} of {p.length} coordinates are not zero",
        f"X: {rates(report.masked_payload, 'R1', measured_r1(p, report.masked_payload), theorem_r1(p))}",
        f"Y: {rates(report.answer_payload, 'R2', measured_r2(p, report.answer_payload), theorem_r2(p))}",
        _agreement(report, spare),
    ]


def _agreement(report: DecodeReport, spare: int) -> str:
    if report.corrected:
        return f"WRONG ANSWERS from user {listed(report.corrected)}, left out; the sum is exact without them"
    if spare:
        return f"{spare} answers to spare, and all agree"
    return "no answer to spare: nothing could be checked"


@click.command("decode", short_help="Decode the aggregate.")
@round_argument
@output_option
@mean_option
@click.option(
    "--strict", is_flag=True, help="Refuse if any answer disagrees, instead of leaving wrong ones out."
)
@answered
def command(console: Console, round_folder: Path, output: Path | None, mean: bool, strict: bool) -> None:
    """Decode the sum of the survivors' inputs from the answers in elimination/.

    Writes aggregate.h5: the sum, sparse, in the field and as reals. --output writes it in the shape of
    the gradient as well.

    \b
    Example:
      topk-secagg decode round --output sum.pt
    """
    from topk_secagg.steps.decode import decode
    from topk_secagg.storage.workspace import Workspace

    if mean and output is None:
        raise click.UsageError("--mean is about what --output gets; give --output FILE")
    space = Workspace(round_folder)
    with console.progress("decoding") as progress:
        report = decode(space, output, mean=mean, strict=strict, progress=progress)
    console.result("decode", decoded_facts(space, report), *decoded_lines(space, report))
