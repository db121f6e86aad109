"""Several processes at once: nothing is damaged, and the loser gets 75 or the same result."""

import os

import pytest
from crashes import Step
from fault_lab import check_whole, fingerprint, scratch
from played import Command, Recipe, Round, call, forked, leftovers, must, waited

STEPS = (
    *(
        ("permutation", name)
        for name in ("init", "offline", "mask", "freeze", "eliminate", "decode", "run")
    ),
    *(("shares", name) for name in ("offline", "decode")),
    *(("sealed", name) for name in ("offline", "freeze", "confirm", "forget")),
    *(("residual", name) for name in ("mask", "forget")),
)
ALL = tuple(range(1, 9))
SIZES = {"users": 8, "survivors": 6, "colluders": 2, "top_k": 8, "length": 60, "picks": 2}
MANY = Recipe("many", construction="sketch", masking=ALL, answering=ALL, **SIZES)


@pytest.fixture
def bench(benches):
    return benches["permutation"]


def at_once(*commands: Command) -> list[int]:
    """Start all commands at the same moment; their exit codes."""
    gate, opener = os.pipe()

    def task(command: Command) -> object:
        os.close(opener)
        os.read(gate, 1)
        return call(*command)

    children = [forked(lambda command=command: task(command), silent=True) for command in commands]
    os.close(opener)
    codes = [waited(child) for child in children]
    os.close(gate)
    return codes


@pytest.mark.parametrize(("recipe", "name"), STEPS)
def test_the_same_step_at_once(benches, recipe, name):
    step = Step(benches[recipe], name)
    for number in (2, 5):
        state = step.start()
        codes = at_once(*[step.command] * number)
        assert 0 in codes, codes
        assert set(codes) <= {0, 75}, codes
        step.recovers(state)


def test_two_gradients_at_once(bench):
    """Only one of them is ever masked."""
    for _ in range(4):
        state = bench.at("offline")
        gradients = [state.gradient(n) for n in (1, 2, 1, 2)]
        codes = at_once(*(state.mask(1, gradient=gradient) for gradient in gradients))
        winners = {gradient for gradient, code in zip(gradients, codes, strict=True) if code == 0}
        assert len(winners) == 1, codes
        assert set(codes) <= {0, 75, 77}, codes


def test_two_survivor_sets_at_once(bench):
    state = bench.at("masked")
    codes = at_once(*[state.freeze("--only", only) for only in ("1,2,3", "1,2,4", "2,3,4")])
    assert codes.count(0) == 1, codes
    assert set(codes) <= {0, 75, 77}, codes


def test_all_users_in_parallel():
    with scratch() as folder:
        state = Round(MANY, folder / "round", folder / "inputs").prepare()
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


def test_all_commands_at_once_until_the_round_is_done(bench):
    """All commands of a round at the same time, until it is done: a command that comes too early
    says so.

    Only masking waits until all have shared: an X records which shares its user had.
    """
    state = bench.at("init")
    commands = [c for c in state.left("init") if c[0] not in ("freeze", "forget")]
    commands.append(state.freeze("--only", "1,2,3,4"))
    shared = False
    for _ in range(4):
        started = [c for c in commands if shared or c[0] != "mask"]
        codes = at_once(*started)
        # the freezer's `offline` is refused (75) if `freeze` is just at work for the same user
        offline = [code for c, code in zip(started, codes, strict=True) if c[0] == "offline"]
        shared = shared or not any(offline)
        assert set(codes) <= {0, 66, 69, 75}, codes
        assert leftovers(state.folder) == []
        if not any(codes):
            break
    for step in (
        "offline",
        "mask",
        "freeze",
        "eliminate",
        "decode",
    ):  # what is not done yet, in order
        for command in commands:
            if command[0] == step:
                must(*command)
    state.check_aggregate()
