"""Calling the command line from tests, and looking at what it left behind."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "fixtures" / "example"
SCRIPT = Path(sys.executable).with_name("topk-secagg")


def words(text: str) -> list[str]:
    """Options as a shell would split them."""
    return text.split()


# The worked example of the paper: five users, user 5 drops out before masking and user 4 after it.
EXAMPLE_OPTIONS = words("--users 5 --survivors 3 --colluders 1 --top-k 2 --length 4")
USERS, MASKING, ANSWERING = range(1, 6), range(1, 5), range(1, 4)
STAGES = ("init", "offline", "masked", "frozen", "answered", "decoded")
SYMBOLS = 2**32 - 5

DOCUMENTED = {0, 2, 65, 66, 69, 73, 75, 77, 130}


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


RunCli = Callable[..., Result]


def invoke(*args: object) -> int:
    """Call main() as if from a shell; the exit code."""
    from topk_secagg_cli.main import main

    handler = signal.getsignal(signal.SIGTERM)
    try:
        with mock.patch.object(sys, "argv", ["topk-secagg", *map(str, args)]):
            main()
    except SystemExit as end:
        return 0 if end.code is None else int(end.code)
    finally:
        signal.signal(signal.SIGTERM, handler)
    raise AssertionError("main() came back")


def quietly(*args: object) -> Result:
    """The same where pytest's capture is not at hand (fixtures of a session)."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = invoke(*args)
    return Result(code, out.getvalue(), err.getvalue())


def must(*args: object) -> Result:
    """A command that has to succeed."""
    result = quietly(*args)
    assert result.code == 0, (args, result)
    return result


def gradient(user: int) -> Path:
    return EXAMPLE / f"user-{user:02}.npy"


def steps(
    folder: Path,
    options: Iterable[str] = EXAMPLE_OPTIONS,
    gradient_of: Callable[[int], Path] = gradient,
    *,
    users: Iterable[int] = USERS,
    masking: Iterable[int] = MASKING,
    answering: Iterable[int] = ANSWERING,
) -> dict[str, list[tuple[object, ...]]]:
    """The commands of a round, stage by stage."""
    return {
        "init": [("init", folder, *options)],
        "offline": [("offline", folder, "--user", n) for n in users],
        "masked": [("mask", folder, "--user", n, "--gradient", gradient_of(n)) for n in masking],
        "frozen": [("freeze", folder)],
        "answered": [("eliminate", folder, "--user", n) for n in answering],
        "decoded": [("decode", folder)],
    }


def play(folder: Path, upto: str = "decoded", after: Callable[[str], None] = lambda _: None, **how: Any) -> Path:
    """Run a round up to a stage; `after` is told of each."""
    for stage, commands in steps(folder, **how).items():
        for command in commands:
            must(*command)
        after(stage)
        if stage == upto:
            break
    return folder


def shell(*args: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """The installed command, in a process of its own."""
    return subprocess.run([SCRIPT, *map(str, args)], capture_output=True, text=True, timeout=100, check=False, **how)


def python(code: str, *args: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """A few lines of Python in a process of their own."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, timeout=100, check=False, **how
    )


def is_lock(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith("lock")


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file but locks: its bytes and its mode."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not is_lock(path)
    }


def leftovers(folder: Path) -> list[Path]:
    """Temporary files, and whatever else is hidden but no lock."""
    return [path for path in folder.rglob(".*") if not is_lock(path)]


def assert_one_error(code: int, out: str, err: str) -> None:
    """One line that says what is wrong, at most one hint, no traceback, nothing on standard output."""
    lines = err.splitlines()
    assert "Traceback" not in err
    assert 1 <= len(lines) <= 2, err
    assert lines[0].startswith("topk-secagg: "), err
    assert all(line.startswith("hint: ") for line in lines[1:]), err
    assert "a bug" not in lines[0], err
    assert out == ""
    assert code in DOCUMENTED | {143}


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


def aggregate(folder: Path, length: int = 4) -> np.ndarray:
    """The decoded sum in the field, as a dense vector."""
    found = datasets(folder / "aggregate.h5")
    dense = np.zeros(length, dtype=np.int64)
    dense[found["index"]] = found["value"]
    return dense


def sparse_top(vector: np.ndarray, k: int) -> np.ndarray:
    """A vector with all but its k largest magnitudes set to zero; ties go to the lower index."""
    kept = np.argsort(-np.abs(vector), kind="stable")[:k]
    result = np.zeros(vector.size)
    result[kept] = vector[kept]
    return result


def write_document(path: Path, document: dict[str, Any]) -> None:
    """A JSON document in the one form in which the program writes it."""
    path.write_bytes((json.dumps(document, indent=2, ensure_ascii=True) + "\n").encode())


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON document of a round."""
    document = json.loads(path.read_text())
    change(document)
    write_document(path, document)


def flip(path: Path, position: int, bit: int = 0) -> None:
    """Turn one bit of a file."""
    with path.open("r+b") as stream:
        stream.seek(position)
        old = stream.read(1)[0]
        stream.seek(position)
        stream.write(bytes([old ^ (1 << bit)]))


def copy_round(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def is_root() -> bool:
    return os.geteuid() == 0
