"""Write tensors as a file that `torch.load(weights_only=True)` reads, without torch."""

from __future__ import annotations

import struct
import zipfile
from typing import IO

import numpy as np

from .tensors import Gradient, Tensor, stored
from .torch_file import DTYPES

_ALIGNMENT = 64  # where torch starts a storage, so that the file can be memory-mapped
_HEADER_BYTES, _ZIP64_BYTES = 30, 20  # of a zip member, and what a large one has in addition
_PADDING = struct.Struct("<2sH")  # the extra field's tag and length
_ROOT = "archive"
_STORAGES = {dtype: kind.removeprefix("torch.") for kind, dtype in DTYPES.items()}
_ORDERED_DICT = b"ccollections\nOrderedDict\n)R"


def write(stream: IO[bytes], tensors: list[Tensor]) -> None:
    """Write a state_dict of the tensors, a list if they are a sequence, or a single tensor if its name is empty.

    The same tensors give the same bytes. A bfloat16 tensor is rounded from its float32 array, ties to even.
    """
    with zipfile.ZipFile(stream, "w") as archive:
        _add(archive, "data.pkl", _pickle(Gradient.of(tensors)))
        _add(archive, "byteorder", b"little")
        for key, tensor in enumerate(tensors):
            _add(archive, f"data/{key}", stored(tensor).data)
        # No .format_version: with it torch may compute where its own writer would have put the storages.
        _add(archive, "version", b"3\n")


def _pickle(tensors: Gradient) -> bytes:
    if tensors.sequence:
        calls = {t.name: _call(key, t) for key, t in enumerate(tensors)}
        places = map(str, range(len(tensors) + len(tensors.absent)))
        return b"\x80\x02](" + b"".join(calls.get(place, b"N") for place in places) + b"e."
    if [t.name for t in tensors] == [""]:
        return b"\x80\x02" + _call(0, tensors[0]) + b"."
    items = [_text(t.name) + _call(key, t) for key, t in enumerate(tensors)]
    return b"\x80\x02" + _ORDERED_DICT + b"(" + b"".join(items) + b"u."


def _call(key: int, tensor: Tensor) -> bytes:
    """_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks), a contiguous tensor."""
    size = tensor.array.shape
    stride = [int(np.prod(size[axis + 1 :], dtype=np.int64)) for axis in range(len(size))]
    kind = f"ctorch\n{_STORAGES[tensor.dtype]}\n".encode()
    storage = _tuple(_text("storage"), kind, _text(str(key)), _text("cpu"), _int(tensor.array.size)) + b"Q"
    false = b"\x89"
    shape = (_tuple(*map(_int, size)), _tuple(*map(_int, stride)))
    arguments = _tuple(storage, _int(0), *shape, false, _ORDERED_DICT)
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + arguments + b"R"


def _text(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def _int(number: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", number)


def _tuple(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def _add(archive: zipfile.ZipFile, name: str, content: bytes | memoryview) -> None:
    """Add a member whose bytes begin at a multiple of 64, with the padding field that torch uses."""
    info = zipfile.ZipInfo(f"{_ROOT}/{name}")
    info.create_system = 0  # the same bytes on every system
    large = len(content) > zipfile.ZIP64_LIMIT
    header = _HEADER_BYTES + len(info.filename) + _PADDING.size + (_ZIP64_BYTES if large else 0)
    padding = -(archive.start_dir + header) % _ALIGNMENT
    info.extra = _PADDING.pack(b"FB", padding) + b"Z" * padding
    with archive.open(info, "w", force_zip64=large) as member:
        member.write(content)
