"""What the fault tests share: small rounds whose sums are known exactly, commands in this process or in a
fork of it, and judges of what they leave behind.

Gradients are multiples of 1/scale, so that quantising them is exact and every sum can be predicted.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import h5py
import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

from oracle import bucket_top, top_k
from topk_secagg_cli import main as entry

from topk_secagg.gradients.files import write_gradient
from topk_secagg.gradients.tensors import Tensor
from topk_secagg.storage.artifacts import opened
from topk_secagg.storage.documents import kind_of

DOCUMENTED = {0, 2, 65, 66, 69, 73, 75, 77}
FIELD = 2**32 - 5
STAGES = ("init", "offline", "masked", "frozen", "answered", "decoded")
PATIENCE = 60  # seconds that one command of a small round may take


class Violation(AssertionError):
    """The program did what it must never do."""


class Hang(BaseException):
    """A command took longer than it may."""


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


# --- calling commands ------------------------------------------------------------------------


def call(*args: object) -> Result:
    """A command in this process; the disk is not waited for."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(os, "fsync", return_value=None),
        mock.patch.object(sys, "argv", ["topk-secagg", *map(str, args)]),
        mock.patch.object(sys, "unraisablehook", sys.unraisablehook),
        _signals_kept(),
    ):
        try:
            entry.main()
        except SystemExit as end:
            return Result(int(end.code or 0), out.getvalue(), err.getvalue())
    raise Violation(f"{args[0]}: main() came back")


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def judged(*args: object) -> Result:
    """A command that must end in a documented way, whatever it is given, and soon."""

    def late(*_: object) -> NoReturn:
        raise Hang

    handler = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    try:
        result = call(*args)
    except Hang:
        raise Violation(f"{args[0]}: hangs") from None
    except MemoryError:
        raise Violation(f"{args[0]}: out of memory") from None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
    check_ending(args, result)
    return result


def check_ending(args: Iterable[object], result: Result) -> None:
    """A documented exit code; an error is one line and at most a hint, and never a traceback."""
    what = f"{' '.join(map(str, args))}: {result}"
    if result.code not in DOCUMENTED:
        raise Violation(f"exit {result.code}: {what}")
    if "Traceback" in result.err:
        raise Violation(f"a traceback: {what}")
    lines = [line for line in result.err.splitlines() if not line.startswith("topk-secagg: warning: ")]
    if result.code and not (
        1 <= len(lines) <= 2
        and lines[0].startswith("topk-secagg: ")
        and all(line.startswith("hint: ") for line in lines[1:])
    ):
        raise Violation(f"not one line: {what}")


def must(*args: object) -> Result:
    """A command that has to succeed."""
    result = judged(*args)
    if result.code:
        raise Violation(f"{' '.join(map(str, args))} should succeed: {result}")
    return result


