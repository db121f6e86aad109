"""Share files: large, mostly not read, with a checksum for every few rows.

The digest of the file covers the table of checksums; each row is checked against it when it is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from ..algebra.field import Integers, Symbols
from ..protocol.parameters import Parameters
from .artifacts import DIGEST_BYTES, Artifact, Attributes, Writer, creating, opened
from .atomic import PRIVATE, allow_open_files, whole_file

_CHECKED_AT_ONCE = 64  # rows


class ShareFile:
    """The rows of f and h in an open share file; reads only what is asked for."""

    def __init__(self, p: Parameters, artifact: Artifact) -> None:
        self.artifact = artifact
        self.field = p.field
        self.unit = p.check_rows
        for name, shape in shapes_of(p).items():
            artifact.expect_shape(name, *shape)
        self.check = artifact.read("check")

    def read(self, rows: Integers) -> tuple[Symbols, Symbols]:
        """Increasing `rows` of f and h; with more than a row per checksum, whole runs of them."""
        if self.unit > 1:
            start, stop = int(rows[0]), int(rows[-1]) + 1
            if stop - start != len(rows) or start % self.unit:
                raise ValueError("rows under one checksum are read together")
            f, h = (self._run(at, name, start, stop) for at, name in enumerate("fh"))
            return f, h
        runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)  # neighbours are read at once
        f, h = (
            np.concatenate([self._run(at, name, int(run[0]), int(run[-1]) + 1) for run in runs])
            for at, name in enumerate("fh")
        )
        return f, h

    def check_all(self) -> None:
        """Read every row and check it."""
        rows = self.artifact.datasets["f"].shape[0]
        step = max(self.unit, _CHECKED_AT_ONCE // self.unit * self.unit)
        for start in range(0, rows, step):
            self.read(np.arange(start, min(start + step, rows)))

    def _run(self, at: int, name: str, start: int, stop: int) -> Symbols:
        values = self.artifact.read_rows(name, start, stop)
        for first in range(start, stop, self.unit):
            part = values[first - start : first - start + self.unit]
            if hashlib.sha256(part.data).digest() != self.check[first // self.unit, at].tobytes():
                raise self.artifact.bad(
                    f"rows from {first} on do not match their checksum: the file is damaged"
                )
        if values.size and values.max() >= np.uint32(self.field):
            raise self.artifact.bad("a symbol is not below the field's size")
        return values


def check_shape(p: Parameters) -> tuple[int, int, int]:
    """A SHA-256 for every `check_rows` rows, of f and of h."""
    return -(-p.rows // p.check_rows), 2, DIGEST_BYTES


def share_shapes(p: Parameters) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Types and shapes of the datasets of a share, in the order of the file."""
    table = (p.rows, p.width)
    return {"f": ("<u4", table), "h": ("<u4", table), "check": ("|u1", check_shape(p))}


def shapes_of(p: Parameters) -> dict[str, tuple[int, ...]]:
    """The shapes of the datasets of a share."""
    return {name: shape for name, (_, shape) in share_shapes(p).items()}


@contextmanager
def share_rows(p: Parameters, path: Path, expected: Attributes) -> Iterator[ShareFile]:
    """Open one share file and check whose it is."""
    with opened(path, "share", shapes_of(p)) as artifact:
        yield ShareFile(p, artifact.expect(expected))


class ShareWriter:
    """The share files of one sender, written side by side."""

    def __init__(self, p: Parameters, writers: list[Writer]) -> None:
        self.p = p
        self.writers = writers
        self.check = np.zeros((len(writers), *check_shape(p)), dtype=np.uint8)

    def write(self, name: str, start: int, shares: Symbols) -> None:
        """Put rows of f or h, (files, rows, width), into every file and remember their checksums."""
        unit, column = self.p.check_rows, "fh".index(name)
        for writer, rows, check in zip(self.writers, shares, self.check, strict=True):
            writer.write(name, start, rows)
            for first in range(0, len(rows), unit):
                digest = hashlib.sha256(rows[first : first + unit].data).digest()
                check[(start + first) // unit, column] = np.frombuffer(digest, dtype=np.uint8)

    def finish(self) -> None:
        """Write the tables of checksums."""
        for writer, check in zip(self.writers, self.check, strict=True):
            writer.write("check", 0, check)


@contextmanager
def writing_shares(p: Parameters, paths: Mapping[int, Path], attributes: Attributes) -> Iterator[ShareWriter]:
    """Write the shares for the users in `paths`; none appears under its name before all are complete."""
    shapes = share_shapes(p)
    allow_open_files(2 * len(paths))
    with ExitStack() as files, ExitStack() as layouts:
        writers = []
        for user, path in paths.items():
            temporary = files.enter_context(whole_file(path, PRIVATE))
            own = {**attributes, "user": user}
            writers.append(layouts.enter_context(creating(temporary, "share", own, shapes)))
        writer = ShareWriter(p, writers)
        yield writer
        writer.finish()
        layouts.close()
