"""Several processes at once: nothing is spoilt, and the loser gets 75 or the same result."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from crashes import Step, seeded
from fault_lab import Bench, Recipe, Round, call, check_whole, fingerprint, forked, leftovers, must, scratch, waited

COMMANDS = ("init", "offline", "mask", "freeze", "eliminate", "decode", "run")
ALL = tuple(range(1, 9))
MANY = Recipe("many", users=8, survivors=6, colluders=2, blocks=3, length=60, masking=ALL, answering=ALL)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with scratch() as folder:
        yield seeded("permutation", folder)


def at_once(*commands: tuple[object, ...]) -> list[int]:
    """Start all commands at the same moment; their exit codes."""
    gate, opener = os.pipe()

    def task(command: tuple[object, ...]) -> object:
        os.close(opener)
        os.read(gate, 1)
        return call(*command)

    children = [forked(lambda command=command: task(command), silent=True) for command in commands]
    os.close(opener)
    codes = [waited(child) for child in children]
    os.close(gate)
    return codes


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("number", [2, 5])
def test_the_same_step_at_once(bench: Bench, name: str, number: int) -> None:
    step = Step(bench, name)
    for _ in range(2):
        state = step.start()
        codes = at_once(*[step.command] * number)
        assert 0 in codes, codes
        assert set(codes) <= {0, 75}, codes
        assert leftovers(state.folder) == []
        check_whole(state.folder)
        step.again(state)
        step.finish(state)


def test_two_gradients_at_once(bench: Bench) -> None:
    """Only one of them is ever masked."""
    for _ in range(4):
        state = bench.at("offline")
        commands = [("mask", state.folder, "--user", 1, "--gradient", state.gradient(n)) for n in (1, 2, 1, 2)]
        codes = at_once(*commands)
        winners = {commands[i][5] for i, code in enumerate(codes) if code == 0}
        assert len(winners) == 1, codes
        assert set(codes) <= {0, 75, 77}, codes


def test_two_survivor_sets_at_once(bench: Bench) -> None:
    state = bench.at("masked")
    sets = ("1,2,3", "1,2,4", "2,3,4")
    codes = at_once(*[(*state.freeze(), "--only", only) for only in sets])
    assert codes.count(0) == 1, codes
    assert set(codes) <= {0, 75, 77}, codes


def test_all_users_in_parallel() -> None:
    with scratch() as folder:
        state = Round(MANY, folder / "round", folder / "inputs")
        state.prepare()
        must(*state.init())
        commands = state.commands()
        for stage in ("offline", "masked", "frozen", "answered", "decoded"):
            assert set(at_once(*commands[stage])) == {0}, stage
            assert leftovers(state.folder) == []
            check_whole(state.folder)
        before = fingerprint(state.folder)
        state.check_aggregate()
        for stage in ("offline", "masked", "answered"):
            assert set(at_once(*commands[stage], *commands[stage])) <= {0, 75}, stage
        assert fingerprint(state.folder) == before


def test_everything_at_once_again_and_again(bench: Bench) -> None:
    """All commands of a round at the same time, until it is done: whoever comes too early is told so."""
    state = bench.at("init")
    commands = [c for stage, group in state.commands().items() if stage != "init" for c in group]
    commands = [c for c in commands if c[0] != "freeze"] + [("freeze", state.folder, "--only", "1,2,3,4")]
    for _ in range(4):
        codes = at_once(*commands)
        assert set(codes) <= {0, 66, 69, 75}, dict(zip(map(str, commands), codes, strict=True))
        assert leftovers(state.folder) == []
        if not any(codes):
            break
    for step in ("offline", "mask", "freeze", "eliminate", "decode"):  # what is not done yet, in order
        for command in commands:
            if command[0] == step:
                must(*command)
    state.check_aggregate()
