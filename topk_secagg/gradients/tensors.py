"""The one shape in which every reader hands over what a gradient file holds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Tensor(NamedTuple):
    """One named array of a gradient file.

    `dtype` is the name of the type in the file ("bfloat16" too, which numpy does not have);
    `array` holds the same values in a numpy type that represents each of them exactly.
    """

    name: str
    dtype: str
    array: npt.NDArray[Any]


FLOATING = ("float16", "bfloat16", "float32", "float64")


def flat_length(tensors: list[Tensor]) -> int:
    """How many coordinates the tensors have together."""
    return sum(int(np.prod(t.array.shape, dtype=np.int64)) for t in tensors)
