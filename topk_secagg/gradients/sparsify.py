"""Select coordinates at random, and measure how much of a gradient the selected ones keep."""

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


def select_random(p: Parameters, source: Randomness) -> Index:
    """As many coordinates as a construction selects, at random: those with the largest of L random keys."""
    return construction(p).select(uniform(source, p.length))


def kept_energy(p: Parameters, gradient: npt.NDArray[Any], index: Index) -> float:
    """The energy of the selected values, divided by the energy of as many largest values."""
    values = gradient[index].astype(np.float64)
    best = gradient[top_k(gradient, construction(p).entries)].astype(np.float64)
    largest = np.abs(best).max()
    if not largest:
        return 1.0
    return float(np.square(values / largest).sum() / np.square(best / largest).sum())
