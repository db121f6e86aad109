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
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from ..algebra.parallel import together
from ..errors import BadData, OfOtherSession, about
from .atomic import PRIVATE, PUBLIC, Array, open_regular, pread_into, whole_file
from .documents import AGAIN, FORMAT, VERSION, is_sha256
from .hdf5_parser import Dataset, Unknown, parse
from .hdf5_writer import NewFile, Put, Schema, Shapes, new_file
from .keys import Identity, Recipient, check_signature

_HASH_BYTES = 1 << 22
_PART_BYTES = 1 << 20  # of a dataset that are written at a time

Attributes = Mapping[str, str | int]


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
    optional: tuple[str, ...] = ()  # attributes that only some rounds have
    undigested: tuple[str, ...] = ()
    secret: bool = False
    signed: bool = False  # in rounds with recipients


# types of datasets
BYTES = ("|u1",)
SYMBOLS = ("|u1", "<u2", "<u4")
_COMMON = ("format", "kind", "session", "sha256", "user", "version")
_TEXT = {
    "dealt",
    "format",
    "kind",
    "session",
    "sha256",
    "sharing",
    "randomness",
    "series",
    "signature",
    "survivors_sha256",
    "weight",
}
_DIGESTS = {
    "dealt",
    "series",
    "session",
    "sha256",
    "sharing",
    "survivors_sha256",
}  # 64 digits, as in JSON


class Digest:
    """The SHA-256 of a file, as it grows: over its attributes by name, then its datasets by name,
    each with its type and shape."""

    def __init__(self, attributes: Attributes) -> None:
        self._hash = hashlib.sha256()
        for name in sorted(set(attributes) - {"sha256", "signature"}):
            self._hash.update(f"attribute {name} {attributes[name]}\n".encode())

    def add(self, name: str, shape: tuple[int, ...], start: int, rows: Array) -> None:
        """Rows of a dataset from `start` on, in order and contiguous."""
        if not start:
            sizes = ",".join(map(str, shape))
            self._hash.update(f"dataset {name} {rows.dtype.str} {sizes}\n".encode())
        self._hash.update(rows.data)

    def hexdigest(self) -> str:
        """The digest of what was added so far."""
        return self._hash.hexdigest()


class Draft:
    """What a file says of itself before its digest is known, and who signs it."""

    def __init__(self, kind: Kind, attributes: Attributes, signer: Identity | None = None) -> None:
        self.kind = kind
        self._signer = signer if kind.signed else None
        self._attributes: Attributes = {
            **attributes,
            "format": FORMAT,
            "version": VERSION,
            "kind": kind.name,
        }

    def new_digest(self) -> Digest:
        """The digest of such a file, to which its datasets are yet to be added."""
        return Digest(self._attributes)

    def completed(self, digest: str) -> Attributes:
        """All attributes of the file that has this digest, with the signature if it has one."""
        attributes = {**self._attributes, "sha256": digest}
        if self._signer:
            attributes["signature"] = self._signer.sign(self.kind.name, digest)
        return attributes


