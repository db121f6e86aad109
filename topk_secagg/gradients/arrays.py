"""Gradients in memory, as Python callers have them: arrays, or mappings or lists of arrays or torch
tensors."""

from __future__ import annotations

from collections.abc import Mapping
from os import fsdecode
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadData, UsageError
from .files import read_gradient
from .layout import Layout
from .tensors import FLOATING, Gradient, Tensor, called, is_path, left_out, tied

Given = Any  # an array, or a mapping or list of arrays or torch tensors
Vector = npt.NDArray[Any]
_WIDEST = 8  # bytes of a value


def refuse_path(what: str, value: Any) -> None:
    """Refuse the name of a file where its content is expected."""
    if is_path(value):
        raise UsageError(
            f"{what}: {value!r:.120} is a path, not a gradient",
            "load the file first, or use run, which reads files",
        )


def read_any(gradient: Given, entry: str = "", strip_prefix: str = "") -> Gradient:
    """The tensors of a gradient file, or of a gradient in memory; both by the same rules."""
    if is_path(gradient):
        return read_gradient(Path(fsdecode(gradient)), entry, strip_prefix)
    if entry or strip_prefix:
        raise UsageError(
            "entries and prefixes of names are for gradient files",
            "give the tensors themselves, under the names that the round has",
        )
    tensors = tensors_of(gradient)
    tensors.notes += (*tied(tensors.ties), *left_out("None", tensors.absent))
    return tensors


def in_form(layout: Layout, vector: npt.NDArray[np.float64]) -> Given:
    """A flat vector in the form of a gradient with this layout: one array, a mapping of names to
    arrays, or a list with None for what is left out."""
    tensors = layout.unflatten(vector)
    arrays = {t.name: t.array for t in tensors.under_every_name()}
    if layout.sequence:
        count = len(arrays) + len(layout.left_out)
        return [arrays.get(str(position)) for position in range(count)]
    if list(arrays) == [""]:
        return arrays[""]
    return arrays


class Form:
    """How gradients are given, and so how the sum and the residuals are returned."""

    def __init__(self, example: Given) -> None:
        tensors = tensors_of(example)
        self.layout = Layout.like(tensors)
        self.notes = tensors.notes + left_out("None", tensors.absent)
        self._is_mapping = isinstance(example, Mapping) or hasattr(example, "named_parameters")
        self._parts = {_name(key): (key, value) for key, value in _items(example)}

    def flatten(self, gradient: Given) -> Vector:
        """A gradient as one flat vector."""
        return self.layout.flatten(tensors_of(gradient))

    def flatten_residual(self, residual: Given) -> Vector:
        """A residual as one flat vector in float64, whatever its floating-point types are."""
        tensors = tensors_of(residual)
        tensors[:] = [
            Tensor(t.name, "float64", t.array.astype(np.float64)) if t.dtype in FLOATING else t
            for t in tensors
        ]
        return self.layout.in_float64().flatten(tensors)

    def unflatten(self, vector: npt.NDArray[np.float64]) -> Given:
        """The inverse of `flatten`, in the example's types; torch tensors where it has them."""
        arrays = {t.name: t.array for t in self.layout.unflatten(vector)}
        return self._shaped({name: _like(self._value(name), arrays[name]) for name in arrays})

    def residual(self, vector: npt.NDArray[np.float64]) -> Given:
        """The same in float64: a residual keeps its precision from round to round."""
        arrays = {t.name: t.array for t in self.layout.in_float64().unflatten(vector)}
        return self._shaped(
            {name: _exactly_like(self._value(name), arrays[name]) for name in arrays}
        )

    def _value(self, name: str) -> Any:
        return self._parts[name][1]

    def _shaped(self, values: dict[str, Any]) -> Given:
        """These values as a mapping, a list with None for what is left out, or one value.

        Tied tensors are one tensor again.
        """
        for slot in self.layout.slots:
            values |= dict.fromkeys(slot.also, values[slot.name])
        if self._is_mapping:
            return {self._parts[name][0]: value for name, value in values.items()}
        if self.layout.sequence:
            return [values.get(name) for name in self._parts]
        return values[""]


