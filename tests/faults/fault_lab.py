"""What the fault tests share on top of rounds.py: commands that must end well with any input, in this
process or in a fork of it; rounds that can be brought back to any stage; and judges of what is left behind.
"""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

sys.path.append(str(Path(__file__).parents[1]))

from rounds import (
    Command,
    Recipe,
    Result,
    Round,
    assert_one_error,
    attributes,
    call,
    contents,
    datasets,
    document,
    in_child,
)  # fmt: skip

from topk_secagg.steps.inspect import inspect
from topk_secagg.storage.documents import digest

STAGES = (
    "init", "offline", "masked", "frozen", "confirmed", "answered", "fallen-back", "decoded", "settled", "forgotten"
)  # fmt: skip
COMMANDS = ("init", "offline", "mask", "freeze", "confirm", "eliminate", "fallback", "decode", "settle", "forget")
PATIENCE = 60  # seconds that one command of a small round may take


class Violation(AssertionError):
    """The program did what it must never do."""


class Hang(BaseException):
    """A command took longer than it may."""


# --- calling commands -------------------------------------------------------------------------------------------------


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


def as_child(*command: object, before: Callable[[], object] = lambda: None) -> Result:
    """A command in a fork, which must end in a documented way."""
    result = in_child(*command, before=before)
    check_ending(command, result)
    return result


# --- rounds -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial(Recipe):
    """A round to try out: also who answers a second time, and whether users keep residuals."""

    users: int = 4
    fallback: tuple[int, ...] = ()
    residual: bool = False


