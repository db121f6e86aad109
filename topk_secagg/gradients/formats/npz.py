"""Archives of numpy's arrays with names."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from ...errors import BadData
from ..tensors import Gradient
from .malformed import refusing
from .npy import read_array

# A compressed archive may unpack to this multiple of its size, and to at least the floor.
_BUDGET_FACTOR = 16
_BUDGET_FLOOR = 64 << 20
_END_RECORD = 22  # bytes of a zip file's last record, without its comment


def read(path: Path) -> Gradient:
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
                name = info.filename.removesuffix(".npy")
                tensors.append(read_array(name, member, info.file_size))
        if len({t.name for t in tensors}) < len(tensors):
            raise ValueError("two arrays of one name")
    return Gradient(tensors)


def write(stream: IO[bytes], tensors: Gradient) -> None:
    """An uncompressed archive with an array for every name; the same tensors give the same
    bytes."""
    with zipfile.ZipFile(stream, "w") as archive:
        for t in tensors.under_every_name():
            member_info = zipfile.ZipInfo(f"{t.name or 'gradient'}.npy")
            with archive.open(member_info, "w", force_zip64=True) as member:
                array = np.asarray(t.array, order="C")
                np.lib.format.write_array(member, array, allow_pickle=False)


def _check_count(stream: IO[bytes], members: int) -> None:
    """Refuse an archive whose end record counts others than these members: zipfile would lose
    some."""
    stream.seek(0, os.SEEK_END)
    stream.seek(max(0, stream.tell() - _END_RECORD - 0xFFFF))
    tail = stream.read()
    (counted,) = struct.unpack_from("<H", tail, tail.rindex(b"PK\x05\x06") + 10)
    if counted not in (members, 0xFFFF):
        raise ValueError(f"{counted} members are counted, and {members} are there")
