"""Tensors in memory: what every reader returns and every writer takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

FLOATING = ("float16", "bfloat16", "float32", "float64")
_BFLOAT16_BYTES = 2  # of a value in a file; in memory it is a float32
_NAMES_SHOWN = 4
_LONGEST = 80  # characters of a name in a message


class Tensor(NamedTuple):
    """One named array of a gradient file.

    `dtype` is the name of the type in the file ("bfloat16" too, which numpy does not have);
    `array` holds the same values in a numpy type that represents each of them exactly.
    """

    name: str
    dtype: str
    array: npt.NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of its array."""
        return self.array.shape


class TensorInFile(NamedTuple):
    """The same, still in its file: whoever asks for `array` reads it anew.

    A large gradient is never in memory twice, as tensors and as one flat vector.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], npt.NDArray[Any]]

    @property
    def array(self) -> npt.NDArray[Any]:
        """Its values."""
        return self.load()


AnyTensor = Tensor | TensorInFile


class Described(Protocol):
    """Whatever says which type and shape a tensor has."""

    @property
    def dtype(self) -> str:
        """The name of the type in the file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""


def bytes_of(tensor: Described) -> int:
    """What its values take in a file."""
    wide = tensor.dtype != "bfloat16"
    width = np.dtype(tensor.dtype).itemsize if wide else _BFLOAT16_BYTES
    return math.prod(tensor.shape) * width


class Gradient(list[AnyTensor]):
    """The tensors of a gradient file, in its order.

    `absent` names those that are None. `ties` are further names of tensors that are listed once:
    the other name -> the name in the list. In a `sequence` all names are the positions "0", "1",
    ... of a list. `notes` are lines to show to the user.
    """

    def __init__(
        self,
        tensors: Sequence[AnyTensor],
        absent: Sequence[str] = (),
        notes: Sequence[str] = (),
        *,
        sequence: bool = False,
        ties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(tensors)
        self.absent = tuple(absent)
        self.notes = tuple(notes)
        self.sequence = sequence
        self.ties = dict(ties or {})

    def under_every_name(self) -> list[AnyTensor]:
        """The tensors, followed by those that are tied to one of them, under their own names."""
        by_name = {t.name: t for t in self}
        tied = [by_name[first]._replace(name=name) for name, first in self.ties.items()]
        return [*self, *tied]


def is_path(value: Any) -> bool:
    """Whether it names a file instead of holding its content."""
    return isinstance(value, str | bytes | PathLike)


def called(name: str) -> str:
    """A name from a file in a message, shortened if it is long."""
    return repr(name if len(name) <= _LONGEST else name[:_LONGEST] + "...") if name else "(unnamed)"


def left_out(why: str, names: Sequence[str]) -> tuple[str, ...]:
    """A note that these tensors are left out, if there are any."""
    return (f"left out, {why}: {_shown(names)}",) if names else ()


def tied(ties: Mapping[str, str]) -> tuple[str, ...]:
    """A note that these tensors are others under a second name, if there are any."""
    pairs = [f"{name} is {first}" for name, first in ties.items()]
    return (f"tied, so counted once: {_shown(pairs)}",) if pairs else ()


def _shown(names: Sequence[str]) -> str:
    """The first few of many names."""
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def widen(stored: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """bfloat16 as float32: the upper half of its bits."""
    return np.left_shift(stored, 16, dtype=np.uint32).view(np.float32)


def narrow(array: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """The nearest bfloat16 of each float32, ties to even: (x + 0x7fff + bit 16 of x) >> 16 for its
    bits x.

    A NaN keeps the upper half of its bits, and stays a NaN if that half alone would not be one.
    """
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    upper = bits >> 16
    quiet = np.where(upper & 0x7F, upper, upper | 0x40)
    return np.where(np.isnan(bits.view(np.float32)), quiet, nearest).astype(np.uint16)


def stored(tensor: AnyTensor) -> npt.NDArray[np.uint8]:
    """The bytes of a tensor as files hold them: contiguous and little-endian."""
    array = np.ascontiguousarray(
        narrow(tensor.array) if tensor.dtype == "bfloat16" else tensor.array
    )
    return array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8)
