"""topk-secagg run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import topk_secagg as ts

from . import options as o
from .console import Console, answered, picked, size
from .decode import described
from .init import start_round
from .mask import selection_lines

_OF_RUN = ("drop_masking", "drop_elimination", "residuals", "output", "mean", "select", "saturate", "jobs")


@click.command("run", short_help="All steps of all users on one machine.")
@o.round_argument
@click.argument("more", nargs=-1, metavar="", type=o.PATH)
@o.file_option(
    "--gradients",
    "A folder, whose files are sorted naturally by name, or one file per user, in order.",
    "DIR_OR_FILES...",
    multiple=True,
    required=True,
)
@o.value_option("--drop-masking", "5", "Users that never mask.", o.UserSet(), default="")
@o.value_option("--drop-elimination", "4", "Users that never answer.", o.UserSet(), default="")
@o.file_option("--weights", "CSV or JSON: user or file name, weight.")
@o.file_option("--residuals", "Error feedback: a folder with one residual file per user.", "DIR")
@o.output_option
@o.mean_option
@o.select_option
@o.saturate_option
@o.randomness_option
@o.jobs_option
@o.keys_options
@o.file_option("--identities", "The users' identity files, as `keygen` names them, in a sealed round.", "DIR")
@o.round_options
@answered
def command(
    console: Console,
    round_folder: Path,
    more: tuple[Path, ...],
    gradients: tuple[Path, ...],
    weights: Path | None,
    identities: Path | None,
    randomness: str,
    **options: Any,
) -> None:
    """A whole round on one machine: every step of every user, through the same files.

    For studies and offline batches. N is the number of gradients unless --users says so, and the layout
    is that of the first gradient unless --like or --length says so. The same call
    resumes an interrupted round.

    \b
    Example:
      topk-secagg run round --gradients gradients/ --survivors 3 --colluders 1 --density 0.01
    """
    from topk_secagg.gradients.files import check_writable
    from topk_secagg.protocol.constructions import construction
    from topk_secagg.steps.gather import check_output, gradient_files, identity_files, read_weights

    given, how = [*gradients, *more], {name: options.pop(name) for name in _OF_RUN}
    if how["output"] is not None:
        check_writable(how["output"])
        check_output(how["output"], given)
    elif how["mean"]:
        raise click.UsageError("--mean is about what --output gets; give --output FILE")
    if randomness == "os" and options["insecure_seed"] is not None:
        raise click.UsageError("--randomness os and --insecure-seed contradict each other")
    files = gradient_files(given)
    if options["like"] is None and options["length"] is None:
        options["like"] = files[0]
    if options["users"] not in (None, len(files)):
        raise click.UsageError(f"{len(files)} gradients for {options['users']} users; one file per user is needed")
    users = options["users"] = len(files)
    for user in (*how["drop_masking"], *how["drop_elimination"]):
        if not 1 <= user <= users:
            raise click.UsageError(f"there is no user {user} to drop out; users are 1 to {users}")
    factors = read_weights(weights, files) if weights else None
    if factors:
        options["max_weight"] = max(factors)
    keys = identity_files(identities, users) if identities else None
    space, _ = start_round(console, round_folder, **options)
    with console.phases() as note:
        how |= {"weights": factors, "identities": keys, "randomness": randomness, "note": note}
        report = ts.run(space, files, entry=options["entry"], strip_prefix=options["strip_prefix"], **how)
    p, c = space.session.parameters, construction(space.session.parameters)
    console.notes({user.user: user.notes for user in report.masked})
    facts, lines = described(console, space, report.decoded)
    by_user = dict(enumerate(files, start=1))
    kept = min((user.kept_energy for user in report.masked if user.kept_energy is not None), default=None)
    clipped = sum(user.clipped for user in report.masked)
    facts |= {"gradients": by_user, "clipped": clipped, "kept_energy": kept}
    facts |= picked(c, "share_bytes", "offline_bytes")
    online = report.decoded.masked_payload + report.decoded.answer_payload
    console.result(
        "run",
        facts,
        "users: " + ", ".join(f"{user} {file.name}" for user, file in by_user.items()),
        *lines,
        *selection_lines(p, kept, clipped, "every user keeps at least"),
        f"a user sends {size(c.share_bytes * (users - 1))} offline and {size(online)} online; "
        f"a plain gradient has {size(4 * p.length)}",
        space=space,
    )
