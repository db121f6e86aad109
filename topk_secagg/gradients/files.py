"""Read and write gradient files by suffix: PyTorch in torch_file.py and torch_writer.py, numpy and
safetensors here.

No reader unpickles objects, or takes more memory than the size of the file justifies. What reads
PyTorch's files is loaded for them alone: most commands never see one.
"""

from __future__ import annotations

import json
import math
import os
import struct
import threading
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..errors import BadData, CannotWrite, InputMissing, UsageError
from .malformed import refusing
from .tensors import Gradient, Tensor, called, left_out, stored, tied, widen

_DTYPES = {
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "I8": "int8",
    "I16": "int16",
    "I32": "int32", "I64": "int64", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# A compressed archive may unpack to this multiple of its size, and to at least the floor.
_BUDGET_FACTOR = 16
_BUDGET_FLOOR = 64 << 20
_END_RECORD = 22  # bytes of a zip file's last record, without its comment
_ONE_HEADER = threading.Lock()  # numpy reads headers with `ast`, which fails in two threads of 3.11
_FORMAT = "format"  # the one key in the metadata of safetensors files that is no tensor's name


def _read_torch(path: Path, entry: str) -> Gradient:
    """The tensors of a PyTorch file, or of a part of it."""
    from . import torch_file

    return torch_file.read(path, entry)


def _write_torch(stream: IO[bytes], tensors: Gradient) -> None:
    """What torch.save writes."""
    from . import torch_writer

    torch_writer.write(stream, tensors)


def _read_safetensors(path: Path) -> Gradient:
    """The tensors of a file, in the order of their data.

    safetensors.torch.save_model writes tied tensors once, and says in the metadata under which
    other names they are known: {"other name": "name in the file"}.
    """
    from safetensors import SafetensorError, deserialize, safe_open

    with refusing(path, SafetensorError), safe_open(path, framework="numpy") as file:
        codes = {name: file.get_slice(name).get_dtype() for name in file.offset_keys()}
        # numpy has no bfloat16, so that the library returns bytes of such tensors, but no arrays
        raw = dict(deserialize(path.read_bytes())) if "BF16" in codes.values() else {}  # type: ignore[no-untyped-call]
        tensors = []
        for name, code in codes.items():
            if code not in _DTYPES:
                raise BadData(
                    f"tensor {called(name)} has type {code}, which is not read",
                    "save it as float32",
                )
            if code == "BF16":
                array = widen(
                    np.frombuffer(raw[name]["data"], dtype="<u2").reshape(raw[name]["shape"])
                )
            else:
                array = file.get_tensor(name)
            tensors.append(Tensor(name, _DTYPES[code], array))
        ties = {
            name: first
            for name, first in sorted((file.metadata() or {}).items())
            if first in codes and name not in codes and name != _FORMAT
        }
        return Gradient(tensors, ties=ties)


def _write_safetensors(stream: IO[bytes], tensors: Gradient) -> None:
    """A length, a JSON header and the bytes of the tensors; the same tensors give the same bytes.

    Tied tensors are written once, as safetensors.torch.save_model does: its load_model ties them
    again, and refuses a file with both.
    """
    header: dict[str, Any] = {}
    if tensors.ties:
        header["__metadata__"] = {_FORMAT: "pt", **tensors.ties}
    parts = [stored(t) for t in tensors]
    end = 0
    for t, part in zip(tensors, parts, strict=True):
        start = end
        end = end + part.nbytes
        place = {"shape": list(t.array.shape), "data_offsets": [start, end]}
        header[t.name or "gradient"] = {"dtype": _NAMES[t.dtype], **place}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    stream.write(struct.pack("<Q", len(text)) + text)
    for part in parts:
        stream.write(part.data)


def _read_npy(path: Path) -> Gradient:
    """One unnamed array."""
    with path.open("rb") as stream, refusing(path):
        return Gradient([_tensor("", stream, os.fstat(stream.fileno()).st_size)])


def _read_npz(path: Path) -> Gradient:
    """The arrays of an archive, in its order."""
    tensors = []
    with path.open("rb") as stream, refusing(path), zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        _check_count(stream, len(members))
        if sum(info.file_size for info in members) > _BUDGET_FACTOR * stream.tell() + _BUDGET_FLOOR:
            raise BadData(
                "it would unpack to far more than the file holds",
                "save it with np.savez, uncompressed",
            )
        for info in members:
            if not info.filename.endswith(".npy"):
                raise ValueError(f"unexpected member {info.filename}")
            with archive.open(info) as member:
                tensors.append(_tensor(info.filename.removesuffix(".npy"), member, info.file_size))
        if len({t.name for t in tensors}) < len(tensors):
            raise ValueError("two arrays of one name")
    return Gradient(tensors)


def _write_npy(stream: IO[bytes], tensors: Gradient) -> None:
    """All tensors one after the other, as one flat vector; tied ones once."""
    np.save(stream, np.concatenate([t.array.reshape(-1) for t in tensors]), allow_pickle=False)


def _write_npz(stream: IO[bytes], tensors: Gradient) -> None:
    """An uncompressed archive with an array for every name; the same tensors give the same
    bytes."""
    with zipfile.ZipFile(stream, "w") as archive:
        for t in tensors.under_every_name():
            with archive.open(
                zipfile.ZipInfo(f"{t.name or 'gradient'}.npy"), "w", force_zip64=True
            ) as member:
                np.lib.format.write_array(
                    member, np.asarray(t.array, order="C"), allow_pickle=False
                )


def _check_count(stream: IO[bytes], members: int) -> None:
    """Refuse an archive whose end record counts others than these members: zipfile would lose
    some."""
    stream.seek(0, os.SEEK_END)
    stream.seek(max(0, stream.tell() - _END_RECORD - 0xFFFF))
    tail = stream.read()
    (counted,) = struct.unpack_from("<H", tail, tail.rindex(b"PK\x05\x06") + 10)
    if counted not in (members, 0xFFFF):
        raise ValueError(f"{counted} members are counted, and {members} are there")


def _tensor(name: str, stream: IO[bytes], size: int) -> Tensor:
    """Read one array, whose header must not promise more than the `size` bytes that there are."""
    version = np.lib.format.read_magic(stream)
    header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    try:
        # numpy warns of headers of Python 2; which warnings are shown is one setting for all
        # threads, so that it is changed under the lock too
        with _ONE_HEADER, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shape, fortran, dtype = header(stream)
    except TypeError as error:  # it is a Python literal, such as {[]: 1}
        raise ValueError("it has a header that describes no array") from error
    if not all(type(n) is int for n in shape):  # True is an int for numpy's reader
        raise ValueError("it has a shape that is not of integers")
    expected = math.prod(shape) * dtype.itemsize
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise BadData(
            f"it holds an array of type {str(dtype)[:40]}", "save array.astype(np.float32)"
        )
    content = stream.read(expected + 1) if 0 <= expected <= size else b""
    if len(content) != expected:
        raise ValueError(f"it does not hold exactly a {dtype} of shape {shape}")
    array = np.ndarray(shape, dtype, content, order="F" if fortran else "C")
    return Tensor(name, dtype.newbyteorder("=").name, array)


TORCH = (".pt", ".pth", ".bin", ".ckpt")
_READERS = {".safetensors": _read_safetensors, ".npz": _read_npz, ".npy": _read_npy}
_WRITERS = {
    ".pt": _write_torch,
    ".safetensors": _write_safetensors,
    ".npz": _write_npz,
    ".npy": _write_npy,
}
READABLE = (*TORCH, *_READERS)
WRITABLE = tuple(_WRITERS)


def read_gradient(path: Path, entry: str = "", strip_prefix: str = "") -> Gradient:
    """The tensors of a gradient file, in the file's order; `entry` selects a part of a PyTorch
    checkpoint.

    `strip_prefix` is removed from the names that start with it.
    """
    if path.suffix not in READABLE and path.is_dir():
        raise UsageError(
            f"{path} is a folder, and a gradient is a file", "give the file of one user", "folder"
        )
    _check_suffix(path, READABLE, "reader")
    if entry and path.suffix not in TORCH:
        hint = "only PyTorch checkpoints have entries"
        raise UsageError(f"{path}: there is no entry in {path.suffix} files", hint, "no-entry")
    try:
        if path.exists() and not path.is_file():
            raise InputMissing(f"{path} is not a file", "check the path")
        path.open("rb").close()  # safetensors would say of a forbidden file that it is not there
        gradient = _read_torch(path, entry) if path.suffix in TORCH else _READERS[path.suffix](path)
    except FileNotFoundError:
        raise InputMissing(f"{path} is not there", "check the path") from None
    except OSError as error:
        raise InputMissing(
            f"cannot read {path}: {(error.strerror or '').lower()}", "check the path"
        ) from None
    if strip_prefix and not gradient.sequence:
        gradient = _without_prefix(gradient, path, strip_prefix)
    gradient.notes += (*tied(gradient.ties), *left_out("None", gradient.absent))
    return gradient


def _without_prefix(gradient: Gradient, path: Path, prefix: str) -> Gradient:
    """The same tensors under names without the prefix; refuse it where two names become the
    same."""
    tensors = [t._replace(name=t.name.removeprefix(prefix)) for t in gradient]
    absent = [name.removeprefix(prefix) for name in gradient.absent]
    ties = [
        (name.removeprefix(prefix), first.removeprefix(prefix))
        for name, first in gradient.ties.items()
    ]
    names = [*(t.name for t in tensors), *absent, *(name for name, _ in ties)]
    if len(set(names)) < len(names):
        what = f"{path}: two tensors have the same name without the prefix {prefix!r}"
        raise BadData(what, "strip less of it")
    return Gradient(tensors, absent, gradient.notes, ties=dict(ties))


def _check_suffix(path: Path, known: Sequence[str], what: str) -> None:
    """Refuse a file for which there is no reader or writer."""
    if path.suffix in known:
        return
    missing = f"no {what} for {path.suffix!r} files" if path.suffix else "it has no suffix"
    raise UsageError(f"{path}: {missing}", f"its name must end in one of {', '.join(known)}")


def check_writable(path: Path) -> None:
    """Refuse a suffix without a writer, or a missing folder, before any work is done."""
    _check_suffix(path, WRITABLE, "writer")
    if not path.absolute().parent.is_dir():
        raise CannotWrite(f"cannot write {path}: its folder is not there", "make the folder first")


def write_gradient(stream: IO[bytes], suffix: str, tensors: Gradient) -> None:
    """Write tensors in the format of the suffix; .npy gets all of them as one flat vector."""
    _WRITERS[suffix](stream, tensors)
