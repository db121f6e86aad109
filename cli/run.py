"""topk-secagg run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .console import Console, answered, size
from .decode import decoded_facts, decoded_lines, mean_option, output_option, warn_decoded
from .init import start_round
from .mask import clipped_lines, kept_lines, say_notes
from .options import (
    UserSet,
    confirm_option,
    file_option,
    freezer_option,
    jobs_option,
    randomness_option,
    recipients_option,
    round_argument,
    round_options,
    saturate_option,
    select_option,
)


@click.command("run", short_help="All steps of all users on one machine.")
@round_argument
@click.argument("more", nargs=-1, metavar="", type=click.Path(path_type=Path, readable=False))
@file_option(
    "--gradients",
    "A folder, whose files are sorted naturally by name, or one file per user, in order.",
    "DIR_OR_FILES...",
    multiple=True,
    required=True,
)
@click.option("--drop-masking", type=UserSet(), metavar="5", default="", help="Users that never mask.")
@click.option("--drop-elimination", type=UserSet(), metavar="4", default="", help="Users that never answer.")
@file_option("--weights", "CSV or JSON: user or file name, weight.")
@file_option("--residuals", "Error feedback: a folder with one residual file per user.", "DIR")
@output_option
@mean_option
@select_option
@saturate_option
@randomness_option
@jobs_option
@recipients_option
@freezer_option
@confirm_option
@file_option("--identities", "The users' identity files, as `keygen` names them, in a sealed round.", "DIR")
@round_options
@answered
def command(
    console: Console,
    round_folder: Path,
    more: tuple[Path, ...],
    gradients: tuple[Path, ...],
    drop_masking: list[int],
    drop_elimination: list[int],
    weights: Path | None,
    residuals: Path | None,
    output: Path | None,
    mean: bool,
    saturate: bool,
    randomness: str,
    select: str,
    jobs: int | None,
    identities: Path | None,
    users: int | None,
    like: Path | None,
    length: int | None,
    entry: str,
    strip_prefix: str,
    max_weight: float,
    **options: Any,
) -> None:
    """A whole round on one machine: every step of every user, through the same files.

    For studies and offline batches. N is the number of gradients unless --users says so, and the layout
    is that of the first gradient unless --like or --length says so. If it was interrupted, the same call
    goes on from there.

    \b
    Example:
      topk-secagg run round --gradients gradients/ --survivors 3 --colluders 1 --density 0.01
    """
    from topk_secagg.gradients.files import check_writable
    from topk_secagg.protocol.constructions import construction
    from topk_secagg.steps.gather import check_output, gradient_files, identity_files, read_weights
    from topk_secagg.steps.run import run

    given = [*gradients, *more]
    if output is not None:
        check_writable(output)
        check_output(output, given)
    elif mean:
        raise click.UsageError("--mean is about what --output gets; give --output FILE")
    if randomness == "os" and options["insecure_seed"] is not None:
        raise click.UsageError("--randomness os and --insecure-seed contradict each other")
    files = gradient_files(given)
    if like is None and length is None:
        like = files[0]
    users = len(files) if users is None else users
    if users != len(files):
        raise click.UsageError(f"{len(files)} gradients for {users} users; one file per user is needed")
    for user in (*drop_masking, *drop_elimination):
        if not 1 <= user <= users:
            raise click.UsageError(f"there is no user {user} to drop out; users are 1 to {users}")
    factors = read_weights(weights, files) if weights else None
    keys = identity_files(identities, users) if identities else None
    space, _ = start_round(
        console,
        round_folder,
        like=like,
        length=length,
        entry=entry,
        strip_prefix=strip_prefix,
        users=users,
        max_weight=max(factors) if factors else max_weight,
        **options,
    )
    with console.phases() as note:
        report = run(
            space,
            files,
            drop_masking=drop_masking,
            drop_elimination=drop_elimination,
            weights=factors,
            residuals=residuals,
            identities=keys,
            randomness=randomness,
            entry=entry,
            strip_prefix=strip_prefix,
            select=select,
            saturate=saturate,
            output=output,
            mean=mean,
            jobs=jobs,
            note=note,
        )
    c = construction(space.session.parameters)
    facts = decoded_facts(space, report.decoded)
    facts["gradients"] = {str(user): str(file) for user, file in enumerate(files, start=1)}
    facts["clipped"] = sum(user.clipped for user in report.masked)
    kept = [user.kept_energy for user in report.masked if user.kept_energy is not None]
    facts["kept_energy"] = min(kept, default=None)
    facts["share_bytes"] = c.share_bytes
    facts["offline_bytes"] = c.offline_bytes
    online = report.decoded.masked_payload + report.decoded.answer_payload
    say_notes(console, report.masked)
    warn_decoded(console, report.decoded)
    console.result(
        "run",
        facts,
        "users: " + ", ".join(f"{user} {file.name}" for user, file in enumerate(files, start=1)),
        *decoded_lines(space, report.decoded),
        *kept_lines(facts["kept_energy"], "every user keeps at least"),
        *clipped_lines(facts["clipped"], space.session.parameters.clip),
        f"a user sends {size(c.share_bytes * (users - 1))} offline and {size(online)} online; "
        f"a plain gradient has {size(4 * space.session.parameters.length)}",
    )
