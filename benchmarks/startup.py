"""Start-up: every command on a tiny round against `python -c "import click, numpy, h5py"`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
from measuring import PROGRAM, Figure, command, process

IMPORTS = "import click, numpy, h5py"
TINY = "--users 5 --survivors 3 --colluders 1 --length 100 --density 0.1 --construction sketch"
WANTED = {"offline": 3.5, "eliminate": 3.5, "decode": 3.5}


def tiny_round(folder: Path) -> Path:
    """A round of five users and 100 coordinates, up to the answers of four."""
    root = folder / "tiny"
    gradient = folder / "tiny.npy"
    np.save(gradient, np.linspace(-1, 1, 100, dtype=np.float32))
    command("init", root, *TINY.split(" "))
    command("offline", root, "--user", "1-4")
    for user in range(1, 5):
        command("mask", root, "--user", user, "--gradient", gradient)
    command("freeze", root)
    command("eliminate", root, "--user", "2-4")
    return root


def figures(folder: Path, repeats: int) -> list[Figure]:
    """Commands and imports take turns. Each command does its work: what it writes is removed
    between the turns."""
    root = tiny_round(folder)
    gradient = folder / "tiny.npy"
    rounds = iter(range(10**6))

    def masked() -> Path:
        """A copy in which user 5 has shared, so that it can mask."""
        return Path(shutil.copytree(root, folder / f"tiny-{next(rounds)}"))

    calls = {
        "--help": lambda: process(PROGRAM, "--help"),
        "init": lambda: command("init", folder / f"tiny-{next(rounds)}", *TINY.split(" ")),
        "offline": lambda: command("offline", masked(), "--user", 5),
        "mask": lambda: command("mask", root, "--user", 1, "--gradient", gradient),
        "freeze": lambda: command("freeze", root),
        "eliminate": lambda: command("eliminate", masked(), "--user", 1),
        "decode": lambda: command("decode", masked()),
        "status": lambda: process(PROGRAM, "status", root),
        "inspect": lambda: process(PROGRAM, "inspect", root / "session.json"),
    }  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in calls}
    floor: list[float] = []
    for turn in range(repeats + 1):
        base = process(sys.executable, "-c", IMPORTS).seconds
        seconds = {name: call().seconds for name, call in calls.items()}
        if turn:  # the first one fills the caches
            floor.append(base)
            for name, value in seconds.items():
                times[name].append(value)
    against = f'python -c "{IMPORTS}"'
    return [
        Figure(
            part="start-up",
            name=name,
            ours=measured,
            against=against,
            theirs=floor,
            most=WANTED.get(name),
        )
        for name, measured in times.items()
    ]
