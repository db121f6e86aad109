"""Commands that are killed, or that the disk refuses, at every point where they touch a file.

The command runs in a fork of this process, and a hook strikes at the k-th of its operations on
files, or at the k-th call of a function. Then every file under its final name must be whole and in
its user's ledger, the same command run again must complete, no temporary file may be left, and the
round must end in the exact aggregate. `python tests/faults/crashes.py` goes through all points; a
sample is in test_crashes.py.
"""

import argparse
import errno
import hashlib
import mmap
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from fault_lab import COMMANDS, RECIPES, check_whole, concluded, drawn_from, fingerprint, scratch
from played import (
    STAGES,
    Result,
    Round,
    Stages,
    Violation,
    attributes,
    call,
    document,
    forked,
    in_child,
    leftovers,
    linked_copy,
    must,
    waited,
)

AT_LEAST = 30  # points a command
TOUCHING = (
    "open", "write", "pwrite", "preadv", "fsync", "ftruncate", "close", "replace", "rename",
    "mkdir", "unlink", "chmod",
)  # fmt: skip
WRITING = ("write", "pwrite", "fsync", "ftruncate", "replace", "rename", "mkdir")


class Step:
    """A command, the stage that it starts from, and the commands that end the round after it."""

    def __init__(self, bench: Stages, name: str) -> None:
        self.bench = bench
        self.name = name
        if name == "run":
            self.stage = ""
            self.command = bench.round.run()
            self.rest = []
        else:
            self.stage = ("", *STAGES)[COMMANDS.index(name)]
            self.command, *self.rest = bench.round.left(self.stage)
        self.label = f"{bench.recipe.name} {name}"
        self.good: set[bytes] = set()

    def start(self) -> Round:
        """The round just before the command."""
        return self.bench.at(self.stage)

    def recovers(self, state: Round) -> None:
        """Nothing is left half written, the same command completes, and the round ends in the exact
        aggregate."""
        assert leftovers(state.folder) == []
        check_whole(state.folder)
        self.again(state)
        self.finish(state)

    def again(self, state: Round) -> None:
        """The command once more completes what was begun, and cleans up."""
        state.prepare_folder()
        must(*self.command)
        if found := leftovers(state.folder):
            raise Violation(f"{self.label} again leaves {found}")

    def finish(self, state: Round) -> None:
        """The round ends in the exact aggregate; it need not be run for files that did so
        before."""
        now = hashlib.sha256(repr(fingerprint(state.folder)).encode()).digest()
        if now in self.good:
            return
        for command in self.rest:
            must(*command)
        state.check_aggregate()
        check_whole(state.folder)
        if found := leftovers(state.folder):
            raise Violation(f"{found} at the end of the round")
        self.good.add(now)


class FreezeBeforeALateX(Step):
    """`freeze` while one user has not masked; its X arrives before the command is run again.

    The set is fixed from when the ledger names it, whether survivors.json was written or not.
    """

    def __init__(self, bench: Stages) -> None:
        super().__init__(bench, "freeze")
        self.label = f"{bench.recipe.name} freeze before a late X"
        *self.early, self.late = bench.recipe.masking

    def start(self) -> Round:
        """The round when all but one have masked."""
        state = self.bench.at("offline")
        for user in self.early:
            must(*state.mask(user))
        return state

    def again(self, state: Round) -> None:
        """The X comes, and the ledger decides whether it is in the set."""
        lines = [document(path) for path in (state.folder / "secrets").rglob("*.ledger.json")]
        frozen = [line["survivors"] for line in lines if line["survivors"]]
        must(*state.mask(self.late))
        super().again(state)
        rows = document(state.folder / "survivors.json")["survivors"]
        if frozen and rows != frozen[0]:
            raise Violation(f"{self.label}: {rows} are frozen, and the ledger has {frozen[0]}")
        users = [row["user"] for row in rows]
        if users != [*self.early, *([] if frozen else [self.late])]:
            raise Violation(f"{self.label}: {users} are frozen")


