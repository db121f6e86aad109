"""Which reader and writer for which suffix."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from ..errors import CannotWrite, InputMissing, UsageError
from . import numpy_file, safetensors_file, torch_file, torch_writer
from .tensors import Tensor

TORCH = (".pt", ".pth", ".bin")
READABLE = (*TORCH, ".safetensors", ".npz", ".npy")
WRITABLE = (".pt", ".safetensors", ".npz", ".npy")

_READERS = {".safetensors": safetensors_file.read, ".npz": numpy_file.read_npz, ".npy": numpy_file.read_npy}
_WRITERS = {
    ".pt": torch_writer.write,
    ".safetensors": safetensors_file.write,
    ".npz": numpy_file.write_npz,
    ".npy": numpy_file.write_npy,
}


def read_gradient(path: Path, entry: str = "") -> list[Tensor]:
    """The tensors of a gradient file, in the file's order; `entry` picks a part of a PyTorch checkpoint."""
    if path.suffix not in READABLE:
        raise UsageError(f"{path}: no reader for {path.suffix!r} files", f"one of {', '.join(READABLE)}")
    if entry and path.suffix not in TORCH:
        raise UsageError("--entry is for PyTorch checkpoints", f"{path.suffix} files have no entries")
    try:
        if path.exists() and not path.is_file():
            raise InputMissing(f"{path} is not a file", "check the path")
        path.open("rb").close()  # safetensors would say of a forbidden file that it is not there
        return torch_file.read(path, entry) if path.suffix in TORCH else _READERS[path.suffix](path)
    except FileNotFoundError:
        raise InputMissing(f"{path} is not there", "check the path") from None
    except OSError as error:
        raise InputMissing(f"cannot read {path}: {(error.strerror or '').lower()}", "check the path") from None


def check_writable(path: Path) -> None:
    """Refuse a suffix that nothing can write, or a folder that is not there, before any work is done."""
    if path.suffix not in WRITABLE:
        raise UsageError(f"{path}: no writer for {path.suffix!r} files", f"one of {', '.join(WRITABLE)}")
    if not path.absolute().parent.is_dir():
        raise CannotWrite(f"cannot write {path}: its folder is not there", "make the folder first")


def write_gradient(stream: IO[bytes], suffix: str, tensors: list[Tensor]) -> None:
    """Write tensors in the format of the suffix; .npy gets all of them as one flat vector."""
    _WRITERS[suffix](stream, tensors)
