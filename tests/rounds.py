"""Rounds for tests: commands in this process or in one of their own, rounds whose sum is known, the same through
the functions of the steps, and what is left on disk.

Gradients are multiples of one step of the quantiser, so that quantising them is exact and every sum can be
predicted with the oracle.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
from oracle import bucket_count, bucket_top, lifted, plain_sum, top_k

from topk_secagg.algebra.field import DEFAULT_FIELD
from topk_secagg.gradients.files import write_gradient
from topk_secagg.gradients.layout import Layout
from topk_secagg.gradients.tensors import Tensor
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.steps.access import PLAIN, Access
from topk_secagg.steps.decode import decode
from topk_secagg.steps.eliminate import eliminate
from topk_secagg.steps.freeze import confirm as confirm_step
from topk_secagg.steps.freeze import freeze
from topk_secagg.steps.init import init
from topk_secagg.steps.inspect import KINDS
from topk_secagg.steps.keygen import keygen
from topk_secagg.steps.mask import mask
from topk_secagg.steps.offline import offline
from topk_secagg.storage import aggregate as aggregate_file
from topk_secagg.storage.artifacts import compose, opened
from topk_secagg.storage.keys import Identity
from topk_secagg.storage.workspace import Workspace

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "fixtures" / "example"  # the worked example of the paper: five users, four coordinates
SCRIPT = Path(sys.executable).with_name("topk-secagg")
DOCUMENTED = {0, 2, 65, 66, 69, 73, 75, 77, 130, 143}
STAGES = ("init", "offline", "masked", "frozen", "answered", "decoded")
Command = tuple[object, ...]


# --- commands ---------------------------------------------------------------------------------------------------------


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
        return Result(int(end.code or 0), out.getvalue(), err.getvalue())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    raise AssertionError("main() came back")


def must(*args: object) -> Result:
    """A command that has to succeed."""
    result = call(*args)
    assert result.code == 0, (args, result)
    return result


def shell(*args: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """The installed command, in a process of its own."""
    return process([SCRIPT, *map(str, args)], **how)


def python(code: str, *args: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """A few lines of Python in a process of their own."""
    return process([sys.executable, "-c", code, *map(str, args)], **how)


def process(command: Sequence[object], **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, **how)  # type: ignore[call-overload]


def forked(task: Callable[[], object], *, silent: bool = False) -> int:
    """Run a task in a fork of this process, which has loaded everything already; the process id.

    The fork exits with the code of the command that the task ran, with 0, or with 99 for an exception.
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
    """A command in a fork, after `before` has set limits, accounts or hooks that cannot be undone."""
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
    return Result(*json.loads(text))


def become(account: int) -> None:
    """Continue as another account; only root can, and there is no way back."""
    os.setgroups([])
    os.setgid(account)
    os.setuid(account)


def assert_one_error(result: Result) -> None:
    """One line that says what is wrong and a hint, no traceback, nothing on standard output."""
    assert result.code in DOCUMENTED - {0}, result
    lines = result.err.splitlines()
    hints = 0 if result.code > 128 else 1
    said = [line for line in lines if line.startswith("topk-secagg: ") and "topk-secagg: warning: " not in line]
    assert said == lines[-1 - hints : len(lines) - hints], result.err
    assert all(line.startswith("hint: ") and len(line) > 10 for line in lines[len(lines) - hints :]), result.err
    assert "a bug" not in said[0]
    assert "Traceback" not in result.err
    assert result.out == ""


# --- rounds whose sum is known ----------------------------------------------------------------------------------------


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
    blocks: int | None = None
    picks: int | None = None
    spare: int | None = None
    masking: tuple[int, ...] = (1, 2, 3, 4)
    answering: tuple[int, ...] = (1, 2, 3)
    suffix: str = ".npy"
    sealed: bool = False
    confirm: bool = False
    homes: bool = False  # every user has its secrets in a folder of its own
    seed: int | None = None  # draw the round from this public seed: the same bytes in every run

    @property
    def everybody(self) -> range:
        return range(1, self.users + 1)

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
            "users": self.users, "survivors": self.survivors, "colluders": self.colluders, "top-k": self.top_k,
            "length": self.length, "field": self.field, "construction": self.construction, "clip": repr(self.clip),
            "blocks": self.blocks, "picks": self.picks, "spare": self.spare, "insecure-seed": self.seed,
        }  # fmt: skip
        return [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]


RECIPES = {
    recipe.name: recipe
    for recipe in (Recipe("permutation"), Recipe("moments", construction="moments", picks=2, top_k=10, length=150))
}