class StepOfSeries(Step):
    """A step of the second round of a series, whose users go on with the keys of the first."""

    def __init__(self, bench: Stages, name: str) -> None:
        super().__init__(bench, name)
        self.label = f"{bench.recipe.name} {name} in a series"
        self.first = bench.round
        self.later = bench.round.elsewhere(bench.round.folder.with_name("later"))
        self.kept = bench.folder / f"before {name} in a series"
        self.play_before()

    def play_before(self) -> None:
        """Both rounds as they are before the step, which users 2, 3, ... have yet to do too."""
        self.bench.at("decoded")
        shutil.rmtree(self.later.folder, ignore_errors=True)
        self.first.next_of_series(self.later.folder)
        everybody = self.bench.recipe.everybody
        offline = [self.later.offline(n, "--from", self.first.folder) for n in everybody]
        _, *commands = offline + self.later.left(after="offline", upto="forgotten")
        if self.name != "offline":
            must(*offline[0])
        self.command = offline[0]
        while self.command[0] != self.name:
            self.command, *commands = commands
            if self.command[0] != self.name:
                must(*self.command)
        self.rest = commands
        shutil.rmtree(self.kept, ignore_errors=True)
        for r in (self.first, self.later):
            linked_copy(r.folder, self.kept / r.folder.name)

    def start(self) -> Round:
        """The second round just before the step, and the first."""
        for r in (self.first, self.later):
            shutil.rmtree(r.folder, ignore_errors=True)
            linked_copy(self.kept / r.folder.name, r.folder)
        return self.later

    def finish(self, state: Round) -> None:
        """The round ends in the exact aggregate; and every chain is at it, in one place."""
        files = [fingerprint(r.folder) for r in (self.first, state)]
        now = hashlib.sha256(repr(files).encode()).digest()
        if now in self.good:
            return
        for command in self.rest:
            must(*command)
        state.check_aggregate()
        everybody = self.bench.recipe.everybody
        for n in self.bench.recipe.answering:
            must(*self.first.forget(n))
        for r in (self.first, state):
            check_whole(r.folder)
            if found := leftovers(r.folder):
                raise Violation(f"{found} at the end of the rounds")
        chains = {n: self.first.folder / f"secrets/user-{n:02}.chain.h5" for n in everybody}
        if found := list(state.folder.rglob("user-*.chain*.h5")):
            raise Violation(f"{self.label}: {found} are chains too")
        for n, path in chains.items():
            if attributes(path)["session"] != state.space().session.id:
                raise Violation(f"{self.label}: the chain of user {n} is elsewhere")
        self.good.add(now)


