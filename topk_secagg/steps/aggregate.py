"""`aggregate`: a whole round in memory, through the same protocol functions and without a file."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from ..algebra.randomness import CipherRandomness, fresh_key
from ..brief import Brief
from ..errors import UsageError, about
from ..gradients.layout import Layout
from ..gradients.quantize import dequantise
from ..gradients.tensors import Gradient as Tensors
from ..gradients.tensors import Tensor
from ..protocol.constructions import construction
from ..protocol.messages import Sparse
from ..protocol.parameters import Parameters, rates
from ..protocol.round import run_round
from .init import RoundOptions, choose_parameters
from .mask import choose, unsent, with_residual

Gradient = Any  # an array, or a mapping of names to arrays or torch tensors


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

    `sent` is what each survivor masked, in the field, for comparing: in a real round nobody else sees it.
    """

    total: Gradient
    costs: Costs
    residuals: dict[int, Gradient] | None
    survivors: list[int]
    answering: list[int]
    parameters: Parameters
    clipped: int
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
    **options: Unpack[RoundOptions],
) -> Aggregated:
    """Aggregate the gradients of users 1..N securely, as `run` does, but in memory.

    Arguments:
    gradients: a list (users 1..N) or a mapping {user: gradient}; all of one form: an array, or a
        mapping of names to arrays or torch tensors.
    survivors: U, the users that must remain at least.
    colluders: T, the users that together learn nothing but the sum.
    drop_masking: users that never send an X; they are not in the sum.
    drop_elimination: users that send an X, and never answer.
    weights: what each user's gradient is multiplied with, a list or {user: weight}; 1 by default.
    residuals: error feedback, {user: residual}, which may be empty: what was not sent before is added,
        and what is not sent now is returned, for the users that are in the sum.
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
    clip: the largest magnitude of a gradient's values.

    Returns an Aggregated: `total` in the form of a gradient, `costs`, `residuals` and more.
    """
    given = _by_user(gradients)
    users = sorted(given)
    if users != list(range(1, len(users) + 1)):
        raise UsageError(f"the users are {users}, not 1 to {len(users)}", "number them from 1")
    form = _Form(given[1])
    weight = (
        dict.fromkeys(users, 1.0)
        if weights is None
        else {n: float(w) for n, w in _by_user(weights).items()}
    )
    if sorted(weight) != users or not all(w > 0 for w in weight.values()):
        raise UsageError("every user needs a positive weight", "give one for each user")
    largest = max(1.0, *weight.values())
    p, _ = choose_parameters(
        form.layout.length,
        users=len(users),
        survivors=survivors,
        colluders=colluders,
        max_weight=largest,
        **options,
    )
    unknown = {*drop_masking, *drop_elimination} - set(users)
    if unknown:
        raise UsageError(
            f"there is no user {min(unknown)} to drop out", f"users are 1 to {len(users)}"
        )
    u1 = [n for n in users if n not in drop_masking]
    u2 = [n for n in u1 if n not in drop_elimination]
    randomness = CipherRandomness(fresh_key())
    inputs: dict[int, Sparse] = {}
    kept, clipped = None if residuals is None else dict(residuals), 0
    for n in u1:
        flat = form.flatten(given[n], n)
        if kept and kept.get(n) is not None:
            flat = with_residual(flat, form.flatten_residual(kept[n], n))
        source = randomness.child(f"rounding of user {n}")
        inputs[n], more, _ = choose(p, source, flat, weight[n], select, saturate=saturate)
        clipped += more
        if kept is not None:
            kept[n] = form.unflatten(unsent(p, flat, inputs[n], weight[n]), exact=True)
    total = run_round(p, inputs, u1, u2, randomness)
    vector = np.zeros(p.length)
    vector[total.index] = dequantise(p, total.value) / (
        math.fsum(weight[n] for n in u1) if mean else 1.0
    )
    return Aggregated(
        form.unflatten(vector), _costs(p, len(u1), len(u2)), kept, u1, u2, p, clipped, inputs
    )


