"""`aggregate`: a whole round in memory, through the same protocol functions and without a file."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from .. import labels
from ..algebra import entropy
from ..algebra.parallel import of_each
from ..algebra.randomness import KEY_BYTES, CipherRandomness, source_of
from ..brief import Brief
from ..errors import Advice, UsageError, about
from ..gradients.arrays import Form, Vector, refuse_path
from ..gradients.arrays import Given as Gradient
from ..gradients.layout import Layout
from ..gradients.quantise import FixedPoint, check_clips
from ..gradients.reduce import Reduction
from ..protocol.messages import Sparse
from ..protocol.parameters import Parameters
from ..protocol.round import run_round
from .arguments import CIPHER, SELECTIONS, SOURCES, by_user, check_choice, real_number
from .costs import Costs, costs
from .dropouts import remaining
from .feedback import added
from .following import FIRST_OF_LOW_RANK, Following, LastSum, after_sum, clips_after, first
from .options import (
    OF_REDUCTION,
    RoundOptions,
    check_known,
    choose_parameters,
    choose_reduction,
    same_clips,
)
from .sending import Chosen, Encoding, clip_note, fitting_clips, prepare

_NONCE_BYTES = 16
_OPTIONS = frozenset(RoundOptions.__annotations__) | {"survivors", "colluders"}


@dataclass(frozen=True, repr=False)
class AggregateReport(Brief):
    """The sum (or mean) in the form of a gradient, what it cost, and the users' new residuals.

    `sent` is what each survivor masked, in the field, for comparing: in a real round nobody else
    sees it. `clipped` counts values that were clamped, `kept_energy` is the smallest share of a
    survivor's gradient that is in what it sent, `rounding_error` is the most that rounding is
    expected to add to that (rms, as a share), and `notes` say what was left out of the gradients
    and where the clip comes from. `ended` and `options` are for the round after this one.
    """

    total: Gradient
    costs: Costs
    residuals: dict[int, Gradient] | None
    survivors: list[int]
    answering: list[int]
    parameters: Parameters
    reduction: Reduction
    fixed_point: FixedPoint
    clipped: int
    kept_energy: float
    rounding_error: float | None
    notes: tuple[str, ...]
    sent: dict[int, Sparse]
    ended: LastSum = field(repr=False)
    options: dict[str, Any] = field(repr=False)


def aggregate(
    gradients: Sequence[Gradient] | Mapping[int, Gradient],
    *,
    survivors: int | None = None,
    colluders: int | None = None,
    after: AggregateReport | None = None,
    drop_masking: Collection[int] = (),
    drop_elimination: Collection[int] = (),
    weights: Mapping[int, float] | Sequence[float] | None = None,
    residuals: Mapping[int, Gradient] | None = None,
    feedback_decay: float = 1.0,
    clip_from_sum: float | None = None,
    select: str = "top",
    saturate: bool = False,
    mean: bool = False,
    randomness: str = CIPHER,
    **options: Unpack[RoundOptions],
) -> AggregateReport:
    """Aggregate the gradients of users 1..N securely, as `run` does, but in memory.

    Arguments:
    gradients: a list (users 1..N) or a mapping {user: gradient}; all of one form: an array, or a
        mapping of names to arrays or torch tensors, such as a state_dict, or a list of them, or a
        torch.nn.Module, which stands for what backward left in it. Buffers such as running_mean
        are left out.
    survivors: U, the users that must remain at least.
    colluders: T, the users that together learn nothing but the sum.
    after: what `aggregate` returned for the round before: this one has its parameters (but for what
        is given anew), goes on with its residuals, and, with low rank, from its sum.
    drop_masking: users that never send an X; they are not in the sum.
    drop_elimination: users that send an X, and never answer.
    weights: what each user's gradient is multiplied with, a list or {user: weight}; 1 by default.
    residuals: error feedback, {user: residual}, which may be empty: what was not sent before is
        added, and what is not sent now is returned (times the weight), for the users that are in
        the sum. They are float64, and go into the next round as they are.
    feedback_decay: what is left of a residual when it is added, from 0 to 1.
    clip_from_sum: with `after`, the clip of each tensor is so many times the largest magnitude of
        that sum, divided by the largest weight.
    select: "top" sends the largest magnitudes, "random" random coordinates.
    saturate: clamp values beyond the clip, and count them, instead of refusing; always so with
        residuals.
    mean: divide the sum by the sum of the survivors' weights.
    top_k: K, the coordinates that each user sends; or
    density: K as a share of the gradient's length, such as 0.01; or
    rank: low rank: every matrix is projected on so many columns; for series; or
    whole: everything is sent.
    whole_tensors: patterns; tensors with such a name are sent whole.
    field: q, a prime below 2^32; 65521 by default with low rank.
    construction: "permutation" (the paper's) or "sketch"; by default permutation while its offline
        files stay below 256 MiB, and else sketch.
    dealing: "keys" (sketch) or "shares", which are written out.
    picks: P, in the construction sketch.
    clip: the largest magnitude of a gradient's values; by default that of all gradients (with
        their residuals) that are sent, for each tensor.
    randomness: "cipher" (AES-256-CTR keyed by the operating system) or "os" (every byte from it).

    Returns an AggregateReport: `total` in the form of a gradient, `costs`, `residuals` and more.
    """
    given = _gradients(gradients)
    users = list(given)
    weight = _weights(weights, users)
    check_choice("selection", select, SELECTIONS)
    check_choice("source of randomness", randomness, SOURCES)
    left = remaining(users, drop_masking, drop_elimination)
    u1 = left.masking
    u2 = left.answering
    asked = _asked(after, {"survivors": survivors, "colluders": colluders, **options})
    if residuals is None and after is not None:
        residuals = after.residuals

    with about("the gradient of user 1"):
        form = Form(given[1])
    kept = _residuals(residuals, users)
    share = {n: _share_of_residual(feedback_decay, weight[n]) for n in users}
    vectors = {n: _vector(form, n, given[n], kept.get(n), share[n]) for n in u1}
    following = _following(choose_reduction(form.layout, asked), form.layout, after)
    numbers = {"users": len(users), "max_weight": max(1.0, *weight.values())}
    chosen = choose_parameters(following.reduction, {**asked, **numbers})
    p = chosen.parameters
    left.check_enough(p)
    reduction = following.reduction
    reduced = of_each(
        u1, lambda n: reduction.reduce(vectors[n], following.bases), form.layout.length
    )
    largest = {n: reduction.largest(reduced[n]) for n in u1}
    notes = form.notes
    if after is None:
        notes += chosen.notes
        notes += (FIRST_OF_LOW_RANK,) if reduction.has_basis else ()
    clips = _clips(following, form.layout, after, options.get("clip"), clip_from_sum)
    if clips is None:
        clips = fitting_clips(reduction, largest.values())
        notes += (clip_note(clips, residuals=residuals is not None),)
    if not saturate and residuals is None:
        check_clips(clips, {str(n): values for n, values in largest.items()})
    encoding = Encoding(p, reduction, following.bases, clips)

    key = entropy.draw(KEY_BYTES, "a round in memory")

    def chosen_by(n: int) -> Chosen:
        prepared = prepare(
            encoding,
            CipherRandomness(key).child(labels.rounding_of_user(n)),
            vectors[n],
            weight[n],
            select,
            saturate=bool(saturate) or residuals is not None,
            reduced=reduced[n],
        )
        if residuals is not None:
            with about(f"user {n}"):
                kept[n] = form.residual(prepared.unsent)
        return prepared.chosen

    every = of_each(u1, chosen_by, p.length)
    inputs = {n: each.sparse for n, each in every.items()}
    total = run_round(p, inputs, survivors=u1, answering=u2, randomness=source_of(randomness, key))
    vector = encoding.decoded(total)
    if mean:
        vector /= math.fsum(weight[n] for n in u1)
    errors = [each.rounding_error for each in every.values() if each.rounding_error is not None]
    return AggregateReport(
        total=form.unflatten(vector),
        costs=costs(p, len(u1)),
        residuals=None if residuals is None else kept,
        survivors=u1,
        answering=u2,
        parameters=p,
        reduction=reduction,
        fixed_point=encoding.fixed,
        clipped=sum(each.clipped for each in every.values()),
        kept_energy=min(each.kept_energy for each in every.values()),
        rounding_error=max(errors, default=None),
        notes=notes,
        sent=inputs,
        ended=LastSum(
            name=entropy.draw(KEY_BYTES, "name of a round in memory"),
            layout=form.layout,
            encoding=encoding,
            total=total,
        ),
        options={**asked, "field": p.field},
    )


def _asked(after: AggregateReport | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that say something, and for all else those of the round before."""
    check_known(options, _OPTIONS)
    given = {name: value for name, value in options.items() if value is not None}
    given.pop("clip", None)
    if after is None:
        for name in ("survivors", "colluders"):
            if name not in given:
                raise UsageError(f"{name} is not given", "give N, U and T")
        return given
    before = dict(after.options)
    if given.keys() & OF_REDUCTION:
        before = {name: value for name, value in before.items() if name not in OF_REDUCTION}
    return before | given


