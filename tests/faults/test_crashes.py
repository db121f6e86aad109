"""A sample of the crashes of crashes.py, and signals that let a command clean up."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from crashes import STEPS, Step, hooked, killed_at, number_of_points, profiled, refused_at, seeded
from fault_lab import Bench, call, check_whole, forked, leftovers, scratch, waited

Benches = dict[str, Bench]


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


@pytest.mark.parametrize(("number", "part"), [(signal.SIGINT, 0.2), (signal.SIGTERM, 0.5), (signal.SIGINT, 0.8)])
@pytest.mark.parametrize(("recipe", "name"), [step for step in STEPS if step[1] != "init"])
def test_a_signal_cleans_up_at_once(
    benches: Benches, recipe: str, name: str, number: signal.Signals, part: float
) -> None:
    """At an operation on files: nothing half-written stays, and the step can be repeated."""
    step = Step(benches[recipe], name)
    at = 1 + int(part * number_of_points(step, hooked))
    state = step.start()

    def task() -> object:
        def strike(k: int, _name: str) -> None:
            if k == at:
                os.kill(os.getpid(), number)

        hooked(strike)
        return call(*step.command)

    assert waited(forked(task, silent=True)) == 128 + number
    assert leftovers(state.folder) == []
    check_whole(state.folder)
    step.again(state)
    step.finish(state)


# Runs the program, which sends itself a signal when it loads a module that every command needs
LOADING = """
import os, signal, sys
import topk_secagg_cli.__main__ as program

class Strike:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Strike())
program.main()
"""


def test_a_signal_while_the_program_is_loaded() -> None:
    """Nothing is written yet: the process simply dies of the signal, without a traceback."""
    end = subprocess.run(
        [sys.executable, "-c", LOADING, "--help"], capture_output=True, text=True, check=False, timeout=100
    )
    assert (end.returncode, end.stdout, end.stderr) == (-signal.SIGINT, "", "")