@dataclass(frozen=True)
class Table:
    """A dataset to be written: `stored` gives what the file has in place of a part of the array."""

    array: Array
    stored: Callable[[Array], Array] = np.ascontiguousarray

    def parts(self) -> Iterator[tuple[int, Array]]:
        """The first row of every part, and what the file has from there on."""
        rows = max(1, _PART_BYTES // max(1, self.array[:1].nbytes))
        for start in range(0, max(1, len(self.array)), rows):
            yield start, self.stored(self.array[start : start + rows])

    def type_and_shape(self) -> tuple[str, tuple[int, ...]]:
        """Of the dataset in the file."""
        _, first = next(self.parts())
        return first.dtype.str, self.array.shape


Tables = Mapping[str, Table]


@dataclass(frozen=True)
class Content:
    """A complete file in memory; its digest, and the signature if it has one, are among its
    attributes."""

    kind: Kind
    attributes: Attributes
    tables: Tables

    @staticmethod
    def of(draft: Draft, tables: Tables) -> Content:
        """The file with these datasets, of which the digest is computed first."""
        digest = draft.new_digest()
        _hash_parts(draft.kind, tables, digest, put=lambda *_: None)
        return Content(draft.kind, draft.completed(digest.hexdigest()), tables)

    @property
    def digest(self) -> str:
        """Its SHA-256."""
        return str(self.attributes["sha256"])

    def write(self, path: Path, mode: int | None = None) -> None:
        """Write it, whole; with the mode of its kind, or another."""
        with _new_artifact(path, self.kind, self.tables, mode=mode) as file:
            for name, table in self.tables.items():
                for start, part in table.parts():
                    file.put(name, start, part)
            file.finish(self.attributes)


def write_hashed(path: Path, draft: Draft, tables: Tables) -> str:
    """Write a file, whole, and hash it on the way; its SHA-256."""
    digest = draft.new_digest()
    with _new_artifact(path, draft.kind, tables) as file:
        _hash_parts(draft.kind, tables, digest, put=file.put)
        file.finish(draft.completed(digest.hexdigest()))
    return digest.hexdigest()


@contextmanager
def _new_artifact(
    path: Path, kind: Kind, tables: Tables, mode: int | None = None
) -> Iterator[NewFile]:
    """A file of this kind with room for these datasets."""
    shapes = {name: table.type_and_shape() for name, table in tables.items()}
    if mode is None:
        mode = PRIVATE if kind.secret else PUBLIC
    with whole_file(path, mode) as stream, new_file(stream, shapes, kind.datasets) as file:
        yield file


def _hash_parts(kind: Kind, tables: Tables, digest: Digest, put: Put) -> None:
    """Put all parts, and add them to the digest; a part of a large file is hashed while the next
    one is made and put."""

    def updates() -> Iterator[Callable[[], None]]:
        for name, table in sorted(tables.items()):
            for start, part in table.parts():
                put(name, start, part)
                if name not in kind.undigested:
                    yield partial(digest.add, name, table.array.shape, start=start, rows=part)

    total_bytes = sum(table.array.nbytes for table in tables.values())
    together(updates(), int(total_bytes > _HASH_BYTES))


def _unseen(_: Array) -> None:
    """For callers that need not see what is hashed."""


@dataclass(frozen=True)
class Artifact:
    """An open artifact whose structure and attributes have been checked.

    `loaded` are whole datasets, which are not read from the file again.
    """

    path: Path
    kind: Kind
    attributes: Mapping[str, Any]
    datasets: Mapping[str, Dataset]
    fd: int
    mode: int = 0
    loaded: Mapping[str, Array] = field(default_factory=dict)

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
        if name in self.loaded:
            return self.loaded[name].reshape(-1)[start:stop]
        dataset = self.datasets[name]
        values = np.empty(stop - start, dataset.dtype)
        return pread_into(self.fd, values, dataset.offset + start * dataset.dtype.itemsize)

    def digest(self, see: Callable[[Array], None] = _unseen) -> str:
        """The digest of what the file holds; `see` is given the parts of datasets that are read on
        the way."""
        digest = Digest(self.attributes)
        for name in sorted(set(self.datasets) - set(self.kind.undigested)):
            dataset = self.datasets[name]
            count = math.prod(dataset.shape)
            step = _HASH_BYTES // dataset.dtype.itemsize
            for start in range(0, max(1, count), step):
                part = self.read_flat(name, start, min(start + step, count))
                digest.add(name, dataset.shape, start=start, rows=part)
                see(part)
        return digest.hexdigest()

    def verify(self, see: Callable[[Array], None] = _unseen) -> None:
        """Refuse a file that does not hold what its digest says."""
        if self.digest(see) != self.attributes["sha256"]:
            raise self.bad("its content does not match its digest: the file is damaged")

    def with_datasets_loaded(self) -> Artifact:
        """The same file with all that its digest covers in memory: what is used later are then the
        very bytes on which the digest was checked."""
        digested = set(self.datasets) - set(self.kind.undigested)
        return replace(self, loaded={name: self.read(name) for name in digested})

    def expect_shapes(self, shapes: Shapes) -> None:
        """Refuse datasets of other types or shapes than the session asks for."""
        if set(shapes) != set(self.datasets):
            raise self.bad("it belongs to another construction or dealing")
        for name, (dtype, shape) in shapes.items():
            dataset = self.datasets[name]
            if dataset.shape != shape:
                raise self.bad(f"its {name} has shape {dataset.shape}, not {shape}")
            if dataset.dtype != np.dtype(dtype):
                raise self.bad(f"its {name} has type {dataset.dtype.str}, not {dtype}")

    def expect_attributes(self, attributes: Attributes) -> None:
        """Refuse a file of another session, user, sender or sharing."""
        for name, expected in attributes.items():
            actual = self.attributes[name]
            if actual == expected:
                continue
            hint = "was it copied from elsewhere?"
            if name == "session":
                raise OfOtherSession("it belongs to another session", hint).within(self.path)
            raise self.bad(f"its {name} is {actual}, not {expected}", hint)

    def expect(self, attributes: Attributes, sender: Recipient | None = None) -> Self:
        """Refuse a file with other attributes, or that its sender did not sign."""
        self.expect_attributes(attributes)
        with about(self.path):
            check_signature(
                sender,
                kind=self.kind.name,
                digest=self.attributes["sha256"],
                signature=self.attributes.get("signature"),
            )
        return self

    def bad(self, what: str, hint: str = AGAIN) -> BadData:
        """An error about this file."""
        return BadData(what, hint).within(self.path)


def _checked_kind(
    kinds: tuple[Kind, ...], attributes: Attributes, datasets: Mapping[str, Dataset]
) -> Kind:
    """The one of these kinds that the file says it is, and whose schema it fits exactly."""
    if attributes.get("format") != FORMAT:
        raise BadData("it is not a topk-secagg file", AGAIN)
    version = attributes.get("version")
    if version != VERSION:
        raise BadData(f"it has format version {version}, and this program reads {VERSION}", AGAIN)
    name = attributes.get("kind")
    kind = next((kind for kind in kinds if kind.name == name), None)
    if kind is None:
        expected = f", not {kinds[0].name!r}" if len(kinds) == 1 else ""
        raise BadData(f"it is of kind {name!r}{expected}", AGAIN)
    if not _attributes_fit(kind, attributes):
        raise BadData("its attributes do not fit its kind", AGAIN)
    if not _datasets_fit(kind, datasets):
        raise BadData("its datasets do not fit its kind", AGAIN)
    return kind


def _attributes_fit(kind: Kind, attributes: Attributes) -> bool:
    """Whether there are all attributes of a kind and no others, each text, a digest or a number as
    it must be.

    Some of them are copied into documents, which would not be read again with anything else.
    """
    optional = {*kind.optional, *(["signature"] if kind.signed else [])}
    if set(attributes) - optional != {*_COMMON, *kind.attributes}:
        return False
    return all(
        isinstance(value, str) == (name in _TEXT)
        and (name not in _DIGESTS or is_sha256(str(value)))
        for name, value in attributes.items()
    )


def _datasets_fit(kind: Kind, datasets: Mapping[str, Dataset]) -> bool:
    """Whether there are the datasets of a kind, each of a type that it may have, and described as
    it must be."""
    if set(datasets) not in (kind.layouts or [set(kind.datasets)]):
        return False
    for name, dataset in datasets.items():
        types, description = kind.datasets[name]
        if dataset.dtype.str not in types or dataset.description != description:
            return False
    return True


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
    hint = kinds[0].missing if len(kinds) == 1 else "check the path"
    with file or open_regular(path, hint) as stream:
        fd = stream.fileno()
        try:
            attributes, datasets = parse(fd)
        except Unknown as unknown:
            what = f"it is damaged, or not a file of a round: {unknown}"
            raise BadData(what, AGAIN).within(path) from unknown
        with about(path):
            kind = _checked_kind(kinds, attributes, datasets)
        artifact = Artifact(
            path=path,
            kind=kind,
            attributes=attributes,
            datasets=datasets,
            fd=fd,
            mode=stat.S_IMODE(os.fstat(fd).st_mode),
        )
        if shapes:
            artifact.expect_shapes(shapes)
            artifact = artifact.with_datasets_loaded()
            artifact.verify()
        yield artifact
