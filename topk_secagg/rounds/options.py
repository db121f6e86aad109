"""What the options of a round ask for: its parameters and its layout. Nothing is written here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from numbers import Integral
from typing import Any, TypedDict, get_args, get_type_hints

from ..algebra.field import SMALL_FIELD
from ..errors import Advice, UsageError, about, amount
from ..gradients.arrays import Given, Vector, read_any
from ..gradients.layout import NOT_GRADIENTS, Layout
from ..gradients.low_rank import OTHER_SIDE
from ..gradients.quantise import FixedPoint, magnitude
from ..gradients.reduce import Reduction
from ..gradients.tensors import Gradient, is_path
from ..protocol.constructions import construction
from ..protocol.family import find_family
from ..protocol.parameters import KEYS, PERMUTATION, SHARES, SKETCH, Parameters
from ..storage.session import Session
from .arguments import AnyPath, path_of, patterns, real_number, whole_number
from .costs import footprint

_NEEDED = {"users", "survivors", "colluders"}  # which have no default
_MOST_COORDINATES = 1 << 32  # which is too many; a share of even more may be no float
_FEWEST_STEPS = 4  # for a clip, with symbols of one byte
# options that say how a gradient is reduced, of which one is given
_ARTICLES = {"top_k": "K", "density": "a density", "rank": "a rank", "whole": "whole"}
OF_REDUCTION = {*_ARTICLES, "whole_tensors"}
# sizes that `plan` shows beside the one that is asked for
_USUAL: tuple[dict[str, Any], ...] = (
    *({"density": density} for density in (0.001, 0.01, 0.1)),
    *({"rank": rank} for rank in (1, 2, 4, 8)),
    {"whole": True},
)
_NOT_PARAMETERS = {"whole", "whole_tensors", "clip"}
_PAPER_LIMIT = 1 << 28  # bytes of files, below which the paper's construction is the default


class SizeOptions(TypedDict, total=False):
    """How a gradient is reduced: one of these."""

    top_k: int | None
    density: float | None
    rank: int | None
    whole: bool | None


class OtherOptions(TypedDict, total=False):
    """Further parameters of a round, as `Parameters.choose` takes them; None is the default."""

    whole_tensors: Sequence[str] | str | None
    field: int | None
    construction: str | None
    picks: int | None
    dealing: str | None
    clip: float | None


class RoundOptions(SizeOptions, OtherOptions, total=False):
    """What is summed, and how."""


class UsersOptions(OtherOptions, total=False):
    """What a round costs follows from these, and from how a gradient is reduced; None is the
    default. `users`, `survivors` and `colluders` have none."""

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


class PlanOptions(SizeOptions, UsersOptions, total=False):
    """All that the cost of a round follows from."""


class SessionOptions(PlanOptions, total=False):
    """All that a round can be started with; None is the default."""

    recipients: AnyPath | None
    freezer: int | None
    confirm: bool
    context: AnyPath | None
    weight_name: str | None
    feedback_decay: float | None


_SESSION_OPTIONS = frozenset(SessionOptions.__annotations__)
_PARAMETER_OPTIONS = frozenset(RoundOptions.__annotations__) | {
    "users", "survivors", "colluders", "max_weight"
}  # fmt: skip
# int, float or str, for each option that makes a parameter
_KINDS: dict[str, type] = {
    name: get_args(kind)[0]
    for name, kind in get_type_hints(PlanOptions).items()
    if name in _PARAMETER_OPTIONS - _NOT_PARAMETERS
}


def choose_reduction(layout: Layout, options: Mapping[str, Any]) -> Reduction:
    """How the tensors of a layout are reduced: picked from, projected, or whole."""
    given = _one_of(_reducing(options))
    if not given:
        raise UsageError("either K, a density or a rank is needed", advice=Advice.TOP_K)
    shapes = [slot.shape for slot in layout.slots]
    whole = whole_positions(layout, options.get("whole_tensors"))
    if "rank" in given:
        return _low_rank(shapes, given["rank"], whole)
    if "whole" in given or _is_all(layout, whole, given, options):
        return Reduction.whole(shapes)
    return Reduction.top_k(shapes, whole)


def _low_rank(shapes: Sequence[tuple[int, ...]], rank: Any, whole: set[int]) -> Reduction:
    """Refuse a rank for which there is no matrix."""
    reduction = Reduction.of(shapes, whole_number("rank", rank), whole=whole)
    if not reduction.has_basis:
        raise UsageError(
            f"the gradient has no matrix that a rank of {rank} would make smaller",
            "send everything, or choose a smaller rank",
            Advice.WHOLE,
        )
    return reduction


def _reducing(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options that say how a gradient is reduced."""
    named = {name: options.get(name) for name in _ARTICLES}
    if not isinstance(named["whole"], bool | None):
        raise UsageError("whole is neither true nor false", "give True, or leave it out")
    return {
        name: value for name, value in named.items() if value is not None and value is not False
    }


