"""What a round costs in bytes and memory."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ..brief import Brief
from ..errors import CannotWrite, amount
from ..protocol.constructions import construction
from ..protocol.parameters import Parameters
from ..storage.share import file_bytes

_LIBRARIES = 190 << 20  # what Python with numba and HDF5 takes before any work
_FILE_OVERHEAD = 4096  # of an HDF5 file, rounded up to what a disk gives it
_AGGREGATE_BYTES = 16  # index, symbol and real of one coordinate
_DECODE_BUFFER = 64 << 20


@dataclass(frozen=True, repr=False)
class Cost(Brief):
    """Bytes of a round in which nobody drops out: of the share files of a pair of users, of all
    files, of an X and of a Y. And the memory that its largest step takes, where it is known."""

    pair_bytes: int
    all_bytes: int
    masked_bytes: int
    answer_bytes: int
    memory_bytes: int | None = None


def cost(p: Parameters) -> Cost:
    """Bytes and memory of a round with these parameters, if all users survive."""
    c = construction(p)
    pair = file_bytes(p)
    x = c.masked_bytes
    y = c.answer_bytes(p.users)
    own = 2 * p.symbol_bytes * c.rows + x + y + 4 * _FILE_OVERHEAD  # secret, ledger, X and Y
    total = _AGGREGATE_BYTES * min(p.length, p.users * c.entries) + 4 * _FILE_OVERHEAD
    block = p.users * c.chunk_rows * c.width * 4
    memory = _LIBRARIES + max(5 * block, 16 * p.length, min(p.users * y, _DECODE_BUFFER))
    return Cost(pair, p.users * (p.users * pair + own) + total, x, y, memory)


def check_disk(folder: Path, p: Parameters, *, distributed: bool) -> None:
    """Refuse to start a round whose offline files the disk cannot hold."""
    c = cost(p)
    place = folder.absolute()  # which need not be there yet
    free = shutil.disk_usage(
        next(there for there in (place, *place.parents) if there.exists())
    ).free
    # what one user sends and receives, or all
    needed = 2 * p.users * c.pair_bytes if distributed else c.all_bytes
    if needed > free:
        whose = "this user's files" if distributed else "the offline files of all users"
        raise CannotWrite(
            f"{whose} need {amount(needed)}, and the disk has {amount(free)} free",
            "free some space, or choose parameters that need less",
            "disk",
        )
