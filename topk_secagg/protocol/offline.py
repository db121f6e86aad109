"""Offline phase: draw Z_n and share its selectors with every user."""

from __future__ import annotations

from ..algebra.randomness import Randomness
from .constructions import construction
from .messages import Points, Secret
from .parameters import Parameters


def choose_points(p: Parameters) -> Points:
    """Public, pairwise distinct points: beta_u = u - 1, as many as the construction needs, then alpha_1..alpha_N."""
    count = construction(p).beta_count
    return Points(alpha=tuple(range(count, count + p.users)), beta=tuple(range(count)))


def draw_secret(p: Parameters, source: Randomness) -> Secret:
    """The secret permutation and masks, or places and factors."""
    return construction(p).draw(source)