def _following(reduction: Reduction, layout: Layout, after: AggregateReport | None) -> Following:
    """On which basis the round projects."""
    nonce = entropy.draw(_NONCE_BYTES, "nonce of a round in memory").hex()
    if after is None:
        return first(reduction, layout, nonce)
    return after_sum(reduction, layout, nonce, after.ended)


def _clips(
    following: Following,
    layout: Layout,
    after: AggregateReport | None,
    clip: float | None,
    factor: float | None,
) -> tuple[float, ...] | None:
    """The clips that were asked for; None where they are to fit the gradients."""
    if clip is not None and factor is not None:
        raise UsageError("both a clip and a factor for the sum are given", advice=Advice.CLIP_TWICE)
    if clip is not None:
        return same_clips(layout, clip)
    if factor is None:
        return None
    if after is None:
        raise UsageError("the clip comes from the sum of another round, and none is given")
    return clips_after(after.ended, following, layout, real_number("clip_from_sum", factor))


def _gradients(gradients: Any) -> dict[int, Gradient]:
    """The gradients of users 1 to N, in order."""
    refuse_path("gradients", gradients)
    given = by_user("gradients", gradients)
    users = sorted(given)
    if not users:
        raise UsageError("there are no gradients", "give one for every user")
    if users != list(range(1, len(users) + 1)):
        raise UsageError(f"the users are {users}, not 1 to {len(users)}", "number them from 1")
    return {n: given[n] for n in users}