@dataclass
class Round:
    """A round in a folder, with its gradients elsewhere, and what its sum must be."""

    recipe: Recipe
    folder: Path
    inputs: Path
    steps: dict[int, list[int]] = field(default_factory=dict)  # the gradients, in steps of the quantiser

    def elsewhere(self, folder: Path) -> Round:
        """The same round in a copy of its folder."""
        return replace(self, folder=folder)

    def home(self, user: int) -> Path:
        """Where the secrets of a user are, if they are not in the round's folder."""
        return self.folder.with_name(f"home-{user}")

    def gradient(self, user: int) -> Path:
        return self.inputs / f"gradients/user-{user:02}{self.recipe.suffix}"

    def identity(self, user: int) -> Path:
        return self.inputs / f"user-{user:02}.identity"

    @property
    def recipients(self) -> Path:
        return self.inputs / "recipients"

    def prepare(self) -> Round:
        """Write the gradients, and the keys of a sealed round."""
        r = self.recipe
        source = random.Random(f"{r.length} {r.field} {r.seed}")
        largest = min(int(r.clip * 2**r.bits), 1 << 20)
        (self.inputs / "gradients").mkdir(parents=True, exist_ok=True)
        for user in r.everybody:
            self.steps[user] = [source.choice((-1, 1)) * source.randint(1, largest) for _ in range(r.length)]
            values = np.array(self.steps[user], dtype=np.float64) / 2**r.bits
            with self.gradient(user).open("wb") as stream:
                write_gradient(stream, r.suffix, [Tensor("", "float64", values)])
        if r.sealed:
            lines = [must("keygen", "--user", n, "--output", self.identity(n)).out for n in r.everybody]
            self.recipients.write_text("".join(lines))
        return self

    # the commands

    def init(self, *more: object) -> Command:
        keys = ["--recipients", self.recipients] * self.recipe.sealed + ["--confirm"] * self.recipe.confirm
        return ("init", self.folder, *self.recipe.options(), *keys, *more)

    def offline(self, user: int, *more: object) -> Command:
        return ("offline", self.folder, "--user", user, *self._access(user), *more)

    def mask(self, user: int, *more: object, gradient: Path | None = None) -> Command:
        file = gradient or self.gradient(user)
        return ("mask", self.folder, "--user", user, "--gradient", file, *self._access(user), *more)

    def freeze(self, *more: object) -> Command:
        return ("freeze", self.folder, *self._access(1), *more)

    def confirm(self, user: int, *more: object) -> Command:
        return ("confirm", self.folder, "--user", user, *self._access(user), *more)

    def eliminate(self, user: int, *more: object) -> Command:
        return ("eliminate", self.folder, "--user", user, *self._access(user), *more)

    def decode(self, *more: object) -> Command:
        return ("decode", self.folder, *more)

    def step(self, name: str, user: int = 1) -> Command:
        """The step of a user by its name."""
        own = {"offline": self.offline, "mask": self.mask, "eliminate": self.eliminate, "confirm": self.confirm}
        return own[name](user) if name in own else getattr(self, name)()  # type: ignore[no-any-return]

    def run(self, *more: object) -> Command:
        """The whole round in one command."""
        r = self.recipe
        phases = {"masking": r.masking, "elimination": r.answering}
        drops = [f"--drop-{name}={','.join(str(n) for n in r.everybody if n not in u)}" for name, u in phases.items()]
        keys = ["--recipients", self.recipients, "--identities", self.inputs] * r.sealed
        gradients = self.inputs / "gradients"
        return ("run", self.folder, "--gradients", gradients, *r.options(), *drops, *keys, *more)

    def _access(self, user: int) -> list[object]:
        keys = ["--identity", self.identity(user)] * self.recipe.sealed
        homes = ["--secrets", self.home(user)] * self.recipe.homes
        return [*keys, *homes, *["--insecure"] * (self.recipe.seed is not None)]

    def commands(self) -> dict[str, list[Command]]:
        """The commands of the round, stage by stage."""
        r = self.recipe
        return {
            "init": [self.init()],
            "offline": [self.offline(n) for n in r.everybody],
            "masked": [self.mask(n) for n in r.masking],
            "frozen": [self.freeze(), *(self.confirm(n) for n in r.everybody if r.confirm)],
            "answered": [self.eliminate(n) for n in r.answering],
            "decoded": [self.decode()],
        }

    def play(self, after: str | None = None, upto: str = "decoded") -> Round:
        """Run the stages after one (all by default) up to another."""
        first = STAGES.index(after) + 1 if after else 0
        for stage in STAGES[first : STAGES.index(upto) + 1]:
            for command in self.commands()[stage]:
                must(*command)
        return self

    # the sum

    def sent(self, user: int) -> list[tuple[int, int]]:
        """The coordinates that a user sends, with their values in the field, by the oracle."""
        r, steps = self.recipe, self.steps[user]
        if r.construction == "permutation":
            chosen = top_k(steps, r.top_k)
        else:
            assert r.picks is not None
            chosen = bucket_top(steps, bucket_count(r.top_k, r.picks), r.picks)
        return [(k, steps[k] % r.field) for k in chosen]

    def total(self, users: Iterable[int]) -> list[int]:
        """The plain sum of what these users send."""
        return plain_sum([self.sent(user) for user in users], self.recipe.length, self.recipe.field)

    def check_sum(self, survivors: Iterable[int] | None = None, answering: Iterable[int] | None = None) -> None:
        """aggregate.h5 is the plain sum of the survivors, bit by bit, as symbols and as reals."""
        r, found = self.recipe, datasets(self.folder / "aggregate.h5")
        survivors = sorted(r.masking if survivors is None else survivors)
        assert found["survivors"].tolist() == survivors
        if answering is not None:
            assert found["answering"].tolist() == sorted(answering)
        total = self.total(survivors)
        assert found["index"].tolist() == [k for k, v in enumerate(total) if v]
        assert found["value"].tolist() == [v for v in total if v]
        assert found["real"].tolist() == [lifted(v, r.field) / 2**r.bits for v in total if v]


