"""Safetensors: a length, a JSON header and the bytes of the tensors."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...errors import BadData
from ..tensors import Gradient, Tensor, called, stored, widen
from .malformed import refusing

_DTYPES = {
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "I8": "int8",
    "I16": "int16",
    "I32": "int32", "I64": "int64", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_FORMAT = "format"  # the one key in the metadata of safetensors files that is no tensor's name


def read(path: Path) -> Gradient:
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


def write(stream: IO[bytes], tensors: Gradient) -> None:
    """The same tensors give the same bytes.

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
