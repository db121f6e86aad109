"""Safetensors: a length, a JSON header, and the bytes of the tensors one after the other.

The header says of each tensor its type, shape, and where its bytes begin and end. Together they are
all bytes there are, without a gap. The bytes stay in the file until somebody asks for them.
"""

from __future__ import annotations

import json
import math
import os
import struct
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import BadData
from ..tensors import Gradient, TensorInFile, bytes_of, called, stored, widen
from . import strict_json
from .malformed import reading, refusing

_DTYPES = {
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "I8": "int8",
    "I16": "int16",
    "I32": "int32", "I64": "int64", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_OTHERWISE_STORED = {"bfloat16": "uint16", "bool": "uint8"}
_FORMAT = "format"  # the one key in the metadata of safetensors files that is no tensor's name
_METADATA = "__metadata__"
_LENGTH = struct.Struct("<Q")
_MAX_HEADER = 16 << 20  # bytes; a tensor takes some 100
_MAX_DIMENSIONS = 32
_MAX_BYTES = 1 << 63  # fewer than these, even if an extent of 0 were 1: what numpy can index


class _Place(NamedTuple):
    """Where a tensor lies in a file, and as what."""

    start: int  # in the file
    dtype: str
    shape: tuple[int, ...]

    @property
    def stored(self) -> np.dtype[Any]:
        """The type of its values in the file."""
        return np.dtype(_OTHERWISE_STORED.get(self.dtype, self.dtype)).newbyteorder("<")


def read(path: Path) -> Gradient:
    """The tensors of a file, in the order of their data.

    safetensors.torch.save_model writes tied tensors once, and says in the metadata under which
    other names they are known: {"other name": "name in the file"}.
    """
    with path.open("rb") as stream, refusing(path):
        header, start = _header(stream)
        metadata = header.pop(_METADATA, {})
        places = _places(header, start, end=os.fstat(stream.fileno()).st_size)
    ties = {
        name: first
        for name, first in sorted(metadata.items())
        if first in places and name not in places and name != _FORMAT
    }
    tensors = [
        TensorInFile(name, place.dtype, place.shape, partial(_values, path, place))
        for name, place in places.items()
    ]
    return Gradient(tensors, ties=ties)


def _header(stream: IO[bytes]) -> tuple[dict[str, Any], int]:
    """The header of a file, and where the tensors begin."""
    (length,) = _LENGTH.unpack(stream.read(_LENGTH.size))
    if length > _MAX_HEADER:
        raise BadData("its header is too large to describe only tensors", "save only tensors")
    raw = stream.read(length)
    if len(raw) != length or not raw.startswith(b"{"):
        raise ValueError("no header")
    header = strict_json.parse(raw)
    metadata = header.get(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its metadata are not texts")
    return header, _LENGTH.size + length


def _places(header: dict[str, Any], start: int, end: int) -> dict[str, _Place]:
    """Where each tensor lies, in the order of their bytes, which fill the file."""
    found: list[tuple[int, int, str, _Place]] = []
    for name, described in header.items():
        match described:
            case {"dtype": str(code), "shape": list(shape), "data_offsets": [first, last]} if (
                _are_counts([*shape, first, last]) and len(shape) <= _MAX_DIMENSIONS
            ):
                place = _Place(start + first, _dtype(name, code), tuple(shape))
                found.append((first, last, name, place))
            case _:
                raise ValueError("a description that no tensor has")
    free = 0
    for first, last, _, place in sorted(found):
        width = place.stored.itemsize
        if first != free or last - first != math.prod(place.shape) * width:
            raise ValueError("a gap, an overlap, or a shape of another size")
        if math.prod(max(extent, 1) for extent in place.shape) * width >= _MAX_BYTES:
            raise ValueError("an extent that no tensor has")
        free = last
    if start + free != end:
        raise ValueError("fewer or more bytes than the tensors have")
    return {name: place for _, _, name, place in sorted(found)}


def _dtype(name: str, code: str) -> str:
    """The type that a code names."""
    if code not in _DTYPES:
        raise BadData(
            f"tensor {called(name)} has type {code[:40]}, which is not read", "save it as float32"
        )
    return _DTYPES[code]


def _are_counts(values: list[Any]) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


def _values(path: Path, place: _Place) -> npt.NDArray[Any]:
    """The values of a tensor; bfloat16 is widened to float32."""
    with reading(path), path.open("rb") as stream, refusing(path):
        stream.seek(place.start)
        raw = np.fromfile(stream, place.stored, math.prod(place.shape)).reshape(place.shape)
    if place.dtype == "bfloat16":
        return widen(raw)
    return raw.astype(place.dtype, copy=False)  # anything but 0 is True


def write(stream: IO[bytes], tensors: Gradient) -> None:
    """The same tensors give the same bytes.

    Tied tensors are written once, as safetensors.torch.save_model does: its load_model ties them
    again, and refuses a file with both.
    """
    header: dict[str, Any] = {}
    if tensors.ties:
        header[_METADATA] = {_FORMAT: "pt", **tensors.ties}
    end = 0
    for t in tensors:
        start = end
        end = start + bytes_of(t)
        place = {"shape": list(t.shape), "data_offsets": [start, end]}
        header[t.name or "gradient"] = {"dtype": _NAMES[t.dtype], **place}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    stream.write(_LENGTH.pack(len(text)) + text)
    for t in tensors:
        stream.write(stored(t).data)