class Stages:
    """A round after every stage, played once, to be copied."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.folder = folder
        self.round = Round(recipe, folder / "round", folder / "inputs").prepare()
        for before, stage in zip((None, *STAGES), STAGES, strict=False):
            self.round.play(before, stage)
            shutil.copytree(self.round.folder, folder / stage)
        self.round.check_sum()

    def copy(self, stage: str, folder: Path) -> Round:
        """The round as it was after a stage."""
        shutil.copytree(self.folder / stage, folder)
        return self.round.elsewhere(folder)


# --- the same through the steps ---------------------------------------------------------------------------------------

USERS = 4
OPEN: Mapping[int, Access] = {}  # how the users of a plain round take part


def make_keys(folder: Path, users: int = USERS) -> tuple[Path, dict[int, Access]]:
    """The file of everybody's public keys, and each user's access with its own."""
    paths = {n: folder / f"{n}.identity" for n in range(1, users + 1)}
    lines = [keygen(n, path).line() for n, path in paths.items()]
    (folder / "recipients").write_text("\n".join(lines) + "\n")
    return folder / "recipients", {n: Access(identity=path) for n, path in paths.items()}


def start(
    root: Path,
    layout: Layout,
    *,
    recipients: Path | None = None,
    confirm: bool = False,
    access: Mapping[int, Access] = OPEN,
    randomness: str = "cipher",
    **options: Any,
) -> Workspace:
    """A round in which every user has shared its secret."""
    chosen = {"users": USERS, "survivors": 3, "colluders": 1, "top_k": 3, **options}
    p = Parameters.choose(length=layout.length, **chosen)
    space, _ = init(root, p, layout, recipients=recipients, confirm=confirm)
    for user in space.users():
        offline(space, user, randomness=randomness, access=access.get(user, PLAIN))
    return space


def mask_all(space: Workspace, gradients: Sequence[Path], access: Mapping[int, Access] = OPEN, **options: Any) -> None:
    for user in space.users():
        mask(space, user, gradients[user - 1], access=access.get(user, PLAIN), **options)


def finish(
    space: Workspace, output: Path | None = None, *, mean: bool = False, access: Mapping[int, Access] = OPEN
) -> np.ndarray:
    """Freeze, confirm where users do, eliminate and decode; the sum as a dense vector of reals."""
    survivors = freeze(space, access=access.get(space.session.freezer, PLAIN)).survivors
    for user in space.users() if space.session.confirm else ():
        confirm_step(space, user, access=access[user])
    for user in survivors:
        eliminate(space, user, access=access.get(user, PLAIN))
    decode(space, output, mean=mean)
    total = np.zeros(space.session.parameters.length)
    with opened(space.aggregate_path, aggregate_file.KIND) as artifact:
        total[artifact.read("index")] = artifact.read("real")
    return total


def rewrite(path: Path, change: Callable[[Any, Any], object], signer: Identity | None = None) -> None:
    """Change attributes and datasets of a file, and give it a valid digest; a signature only from `signer`."""
    with opened(path, *KINDS, verify=False) as artifact:
        attributes, datasets = dict(artifact.attributes), {name: artifact.read(name) for name in artifact.datasets}
    change(attributes, datasets)
    compose(artifact.kind, attributes, datasets, signer).write(path)


# --- files ------------------------------------------------------------------------------------------------------------


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
    """Temporary and other hidden files, except locks and notes about a residual that waits."""
    return [path for path in folder.rglob(".*") if not _is_lock(path) and path.suffix != ".waiting"]


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


def is_root() -> bool:
    return os.geteuid() == 0
