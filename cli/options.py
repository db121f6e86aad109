"""Options and arguments that several commands share."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .console import CALL, PROGRAM

if TYPE_CHECKING:
    from topk_secagg.gradients.layout import Layout
    from topk_secagg.protocol.parameters import Parameters

Command = TypeVar("Command", bound=Callable[..., Any])

round_argument = click.argument(
    "round_folder", metavar="ROUND", type=click.Path(path_type=Path, readable=False)
)
user_option = click.option("--user", type=int, required=True, metavar="n", help="Which user this is, from 1.")
randomness_option = click.option(
    "--randomness",
    type=click.Choice(["cipher", "os"]),
    default="cipher",
    show_default=True,
    help="AES-256-CTR keyed by the operating system, or every byte from it.",
)
identity_option = click.option(
    "--identity",
    type=click.Path(path_type=Path, readable=False),
    metavar="FILE",
    help="This user's keys, from `keygen`, in a round with recipients.",
)
entry_option = click.option(
    "--entry", default="", metavar="A.B", help="Which entry of a PyTorch checkpoint holds the tensors."
)
select_option = click.option(
    "--select",
    type=click.Choice(["top", "random"]),
    default="top",
    show_default=True,
    help="Send the largest magnitudes, or coordinates picked at random.",
)
saturate_option = click.option(
    "--saturate", is_flag=True, help="Clamp values beyond the clip, and count them, instead of refusing."
)


class UserList(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5 only
    """User numbers separated by commas."""

    name = "users"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        """1,2,5 as a list."""
        if isinstance(value, list):
            return value
        try:
            return [int(part) for part in str(value).split(",") if part.strip()]
        except ValueError:
            self.fail(f"{value!r} is not a list of users such as 1,2,5", param, ctx)


_ROUND_OPTIONS = (
    click.option("--users", type=int, metavar="N", help="How many users there are."),
    click.option("--survivors", type=int, metavar="U", required=True, help="At least so many survive."),
    click.option("--colluders", type=int, metavar="T", required=True, help="At most so many collude."),
    click.option("--top-k", type=int, metavar="K", help="How many coordinates each user sends."),
    click.option("--density", type=float, metavar="SHARE", help="K as a share of L, such as 0.01."),
    click.option(
        "--like",
        type=click.Path(path_type=Path, readable=False),
        metavar="FILE",
        help="A gradient of the model.",
    ),
    entry_option,
    click.option(
        "--only", multiple=True, metavar="PATTERN", help="Only tensors with such a name. Repeatable."
    ),
    click.option(
        "--exclude",
        multiple=True,
        metavar="PATTERN",
        help="No tensors with such a name. Repeatable.  "
        "[default: *running_mean, *running_var, *num_batches_tracked]",
    ),
    click.option("--length", type=int, metavar="L", help="One flat vector of L coordinates."),
    click.option(
        "--clip",
        type=float,
        metavar="C",
        default=1.0,
        show_default=True,
        help="The largest magnitude that can be sent.",
    ),
    click.option("--field", type=int, metavar="Q", help="A prime below 2^32.  [default: 4294967291]"),
    click.option("--blocks", type=int, metavar="D", help="Blocks per polynomial.  [default: U - T]"),
    click.option(
        "--construction",
        type=click.Choice(["permutation", "rotation"]),
        help="The paper's, or the one with small files.  [default: permutation while below 1 GiB]",
    ),
    click.option("--picks", type=int, metavar="P", help="Picks per bucket in rotation.  [default: 4]"),
    click.option(
        "--elimination",
        type=click.Choice(["dense", "syndrome", "auto"]),
        default="auto",
        show_default=True,
        help="Answer with whole blocks, with their syndromes, or with whichever is smaller.",
    ),
    click.option(
        "--insecure-seed",
        type=int,
        metavar="SEED",
        help="Draw everything from a public seed: reproducible, and not secret at all.",
    ),
)


def round_options(command: Command) -> Command:
    """The options of `init`."""
    for option in reversed(_ROUND_OPTIONS):
        command = option(command)
    return command


def chosen_layout(
    like: Path | None, length: int | None, entry: str, only: tuple[str, ...], exclude: tuple[str, ...]
) -> Layout:
    """The layout that --like or --length asks for."""
    from topk_secagg.gradients.files import read_gradient
    from topk_secagg.gradients.layout import NOT_GRADIENTS, Layout

    if (like is None) == (length is None):
        raise click.UsageError("give either --like FILE or --length L")
    if like is not None:
        return Layout.like(read_gradient(like, entry), only, exclude or NOT_GRADIENTS)
    if entry or only or exclude:
        raise click.UsageError("--entry, --only and --exclude go with --like")
    assert length is not None
    if length < 1:
        raise click.UsageError(f"a gradient of {length} coordinates has nothing to send")
    return Layout.flat(length)


def chosen_parameters(
    layout: Layout,
    *,
    free: int | None = None,
    distributed: bool = False,
    users: int,
    survivors: int,
    colluders: int,
    top_k: int | None,
    density: float | None,
    clip: float,
    field: int | None,
    blocks: int | None,
    construction: str | None,
    picks: int | None,
    elimination: str,
) -> Parameters:
    """The parameters that the options ask for; the paper's construction while its files stay small.

    With `free` bytes on the disk, what is suggested instead fits them.
    """
    from topk_secagg.algebra.field import DEFAULT_FIELD
    from topk_secagg.errors import UsageError
    from topk_secagg.protocol.parameters import Parameters

    if (top_k is None) == (density is None):
        raise click.UsageError("give either --top-k K or --density SHARE")
    if top_k is None:
        assert density is not None
        if not 0 < density <= 1:
            raise click.UsageError(f"a density of {density:g} is not a share between 0 and 1")
        top_k = max(1, round(density * layout.length))
    parameters = Parameters.choose(
        users=users,
        survivors=survivors,
        colluders=colluders,
        top_k=top_k,
        length=layout.length,
        blocks=blocks,
        field=DEFAULT_FIELD if field is None else field,
        construction=construction or "permutation",
        picks=picks,
        elimination=elimination,
        clip=clip,
    )
    if construction is None:
        from topk_secagg.review.plan import AUTOMATIC_LIMIT, advice, choices

        if parameters.offline_bytes >= AUTOMATIC_LIMIT:
            from .console import size

            room = parameters.offline_bytes if free is None else free
            raise UsageError(
                f"the paper's construction needs {size(parameters.offline_bytes)} of offline files",
                advice(choices(parameters)[1:], room, this_call_with, distributed=distributed),
            )
    return parameters


def this_call_with(p: Parameters) -> str:
    """The call as it was typed, with the construction of these parameters: to be pasted."""
    from topk_secagg.review.plan import choosing

    typed: list[str] = click.get_current_context().meta[CALL]
    end = typed.index("--") if "--" in typed else len(typed)
    return shlex.join([PROGRAM, *typed[:end], *choosing(p), *typed[end:]])
