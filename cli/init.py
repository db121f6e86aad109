"""topk-secagg init."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import Console, answered, size
from .options import (
    confirm_option,
    file_option,
    freezer_option,
    recipients_option,
    required,
    round_argument,
    round_options,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from topk_secagg.protocol.parameters import Parameters
    from topk_secagg.storage.workspace import Workspace


def start_round(
    console: Console,
    root: Path,
    *,
    like: Path | None,
    length: int | None,
    entry: str,
    strip_prefix: str,
    only: tuple[str, ...],
    exclude: tuple[str, ...],
    insecure_seed: int | None,
    distributed: bool = False,
    recipients: Path | None = None,
    freezer: int = 1,
    confirm: bool = False,
    **options: Any,
) -> tuple[Workspace, bool]:
    """Choose parameters and layout, and write session.json if it is new; say what was chosen for what reason."""
    from topk_secagg.gradients.files import read_gradient
    from topk_secagg.steps.init import choose_layout, choose_parameters, init

    required(users=options["users"], survivors=options["survivors"], colluders=options["colluders"])
    layout = choose_layout(like, length, entry=entry, strip_prefix=strip_prefix, only=only, exclude=exclude)
    chosen = choose_parameters(layout.length, **options)
    space, new = init(
        root,
        chosen.parameters,
        layout,
        recipients=recipients,
        freezer=freezer,
        confirm=confirm,
        insecure_seed=insecure_seed,
        distributed=distributed,
    )
    p = chosen.parameters
    if chosen.reason and new:
        console.say(f"construction {chosen.reason}")
    if p.survivors == p.colluders + 1:
        console.warn(
            "U = T + 1: when only U users remain, T of them can subtract their inputs and see that of the last"
        )
    for note in layout.notes:
        console.say(note)
    if like is not None:
        for line in clip_lines(like.name, layout.flatten(read_gradient(like, entry, strip_prefix)), p):
            console.say(line)
    return space, new


def clip_lines(name: str, gradient: npt.NDArray[Any], p: Parameters) -> list[str]:
    """How the clip fits a gradient, and what one step of the quantiser is."""
    import numpy as np

    largest = float(np.abs(gradient).max())
    step = f"one step of the quantiser is {1 / p.scale:.3g}"
    if largest > p.clip:
        return [f"the largest value of {name} is {largest:.4g}, beyond the clip of {p.clip:g}; {step}"]
    return [f"the largest value of {name} is {largest:.4g}, {largest / p.clip:.1%} of the clip; {step}"]


@click.command("init", short_help="Start a round: write session.json.")
@round_argument
@round_options
@file_option("--from", "Take everything but the nonce from another round.", "OTHER_ROUND")
@click.option("--distributed", is_flag=True, help="Every user has its own machine: disk space for one user is enough.")
@recipients_option
@freezer_option
@confirm_option
@answered
def command(console: Console, round_folder: Path, **options: Any) -> None:
    """Start a round: fix what all users agree on, and write ROUND/session.json.

    Everybody works with the same session.json; its SHA-256 names the session. A round that was started
    with the same options is left as it is.

    \b
    Example:
      topk-secagg init round --users 5 --survivors 3 --colluders 1 --top-k 2 --length 4
    """
    from topk_secagg.protocol.constructions import construction
    from topk_secagg.steps.init import init_like

    other = options.pop("from")
    if other is not None:
        given = click.get_current_context()
        for name, value in options.items():
            if given.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE and value != ():
                raise click.UsageError("--from takes everything from the other round; leave out other options")
        space, new = init_like(round_folder, other)
    else:
        space, new = start_round(console, round_folder, **options)
    session = space.session
    p = session.parameters
    c = construction(p)
    console.result(
        "init",
        {
            "session": session.id,
            "path": str(space.session_path),
            "written": new,
            **p.as_dict(),
            "entries": c.entries,
            "left_out": list(session.layout.left_out),
            "share_bytes": c.share_bytes,
            "offline_bytes": c.offline_bytes,
            "sealed": session.recipients is not None,
            "freezer": session.freezer,
            "confirmations": session.confirmations,
            "insecure": bool(session.insecure),
        },
        f"session {session.fingerprint}: {space.session_path}" + ("" if new else " exists already"),
        p.summary(),
        f"offline files: {size(c.share_bytes)} a pair of users, {size(c.offline_bytes)} in all",
    )
