"""Gradients as .safetensors: read with the safetensors library, written as its few lines of format."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ..errors import BadData
from .tensors import Tensor, called, damaged, narrow, widen

_DTYPES = {
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "I8": "int8", "I16": "int16",
    "I32": "int32", "I64": "int64", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def read(path: Path) -> list[Tensor]:
    """The tensors of a file, in the order in which they lie in it."""
    from safetensors import SafetensorError, deserialize

    content = path.read_bytes()
    try:
        found = deserialize(content)  # type: ignore[no-untyped-call]
    except (SafetensorError, ValueError, UnicodeDecodeError) as error:
        raise damaged(path) from error
    return [Tensor(name, _dtype(path, name, info["dtype"]), _array(info)) for name, info in found]


def write(stream: IO[bytes], tensors: list[Tensor]) -> None:
    """A length, a JSON header and the bytes of the tensors; the same tensors give the same bytes."""
    header: dict[str, Any] = {}
    parts: list[npt.NDArray[Any]] = []
    end = 0
    for t in tensors:
        part = np.ascontiguousarray(narrow(t.array) if t.dtype == "bfloat16" else t.array)
        part = part.astype(part.dtype.newbyteorder("<"), copy=False)
        start, end = end, end + part.nbytes
        header[t.name or "gradient"] = {
            "dtype": _NAMES[t.dtype],
            "shape": list(t.array.shape),
            "data_offsets": [start, end],
        }
        parts.append(part)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    stream.write(struct.pack("<Q", len(text)) + text)
    for part in parts:
        stream.write(part.reshape(-1).view(np.uint8).data)


def _dtype(path: Path, name: str, code: str) -> str:
    if code not in _DTYPES:
        raise BadData(
            f"{path}: tensor {called(name)} has type {code}, which is not read", "save it as float32"
        )
    return _DTYPES[code]


def _array(info: dict[str, Any]) -> npt.NDArray[Any]:
    dtype = _DTYPES[info["dtype"]]
    stored = np.dtype("<u2") if dtype == "bfloat16" else np.dtype(dtype).newbyteorder("<")
    array = np.frombuffer(info["data"], dtype=stored).reshape(info["shape"])
    return widen(array) if dtype == "bfloat16" else array
