"""Work on several cores: kernels, hashing and reading release the GIL, so threads do."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np

Result = TypeVar("Result")
WORTH_THREADS = 1 << 16  # values of each user


def reuse_memory() -> None:
    """Let freed arrays of up to 16 MB be used again, instead of being returned to the system.

    New pages can cost more than the arithmetic on them. glibc keeps blocks that are no larger than
    one that was freed before; this one is never touched. Elsewhere it has no effect.
    """
    np.empty(1 << 24, dtype=np.uint8)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ahead(calls: Iterable[Callable[[], Result]], threads: int = 1) -> Iterator[Result]:
    """The results in order; while one is used, up to `threads` of the next calls are running."""
    if not threads:
        yield from (call() for call in calls)
        return
    with ThreadPoolExecutor(threads) as pool:
        running: deque[Future[Result]] = deque()
        for call in calls:
            running.append(pool.submit(call))
            if len(running) > threads:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


def together(calls: Iterable[Callable[[], object]], threads: int) -> None:
    """Make all calls, up to `threads` at a time."""
    deque(ahead(calls, threads), maxlen=0)


def of_each(
    users: Iterable[int], work: Callable[[int], Result], values: int = 0
) -> dict[int, Result]:
    """What `work` gives for each user, in order; on all cores where each has so many values that
    this is worth it."""
    users = list(users)
    threads = cores() if values > WORTH_THREADS else 0
    results = ahead((partial(work, n) for n in users), threads)
    return dict(zip(users, results, strict=True))
