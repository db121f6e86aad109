"""What the options of a round ask for: its parameters and its layout. Nothing is written here."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypedDict, get_args, get_type_hints

from ..errors import Advice, UsageError, about, amount
from ..gradients.arrays import Given, Vector, read_any
from ..gradients.layout import NOT_GRADIENTS, Layout
from ..gradients.tensors import Gradient, is_path
from ..protocol.constructions import construction
from ..protocol.family import find_family
from ..protocol.parameters import KEYS, PERMUTATION, SHARES, SKETCH, Parameters
from .arguments import AnyPath, path_of, patterns, real_number, whole_number
from .costs import footprint

_NEEDED = {"users", "survivors", "colluders", "length"}  # which have no default
_MOST_COORDINATES = 1 << 32  # which is too many; a share of even more may be no float
_PAPER_LIMIT = 1 << 28  # bytes of files, below which the paper's construction is the default


class RoundOptions(TypedDict, total=False):
    """Further parameters of a round, as `Parameters.choose` takes them, or `density` for K; None is
    the default."""

    top_k: int | None
    density: float | None
    field: int | None
    construction: str | None
    picks: int | None
    dealing: str | None
    clip: float | None


class PlanOptions(RoundOptions, total=False):
    """What a round costs follows from these; None is the default. `users`, `survivors` and
    `colluders` have none."""

    users: int | None
    survivors: int | None
    colluders: int | None
    like: Given
    length: int | None
    entry: str | None
    strip_prefix: str | None
    only: Sequence[str] | str | None
    exclude: Sequence[str] | str | None
    max_weight: float | None


class SessionOptions(PlanOptions, total=False):
    """All that a round can be started with; None is the default."""

    recipients: AnyPath | None
    freezer: int | None
    confirm: bool
    feedback_decay: float | None


_SESSION_OPTIONS = frozenset(SessionOptions.__annotations__)
_PARAMETER_OPTIONS = frozenset(RoundOptions.__annotations__) | {
    "users", "survivors", "colluders", "max_weight"
}  # fmt: skip
# int, float or str, for each option that makes a parameter
_KINDS: dict[str, type] = {
    name: get_args(kind)[0]
    for name, kind in get_type_hints(PlanOptions).items()
    if name in _PARAMETER_OPTIONS | {"length"}
}


def choose_parameters(length: int, **options: Any) -> tuple[Parameters, str]:
    """`Parameters.choose`, with K from a density if one is given, and the construction (with the
    reason for it).

    Options that are None are left out. Without a construction, the paper's runs while its offline
    files stay below 256 MiB; else it is `sketch`. Keys are dealt where a family of blocks is found,
    and else shares are written out.
    """
    given = _checked({"length": length, **options})
    if "top_k" in given and "density" in given:
        raise UsageError("both K and a density are given", advice=Advice.TOP_K)
    if "top_k" not in given and "density" not in given:
        raise UsageError("either K or a density is needed", advice=Advice.TOP_K)
    if "density" in given:
        given["top_k"] = _coordinates(given.pop("density"), given["length"])
    chosen, reason = _chosen_construction(given)
    # who did not name the construction should know whose rule it is
    with about(f"{chosen} does not fit here") if reason else nullcontext():
        p = Parameters.choose(construction=chosen, **given)
    if p.dealing != KEYS or find_family(p, construction(p).points()) is not None:
        return p, reason
    if given.get("dealing") == KEYS:
        raise UsageError(
            f"no family of keys was found for N = {p.users}, U = {p.survivors}, T = {p.colluders}",
            "deal by shares",
            Advice.DEALING,
            dealing=SHARES,
        )
    by_shares = Parameters.choose(construction=chosen, **given | {"dealing": SHARES})
    note = "shares are written out: no small family of keys was found for so many users"
    return by_shares, f"{reason}; {note}" if reason else note


def _chosen_construction(given: dict[str, Any]) -> tuple[str, str]:
    """The construction that the options ask for, and why; takes what only this uses out of
    them."""
    asked = given.pop("construction", None)
    if asked is not None:
        return asked, ""
    if "picks" in given or given.get("dealing") == KEYS:
        return SKETCH, ""
    needed = footprint(Parameters.choose(construction=PERMUTATION, **given)).all_bytes
    if needed < _PAPER_LIMIT:
        return (
            PERMUTATION,
            f"permutation, the paper's construction: its offline files take {amount(needed)}",
        )
    return SKETCH, f"{SKETCH}: the paper's offline files would take {amount(needed)} in all"


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """The options that are given, each of the type that it must have."""
    given: dict[str, Any] = {}
    for name, value in options.items():
        kind = _KINDS.get(name)
        if kind is None:
            raise UsageError(
                f"there is no option {name!r}",
                f"one of {', '.join(sorted(RoundOptions.__annotations__))}",
            )
        if value is None and name not in _NEEDED:
            continue
        if kind is int:
            given[name] = whole_number(name, value)
        elif kind is float:
            given[name] = real_number(name, value)
        elif isinstance(value, str):
            given[name] = value
        else:
            raise UsageError(f"the {name} is not given by its name", "give a string")
    if "density" in given:
        _check_density(options["density"])
    return given


def _coordinates(density: float, length: int) -> int:
    """K as a share of L, at least one."""
    return max(1, round(density * min(length, _MOST_COORDINATES)))


def _check_density(density: Any) -> None:
    """Refuse what is no share of the coordinates. The integer 1 may mean 1 % or all of them."""
    if isinstance(density, Integral) and density == 1:
        raise UsageError(
            "a density of 1 may mean 1 % of the entries, or all of them",
            "0.01 sends 1 % of the entries, and 1.0 sends all; or give K",
            Advice.DENSITY,
        )
    if not 0 < density <= 1:
        raise UsageError(
            f"a density of {float(density):g} is not between 0 and 1",
            "0.01 sends 1 % of the entries",
        )


def choose_layout(
    like: Given = None,
    length: int | None = None,
    *,
    entry: str = "",
    strip_prefix: str = "",
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> tuple[Layout, Gradient | None]:
    """The layout of a gradient (a file, or in memory), with its content, or of one flat vector."""
    if like is not None and length is None:
        gradient = read_any(like, entry, strip_prefix)
        return Layout.like(gradient, only, exclude or NOT_GRADIENTS), gradient
    if like is not None:
        raise UsageError("both a gradient file and a length are given", advice=Advice.LIKE)
    if length is None:
        raise UsageError("either a gradient file or a length is needed", advice=Advice.LIKE)
    if entry or strip_prefix or only or exclude:
        raise UsageError("entries and names of tensors need a gradient file", advice=Advice.LIKE)
    # an L below 1 is refused by `Parameters`
    return Layout.flat(whole_number("length", length)), None


@dataclass(frozen=True)
class Choice:
    """What the options of a round ask for: its layout and parameters, why it has this construction,
    and the example gradient as a flat vector, if there is one. `notes` say how that was read, and
    how the clip fits it."""

    layout: Layout
    parameters: Parameters
    reason: str
    gradient: Vector | None
    notes: tuple[str, ...]


def chosen_layout(options: PlanOptions) -> tuple[Layout, Gradient | None]:
    """`choose_layout` with those of the options that are about it."""
    for name in options:
        if name not in _SESSION_OPTIONS:
            raise UsageError(
                f"there is no option {name!r}", f"one of {', '.join(sorted(_SESSION_OPTIONS))}"
            )
    for name in ("users", "survivors", "colluders"):
        if options.get(name) is None:
            raise UsageError(f"{name} is not given", "give N, U and T")
    return choose_layout(
        options.get("like"),
        options.get("length"),
        entry=options.get("entry") or "",
        strip_prefix=options.get("strip_prefix") or "",
        only=patterns("only", options.get("only")),
        exclude=patterns("exclude", options.get("exclude")),
    )


def chosen_parameters(layout: Layout, options: PlanOptions) -> tuple[Parameters, str]:
    """`choose_parameters` with those of the options that are about them."""
    numbers = {name: value for name, value in options.items() if name in _PARAMETER_OPTIONS}
    return choose_parameters(layout.length, **numbers)


def choose_round(options: PlanOptions) -> Choice:
    """What these options ask for; nothing is written."""
    layout, tensors = chosen_layout(options)
    parameters, reason = chosen_parameters(layout, options)
    if tensors is None:
        return Choice(layout, parameters, reason, gradient=None, notes=())
    from ..gradients.quantise import magnitude

    gradient = layout.flatten(tensors)
    fits = _fit_note(options.get("like"), magnitude(gradient), parameters)
    return Choice(
        layout=layout,
        parameters=parameters,
        reason=reason,
        gradient=gradient,
        notes=(*tensors.notes, fits),
    )


def _fit_note(like: Given, largest: float, p: Parameters) -> str:
    """How the clip fits the example gradient, and what one step of the quantiser is."""
    name = path_of("like", like).name if is_path(like) else "the gradient"
    fits = (
        f"beyond the clip of {p.clip:g}"
        if largest > p.clip
        else f"{largest / p.clip:.1%} of the clip"
    )
    step = 1 / p.scale
    return (
        f"the largest value of {name} is {largest:.4g}, {fits}; one step of the quantiser is "
        f"{step:.3g}"
    )


def changed_parameters(before: Parameters, length: int, given: dict[str, Any]) -> Parameters:
    """The parameters of a round with some of them changed."""
    changed = _checked({"length": length, **given})
    if "density" in changed:
        changed["top_k"] = _coordinates(changed.pop("density"), length)
    return before.changed(**changed)


def given_options(options: SessionOptions) -> dict[str, Any]:
    """Those of the options that say something."""

    def says_nothing(value: Any) -> bool:
        empty = isinstance(value, str | tuple | list) and not value
        return value is None or value is False or empty

    return {name: value for name, value in options.items() if not says_nothing(value)}
