"""`aggregate`: a whole round in memory, through the same protocol functions and without a file."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from ..algebra.randomness import CipherRandomness, fresh_key, source_of
from ..brief import Brief
from ..errors import BadData, UsageError, about
from ..gradients.layout import Layout
from ..gradients.quantise import check_clips, clip_of, dequantise, magnitude
from ..gradients.tensors import FLOATING, Tensor, called, left_out
from ..gradients.tensors import Gradient as Tensors
from ..protocol.constructions import construction
from ..protocol.messages import Sparse
from ..protocol.parameters import Parameters, rate_of_answer, rate_of_masked
from ..protocol.round import run_round
from .arguments import by_user, is_path, real_number, some_users
from .init import RoundOptions, choose_parameters
from .mask import SELECTIONS, choose, unsent, with_residual
from .offline import SOURCES
from .run import check_enough, clip_note

Gradient = Any  # an array, or a mapping or list of arrays or torch tensors
Vector = npt.NDArray[Any]


@dataclass(frozen=True, repr=False)
class Costs(Brief):
    """Bytes that a user sends: its shares for the others, X and Y; and the rates R1 and R2."""

    offline: int
    masked: int
    answer: int
    r1: float
    r2: float


@dataclass(frozen=True, repr=False)
class Aggregated(Brief):
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
    randomness: str = "cipher",
    **options: Unpack[RoundOptions],
) -> Aggregated:
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
    residuals: error feedback, {user: residual}, which may be empty: what was not sent before is added,
        and what is not sent now is returned, for the users that are in the sum. They are
        float64, and go into the next round as they are.
    select: "top" sends the largest magnitudes, "random" random coordinates.
    saturate: clamp values beyond the clip, and count them, instead of refusing.
    mean: divide the sum by the sum of the survivors' weights.
    top_k: K, the coordinates that each user sends; or
    density: K as a share of the gradient's length, such as 0.01.
    field: q, a prime below 2^32.
    blocks: D, in the construction permutation.
    construction: "permutation" (the paper's) or "moments"; by default by the size of the offline files.
    picks: P, in the construction moments.
    spare: in the construction moments, pack answers so tightly that only so many may be missing.
    clip: the largest magnitude of a gradient's values; by default that of all gradients (with
        their residuals) that are sent.
    randomness: "cipher" (AES-256-CTR keyed by the operating system) or "os" (every byte from it).

    Returns an Aggregated: `total` in the form of a gradient, `costs`, `residuals` and more.
    """
    given = _gradients(gradients)
    users = list(given)
    weight = _weights(weights, users)
    _check_choice("selection", select, SELECTIONS)
    _check_choice("source of randomness", randomness, SOURCES)
    dropped = some_users("drop_masking", drop_masking, users)
    silent = some_users("drop_elimination", drop_elimination, users)
    u1 = [n for n in users if n not in dropped]
    u2 = [n for n in u1 if n not in silent]

    with about("the gradient of user 1"):
        form = _Form(given[1])
    kept = _residuals(residuals, users)
    vectors = {n: _vector(form, n, given[n], kept.get(n)) for n in u1}
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
    check_enough(p, u1, u2)
    if not saturate:
        check_clips(p.clip, {str(n): value for n, value in largest.items()})

    key = fresh_key()
    inputs: dict[int, Sparse] = {}
    clipped = 0
    errors: list[float] = []
    for n in u1:
        rounding = CipherRandomness(key).child(f"rounding of user {n}")
        chosen = choose(p, rounding, vectors[n], weight[n], select, saturate=bool(saturate))
        inputs[n] = chosen.sparse
        clipped += chosen.clipped
        errors += [] if chosen.rounding_error is None else [chosen.rounding_error]
        if residuals is not None:
            with about(f"user {n}"):
                kept[n] = form.residual(unsent(p, vectors[n], chosen.sparse, weight[n]))
    total = run_round(p, inputs, u1, u2, source_of(randomness, key))
    vector = np.zeros(p.length)
    vector[total.index] = dequantise(p.fixed_point, total.value)
    if mean:
        vector /= math.fsum(weight[n] for n in u1)
    return Aggregated(
        total=form.unflatten(vector),
        costs=_costs(p, len(u1), len(u2)),
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
    _refuse_path("gradients", gradients)
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
    found = {
        n: real_number(f"the weight of user {n}", weight)
        for n, weight in by_user("weights", weights).items()
    }
    if sorted(found) != users or not all(0 < weight < math.inf for weight in found.values()):
        raise UsageError("every user needs a positive weight", "give one for each user")
    return found


def _residuals(residuals: Any, users: list[int]) -> dict[int, Gradient]:
    """The residuals that users kept; who has none starts from zero."""
    if residuals is None:
        return {}
    _refuse_path("residuals", residuals)
    found = by_user("residuals", residuals)
    some_users("residuals", found, users)
    return {n: residual for n, residual in found.items() if residual is not None}


def _vector(form: _Form, user: int, gradient: Gradient, residual: Gradient | None) -> Vector:
    """What a user has to send: its gradient, and what it did not send before."""
    with about(f"the gradient of user {user}"):
        flat = form.flatten(gradient)
    if residual is None:
        return flat
    with about(f"the residual of user {user}"):
        return with_residual(flat, form.flatten_residual(residual))


def _check_choice(what: str, value: Any, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise UsageError(f"unknown {what} {value!r:.60}", f"one of {', '.join(choices)}")


def _refuse_path(what: str, value: Any) -> None:
    """Files are for `run`: here nothing is read."""
    if is_path(value):
        raise UsageError(
            f"{what}: {value!r:.120} is a path, not a gradient",
            "load the file first, or use run, which reads files",
        )


def _costs(p: Parameters, survivors: int, answering: int) -> Costs:
    c = construction(p)
    masked = c.masked_bytes
    answer = c.answer_bytes(survivors)
    if answering < c.answer_shape(survivors).quorum:
        answer += c.answer_bytes(survivors, fallback=True)
    return Costs(
        offline=c.share_bytes * (p.users - 1),
        masked=masked,
        answer=answer,
        r1=rate_of_masked(p, masked).measured,
        r2=rate_of_answer(p, answer).measured,
    )


class _Form:
    """How gradients are given, and so how the sum and the residuals are returned."""

    def __init__(self, example: Gradient) -> None:
        tensors = _tensors(example)
        self.layout = Layout.like(tensors)
        self.notes = tensors.notes + left_out("None", tensors.absent)
        self._example = example
        self._parts = {_name(key): (key, value) for key, value in _items(example)}

    def flatten(self, gradient: Gradient) -> Vector:
        """A gradient as one flat vector."""
        return self.layout.flatten(_tensors(gradient))

    def flatten_residual(self, residual: Gradient) -> Vector:
        """A residual as one flat vector in float64, whatever its floating-point types are."""
        found = _tensors(residual)
        found[:] = [
            Tensor(t.name, "float64", t.array.astype(np.float64)) if t.dtype in FLOATING else t
            for t in found
        ]
        return self.layout.in_float64().flatten(found)

    def unflatten(self, vector: npt.NDArray[np.float64]) -> Gradient:
        """The inverse of `flatten`, in the example's types; torch tensors where it has them."""
        arrays = {t.name: t.array for t in self.layout.unflatten(vector)}
        return self._shaped({name: _like(self._value(name), arrays[name]) for name in arrays})

    def residual(self, vector: npt.NDArray[np.float64]) -> Gradient:
        """The same in float64: a residual keeps its precision from round to round."""
        arrays = {t.name: t.array for t in self.layout.in_float64().unflatten(vector)}
        return self._shaped(
            {name: _exactly_like(self._value(name), arrays[name]) for name in arrays}
        )

    def _value(self, name: str) -> Any:
        return self._parts[name][1]

    def _shaped(self, found: dict[str, Any]) -> Gradient:
        """These values as a mapping, a list with None for what is left out, or one value.

        Tied tensors are one tensor again.
        """
        for slot in self.layout.slots:
            found |= dict.fromkeys(slot.also, found[slot.name])
        if isinstance(self._example, Mapping):
            return {self._parts[name][0]: value for name, value in found.items()}
        if self.layout.sequence:
            return [found.get(name) for name in self._parts]
        return found[""]


def _items(gradient: Gradient) -> list[tuple[Any, Any]]:
    """The parts of a gradient with their names or positions; one array has no name."""
    if isinstance(gradient, Mapping):
        return list(gradient.items())
    if _is_list_of_tensors(gradient):
        return list(enumerate(gradient))
    return [("", gradient)]


def _is_list_of_tensors(gradient: Gradient) -> bool:
    """Whether it is a list of arrays (or None), and not one array written as a list of numbers."""
    return isinstance(gradient, list | tuple) and any(
        part is None or (hasattr(part, "shape") and not isinstance(part, np.generic))
        for part in gradient
    )


def _name(key: Any) -> str:
    return key if isinstance(key, str) else str(key)


def _tensors(gradient: Gradient) -> Tensors:
    """A gradient as what every reader of files returns.

    As in files, the same view of the same memory under two names is a tied tensor.
    """
    items = _items(gradient)
    names = [_name(key) for key, _ in items]
    if len(set(names)) < len(names):
        raise BadData(
            "two of its tensors have the same name", "give every tensor a name of its own"
        )
    tensors = []
    absent = []
    ties: dict[str, str] = {}
    first_names: dict[tuple[Any, ...], str] = {}
    for name, (_, value) in zip(names, items, strict=True):
        if value is None:
            absent.append(name)
            continue
        first = first_names.setdefault(_view(value), name)
        if first == name:
            tensors.append(_tensor(name, value))
        else:
            ties[name] = first
    return Tensors(tensors, absent, sequence=_is_list_of_tensors(gradient), ties=ties)


def _view(value: Any) -> tuple[Any, ...]:
    """What two tied tensors have in common: the memory, shape, strides and type."""
    if hasattr(value, "data_ptr") and value.numel():
        return value.data_ptr(), tuple(value.shape), value.stride(), value.dtype, value.device
    if isinstance(value, np.ndarray) and value.size:
        return value.ctypes.data, value.shape, value.strides, value.dtype
    return (object(),)  # numbers, lists and empty tensors are tied to nothing


def _tensor(name: str, value: Any) -> Tensor:
    """An array or a torch tensor; torch itself is not imported."""
    _refuse_path(called(name), value)
    try:
        if not hasattr(value, "detach"):
            array = np.asarray(value)
            kind = array.dtype.name
            return Tensor(name, kind, array.astype(np.float32) if kind == "bfloat16" else array)
        value = value.detach().cpu()
        kind = str(value.dtype).removeprefix("torch.")
        return Tensor(name, kind, (value.float() if kind == "bfloat16" else value).numpy())
    except (AttributeError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise BadData(
            f"tensor {called(name)}: a {type(value).__name__} cannot be read as an array",
            "give arrays or torch tensors",
        ) from error


def _like(example: Any, array: npt.NDArray[Any]) -> Any:
    """An array as a torch tensor of the example's type and device, where the example is one."""
    return example.detach().new_tensor(array) if hasattr(example, "detach") else array


def _exactly_like(example: Any, array: npt.NDArray[np.float64]) -> Any:
    """The same in float64."""
    return example.detach().double().new_tensor(array) if hasattr(example, "detach") else array
