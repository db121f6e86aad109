"""The HDF5 files of a round: kinds, schema, digest. docs/file-format.md is the specification.

HDF5 is asked only for a file's structure, which must fit the schema exactly; the bytes are then read
from the place it names. Links, filters, virtual and external datasets are refused before anything is read.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..errors import BadData
from .atomic import open_regular

FORMAT = "topk-secagg"
VERSION = 1
DIGEST_BYTES = 32
_HASH_BYTES = 1 << 22
_LONGEST_TEXT = 128
_LARGEST_OVERHEAD = 64 << 10  # bytes of a file besides its datasets; honest ones have about 3,000
_MOST_DATASETS = 8
_LIBVER = ("v110", "v110")

Array = npt.NDArray[Any]
Attribute = str | int
Attributes = dict[str, Attribute]


@dataclass(frozen=True)
class Kind:
    """The schema of one kind of file: its datasets, its own attributes, and what the digest covers."""

    name: str
    datasets: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    undigested: tuple[str, ...] = ()
    secret: bool = False


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
        Kind("elimination", {"y": ("<u4",)}, ("survivors",), optional=("signature",)),
        Kind("residual", {"value": ("<f8",)}, secret=True),
        Kind("aggregate", {"index": ("<u4",), "value": ("<u4",), "real": ("<f8",), "survivors": ("<u4",),
                           "answering": ("<u4",), "corrected": ("<u4",)}, ("survivors",)),
    )
}  # fmt: skip


@dataclass
class Dataset:
    """Where the bytes of a contiguous dataset lie."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @cached_property
    def size(self) -> int:
        """Its bytes."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    def header(self, name: str) -> bytes:
        """What the digest says of it before its bytes."""
        return f"dataset {name} {self.dtype.str} {','.join(map(str, self.shape))}\n".encode()


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
    with _new_file(path) as file:
        datasets = lay_out(file, shapes)
        fd = os.open(path, os.O_RDWR)
        try:
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


@contextmanager
def _new_file(path: Path) -> Iterator[Any]:
    """A new HDF5 file; what HDF5 says when the disk is full becomes the OSError that it is."""
    import h5py

    file = h5py.File(path, "w", libver=_LIBVER, locking=False)
    try:
        yield file
    finally:
        try:
            file.close()
        except RuntimeError as error:
            raise OSError(str(error)) from error


def lay_out(file: Any, shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, Dataset]:
    """Give every dataset its place in an open HDF5 file, without writing to it."""
    import h5py

    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.CONTIGUOUS)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    plist.set_obj_track_times(False)
    datasets = {}
    for name, (dtype, shape) in shapes.items():
        space = h5py.h5s.create_simple(shape)
        made = h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(np.dtype(dtype)), space, plist)
        datasets[name] = Dataset(np.dtype(dtype), shape, made.get_offset() or 0)
    return datasets


def put_attributes(file: Any, attributes: Attributes) -> None:
    """Write the attributes: fixed-length text, or 64-bit unsigned integers."""
    for name, value in sorted(attributes.items()):
        file.attrs.create(name, np.bytes_(value) if isinstance(value, str) else np.uint64(value))


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
    mode: int = field(default=0)

    def read(self, name: str) -> Array:
        """A whole dataset."""
        d = self.datasets[name]
        return _pread(self.fd, d.size, d.offset).view(d.dtype).reshape(d.shape)

    def read_rows(self, name: str, start: int, stop: int) -> Array:
        """Rows start..stop-1 of a dataset."""
        d = self.datasets[name]
        row = d.size // d.shape[0]
        data = _pread(self.fd, (stop - start) * row, d.offset + start * row)
        return data.view(d.dtype).reshape(stop - start, *d.shape[1:])

    def digest(self) -> str:
        """The digest of what the file holds."""
        digest = attributes_digest(self.attributes)
        for name in sorted(set(self.datasets) - set(self.kind.undigested)):
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
def opened(path: Path, kind: str | None = None, *, verify: bool = True) -> Iterator[Artifact]:
    """Open an artifact and check everything about it that needs no session."""
    fd = open_regular(path, _whose_step(kind))
    try:
        yield checked(fd, path, kind, verify=verify)
    finally:
        os.close(fd)


def checked(fd: int, path: Path, kind: str | None = None, *, verify: bool = True) -> Artifact:
    """The artifact in an open file, which messages call `path`."""
    status = os.fstat(fd)
    attributes, datasets = _structure(fd, path, status.st_size, kind)
    mode = stat.S_IMODE(status.st_mode)
    artifact = Artifact(path, KINDS[attributes["kind"]], attributes, datasets, fd, mode)
    if verify and artifact.digest() != attributes["sha256"]:
        raise artifact.bad("its content does not match its digest: the file is damaged")
    return artifact


def _whose_step(kind: str | None) -> str:
    steps = {
        "secret": "run `topk-secagg offline` for this user first",
        "share": "fetch it from the user that made it with `topk-secagg offline`",
        "masked": "run `topk-secagg mask` for this user first",
        "elimination": "run `topk-secagg eliminate` for this user first",
        "aggregate": "run `topk-secagg decode` first",
    }
    return steps.get(kind or "", "check the path")


def _structure(
    fd: int, path: Path, file_size: int, kind: str | None
) -> tuple[dict[str, Any], dict[str, Dataset]]:
    """Attributes and datasets of the file, which must fit a schema exactly.

    HDF5 reads from the same open file as everything else, so that nobody can swap it in between.
    """
    import h5py

    def refuse(what: str) -> BadData:
        return BadData(f"{path}: {what}", "fetch or make the file again")

    try:
        with os.fdopen(os.dup(fd), "rb") as stream, h5py.File(stream, "r") as file:
            if file_size - _dataset_bytes(file) > _LARGEST_OVERHEAD:
                raise refuse("it holds more than its datasets")
            attributes = _attributes(file, refuse)
            if attributes.get("format") != FORMAT:
                raise refuse("it is not a topk-secagg file")
            if attributes.get("version") != VERSION:
                raise refuse(
                    f"it has format version {attributes.get('version')}, and this program reads {VERSION}"
                )
            found = attributes.get("kind")
            if found not in KINDS or kind not in (None, found):
                raise refuse(f"it is of kind {found!r}" + (f", not {kind!r}" if kind else ""))
            schema = KINDS[found]
            if set(attributes) - set(schema.optional) != {*_COMMON, *schema.attributes}:
                raise refuse("its attributes do not fit its kind")
            if set(file) != set(schema.datasets):
                raise refuse("its datasets do not fit its kind")
            return attributes, {
                name: _dataset(file, name, allowed, file_size, refuse)
                for name, allowed in schema.datasets.items()
            }
    except BadData:
        raise
    except (
        Exception
    ) as error:  # whatever HDF5 raises on damage: OSError, KeyError, RuntimeError, TypeError ...
        raise refuse("it is damaged, or no HDF5 file at all") from error


def _dataset_bytes(file: Any) -> int:
    """Bytes that the datasets claim, without opening anything but plain ones."""
    import h5py

    total = 0
    for name in list(file)[:_MOST_DATASETS]:
        if file.id.links.get_info(name.encode()).type == h5py.h5l.TYPE_HARD:
            handle = h5py.h5o.open(file.id, name.encode())
            if isinstance(handle, h5py.h5d.DatasetID):
                total += int(handle.get_storage_size())
    return total


def _attributes(file: Any, refuse: Any) -> dict[str, Any]:
    """Scalar attributes: fixed-length text, or 64-bit unsigned integers."""
    result: dict[str, Any] = {}
    attrs = file.attrs
    if len(attrs) > len(_COMMON) + 8:
        raise refuse("it has too many attributes")
    for name in attrs:
        handle = attrs.get_id(name)
        text = handle.dtype.kind == "S" and handle.dtype.itemsize <= _LONGEST_TEXT
        if handle.shape != () or not (text or handle.dtype == np.dtype("<u8")) or (name in _TEXT) != text:
            raise refuse(f"its attribute {name!r} has a type that no attribute has")
        value = attrs[name]
        result[name] = value.decode("ascii") if text else int(value)
    return result


def _dataset(file: Any, name: str, allowed: tuple[str, ...], file_size: int, refuse: Any) -> Dataset:
    """A plain contiguous dataset that lies within the file."""
    import h5py

    if file.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        raise refuse(f"{name!r} is a link to somewhere else")
    handle = h5py.h5o.open(file.id, name.encode())
    if not isinstance(handle, h5py.h5d.DatasetID):
        raise refuse(f"{name!r} is not a dataset")
    plist = handle.get_create_plist()
    plain = (
        plist.get_layout() == h5py.h5d.CONTIGUOUS
        and plist.get_external_count() == 0
        and plist.get_nfilters() == 0
        and handle.dtype.str in allowed
        and len(handle.shape) > 0
    )
    if not plain:
        raise refuse(f"{name!r} is not a plain dataset of {' or '.join(allowed)}")
    dataset = Dataset(handle.dtype, tuple(map(int, handle.shape)), handle.get_offset() or 0)
    if dataset.size and not 0 < dataset.offset <= file_size - dataset.size:
        raise refuse(f"{name!r} reaches beyond the end of the file")
    return dataset
