"""`plan`: what a round would cost with each construction, compared with the paper's theorem,
LightSecAgg and Flower's SecAgg+."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from timeit import timeit
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..algebra.field import DEFAULT_FIELD, SMALL_FIELD
from ..algebra.linear import encode
from ..brief import Brief
from ..errors import UsageError, amount
from ..gradients.reduce import kept_share
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
from ..rounds.costs import Footprint, choice_of, family_of, footprint

THEOREM = "Theorem 1"
DENSE = "LightSecAgg"
FLOWER = "SecAgg+"
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
    """The cost of one way to run the round, or of a peer; a `step` of the quantiser is a fraction
    of the clip."""

    name: str
    parameters: Parameters | None = None
    step: float | None = None
    seconds: float | None = None
    energy: float | None = None


@dataclass(frozen=True, repr=False)
class Plan(Brief):
    """All rows, the one that `init` would choose, and where a peer needs less than that one.

    `certain_answers` (D + 2T) answers that agree exclude T users that lie together; if all users
    answer, their agreement excludes `liars_excluded`.
    """

    rows: list[PlanRow]
    best: PlanRow
    remarks: list[str]
    certain_answers: int
    liars_excluded: int


class Speed(NamedTuple):
    """Seconds per byte on this machine to encode and hash shares, and to write them."""

    compute: float
    write: float


def plan(
    chosen: Parameters, gradient: npt.NDArray[Any] | None = None, speed: Speed | None = None
) -> Plan:
    """What a round would cost: compare the constructions, in both fields.

    Arguments:
    chosen: the parameters of the round (`Parameters`).
    gradient: a flat vector of L coordinates, to compute what part of its energy each choice keeps.
    speed: of this machine, from `measure_speed`, to estimate how long each choice takes.

    Returns a Plan: its `rows`, the `best` of them, which `init` would choose, and `remarks`.
    """
    variants = sorted(dict.fromkeys([chosen, *_variants(chosen)]), key=_order)
    rows = [_row(p, gradient, speed) for p in variants]
    best = rows[variants.index(chosen)]
    peers = [_theorem(chosen), _dense(chosen), _flower(chosen)]
    remarks = [remark for peer in peers if (remark := _needs_less(peer, best))]
    return Plan(
        rows=[*rows, *peers],
        best=best,
        remarks=remarks,
        certain_answers=certain_quorum(chosen),
        liars_excluded=liars_excluded(chosen, chosen.users),
    )


def _order(p: Parameters) -> tuple[int, int, bool, int]:
    """Construction by construction, the field with the finer resolution first."""
    return CONSTRUCTIONS.index(p.construction), -p.field, p.dealing == SHARES, p.picks


def _needs_less(peer: PlanRow, best: PlanRow) -> str:
    """Where a peer sends less than the choice, if it does anywhere."""
    sent = {
        "before": (peer.offline_bytes, best.offline_bytes),
        "with the gradient": (peer.online_bytes, best.online_bytes),
        "in all": (peer.total_bytes, best.total_bytes),
    }
    less = [
        f"{when} ({amount(theirs)} instead of {amount(ours)})"
        for when, (theirs, ours) in sent.items()
        if theirs < ours
    ]
    return f"{peer.name} sends less {', '.join(less)}" if less else ""


def _variants(base: Parameters) -> list[Parameters]:
    """The paper's construction and `sketch`, dealt as `init` does and by written-out shares, in the
    default field and a small one."""
    variants = []
    names = ("users", "survivors", "colluders", "top_k", "length", "whole", "max_weight")
    same = {name: getattr(base, name) for name in names}
    for field in {base.field, DEFAULT_FIELD, SMALL_FIELD}:
        with suppress(UsageError):  # it does not fit the field
            variants.append(Parameters.choose(**same, field=field))
        variants += _sketches(same | {"field": field})
    return variants


def _sketches(same: dict[str, Any]) -> list[Parameters]:
    """`sketch` dealt as `init` does, and by written-out shares."""
    sketches = []
    with suppress(UsageError):
        written = Parameters.choose(**same, construction=SKETCH, dealing=SHARES)
        small = choice_of(Parameters.choose(**same), SKETCH)
        sketches = [written] if small is None else [small, written]
    return sketches


def _row(p: Parameters, gradient: npt.NDArray[Any] | None, speed: Speed | None) -> PlanRow:
    c = construction(p)
    step = p.users * p.max_weight / ((p.field - 1) // 2)
    time = None
    # `run` starts, encodes, hashes and writes all shares, then reads and hashes the used ones;
    # keys are expanded by the dealer and by who holds them
    if speed:
        written = 0 if p.dealing == KEYS else p.users**2 * c.share_bytes
        writing = written * (speed.compute + speed.write)
        reading = written * min(1, c.entries / c.rows) * speed.compute
        drawing = p.users * _expanded(p) * c.share_bytes * speed.compute
        time = _START_UP + writing + reading + drawing
    energy = kept_share(gradient, gradient[c.select(gradient)]) if gradient is not None else None
    return PlanRow(
        **vars(footprint(p)),
        name=p.construction,
        parameters=p,
        step=step,
        seconds=time,
        energy=energy,
    )


def _expanded(p: Parameters) -> int:
    """How many streams of a dealer are expanded to as many symbols as a share has."""
    family = family_of(p)
    return len(family) + sum(map(len, family))


def _theorem(p: Parameters) -> PlanRow:
    """The paper's scheme at its rates: 2 L L/(U-T) symbols per pair offline, (R1 + R2) L online."""
    symbol = math.log2(p.field) / 8
    pair = round(2 * p.length * p.length * theorem_r2(p) * symbol)
    return PlanRow(
        name=THEOREM,
        pair_bytes=pair,
        all_bytes=p.users**2 * pair,
        offline_bytes=(p.users - 1) * pair,
        masked_bytes=round(theorem_r1(p) * p.length * symbol),
        answer_bytes=round(theorem_r2(p) * p.length * symbol),
    )


def _dense(p: Parameters) -> PlanRow:
    """LightSecAgg sends whole gradients: L/(U-T) symbols per pair offline, L and L/(U-T) online."""
    part = round(p.length * theorem_r2(p) * p.symbol_bytes)
    return PlanRow(
        name=DENSE,
        pair_bytes=part,
        all_bytes=p.users**2 * part,
        offline_bytes=(p.users - 1) * part,
        masked_bytes=p.length * p.symbol_bytes,
        answer_bytes=part,
    )


def _flower(p: Parameters) -> PlanRow:
    """SecAgg+ agrees on keys and shares seeds, with all users as neighbours; then it sends all
    entries, and shares of the seeds of all users."""
    before = _FLOWER_KEYS + (p.users - 1) * _FLOWER_PAIR
    return PlanRow(
        name=FLOWER,
        pair_bytes=_FLOWER_PAIR,
        all_bytes=p.users * before,
        offline_bytes=before,
        masked_bytes=p.length * _FLOWER_SYMBOL,
        answer_bytes=p.users * _FLOWER_SHARE,
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
