"""The search for a family of keys: what it finds does not depend on how busy the machine is."""

import time
from itertools import count
from types import SimpleNamespace

import pytest

from topk_secagg.protocol import family


@pytest.fixture
def busy(monkeypatch):
    """A machine that does other things for hours between any two looks at the clock."""
    hours = count(0, 3600)
    clock = SimpleNamespace(thread_time=time.thread_time, monotonic=lambda: next(hours))
    return lambda: monkeypatch.setattr(family, "time", clock)


def test_a_busy_machine_finds_the_same_families(busy):
    search = family._families.__wrapped__
    idle = search(6, 4, 2)
    assert idle
    busy()
    assert search(6, 4, 2) == idle
