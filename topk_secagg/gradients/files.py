"""Read and write gradient files; `formats` says which there are."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from ..errors import Advice, BadData, CannotWrite, UsageError
from .formats import (
    SAVED,
    any_of,
    check_suffix_written,
    format_of_suffix,
    format_read,
    saved_in,
)
from .formats.malformed import reading
from .tensors import Gradient, left_out, tied


def read_gradient(path: Path, entry: str = "", strip_prefix: str = "") -> Gradient:
    """The tensors of a gradient file, in the file's order; `entry` selects a part of a PyTorch
    checkpoint.

    `strip_prefix` is removed from the names that start with it.
    """
    gradient = _read(path, entry)
    if strip_prefix and not gradient.sequence:
        gradient = _without_prefix(gradient, path, strip_prefix)
    gradient.notes += (*tied(gradient.ties), *left_out("None", gradient.absent))
    return gradient


def _read(path: Path, entry: str) -> Gradient:
    """The same, under the names in the file."""
    if path.is_dir():
        path = _file_in(path)
    file_format = format_read(path)
    if entry and not file_format.has_entries:
        hint = "only PyTorch checkpoints have entries"
        what = f"there is no entry in {path.suffix} files"
        raise UsageError(what, hint, Advice.NO_ENTRY).within(path)
    reader = file_format.reader
    with reading(path):
        return reader.read(path, entry) if entry else reader.read(path)


def _file_in(folder: Path) -> Path:
    """The gradient in a folder, which save_pretrained must have written."""
    saved = saved_in(folder)
    if saved is None:
        raise UsageError(
            f"{folder} is a folder, and not one that save_pretrained wrote",
            f"give the file of one user, or a folder with {any_of(SAVED[:2])}",
            Advice.FOLDER,
        )
    return saved


def _without_prefix(gradient: Gradient, path: Path, prefix: str) -> Gradient:
    """The same tensors under names without the prefix; refuse it where two names become the
    same."""
    tensors = [t._replace(name=t.name.removeprefix(prefix)) for t in gradient]
    absent = [name.removeprefix(prefix) for name in gradient.absent]
    ties = [
        (name.removeprefix(prefix), first.removeprefix(prefix))
        for name, first in gradient.ties.items()
    ]
    names = [*(t.name for t in tensors), *absent, *(name for name, _ in ties)]
    if len(set(names)) < len(names):
        what = f"two tensors have the same name without the prefix {prefix!r}"
        raise BadData(what, "strip less of it").within(path)
    return Gradient(tensors, absent, gradient.notes, ties=dict(ties))


def check_writable(path: Path) -> None:
    """Refuse a suffix without a writer, or a missing folder, before any work is done."""
    check_suffix_written(path)
    if not path.absolute().parent.is_dir():
        raise CannotWrite(f"cannot write {path}: its folder is not there", "make the folder first")


def write_gradient(stream: IO[bytes], suffix: str, tensors: Gradient) -> None:
    """Write tensors in the format of a suffix; .npy gets all of them as one flat vector."""
    format_of_suffix(suffix).reader.write(stream, tensors)