def _weights(weights: Any, users: list[int]) -> dict[int, float]:
    if weights is None:
        return dict.fromkeys(users, 1.0)
    numbers = {
        n: real_number(f"the weight of user {n}", weight)
        for n, weight in by_user("weights", weights).items()
    }
    if sorted(numbers) != users or not all(0 < weight < math.inf for weight in numbers.values()):
        raise UsageError("every user needs a positive weight", "give one for each user")
    return numbers


def _residuals(residuals: Any, users: list[int]) -> dict[int, Gradient]:
    """The residuals that users kept; who has none starts from zero."""
    if residuals is None:
        return {}
    refuse_path("residuals", residuals)
    kept = by_user("residuals", residuals)
    for user in kept:
        if user not in users:
            raise UsageError(
                f"residuals has user {user}, whom this round does not have",
                f"users are 1 to {len(users)}",
            )
    return {n: residual for n, residual in kept.items() if residual is not None}


def _share_of_residual(decay: float, weight: float) -> float:
    """With which a residual is added: it is kept times the weight."""
    decay = real_number("feedback_decay", decay)
    if not 0 <= decay <= 1:
        raise UsageError(f"a decay of {decay:g} for residuals", "it is from 0 to 1")
    return decay / weight


def _vector(
    form: Form, user: int, gradient: Gradient, residual: Gradient | None, share: float
) -> Vector:
    """What a user has to send: its gradient, and what it did not send before."""
    with about(f"the gradient of user {user}"):
        flat = form.flatten(gradient)
    if residual is None:
        return flat
    with about(f"the residual of user {user}"):
        return added(flat, form.flatten_residual(residual), share)
