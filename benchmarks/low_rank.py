"""Each step of one user of a later round of low rank against its floor, with ResNet-50's 25.6
million parameters at rank 4; and a dense round in memory.

N = 10, U = 7, T = 3, by keys. A floor is what numpy, the disk and the cipher need at least:

    init        the last sum decoded and projected, for the clips: y B' and G B for each tensor
    offline     AES of the streams behind the mask, and the secret written
    mask        the gradient read and hashed, and G B for each tensor
    eliminate   the X of all users read and hashed, and AES of the streams that a user holds
    decode      X and Y read and hashed
    output      the sum read and hashed, y B' for each tensor, and all of it written

The start-up of the command is subtracted, as in `floors.py`: that of the same command on a round of
as many tensors, all small.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from measuring import Figure, command, read_and_hash, seconds, write_and_hash
from models import Shapes, entries, random_tensors, resnet20, resnet50, save_gradients

import topk_secagg as ts
from topk_secagg.gradients.low_rank import is_projected, matrix_shape
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.deal import Block
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.rounds.costs import family_of
from topk_secagg.storage.workspace import Workspace

USERS = 10
RANK = 4
OPTIONS = ["--survivors", 7, "--colluders", 3, "--rank", RANK]
START_SIDE = 8  # of tensors, at most, in a round whose time is all start-up
RATIO_ALLOWED = 2.0
MEMORY_ALLOWED = 1e9  # bytes
DENSE_LENGTH = 1_000_000
DENSE_ALLOWED = 2.5
STEPS = ("offline", "mask", "eliminate", "decode", "output")


def figures(folder: Path, *, quick: bool) -> list[Figure]:
    """All steps, the memory of the largest one, and a dense round."""
    rounds = Rounds(folder, resnet20() if quick else resnet50())
    return [*rounds.figures(), *dense(DENSE_LENGTH // 10 if quick else DENSE_LENGTH, turns=3)]


def small(shapes: Shapes) -> Shapes:
    """As many tensors, and small."""
    return {name: tuple(min(START_SIDE, side) for side in shape) for name, shape in shapes.items()}


# What floors are made of


def matrices(shapes: Shapes) -> list[tuple[int, int]]:
    """(m, k) of the tensors that are projected."""
    return [matrix_shape(shape) for shape in shapes.values() if is_projected(shape, RANK)]


def products(shapes: Shapes) -> float:
    """Seconds of G B for each tensor, from matrices that are there."""
    rng = np.random.default_rng(0)
    pairs = [
        (rng.random((m, k), np.float32), rng.random((k, RANK), np.float32))
        for m, k in matrices(shapes)
    ]
    return seconds(lambda: [g @ b for g, b in pairs])


def expansions(shapes: Shapes) -> float:
    """Seconds of y B' for each tensor."""
    rng = np.random.default_rng(0)
    pairs = [(rng.random((m, RANK)), rng.random((RANK, k))) for m, k in matrices(shapes)]
    return seconds(lambda: [y @ b for y, b in pairs])


def read_hash_and_multiply(path: Path, shapes: Shapes) -> float:
    """Seconds to read and hash a gradient, and to multiply it."""

    def work() -> None:
        hashlib.sha256(np.fromfile(path, np.uint8)).digest()

    return seconds(work) + products(shapes)


def cipher(streams: int, size: int) -> float:
    """Seconds of AES-256-CTR for so many streams of so many bytes."""
    zeros = bytes(size)
    stream = bytearray(size + 16)

    def work() -> None:
        for number in range(streams):
            key = number.to_bytes(32, "little")
            Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update_into(zeros, stream)

    return seconds(work)


def held_by(user: int, family: Sequence[Block]) -> int:
    """How many of a dealer's keys a user has."""
    return sum(user in block for block in family)


# Steps by commands


