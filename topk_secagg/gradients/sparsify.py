"""Select the coordinates that a user sends, and measure how much of the gradient they keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..algebra.randomness import Randomness
from ..protocol.constructions import construction
from ..protocol.parameters import Parameters
from ..protocol.permutation import top_k
from .quantize import uniform

Index = npt.NDArray[np.int64]


def select_top(p: Parameters, gradient: npt.NDArray[Any]) -> Index:
    """The coordinates of largest magnitude, in the order in which the construction masks them."""
    return construction(p).select(gradient)


def select_random(p: Parameters, source: Randomness) -> Index:
    """The same number of coordinates, selected at random: those with the largest of L random keys."""
    return select_top(p, uniform(source, p.length))


def kept_energy(p: Parameters, gradient: npt.NDArray[Any], index: Index) -> float:
    """The energy of the selected values, divided by the energy of as many largest values."""
    values = gradient[index].astype(np.float64)
    best = gradient[top_k(gradient, construction(p).entries)].astype(np.float64)
    largest = np.abs(best).max()
    if not largest:
        return 1.0
    return float(np.square(values / largest).sum() / np.square(best / largest).sum())
