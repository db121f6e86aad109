"""Offline phase: draw Z_n and share its selectors with every user."""

from __future__ import annotations

from ..algebra.lagrange import default_points
from ..algebra.randomness import Randomness
from .constructions import construction
from .messages import Points, Secret
from .parameters import Parameters


def choose_points(p: Parameters) -> Points:
    """Public, pairwise distinct points: alpha_1..alpha_N, and as many betas as the construction needs."""
    return Points(*default_points(p.users, construction(p).beta_count))


def draw_secret(p: Parameters, source: Randomness) -> Secret:
    """The secret permutation and masks, or places and factors."""
    return construction(p).draw(source)