class TrialRound(Round):
    """A round with all its steps, those that not every round needs included."""

    recipe: Trial

    def residual(self, user: int) -> Path:
        """In the round's folder, so that it is copied with it."""
        return self.folder / "kept" / f"residual-{user:02}.h5"

    def mask(self, user: int, *more: object, gradient: Path | None = None) -> Command:
        kept = ["--residual", self.residual(user)] * self.recipe.residual
        return super().mask(user, *kept, *more, gradient=gradient)

    def commands(self) -> dict[str, list[Command]]:
        """The commands of the round, stage by stage."""
        r, folder = self.recipe, self.folder
        silent = [n for n in r.masking if n not in r.answering]
        enough = range(1, (r.users + r.colluders) // 2 + 2)  # confirmations
        return {
            "init": [self.init()],
            "offline": [self.offline(n) for n in r.everybody],
            "masked": [self.mask(n) for n in r.masking],
            "frozen": [self.freeze()],
            "confirmed": [self.confirm(n) for n in enough if r.confirm],
            "answered": [self.eliminate(n) for n in r.answering],
            "fallen-back": [self.eliminate(n, "--fallback") for n in r.fallback],
            "decoded": [self.decode()],
            "settled": [("settle", folder, "--user", n) for n in silent if r.residual],
            "forgotten": [("forget", folder, "--user", n) for n in r.everybody if n not in silent],
        }

    def left(self, stage: str) -> list[Command]:
        """The commands after a stage."""
        first = STAGES.index(stage) + 1 if stage else 0
        return [command for name in STAGES[first:] for command in self.commands()[name]]

    def prepare_folder(self) -> None:
        """What is not the program's to make."""
        if self.recipe.residual:
            (self.folder / "kept").mkdir(parents=True, exist_ok=True)

    def check_aggregate(self) -> list[int]:
        """aggregate.h5 holds exactly the plain sum of the frozen survivors; who was corrected."""
        survivors = [row["user"] for row in document(self.folder / "survivors.json")["survivors"]]
        self.check_sum(survivors)
        return datasets(self.folder / "aggregate.h5")["corrected"].tolist()


ALL = (1, 2, 3, 4, 5)
RECIPES = {
    trial.name: trial
    for trial in (
        Trial("permutation", top_k=3, length=12),
        Trial("moments", construction="moments", picks=2, top_k=6, length=33, suffix=".safetensors"),
        Trial("spare", users=5, construction="moments", picks=1, top_k=3, length=40, field=65521, spare=0,
              masking=ALL, answering=(1, 2, 3, 4), fallback=(1, 2, 3), suffix=".npz"),
        Trial("lying", users=5, construction="moments", picks=1, top_k=2, length=9, masking=ALL, answering=ALL),
        Trial("small-field", field=257, length=10, suffix=".npz", blocks=1, answering=(2, 4)),
        Trial("residual", residual=True, construction="moments", picks=1, suffix=".pt", length=8),
        Trial("sealed", sealed=True, confirm=True, construction="moments", picks=1, length=6),
    )
}  # fmt: skip


class Bench:
    """A round after every stage, to be brought back at will; always in the same folder, which a ledger with a
    residual remembers."""

    def __init__(self, recipe: Trial, folder: Path) -> None:
        self.recipe, self.store = recipe, folder
        self.round = TrialRound(recipe, folder / "round", folder / "inputs")
        self.round.prepare()
        self.round.prepare_folder()
        for stage, commands in self.round.commands().items():
            for command in commands:
                must(*command)
            self.keep(stage)
        self.round.check_aggregate()

    def keep(self, name: str) -> None:
        """Keep the round as it is now under a name."""
        linked_copy(self.round.folder, self.store / name)

    def at(self, name: str) -> TrialRound:
        """The round as it was when it was kept under that name; "" for one that is not even started."""
        shutil.rmtree(self.round.folder, ignore_errors=True)
        if name:
            linked_copy(self.store / name, self.round.folder)
        self.round.prepare_folder()
        return self.round


Benches = dict[str, Bench]


def linked_copy(source: Path, target: Path) -> Path:
    """A copy of a folder by hard links: the program never writes into a file that has a name."""
    shutil.copytree(source, target, copy_function=os.link, symlinks=True)
    return target


def own_copy(path: Path) -> Path:
    """The same file, but no longer that of other stages too."""
    shutil.copy(path, path.with_suffix(".new"))
    return path.with_suffix(".new").replace(path)


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


# --- what is left behind ----------------------------------------------------------------------------------------------


def fingerprint(folder: Path) -> dict[str, bytes]:
    """The bytes of every file but locks, notes and temporary ones."""
    return {name: content for name, (content, _) in contents(folder).items() if not Path(name).name.startswith(".")}


def check_whole(folder: Path) -> None:
    """Every file under its final name is whole, and none is there before the ledger knows of it."""
    for path in sorted(folder.rglob("*")):
        if path.name.startswith(".") or not path.is_file():
            continue
        if path.suffix in (".h5", ".json") and not inspect(path).intact:
            raise Violation(f"{path} is damaged")
        if path.suffix == ".age" and not path.read_bytes().startswith(b"age-encryption.org/v1\n"):
            raise Violation(f"{path} is no age file")
    check_ledgers(folder)


def check_ledgers(folder: Path) -> None:
    """Everything that a user has sent, even under a temporary name, is in its ledger."""
    ledgers = {int(p.name[5:7]): document(p) for p in (folder / "secrets").glob("user-*.ledger.json")}
    frozen = digest((folder / "survivors.json").read_bytes()) if (folder / "survivors.json").exists() else None

    def check(holds: bool, what: object) -> None:
        if not holds:
            raise Violation(f"{what} is not in the ledger")

    for line, place in (("masked", "masked"), ("confirmed", "confirmed"), ("answered", "elimination")):
        for path in (folder / place).glob("*user-*"):
            recorded = ledgers[int(path.name.lstrip(".")[5:7])][line]
            if line == "masked" and path.suffix != ".tmp":
                check(recorded == attributes(path)["sha256"], path)
            else:
                check(recorded is not None and recorded == (recorded if line == "masked" else frozen), path)
    for path in folder.glob("*survivors.json*"):
        check(any(ledger["frozen"] and frozen in (ledger["frozen"], None) for ledger in ledgers.values()), path)
    for user, ledger in ledgers.items():
        if ledger["shared"] and not (folder / f"secrets/user-{user:02}.h5").exists():
            check(ledger["forgotten"], f"what user {user} erased")


def concluded(what: str, counts: Mapping[str, int], violations: list[str], missing: int = 0) -> int:
    """Say how a long run ended; the exit code."""
    print(what)
    for name, number in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        print(f"  {number:7}  {name}")
    for violation in violations:
        print(f"VIOLATION {violation}")
    print(
        f"{len(violations)} violations" + (f"; {missing} are MISSING: give --seconds more" if missing else ""),
        flush=True,
    )
    return bool(violations or missing)
