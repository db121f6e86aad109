"""`plan`: what a round would cost, for each construction that could run it."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..algebra.field import DEFAULT_FIELD
from ..errors import CannotWrite, UsageError
from ..gradients.sparsify import kept_energy, select_top, values_at
from ..protocol.parameters import SYMBOL_BYTES, Parameters
from ..protocol.rates import theorem_r1, theorem_r2
from ..storage.public import masked_bytes
from ..storage.shares import check_shape

PICKS = (1, 2, 4, 8)
AUTOMATIC_LIMIT = 1 << 30  # the paper's construction is taken unasked while its files stay below this
ENOUGH_ENERGY = 0.99
_LIBRARIES = 230 << 20  # what Python with numba, galois and HDF5 takes before any work
_FILE_OVERHEAD = 4096  # of an HDF5 file, rounded up to what a disk gives it
_AGGREGATE_BYTES = 16  # index, symbol and real of one coordinate
_DECODE_BUFFER = 64 << 20
_PROBE_BYTES = 64 << 20
_START_UP = 1.5  # seconds


@dataclass(frozen=True)
class Speed:
    """Seconds a byte on this machine: encoding a share symbol, hashing it, writing and reading it."""

    encode: float
    hash: float
    write: float


@dataclass(frozen=True)
class Choice:
    """One way to run the round."""

    parameters: Parameters
    pair_bytes: int
    user_bytes: int
    all_bytes: int
    masked_bytes: int
    answer_bytes: int
    memory: int
    seconds: float | None = None
    energy: float | None = None

    def needed(self, *, distributed: bool = False) -> int:
        """Bytes on this disk: for all users, or for what one of them sends and receives."""
        return 2 * self.user_bytes if distributed else self.all_bytes

    @property
    def online_bytes(self) -> int:
        """What a user broadcasts in both phases when nobody drops out."""
        return self.masked_bytes + self.answer_bytes


def cost(p: Parameters) -> Choice:
    """Bytes and memory of a round with these parameters, everybody surviving."""
    pair = p.share_bytes + math.prod(check_shape(p)) + _FILE_OVERHEAD
    x, y = masked_bytes(p), p.groups * p.answer_width(p.users) * SYMBOL_BYTES
    own = 2 * SYMBOL_BYTES * p.rows + x + y + 4 * _FILE_OVERHEAD  # secret, ledger, X and Y
    total = _AGGREGATE_BYTES * min(p.length, p.users * p.entries) + 4 * _FILE_OVERHEAD
    block = p.users * p.block_rows * p.width * SYMBOL_BYTES
    return Choice(
        parameters=p,
        pair_bytes=pair,
        user_bytes=p.users * pair,
        all_bytes=p.users * (p.users * pair + own) + total,
        masked_bytes=x,
        answer_bytes=y,
        memory=_LIBRARIES + max(5 * block, 4 * p.length * SYMBOL_BYTES, min(p.users * y, _DECODE_BUFFER)),
    )


def choices(
    base: Parameters, gradient: npt.NDArray[Any] | None = None, speed: Speed | None = None
) -> list[Choice]:
    """The paper's construction, and rotation with a few numbers of picks (and the one that was asked for)."""
    result = []
    for picks in sorted({0, *PICKS, base.picks}):
        try:
            p = _variant(base, picks)
        except UsageError:
            continue  # so many picks do not fit a bucket
        choice = cost(p)
        if gradient is not None:
            kept = kept_energy(p, gradient, values_at(gradient, select_top(p, gradient)))
            choice = replace(choice, energy=kept)
        if speed is not None:
            choice = replace(choice, seconds=seconds(p, speed))
        result.append(choice)
    return result


def _variant(base: Parameters, picks: int) -> Parameters:
    return Parameters.choose(
        users=base.users,
        survivors=base.survivors,
        colluders=base.colluders,
        blocks=base.blocks,
        top_k=base.top_k,
        length=base.length,
        field=base.field,
        construction="rotation" if picks else "permutation",
        picks=picks or None,
        elimination=base.elimination,
        clip=base.clip,
    )


def recommended(
    found: Sequence[Choice], free: int | None = None, *, distributed: bool = False
) -> Choice | None:
    """The paper's construction while it is small; else the fewest picks that keep enough energy and fit.

    Where the energy is not known, four picks are taken to be enough.
    """
    fitting = [c for c in found if free is None or c.needed(distributed=distributed) <= free]
    paper = [c for c in fitting if not c.parameters.buckets and c.all_bytes < AUTOMATIC_LIMIT]
    buckets = [c for c in fitting if c.parameters.buckets]
    enough = [
        c for c in buckets if (c.energy if c.energy is not None else c.parameters.picks / 4) >= ENOUGH_ENERGY
    ]
    best = paper or enough[:1] or buckets[-1:]
    return best[0] if best else None


def arguments(p: Parameters) -> str:
    """The options of `init` that choose exactly these parameters, apart from --like or --length."""
    given = [f"--users {p.users} --survivors {p.survivors} --colluders {p.colluders} --top-k {p.top_k}"]
    if p.blocks != p.survivors - p.colluders:
        given.append(f"--blocks {p.blocks}")
    if p.field != DEFAULT_FIELD:
        given.append(f"--field {p.field}")
    if p.clip != 1:
        given.append(f"--clip {p.clip!r}")
    if p.elimination != "auto":
        given.append(f"--elimination {p.elimination}")
    return " ".join([*given, *choosing(p)])


def paper_online_bytes(p: Parameters) -> int:
    """What Theorem 1 has a user broadcast: (R1 + R2) L symbols."""
    return round((theorem_r1(p) + theorem_r2(p)) * p.length * SYMBOL_BYTES)


def check_disk(
    folder: Path, p: Parameters, command: Callable[[Parameters], str], *, distributed: bool
) -> None:
    """Refuse to start a round whose offline files the disk cannot hold, and say what would fit."""
    free = free_bytes(folder)
    needed = cost(p).needed(distributed=distributed)
    if needed > free:
        whose = "this user's files" if distributed else "the offline files of all users"
        raise CannotWrite(
            f"{whose} need {_amount(needed)}, and the disk has {_amount(free)} free",
            advice(choices(p), free, command, distributed=distributed),
        )


def advice(
    found: Sequence[Choice], free: int, command: Callable[[Parameters], str], *, distributed: bool
) -> str:
    """The call that would do, or how much room there must be for any to do."""
    best = recommended(found, free, distributed=distributed)
    if best:
        return f"this would do: {command(best.parameters)}"
    least = min(c.needed(distributed=distributed) for c in found)
    return f"nothing fits here, the smallest choice needs {_amount(least)}; see `topk-secagg plan`"


def choosing(p: Parameters) -> list[str]:
    """The options that choose the construction."""
    return ["--construction", p.construction, *(["--picks", str(p.picks)] if p.buckets else [])]


def _amount(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def free_bytes(folder: Path) -> int:
    """Free space on the disk where the folder is or will be."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def measure_speed(p: Parameters, folder: Path) -> Speed:
    """A quick measurement on this machine and disk: a fraction of a second each."""
    from ..algebra.kernels import encode

    q, width, rows = p.field, min(p.width, 4096), 8
    matrix = np.ones((p.users, p.quorum), dtype=np.uint64)
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
    """About how long `run` takes on this machine: encode and write all shares, read those that are used."""
    symbols = p.users**2 * p.share_bytes
    used = symbols * p.entries / p.rows
    return (
        _START_UP + symbols * (speed.encode + speed.hash + speed.write) + used * (speed.hash + speed.encode)
    )


def _seconds(work: Any) -> float:
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
