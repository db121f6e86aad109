"""Rounds for tests: commands in this process or in a new one, rounds whose sum is known, and what
is left on disk.

Gradients are multiples of one step of the quantiser, so that quantising them is exact and every sum
can be predicted with the oracle.
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
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, NoReturn
from unittest import mock

import h5py
import numpy as np
import pytest
from oracle import bucket_count, bucket_top, lifted, plain_sum, top_k

from topk_secagg.algebra.field import DEFAULT_FIELD
from topk_secagg.gradients.files import write_gradient
from topk_secagg.gradients.tensors import Gradient, Tensor
from topk_secagg.protocol.parameters import CONSTRUCTIONS
from topk_secagg.review.audit import collect_evidence
from topk_secagg.review.evidence import Finding
from topk_secagg.storage import survivors as survivors_file
from topk_secagg.storage.artifacts import Draft, Table, opened, write_hashed
from topk_secagg.storage.hdf5_writer import new_file
from topk_secagg.storage.keys import Identity, read_identity
from topk_secagg.storage.kinds import ARTIFACT_KINDS
from topk_secagg.storage.workspace import Workspace

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = (
    ROOT / "fixtures" / "example"
)  # the worked example of the paper: five users, four coordinates
SCRIPT = Path(sys.executable).with_name("topk-secagg")
# what a command also says where nobody has compiled before; only its own tests look for it
COMPILING = "compiling kernels for the first time; this takes a few seconds\n"
DOCUMENTED = {0, 2, 65, 66, 69, 73, 75, 77, 130, 143}
TERABYTES = 1 << 41  # two of them
PATIENCE = 100  # seconds that a command of a small round may take
STAGES = (
    "init", "offline", "masked", "frozen", "confirmed", "answered", "decoded",
    "forgotten"
)  # fmt: skip
Command = tuple[object, ...]
# more than (5+1)/2 users confirm
CONFIRMING = {
    "sealed": True,
    "confirm": True,
    "survivors": 4,
    "masking": (1, 2, 3, 4, 5),
    "answering": (1, 2, 3, 4),
}
every = pytest.mark.parametrize("construction", CONSTRUCTIONS)


# --- commands -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def words(text: str) -> list[str]:
    """Options as a shell would split them."""
    return text.split()


def changed(options: Sequence[str], more: Sequence[object]) -> list[object]:
    """Options that have a value each, with those of `more`, which replace what they give anew."""
    pairs = zip(options[::2], options[1::2], strict=True)
    return [word for pair in pairs if pair[0] not in more for word in pair] + list(more)


def call(*args: object) -> Result:
    """A command in this process, as if from a shell."""
    from topk_secagg_cli.main import main

    out, err = io.StringIO(), io.StringIO()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(sys, "argv", ["topk-secagg", *map(str, args)]),
            mock.patch.object(sys, "unraisablehook", sys.unraisablehook),
        ):
            main()
    except SystemExit as end:
        return Result(int(end.code or 0), out.getvalue(), err.getvalue().replace(COMPILING, ""))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    raise AssertionError("main() came back")


class Violation(AssertionError):
    """The program did what it must never do."""


class Hang(BaseException):
    """A command took longer than it may."""


def judged(*args: object) -> Result:
    """A command that must end soon and in a documented way with any input."""

    def late(*_: object) -> NoReturn:
        raise Hang

    handler = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    try:
        result = call(*args)
    except Hang:
        raise Violation(f"{args[0]}: hangs") from None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
    check_ending(args, result)
    return result


def check_ending(args: Command, result: Result) -> None:
    """A documented exit code; an error is one line and a hint, and never a traceback."""
    try:
        assert "Traceback" not in result.err
        if result.code:  # `inspect` shows what it could read before it fails
            assert_one_error(replace(result, out="") if args[0] == "inspect" else result)
    except AssertionError as error:
        raise Violation(f"{' '.join(map(str, args))}: {result}") from error


def must(*args: object) -> Result:
    """A command that has to succeed."""
    result = judged(*args)
    if result.code:
        raise Violation(f"{' '.join(map(str, args))} should succeed: {result}")
    return result


def shell(*args: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """The installed command, in a new process."""
    return process([SCRIPT, *map(str, args)], **how)


def python(code: str, *args: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """A few lines of Python in a new process."""
    return process([sys.executable, "-c", code, *map(str, args)], **how)


def process(command: Sequence[object], **how: Any) -> subprocess.CompletedProcess[str]:
    end = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, **how)  # type: ignore[call-overload]
    end.stderr = end.stderr.replace(COMPILING, "")
    return end


def forked(task: Callable[[], object], *, silent: bool = False) -> int:
    """Run a task in a fork of this process, which has loaded everything already; the process id.

    The fork exits with the code of the command that the task ran, with 0, or with 99 for an
    exception.
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
        threading._shutdown()  # as at the end of Python: threads finish their work
        code = result.code if isinstance(result, Result) else 0
    except BaseException as error:
        with contextlib.suppress(BaseException):
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def waited(pid: int) -> int:
    """The exit code of a fork; minus the signal's number if one killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_child(*args: object, before: Callable[[], object] = lambda: None) -> Result:
    """A command in a fork, after `before` has set limits, accounts or hooks that cannot be undone.

    It must end in a documented way.
    """
    out, into = os.pipe()

    def task() -> None:
        write, close = os.write, os.close  # even if `before` replaces them
        before()
        result = call(*args)
        write(into, json.dumps([result.code, result.out, result.err]).encode())
        close(into)

    code = waited(forked(task))
    os.close(into)
    with os.fdopen(out) as stream:
        text = stream.read()
    assert text, f"{' '.join(map(str, args))}: the process ends with {code}"
    result = Result(*json.loads(text))
    check_ending(args, result)
    return result


def become(account: int) -> None:
    """Continue as another account; only root can, and there is no way back."""
    os.setgroups([])
    os.setgid(account)
    os.setuid(account)


def assert_one_error(result: Result) -> None:
    """One line that says what is wrong and a hint, no traceback; on standard output nothing, or
    with --json one object that says the same."""
    assert result.code in DOCUMENTED - {0}, result
    lines = result.err.splitlines()
    hints = int(lines[-1].startswith("hint: ")) if result.code > 128 else 1
    said = [
        line
        for line in lines
        if line.startswith("topk-secagg: ") and "topk-secagg: warning: " not in line
    ]
    assert said == lines[-1 - hints : len(lines) - hints], result.err
    assert all(
        line.startswith("hint: ") and len(line) > 10 for line in lines[len(lines) - hints :]
    ), result.err
    assert "a bug" not in said[0]
    assert "Traceback" not in result.err
    if result.out.startswith('{"schema"'):
        assert result.out.count("\n") == 1
        assert result.json["exit_code"] == result.code
        assert result.json["error"] in said[0]
    else:
        assert result.out == ""


# --- rounds whose sum is known --------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """A round: its parameters, who masks and who answers, and how gradients are stored."""

    name: str
    users: int = 5
    survivors: int = 3
    colluders: int = 1
    top_k: int = 2
    length: int = 4
    field: int = DEFAULT_FIELD
    construction: str = "permutation"
    picks: int | None = None
    dealing: str | None = None
    masking: tuple[int, ...] = (1, 2, 3, 4)
    answering: tuple[int, ...] = (1, 2, 3)
    suffix: str = ".npy"
    sealed: bool = False
    confirm: bool = False
    residual: bool = False  # whether users keep residuals
    homes: bool = False  # every user has its own folder for its secrets
    later: bool = False  # the second round of a series, whose first one is among the inputs

    @property
    def everybody(self) -> range:
        return range(1, self.users + 1)

    @property
    def deals_keys(self) -> bool:
        """Whether shares are keys: so few users always have a family."""
        return self.construction == "sketch" and self.dealing in (None, "keys")

    @property
    def bits(self) -> int:
        """log2 of the steps per unit."""
        return min(10, ((self.field - 1) // 2 // self.users).bit_length() - 1)

    @property
    def clip(self) -> float:
        """The clip for which the scale is 2^bits."""
        return (self.field - 1) // 2 / (self.users * (2**self.bits + 0.5))

    def options(self) -> list[str]:
        """The options of `init` and `run`."""
        given = {
            "users": self.users, "survivors": self.survivors, "colluders": self.colluders,
            "top-k": self.top_k,
            "length": self.length, "field": self.field, "construction": self.construction,
            "clip": repr(self.clip),
            "picks": self.picks, "dealing": self.dealing,
        }  # fmt: skip
        return [
            word
            for name, value in given.items()
            if value is not None
            for word in (f"--{name}", str(value))
        ]


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("permutation"),
        Recipe("sketch", construction="sketch", picks=2, top_k=10, length=150),
    )
}


@dataclass
class Round:
    """A round in a folder, with its gradients elsewhere, and what its sum must be."""

    recipe: Recipe
    folder: Path
    inputs: Path
    steps: dict[int, list[int]] = field(
        default_factory=dict
    )  # the gradients, in steps of the quantiser

    def elsewhere(self, folder: Path) -> Round:
        """The same round in a copy of its folder."""
        return replace(self, folder=folder)

    def home(self, user: int) -> Path:
        """Where the secrets of a user are, if they are not in the round's folder."""
        return self.folder.with_name(f"home-{user}")

    def gradient(self, user: int) -> Path:
        return self.inputs / f"gradients/user-{user:02}{self.recipe.suffix}"

    def secrets(self, user: int) -> Path:
        """The folder of a user's secrets: in a sealed round within the round's folder, so that it
        is copied with it."""
        if self.recipe.homes:
            return self.home(user)
        return self.folder / "secrets"

    def at_home(self) -> Round:
        """The same round after its folder was copied with all secrets in it: ledgers say that it
        was prepared here."""
        for path in self.folder.glob("secrets/*/user-*.ledger.json"):
            put(path, str(self.folder.resolve()), "folder")
        return self

    def space(self, user: int = 1) -> Workspace:
        """The round as a user sees it, with its folder of secrets."""
        elsewhere = self.recipe.homes or self.recipe.sealed
        return Workspace(self.folder, self.secrets(user) if elsewhere else None)

    def private(self, user: int) -> Path:
        """Where the user's files of this session are."""
        space = self.space(user)
        return space.private_of(space.session_id)

    def identity(self, user: int) -> Path:
        return self.secrets(user) / f"user-{user:02}.identity"

    @property
    def recipients(self) -> Path:
        return self.inputs / "recipients"

    def residual(self, user: int) -> Path:
        """What a user did not send."""
        return self.private(user) / f"user-{user:02}.residual.h5"

    def prepare(self) -> Round:
        """Write the gradients, and the keys of a sealed round."""
        r = self.recipe
        self.steps = self.write_gradients(random.Random(f"{r.length} {r.field}"))
        if r.sealed:
            keys = {n: self.home(n) if r.homes else self.inputs / "keys" for n in r.everybody}
            lines = [must("keygen", "--user", n, "--secrets", keys[n]).out for n in r.everybody]
            self.recipients.write_text("".join(lines))
        self.prepare_folder()
        if r.later:
            first = replace(self, recipe=replace(r, later=False), folder=self.first)
            first.play(upto="offline")
        return self

    @property
    def first(self) -> Path:
        """The round whose keys the second round of a series goes on with."""
        return self.inputs / "first"

    def write_gradients(self, source: random.Random) -> dict[int, list[int]]:
        """Write other gradients; what they are in steps of the quantiser."""
        r = self.recipe
        largest = min(int(r.clip * 2**r.bits), 1 << 20)
        (self.inputs / "gradients").mkdir(parents=True, exist_ok=True)
        steps = {}
        for user in r.everybody:
            steps[user] = [
                source.choice((-1, 1)) * source.randint(1, largest) for _ in range(r.length)
            ]
            values = np.array(steps[user], dtype=np.float64) / 2**r.bits
            write_tensors(self.gradient(user), [Tensor("", "float64", values)])
        return steps

    def prepare_folder(self) -> None:
        """The folder of secrets with the keys that were made in it, before anything else."""
        if self.recipe.sealed and not self.recipe.homes and not (self.folder / "secrets").exists():
            shutil.copytree(self.inputs / "keys", self.folder / "secrets")

    # the commands

    def init(self, *more: object) -> Command:
        keys = ["--recipients", self.recipients] * self.recipe.sealed + [
            "--confirm"
        ] * self.recipe.confirm
        if self.recipe.later:
            return ("init", self.folder, "--from", self.first, *more)
        return ("init", self.folder, *changed(self.recipe.options(), more), *keys)

    def offline(self, user: int, *more: object) -> Command:
        earlier = ["--from", self.first] if self.recipe.later else []
        return ("offline", self.folder, "--user", user, *self._access(user), *earlier, *more)

    def mask(self, user: int, *more: object, gradient: Path | None = None) -> Command:
        file = gradient or self.gradient(user)
        kept = ["--feedback"] * self.recipe.residual
        return (
            "mask",
            self.folder,
            "--user",
            user,
            "--gradient",
            file,
            *self._access(user),
            *kept,
            *more,
        )

    def freeze(self, *more: object) -> Command:
        return ("freeze", self.folder, *self._access(1), *more)

    def confirm(self, user: int, *more: object) -> Command:
        return ("confirm", self.folder, "--user", user, *self._access(user), *more)

    def eliminate(self, user: int, *more: object) -> Command:
        return ("eliminate", self.folder, "--user", user, *self._access(user), *more)

    def decode(self, *more: object) -> Command:
        return ("decode", self.folder, *self._access(1), *more)

    def forget(self, user: int, *more: object) -> Command:
        return ("forget", self.folder, "--user", user, *self._access(user), *more)

    def status(self, *more: object) -> Command:
        access = [] if "--secrets" in more else self._access(1)
        return ("status", self.folder, *access, *more)

    def next_of_series(self, folder: Path, *more: object) -> Round:
        """The next round of a series, started in another folder; its users go on with the keys
        of this one."""
        must("init", folder, "--from", self.folder, *more)
        return self.elsewhere(folder)

    def step(self, name: str, user: int = 1) -> Command:
        """The step of a user by its name."""
        own = {
            "offline": self.offline,
            "mask": self.mask,
            "eliminate": self.eliminate,
            "confirm": self.confirm,
        }
        return own[name](user) if name in own else getattr(self, name)()  # type: ignore[no-any-return]

    def run(self, *more: object) -> Command:
        """The whole round in one command."""
        r = self.recipe
        phases = {"masking": r.masking, "elimination": r.answering}
        drops = [
            f"--drop-{name}={','.join(str(n) for n in r.everybody if n not in u)}"
            for name, u in phases.items()
            if not any(str(word).startswith(f"--drop-{name}") for word in more)
        ]
        keys = ["--recipients", self.recipients, "--secrets", self.secrets(1)] * r.sealed
        gradients = self.inputs / "gradients"
        options = changed(r.options(), more)
        return ("run", self.folder, "--gradients", gradients, *options, *drops, *keys)

    def _access(self, user: int) -> list[object]:
        return ["--secrets", self.secrets(user)] * (self.recipe.sealed or self.recipe.homes)

    def commands(self) -> dict[str, list[Command]]:
        """The commands of the round, stage by stage."""
        r = self.recipe
        silent = [n for n in r.masking if n not in r.answering]
        enough = range(1, (r.users + r.colluders) // 2 + 2)  # confirmations
        return {
            "init": [self.init()],
            "offline": [self.offline(n) for n in r.everybody],
            "masked": [self.mask(n) for n in r.masking],
            "frozen": [self.freeze()],
            "confirmed": [self.confirm(n) for n in enough if r.confirm],
            "answered": [self.eliminate(n) for n in r.answering],
            "decoded": [self.decode()],
            "forgotten": [self.forget(n) for n in r.everybody if n not in silent],
        }

    def left(self, after: str = "", upto: str = STAGES[-1]) -> list[Command]:
        """The commands after one stage (all by default) up to another."""
        stages = ("", *STAGES)
        commands = self.commands()
        return [
            c
            for stage in stages[stages.index(after) + 1 : stages.index(upto) + 1]
            for c in commands[stage]
        ]

    def play(self, after: str = "", upto: str = "decoded") -> Round:
        """Run the commands after one stage up to another."""
        for command in self.left(after, upto):
            must(*command)
        return self

    def lie(self, user: int, **row: str) -> None:
        """The freezer, user 1, changes a row of survivors.json, and signs it."""
        space = Workspace(self.folder)
        path = space.survivors_path
        signer = read_identity(self.identity(1)) if self.recipe.sealed else None
        _, body = survivors_file.parse(path, path.read_bytes())
        rows = [replace(old, **row) if old.user == user else old for old in body["survivors"]]
        content = survivors_file.content(space.session, rows, signer)
        path.write_bytes(content)

    # the sum

    def sent(self, user: int) -> list[tuple[int, int]]:
        """The coordinates that a user sends, with their values in the field, by the oracle."""
        r = self.recipe
        steps = self.steps[user]
        if r.construction == "permutation":
            chosen = top_k(steps, r.top_k)
        else:
            assert r.picks is not None
            chosen = bucket_top(steps, bucket_count(r.top_k, r.picks), r.picks)
        return [(k, steps[k] % r.field) for k in chosen]

    def total(self, users: Iterable[int]) -> list[int]:
        """The plain sum of what these users send."""
        return plain_sum([self.sent(user) for user in users], self.recipe.length, self.recipe.field)

    def check_sum(
        self, survivors: Iterable[int] | None = None, answering: Iterable[int] | None = None
    ) -> None:
        """aggregate.h5 is the plain sum of the survivors, bit by bit, as symbols and as reals."""
        r = self.recipe
        found = datasets(self.folder / "aggregate.h5")
        survivors = sorted(r.masking if survivors is None else survivors)
        assert found["survivors"].tolist() == survivors
        if answering is not None:
            assert found["answering"].tolist() == sorted(answering)
        total = self.total(survivors)
        assert found["index"].tolist() == [k for k, v in enumerate(total) if v]
        assert found["value"].tolist() == [v for v in total if v]
        assert found["real"].tolist() == [lifted(v, r.field) / 2**r.bits for v in total if v]

    def reals(self) -> np.ndarray:
        """The sum in aggregate.h5 as a dense vector of reals."""
        found = datasets(self.folder / "aggregate.h5")
        total = np.zeros(self.recipe.length)
        total[found["index"]] = found["real"]
        return total

    def check_aggregate(self) -> list[int]:
        """aggregate.h5 holds exactly the plain sum of the frozen survivors; who was corrected."""
        self.check_sum(
            [row["user"] for row in document(self.folder / "survivors.json")["survivors"]]
        )
        return datasets(self.folder / "aggregate.h5")["corrected"].tolist()


class Stages:
    """A round after every stage, played once, to be copied or brought back.

    `upto` is played at once, and what comes after it when somebody asks for it.
    """

    def __init__(self, recipe: Recipe, folder: Path, upto: str = STAGES[-1]) -> None:
        self.recipe = recipe
        self.folder = folder
        self.round = Round(recipe, folder / "round", folder / "inputs").prepare()
        self.last = ""  # the stage that was played last
        self.reach(upto)

    def reach(self, stage: str) -> None:
        """Play on to this stage, and keep every one on the way."""
        stages = ("", *STAGES)
        for following in stages[stages.index(self.last) + 1 : stages.index(stage) + 1]:
            self.round.play(self.last, following)
            self.keep(following)
            self.last = following
            if following == "decoded":
                self.round.check_aggregate()

    def keep(self, name: str) -> None:
        """Keep the round as it is now under a name."""
        linked_copy(self.round.folder, self.folder / name)

    def copy(self, stage: str, folder: Path) -> Round:
        """The round as it was after a stage, in another folder."""
        self.reach(stage)
        shutil.copytree(self.folder / stage, folder)
        return self.round.elsewhere(folder).at_home()

    def at(self, name: str) -> Round:
        """The round as it was when it was kept under that name ("": not even started), in its own
        folder, which a ledger with a residual remembers."""
        shutil.rmtree(self.round.folder, ignore_errors=True)
        if name:
            linked_copy(self.folder / name, self.round.folder)
        self.round.prepare_folder()
        return self.round


def linked_copy(source: Path, target: Path) -> Path:
    """A copy of a folder by hard links: the program never writes into a file that has a name."""
    shutil.copytree(source, target, copy_function=os.link, symlinks=True)
    return target


# --- files ----------------------------------------------------------------------------------------


def _is_lock(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith("lock")


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file but locks: its bytes and its mode."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not _is_lock(path)
    }


def leftovers(folder: Path) -> list[Path]:
    """Temporary and other hidden files, except locks."""
    return [path for path in folder.rglob(".*") if not _is_lock(path)]


def attributes(path: Path) -> dict[str, Any]:
    """The attributes of an HDF5 file, each of fixed length."""
    found: dict[str, Any] = {}
    with h5py.File(path, "r") as file:
        for name in file.attrs:
            handle = file.attrs.get_id(name)
            assert handle.shape == ()
            assert handle.dtype.kind == "S" or handle.dtype == np.dtype("<u8"), (name, handle.dtype)
            value = file.attrs[name]
            found[name] = value.decode("ascii") if isinstance(value, bytes) else int(value)
    return found


def datasets(path: Path) -> dict[str, np.ndarray]:
    """The datasets of an HDF5 file."""
    with h5py.File(path, "r") as file:
        return {name: file[name][...] for name in file}


def placed(path: Path) -> dict[str, tuple[int, int]]:
    """Where the bytes of each dataset lie: offset and size."""
    with h5py.File(path, "r") as file:
        return {name: (file[name].id.get_offset() or 0, file[name].nbytes) for name in file}


def document(path: Path) -> Any:
    return json.loads(path.read_text())


def edit(path: Path, change: Callable[[Any], object]) -> None:
    """Change a JSON document of a round, and write it in the one form in which the program does."""
    content = document(path)
    change(content)
    path.write_bytes((json.dumps(content, indent=2, ensure_ascii=True) + "\n").encode())


def put(path: Path, value: object, *place: Any) -> None:
    """Put a value into a JSON document of a round: put(path, 5, "survivors", 0, "user")."""

    def change(content: Any) -> None:
        for key in place[:-1]:
            content = content[key]
        content[place[-1]] = value

    edit(path, change)


def flip(path: Path, position: int, bit: int = 0) -> None:
    """Turn one bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def write_tensors(path: Path, tensors: Iterable[Tensor]) -> Path:
    """A gradient file."""
    with path.open("wb") as stream:
        write_gradient(stream, path.suffix, Gradient(list(tensors)))
    return path


def rewrite(
    path: Path, change: Callable[[Any, Any], object], signer: Identity | None = None
) -> None:
    """Change attributes and datasets of a file, and give it a valid digest; a signature only from
    `signer`."""
    with opened(path, *ARTIFACT_KINDS) as artifact:
        attributes = dict(artifact.attributes)
        datasets = {name: artifact.read(name) for name in artifact.datasets}
    change(attributes, datasets)
    tables = {name: Table(array) for name, array in datasets.items()}
    write_hashed(path, Draft(artifact.kind, attributes, signer), tables)


def claim_terabytes(path: Path) -> None:
    """Make it a sparse file of two terabytes whose metadata claims that size, and that is sound
    otherwise."""
    with opened(path, *ARTIFACT_KINDS) as artifact:
        shapes = {name: (d.dtype.str, d.shape) for name, d in artifact.datasets.items()}
        attributes = artifact.attributes
    first = next(iter(shapes))
    dtype, shape = shapes[first]
    shapes[first] = (
        dtype,
        (TERABYTES // np.dtype(dtype).itemsize // int(np.prod(shape[1:])), *shape[1:]),
    )
    with path.open("w+b") as stream:
        with new_file(stream, shapes, artifact.kind.datasets) as file:
            file.finish(attributes)
        os.truncate(path, said_end(stream))


def said_end(stream: IO[bytes]) -> int:
    """The size of an HDF5 file according to its superblock."""
    return int.from_bytes(os.pread(stream.fileno(), 8, 28), "little")


def is_root() -> bool:
    return os.geteuid() == 0


def audited(space: Workspace, identities: Sequence[Path] = ()) -> list[Finding]:
    """What an audit finds, without the page and the lists of the command."""
    return collect_evidence(space, identities).findings
