"""Gradients as .safetensors: the library reads them, and `write` needs only a few lines."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ..errors import BadData
from .tensors import Tensor, called, refusing, stored, widen

_DTYPES = {
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "I8": "int8", "I16": "int16",
    "I32": "int32", "I64": "int64", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def read(path: Path) -> list[Tensor]:
    """The tensors of a file, in the order of their data."""
    from safetensors import deserialize, safe_open

    with refusing(path), safe_open(path, framework="numpy") as file:
        codes = {name: file.get_slice(name).get_dtype() for name in file.offset_keys()}
        for name, code in codes.items():
            if code not in _DTYPES:
                raise BadData(f"tensor {called(name)} has type {code}, which is not read", "save it as float32")
        # numpy has no bfloat16, so that the library returns bytes of such tensors, but no arrays
        raw = dict(deserialize(path.read_bytes())) if "BF16" in codes.values() else {}  # type: ignore[no-untyped-call]
        return [
            Tensor(name, _DTYPES[code], _widened(raw[name]) if code == "BF16" else file.get_tensor(name))
            for name, code in codes.items()
        ]


def write(stream: IO[bytes], tensors: list[Tensor]) -> None:
    """A length, a JSON header and the bytes of the tensors; the same tensors give the same bytes."""
    header: dict[str, Any] = {}
    parts = [stored(t) for t in tensors]
    end = 0
    for t, part in zip(tensors, parts, strict=True):
        start, end = end, end + part.nbytes
        place = {"shape": list(t.array.shape), "data_offsets": [start, end]}
        header[t.name or "gradient"] = {"dtype": _NAMES[t.dtype], **place}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    stream.write(struct.pack("<Q", len(text)) + text)
    for part in parts:
        stream.write(part.data)


def _widened(info: dict[str, Any]) -> npt.NDArray[np.float32]:
    return widen(np.frombuffer(info["data"], dtype="<u2").reshape(info["shape"]))
