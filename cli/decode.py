"""topk-secagg decode."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import PROGRAM, Console, answered, rates, warn_foreign_secrets
from .console import users as listed
from .options import file_option, round_argument

if TYPE_CHECKING:
    from topk_secagg.steps.decode import DecodeReport
    from topk_secagg.storage.workspace import Workspace

output_option = file_option("--output", "Write the sum as .pt, .safetensors, .npz or .npy too.")
mean_option = click.option(
    "--mean", is_flag=True, help="Divide what --output gets by the sum of the survivors' weights (1 each by default)."
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
        "left_out": {str(n): why for n, why in report.left_out.items()},
        "nonzero": report.nonzero,
        "beyond_clip": report.beyond,
        "blocks": report.blocks,
        "masked_payload_bytes": report.masked_payload,
        "R1": measured_r1(p, report.masked_payload),
        "R1_theorem": theorem_r1(p),
        "answer_payload_bytes": report.answer_payload,
        "R2": measured_r2(p, report.answer_payload),
        "R2_theorem": theorem_r2(p),
        "checked_answers": len(report.answering) - report.quorum,
        "insecure": bool(space.session.insecure),
    }


def decoded_lines(space: Workspace, report: DecodeReport) -> list[str]:
    """The same for people."""
    from topk_secagg.protocol.rates import measured_r1, measured_r2, theorem_r1, theorem_r2

    p = space.session.parameters
    return [
        f"sum of users {listed(report.survivors)}, decoded from {listed(report.answering)}: {report.path}",
        f"{report.nonzero} of {p.length} coordinates are not zero",
        f"X: {rates(report.masked_payload, 'R1', measured_r1(p, report.masked_payload), theorem_r1(p))}",
        f"Y: {rates(report.answer_payload, 'R2', measured_r2(p, report.answer_payload), theorem_r2(p))}",
        _agreement(report, len(report.answering) - report.quorum),
    ]


def warn_decoded(console: Console, report: DecodeReport) -> None:
    """What deserves attention beyond the sum."""
    for n, why in report.left_out.items():
        console.warn(f"the answer of user {n} is left out: {why}")
    if report.beyond:
        console.warn(
            f"{report.beyond} coordinates are larger than the survivors' clipped gradients can make them: "
            "a user cheated, or a share is wrong"
        )


def _agreement(report: DecodeReport, spare: int) -> str:
    if report.corrected:
        return f"WRONG ANSWERS from user {listed(report.corrected)}, left out; the sum is exact without them"
    if spare:
        return f"{spare} more answers than needed, and all agree"
    return "no more answers than needed: nothing could be checked"


@click.command("decode", short_help="Decode the aggregate.")
@round_argument
@output_option
@mean_option
@click.option("--strict", is_flag=True, help="Refuse if any answer is damaged or disagrees.")
@answered
def command(console: Console, round_folder: Path, output: Path | None, mean: bool, strict: bool) -> None:
    """Decode the sum of the survivors' inputs from the answers in elimination/.

    Writes aggregate.h5: the sum, sparse, in the field and as reals. --output writes it in the shape of
    the gradient as well. An answer that cannot be read counts as missing.

    \b
    Example:
      topk-secagg decode round --output sum.pt
    """
    from topk_secagg.errors import TooFewSurvivors
    from topk_secagg.steps.decode import decode
    from topk_secagg.storage.workspace import Workspace

    if mean and output is None:
        raise click.UsageError("--mean is about what --output gets; give --output FILE")
    space = Workspace(round_folder)
    try:
        with console.progress("decoding") as progress:
            report = decode(space, output, mean=mean, strict=strict, progress=progress)
    except TooFewSurvivors as error:
        if error.topic == "fallback":
            call = shlex.join([PROGRAM, "eliminate", str(round_folder)])
            error.hint = f"{error.hint}: {call} --user n --fallback"
        raise
    warn_decoded(console, report)
    warn_foreign_secrets(console, space.foreign_secrets())
    console.result("decode", decoded_facts(space, report), *decoded_lines(space, report))
