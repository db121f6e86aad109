"""Gradients as .safetensors: read with the safetensors library, written as its few lines of format."""

from __future__ import annotations

import errno
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
    from safetensors import SafetensorError, safe_open

    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a directory")
    try:
        with safe_open(path, framework="numpy") as file:
            names = file.offset_keys()
            dtypes = [_dtype(path, name, file.get_slice(name).get_dtype()) for name in names]
            widened = _bfloat16_tensors(path) if "bfloat16" in dtypes else {}
            return [
                Tensor(name, dtype, widened[name] if dtype == "bfloat16" else file.get_tensor(name))
                for name, dtype in zip(names, dtypes, strict=True)
            ]
    except (SafetensorError, ValueError) as error:
        raise damaged(path) from error


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
        raise BadData(f"{path}: tensor {called(name)} has type {code}, which is not read", "save it as float32")
    return _DTYPES[code]


def _bfloat16_tensors(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """The bfloat16 tensors of a file, widened: numpy has no such type, so the library hands out no arrays."""
    from safetensors import deserialize

    found = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    return {
        name: widen(np.frombuffer(info["data"], dtype="<u2").reshape(info["shape"]))
        for name, info in found
        if info["dtype"] == "BF16"
    }