def _one_of(given: dict[str, Any]) -> dict[str, Any]:
    """Refuse two ways to reduce a gradient."""
    if len(given) > 1:
        both = " and ".join(_ARTICLES[name] for name in given)
        raise UsageError(f"both {both} are given", advice=Advice.TOP_K)
    return given


def _is_all(
    layout: Layout, whole: set[int], given: Mapping[str, Any], options: Mapping[str, Any]
) -> bool:
    """Whether all entries are asked for. (The paper's construction picks them all.)"""
    if options.get("construction") == PERMUTATION:
        return False
    if "density" in given:
        _check_density(given["density"])
        return real_number("density", given["density"]) == 1
    picked_from = layout.length - sum(layout.slots[at].size for at in whole)
    return given.get("top_k") == picked_from


def whole_positions(layout: Layout, given: Any) -> set[int]:
    """The tensors whose names match one of the patterns; each of these must match something."""
    found: set[int] = set()
    for pattern in patterns("whole_tensors", given):
        matching = {
            at
            for at, slot in enumerate(layout.slots)
            if any(fnmatchcase(name, pattern) for name in slot.names)
        }
        if not matching:
            raise UsageError(
                f"no tensor of the gradient has a name like {pattern!r:.60}", advice=Advice.NAMES
            )
        found |= matching
    return found


def choose_parameters(reduction: Reduction, options: Mapping[str, Any]) -> ChosenParameters:
    """`Parameters.choose` for a reduction, with K from a density if one is given, and the
    construction (with the reason for it).

    Options that are None are left out. Without a construction, the paper's runs while its offline
    files stay below 256 MiB; else it is `sketch`. Keys are dealt where a family of blocks is found,
    and else shares are written out.
    """
    given = _checked(options)
    notes = []
    if "density" in given:
        given["top_k"] = _coordinates(given.pop("density"), reduction)
    if reduction.rank is not None:
        given.pop("rank")
        if "field" not in given:
            given["field"] = SMALL_FIELD
            notes.append(f"symbols have two bytes: the field is {SMALL_FIELD} by default")
    if not reduction.is_top_k:
        given.pop("top_k", None)
    sizes: dict[str, Any] = {"length": reduction.length, "whole": reduction.sent_whole}
    chosen, reason = _chosen_construction(reduction, given, sizes)
    # who did not name the construction should know whose rule it is
    with about(f"{chosen} does not fit here") if reason else nullcontext():
        p = Parameters.choose(construction=chosen, **given, **sizes)
    _check_steps(p)
    reduction.check(p.field)
    if p.dealing != KEYS or find_family(p, construction(p).points()) is not None:
        return ChosenParameters(p, reason, tuple(notes))
    if given.get("dealing") == KEYS:
        raise UsageError(
            f"no family of keys was found for N = {p.users}, U = {p.survivors}, T = {p.colluders}",
            "deal by shares",
            Advice.DEALING,
            dealing=SHARES,
        )
    by_shares = Parameters.choose(construction=chosen, **given | {"dealing": SHARES}, **sizes)
    note = "shares are written out: no small family of keys was found for so many users"
    reasons = f"{reason}; {note}" if reason else note
    return ChosenParameters(by_shares, reasons, tuple(notes))


def _check_steps(p: Parameters) -> None:
    """Refuse symbols of one byte with too few steps to say anything."""
    steps = (p.field - 1) // 2 / (p.users * p.max_weight)
    if p.symbol_bytes == 1 and steps < _FEWEST_STEPS:
        raise UsageError(
            f"a field of {p.field} elements leaves {steps:.2g} steps for a clip of "
            f"{p.users} users with weights up to {p.max_weight:g}",
            f"at least {_FEWEST_STEPS} are needed: choose a larger field, such as {SMALL_FIELD}",
        )


