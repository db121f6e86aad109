"""Which reader and writer for which suffix."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from ..errors import BadData, InputMissing, UsageError
from .tensors import Tensor

READABLE = (".npy", ".npz")
WRITABLE = (".npy", ".npz")


def read_gradient(path: Path) -> list[Tensor]:
    """The tensors of a gradient file, in the file's order."""
    if path.suffix not in READABLE:
        raise UsageError(
            f"{path}: no reader for {path.suffix!r} files", f"one of {', '.join(READABLE)} is needed"
        )
    try:
        return _read_npy(path) if path.suffix == ".npy" else _read_npz(path)
    except FileNotFoundError:
        raise InputMissing(f"{path} is not there", "check the path") from None
    except (PermissionError, IsADirectoryError) as error:
        raise InputMissing(
            f"cannot read {path}: {(error.strerror or '').lower()}", "check the path"
        ) from None
    except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise BadData(
            f"{path} is damaged, or not a {path.suffix} file", "export the gradient again"
        ) from error


def check_writable(path: Path) -> None:
    """Refuse a suffix that nothing can write, before any work is done."""
    if path.suffix not in WRITABLE:
        raise UsageError(
            f"{path}: no writer for {path.suffix!r} files", f"one of {', '.join(WRITABLE)} is needed"
        )


def write_gradient(stream: IO[bytes], suffix: str, tensors: list[Tensor]) -> None:
    """Write tensors as .npz, or as .npy (all of them as one flat vector)."""
    if suffix == ".npy":
        np.save(stream, np.concatenate([t.array.reshape(-1) for t in tensors]))
    else:
        with zipfile.ZipFile(stream, "w") as archive:
            for t in tensors:
                with archive.open(
                    zipfile.ZipInfo(f"{t.name or 'gradient'}.npy"), "w", force_zip64=True
                ) as member:
                    np.lib.format.write_array(member, np.ascontiguousarray(t.array), allow_pickle=False)


def _read_npy(path: Path) -> list[Tensor]:
    with path.open("rb") as stream:
        return [_tensor("", _load(stream))]


def _read_npz(path: Path) -> list[Tensor]:
    tensors = []
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                raise ValueError(f"unexpected member {info.filename}")
            with archive.open(info) as stream:
                tensors.append(_tensor(info.filename.removesuffix(".npy"), _load(io.BytesIO(stream.read()))))
    return tensors


def _load(stream: IO[bytes]) -> np.ndarray:
    return np.lib.format.read_array(stream, allow_pickle=False)


def _tensor(name: str, array: np.ndarray) -> Tensor:
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise ValueError(f"no tensor has type {array.dtype}")
    return Tensor(name, array.dtype.newbyteorder("=").name, array)
