"""`init`: what all users agree on."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, TypedDict, Unpack

from ..algebra.randomness import seeded_key
from ..errors import BadData, InputMissing, Refused, UsageError, amount
from ..gradients.files import read_gradient
from ..gradients.layout import NOT_GRADIENTS, Layout
from ..gradients.tensors import Gradient
from ..protocol.constructions import construction
from ..protocol.parameters import Parameters, quantisation_scale
from ..storage.atomic import make_folder, mark_done, write_whole
from ..storage.keys import read_recipients
from ..storage.session import Session
from ..storage.workspace import Workspace
from .arguments import real_number, whole_number
from .costs import check_disk, cost

_NONCE_BYTES = 16
# constructions that options ask for
_IMPLIED = {
    "picks": "moments",
    "spare": "moments",
    "blocks": "permutation",
}
_WHOLE_NUMBERS = {
    "users", "survivors", "colluders", "top_k", "length", "blocks", "field", "picks", "spare"
}  # fmt: skip
_NEEDED = {"users", "survivors", "colluders", "length"}  # which have no default
_REAL_NUMBERS = {"density", "clip", "max_weight"}
_MOST_COORDINATES = 1 << 32  # which is too many; a share of even more may be no float
_DERIVED = {"scale", "buckets"}  # parameters that follow from others
_PAPER_LIMIT = 1 << 30  # the paper's construction runs by default while its files stay below this


class RoundOptions(TypedDict, total=False):
    """Further parameters of a round, as `Parameters.choose` takes them, or `density` for K; None is
    the default."""

    top_k: int | None
    density: float | None
    field: int | None
    blocks: int | None
    construction: str | None
    picks: int | None
    spare: int | None
    clip: float | None


def choose_parameters(length: int, **options: Any) -> tuple[Parameters, str]:
    """`Parameters.choose`, with K from a density if one is given, and the construction (with the
    reason for it).

    Options that are None are left out. Without a construction, blocks ask for `permutation`, picks
    or spare answers for `moments`; else the paper's runs while its offline files stay below 1 GiB.
    """
    given = _checked({"length": length, **options})
    if "top_k" in given and "density" in given:
        raise UsageError("both K and a density are given", topic="top-k")
    if "top_k" not in given and "density" not in given:
        raise UsageError("either K or a density is needed", topic="top-k")
    if "density" in given:
        coordinates = min(given["length"], _MOST_COORDINATES)
        given["top_k"] = max(1, round(given.pop("density") * coordinates))
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
            f"the paper's construction needs {amount(needed)} of offline files, and moments does "
            "not fit here",
            "choose a smaller K, or another field",
        ) from error
    small = amount(cost(moments).all_bytes)
    return (
        moments,
        f"moments: its offline files take {small}, the paper's would take {amount(needed)}",
    )


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """The options that are given, each of the type that it must have."""
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name not in _WHOLE_NUMBERS | _REAL_NUMBERS | {"construction"}:
            raise UsageError(
                f"there is no option {name!r}",
                f"one of {', '.join(sorted(RoundOptions.__annotations__))}",
            )
        if value is None and name not in _NEEDED:
            continue
        if name in _WHOLE_NUMBERS:
            given[name] = whole_number(name, value)
        elif name in _REAL_NUMBERS:
            given[name] = real_number(name, value)
        elif isinstance(value, str):
            given[name] = value
        else:
            raise UsageError("the construction is not given by its name", "give a string")
    if "density" in given:
        _check_density(options["density"])
    return given


def _check_density(density: Any) -> None:
    """Refuse what is no share of the coordinates. The integer 1 may mean 1 % or all of them."""
    if isinstance(density, Integral) and density == 1:
        raise UsageError(
            "a density of 1 may mean 1 % of the entries, or all of them",
            "0.01 sends 1 % of the entries, and 1.0 sends all; or give K",
            "density",
        )
    if not 0 < density <= 1:
        raise UsageError(
            f"a density of {float(density):g} is not between 0 and 1",
            "0.01 sends 1 % of the entries",
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
    """Write session.json into a new round, and say whether it is new: one that was started like
    this is left alone."""
    keys = read_recipients(recipients, parameters.users) if recipients else None
    points = construction(parameters).points()
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
    """Start a round: fix what all users agree on, and write session.json into the folder `root`.

    A round that was started in the same way is left as it is. Give either `like` or `length`, and
    either `top_k` or `density`.

    Arguments:
    root: the folder of the round.
    users: N.
    survivors: U, the users that must remain at least.
    colluders: T, the users that together learn nothing but the sum.
    like: a gradient file, whose names, shapes and types all gradients of the round have.
    length: L, for gradients that are one flat vector.
    entry: the entry of a PyTorch checkpoint that holds the tensors.
    strip_prefix: taken off tensor names that begin with it.
    max_weight: the largest weight that a user may give its gradient.
    recipients: the users' public keys, a line each as `keygen` makes it: seals and signs the files.
    freezer: the user that freezes.
    confirm: whether users must confirm the survivors.
    top_k: K, the coordinates that each user sends; or
    density: K as a share of the gradient's length, such as 0.01.
    field: q, a prime below 2^32.
    blocks: D, in the construction permutation.
    construction: "permutation" (the paper's) or "moments"; by default by the size of the offline
        files.
    picks: P, in the construction moments.
    spare: in the construction moments, pack answers so tightly that only so many may be missing.
    clip: the largest magnitude of a gradient's values.

    Returns the round (`Workspace`), which the other functions take first.
    """
    layout, _ = choose_layout(like, length, entry=entry, strip_prefix=strip_prefix)
    counts = {"users": users, "survivors": survivors, "colluders": colluders}
    parameters, _ = choose_parameters(layout.length, **counts, max_weight=max_weight, **options)
    return start(root, parameters, layout, recipients=recipients, freezer=freezer, confirm=confirm)[
        0
    ]


def init_like(
    root: Path, other: Path, *, clip: float | None = None, clip_from_sum: float | None = None
) -> tuple[Workspace, bool]:
    """Start a round like another one: everything in its session.json but the nonce, and nothing
    else of it.

    The clip may be another one: `clip`, or that of `clip_of_sum` with the factor `clip_from_sum`.
    """
    before = Workspace(other)
    session = replace(before.session, id="", nonce="")
    if clip is not None and clip_from_sum is not None:
        raise UsageError("both a clip and a factor for the sum are given", topic="clip-twice")
    if clip_from_sum is not None:
        clip = clip_of_sum(before, clip_from_sum)
    if clip is not None:
        session = replace(session, parameters=_with_clip(session.parameters, clip))
    return _start(root, session, distributed=True)


def clip_of_sum(space: Workspace, factor: float) -> float:
    """A clip that everybody can compute: factor * (largest magnitude of the sum) / max_weight."""
    # a round that starts anew reads no sum, and need not load what reads it
    from ..gradients.quantise import dequantise, magnitude
    from ..storage import aggregate as aggregate_file
    from ..storage.artifacts import opened

    if not 0 < factor < math.inf:
        raise UsageError(
            f"a factor of {factor:g} for the clip", "give a positive number, such as 2"
        )
    path = space.aggregate_path
    if not path.exists():
        raise InputMissing(
            f"{path} is not there, and the clip comes from the sum in it", "decode that round first"
        )
    with opened(path, aggregate_file.KIND) as artifact:
        total = aggregate_file.parsed(space, artifact).total
    p = space.session.parameters
    largest = magnitude(dequantise(p.fixed_point, total.value))
    if not largest:
        raise BadData(f"{path}: the sum is zero everywhere, and gives no clip", "choose a clip")
    return factor * largest / p.max_weight


def _with_clip(p: Parameters, clip: float) -> Parameters:
    scale = quantisation_scale(p.field, p.users, clip, p.max_weight)
    return replace(p, clip=clip, scale=scale)


def _start(root: Path, session: Session, *, distributed: bool) -> tuple[Workspace, bool]:
    seed = session.insecure_seed
    nonce = os.urandom(_NONCE_BYTES) if seed is None else seeded_key(seed, "nonce")[:_NONCE_BYTES]
    space = Workspace(root)
    new = not space.session_path.exists()
    if new:
        check_disk(root, session.parameters, distributed=distributed)
    make_folder(root)
    # a second `run` does not stop the first, which decodes now
    with space.step_of_account() if new else nullcontext():
        if not space.session_path.exists():
            write_whole(space.session_path, replace(session, nonce=nonce.hex()).content())
        elif replace(space.session, id="", nonce="") != session:
            raise Refused(
                f"{space.session_path} exists, with other parameters: "
                + ", ".join(_differences(space.session, session)),
                "choose another folder",
            )
        else:
            mark_done(space.session_path)
        space.make_rooms()
    return space, new


def _differences(there: Session, here: Session) -> Iterator[str]:
    """What two sessions disagree about, as phrases; not what follows from other differences."""
    old = vars(there.parameters)
    new = vars(here.parameters)
    names = [name for name in old if old[name] != new[name]]
    for name in [name for name in names if name not in _DERIVED] or names:
        yield f"{name} is {_said(old[name])} there and {_said(new[name])} here"
    for name in ("freezer", "confirm", "insecure_seed"):
        old_value = getattr(there, name)
        new_value = getattr(here, name)
        if old_value != new_value:
            yield f"{name} is {_said(old_value)} there and {_said(new_value)} here"
    if there.recipients != here.recipients:
        yield "the users' keys differ"
    if there.layout != here.layout:
        yield "the layout of the gradient differs"
    if there.points != here.points and not names:
        yield "the points differ"


def _said(value: Any) -> str:
    return "not given" if value is None else repr(value)