def _costs(p: Parameters, survivors: int, answering: int) -> Costs:
    c = construction(p)
    fallback = answering < c.answer_shape(survivors).quorum
    x, y = c.masked_bytes, c.answer_bytes(survivors)
    y += c.answer_bytes(survivors, fallback=True) if fallback else 0
    return Costs(
        c.share_bytes * (p.users - 1), x, y, rates(p, "R1", x)["R1"], rates(p, "R2", y)["R2"]
    )


def _by_user(given: Any) -> dict[int, Any]:
    return dict(given) if isinstance(given, Mapping) else dict(enumerate(given, start=1))


class _Form:
    """How gradients are given, and so how the sum is returned."""

    def __init__(self, example: Gradient) -> None:
        self.named = isinstance(example, Mapping)
        self.example = dict(example) if self.named else {"": example}
        self.layout = Layout.like(_tensors(self.example), exclude=())

    def flatten(self, gradient: Gradient, user: int) -> npt.NDArray[Any]:
        """A gradient as one flat vector."""
        with about(f"the gradient of user {user}"):
            return self.layout.flatten(_tensors(dict(gradient) if self.named else {"": gradient}))

    def flatten_residual(self, residual: Gradient, user: int) -> npt.NDArray[Any]:
        """A residual as one flat vector: it is in float64, whatever the types of the gradients are."""
        named = _tensors(dict(residual) if self.named else {"": residual})
        wide = [t._replace(dtype="float64", array=t.array.astype(np.float64)) for t in named]
        slots = tuple(slot._replace(dtype="float64") for slot in self.layout.slots)
        with about(f"the residual of user {user}"):
            return replace(self.layout, slots=slots).flatten(Tensors(wide, ties=named.ties))

    def unflatten(self, vector: npt.NDArray[np.float64], *, exact: bool = False) -> Gradient:
        """The inverse, in the types of the example, or in float64; a torch tensor where the example has one."""
        result: dict[str, Any] = {}
        for name, _, array in self.layout.unflatten(vector, exact=exact):
            example = self.example[name]
            of_torch = hasattr(example, "new_tensor")
            result[name] = (
                (example.double() if exact else example).new_tensor(array) if of_torch else array
            )
        for slot in self.layout.slots:  # tied tensors are one tensor again
            result |= dict.fromkeys(slot.also, result[slot.name])
        return result if self.named else result[""]


def _tensors(named: Mapping[str, Any]) -> Tensors:
    """Arrays and torch tensors as what every reader hands over; torch itself is not imported.

    As in files, the same view of the same memory under two names is a tied tensor.
    """
    tensors = []
    ties: dict[str, str] = {}
    first_names: dict[tuple[Any, ...], str] = {}
    for name, value in named.items():
        if value is None:
            continue
        first = first_names.setdefault(_view(value), str(name))
        if first == str(name):
            tensors.append(_tensor(str(name), value))
        else:
            ties[str(name)] = first
    return Tensors(tensors, ties=ties)


def _view(value: Any) -> tuple[Any, ...]:
    """What two tied tensors have in common: the memory, shape, strides and type."""
    if hasattr(value, "data_ptr") and value.numel():
        return value.data_ptr(), tuple(value.shape), value.stride(), value.dtype, value.device
    if isinstance(value, np.ndarray) and value.size:
        return value.ctypes.data, value.shape, value.strides, value.dtype
    return (object(),)  # numbers, lists and empty tensors are tied to nothing


def _tensor(name: str, value: Any) -> Tensor:
    if not hasattr(value, "detach"):
        return Tensor(name, np.asarray(value).dtype.name, np.asarray(value))
    value = value.detach().cpu()
    kind = str(value.dtype).removeprefix("torch.")
    return Tensor(name, kind, (value.float() if kind == "bfloat16" else value).numpy())
