"""Test whether values look uniform: Pearson's chi-square, with a stated rate of false alarms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..algebra.field import Integers, Symbols
from ..errors import BadData, InputMissing, counted
from ..protocol.constructions import construction
from ..protocol.messages import Masked
from ..protocol.parameters import Parameters

FALSE_ALARM = 1e-6
# Pearson's statistic is only about chi-square: with five expected in a bin, a tail of 1e-7 by that
# distribution is up to 9.1e-7 in truth (counted exactly, 2 to 64 bins).
_LEAST_TAIL = 1e-7
LEAST_EXPECTED = 5
FEWEST_BINS = 16
_MOST_BINS = 64


class Law(NamedTuple):
    """Values that should be uniform below `bound`, one array for each X; `subject` is what a
    sentence says of them."""

    name: str
    subject: str
    parts: list[Symbols]
    bound: int
    distinct: bool = False


def laws(p: Parameters, masked: Sequence[Masked]) -> list[Law]:
    """What should be uniform in X: values in F_q, and distinct indices, if there are any."""
    c = construction(p)
    uniform = [Law("masked value", "The masked values", [x.value for x in masked], bound=p.field)]
    if c.has_indices:
        indices = [x.index for x in masked]
        subject = "The indices, which hide the chosen ones,"
        uniform.append(Law(c.index_name, subject, indices, bound=c.index_bound, distinct=True))
    return uniform


def chi_square_tail(statistic: float, freedom: int) -> float:
    """Q(freedom/2, statistic/2), the probability of more than `statistic`: a finite sum, by
    parity."""
    half = statistic / 2
    if half <= 0:
        return 1.0
    odd = freedom % 2
    powers = (k + odd / 2 for k in range(freedom // 2))
    total = math.fsum(math.exp(k * math.log(half) - half - math.lgamma(k + 1)) for k in powers)
    return min(1.0, total + (math.erfc(math.sqrt(half)) if odd else 0.0))


def histogram(
    parts: Sequence[Symbols], bound: int, bins: int
) -> tuple[Integers, npt.NDArray[np.float64]]:
    """How many values fall into each of `bins` ranges below `bound`, and how many should."""
    values = np.concatenate(parts)
    edges = -(-np.arange(bins + 1) * bound // bins)
    return np.histogram(values, edges - 0.5)[0], np.diff(edges) * values.size / bound


def uniformity(parts: Sequence[Symbols], bound: int, *, distinct: bool = False) -> str:
    """Pearson's chi-square of values that should be uniform below `bound`, in words.

    BadData if they are not uniform, and InputMissing if they are too few to tell.

    With `distinct`, the values of each part are drawn without replacement, and all parts have the
    same size: of K values below L all covariances are then (L - K) / (L - 1) times as large.
    """
    count = sum(part.size for part in parts)
    free = sum(bound - part.size for part in parts)
    usable = min(count, free) if distinct else count
    needed = min(FEWEST_BINS, bound)
    bins = min(_MOST_BINS, bound, usable // LEAST_EXPECTED)
    if bound < 2 or bins < needed:
        free_places = ", or places left free," if usable < count else ""
        value = f"value{free_places} below {bound} is"
        values = f"values{free_places} below {bound} are"
        least = max(2, needed) * LEAST_EXPECTED
        raise InputMissing(f"{counted(usable, value, values)} too few; {least} are needed")
    observed, expected = histogram(parts, bound, bins)
    statistic = math.fsum((observed - expected) ** 2 / expected)
    if distinct:
        statistic *= (bound - 1) / (bound - parts[0].size)
    tail = chi_square_tail(statistic, bins - 1)
    text = (
        f"chi-square {statistic:.1f} over {bins} bins, tail {tail:.2g}, "
        f"false alarms at most {FALSE_ALARM:g}"
    )
    if tail < _LEAST_TAIL:
        raise BadData(f"they are not uniform: {text}")
    return text
