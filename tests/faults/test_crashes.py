"""A sample of the crashes of crashes.py, and signals that let a command clean up."""

import errno
import os
import signal

import pytest
from crashes import (
    LATE,
    STEPS,
    FreezeBeforeALateX,
    Step,
    hooked,
    killed_at,
    number_of_points,
    profiled,
    refused_at,
    step_of,
)
from played import Violation, call, in_child, python

from topk_secagg.storage import chain as chain_file
from topk_secagg.storage.ledger import Ledger


@pytest.mark.parametrize(("recipe", "name"), STEPS)
def test_killed_and_run_again(benches, recipe, name):
    step = step_of(benches[recipe], name)
    operations = number_of_points(step, hooked)
    assert killed_at(step, hooked, operations // 2)
    assert killed_at(step, hooked, operations - 1)
    killed_at(step, profiled, 900)
    assert refused_at(step, operations * 2 // 3, errno.ENOSPC) in (0, 65, 66, 73)


@pytest.mark.parametrize("name", ["mask", "freeze", "eliminate"])
def test_killed_at_every_operation_what_was_sent_is_in_the_ledger(benches, name):
    """Even under a temporary name: two X with the same masks in masked/ would reveal the input."""
    step = Step(benches["small-field"], name)
    assert all(killed_at(step, hooked, k) for k in range(1, number_of_points(step, hooked) + 1))


@pytest.mark.parametrize("name", ["offline", "forget"])
def test_a_series_is_in_one_place_wherever_its_steps_are_killed(benches, name):
    """At every operation on files of the step that takes keys on, and of the one that erases."""
    step = step_of(benches["series"], name)
    points = range(1, number_of_points(step, hooked) + 1)
    assert all(killed_at(step, hooked, k) for k in points)


def test_if_a_chain_were_not_replaced_as_a_whole_a_killed_step_would_lose_its_keys(
    benches, monkeypatch
):
    """The twin."""
    step = step_of(benches["series"], "offline")
    write = chain_file.write

    def in_two_steps(path, *content):
        path.unlink(missing_ok=True)
        write(path, *content)

    monkeypatch.setattr(chain_file, "write", in_two_steps)
    points = range(1, number_of_points(step, hooked) + 1)
    with pytest.raises(Violation, match=r"user-01\.chain\.h5 is not there"):
        all(killed_at(step, hooked, k) for k in points)


@pytest.mark.parametrize("recipe", LATE)
def test_freeze_goes_on_with_the_set_in_its_ledger_although_another_x_has_come(benches, recipe):
    step = FreezeBeforeALateX(benches[recipe])
    points = range(1, number_of_points(step, hooked) + 1)
    assert all(killed_at(step, hooked, k) for k in points[-12:])  # around the ledger and the file


@pytest.mark.rule(19)
def test_without_the_set_in_the_ledger_a_stopped_freeze_ends_the_round(benches, monkeypatch):
    """The twin: the digest alone does not give the set back."""
    step = FreezeBeforeALateX(benches["permutation"])
    points = number_of_points(step, hooked)
    record = Ledger.record

    def forgetting(ledger, **changes):
        return record(ledger, **(changes | {"survivors": None}))

    monkeypatch.setattr(Ledger, "record", forgetting)
    with pytest.raises(Violation, match="already frozen another survivor set"):
        all(killed_at(step, hooked, k) for k in range(points - 12, points))


@pytest.mark.parametrize(
    ("number", "part"), [(signal.SIGINT, 0.2), (signal.SIGTERM, 0.5), (signal.SIGINT, 0.8)]
)
@pytest.mark.parametrize(("recipe", "name"), [step for step in STEPS if step[1] != "init"])
def test_a_signal_leaves_no_partial_file_and_the_step_can_be_repeated(
    benches, recipe, name, number, part
):
    step = Step(benches[recipe], name)
    at = 1 + int(part * number_of_points(step, hooked))
    state = step.start()

    def strike(k, _name):
        if k == at:
            os.kill(os.getpid(), number)

    result = in_child(*step.command, before=lambda: hooked(strike))
    assert result.code == 128 + number
    assert {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number] in result.err
    assert result.err.endswith("\nhint: run the same command again: it goes on\n")
    step.recovers(state)


# Runs the program, which sends itself a signal when it loads a module that every command needs
LOADING = """
import os, signal, sys

class Strike:
    def find_spec(self, name, path=None, target=None):
        if name == at:
            os.kill(os.getpid(), signal.SIGINT)

at = sys.argv.pop(1)
sys.modules.pop(at, None)  # Python may have loaded it already
sys.meta_path.insert(0, Strike())
import topk_secagg_cli.__main__ as program
program.main()
"""


@pytest.mark.parametrize("module", ["typing", "click"])
def test_a_signal_while_the_program_is_loaded(module):
    """Nothing is written yet: the process simply dies of the signal, without a traceback."""
    end = python(LOADING, module, "--help")
    assert (end.returncode, end.stdout, end.stderr) == (-signal.SIGINT, "", "")


class Panic(BaseException):
    """What a module in Rust raises where Python raised something in it: no Exception."""


def panicking(*_, **__):
    raise Panic("called `Result::unwrap()` on an `Err` value")


def struck_within_a_library(*_, **__):
    """The signal comes while Rust calls Python, and Rust makes a panic of what it raises."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        panicking()
    raise AssertionError("the signal did not come")


def test_a_signal_of_which_a_library_makes_a_panic(tmp_path, monkeypatch):
    monkeypatch.setattr("topk_secagg_cli.main._signals", [])
    monkeypatch.setattr("topk_secagg.keygen", struck_within_a_library)
    result = call("keygen", "--user", 1, "--secrets", tmp_path / "own")
    assert (result.code, result.err) == (130, "topk-secagg: interrupted\n")


def test_a_panic_without_a_signal_is_not_taken_for_one(tmp_path, monkeypatch):
    monkeypatch.setattr("topk_secagg.keygen", panicking)
    with pytest.raises(Panic):
        call("keygen", "--user", 1, "--secrets", tmp_path / "own")


def test_a_signal_waits_until_the_library_that_would_panic_is_imported(tmp_path):
    """pyrage prints lines of its own if a signal strikes while it is imported."""
    (tmp_path / "pyrage.py").write_text(
        "import os, signal, sys\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    [n for n in range(1000)]\n"
        "except BaseException:\n"
        "    sys.stderr.write('thread panicked\\n')\n"
        "    raise\n"
    )
    run = (
        "import sys; sys.path.insert(0, sys.argv.pop(1));"
        "from topk_secagg_cli.__main__ import main; main()"
    )
    end = python(run, tmp_path, "keygen", "--user", 1, "--secrets", tmp_path / "own")
    assert (end.returncode, end.stderr) == (130, "topk-secagg: interrupted\n")
    assert not list(tmp_path.glob("own/*.identity"))
