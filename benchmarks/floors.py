"""Each step of one user against its floor: the same bytes written, read, hashed or compared.

N = 10, U = 5, T = 3, K = 1 %, P = 2. What counts is the work beyond start-up: the time of the same
command on a round of a thousand coordinates is subtracted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from measuring import Figure, command, gradients, read_and_hash, seconds, write_and_hash

USERS = 10
OPTIONS = "--users 10 --survivors 5 --colluders 3 --density 0.01 --construction moments --picks 2"


def argpartition(path: Path) -> float:
    """Seconds to load a gradient and find the threshold of its largest entries."""

    def work() -> None:
        magnitude = np.abs(np.load(path))
        np.argpartition(magnitude, -(magnitude.size // 100))

    return seconds(work)


def figures(folder: Path, length: int) -> list[Figure]:
    """A small round, ours and the floor take turns, user by user."""
    roots, sources = {}, {}
    for name, size in (("start", 1000), ("round", length)):
        roots[name] = folder / name
        sources[name] = gradients(folder / f"{name}-gradients", size, USERS)
        command("init", roots[name], *OPTIONS.split(" "), "--length", size)
    root = roots["round"]

    def of_step(
        step: str, floor: Callable[[int], float], *options: Callable[[str, int], list[object]]
    ) -> Figure:
        def work(name: str, user: int) -> float:
            given = [part for option in options for part in option(name, user)]
            (roots[name] / "aggregate.h5").unlink(
                missing_ok=True
            )  # no step finds its result there already
            return command(step, roots[name], *given).seconds

        starts, rounds, theirs = [], [], []
        for user in range(1, USERS + 1):  # a slow moment of the machine affects all three
            starts.append(work("start", user))
            rounds.append(work("round", user))
            theirs.append(floor(user))
        ours = [taken - median(starts) for taken in rounds]
        what, most, why = WANTED[step]
        return Figure(
            "floors", f"{step}, {length:,} coordinates", ours, what, theirs, most=most, remark=why
        )

    def user(_: str, n: int) -> list[object]:
        return ["--user", n]

    def gradient(name: str, n: int) -> list[object]:
        return ["--gradient", sources[name] / f"user-{n:02}.npy"]

    def shares(n: int) -> list[Path]:
        return sorted((root / f"shares/user-{n:02}").iterdir())

    def of_decode(_: int) -> float:
        return read_and_hash(sorted((root / "elimination").iterdir()))

    found = [
        of_step(
            "offline",
            lambda n: write_and_hash(folder / "floor", USERS, shares(n)[0].stat().st_size),
            user,
        ),
        of_step(
            "mask", lambda n: argpartition(sources["round"] / f"user-{n:02}.npy"), user, gradient
        ),
    ]
    for name in roots:
        command("freeze", roots[name])
    found.append(of_step("eliminate", lambda n: read_and_hash(shares(n)), user))
    return [*found, of_step("decode", of_decode)]


WANTED = {
    "offline": (
        "writing, hashing and fsyncing the same bytes",
        1.5,
        "the noise has to be drawn and multiplied",
    ),
    "mask": ("loading the gradient and one argpartition", 1.5, ""),
    "eliminate": ("reading and hashing the shares", 2.5, "every symbol is multiplied twice"),
    "decode": (
        "reading and hashing the answers",
        3.0,
        "it finds N K places and values, and writes them",
    ),
}
