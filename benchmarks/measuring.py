"""What the benchmarks share: processes and floors on the clock, and figures as ratios with their
spread."""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PROGRAM = Path(sys.executable).parent / "topk-secagg"
_CHUNK = 1 << 20


class Measured(NamedTuple):
    """One process: wall-clock seconds and the largest resident memory in MB."""

    seconds: float
    memory: float


@dataclass
class Figure:
    """Ours against a floor or a peer, repeat by repeat; `most` is the ratio that is wanted."""

    part: str
    name: str
    ours: list[float]
    against: str
    theirs: list[float]
    unit: str = "s"
    most: float | None = None
    remark: str = ""
    ratios: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.ratios = [a / b for a, b in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        """The median over the repeats."""
        return statistics.median(self.ratios)

    @property
    def met(self) -> bool | None:
        """Whether the median is as wanted."""
        return None if self.most is None else self.ratio <= self.most


# measures a command in a process whose own memory is small: what is forked counts the memory of its
# parent as its own
_LAUNCHER = """
import os, sys, time
start = time.perf_counter()
quiet = os.open(os.devnull, os.O_WRONLY)
silent = [(os.POSIX_SPAWN_DUP2, quiet, 1)]
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=silent)
_, status, usage = os.wait4(pid, 0)
print(status, time.perf_counter() - start, usage.ru_maxrss / 1000)
"""


def process(*command: object) -> Measured:
    """Run a command and measure it."""
    launched = [sys.executable, "-S", "-c", _LAUNCHER, *map(str, command)]
    done = subprocess.run(launched, check=True, capture_output=True, text=True)
    status, seconds, memory = map(float, done.stdout.split())
    if status:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
    return Measured(seconds, memory)


def command(*arguments: object) -> Measured:
    """Run topk-secagg and measure it."""
    return process(PROGRAM, *arguments, "--quiet")


def seconds(work: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def write_and_hash(folder: Path, files: int, size: int) -> float:
    """Seconds to write, hash and fsync this number of new files of this size; they are removed
    again."""
    folder.mkdir()
    block = os.urandom(_CHUNK)
    start = time.perf_counter()
    for n in range(files):
        with (folder / str(n)).open("wb", buffering=0) as stream:
            digest = hashlib.sha256()
            left = size
            while left:
                piece = block[: min(left, _CHUNK)]
                digest.update(piece)
                left -= stream.write(piece)
            os.fsync(stream.fileno())
    seconds = time.perf_counter() - start
    shutil.rmtree(folder)
    return seconds


def read_and_hash(paths: Iterable[Path]) -> float:
    """Seconds to read and hash these files."""
    buffer = bytearray(_CHUNK)
    start = time.perf_counter()
    for path in paths:
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as stream:
            while count := stream.readinto(buffer):
                digest.update(memoryview(buffer)[:count])
    return time.perf_counter() - start


def gradients(folder: Path, length: int, users: int, used: int | None = None) -> Path:
    """Heavy-tailed random gradients, a .npy file a user: cubes of normal numbers, each file turned
    by an offset.

    Only the first `used` differ; the files of the others are links.
    """
    folder.mkdir(parents=True)
    values = np.random.default_rng(0).standard_normal(length, dtype=np.float32)
    values *= values * values * np.float32(1e-3)
    np.clip(values, -1, 1, out=values)
    for n in range(1, users + 1):
        path = folder / f"user-{n:02}.npy"
        if n <= (used or users):
            np.save(path, np.roll(values, n * (length // 97)))
        else:
            os.link(folder / "user-01.npy", path)
    return folder


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder on the disk where the benchmarks are run."""
    folder = Path("benchmark-scratch")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def machine() -> dict[str, Any]:
    """Where this was measured."""
    import platform

    names = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next(
        (line.split(":")[1].strip() for line in names.splitlines() if "model name" in line), ""
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    version = platform.python_version()
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory),
        "python": version,
    }


def subplots(rows: int, columns: int, **options: Any) -> tuple[Any, Any]:
    """An empty figure and its panels, to be saved as SVG; the same data give the same bytes."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {"svg.hashsalt": "bench", "svg.fonttype": "none", "font.size": 8, "axes.titlesize": 8}
    )
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, layout="constrained", **options)
