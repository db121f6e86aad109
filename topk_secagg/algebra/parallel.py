"""Work on several cores: kernels, hashing and reading release the GIL, so threads do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
_ROWS_OF_A_PART = 256


def _cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_parts(work: Callable[[slice], None], rows: int) -> None:
    """Do the work for all rows, in as many parts as there are cores, unless the parts would be too small to pay."""
    parts = min(_cores(), rows // _ROWS_OF_A_PART)
    if parts < 2:
        work(slice(0, rows))
        return
    cuts = [rows * i // parts for i in range(parts + 1)]
    with ThreadPoolExecutor(parts) as threads:
        list(threads.map(work, map(slice, cuts, cuts[1:])))


def ahead(calls: Iterable[Callable[[], Result]], *, pays: bool = True) -> Iterator[Result]:
    """The results in order; while one is used, the next call is already running, if that pays."""
    if not pays:
        yield from (call() for call in calls)
        return
    with ThreadPoolExecutor(1) as thread:
        running = None
        for call in calls:
            following = thread.submit(call)
            if running is not None:
                yield running.result()
            running = following
        if running is not None:
            yield running.result()
