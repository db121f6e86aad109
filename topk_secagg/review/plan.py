"""`plan`: what a round would cost with each construction, beside the paper's theorem and dense LightSecAgg."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..algebra.field import DEFAULT_FIELD, SMALL_FIELD
from ..algebra.linear import encode
from ..errors import UsageError
from ..gradients.sparsify import kept_energy, select_top
from ..protocol.constructions import construction
from ..protocol.parameters import Parameters
from ..protocol.rates import theorem_r1, theorem_r2
from ..steps.costs import amount, cost

PICKS = (1, 2, 4, 8)
THEOREM, DENSE = "Theorem 1", "LightSecAgg"
_PROBE_BYTES = 64 << 20
_START_UP = 1.0  # seconds


@dataclass(frozen=True)
class Row:
    """One way to run the round, or a peer: offline bytes of a pair and in all, and what a user broadcasts.

    `step` is what one step of the quantiser stands for, as a share of the clip.
    """

    name: str
    parameters: Parameters | None
    pair_bytes: int
    all_bytes: int
    masked_bytes: int
    answer_bytes: int
    step: float | None = None
    memory: int | None = None
    seconds: float | None = None
    energy: float | None = None

    @property
    def online_bytes(self) -> int:
        """What a user broadcasts in both phases when nobody drops out."""
        return self.masked_bytes + self.answer_bytes


@dataclass(frozen=True)
class Plan:
    """All rows, the one that `init` would choose, and where a peer needs less than that one."""

    rows: list[Row]
    best: Row
    remarks: list[str]


@dataclass(frozen=True)
class Speed:
    """Seconds a byte on this machine: encoding a share symbol, hashing it, writing it."""

    encode: float
    hash: float
    write: float


def plan(chosen: Parameters, gradient: npt.NDArray[Any] | None = None, speed: Speed | None = None) -> Plan:
    """Compare the constructions for the users, K and L of `chosen`, with several P and both fields."""
    variants = [chosen, *_variants(chosen)]
    rows = [_row(p, gradient, speed) for p in dict.fromkeys(variants)]
    rows.sort(key=lambda row: _order(row.parameters))
    best = next(row for row in rows if row.parameters == chosen)
    peers = [_theorem(chosen), _dense(chosen)]
    return Plan([*rows, *peers], best, _remarks(best, peers))


def _order(p: Parameters | None) -> tuple[bool, int, int]:
    return (p is None or p.picks > 0, -p.field if p else 0, p.picks if p else 0)


def _variants(base: Parameters) -> list[Parameters]:
    """The paper's construction, and `moments` with a few numbers of picks, in the default field and a small one."""
    found = []
    for field in dict.fromkeys((base.field, DEFAULT_FIELD, SMALL_FIELD)):
        for picks in (None, *PICKS):
            try:
                found.append(
                    Parameters.choose(
                        users=base.users,
                        survivors=base.survivors,
                        colluders=base.colluders,
                        top_k=base.top_k,
                        length=base.length,
                        field=field,
                        construction="moments" if picks else "permutation",
                        picks=picks,
                        spare=base.spare if picks else None,
                        clip=base.clip,
                        max_weight=base.max_weight,
                    )
                )
            except UsageError:
                continue  # it does not fit a bucket or the field
    return found


def _row(p: Parameters, gradient: npt.NDArray[Any] | None, speed: Speed | None) -> Row:
    c = cost(p)
    return Row(
        p.construction,
        p,
        c.pair_bytes,
        c.all_bytes,
        c.masked_bytes,
        c.answer_bytes,
        1 / (p.scale * p.clip),
        c.memory,
        seconds(p, speed) if speed else None,
        kept_energy(p, gradient, select_top(p, gradient)) if gradient is not None else None,
    )


def _theorem(p: Parameters) -> Row:
    """What the paper's scheme needs at its rates: 2 L L/(U-T) symbols a pair, (R1 + R2) L online."""
    symbol = math.log2(p.field) / 8
    pair = round(2 * p.length * p.length * theorem_r2(p) * symbol)
    x, y = (round(rate(p) * p.length * symbol) for rate in (theorem_r1, theorem_r2))
    return Row(THEOREM, None, pair, p.users**2 * pair, x, y)


def _dense(p: Parameters) -> Row:
    """LightSecAgg sends whole gradients: L/(U-T) symbols a pair offline, L and L/(U-T) online."""
    symbol = p.symbol_bytes
    part = round(p.length * theorem_r2(p) * symbol)
    return Row(DENSE, None, part, p.users**2 * part, p.length * symbol, part)


def _remarks(best: Row, peers: list[Row]) -> list[str]:
    """Where a peer needs less than the construction that would run."""
    remarks = []
    for peer in peers:
        for what, mine, theirs in (
            ("offline", best.all_bytes, peer.all_bytes),
            ("online", best.online_bytes, peer.online_bytes),
        ):
            if theirs < mine:
                remarks.append(f"{peer.name} needs less {what}: {amount(theirs)} instead of {amount(mine)}")
    return remarks


def measure_speed(p: Parameters, folder: Path) -> Speed:
    """A quick measurement on this machine and disk: a fraction of a second each."""
    q, width, rows = p.field, 4096, 8
    matrix = np.ones((p.users, p.blocks + p.colluders), dtype=np.uint64)
    noise = np.ones((rows, p.colluders, width), dtype=np.uint32)
    zeros, ones = np.zeros(rows, dtype=np.int64), np.ones(rows, dtype=np.uint32)
    shares = np.empty((p.users, rows, width), dtype=np.uint32)

    def work() -> None:
        encode(matrix, noise, zeros, zeros, ones, q, shares)

    work()
    return Speed(
        encode=_seconds(work) / shares.nbytes,
        hash=_seconds(lambda: hashlib.sha256(shares.data).digest()) / shares.nbytes,
        write=_write_seconds(folder) / _PROBE_BYTES,
    )


def seconds(p: Parameters, speed: Speed) -> float:
    """About how long `run` takes: start, encode, hash and write all shares, then read and hash those that are used."""
    c = construction(p)
    used = c.offline_bytes * c.entries / c.rows
    return _START_UP + c.offline_bytes * (speed.encode + speed.hash + speed.write) + used * (speed.hash + speed.encode)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(3):
        work()
    return (time.perf_counter() - start) / 3


def _write_seconds(folder: Path) -> float:
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    block = bytes(1 << 20)
    start = time.perf_counter()
    with tempfile.TemporaryFile(dir=there) as stream:
        for _ in range(_PROBE_BYTES // len(block)):
            stream.write(block)
        stream.flush()
        os.fsync(stream.fileno())
    return time.perf_counter() - start
