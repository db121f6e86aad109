"""The HDF5 files of a round: kinds, schema, digest. docs/file-format.md is the specification.

Files are laid out by the HDF5 library and read by a parser of our own: their structure must fit the schema
exactly before anything else is read from them.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..errors import BadData
from .atomic import check_own, open_regular
from .hdf5_parser import Dataset, Structure, Unknown, parse
from .hdf5_writer import lay_out, new_file, put_attributes

FORMAT = "topk-secagg"
VERSION = 1
DIGEST_BYTES = 32
_HASH_BYTES = 1 << 22

Array = npt.NDArray[Any]
Attribute = str | int
Attributes = dict[str, Attribute]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Kind:
    """The schema of one kind of file: its datasets, its own attributes, and what the digest covers."""

    name: str
    datasets: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    undigested: tuple[str, ...] = ()
    secret: bool = False
    small: bool = True  # read whole, once, where the session tells its size


_COMMON = ("format", "insecure", "kind", "session", "sha256", "user", "version")
_TEXT = {"format", "kind", "session", "sha256", "sharing", "randomness", "survivors", "weight", "signature"}

KINDS = {
    kind.name: kind
    for kind in (
        Kind("secret", {"place": ("<u4",), "mask": ("<u4",), "key": ("|u1",)}, ("randomness", "sharing"),
             secret=True),
        Kind("share", {"f": ("<u4",), "h": ("<u4",), "check": ("|u1",)}, ("sender", "sharing"),
             optional=("signature",), undigested=("f", "h"), secret=True),
        Kind("masked", {"index": ("|u1",), "value": ("|u1", "<u4")}, ("sharing", "weight"),
             optional=("signature",)),
        Kind("elimination", {"y": ("<u4",)}, ("survivors",), optional=("signature",), small=False),
        Kind("residual", {"value": ("<f8",)}, secret=True),
        Kind("aggregate", {"index": ("<u4",), "value": ("<u4",), "real": ("<f8",), "survivors": ("<u4",),
                           "answering": ("<u4",), "corrected": ("<u4",)}, ("survivors",)),
    )
}  # fmt: skip


def attributes_digest(attributes: Mapping[str, Attribute]) -> Any:
    """The start of every digest: all attributes but sha256 and signature, a line each, by name."""
    digest = hashlib.sha256()
    for name in sorted(attributes):
        if name not in ("sha256", "signature"):
            digest.update(f"attribute {name} {attributes[name]}\n".encode())
    return digest


@dataclass
class Writer:
    """A file in the making: `write` puts rows of a dataset in place, in any order."""

    fd: int
    datasets: dict[str, Dataset]

    def write(self, name: str, first_row: int, rows: Array) -> None:
        """Put C-contiguous rows from `first_row` on."""
        d = self.datasets[name]
        row_bytes = d.size // d.shape[0] if d.shape[0] else 0
        view, at = rows.reshape(-1).view(np.uint8).data, d.offset + first_row * row_bytes
        while view:
            done = os.pwrite(self.fd, view, at)
            view, at = view[done:], at + done


@contextmanager
def creating(
    path: Path,
    kind: str,
    attributes: Attributes,
    shapes: Mapping[str, tuple[str, tuple[int, ...]]],
    sign: Callable[[str], str] | None = None,
) -> Iterator[Writer]:
    """Lay out the HDF5 file `path`, let the caller write its datasets, then seal it with its digest.

    `attributes` needs session, user, insecure and those of the kind, and gains sha256 at the end.
    """
    attributes.update(format=FORMAT, version=VERSION, kind=kind)
    with new_file(path) as file:
        datasets = lay_out(file, shapes)
        fd = os.open(path, os.O_RDWR)
        try:
            if KINDS[kind].secret:
                check_own(os.fstat(fd), path)
            yield Writer(fd, datasets)
            digest = attributes_digest(attributes)
            for name in sorted(set(datasets) - set(KINDS[kind].undigested)):
                _digest_dataset(digest, name, datasets[name], fd)
        finally:
            os.close(fd)
        attributes["sha256"] = digest.hexdigest()
        if sign:
            attributes["signature"] = sign(digest.hexdigest())
        put_attributes(file, attributes)


def digest_at_hand(kind: str, attributes: Attributes, datasets: Mapping[str, Array]) -> str:
    """The digest that an artifact with this content will have; sets what all artifacts of the kind share."""
    attributes.update(format=FORMAT, version=VERSION, kind=kind)
    digest = attributes_digest(attributes)
    for name in sorted(set(datasets) - set(KINDS[kind].undigested)):
        array = np.ascontiguousarray(datasets[name])
        digest.update(Dataset(array.dtype, array.shape, 0).header(name))
        digest.update(array.reshape(-1).view(np.uint8).data)
    return str(digest.hexdigest())


def write_artifact(path: Path, kind: str, attributes: Attributes, datasets: Mapping[str, Array]) -> str:
    """Write a whole artifact at once; the digest is returned."""
    shapes = {name: (array.dtype.str, array.shape) for name, array in datasets.items()}
    with creating(path, kind, attributes, shapes) as writer:
        for name, array in datasets.items():
            writer.write(name, 0, np.ascontiguousarray(array))
    return str(attributes["sha256"])


def _digest_dataset(digest: Any, name: str, d: Dataset, fd: int) -> None:
    digest.update(d.header(name))
    for start in range(0, d.size, _HASH_BYTES):
        digest.update(_pread(fd, min(_HASH_BYTES, d.size - start), d.offset + start).data)


def _pread(fd: int, size: int, offset: int) -> npt.NDArray[np.uint8]:
    """Exactly `size` bytes from `offset`, writable: the kernels are compiled for such arrays only."""
    data = np.empty(size, dtype=np.uint8)
    done = 0
    while done < size:
        got = os.preadv(fd, [data[done:].data], offset + done)
        if not got:
            raise BadData(
                "a file became shorter while it was read", "let no other program write to the round"
            )
        done += got
    return data


@dataclass
class Artifact:
    """An open artifact whose structure, attributes and digest have been checked."""

    path: Path
    kind: Kind
    attributes: dict[str, Any]
    datasets: dict[str, Dataset]
    fd: int
    mode: int = 0
    held: dict[str, Array] | None = None

    def read(self, name: str) -> Array:
        """A whole dataset; of a file that is held, the very bytes that the digest was checked on."""
        d = self.datasets[name]
        if self.held is not None and name in self.held:
            return self.held[name]
        return _pread(self.fd, d.size, d.offset).view(d.dtype).reshape(d.shape)

    def read_rows(self, name: str, start: int, stop: int) -> Array:
        """Rows start..stop-1 of a dataset."""
        shape = self.datasets[name].shape[1:]
        row = math.prod(shape)
        return self.read_flat(name, start * row, stop * row).reshape(stop - start, *shape)

    def read_flat(self, name: str, start: int, stop: int) -> Array:
        """Elements start..stop-1 of a dataset, whatever its shape."""
        d = self.datasets[name]
        item = d.dtype.itemsize
        return _pread(self.fd, (stop - start) * item, d.offset + start * item).view(d.dtype)

    def digest(self) -> str:
        """The digest of what the file holds."""
        names = sorted(set(self.datasets) - set(self.kind.undigested))
        if self.held is not None:
            self.held = {name: self.read(name) for name in names}
            return digest_at_hand(self.kind.name, self.attributes, self.held)
        digest = attributes_digest(self.attributes)
        for name in names:
            _digest_dataset(digest, name, self.datasets[name], self.fd)
        return str(digest.hexdigest())

    def expect_shape(self, name: str, *shape: int) -> None:
        """Refuse a dataset of another shape than the session asks for."""
        if self.datasets[name].shape != shape:
            raise self.bad(f"its {name} has shape {self.datasets[name].shape}, not {shape}")

    def expect(self, attributes: Attributes) -> Self:
        """Refuse a file of another session, user, sender or sharing."""
        for name, value in attributes.items():
            if self.attributes[name] != value:
                found = self.attributes[name]
                what = (
                    "it belongs to another session"
                    if name == "session"
                    else f"its {name} is {found}, not {value}"
                )
                raise self.bad(what, "was it copied from elsewhere?")
        return self

    def bad(self, what: str, hint: str = "fetch or make the file again") -> BadData:
        """An error about this file."""
        return BadData(f"{self.path}: {what}", hint)


@contextmanager
def opened(
    path: Path, kind: str | None = None, shapes: Shapes | None = None, *, verify: bool = True
) -> Iterator[Artifact]:
    """Open an artifact and check everything about it that needs no session.

    With `shapes`, which a session tells, nothing is read before the file is known to have them.
    """
    fd = open_regular(path, _whose_step(kind))
    try:
        yield checked(fd, path, kind, shapes, verify=verify)
    finally:
        os.close(fd)


def checked(
    fd: int, path: Path, kind: str | None = None, shapes: Shapes | None = None, *, verify: bool = True
) -> Artifact:
    """The artifact in an open file, which messages call `path`."""
    try:
        structure = parse(fd)
    except Unknown as unknown:
        what = f"{path}: it is damaged, or no file of a round: {unknown}"
        raise BadData(what, "fetch or make the file again") from unknown
    schema = _schema(structure, kind, path)
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    datasets = {name: structure.datasets[name] for name in schema.datasets}
    artifact = Artifact(path, schema, dict(structure.attributes), datasets, fd, mode)
    for name, shape in (shapes or {}).items():
        artifact.expect_shape(name, *shape)
    if shapes and schema.small:
        artifact.held = {}
    if verify and artifact.digest() != structure.attributes["sha256"]:
        raise artifact.bad("its content does not match its digest: the file is damaged")
    return artifact


def _schema(found: Structure, kind: str | None, path: Path) -> Kind:
    """The schema that a file fits exactly."""

    def refuse(what: str) -> BadData:
        return BadData(f"{path}: {what}", "fetch or make the file again")

    attributes, datasets = found.attributes, found.datasets
    if attributes.get("format") != FORMAT:
        raise refuse("it is not a topk-secagg file")
    if attributes.get("version") != VERSION:
        version = attributes.get("version")
        raise refuse(f"it has format version {version}, and this program reads {VERSION}")
    name = attributes.get("kind")
    if not isinstance(name, str) or name not in KINDS or kind not in (None, name):
        raise refuse(f"it is of kind {name!r}" + (f", not {kind!r}" if kind else ""))
    schema = KINDS[name]
    if set(attributes) - set(schema.optional) != {*_COMMON, *schema.attributes} or any(
        isinstance(value, str) != (name in _TEXT) for name, value in attributes.items()
    ):
        raise refuse("its attributes do not fit its kind")
    if set(datasets) != set(schema.datasets) or any(
        d.dtype.str not in schema.datasets[name] for name, d in datasets.items()
    ):
        raise refuse("its datasets do not fit its kind")
    return schema


def _whose_step(kind: str | None) -> str:
    steps = {
        "secret": "run `topk-secagg offline` for this user first",
        "share": "fetch it from the user that made it with `topk-secagg offline`",
        "masked": "run `topk-secagg mask` for this user first",
        "elimination": "run `topk-secagg eliminate` for this user first",
        "aggregate": "run `topk-secagg decode` first",
    }
    return steps.get(kind or "", "check the path")
