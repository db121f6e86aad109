"""`aggregate`: a whole round in memory, through the same protocol functions and without a file."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from ..algebra import entropy
from ..algebra.randomness import KEY_BYTES, CipherRandomness, source_of
from ..brief import Brief
from ..errors import UsageError, about
from ..gradients.arrays import Form, Vector, refuse_path
from ..gradients.arrays import Given as Gradient
from ..gradients.quantise import check_clips, clip_of, dequantise, magnitude
from ..protocol.messages import Sparse
from ..protocol.parameters import Parameters
from ..protocol.round import run_round
from .arguments import CIPHER, SELECTIONS, SOURCES, by_user, check_choice, real_number
from .costs import Costs, costs
from .dropouts import remaining
from .options import RoundOptions, choose_parameters
from .sending import choose, clip_note, unsent, with_residual


@dataclass(frozen=True, repr=False)
class AggregateReport(Brief):
    """The sum (or mean) in the form of a gradient, what it cost, and the users' new residuals.

    `sent` is what each survivor masked, in the field, for comparing: in a real round nobody else
    sees it. `clipped` counts values that were clamped, `rounding_error` is the most that rounding
    is expected to add to what a survivor sends (rms, as a share), and `notes` say what was left out
    of the gradients and where the clip comes from.
    """

    total: Gradient
    costs: Costs
    residuals: dict[int, Gradient] | None
    survivors: list[int]
    answering: list[int]
    parameters: Parameters
    clipped: int
    rounding_error: float | None
    notes: tuple[str, ...]
    sent: dict[int, Sparse]


def aggregate(
    gradients: Sequence[Gradient] | Mapping[int, Gradient],
    *,
    survivors: int,
    colluders: int,
    drop_masking: Collection[int] = (),
    drop_elimination: Collection[int] = (),
    weights: Mapping[int, float] | Sequence[float] | None = None,
    residuals: Mapping[int, Gradient] | None = None,
    select: str = "top",
    saturate: bool = False,
    mean: bool = False,
    randomness: str = CIPHER,
    **options: Unpack[RoundOptions],
) -> AggregateReport:
    """Aggregate the gradients of users 1..N securely, as `run` does, but in memory.

    Arguments:
    gradients: a list (users 1..N) or a mapping {user: gradient}; all of one form: an array, or a
        mapping of names to arrays or torch tensors, or a list of them. Buffers such as running_mean
        are left out.
    survivors: U, the users that must remain at least.
    colluders: T, the users that together learn nothing but the sum.
    drop_masking: users that never send an X; they are not in the sum.
    drop_elimination: users that send an X, and never answer.
    weights: what each user's gradient is multiplied with, a list or {user: weight}; 1 by default.
    residuals: error feedback, {user: residual}, which may be empty: what was not sent before is
        added, and what is not sent now is returned, for the users that are in the sum. They are
        float64, and go into the next round as they are.
    select: "top" sends the largest magnitudes, "random" random coordinates.
    saturate: clamp values beyond the clip, and count them, instead of refusing.
    mean: divide the sum by the sum of the survivors' weights.
    top_k: K, the coordinates that each user sends; or
    density: K as a share of the gradient's length, such as 0.01.
    field: q, a prime below 2^32.
    construction: "permutation" (the paper's) or "sketch"; by default permutation while its offline
        files stay below 256 MiB, and else sketch.
    dealing: "keys" (sketch) or "shares", which are written out.
    picks: P, in the construction sketch.
    clip: the largest magnitude of a gradient's values; by default that of all gradients (with
        their residuals) that are sent.
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

    with about("the gradient of user 1"):
        form = Form(given[1])
    kept = _residuals(residuals, users)
    vectors = {n: _vector(form, n, gradient=given[n], residual=kept.get(n)) for n in u1}
    largest = {n: magnitude(vectors[n]) for n in u1}
    notes = form.notes
    if options.get("clip") is None:
        clip = clip_of(largest.values())
        notes += (clip_note(clip, residuals=residuals is not None),)
        options["clip"] = clip
    p, _ = choose_parameters(
        form.layout.length,
        users=len(users),
        survivors=survivors,
        colluders=colluders,
        max_weight=max(1.0, *weight.values()),
        **options,
    )
    left.check_enough(p)
    if not saturate:
        check_clips(p.clip, {str(n): value for n, value in largest.items()})

    key = entropy.draw(KEY_BYTES, "a round in memory")
    inputs: dict[int, Sparse] = {}
    clipped = 0
    errors: list[float] = []
    for n in u1:
        rounding = CipherRandomness(key).child(f"rounding of user {n}")
        chosen = choose(
            p,
            source=rounding,
            flat=vectors[n],
            weight=weight[n],
            select=select,
            saturate=bool(saturate),
        )
        inputs[n] = chosen.sparse
        clipped += chosen.clipped
        errors += [] if chosen.rounding_error is None else [chosen.rounding_error]
        if residuals is not None:
            with about(f"user {n}"):
                kept[n] = form.residual(
                    unsent(p, vectors[n], sparse=chosen.sparse, weight=weight[n])
                )
    total = run_round(p, inputs, survivors=u1, answering=u2, randomness=source_of(randomness, key))
    vector = np.zeros(p.length)
    vector[total.index] = dequantise(p.fixed_point, total.value)
    if mean:
        vector /= math.fsum(weight[n] for n in u1)
    return AggregateReport(
        total=form.unflatten(vector),
        costs=costs(p, len(u1)),
        residuals=None if residuals is None else kept,
        survivors=u1,
        answering=u2,
        parameters=p,
        clipped=clipped,
        rounding_error=max(errors, default=None),
        notes=notes,
        sent=inputs,
    )


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


def _vector(form: Form, user: int, gradient: Gradient, residual: Gradient | None) -> Vector:
    """What a user has to send: its gradient, and what it did not send before."""
    with about(f"the gradient of user {user}"):
        flat = form.flatten(gradient)
    if residual is None:
        return flat
    with about(f"the residual of user {user}"):
        return with_residual(flat, form.flatten_residual(residual))
