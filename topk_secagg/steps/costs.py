"""What a round costs in bytes and memory."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ..algebra.field import ceil_div
from ..brief import Brief
from ..errors import CannotWrite, UsageError, amount
from ..protocol.constructions import construction
from ..protocol.deal import Block
from ..protocol.family import find_family
from ..protocol.parameters import (
    KEYS,
    MOMENTS,
    SEEDS,
    SKETCH,
    Parameters,
    rate_of_answer,
    rate_of_masked,
)
from ..storage.share import files_bytes

_LIBRARIES = 190 << 20  # what Python with numba and HDF5 takes before any work
_FILE_OVERHEAD = 4096  # of an HDF5 file, rounded up to what a disk gives it
_AGGREGATE_BYTES = 16  # index, symbol and real of one coordinate
_DECODE_BUFFER = 64 << 20


@dataclass(frozen=True, repr=False)
class Costs(Brief):
    """Bytes that a user sends: before there are gradients, X and Y; and the rates R1 and R2."""

    offline_bytes: int
    masked_bytes: int
    answer_bytes: int
    r1: float
    r2: float


def offline_bytes(p: Parameters) -> int:
    """What a user sends the others before there are gradients: keys, seeds or shares."""
    return construction(p).offline_bytes(family_of(p))


def family_of(p: Parameters) -> tuple[Block, ...]:
    """A family of blocks for a round with these parameters, if it deals by keys."""
    if p.dealing != KEYS:
        return ()
    return find_family(p, construction(p).points()) or ()


@dataclass(frozen=True)
class Sent:
    """What a user sends in a round in which nobody drops out: before it has a gradient, and with
    it, in bytes."""

    before: int
    online: int

    @property
    def total(self) -> int:
        """In all."""
        return self.before + self.online


def sent(p: Parameters, *, in_series: bool = False) -> Sent:
    """What a user sends with these parameters; nothing before in a later round of a series."""
    c = construction(p)
    online = c.masked_bytes + c.answer_bytes(p.users)
    return Sent(before=0 if in_series else offline_bytes(p), online=online)


def other_choice(p: Parameters) -> Parameters | None:
    """The same round by the other of `sketch`, which sends the least in all, and `moments`, which
    sends the least with the gradient; None where that is not possible."""
    names = ("users", "survivors", "colluders", "top_k", "length", "field", "clip", "max_weight")
    same = {name: getattr(p, name) for name in names}
    other = MOMENTS if p.construction == SKETCH else SKETCH
    try:
        chosen = Parameters.choose(**same, construction=other)
        if chosen.dealing == KEYS and not family_of(chosen):
            chosen = Parameters.choose(**same, construction=other, dealing=SEEDS)
    except UsageError:
        return None
    return chosen


def costs(p: Parameters, survivor_count: int, answer_count: int) -> Costs:
    """What a user sends in a round with |U1| survivors, of whom so many answer."""
    c = construction(p)
    masked = c.masked_bytes
    answer = c.answer_bytes(survivor_count)
    if answer_count < c.answer_shape(survivor_count).quorum:
        answer += c.answer_bytes(survivor_count, fallback=True)
    return Costs(
        offline_bytes=offline_bytes(p),
        masked_bytes=masked,
        answer_bytes=answer,
        r1=rate_of_masked(p, masked).measured,
        r2=rate_of_answer(p, answer).measured,
    )


@dataclass(frozen=True, repr=False)
class Footprint(Brief):
    """Bytes of a round in which nobody drops out: of the share files of a pair of users, of all
    files, of an X and of a Y. And the memory that its largest step takes, where it is known."""

    pair_bytes: int
    all_bytes: int
    masked_bytes: int
    answer_bytes: int
    memory_bytes: int | None = None


def footprint(p: Parameters) -> Footprint:
    """Bytes and memory of a round with these parameters, if all users survive."""
    c = construction(p)
    shares = files_bytes(p, family_of(p))
    x = c.masked_bytes
    y = c.answer_bytes(p.users)
    own = (
        p.symbol_bytes * (c.place_count + c.mask_count) + x + y + 4 * _FILE_OVERHEAD
    )  # secret, ledger, X and Y
    total = _AGGREGATE_BYTES * min(p.length, p.users * c.coordinate_count) + 4 * _FILE_OVERHEAD
    block = p.users * c.chunk_rows * c.width * 4
    memory = _LIBRARIES + max(5 * block, 16 * p.length, min(p.users * y, _DECODE_BUFFER))
    return Footprint(
        pair_bytes=ceil_div(shares, p.users),
        all_bytes=p.users * (shares + own) + total,
        masked_bytes=x,
        answer_bytes=y,
        memory_bytes=memory,
    )


def check_disk(folder: Path, p: Parameters, *, distributed: bool) -> None:
    """Refuse to start a round whose offline files the disk cannot hold."""
    files = footprint(p)
    place = folder.absolute()  # which need not be there yet
    free = shutil.disk_usage(
        next(there for there in (place, *place.parents) if there.exists())
    ).free
    # what one user sends and receives, or all
    needed = 2 * p.users * files.pair_bytes if distributed else files.all_bytes
    if needed > free:
        whose = "this user's files" if distributed else "the offline files of all users"
        raise CannotWrite(
            f"{whose} need {amount(needed)}, and the disk has {amount(free)} free",
            "free some space, or choose parameters that need less",
            "disk",
        )