def _chosen_construction(
    reduction: Reduction, given: dict[str, Any], sizes: dict[str, Any]
) -> tuple[str, str]:
    """The construction that the options ask for, and why; takes what only this uses out of
    them."""
    asked = given.pop("construction", None)
    if reduction.sent_whole:
        if asked == PERMUTATION:
            raise UsageError(
                "the construction permutation has neither low rank nor whole tensors",
                "leave the construction out",
            )
        return asked or SKETCH, ""
    if asked is not None:
        return asked, ""
    if "picks" in given or given.get("dealing") == KEYS:
        return SKETCH, ""
    paper = Parameters.choose(construction=PERMUTATION, **given, **sizes)
    needed = footprint(paper).all_bytes
    if needed < _PAPER_LIMIT:
        return (
            PERMUTATION,
            f"permutation, the paper's construction: its offline files take {amount(needed)}",
        )
    return SKETCH, f"{SKETCH}: the paper's offline files would take {amount(needed)} in all"


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are given, each of the type that it must have."""
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name in _NOT_PARAMETERS:
            continue
        check_known([name], _KINDS)
        kind = _KINDS[name]
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


def _coordinates(density: float, reduction: Reduction) -> int:
    """K as a share of the entries that are picked from, at least one."""
    picked_from = reduction.length - reduction.sent_whole
    return max(1, round(density * min(picked_from, _MOST_COORDINATES)))


def _check_density(density: Any) -> None:
    """Refuse what is no share of the coordinates. The integer 1 may mean 1 % or all of them."""
    share = real_number("density", density)
    if isinstance(density, Integral) and share == 1:
        raise UsageError(
            "a density of 1 may mean 1 % of the entries, or all of them",
            "0.01 sends 1 % of the entries, and 1.0 sends all; or give K",
            Advice.DENSITY,
        )
    if not 0 < share <= 1:
        raise UsageError(
            f"a density of {share:g} is not between 0 and 1",
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
class ChosenParameters:
    """The parameters of a round, why it has this construction, and what else was chosen for it."""

    parameters: Parameters
    reason: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """What the options of a round ask for: its layout, reduction and parameters, a clip for each
    tensor, why it has this construction, and the example gradient as a flat vector, if there is
    one. `notes` say how that was read, and how the clip fits it."""

    layout: Layout
    reduction: Reduction
    parameters: Parameters
    clips: tuple[float, ...]
    reason: str
    gradient: Vector | None
    notes: tuple[str, ...]

    @property
    def fixed_point(self) -> FixedPoint:
        """How the round writes reals in its field."""
        return self.parameters.fixed_point(self.reduction.clip_runs(self.clips))


def check_known(options: Iterable[str], known: Collection[str]) -> None:
    """Refuse an option that does not exist."""
    for name in options:
        if name not in known:
            raise UsageError(f"there is no option {name!r}", f"one of {', '.join(sorted(known))}")


def chosen_layout(options: PlanOptions) -> tuple[Layout, Gradient | None]:
    """`choose_layout` with those of the options that are about it."""
    check_known(options, _SESSION_OPTIONS)
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


def choose_round(options: PlanOptions) -> Choice:
    """What these options ask for; nothing is written."""
    layout, tensors = chosen_layout(options)
    gradient = None if tensors is None else layout.flatten(tensors)
    choice = _choice(layout, gradient, options)
    return choice if tensors is None else replace(choice, notes=(*tensors.notes, *choice.notes))


def choose_rounds(options: UsersOptions, sizes: Mapping[str, Sequence[Any]]) -> list[Choice]:
    """What these options ask for with each of the sizes: {"density": [0.01, 0.1], "rank": [2]}.

    Where that is one, other usual sizes follow it, those that fit.
    """
    asked = [{name: value} for name, values in sizes.items() for value in values]
    first: PlanOptions = {**options, **(asked[0] if asked else {})}  # type: ignore[typeddict-item]
    choices = [choose_round(first)]
    chosen = choices[0]
    for size in asked[1:]:
        choices.append(_choice(chosen.layout, chosen.gradient, {**options, **size}))
    if len(asked) > 1:
        return choices
    for size in _USUAL:
        others = {name: options.get(name) for name in ("picks", "construction", "dealing")}
        without = {name: value for name, value in options.items() if name not in others}
        with suppress(UsageError):
            other = _choice(chosen.layout, chosen.gradient, {**without, **size})
            if not any(_is_same(other, known) for known in choices):
                choices.append(other)
    return choices


def _is_same(one: Choice, other: Choice) -> bool:
    """Whether two choices reduce a gradient alike."""
    sizes = [(c.parameters.top_k, c.reduction) for c in (one, other)]
    return sizes[0] == sizes[1]


def _choice(layout: Layout, gradient: Vector | None, options: Mapping[str, Any]) -> Choice:
    """What options ask for, but for those of the layout."""
    reduction = choose_reduction(layout, options)
    numbers = {name: value for name, value in options.items() if name in _PARAMETER_OPTIONS}
    chosen = choose_parameters(reduction, numbers)
    return Choice(
        layout=layout,
        reduction=reduction,
        parameters=chosen.parameters,
        clips=same_clips(layout, options.get("clip")),
        reason=chosen.reason,
        gradient=gradient,
        notes=chosen.notes,
    )


def with_side(choice: Choice) -> list[Parameters]:
    """The parameters of a round on each side of the basis; of one alone where there is none."""
    reduction = choice.reduction
    if reduction.rank is None:
        return [choice.parameters]
    sides = [
        Reduction.of(reduction.shapes, reduction.rank, side, reduction.kept_whole())
        for side in OTHER_SIDE
    ]
    return [changed_parameters(choice.parameters, each, {}) for each in sides]


def with_fit(choice: Choice, like: Given) -> Choice:
    """Say how the clip fits the example gradient."""
    fixed = choice.fixed_point  # which checks the clips
    if choice.gradient is None or choice.reduction.has_basis:
        return choice
    fits = _fit_note(like, magnitude(choice.gradient), fixed)
    return replace(choice, notes=(*choice.notes, fits))


def same_clips(layout: Layout, clip: Any) -> tuple[float, ...]:
    """One clip for all tensors, 1 if none is given."""
    value = 1.0 if clip is None else real_number("clip", clip)
    return (value,) * len(layout.slots)


def _fit_note(like: Given, largest: float, fixed: FixedPoint) -> str:
    """How the clip fits the example gradient, and what one step of the quantiser is."""
    name = path_of("like", like).name if is_path(like) else "the gradient"
    clip = fixed.clip
    fits = f"beyond the clip of {clip:g}" if largest > clip else f"{largest / clip:.1%} of the clip"
    return (
        f"the largest value of {name} is {largest:.4g}, {fits}; one step of the quantiser is "
        f"{fixed.step:.3g}"
    )


def changed_reduction(before: Session, layout: Layout, given: Mapping[str, Any]) -> Reduction:
    """The reduction of a round that is like another one, but for what is given anew.

    The side of a basis is the first one: what it is in a series depends on the last sum.
    """
    last = before.reduction
    named = given.get("whole_tensors")
    whole = last.kept_whole() if layout == before.layout else set()
    if named is not None:
        whole = whole_positions(layout, named)
    asked = _one_of(_reducing(given)) or _said_before(last)
    shapes = [slot.shape for slot in layout.slots]
    if "rank" in asked:
        return _low_rank(shapes, asked["rank"], whole)
    construction = before.parameters.construction
    if "whole" in asked or _is_all(layout, whole, asked, {"construction": construction}):
        return Reduction.whole(shapes)
    return Reduction.top_k(shapes, whole)


def _said_before(last: Reduction) -> dict[str, Any]:
    """The option that asks for the same reduction again; none asks for top-K."""
    if last.rank is not None:
        return {"rank": last.rank}
    return {} if last.is_top_k else {"whole": True}


def changed_parameters(
    before: Parameters, reduction: Reduction, given: Mapping[str, Any]
) -> Parameters:
    """The parameters of a round with some of them changed, and of this reduction."""
    changed = _checked(given)
    changed.pop("rank", None)
    if "density" in changed:
        changed["top_k"] = _coordinates(changed.pop("density"), reduction)
    if not reduction.is_top_k:
        changed["top_k"] = 0
    elif not changed.get("top_k", before.top_k):
        raise UsageError("either K or a density is needed", advice=Advice.TOP_K)
    changed |= {"length": reduction.length, "whole": reduction.sent_whole}
    p = before.changed(**changed)
    _check_steps(p)
    return p


def given_options(options: SessionOptions) -> dict[str, Any]:
    """Those of the options that say something."""

    def says_nothing(value: Any) -> bool:
        empty = isinstance(value, str | tuple | list) and not value
        return value is None or value is False or empty

    return {name: value for name, value in options.items() if not says_nothing(value)}
