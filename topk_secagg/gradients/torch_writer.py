"""Gradients written as files of `torch.save`, without torch: see `torch_archive` for what is in
them."""

from __future__ import annotations

import math
import pickle
import struct
import zipfile
from typing import IO

from .tensors import Gradient, Tensor, stored
from .torch_archive import DTYPES

_ALIGNMENT = 64  # where torch starts a storage, so that the file can be memory-mapped
_HEADER_BYTES = 30  # of a zip member
_ZIP64_BYTES = 20  # that a large one has in addition
_PADDING = struct.Struct("<2sH")  # the extra field's tag and length
_ROOT = "archive"
_STORAGES = {dtype: kind.removeprefix("torch.") for kind, dtype in DTYPES.items()}
_ORDERED_DICT = b"ccollections\nOrderedDict\n)R"


def write(stream: IO[bytes], tensors: Gradient) -> None:
    """Write a state_dict of the tensors, a list if they are a sequence, or a single tensor if its
    name is empty.

    The same tensors give the same bytes. A bfloat16 tensor is rounded from its float32 array, ties
    to even. Tied tensors share a storage, so that torch ties them again.
    """
    with zipfile.ZipFile(stream, "w") as archive:
        _add(archive, "data.pkl", _pickle(tensors))
        _add(archive, "byteorder", b"little")
        for key, tensor in enumerate(tensors):
            _add(archive, f"data/{key}", stored(tensor).data)
        # No .format_version: with it torch may compute where its own writer would have put the
        # storages.
        _add(archive, "version", b"3\n")


def _pickle(tensors: Gradient) -> bytes:
    calls = {t.name: _call(key, t) for key, t in enumerate(tensors)}
    calls |= {name: calls[first] for name, first in tensors.ties.items()}
    if tensors.sequence:
        places = map(str, range(len(calls) + len(tensors.absent)))
        return b"\x80\x02](" + b"".join(calls.get(place, b"N") for place in places) + b"e."
    if list(calls) == [""]:
        return b"\x80\x02" + calls[""] + b"."
    items = [_plain(name) + call for name, call in calls.items()]
    return b"\x80\x02" + _ORDERED_DICT + b"(" + b"".join(items) + b"u."


def _call(key: int, tensor: Tensor) -> bytes:
    """_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks), a contiguous
    tensor."""
    size = tensor.array.shape
    stride = tuple(math.prod(size[axis + 1 :]) for axis in range(len(size)))
    kind = f"ctorch\n{_STORAGES[tensor.dtype]}\n".encode()
    storage = (
        _plain("storage") + kind + _plain(str(key)) + _plain("cpu") + _plain(tensor.array.size)
    )
    arguments = (
        b"("
        + storage
        + b"tQ"
        + _plain(0)
        + _plain(size)
        + _plain(stride)
        + _plain(False)
        + _ORDERED_DICT
    )
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"tR"


def _plain(value: str | int | tuple[int, ...]) -> bytes:
    """The part of a pickle that pushes a value: all but PROTO and STOP."""
    return pickle.dumps(value, protocol=2)[2:-1]


def _add(archive: zipfile.ZipFile, name: str, content: bytes | memoryview) -> None:
    """Add a member whose bytes begin at a multiple of 64, with the padding field that torch
    uses."""
    info = zipfile.ZipInfo(f"{_ROOT}/{name}")
    info.create_system = 0  # the same bytes on every system
    large = len(content) > zipfile.ZIP64_LIMIT
    header = _HEADER_BYTES + len(info.filename) + _PADDING.size + (_ZIP64_BYTES if large else 0)
    padding = -(archive.start_dir + header) % _ALIGNMENT
    info.extra = _PADDING.pack(b"FB", padding) + b"Z" * padding
    with archive.open(info, "w", force_zip64=large) as member:
        member.write(content)
