"""Each step of one user against its floor: the same bytes written, read, hashed or compared.

N = 10, U = 5, T = 3, K = 1 %, `sketch` by keys. What counts is the work beyond start-up: the time
of the same command on a round of a thousand coordinates is subtracted.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from measuring import Figure, command, gradients, read_and_hash, seconds, write_and_hash

USERS = 10
OPTIONS = "--users 10 --survivors 5 --colluders 3 --density 0.01 --construction sketch"
START_LENGTH = 1000  # coordinates of a round whose time is all start-up
MEMORY_ALLOWED = 1e9  # bytes


class Wanted(NamedTuple):
    """What a step is compared with, at most how many times that, and why it takes more."""

    floor: str
    most: float | None
    remark: str = ""


WANTED = {
    "offline": Wanted(
        "writing, hashing and fsyncing the secret", None, "its mask follows from 60 keys"
    ),
    "mask": Wanted("loading the gradient and one argpartition", 2.0),
    "eliminate": Wanted(
        "reading and hashing the X of all users", None, "its shares follow from 360 keys"
    ),
    "decode": Wanted(
        "reading and hashing X and Y of all users",
        4.0,
        "it finds N K places and values, and writes them",
    ),
}


def argpartition(path: Path) -> float:
    """Seconds to load a gradient and find the threshold of its largest entries."""

    def work() -> None:
        magnitude = np.abs(np.load(path))
        np.argpartition(magnitude, -(magnitude.size // 100))

    return seconds(work)


class Rounds:
    """A round, and a small one that shows how long its commands start up."""

    def __init__(self, folder: Path, sources: dict[str, Path]) -> None:
        self.sources = sources
        self.folder = folder
        self.roots = {name: folder / name for name in sources}
        self.memory = 0.0  # MB of the largest step
        for name, root in self.roots.items():
            command("init", root, *OPTIONS.split(" "), "--like", sources[name] / "user-01.npy")

    @property
    def root(self) -> Path:
        """The large round."""
        return self.roots["round"]

    def step(self, step: str, name: str, user: int) -> float:
        """Seconds of a step of one user; its result is not there already."""
        (self.roots[name] / "aggregate.h5").unlink(missing_ok=True)
        options: list[object] = [] if step == "decode" else ["--user", user]
        if step == "mask":
            options += ["--gradient", self.gradient(name, user)]
        measured = command(step, self.roots[name], *options)
        self.memory = max(self.memory, measured.memory)
        return measured.seconds

    def gradient(self, name: str, user: int) -> Path:
        """A user's gradient."""
        return self.sources[name] / f"user-{user:02}.npy"

    def files(self, *patterns: str) -> list[Path]:
        """Of the large round."""
        return sorted(path for pattern in patterns for path in self.root.glob(pattern))

    def floor(self, step: str, user: int) -> float:
        """Seconds of what a step is compared with."""
        if step == "offline":
            (secret,) = self.files(f"secrets/user-{user:02}.h5")
            return write_and_hash(self.folder / "floor", 1, secret.stat().st_size)
        if step == "mask":
            return argpartition(self.gradient("round", user))
        if step == "eliminate":
            return read_and_hash(self.files("masked/*"))
        return read_and_hash(self.files("elimination/*", "masked/*"))

    def figure(self, step: str, length: int) -> Figure:
        """The small round, ours and the floor take turns, user by user: a slow moment of the
        machine affects all three."""
        starts = []
        rounds = []
        theirs = []
        for user in range(1, USERS + 1):
            starts.append(self.step(step, "start", user))
            rounds.append(self.step(step, "round", user))
            theirs.append(self.floor(step, user))
        wanted = WANTED[step]
        return Figure(
            part="floors",
            name=f"sketch: {step}, {length:,} coordinates",
            ours=[seconds - median(starts) for seconds in rounds],
            against=wanted.floor,
            theirs=theirs,
            most=wanted.most,
            remark=wanted.remark,
        )


def figures(folder: Path, length: int) -> list[Figure]:
    """All steps, and the memory of the largest one."""
    sources = {
        name: gradients(folder / f"{name}-gradients", size, USERS)
        for name, size in (("start", START_LENGTH), ("round", length))
    }
    rounds = Rounds(folder, sources)
    measured = [rounds.figure(step, length) for step in ("offline", "mask")]
    for root in rounds.roots.values():
        command("freeze", root)
    measured += [rounds.figure(step, length) for step in ("eliminate", "decode")]
    memory = Figure(
        part="floors",
        name=f"sketch: memory of the largest step, {length:,} coordinates",
        ours=[rounds.memory * 1e6],
        against="1 GB",
        theirs=[MEMORY_ALLOWED],
        unit="bytes",
        most=1,
    )
    return [*measured, memory]
