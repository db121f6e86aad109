"""`init`: what all users agree on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from ..algebra.randomness import seeded_key
from ..errors import Refused, UsageError, amount
from ..gradients.files import read_gradient
from ..gradients.layout import NOT_GRADIENTS, Layout
from ..gradients.tensors import Gradient
from ..protocol.offline import choose_points
from ..protocol.parameters import Parameters
from ..storage.atomic import make_folder, mark_done, write_whole
from ..storage.keys import read_recipients
from ..storage.session import Session
from ..storage.workspace import Workspace
from .costs import check_disk, cost

_NONCE_BYTES = 16
_IMPLIED = {
    "picks": "moments",
    "spare": "moments",
    "blocks": "permutation",
}  # constructions that options ask for
_PAPER_LIMIT = 1 << 30  # the paper's construction runs by default while its files stay below this


class RoundOptions(TypedDict, total=False):
    """Further parameters of a round, as `Parameters.choose` takes them, or `density` for K; None is the default."""

    top_k: int | None
    density: float | None
    field: int | None
    blocks: int | None
    construction: str | None
    picks: int | None
    spare: int | None
    clip: float


def choose_parameters(length: int, **options: Any) -> tuple[Parameters, str]:
    """`Parameters.choose`, with K from a density if one is given, and the construction (with the reason for it).

    Options that are None are left out. Without a construction, blocks ask for `permutation`, picks or spare answers
    for `moments`; else the paper's runs while its offline files stay below 1 GiB.
    """
    given = {"length": length} | {
        name: value for name, value in options.items() if value is not None
    }
    if ("top_k" in given) == ("density" in given):
        raise UsageError("either K or a density is needed", topic="top-k")
    if "density" in given:
        density = given.pop("density")
        if not 0 < density <= 1:
            raise UsageError(
                f"a density of {density:g} is not between 0 and 1", "0.01 sends 1 % of the entries"
            )
        given["top_k"] = max(1, round(density * length))
    asked = given.pop(
        "construction", next((_IMPLIED[name] for name in _IMPLIED if name in given), None)
    )
    if asked is not None:
        return Parameters.choose(construction=asked, **given), ""
    paper = Parameters.choose(construction="permutation", **given)
    needed = cost(paper).all_bytes
    if needed < _PAPER_LIMIT:
        return (
            paper,
            f"permutation, the paper's construction: its offline files take {amount(needed)}",
        )
    try:
        moments = Parameters.choose(construction="moments", **given)
    except UsageError as error:
        raise UsageError(
            f"the paper's construction needs {amount(needed)} of offline files, and moments does not fit here",
            "choose a smaller K, or another field",
        ) from error
    small = amount(cost(moments).all_bytes)
    return (
        moments,
        f"moments: its offline files take {small}, the paper's would take {amount(needed)}",
    )


def choose_layout(
    like: Path | None = None,
    length: int | None = None,
    *,
    entry: str = "",
    strip_prefix: str = "",
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> tuple[Layout, Gradient | None]:
    """The layout of a gradient file, with its content, or of one flat vector."""
    if like is not None and length is None:
        gradient = read_gradient(like, entry, strip_prefix)
        return Layout.like(gradient, only, exclude or NOT_GRADIENTS), gradient
    if like is not None or length is None:
        raise UsageError("either a gradient file or a length is needed", topic="like")
    if entry or strip_prefix or only or exclude:
        raise UsageError("entries and names of tensors need a gradient file", topic="like")
    return Layout.flat(length), None  # which `Parameters` refuses if L < 1


def start(
    root: Path,
    parameters: Parameters,
    layout: Layout,
    *,
    recipients: Path | None = None,
    freezer: int = 1,
    confirm: bool = False,
    insecure_seed: int | None = None,
    distributed: bool = False,
) -> tuple[Workspace, bool]:
    """Write session.json into a new round, and say whether it is new: one that was started like this is left alone."""
    keys, points = (
        read_recipients(recipients, parameters.users) if recipients else None,
        choose_points(parameters),
    )
    session = Session(parameters, points, layout, keys, freezer, confirm, insecure_seed)
    return _start(root, session, distributed=distributed)


def init(
    root: Path,
    *,
    users: int,
    survivors: int,
    colluders: int,
    like: Path | None = None,
    length: int | None = None,
    entry: str = "",
    strip_prefix: str = "",
    max_weight: float = 1.0,
    recipients: Path | None = None,
    freezer: int = 1,
    confirm: bool = False,
    **options: Unpack[RoundOptions],
) -> Workspace:
    """Start a round in the folder `root` (`topk_secagg.init`): users (N), of whom at least `survivors` (U) must remain,
    and of whom `colluders` (T) together learn nothing but the sum.

    The layout is that of the gradient file `like`, or one vector of `length`; `top_k` or `density` says how much of it
    each user sends. With `recipients`, a file of public keys, shares are sealed and files signed.
    """
    layout, _ = choose_layout(like, length, entry=entry, strip_prefix=strip_prefix)
    counts = {"users": users, "survivors": survivors, "colluders": colluders}
    parameters, _ = choose_parameters(layout.length, **counts, max_weight=max_weight, **options)
    return start(root, parameters, layout, recipients=recipients, freezer=freezer, confirm=confirm)[
        0
    ]


def init_like(root: Path, other: Path) -> tuple[Workspace, bool]:
    """Start a round like another one: everything in its session.json but the nonce, and nothing else of it."""
    return _start(root, replace(Workspace(other).session, id="", nonce=""), distributed=True)


def _start(root: Path, session: Session, *, distributed: bool) -> tuple[Workspace, bool]:
    seed = session.insecure_seed
    nonce = os.urandom(_NONCE_BYTES) if seed is None else seeded_key(seed, "nonce")[:_NONCE_BYTES]
    space = Workspace(root)
    new = not space.session_path.exists()
    if new:
        check_disk(root, session.parameters, distributed=distributed)
    make_folder(root)
    with (
        space.step_of_all() if new else nullcontext()
    ):  # a second `run` does not stop the first, which decodes now
        if not space.session_path.exists():
            write_whole(space.session_path, replace(session, nonce=nonce.hex()).content())
        elif replace(space.session, id="", nonce="") != session:
            raise Refused(
                f"{space.session_path} exists, with other parameters", "choose another folder"
            )
        else:
            mark_done(space.session_path)
        space.make_rooms()
    return space, new
