"""topk-secagg init."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import topk_secagg as ts

from .console import Console, answered, picked, size
from .options import file_option, flag_option, keys_options, round_argument, round_options

if TYPE_CHECKING:
    import numpy.typing as npt

    from topk_secagg.gradients.layout import Layout

_NOT_CHOSEN = ("recipients", "freezer", "confirm", "insecure_seed", "distributed")  # that `plan` does not need
_OF_LAYOUT = ("like", "length", "entry", "strip_prefix", "only", "exclude")


def chosen(**options: Any) -> tuple[Layout, tuple[ts.Parameters, str], npt.NDArray[Any] | None]:
    """The layout and the parameters that the options of `init` ask for, and the gradient that --like names."""
    from topk_secagg.gradients.files import read_gradient
    from topk_secagg.steps.init import choose_layout, choose_parameters

    for name in ("users", "survivors", "colluders"):
        if options[name] is None:
            raise click.UsageError(f"Missing option '--{name}'.")
    shape = {name: options.pop(name) for name in _OF_LAYOUT}
    layout, like = choose_layout(**shape), shape["like"]
    parameters = choose_parameters(layout.length, **options)
    gradient = layout.flatten(read_gradient(like, shape["entry"], shape["strip_prefix"])) if like else None
    return layout, parameters, gradient


def start_round(console: Console, root: Path, **options: Any) -> tuple[ts.Workspace, bool]:
    """Choose parameters and layout, and write session.json if it is new; say what was chosen for what reason."""
    from topk_secagg.steps.init import init

    how = {name: options.pop(name) for name in _NOT_CHOSEN if name in options}
    layout, (p, reason), gradient = chosen(**options)
    space, new = init(root, p, layout, **how)
    if reason and new:
        console.say(f"construction {reason}")
    if p.survivors == p.colluders + 1:
        console.warn(
            "U = T + 1: when only U users remain, T of them can subtract their inputs and see that of the last"
        )
    for note in layout.notes:
        console.say(note)
    if gradient is not None:
        console.say(clip_line(options["like"].name, gradient, p))
    return space, new


def clip_line(name: str, gradient: npt.NDArray[Any], p: ts.Parameters) -> str:
    """How the clip fits a gradient, and what one step of the quantiser is."""
    largest = float(abs(gradient).max())
    fits = f"beyond the clip of {p.clip:g}" if largest > p.clip else f"{largest / p.clip:.1%} of the clip"
    return f"the largest value of {name} is {largest:.4g}, {fits}; one step of the quantiser is {1 / p.scale:.3g}"


@click.command("init", short_help="Start a round: write session.json.")
@round_argument
@round_options
@file_option("--from", "Take everything but the nonce from another round.", "OTHER_ROUND")
@flag_option("--distributed", "Every user has its own machine: disk space for one user is enough.")
@keys_options
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
    p, c = session.parameters, construction(session.parameters)
    console.result(
        "init",
        {
            "path": space.session_path,
            "written": new,
            **p.as_dict(),
            **picked(c, "entries", "share_bytes", "offline_bytes"),
            "left_out": session.layout.left_out,
            "sealed": session.recipients is not None,
            **picked(session, "freezer", "confirmations"),
        },
        f"session {session.fingerprint}: {space.session_path}" + ("" if new else " exists already"),
        p.summary(),
        f"offline files: {size(c.share_bytes)} a pair of users, {size(c.offline_bytes)} in all",
        space=space,
    )
