"""Gradients as .npy and .npz: no pickled objects, and nothing larger than the file can hold."""

from __future__ import annotations

import math
import os
import struct
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from ..errors import BadData
from .tensors import Tensor, refusing

# A compressed archive may unpack to this multiple of its size, and to at least the floor.
_BUDGET_FACTOR = 16
_BUDGET_FLOOR = 64 << 20
_END_RECORD = 22  # bytes of a zip file's last record, without its comment


def read_npy(path: Path) -> list[Tensor]:
    """One unnamed array."""
    with path.open("rb") as stream, refusing(path):
        return [_tensor("", stream, os.fstat(stream.fileno()).st_size)]


def read_npz(path: Path) -> list[Tensor]:
    """The arrays of an archive, in its order."""
    tensors = []
    with path.open("rb") as stream, refusing(path), zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        _check_count(stream, len(members))
        if sum(info.file_size for info in members) > _BUDGET_FACTOR * stream.tell() + _BUDGET_FLOOR:
            raise BadData("it would unpack to far more than the file holds", "save it with np.savez, uncompressed")
        for info in members:
            if not info.filename.endswith(".npy"):
                raise ValueError(f"unexpected member {info.filename}")
            with archive.open(info) as member:
                tensors.append(_tensor(info.filename.removesuffix(".npy"), member, info.file_size))
        if len({t.name for t in tensors}) < len(tensors):
            raise ValueError("two arrays of one name")
    return tensors


def write_npy(stream: IO[bytes], tensors: list[Tensor]) -> None:
    """All tensors one after the other, as one flat vector."""
    np.save(stream, np.concatenate([t.array.reshape(-1) for t in tensors]), allow_pickle=False)


def write_npz(stream: IO[bytes], tensors: list[Tensor]) -> None:
    """An uncompressed archive with an array per tensor; the same tensors give the same bytes."""
    with zipfile.ZipFile(stream, "w") as archive:
        for t in tensors:
            with archive.open(zipfile.ZipInfo(f"{t.name or 'gradient'}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(t.array, order="C"), allow_pickle=False)


def _check_count(stream: IO[bytes], found: int) -> None:
    """Refuse an archive whose end record has another count than the members found: zipfile would lose some."""
    stream.seek(0, os.SEEK_END)
    stream.seek(max(0, stream.tell() - _END_RECORD - 0xFFFF))
    tail = stream.read()
    (counted,) = struct.unpack_from("<H", tail, tail.rindex(b"PK\x05\x06") + 10)
    if counted not in (found, 0xFFFF):
        raise ValueError(f"{counted} members are counted, and {found} are there")


def _tensor(name: str, stream: IO[bytes], size: int) -> Tensor:
    """Read one array, whose header must not promise more than the `size` bytes that there are."""
    version = np.lib.format.read_magic(stream)
    header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    shape, fortran, dtype = header(stream)
    expected = math.prod(shape) * dtype.itemsize
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise BadData(f"it holds an array of type {str(dtype)[:40]}", "save array.astype(np.float32)")
    content = stream.read(expected + 1) if 0 <= expected <= size else b""
    if len(content) != expected:
        raise ValueError(f"it does not hold exactly a {dtype} of shape {shape}")
    array = np.ndarray(shape, dtype, content, order="F" if fortran else "C")
    return Tensor(name, dtype.newbyteorder("=").name, array)