class Rounds:
    """A later round, and a small one that shows how long its commands start up."""

    def __init__(self, folder: Path, shapes: Shapes) -> None:
        self.folder = folder
        self.shapes = {"round": shapes, "start": small(shapes)}
        self.sources = {
            name: save_gradients(folder / f"{name}-gradients", each, USERS)
            for name, each in self.shapes.items()
        }
        self.memory = 0.0  # MB of the largest step
        for name, source in self.sources.items():
            command("run", self.first(name), "--gradients", source, *OPTIONS)

    def first(self, name: str) -> Path:
        """The round before."""
        return self.folder / f"{name}-first"

    def root(self, name: str) -> Path:
        """The round that is measured."""
        return self.folder / name

    def figures(self) -> list[Figure]:
        """Step after step."""
        measured = [self.figure("init", [1])]
        for step in STEPS:
            if step == "eliminate":
                for name in self.sources:
                    command("freeze", self.root(name))
            measured.append(self.figure(step, range(1, USERS + 1)))
        memory = Figure(
            part="low rank",
            name=f"memory of the largest step, {self.length:,} parameters at rank {RANK}",
            ours=[self.memory * 1e6],
            against="1 GB",
            theirs=[MEMORY_ALLOWED],
            unit="bytes",
            most=1,
        )
        return [*measured, memory]

    @property
    def length(self) -> int:
        """L."""
        return entries(self.shapes["round"])

    def figure(self, step: str, users: Sequence[int]) -> Figure:
        """The small round, ours and the floor take turns, user by user."""
        against, floor = FLOORS[step]
        starts = []
        rounds = []
        theirs = []
        for user in users:
            starts.append(self.step(step, "start", user))
            rounds.append(self.step(step, "round", user))
            theirs.append(floor(self, user))
        return Figure(
            part="low rank",
            name=f"{step}, {self.length:,} parameters at rank {RANK}",
            ours=[each - median(starts) for each in rounds],
            against=against,
            theirs=theirs,
            most=RATIO_ALLOWED,
        )

    def step(self, step: str, name: str, user: int) -> float:
        """Seconds of a step; what it makes is not there already."""
        root = self.root(name)
        sum_path = root.with_suffix(".npz")
        arguments: dict[str, list[Any]] = {
            "init": ["init", root, "--from", self.first(name)],
            "offline": ["offline", root, "--user", user, "--from", self.first(name)],
            "mask": ["mask", root, "--user", user, "--gradient", self.gradient(name, user)],
            "eliminate": ["eliminate", root, "--user", user],
            "decode": ["decode", root],
            "output": ["decode", root, "--output", sum_path],
        }
        if step == "mask":
            arguments[step] += ["--saturate", "--again"]
        if step == "decode":
            (root / "aggregate.h5").unlink(missing_ok=True)
        sum_path.unlink(missing_ok=True)
        measured = command(*arguments[step])
        self.memory = max(self.memory, measured.memory)
        return measured.seconds

    def gradient(self, name: str, user: int) -> Path:
        """A user's gradient."""
        return self.sources[name] / f"user-{user:03}.safetensors"

    def files(self, pattern: str) -> list[Path]:
        """Of the large round."""
        return sorted(self.root("round").glob(pattern))

    # floors

    @property
    def parameters(self) -> Parameters:
        """Of the large round."""
        return Workspace(self.root("round")).session.parameters

    def own_streams(self, user: int) -> float:
        """The streams behind a mask, and the secret written."""
        p = self.parameters
        (secret,) = self.files(f"secrets/user-{user:02}.h5")
        size = secret.stat().st_size
        drawing = cipher(len(family_of(p)), construction(p).share_bytes)
        return drawing + write_and_hash(self.folder / "floor", 1, size)

    def held_streams(self, user: int) -> float:
        """The X of all users, and the streams of the keys that a user holds."""
        p = self.parameters
        streams = USERS * held_by(user, family_of(p))
        return read_and_hash(self.files("masked/*")) + cipher(streams, construction(p).share_bytes)

    def written_sum(self) -> float:
        """A product for each tensor, and the sum of four bytes an entry written."""
        reading = read_and_hash(self.files("aggregate.h5"))
        writing = write_and_hash(self.folder / "floor", 1, 4 * self.length)
        return reading + expansions(self.shapes["round"]) + writing


FLOORS: dict[str, tuple[str, Any]] = {
    "init": (
        "decoding and projecting the last sum in numpy",
        lambda r, _: expansions(r.shapes["round"]) + products(r.shapes["round"]),
    ),
    "offline": (
        "AES of the streams, and writing, hashing and fsyncing the secret",
        Rounds.own_streams,
    ),
    "mask": (
        "reading and hashing the gradient, and a product for each tensor",
        lambda r, user: read_hash_and_multiply(r.gradient("round", user), r.shapes["round"]),
    ),
    "eliminate": (
        "reading and hashing the X of all users, and AES of the streams",
        Rounds.held_streams,
    ),
    "decode": (
        "reading and hashing X and Y of all users",
        lambda r, _: read_and_hash(r.files("masked/*") + r.files("elimination/*")),
    ),
    "output": (
        "reading the sum, a product for each tensor, and writing, hashing and fsyncing all of it",
        lambda r, _: r.written_sum(),
    ),
}


# A dense round in memory


class Streams(NamedTuple):
    """How many there are in a round in which nobody drops out, and the bytes of each."""

    count: int
    size: int

    @classmethod
    def of(cls, p: Parameters) -> Streams:
        """Every dealer draws its own, and every user those of the keys that it holds."""
        family = family_of(p)
        held = sum(held_by(user, family) for user in range(1, p.users + 1))
        return cls(p.users * (len(family) + held), construction(p).share_bytes)


def dense(length: int, turns: int) -> list[Figure]:
    """`aggregate(whole=True)` beside adding up and drawing; the first turn warms up."""
    every = [random_tensors({"": (length,)}, seed)[""] for seed in range(USERS)]
    streams = Streams.of(aggregated(every).parameters)
    ours = []
    theirs = []
    for _ in range(turns):
        ours.append(seconds(lambda: aggregated(every)))
        theirs.append(seconds(lambda: np.sum(every, axis=0, dtype=np.float64)) + cipher(*streams))
    figure = Figure(
        part="low rank",
        name=f"a dense round of {length:,} entries by {USERS} users, in memory",
        ours=ours,
        against="adding them up in numpy, and AES of the streams",
        theirs=theirs,
        most=DENSE_ALLOWED,
    )
    return [figure]


def aggregated(every: list[np.ndarray]) -> Any:
    """The dense sum, in secret."""
    return ts.aggregate(every, survivors=7, colluders=3, whole=True)
