"""Names and shapes of a gradient's tensors, and the one flat vector that they make up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import BadData, UsageError
from .tensors import FLOATING, Tensor


class Slot(NamedTuple):
    """One tensor's place in the layout."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Its coordinates."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The tensors of a gradient in order; their entries in C order make up the flat vector."""

    slots: tuple[Slot, ...]

    @property
    def length(self) -> int:
        """L."""
        return sum(slot.size for slot in self.slots)

    @staticmethod
    def flat(length: int) -> Layout:
        """The layout of one unnamed vector."""
        return Layout((Slot("", (length,), "float32"),))

    @staticmethod
    def of(tensors: list[Tensor]) -> Layout:
        """The layout of what a gradient file holds."""
        return Layout(tuple(Slot(t.name, t.array.shape, t.dtype) for t in tensors))

    @staticmethod
    def from_list(raw: Any) -> Layout:
        """The inverse of `as_list`; ValueError for anything else."""
        if not isinstance(raw, list) or not raw:
            raise ValueError("the layout is not a list of tensors")
        slots = []
        for item in raw:
            if not isinstance(item, dict) or set(item) != {"name", "shape", "dtype"}:
                raise ValueError("a tensor of the layout does not have name, shape and dtype")
            name, shape, dtype = item["name"], item["shape"], item["dtype"]
            if type(name) is not str or dtype not in FLOATING or type(shape) is not list:
                raise ValueError(f"tensor {name!r} of the layout has a wrong name, shape or dtype")
            if any(type(n) is not int or n < 0 for n in shape):
                raise ValueError(f"tensor {name!r} of the layout has a wrong shape")
            slots.append(Slot(name, tuple(shape), dtype))
        if len({slot.name for slot in slots}) < len(slots):
            raise ValueError("two tensors of the layout have the same name")
        return Layout(tuple(slots))

    def as_list(self) -> list[dict[str, Any]]:
        """For session.json."""
        return [{"name": s.name, "shape": list(s.shape), "dtype": s.dtype} for s in self.slots]

    def flatten(self, tensors: list[Tensor]) -> npt.NDArray[Any]:
        """The flat vector, (L,) float32 or float64; a tensor that does not fit is named."""
        for tensor, slot in zip(tensors, self.slots, strict=False):
            if tensor.name != slot.name or tensor.array.shape != slot.shape:
                raise BadData(
                    f"tensor {_called(tensor.name)} of shape {tensor.array.shape} stands where the session "
                    f"has {_called(slot.name)} of shape {slot.shape}",
                    "is it a gradient of the same model?",
                )
        if len(tensors) != len(self.slots):
            raise BadData(
                f"{len(tensors)} tensors where the session has {len(self.slots)}",
                "is it a gradient of the same model?",
            )
        wide = any(t.array.dtype.itemsize > 4 or t.array.dtype.kind != "f" for t in tensors)
        dtype = np.float64 if wide else np.float32
        if len(tensors) == 1:
            flat = np.ascontiguousarray(tensors[0].array, dtype=dtype).reshape(-1)
        else:
            flat = np.concatenate([t.array.reshape(-1).astype(dtype, copy=False) for t in tensors])
        self._refuse_non_finite(flat)
        return flat

    def unflatten(self, vector: npt.NDArray[np.float64]) -> list[Tensor]:
        """The tensors of a flat vector, each in the layout's type (bfloat16 as float32)."""
        tensors, start = [], 0
        for slot in self.slots:
            part = vector[start : start + slot.size].reshape(slot.shape)
            numpy_type = "float32" if slot.dtype == "bfloat16" else slot.dtype
            tensors.append(Tensor(slot.name, slot.dtype, part.astype(numpy_type)))
            start += slot.size
        return tensors

    def _refuse_non_finite(self, flat: npt.NDArray[Any]) -> None:
        if np.isfinite(flat).all():
            return
        start = 0
        for slot in self.slots:
            bad = int(np.count_nonzero(~np.isfinite(flat[start : start + slot.size])))
            if bad:
                raise BadData(
                    f"tensor {_called(slot.name)} has {bad} values that are not finite",
                    "find out where NaN or Inf comes from; it would spoil everybody's sum",
                )
            start += slot.size


def _called(name: str) -> str:
    return repr(name) if name else "(unnamed)"


def gradient_layout(tensors: list[Tensor]) -> Layout:
    """The layout of a session made like these tensors, which must be floating point and not empty."""
    layout = Layout.of(tensors)
    for slot in layout.slots:
        if slot.dtype not in FLOATING:
            raise UsageError(f"tensor {_called(slot.name)} has type {slot.dtype}, which no gradient has")
    if layout.length == 0:
        raise UsageError("the gradient has no coordinates at all")
    return layout