def _gradients_of_module(module: Any) -> dict[str, Any]:
    """What backward left in a torch.nn.Module, under the names of its parameters."""
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    if all(gradient is None for gradient in gradients.values()):
        raise BadData(
            "the module has no gradients",
            "call backward() first; for its weights give module.state_dict(), or what they changed",
        )
    return gradients


def _items(gradient: Given) -> list[tuple[Any, Any]]:
    """The parts of a gradient with their names or positions; one array has no name."""
    if hasattr(gradient, "named_parameters"):  # torch itself is not imported
        gradient = _gradients_of_module(gradient)
    if isinstance(gradient, Mapping):
        return list(gradient.items())
    if _is_list_of_tensors(gradient):
        return list(enumerate(gradient))
    return [("", gradient)]


def _is_list_of_tensors(gradient: Given) -> bool:
    """Whether it is a list of arrays (or None), and not one array written as a list of numbers."""
    return isinstance(gradient, list | tuple) and any(
        part is None or (hasattr(part, "shape") and not isinstance(part, np.generic))
        for part in gradient
    )


def _name(key: Any) -> str:
    return key if isinstance(key, str) else str(key)


def tensors_of(gradient: Given) -> Gradient:
    """A gradient as what every reader of files returns.

    As in files, the same view of the same memory under two names is a tied tensor.
    """
    items = _items(gradient)
    names = [_name(key) for key, _ in items]
    if len(set(names)) < len(names):
        raise BadData(
            "two of its tensors have the same name", "give every tensor a name of its own"
        )
    tensors = []
    absent = []
    ties: dict[str, str] = {}
    first_names: dict[tuple[Any, ...], str] = {}
    for name, (_, value) in zip(names, items, strict=True):
        if value is None:
            absent.append(name)
            continue
        first = first_names.setdefault(_view(value), name)
        if first == name:
            tensors.append(_tensor(name, value))
        else:
            ties[name] = first
    return Gradient(tensors, absent, sequence=_is_list_of_tensors(gradient), ties=ties)


def _view(value: Any) -> tuple[Any, ...]:
    """What two tied tensors have in common: the memory, shape, strides and type."""
    if hasattr(value, "data_ptr") and value.numel():
        return value.data_ptr(), tuple(value.shape), value.stride(), value.dtype, value.device
    if isinstance(value, np.ndarray) and value.size:
        return value.ctypes.data, value.shape, value.strides, value.dtype
    return (object(),)  # numbers, lists and empty tensors are tied to nothing


def _tensor(name: str, value: Any) -> Tensor:
    """An array or a torch tensor; torch itself is not imported."""
    refuse_path(called(name), value)
    try:
        if not hasattr(value, "detach"):
            array = np.asarray(value)
            kind = array.dtype.name
            if kind == "bfloat16":
                array = array.astype(np.float32)
            _check_type(name, array)
            return Tensor(name, kind, array)
        value = value.detach().cpu()
        kind = str(value.dtype).removeprefix("torch.")
        return Tensor(name, kind, (value.float() if kind == "bfloat16" else value).numpy())
    except (AttributeError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise BadData(
            f"tensor {called(name)}: a {type(value).__name__} cannot be read as an array",
            "give arrays or torch tensors",
        ) from error


def _check_type(name: str, array: Vector) -> None:
    """Refuse what no gradient file may hold either."""
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > _WIDEST:
        raise BadData(
            f"tensor {called(name)}: an array of type {str(array.dtype)[:40]}",
            "give array.astype(np.float32)",
        )


def _like(example: Any, array: npt.NDArray[Any]) -> Any:
    """An array as a torch tensor of the example's type and device, where the example is one."""
    return example.detach().new_tensor(array) if hasattr(example, "detach") else array


def _exactly_like(example: Any, array: npt.NDArray[np.float64]) -> Any:
    """The same in float64."""
    return example.detach().double().new_tensor(array) if hasattr(example, "detach") else array
