"""topk-secagg run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .console import Console, answered, size
from .decode import decoded_facts, decoded_lines, mean_option, output_option
from .init import start_round
from .mask import clipped_lines, kept_lines
from .options import (
    UserList,
    randomness_option,
    round_argument,
    round_options,
    saturate_option,
    select_option,
)


@click.command("run", short_help="All steps of all users on one machine.")
@round_argument
@click.argument("more", nargs=-1, metavar="", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--gradients",
    multiple=True,
    required=True,
    metavar="DIR_OR_FILES...",
    type=click.Path(path_type=Path, readable=False),
    help="A folder, or one file per user; users go by the sorted names.",
)
@click.option("--drop-masking", type=UserList(), metavar="5", default="", help="Users that never mask.")
@click.option("--drop-elimination", type=UserList(), metavar="4", default="", help="Users that never answer.")
@output_option
@mean_option
@select_option
@saturate_option
@randomness_option
@round_options
@answered
def command(
    console: Console,
    round_folder: Path,
    more: tuple[Path, ...],
    gradients: tuple[Path, ...],
    drop_masking: list[int],
    drop_elimination: list[int],
    output: Path | None,
    mean: bool,
    saturate: bool,
    randomness: str,
    select: str,
    users: int | None,
    like: Path | None,
    length: int | None,
    entry: str,
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
    from topk_secagg.steps.run import run

    if output is not None:
        check_writable(output)
    elif mean:
        raise click.UsageError("--mean is about what --output gets; give --output FILE")
    if randomness == "os" and options["insecure_seed"] is not None:
        raise click.UsageError("--randomness os and --insecure-seed contradict each other")
    files = gradient_files([*gradients, *more])
    if like is None and length is None:
        like = files[0]
    users = len(files) if users is None else users
    if users != len(files):
        raise click.UsageError(f"{len(files)} gradients for {users} users; one file per user is needed")
    for user in (*drop_masking, *drop_elimination):
        if not 1 <= user <= users:
            raise click.UsageError(f"there is no user {user} to drop out; users are 1 to {users}")
    space, _ = start_round(
        console, round_folder, like=like, length=length, entry=entry, users=users, **options
    )
    report = run(
        space,
        files,
        drop_masking=drop_masking,
        drop_elimination=drop_elimination,
        randomness=randomness,
        entry=entry,
        select=select,
        saturate=saturate,
        output=output,
        mean=mean,
        note=console.detail,
    )
    facts = decoded_facts(space, report.decoded)
    facts["clipped"] = sum(user.clipped for user in report.masked)
    kept = [user.kept_energy for user in report.masked if user.kept_energy is not None]
    facts["kept_energy"] = min(kept, default=None)
    facts["share_bytes"] = space.session.parameters.share_bytes
    facts["offline_bytes"] = space.session.parameters.offline_bytes
    online = report.decoded.masked_payload + report.decoded.answer_payload
    console.result(
        "run",
        facts,
        *decoded_lines(space, report.decoded),
        *kept_lines(facts["kept_energy"], space.session.parameters.construction, select),
        *clipped_lines(facts["clipped"], space.session.parameters.clip),
        f"a user sends {size(facts['share_bytes'] * (users - 1))} offline and {size(online)} online",
    )


def gradient_files(paths: list[Path]) -> list[Path]:
    """The gradient files named, or in the folders named, sorted by name."""
    from topk_secagg.errors import InputMissing
    from topk_secagg.gradients.files import READABLE

    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise InputMissing(f"{path} is not there", "check --gradients")
        if path.is_dir():
            files += [file for file in path.iterdir() if file.suffix in READABLE]
        else:
            files.append(path)
    if not files:
        raise InputMissing(
            f"no gradients in {paths[0]}", f"files ending in {', '.join(READABLE)} are looked for"
        )
    return sorted(files, key=lambda file: (file.name, str(file)))
