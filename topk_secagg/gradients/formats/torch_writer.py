"""Gradients written as files of `torch.save`, without torch: see `torch_archive` for what is in
them."""

from __future__ import annotations

import math
import pickle
import struct
import zipfile
from typing import IO

from ..tensors import AnyTensor, Gradient, stored
from .torch_archive import DTYPES

_ALIGNMENT = 64  # where torch starts a storage, so that the file can be memory-mapped
_HEADER_BYTES = 30  # of a zip member
_ZIP64_BYTES = 20  # that a large one has in addition
_PADDING = struct.Struct("<2sH")  # the extra field's tag and length
_ROOT = "archive"
_STORAGES = {dtype: kind.removeprefix("torch.") for kind, dtype in DTYPES.items()}
_PROTOCOL = pickle.PROTO + b"\x02"
_ORDERED_DICT = pickle.GLOBAL + b"collections\nOrderedDict\n" + pickle.EMPTY_TUPLE + pickle.REDUCE


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
    """data.pkl, by pickle's own names of its opcodes.

    In a list, an entry that was no tensor is None; a mapping leaves it out.
    """
    tensor_by_name = {t.name: _tensor(key, t) for key, t in enumerate(tensors)}
    tensor_by_name |= {name: tensor_by_name[first] for name, first in tensors.ties.items()}
    if tensors.sequence:
        names = map(str, range(len(tensor_by_name) + len(tensors.absent)))
        entries = b"".join(tensor_by_name.get(name, pickle.NONE) for name in names)
        content = pickle.EMPTY_LIST + pickle.MARK + entries + pickle.APPENDS
    elif list(tensor_by_name) == [""]:
        content = tensor_by_name[""]
    else:
        items = b"".join(_plain(name) + tensor for name, tensor in tensor_by_name.items())
        content = _ORDERED_DICT + pickle.MARK + items + pickle.SETITEMS
    return _PROTOCOL + content + pickle.STOP


def _tensor(key: int, tensor: AnyTensor) -> bytes:
    """A contiguous tensor in the storage `key`:
    _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)."""
    size = tensor.shape
    stride = tuple(math.prod(size[axis + 1 :]) for axis in range(len(size)))
    kind = pickle.GLOBAL + f"torch\n{_STORAGES[tensor.dtype]}\n".encode()
    storage = _tuple(
        _plain("storage"), kind, _plain(str(key)), _plain("cpu"), _plain(math.prod(size))
    )
    arguments = _tuple(
        storage + pickle.BINPERSID,
        _plain(0),
        _plain(size),
        _plain(stride),
        _plain(False),
        _ORDERED_DICT,
    )
    rebuild = pickle.GLOBAL + b"torch._utils\n_rebuild_tensor_v2\n"
    return rebuild + arguments + pickle.REDUCE


def _plain(value: str | int | tuple[int, ...]) -> bytes:
    """The part of a pickle that pushes a plain value: all but PROTO and STOP."""
    return pickle.dumps(value, protocol=2)[2:-1]


def _tuple(*entries: bytes) -> bytes:
    """The part of a pickle that pushes a tuple of what these parts push."""
    return pickle.MARK + b"".join(entries) + pickle.TUPLE


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
