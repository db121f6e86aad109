"""Which arrays of a model are trained, and so masked; the others leave in the clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

from ..errors import BadData
from ..gradients.arrays import tensors_of
from ..gradients.layout import NOT_GRADIENTS, Layout

Arrays = dict[str, npt.NDArray[Any]]


def arrays_of(record: ArrayRecord) -> Arrays:
    """The arrays of a record by name."""
    try:
        return {name: array.numpy() for name, array in record.items()}
    except (TypeError, ValueError, EOFError, OSError) as error:
        raise BadData("a message has arrays that cannot be read", "send numpy arrays") from error


def record_of(arrays: Mapping[str, npt.NDArray[Any]]) -> ArrayRecord:
    """The inverse of `arrays_of`."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def is_buffer(name: str, array: npt.NDArray[Any]) -> bool:
    """Whether an array is averaged in the clear: a buffer of batch norm, by its name, or integers.

    Everything else counts as trained. The rule knows no session: no server can widen it.
    """
    return array.dtype.kind in "iub" or any(fnmatchcase(name, pattern) for pattern in NOT_GRADIENTS)


def buffers(arrays: Arrays) -> Arrays:
    """What leaves in the clear."""
    return {name: array for name, array in arrays.items() if is_buffer(name, array)}


def template(arrays: Arrays) -> Arrays:
    """What differences look like: zeros for every trained array, in float64 whatever the model's
    own types are."""
    return {
        name: np.broadcast_to(np.float64(0), array.shape)
        for name, array in arrays.items()
        if not is_buffer(name, array)
    }


def layout_of(arrays: Arrays) -> Layout:
    """The layout of the differences."""
    return Layout.like(tensors_of(template(arrays)))


def check_same_model(before: Arrays, after: Arrays) -> None:
    """Refuse arrays of another model than those that were sent to be trained."""
    if list(before) != list(after):
        raise BadData(
            "the arrays that the app returns have other names than those that it got",
            "return the arrays of the same model, in the same order",
        )
    for name, old in before.items():
        new = after[name]
        if new.shape != old.shape:
            raise BadData(
                f"array {name!r:.80} had shape {old.shape}, and comes back as {new.shape}"
            )
        if is_buffer(name, new) != is_buffer(name, old):
            raise BadData(
                f"array {name!r:.80} had type {old.dtype}, and comes back as {new.dtype}",
                "integers are averaged in the clear, and what is trained is not",
            )


def difference(before: Arrays, after: Arrays) -> Arrays:
    """after - before of every trained array, in float64."""
    return {
        name: np.asarray(new, np.float64) - np.asarray(before[name], np.float64)
        for name, new in after.items()
        if not is_buffer(name, new)
    }


def moved(arrays: Arrays, step: Mapping[str, npt.NDArray[np.float64]]) -> Arrays:
    """The arrays plus a step for those of them that are trained."""
    return {
        name: in_type_of(array, array.astype(np.float64) + step[name]) if name in step else array
        for name, array in arrays.items()
    }


def mean(parts: Sequence[Arrays], weights: Sequence[float]) -> Arrays:
    """The weighted mean of arrays with the same names, each in its own type."""
    total = sum(weights)
    first, *_ = parts
    return {
        name: in_type_of(
            array,
            sum(
                weight / total * part[name].astype(np.float64)
                for part, weight in zip(parts, weights, strict=True)
            ),
        )
        for name, array in first.items()
    }


def in_type_of(example: npt.NDArray[Any], values: Any) -> npt.NDArray[Any]:
    """Values in the type of an array; integers are rounded to the nearest."""
    if example.dtype.kind in "iub":
        values = np.rint(values)
    return np.asarray(values).astype(example.dtype)