def forked(task: Callable[[], object], *, silent: bool = False) -> int:
    """Run a task in a fork of this process, which has everything loaded already; the process id.

    The fork ends with the exit code of the command, with 0, or with 99 for an exception.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside numpy's idle threads
        pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        faulthandler.disable()
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        if silent:
            os.dup2(sink, 2)
        result = task()
        code = result.code if isinstance(result, Result) else 0
    except BaseException as error:
        with contextlib.suppress(BaseException):
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def waited(pid: int) -> int:
    """The exit code of a fork; minus the signal's number if one killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# --- rounds with a known sum -----------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """A round: its parameters, who masks and who answers, and how gradients are stored."""

    name: str
    users: int = 4
    survivors: int = 3
    colluders: int = 1
    blocks: int = 2
    top_k: int = 3
    length: int = 12
    field: int = FIELD
    construction: str = "permutation"
    picks: int = 0
    elimination: str = "dense"
    masking: tuple[int, ...] = (1, 2, 3, 4)
    answering: tuple[int, ...] = (1, 2, 3)
    suffix: str = ".npy"
    sealed: bool = False
    residual: bool = False
    seed: int = 0
    public_seed: bool = False  # draw the round from a public seed: the same bytes in every run

    @property
    def bits(self) -> int:
        """log2 of the steps per unit."""
        return min(10, ((self.field - 1) // 2 // self.users).bit_length() - 1)

    @property
    def clip(self) -> float:
        """The clip for which the scale is a power of two."""
        return (self.field - 1) // 2 / (self.users * (2**self.bits + 0.5))

    def options(self) -> list[str]:
        """The options of `init`."""
        options = (
            f"--users {self.users} --survivors {self.survivors} --colluders {self.colluders} "
            f"--blocks {self.blocks} --top-k {self.top_k} --length {self.length} --field {self.field} "
            f"--clip {self.clip!r} --construction {self.construction} --elimination {self.elimination}"
        )
        more = f" --picks {self.picks}" if self.picks else ""
        return (options + more + (f" --insecure-seed {self.seed}" if self.public_seed else "")).split()


@dataclass
class Round:
    """A round in a folder, with its gradients beside it, and what its sum must be."""

    recipe: Recipe
    folder: Path
    inputs: Path
    steps: dict[int, list[int]] = field(default_factory=dict)

    def elsewhere(self, folder: Path) -> Round:
        """The same round in a copy of its folder."""
        return Round(self.recipe, folder, self.inputs, self.steps)

    def gradient(self, user: int) -> Path:
        """The gradient of a user."""
        return self.inputs / f"user-{user:02}{self.recipe.suffix}"

    def residual(self, user: int) -> Path:
        """The residual of a user, in the round's folder so that it is copied with it."""
        return self.folder / "kept" / f"residual-{user:02}.h5"

    def identity(self, user: int) -> Path:
        """The keys of a user."""
        return self.inputs / f"identity-{user:02}.txt"

    def prepare(self) -> None:
        """Write the gradients, and the keys of a sealed round."""
        r = self.recipe
        source = random.Random(f"{r.name} {r.seed}")
        largest = min(int(r.clip * 2**r.bits), 1 << 20)
        for user in range(1, r.users + 1):
            self.steps[user] = [source.randint(-largest, largest) for _ in range(r.length)]
            values = np.array(self.steps[user], dtype=np.float64) / 2**r.bits
            self.inputs.mkdir(parents=True, exist_ok=True)
            with self.gradient(user).open("wb") as stream:
                write_gradient(stream, r.suffix, [Tensor("", "float64", values)])
        if r.sealed:
            lines = [
                call("keygen", "--user", n, "--output", self.identity(n)).out for n in range(1, r.users + 1)
            ]
            (self.inputs / "recipients.txt").write_text("".join(lines))

    def init(self) -> tuple[object, ...]:
        keys = ["--recipients", self.inputs / "recipients.txt"] if self.recipe.sealed else []
        return ("init", self.folder, *self.recipe.options(), *keys)

    def offline(self, user: int) -> tuple[object, ...]:
        return ("offline", self.folder, "--user", user, *self._keys(user))

    def mask(self, user: int) -> tuple[object, ...]:
        more = ["--residual", self.residual(user)] if self.recipe.residual else []
        own = ["--gradient", self.gradient(user), *more, *self._keys(user)]
        return ("mask", self.folder, "--user", user, *own)

    def freeze(self) -> tuple[object, ...]:
        return ("freeze", self.folder)

    def eliminate(self, user: int) -> tuple[object, ...]:
        return ("eliminate", self.folder, "--user", user, *self._keys(user))

    def decode(self) -> tuple[object, ...]:
        return ("decode", self.folder)

    def run(self) -> tuple[object, ...]:
        """The whole round in one command."""
        r = self.recipe
        users = range(1, r.users + 1)
        dropped = [
            f"--drop-{phase}={','.join(str(n) for n in users if n not in there)}"
            for phase, there in (("masking", r.masking), ("elimination", r.answering))
        ]
        return ("run", self.folder, "--gradients", *map(self.gradient, users), *r.options(), *dropped)

    def _keys(self, user: int) -> list[object]:
        return ["--identity", self.identity(user)] if self.recipe.sealed else []

    def commands(self) -> dict[str, list[tuple[object, ...]]]:
        """The commands of the round, stage by stage."""
        r = self.recipe
        return {
            "init": [self.init()],
            "offline": [self.offline(n) for n in range(1, r.users + 1)],
            "masked": [self.mask(n) for n in r.masking],
            "frozen": [self.freeze()],
            "answered": [self.eliminate(n) for n in r.answering],
            "decoded": [self.decode()],
        }

    def play(self, after: str | None = None, upto: str = "decoded") -> None:
        """Run the stages after one (all by default) up to another."""
        first = STAGES.index(after) + 1 if after else 0
        for stage in STAGES[first : STAGES.index(upto) + 1]:
            for command in self.commands()[stage]:
                must(*command)
            if stage == "init" and self.recipe.residual:
                (self.folder / "kept").mkdir(exist_ok=True)

    def sent(self, user: int) -> dict[int, int]:
        """The coordinates that a user sends, in steps, by the oracle."""
        r, steps = self.recipe, self.steps[user]
        values = [abs(step) for step in steps]
        if r.construction == "permutation":
            chosen = top_k(values, r.top_k)
        else:
            buckets = -(-r.top_k // (r.picks * r.blocks)) * r.blocks
            chosen = bucket_top(values, buckets, r.picks)
        return {k: steps[k] for k in chosen if k < r.length}

    def total(self, users: Iterable[int]) -> dict[int, int]:
        """The plain sum of what these users send, where it is not zero: coordinate to field element."""
        total: dict[int, int] = {}
        for user in users:
            for k, step in self.sent(user).items():
                total[k] = total.get(k, 0) + step
        return {k: total[k] % self.recipe.field for k in sorted(total) if total[k] % self.recipe.field}

    def check_aggregate(self) -> list[int]:
        """aggregate.h5 holds exactly the plain sum of the frozen survivors; who was corrected."""
        with h5py.File(self.folder / "aggregate.h5", "r") as file:
            found = {name: file[name][...] for name in file}
        frozen = json.loads((self.folder / "survivors.json").read_text())["survivors"]
        survivors = [row["user"] for row in frozen]
        if found["survivors"].tolist() != survivors:
            raise Violation(f"the aggregate names {found['survivors']}, and survivors.json {survivors}")
        expected = self.total(survivors)
        got = dict(zip(found["index"].tolist(), found["value"].tolist(), strict=True))
        if found["index"].tolist() != list(expected) or got != expected:
            raise Violation(f"a wrong aggregate: {got}, not {expected}")
        q = self.recipe.field
        reals = [(v - q if v > q // 2 else v) / 2**self.recipe.bits for v in expected.values()]
        if found["real"].tolist() != reals:
            raise Violation(f"wrong reals: {found['real']}, not {reals}")
        return [int(n) for n in found["corrected"]]


# --- what is left behind ---------------------------------------------------------------------


def is_lock(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith("lock")


def leftovers(folder: Path) -> list[Path]:
    """Temporary files, and whatever else is hidden but no lock."""
    return [path for path in folder.rglob(".*") if not is_lock(path)]


def check_whole(folder: Path) -> None:
    """Every file under its final name is whole."""
    for path in sorted(folder.rglob("*")):
        if path.name.startswith(".") or not path.is_file():
            continue
        if path.suffix == ".h5":
            with opened(path) as artifact:
                for name in artifact.datasets:
                    artifact.read(name)
        elif path.suffix == ".json":
            kind_of(path, path.read_bytes())
        elif path.suffix == ".age" and not path.read_bytes().startswith(b"age-encryption.org/v1\n"):
            raise Violation(f"{path} is no age file")


def fingerprint(folder: Path) -> dict[str, bytes]:
    """The bytes of every file but locks and temporary ones."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def linked_copy(source: Path, target: Path) -> Path:
    """A copy of a folder by hard links: the program never writes into a file that has a name."""
    shutil.copytree(source, target, copy_function=os.link, symlinks=True)
    return target


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one, open to other users."""
    shm = Path("/dev/shm")
    where = shm if os.access(shm, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="topk-faults-", dir=where))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("permutation", answering=(1, 2, 3)),
        Recipe("spare", users=5, masking=(1, 2, 3, 4, 5), answering=(1, 2, 3, 4, 5), length=9, top_k=1,
               elimination="syndrome"),
        Recipe("rotation", construction="rotation", picks=2, top_k=6, length=33,
               elimination="syndrome", suffix=".safetensors"),
        Recipe("small-field", field=257, length=10, suffix=".npz", blocks=1, answering=(2, 4)),
        Recipe("residual", residual=True, suffix=".pt", length=8),
        Recipe("sealed", sealed=True, length=6, top_k=2),
    )
}  # fmt: skip


class Bench:
    """A round after every stage, to be brought back at will; always in the same folder, which a ledger with a
    residual remembers."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe, self.store = recipe, folder
        self.round = Round(recipe, folder / "round", folder / "inputs")
        self.round.prepare()
        for before, stage in zip((None, *STAGES), STAGES, strict=False):
            self.round.play(after=before, upto=stage)
            self.keep(stage)
        self.round.check_aggregate()

    def keep(self, name: str) -> None:
        """Keep the round as it is now under a name."""
        linked_copy(self.round.folder, self.store / name)

    def at(self, name: str) -> Round:
        """The round as it was when it was kept under that name; "" for one that is not even started."""
        shutil.rmtree(self.round.folder, ignore_errors=True)
        if name:
            linked_copy(self.store / name, self.round.folder)
        return self.round

    def kept(self, name: str) -> Path:
        """The folder of what was kept; nobody writes there."""
        return self.store / name


def counted(counts: dict[str, int]) -> str:
    """Counts, the most frequent first."""
    return "\n".join(
        f"  {number:7}  {what}" for what, number in sorted(counts.items(), key=lambda x: (-x[1], x[0]))
    )


Json = dict[str, Any]
