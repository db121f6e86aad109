"""Formats of gradient files: a module here and an entry of FORMATS for each.

A module has `read(path)`, which returns a Gradient, and `write(stream, tensors)` if its format is
written; where a file has entries, `read(path, entry)`. No reader unpickles objects, or takes more
memory than the size of the file justifies. A module is loaded when a file of its format is met:
this table alone is cheap, so that help can say what is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, cast

from ...errors import UsageError

if TYPE_CHECKING:
    from ..tensors import Gradient


class Reader(Protocol):
    """A module of a format."""

    def read(self, path: Path, entry: str = ...) -> Gradient:
        """The tensors of a file, in its order; `entry` selects a part where there are entries."""

    def write(self, stream: IO[bytes], tensors: Gradient) -> None:
        """Write a file; the same tensors give the same bytes."""


@dataclass(frozen=True)
class Format:
    """What is known of a format without loading its module.

    `suffixes` are read and `written` ones written too. `holds` and `names` say, for people, what is
    read of a file and how its tensors are called.
    """

    module: str
    suffixes: tuple[str, ...]
    written: tuple[str, ...]
    holds: str
    names: str
    has_entries: bool = False

    @property
    def reader(self) -> Reader:
        """Its module."""
        return cast(Reader, import_module(f"{__name__}.{self.module}"))


FORMATS = (
    Format(
        "pytorch",
        suffixes=(".pt", ".pth", ".bin", ".ckpt"),
        written=(".pt",),
        holds="what `torch.save` wrote: a `state_dict`, any mapping, list or tuple of tensors, "
        "one tensor, a checkpoint",
        names="keys; in a list the positions `0`, `1`, ...; in nested containers, joined with `.`",
        has_entries=True,
    ),
    Format(
        "safetensors",
        suffixes=(".safetensors",),
        written=(".safetensors",),
        holds="all tensors",
        names="as in the file",
    ),
    Format(
        "npz",
        suffixes=(".npz",),
        written=(".npz",),
        holds="all arrays",
        names="as in the file",
    ),
    Format(
        "npy",
        suffixes=(".npy",),
        written=(".npy",),
        holds="one array",
        names="none",
    ),
    Format(
        "sharded",
        suffixes=(".safetensors.index.json", ".bin.index.json"),
        written=(),
        holds="a model in several files, as `save_pretrained` writes it: all tensors of the shards "
        "that this index names, which lie beside it",
        names="as in the shards",
    ),
)
# What save_pretrained calls its files, of an adapter or of a whole model: such a folder is a
# gradient.
SAVED = (
    "adapter_model.safetensors",
    "adapter_model.bin",
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)
# What people have too, and what to do with it.
ELSEWHERE = {
    ".onnx": "it is a graph and holds no gradient; save the tensors of the model from which it was "
    "exported",
    ".gguf": "it is made for inference, with rounded weights; save the tensors of the model that "
    "it was converted from",
    ".keras": "save the arrays: numpy.savez(path, **{v.path: v.numpy() for v in variables})",
    ".msgpack": "save the arrays: safetensors.numpy.save_file(arrays, path)",
    ".pkl": "a pickle can run anything when it is read; save the arrays with numpy.savez",
    ".pickle": "a pickle can run anything when it is read; save the arrays with numpy.savez",
    ".joblib": "a pickle can run anything when it is read; save the arrays with numpy.savez",
    ".tar": "if torch.save wrote it, let its name end in .pth",
}


def suffixes_read() -> tuple[str, ...]:
    """Every suffix with a reader."""
    return tuple(suffix for one in FORMATS for suffix in one.suffixes)


def suffixes_written() -> tuple[str, ...]:
    """Every suffix with a writer."""
    return tuple(suffix for one in FORMATS for suffix in one.written)


def any_of(suffixes: Sequence[str]) -> str:
    """Suffixes in a sentence: .a, .b or .c."""
    *others, last = suffixes
    return f"{', '.join(others)} or {last}" if others else last


def is_readable(path: Path) -> bool:
    """Whether a file is called as gradients are."""
    return _suffix(path, suffixes_read()) is not None


def saved_in(folder: Path) -> Path | None:
    """The file with all tensors in a folder that save_pretrained wrote; None in any other."""
    return next((folder / name for name in SAVED if (folder / name).is_file()), None)


def format_read(path: Path) -> Format:
    """The format in which a file is read, by its name."""
    return format_of_suffix(_known_suffix(path, suffixes_read(), "reader", instead=ELSEWHERE))


def check_suffix_written(path: Path) -> None:
    """Refuse a name in whose format nothing is written."""
    _known_suffix(path, suffixes_written(), "writer", instead={})


def format_of_suffix(suffix: str) -> Format:
    """The format with this suffix."""
    return next(one for one in FORMATS if suffix in one.suffixes)


def _suffix(path: Path, known: Sequence[str]) -> str | None:
    """The longest of these suffixes that a name has, after something else."""
    fitting = [suffix for suffix in known if path.name.endswith(suffix) and path.name != suffix]
    return max(fitting, key=len, default=None)


def _known_suffix(path: Path, known: Sequence[str], what: str, instead: Mapping[str, str]) -> str:
    """The same; refuse a name without one, and say what to do `instead` where that is known."""
    suffix = _suffix(path, known)
    if suffix is not None:
        return suffix
    missing = f"no {what} for {path.suffix!r} files" if path.suffix else "it has no suffix"
    hint = instead.get(path.suffix.lower(), f"its name must end in {any_of(known)}")
    raise UsageError(f"{path}: {missing}", hint)
