"""What a round costs, and which construction runs when none is asked for."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ..errors import CannotWrite, UsageError
from ..protocol.constructions import construction
from ..protocol.parameters import DEFAULT_PICKS, Parameters
from ..storage.share import file_bytes

PAPER_LIMIT = 1 << 30  # the paper's construction runs by default while its files stay below this
_LIBRARIES = 190 << 20  # what Python with numba and HDF5 takes before any work
_FILE_OVERHEAD = 4096  # of an HDF5 file, rounded up to what a disk gives it
_AGGREGATE_BYTES = 16  # index, symbol and real of one coordinate
_DECODE_BUFFER = 64 << 20


@dataclass(frozen=True)
class Cost:
    """Bytes of a round in which nobody drops out, and the memory that its largest step takes."""

    parameters: Parameters
    pair_bytes: int
    user_bytes: int
    all_bytes: int
    masked_bytes: int
    answer_bytes: int
    memory: int

    def needed(self, *, distributed: bool = False) -> int:
        """Bytes on this disk: for all users, or for what one of them sends and receives."""
        return 2 * self.user_bytes if distributed else self.all_bytes


def cost(p: Parameters) -> Cost:
    """Bytes and memory of a round with these parameters, everybody surviving."""
    c, pair = construction(p), file_bytes(p)
    x, y = c.masked_bytes, c.answer_bytes(p.users)
    own = 2 * p.symbol_bytes * c.rows + x + y + 4 * _FILE_OVERHEAD  # secret, ledger, X and Y
    total = _AGGREGATE_BYTES * min(p.length, p.users * c.entries) + 4 * _FILE_OVERHEAD
    block = p.users * c.block_rows * c.width * 4
    return Cost(
        parameters=p,
        pair_bytes=pair,
        user_bytes=p.users * pair,
        all_bytes=p.users * (p.users * pair + own) + total,
        masked_bytes=x,
        answer_bytes=y,
        memory=_LIBRARIES + max(5 * block, 16 * p.length, min(p.users * y, _DECODE_BUFFER)),
    )


def preferred(paper: Parameters, moments: Parameters | None) -> tuple[Parameters, str]:
    """The construction that runs when none is asked for, and why in one line."""
    needed = cost(paper).all_bytes
    if needed < PAPER_LIMIT:
        return paper, f"permutation, the paper's construction: its offline files take {amount(needed)}"
    if moments is None:
        raise UsageError(
            f"the paper's construction needs {amount(needed)} of offline files, and moments does not fit here",
            "choose a smaller K, or another field",
        )
    small = cost(moments).all_bytes
    return (moments, f"moments: its offline files take {amount(small)}, the paper's would take {amount(needed)}")


def default_picks(top_k: int, length: int) -> int:
    """P when none is asked for: 4, or as many as a bucket has coordinates."""
    return next(p for p in range(DEFAULT_PICKS, 0, -1) if p == 1 or length // -(-top_k // p) >= p)


def check_disk(folder: Path, p: Parameters, *, distributed: bool) -> None:
    """Refuse to start a round whose offline files the disk cannot hold."""
    free, needed = free_bytes(folder), cost(p).needed(distributed=distributed)
    if needed > free:
        whose = "this user's files" if distributed else "the offline files of all users"
        raise CannotWrite(
            f"{whose} need {amount(needed)}, and the disk has {amount(free)} free",
            "free some space, or choose parameters that need less",
            "disk",
        )


def free_bytes(folder: Path) -> int:
    """Free space on the disk where the folder is or will be."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def amount(count: float) -> str:
    """Bytes in a message: 1234567 is 1.23 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.3g} TB"