def hooked(strike: Callable[[int, str], None]) -> None:
    """Call `strike(k, name)` before the k-th operation on files. For forks only: it is never
    undone."""
    count = 0

    def wrap(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            strike(count, name)
            return original(*args, **kwargs)

        return operation

    for name in TOUCHING:
        setattr(os, name, wrap(name, getattr(os, name)))


def profiled(strike: Callable[[int, str], None]) -> None:
    """Call `strike(k, name)` at the k-th call or return of a Python function, in any thread."""
    count = 0

    def event(frame: Any, what: str, _arg: Any) -> None:
        nonlocal count
        if what in ("call", "return"):
            count += 1
            strike(count, frame.f_code.co_name)

    threading.setprofile(event)
    sys.setprofile(event)


Hooks = Callable[[Callable[[int, str], None]], None]


def number_of_points(step: Step, hooks: Hooks) -> int:
    """How many points there are: the command once without a strike."""
    step.start()
    last = mmap.mmap(-1, 8)

    def count(k: int, _name: str) -> None:
        last[:8] = k.to_bytes(8, "little")

    code = in_child(*step.command, before=lambda: hooks(count)).code
    if code:
        raise Violation(f"{step.label} exits {code} when nothing strikes")
    return int.from_bytes(last[:8], "little")


@drawn_from(3)  # so that most endings are seen for the second time
def killed_at(step: Step, hooks: Hooks, k: int) -> bool:
    """Kill the command at point k, and see whether everything holds; False if it ended before."""
    state = step.start()

    def task() -> Result:
        def kill(at: int, _name: str) -> None:
            if at == k:
                os.kill(os.getpid(), signal.SIGKILL)

        hooks(kill)
        return call(*step.command)

    code = waited(forked(task))
    if code not in (0, -signal.SIGKILL):
        raise Violation(f"{step.label} exits {code} at point {k}")
    after(step, state, f"killed at point {k} ({hooks.__name__})")
    return code != 0


def after(step: Step, state: Round, what: str) -> None:
    """Nothing is half written, and the round goes on."""
    try:
        if state.folder.exists():
            check_whole(state.folder)
        step.again(state)
        step.finish(state)
    except Exception as error:
        raise Violation(f"{step.label} {what}: {type(error).__name__}: {error}") from error


@drawn_from(3)
def refused_at(step: Step, k: int, number: int) -> int:
    """Let the k-th operation on files fail; the exit code: 73 if it was a write. Nothing is left
    behind."""
    state = step.start()
    struck_file = state.folder.with_name("struck")
    struck_file.unlink(missing_ok=True)

    def hooks() -> None:
        def fail(at: int, name: str) -> None:
            if at == k and name not in ("close", "unlink"):
                struck_file.symlink_to(name)
                raise OSError(number, os.strerror(number))

        hooked(fail)

    result = in_child(*step.command, before=hooks)
    struck = str(struck_file.readlink()) if struck_file.is_symlink() else "nothing"
    what = f"{errno.errorcode[number]} at point {k} ({struck})"
    if struck in WRITING and result.code not in (0, 73):
        raise Violation(f"{step.label} with {what} exits {result.code}: {result.err}")
    if state.folder.exists() and (found := leftovers(state.folder)):
        raise Violation(f"{step.label} with {what} leaves {found}")
    if (
        step.name == "freeze" and "is left out" in result.err
    ):  # an X that cannot be read drops out, and freeze says so
        return result.code
    if "it is not held" in result.err:  # a share could not be opened: X says so for good
        return result.code
    after(step, state, what)
    return result.code


STEPS = (
    *(
        ("permutation", name)
        for name in ("init", "offline", "mask", "freeze", "eliminate", "decode", "run")
    ),
    *(("sketch", name) for name in ("offline", "mask", "eliminate", "decode", "forget", "run")),
    *(("shares", name) for name in ("offline", "mask", "eliminate", "decode")),
    *(("residual", name) for name in ("mask", "eliminate", "forget")),
    *(("series", name) for name in ("offline", "mask", "freeze", "eliminate", "forget")),
    *(("sealed", name) for name in ("offline", "mask", "freeze", "confirm", "eliminate", "forget")),
)
LATE = ("permutation", "signed")  # rounds of which one X comes after a freeze that was stopped


def step_of(bench: Stages, name: str) -> Step:
    """A step of a round, or of the one that follows it in a series."""
    return (StepOfSeries if bench.recipe.name == "series" else Step)(bench, name)


def spread(points: int, number: int) -> list[int]:
    """`number` of the points 1..points, evenly spread."""
    if points <= number:
        return list(range(1, points + 1))
    return sorted({1 + i * (points - 1) // (number - 1) for i in range(number)})


def all_points(step: Step, counts: Counter[str], violations: list[str]) -> None:
    """Every operation on files, and at least 30 calls of functions, spread over the run."""

    def attempt(task: Callable[[], object], what: str) -> None:
        try:
            counts[what] += task() is not False  # which says that the command ended before
        except AssertionError as violation:
            violations.append(str(violation))

    operations = number_of_points(step, hooked)
    calls = number_of_points(step, profiled)
    for k in spread(operations, 60):
        attempt(
            lambda k=k: killed_at(step, hooked, k), f"{step.label}: killed at an operation on files"
        )
    for k in spread(calls, AT_LEAST):
        attempt(lambda k=k: killed_at(step, profiled, k), f"{step.label}: killed at a call")
    for number in (errno.ENOSPC, errno.EIO):
        for k in spread(operations, 30):
            attempt(
                lambda k=k, n=number: refused_at(step, k, n),
                f"{step.label}: {errno.errorcode[number]}",
            )
    if (
        struck := sum(n for what, n in counts.items() if f"{step.label}: killed at" in what)
    ) < AT_LEAST:
        violations.append(f"{step.label} was killed at {struck} points only")


def main() -> int:
    """Go through all points of all commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="commands or rounds, such as offline or series")
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    violations: list[str] = []
    started = time.monotonic()
    with scratch() as folder:
        benches = {name: Stages(RECIPES[name], folder / name) for name in {r for r, _ in STEPS}}
        for recipe, name in STEPS:
            if not args.only or name in args.only or recipe in args.only:
                all_points(step_of(benches[recipe], name), counts, violations)
                print(f"{recipe} {name}: {time.monotonic() - started:.0f} s", flush=True)
        if not args.only or "freeze" in args.only:
            for recipe in LATE:
                all_points(FreezeBeforeALateX(benches[recipe]), counts, violations)
    what = f"{sum(counts.values())} points in {time.monotonic() - started:.0f} s:"
    return concluded(what, counts, violations)


if __name__ == "__main__":
    sys.exit(main())
