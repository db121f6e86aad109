"""A sample of the crashes of crashes.py, and signals that let a command clean up."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from crashes import STEPS, Step, hooked, killed_at, number_of_points, profiled, refused_at, seeded
from fault_lab import RECIPES, Bench, Recipe, Round, call, forked, leftovers, must, scratch, waited

Benches = dict[str, Bench]
LONG = Recipe("long", users=3, survivors=3, colluders=1, blocks=2, top_k=4, length=3000, masking=(1, 2, 3))


@pytest.fixture(scope="module")
def benches() -> Iterator[Benches]:
    with scratch() as folder:
        yield {name: seeded(name, folder / name) for name in {r for r, _ in STEPS}}


@pytest.mark.parametrize(("recipe", "name"), STEPS)
def test_killed_and_run_again(benches: Benches, recipe: str, name: str) -> None:
    step = Step(benches[recipe], name)
    operations = number_of_points(step, hooked)
    assert killed_at(step, hooked, operations // 2)
    assert killed_at(step, hooked, operations - 1)
    killed_at(step, profiled, 900)
    assert refused_at(step, operations * 2 // 3, errno.ENOSPC) in (0, 65, 66, 73)


@pytest.fixture(scope="module")
def long_round() -> Iterator[Round]:
    with scratch() as folder:
        state = Round(replace(LONG), folder / "round", folder / "inputs")
        state.prepare()
        must(*state.init())
        yield state


@pytest.mark.parametrize("delay", [0.0, 0.03, 0.1])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cleans_up_at_once(long_round: Round, number: signal.Signals, delay: float) -> None:
    pid = forked(lambda: call(*long_round.offline(1)), silent=True)
    deadline = time.monotonic() + 20
    while not leftovers(long_round.folder / "shares") and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(pid, number)
    assert waited(pid) == 128 + number
    assert leftovers(long_round.folder) == []
    assert not list((long_round.folder / "shares").rglob("*.h5"))


@pytest.mark.parametrize("name", ["mask", "freeze", "eliminate", "decode"])
def test_a_signal_at_a_short_command(benches: Benches, name: str) -> None:
    step = Step(benches["permutation"], name)
    state = step.start()
    points = number_of_points(step, hooked)
    step.start()

    def task() -> object:
        def strike(at: int, _name: str) -> None:
            if at == points * 2 // 3:
                os.kill(os.getpid(), signal.SIGTERM)

        hooked(strike)
        return call(*step.command)

    assert waited(forked(task, silent=True)) == 143
    assert leftovers(state.folder) == []
    step.again(state)
    step.finish(state)


@pytest.mark.parametrize("delay", [0.1, 0.2, 0.3])
@pytest.mark.xfail(reason="a signal while modules are loaded meets Python's own handler", strict=False)
def test_a_signal_while_the_program_is_loaded(delay: float) -> None:
    """Nothing is written yet: the process may simply die of the signal, but not with a traceback."""
    script = Path(sys.executable).with_name("topk-secagg")
    with scratch() as folder:
        state = Round(RECIPES["permutation"], folder / "round", folder / "inputs")
        must(*state.init())
        process = subprocess.Popen([script, *map(str, state.offline(1))], stderr=subprocess.PIPE, text=True)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert "Traceback" not in err
    assert process.returncode in (130, -signal.SIGINT)
