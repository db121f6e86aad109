"""Which arrays of a model are masked; integers leave in the clear. And what nodes train from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, RecordDict

from ..errors import BadData
from ..gradients.arrays import tensors_of
from ..gradients.layout import NOT_GRADIENTS, Layout

Arrays = dict[str, npt.NDArray[Any]]
_HEADER_BYTES = 4096  # of an array in a message


def arrays_of(record: ArrayRecord) -> Arrays:
    """The arrays of a record by name."""
    try:
        return {name: array.numpy() for name, array in record.items()}
    except (TypeError, ValueError, EOFError, OSError) as error:
        raise BadData("a message has arrays that cannot be read", "send numpy arrays") from error


def check_sizes(record: ArrayRecord, model: Arrays) -> None:
    """Refuse arrays that say to be larger than those of the model, before anything is parsed."""
    for name, array in record.items():
        if name not in model or len(array.data) > model[name].nbytes + _HEADER_BYTES:
            raise BadData(f"its array {name!r:.80} is not one of the model's, or is too large")


def record_of(arrays: Mapping[str, npt.NDArray[Any]]) -> ArrayRecord:
    """The inverse of `arrays_of`."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def is_clear(array: npt.NDArray[Any]) -> bool:
    """Whether an array leaves in the clear: counters, and other integers. No name, and so no
    server, can make a trained array one of them."""
    return array.dtype.kind in "iub"


def clear_of(arrays: Arrays) -> Arrays:
    """What leaves in the clear."""
    return {name: array for name, array in arrays.items() if is_clear(array)}


def statistics(arrays: Arrays) -> list[str]:
    """Patterns for the statistics of batch norm, which are sent whole: nothing of them may wait for
    a later round."""
    names = [name for name, array in arrays.items() if not is_clear(array)]
    return [
        pattern for pattern in NOT_GRADIENTS if any(fnmatchcase(name, pattern) for name in names)
    ]


def template(arrays: Arrays) -> Arrays:
    """What differences look like: zeros for every array that is not in the clear, in float64
    whatever the model's own types are."""
    return {
        name: np.broadcast_to(np.float64(0), array.shape)
        for name, array in arrays.items()
        if not is_clear(array)
    }


def layout_of(arrays: Arrays) -> Layout:
    """The layout of the differences."""
    return Layout.like(tensors_of(template(arrays)), exclude=())


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
        if is_clear(new) != is_clear(old):
            raise BadData(
                f"array {name!r:.80} had type {old.dtype}, and comes back as {new.dtype}",
                "integers leave in the clear, and what is trained does not",
            )


def difference(before: Arrays, after: Arrays) -> Arrays:
    """after - before of every array that is not in the clear, in float64."""
    return {
        name: np.asarray(new, np.float64) - np.asarray(before[name], np.float64)
        for name, new in after.items()
        if not is_clear(new)
    }


def moved(arrays: Arrays, step: Mapping[str, npt.NDArray[np.float64]]) -> Arrays:
    """The arrays plus a step for those of them that are trained."""
    return {
        name: in_type_of(array, array.astype(np.float64) + step[name]) if name in step else array
        for name, array in arrays.items()
    }


def middle(parts: Sequence[Arrays]) -> Arrays:
    """The lower median of arrays with the same names, entry by entry: no single part moves it
    far."""
    first, *_ = parts
    return {
        name: np.sort(np.stack([part[name] for part in parts]), axis=0)[(len(parts) - 1) // 2]
        for name in first
    }


def in_type_of(example: npt.NDArray[Any], values: Any) -> npt.NDArray[Any]:
    """Values in the type of an array; integers are rounded to the nearest."""
    if example.dtype.kind in "iub":
        values = np.rint(values)
    return np.asarray(values).astype(example.dtype)


# what all nodes train from


def context_of(records: RecordDict, *words: str) -> bytes:
    """Everything in a message that determines what a node sends, as one text: the arrays, the
    configuration and words beside them. Its digest is in session.json."""
    lines = [f"word {word!r}" for word in words]
    for name, arrays in records.array_records.items():
        for key, array in arrays.items():
            digest = hashlib.sha256(array.data).hexdigest()
            form = f"{array.dtype!r} {tuple(array.shape)!r} {array.stype!r}"
            lines.append(f"array {name!r} {key!r} {form} {digest}")
    for name, record in (*records.config_records.items(), *records.metric_records.items()):
        lines += [f"value {name!r} {key!r} {record[key]!r}" for key in sorted(record)]
    return "\n".join(lines).encode("utf-8", "backslashreplace")
