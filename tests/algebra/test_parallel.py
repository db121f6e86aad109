"""Threads: all of the work is done once, in order, and errors reach the caller."""

from __future__ import annotations

import threading

import pytest

from topk_secagg.algebra.parallel import ahead


@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parametrize("threads", [0, 1, 2, 3])
def test_results_come_in_order(count: int, threads: int) -> None:
    assert list(ahead(((lambda i=i: i * i) for i in range(count)), threads)) == [
        i * i for i in range(count)
    ]


@pytest.mark.parametrize("threads", [1, 2])
def test_the_next_calls_run_while_a_result_is_used(threads: int) -> None:
    started = [threading.Event() for _ in range(3)]
    results = ahead([lambda: 1, *(event.set for event in started)], threads)
    assert next(results) == 1
    assert all(event.wait(10) for event in started[:threads])
    assert not started[threads].is_set()


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_an_error_comes_in_its_turn(threads: int) -> None:
    def fail() -> int:
        raise OSError

    results = ahead([lambda: 1, fail, lambda: 3], threads)
    assert next(results) == 1
    with pytest.raises(OSError):  # noqa: PT011 - any
        next(results)
