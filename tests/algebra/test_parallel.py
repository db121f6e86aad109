"""Threads: all of the work is done once, in order, and errors reach the caller."""

from __future__ import annotations

import threading

import pytest

from topk_secagg.algebra import parallel
from topk_secagg.algebra.parallel import ahead, in_parts


@pytest.mark.parametrize("rows", [0, 1, 255, 512, 1000, 5001])
@pytest.mark.parametrize("cores", [1, 2, 3])
def test_every_row_is_done_once(rows: int, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_cores", lambda: cores)
    done: list[int] = []
    in_parts(lambda part: done.extend(range(part.start, part.stop)), rows)
    assert sorted(done) == list(range(rows))


def test_an_error_in_a_part_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_cores", lambda: 2)

    def work(part: slice) -> None:
        if part.start:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_parts(work, 1000)


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_results_come_in_order(count: int) -> None:
    assert list(ahead((lambda i=i: i * i) for i in range(count))) == [i * i for i in range(count)]


def test_the_next_call_runs_while_a_result_is_used() -> None:
    started = threading.Event()
    calls = [lambda: 1, started.set, lambda: 3]
    results = ahead(calls)
    assert next(results) == 1
    assert started.wait(10)


def test_an_error_comes_in_its_turn() -> None:
    def fail() -> int:
        raise OSError

    results = ahead([lambda: 1, fail, lambda: 3])
    assert next(results) == 1
    with pytest.raises(OSError):  # noqa: PT011 - any
        next(results)
