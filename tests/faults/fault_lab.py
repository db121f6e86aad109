"""What the fault tests share on top of played.py: their rounds, a place for them, and judges of
what is left behind."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[2] / "fixtures"))

from deterministic import drawn_from as drawn_from  # for scripts beside this one
from played import Recipe, Stages, Violation, attributes, contents, document

from topk_secagg.rounds.inspect import inspect
from topk_secagg.storage.documents import digest

COMMANDS = (
    "init",
    "offline",
    "mask",
    "freeze",
    "confirm",
    "eliminate",
    "decode",
    "forget",
)
ALL = (1, 2, 3, 4, 5)
SKETCH: dict[str, Any] = {"users": 4, "construction": "sketch", "picks": 1}
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("permutation", users=4, top_k=3, length=12),
        Recipe("sketch", **SKETCH, top_k=6, length=33, suffix=".safetensors"),
        Recipe("shares", **SKETCH, dealing="shares", top_k=6, length=33, suffix=".npz"),
        Recipe("series", **SKETCH, top_k=3, length=20),
        Recipe("later", **SKETCH, top_k=3, length=20, later=True),
        Recipe("residual", **SKETCH, residual=True, suffix=".pt", length=8),
        Recipe("sealed", **SKETCH, sealed=True, confirm=True, length=6),
        Recipe("signed", **SKETCH, sealed=True, length=6),
        Recipe("small-field", users=4, field=257, length=10, suffix=".npz"),
        Recipe("lying", construction="sketch", picks=1, length=9, masking=ALL, answering=ALL),
    )
}


Benches = dict[str, Stages]


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


# --- what is left behind --------------------------------------------------------------------------


def fingerprint(folder: Path) -> dict[str, bytes]:
    """The bytes of every file but locks, notes and temporary ones."""
    return {
        name: content
        for name, (content, _) in contents(folder).items()
        if not Path(name).name.startswith(".")
    }


def check_whole(folder: Path) -> None:
    """Every file under its final name is whole, and none is there before the ledger knows of it."""
    for path in sorted(folder.rglob("*")):
        if path.name.startswith(".") or path.name == "folder.json" or not path.is_file():
            continue
        if path.suffix in (".h5", ".json") and not inspect(path).intact:
            raise Violation(f"{path} is damaged")
        if path.suffix == ".age" and not path.read_bytes().startswith(b"age-encryption.org/v1\n"):
            raise Violation(f"{path} is no age file")
    check_ledgers(folder)


def check_ledgers(folder: Path) -> None:
    """Everything that a user has sent, even under a temporary name, is in its ledger."""
    paths = {
        int(p.name[5:7]): p
        for secrets in (folder / "secrets", *(folder / "secrets").glob("*/"))
        for p in secrets.glob("user-*.ledger.json")
    }
    ledgers = {user: document(path) for user, path in paths.items()}
    frozen = (
        digest((folder / "survivors.json").read_bytes())
        if (folder / "survivors.json").exists()
        else None
    )

    def check(holds: bool, what: object) -> None:
        if not holds:
            raise Violation(f"{what} is not in the ledger")

    for line, place in (
        ("masked", "masked"),
        ("confirmed", "confirmed"),
        ("answered", "elimination"),
    ):
        for path in (folder / place).glob("*user-*"):
            recorded = ledgers[int(path.name.lstrip(".")[5:7])][line]
            if line == "masked" and path.suffix != ".tmp":
                check(recorded == attributes(path)["sha256"], path)
            else:
                check(
                    recorded is not None and recorded == (recorded if line == "masked" else frozen),
                    path,
                )
    session = folder / "session.json"
    binding = session.exists() and not document(session)["confirm"]  # a proposal binds nobody
    for path in folder.glob("*survivors.json*") if binding else ():
        check(
            any(
                ledger["frozen"] and frozen in (ledger["frozen"], None)
                for ledger in ledgers.values()
            ),
            path,
        )
    for user, ledger in ledgers.items():
        if ledger["shared"] and not paths[user].with_name(f"user-{user:02}.h5").exists():
            check(ledger["forgotten"], f"what user {user} erased")


def concluded(what: str, counts: Mapping[str, int], violations: list[str], missing: int = 0) -> int:
    """Say how a long run ended; the exit code."""
    print(what)
    for name, number in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        print(f"  {number:7}  {name}")
    for violation in violations:
        print(f"VIOLATION {violation}")
    print(
        f"{len(violations)} violations"
        + (f"; {missing} are MISSING: give --seconds more" if missing else ""),
        flush=True,
    )
    return bool(violations or missing)
