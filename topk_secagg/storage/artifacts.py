"""What all HDF5 files of a round have in common: kinds, schema, digest, signature.

docs/file-format.md is the specification. Files are laid out by the HDF5 library and read by a
parser of our own: their structure must fit the schema exactly before anything else is read from
them.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from ..algebra.parallel import together
from ..errors import BadData
from .atomic import PRIVATE, PUBLIC, Array, open_regular, pread_into, whole_file
from .documents import AGAIN, FORMAT, VERSION
from .hdf5_parser import Dataset, Unknown, parse
from .hdf5_writer import Put, Schema, Shapes, new_file
from .keys import Identity, Recipient, unsigned

_HASH_BYTES = 1 << 22
_PART_BYTES = 1 << 20  # of a dataset that are written at a time

Attributes = dict[str, str | int]


@dataclass(frozen=True)
class Kind:
    """The schema of one kind of file.

    `datasets` are the types that each may have, and a description for readers who use another
    program. A file has one of the sets in `layouts`, or all of them; `undigested` ones have
    checksums of their own. `missing` says what to do when there is no such file.
    """

    name: str
    datasets: Schema
    missing: str
    layouts: tuple[set[str], ...] = ()
    attributes: tuple[str, ...] = ()
    undigested: tuple[str, ...] = ()
    secret: bool = False
    signed: bool = False  # in rounds with recipients


# types of datasets
BYTES = ("|u1",)
SYMBOLS = ("<u2", "<u4")
_COMMON = ("format", "insecure", "kind", "session", "sha256", "user", "version")
_TEXT = {
    "format",
    "kind",
    "session",
    "sha256",
    "sharing",
    "randomness",
    "survivors",
    "weight",
    "signature",
}


class Digest:
    """SHA-256 over the attributes by name, then the datasets by name, each with its type and
    shape."""

    def __init__(self, kind: Kind, attributes: Attributes) -> None:
        attributes.update(format=FORMAT, version=VERSION, kind=kind.name)
        self._kind = kind
        self._attributes = attributes
        self._hash = hashlib.sha256()
        self.hexdigest = self._hash.hexdigest
        for name in sorted(set(attributes) - {"sha256", "signature"}):
            self._hash.update(f"attribute {name} {attributes[name]}\n".encode())

    def part(self, name: str, shape: tuple[int, ...], start: int, rows: Array) -> None:
        """Rows of a dataset from `start` on, in order and contiguous."""
        if not start:
            self._hash.update(
                f"dataset {name} {rows.dtype.str} {','.join(map(str, shape))}\n".encode()
            )
        self._hash.update(rows.data)

    def sign(self, signer: Identity | None) -> str:
        """Put the digest, and its signature, among the attributes."""
        self._attributes["sha256"] = digest = self.hexdigest()
        if signer and self._kind.signed:
            self._attributes["signature"] = signer.sign(self._kind.name, digest)
        return digest


@dataclass(frozen=True)
class Content:
    """An artifact in memory. `attributes` needs those of the session and of the kind; digest and
    signature follow."""

    kind: Kind
    attributes: Attributes
    datasets: Mapping[str, Array]
    signer: Identity | None = None
    # what such datasets hold, part by part
    made: Mapping[str, Callable[[Array], Array]] = field(default_factory=dict)

    def _parts(self, name: str) -> Iterator[tuple[int, Array]]:
        """The first row, and what the dataset holds from there."""
        array = self.datasets[name]
        made = self.made.get(name, np.ascontiguousarray)
        rows = max(1, _PART_BYTES // max(1, array[:1].nbytes))
        yield from (
            (start, made(array[start : start + rows]))
            for start in range(0, max(1, len(array)), rows)
        )

    @cached_property
    def digest(self) -> str:
        """Its SHA-256, which is put among the attributes with its signature."""
        return self._digested(lambda *_: None)

    def write(self, path: Path) -> str:
        """Write it, whole; its SHA-256."""
        shapes = {
            name: (next(self._parts(name))[1].dtype.str, array.shape)
            for name, array in self.datasets.items()
        }
        with (
            whole_file(path, PRIVATE if self.kind.secret else PUBLIC) as stream,
            new_file(stream, shapes, self.kind.datasets, self.attributes) as put,
        ):
            return self._digested(put)

    def _digested(self, put: Put) -> str:
        """The digest of all parts; a part of a large file is hashed while the next one is made and
        put."""
        digest = Digest(self.kind, self.attributes)

        def updates() -> Iterator[Callable[[], None]]:
            for name in sorted(self.datasets):
                for start, part in self._parts(name):
                    put(name, start, part)
                    if name not in self.kind.undigested:
                        yield partial(digest.part, name, self.datasets[name].shape, start, part)

        together(
            updates(), int(sum(array.nbytes for array in self.datasets.values()) > _HASH_BYTES)
        )
        return digest.sign(self.signer)


@dataclass
class Artifact:
    """An open artifact whose structure and attributes have been checked."""

    path: Path
    kind: Kind
    attributes: dict[str, Any]
    datasets: dict[str, Dataset]
    fd: int
    mode: int = 0
    held: dict[str, Array] = field(default_factory=dict)  # whole datasets, which are not read again

    def read(self, name: str) -> Array:
        """A whole dataset."""
        return self.read_rows(name, 0, self.datasets[name].shape[0])

    def read_rows(self, name: str, start: int, stop: int) -> Array:
        """Rows start..stop-1 of a dataset."""
        shape = self.datasets[name].shape[1:]
        row = math.prod(shape)
        return self.read_flat(name, start * row, stop * row).reshape(stop - start, *shape)

    def read_flat(self, name: str, start: int, stop: int) -> Array:
        """Elements start..stop-1 of a dataset, whatever its shape."""
        if name in self.held:
            return self.held[name].reshape(-1)[start:stop]
        d = self.datasets[name]
        return pread_into(
            self.fd, np.empty(stop - start, d.dtype), d.offset + start * d.dtype.itemsize
        )

    def digest(self, look: Callable[[Array], None] = lambda _: None) -> str:
        """The digest of what the file holds; `look` sees the parts of datasets that are read on the
        way."""
        digest = Digest(self.kind, self.attributes)
        for name in sorted(set(self.datasets) - set(self.kind.undigested)):
            d = self.datasets[name]
            count = math.prod(d.shape)
            step = _HASH_BYTES // d.dtype.itemsize
            for start in range(0, max(1, count), step):
                part = self.read_flat(name, start, min(start + step, count))
                digest.part(name, d.shape, start, part)
                look(part)
        return digest.hexdigest()

    def verify(self, look: Callable[[Array], None] = lambda _: None) -> None:
        """Refuse a file that does not hold what its digest says."""
        if self.digest(look) != self.attributes["sha256"]:
            raise self.bad("its content does not match its digest: the file is damaged")

    def fit(self, kinds: tuple[Kind, ...]) -> None:
        """Refuse a file that does not fit the schema of one of these kinds exactly."""
        attributes = self.attributes
        datasets = self.datasets
        if attributes.get("format") != FORMAT:
            raise self.bad("it is not a topk-secagg file")
        if attributes.get("version") != VERSION:
            raise self.bad(
                f"it has format version {attributes.get('version')}, and this program reads "
                f"{VERSION}"
            )
        name = attributes.get("kind")
        fitting = [kind for kind in kinds if kind.name == name]
        if not fitting:
            raise self.bad(
                f"it is of kind {name!r}" + (f", not {kinds[0].name!r}" if len(kinds) == 1 else "")
            )
        self.kind = kind = fitting[0]
        optional = {"signature"} if kind.signed else set()
        if set(attributes) - optional != {*_COMMON, *kind.attributes} or any(
            isinstance(value, str) != (name in _TEXT) for name, value in attributes.items()
        ):
            raise self.bad("its attributes do not fit its kind")
        if set(datasets) not in (kind.layouts or [set(kind.datasets)]) or any(
            d.dtype.str not in kind.datasets[name][0] or d.description != kind.datasets[name][1]
            for name, d in datasets.items()
        ):
            raise self.bad("its datasets do not fit its kind")

    def expect_shapes(self, shapes: Shapes) -> None:
        """Refuse datasets of other types or shapes than the session asks for."""
        if set(shapes) != set(self.datasets):
            raise self.bad("it belongs to another construction")
        for name, (dtype, shape) in shapes.items():
            d = self.datasets[name]
            if d.shape != shape:
                raise self.bad(f"its {name} has shape {d.shape}, not {shape}")
            if d.dtype != np.dtype(dtype):
                raise self.bad(f"its {name} has type {d.dtype.str}, not {dtype}")

    def expect(self, attributes: Attributes, sender: Recipient | None = None) -> Self:
        """Refuse a file of another session, user, sender or sharing, or that its sender did not
        sign."""
        for name, value in attributes.items():
            if self.attributes[name] != value:
                found = self.attributes[name]
                what = (
                    "it belongs to another session"
                    if name == "session"
                    else f"its {name} is {found}, not {value}"
                )
                raise self.bad(what, "was it copied from elsewhere?")
        if wrong := unsigned(
            sender, self.kind.name, self.attributes["sha256"], self.attributes.get("signature")
        ):
            raise self.bad(wrong, f"ask user {sender.user} for the real one" if sender else AGAIN)
        return self

    def bad(self, what: str, hint: str = AGAIN) -> BadData:
        """An error about this file."""
        return BadData(f"{self.path}: {what}", hint)


@contextmanager
def opened(
    path: Path,
    *kinds: Kind,
    shapes: Shapes | None = None,
    file: AbstractContextManager[IO[bytes]] | None = None,
) -> Iterator[Artifact]:
    """The artifact of one of these kinds in a file, or in `file` instead, with its structure
    checked.

    With the shapes that a session determines the digest is checked too, once it is known to have
    them.
    """
    with file or open_regular(
        path, kinds[0].missing if len(kinds) == 1 else "check the path"
    ) as stream:
        fd = stream.fileno()
        try:
            attributes, datasets = parse(fd)
        except Unknown as unknown:
            raise BadData(
                f"{path}: it is damaged, or not a file of a round: {unknown}", AGAIN
            ) from unknown
        artifact = Artifact(
            path, kinds[0], attributes, datasets, fd, stat.S_IMODE(os.fstat(fd).st_mode)
        )
        artifact.fit(kinds)
        if shapes:
            artifact.expect_shapes(shapes)
            # what is used later are the same bytes that the digest is checked on
            artifact.held = {
                name: artifact.read(name)
                for name in datasets
                if name not in artifact.kind.undigested
            }
            artifact.verify()
        yield artifact
