"""Read and write gradient files by suffix."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from ..errors import BadData, CannotWrite, InputMissing, UsageError
from . import numpy_file, safetensors_file, torch_file
from .tensors import Gradient, Tensor, listed

TORCH = (".pt", ".pth", ".bin", ".ckpt")
_READERS = {".safetensors": safetensors_file.read, ".npz": numpy_file.read_npz, ".npy": numpy_file.read_npy}
_WRITERS = {
    ".pt": torch_file.write,
    ".safetensors": safetensors_file.write,
    ".npz": numpy_file.write_npz,
    ".npy": numpy_file.write_npy,
}
READABLE, WRITABLE = (*TORCH, *_READERS), tuple(_WRITERS)


def read_gradient(path: Path, entry: str = "", strip_prefix: str = "") -> Gradient:
    """The tensors of a gradient file, in the file's order; `entry` selects a part of a PyTorch checkpoint.

    `strip_prefix` is removed from the names that start with it.
    """
    if path.suffix not in READABLE:
        raise UsageError(f"{path}: no reader for {path.suffix!r} files", f"one of {', '.join(READABLE)}")
    if entry and path.suffix not in TORCH:
        hint = "only PyTorch checkpoints have entries"
        raise UsageError(f"{path}: there is no entry in {path.suffix} files", hint, "no-entry")
    try:
        if path.exists() and not path.is_file():
            raise InputMissing(f"{path} is not a file", "check the path")
        path.open("rb").close()  # safetensors would say of a forbidden file that it is not there
        found = torch_file.read(path, entry) if path.suffix in TORCH else Gradient(_READERS[path.suffix](path))
    except FileNotFoundError:
        raise InputMissing(f"{path} is not there", "check the path") from None
    except OSError as error:
        raise InputMissing(f"cannot read {path}: {(error.strerror or '').lower()}", "check the path") from None
    if strip_prefix and not found.sequence:
        tensors = [t._replace(name=t.name.removeprefix(strip_prefix)) for t in found]
        absent = [name.removeprefix(strip_prefix) for name in found.absent]
        if len({t.name for t in tensors} | set(absent)) < len(tensors) + len(absent):
            what = f"{path}: two tensors have the same name without the prefix {strip_prefix!r}"
            raise BadData(what, "strip less of it")
        found = Gradient(tensors, absent, found.notes)
    if found.absent:
        found.notes += (f"left out, None: {listed(found.absent)}",)
    return found


def check_writable(path: Path) -> None:
    """Refuse a suffix without a writer, or a missing folder, before any work is done."""
    if path.suffix not in WRITABLE:
        raise UsageError(f"{path}: no writer for {path.suffix!r} files", f"one of {', '.join(WRITABLE)}")
    if not path.absolute().parent.is_dir():
        raise CannotWrite(f"cannot write {path}: its folder is not there", "make the folder first")


def write_gradient(stream: IO[bytes], suffix: str, tensors: list[Tensor]) -> None:
    """Write tensors in the format of the suffix; .npy gets all of them as one flat vector."""
    _WRITERS[suffix](stream, tensors)
