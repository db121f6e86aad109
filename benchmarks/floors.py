"""What the disk itself takes: the floors that the benchmarks compare with, and how processes are measured."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PROGRAM = Path(sys.executable).parent / "topk-secagg"
_CHUNK = 16 << 20


class Measured(NamedTuple):
    """One process: wall-clock seconds and the largest resident memory in MB."""

    seconds: float
    memory: float


def command(*arguments: object) -> Measured:
    """Run topk-secagg and measure it."""
    start = time.perf_counter()
    child = subprocess.Popen([str(PROGRAM), *map(str, arguments), "--quiet"])
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"topk-secagg {' '.join(map(str, arguments))} failed")
    return Measured(time.perf_counter() - start, usage.ru_maxrss / 1000)


def best(work: Callable[[], object], repeats: int = 5) -> float:
    """The shortest of a few runs, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def write_floor(folder: Path, files: int, size: int) -> float:
    """Seconds to write and fsync this number of new files of this size in this folder."""
    folder.mkdir()
    block = os.urandom(_CHUNK)
    start = time.perf_counter()
    for n in range(files):
        with (folder / str(n)).open("wb", buffering=0) as stream:
            left = size
            while left:
                left -= stream.write(block[: min(left, _CHUNK)])
            os.fsync(stream.fileno())
    return time.perf_counter() - start


def read_floor(folder: Path) -> float:
    """Seconds to read every file of the folder."""
    buffer = bytearray(_CHUNK)
    start = time.perf_counter()
    for path in sorted(folder.iterdir()):
        with path.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass
    return time.perf_counter() - start


def scratch() -> Path:
    """An empty folder on the disk where the benchmarks are run."""
    folder = Path("benchmark-scratch")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder
