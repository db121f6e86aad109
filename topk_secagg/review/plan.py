"""`plan`: what a round would cost for each way to reduce a gradient, beside plain averaging, the
paper's theorem, LightSecAgg and Flower's SecAgg+."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from timeit import timeit
from typing import Any, NamedTuple

import numpy as np

from ..algebra.field import DEFAULT_FIELD, SMALL_FIELD
from ..algebra.linear import encode
from ..brief import Brief
from ..errors import UsageError, amount
from ..gradients.arrays import Vector
from ..gradients.reduce import Reduction, energy_share, kept_share
from ..gradients.reduced import LOW_RANK, TOP_K, WHOLE
from ..protocol.agreement import certain_quorum, liars_excluded
from ..protocol.constructions import construction
from ..protocol.parameters import (
    CONSTRUCTIONS,
    KEYS,
    SHARES,
    SKETCH,
    Parameters,
    theorem_r1,
    theorem_r2,
)
from ..rounds.costs import Footprint, choice_of, family_of, footprint, sent
from ..rounds.options import Choice, with_side

PLAIN = "plain"
THEOREM = "Theorem 1"
DENSE = "LightSecAgg"
FLOWER = "SecAgg+"
# what others see of a user, beyond the sum of many
VISIBLE = {
    PLAIN: "the server sees every gradient",
    TOP_K: "a coordinate that one user alone sends shows its value, without saying whose it is",
    LOW_RANK: "rows that one user alone touches show their projections",
    WHOLE: "nothing but the sum",
}
# bytes that Flower's SecAgg+ sends, as `make bench` counts them with ten users: two public keys,
# two encrypted shares for every other user, and later one share of every user
_FLOWER_KEYS = 358
_FLOWER_PAIR = 620
_FLOWER_SHARE = 134
_FLOWER_SYMBOL = 4
_PROBE_BYTES = 64 << 20
_TIMES = 3
_START_UP = 1.0  # seconds
# How much is encoded to measure the speed: rows of so many symbols, and about so many products.
_ROWS = 8
_NARROWEST = 64
_WIDEST = 4096
_PRODUCTS = 200_000_000


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanRow(Footprint):
    """The cost of one way to run the round, or of a peer.

    `size` is K or the rank. A user sends `later_bytes` in all in a later round of a series, in the
    mean of two with low rank; `plain_bytes` is a gradient as it is. A `step` of the quantiser is a
    fraction of the clip; `energy` is the share of the example gradient's that leaves.
    """

    name: str
    reduction: str
    size: int | None = None
    plain_bytes: int
    later_bytes: int
    visible: str
    parameters: Parameters | None = None
    step: float | None = None
    seconds: float | None = None
    energy: float | None = None


@dataclass(frozen=True, repr=False)
class Plan(Brief):
    """Rows for the reductions that were asked for, plain averaging and peers; `ways` to run the
    first of them; the `best` of these, which `init` would choose; and where a peer needs less.

    `certain_answers` (D + 2T) answers that agree exclude T users that lie together; if all users
    answer, their agreement excludes `liars_excluded`. With `plain_users` users or more, top-K sends
    more than the plain gradient.
    """

    rows: list[PlanRow]
    ways: list[PlanRow]
    best: PlanRow
    remarks: list[str]
    certain_answers: int
    liars_excluded: int
    plain_users: int | None


class Speed(NamedTuple):
    """Seconds per byte on this machine to encode and hash shares, and to write them."""

    compute: float
    write: float


def plan(choices: Sequence[Choice], speed: Speed | None = None) -> Plan:
    """What a round would cost.

    Arguments:
    choices: what `init` would choose for the options (`Choice`), and other reductions.
    speed: of this machine, from `measure_speed`, to estimate how long each choice takes.

    Returns a Plan: its `rows`, the `best` of them, which `init` would choose, and `remarks`.
    """
    chosen = choices[0]
    p = chosen.parameters
    rows = [_row(choice, speed) for choice in choices]
    ways = [_row(replace(chosen, parameters=way), speed) for way in _ways(chosen)]
    theorem = [_theorem(chosen)] if chosen.reduction.is_top_k else []
    peers = [*theorem, _dense(chosen), _flower(chosen)]
    remarks = [remark for peer in peers if (remark := _needs_less(peer, rows[0]))]
    return Plan(
        rows=[_plain(chosen), *_ordered(rows), *peers],
        ways=ways,
        best=rows[0],
        remarks=remarks,
        certain_answers=certain_quorum(p),
        liars_excluded=liars_excluded(p, p.users),
        plain_users=_plain_users(chosen),
    )


def _ordered(rows: Iterable[PlanRow]) -> list[PlanRow]:
    """Top-K by K, then low rank by the rank, then whole."""
    order = (TOP_K, LOW_RANK, WHOLE)
    return sorted(rows, key=lambda row: (order.index(row.reduction), row.size or 0))


def _needs_less(peer: PlanRow, best: PlanRow) -> str:
    """Where a peer sends less than the choice, if it does anywhere."""
    figures = {
        "before": (peer.offline_bytes, best.offline_bytes),
        "with the gradient": (peer.online_bytes, best.online_bytes),
        "in all": (peer.total_bytes, best.total_bytes),
    }
    less = [
        f"{when} ({amount(theirs)} instead of {amount(ours)})"
        for when, (theirs, ours) in figures.items()
        if amount(theirs) != amount(ours) and theirs < ours
    ]
    return f"{peer.name} sends less {', '.join(less)}" if less else ""


def _plain_users(choice: Choice) -> int | None:
    """From how many users on the sketch of top-K, 2 N K symbols, is larger than the gradient."""
    p = choice.parameters
    if not choice.reduction.is_top_k:
        return None
    return math.ceil(choice.layout.bytes / (2 * p.top_k * p.symbol_bytes))


def _ways(choice: Choice) -> list[Parameters]:
    """The chosen reduction by both constructions, dealt as `init` does and by written-out shares,
    in the default field and a small one."""
    base = choice.parameters
    ways = {base}
    for field in {base.field, DEFAULT_FIELD, SMALL_FIELD}:
        ways |= set(_in_field(base, field))
    return sorted(ways, key=_order)


def _order(p: Parameters) -> tuple[int, int, bool, int]:
    """Construction by construction, the field with the finer resolution first."""
    return CONSTRUCTIONS.index(p.construction), -p.field, p.dealing == SHARES, p.picks


def _in_field(base: Parameters, field: int) -> Iterator[Parameters]:
    """The paper's construction, and `sketch` dealt in both ways; those that fit."""
    names = ("users", "survivors", "colluders", "top_k", "length", "whole", "max_weight")
    same: dict[str, Any] = {name: getattr(base, name) for name in names}
    with suppress(UsageError):
        yield Parameters.choose(**same, field=field)
    with suppress(UsageError):
        written = Parameters.choose(**same, field=field, construction=SKETCH, dealing=SHARES)
        yield written
        small = choice_of(written, SKETCH)
        if small is not None:
            yield small


def _row(choice: Choice, speed: Speed | None) -> PlanRow:
    p = choice.parameters
    c = construction(p)
    reduction = choice.reduction
    time = None
    # `run` starts, encodes, hashes and writes all shares, then reads and hashes the used ones;
    # keys are expanded by the dealer and by who holds them
    if speed:
        written = 0 if p.dealing == KEYS else p.users**2 * c.share_bytes
        writing = written * (speed.compute + speed.write)
        reading = written * min(1, c.entries / c.rows) * speed.compute
        drawing = p.users * _expanded(p) * c.share_bytes * speed.compute
        time = _START_UP + writing + reading + drawing
    return PlanRow(
        **vars(footprint(p)),
        name=p.construction,
        reduction=reduction.name,
        size=p.top_k if reduction.is_top_k else reduction.rank,
        plain_bytes=choice.layout.bytes,
        later_bytes=_later_bytes(choice),
        visible=VISIBLE[reduction.name],
        parameters=p,
        step=p.users * p.max_weight / ((p.field - 1) // 2),
        seconds=time,
        energy=None if choice.gradient is None else _energy(choice, choice.gradient),
    )


def _later_bytes(choice: Choice) -> int:
    """What a user sends in a later round of a series, where keys are not dealt again."""
    in_series = choice.parameters.dealing == KEYS
    sides = [sent(p, in_series=in_series).total for p in with_side(choice)]
    return round(sum(sides) / len(sides))


def _energy(choice: Choice, gradient: Vector) -> float:
    """The share of the example's energy that leaves, of low rank once the basis is found."""
    reduction = choice.reduction
    if reduction.rank is not None:
        return energy_share(gradient, reduction.shapes, reduction.rank)
    reduced = reduction.reduce(gradient, _no_bases(reduction))
    return kept_share(gradient, reduced[construction(choice.parameters).select(reduced)])


def _no_bases(reduction: Reduction) -> list[Any]:
    return [np.empty(tensor.basis_shape, np.int32) for tensor in reduction.tensors]


def _expanded(p: Parameters) -> int:
    """How many streams of a dealer are expanded to as many symbols as a share has."""
    family = family_of(p)
    return len(family) + sum(map(len, family))


# Others


def _other(
    choice: Choice, name: str, *, pair: int, users: int, before: int, masked: int, answer: int
) -> PlanRow:
    """A row for a system that is not ours; in a later round it does the same again."""
    return PlanRow(
        name=name,
        reduction=TOP_K if name == THEOREM else WHOLE,
        size=choice.parameters.top_k if name == THEOREM else None,
        plain_bytes=choice.layout.bytes,
        later_bytes=before + masked + answer,
        visible=VISIBLE[PLAIN if name == PLAIN else TOP_K if name == THEOREM else WHOLE],
        pair_bytes=pair,
        all_bytes=users * pair,
        offline_bytes=before,
        masked_bytes=masked,
        answer_bytes=answer,
    )


def _plain(choice: Choice) -> PlanRow:
    """Every user sends its gradient as it is, and nothing is secret."""
    return _other(choice, PLAIN, pair=0, users=0, before=0, masked=choice.layout.bytes, answer=0)


def _theorem(choice: Choice) -> PlanRow:
    """The paper's scheme at its rates: 2 L L/(U-T) symbols per pair offline, (R1 + R2) L online."""
    p = choice.parameters
    symbol = math.log2(p.field) / 8
    pair = round(2 * p.length * p.length * theorem_r2(p) * symbol)
    return _other(
        choice,
        THEOREM,
        pair=pair,
        users=p.users**2,
        before=(p.users - 1) * pair,
        masked=round(theorem_r1(p) * p.length * symbol),
        answer=round(theorem_r2(p) * p.length * symbol),
    )


def _dense(choice: Choice) -> PlanRow:
    """LightSecAgg sends whole gradients: L/(U-T) symbols per pair offline, L and L/(U-T) online."""
    p = choice.parameters
    length = choice.layout.length
    part = round(length * theorem_r2(p) * p.symbol_bytes)
    return _other(
        choice,
        DENSE,
        pair=part,
        users=p.users**2,
        before=(p.users - 1) * part,
        masked=length * p.symbol_bytes,
        answer=part,
    )


def _flower(choice: Choice) -> PlanRow:
    """SecAgg+ agrees on keys and shares seeds, with all users as neighbours; then it sends all
    entries, and shares of the seeds of all users."""
    p = choice.parameters
    return _other(
        choice,
        FLOWER,
        pair=_FLOWER_PAIR,
        users=p.users**2,
        before=_FLOWER_KEYS + (p.users - 1) * _FLOWER_PAIR,
        masked=choice.layout.length * _FLOWER_SYMBOL,
        answer=p.users * _FLOWER_SHARE,
    )


def measure_speed(p: Parameters, folder: Path) -> Speed:
    """Measure this machine and disk; each measurement takes a fraction of a second.

    The part of the shares that is encoded has fewer symbols where N T products make up a symbol of
    all users: with a thousand users it would take minutes otherwise.
    """
    products = p.users * p.colluders
    width = max(_NARROWEST, min(_WIDEST, _PRODUCTS // products))
    rows = max(1, min(_ROWS, _PRODUCTS // products // width))
    matrix = np.ones((p.users, p.blocks + p.colluders), dtype=np.uint64)
    noise = np.ones((rows, p.colluders, width), dtype=np.uint32)
    zeros = np.zeros(rows, dtype=np.int64)
    ones = np.ones(rows, dtype=np.uint32)
    shares = np.empty((p.users, rows, width), dtype=np.uint32)

    def compute() -> None:
        encode(
            encoding=matrix,
            noise=noise,
            slot=zeros,
            place=zeros,
            scale=ones,
            q=p.field,
            shares=shares,
        )
        hashlib.sha256(shares.data)

    def write() -> None:
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(bytes(_PROBE_BYTES))
            stream.flush()
            os.fsync(stream.fileno())

    compute()  # once before it is measured: it is compiled now
    return Speed(
        timeit(compute, number=_TIMES) / _TIMES / shares.nbytes,
        timeit(write, number=1) / _PROBE_BYTES,
    )
