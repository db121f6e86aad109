"""Which module answers to which name. The verbs are the same in each."""

from __future__ import annotations

from typing import Protocol

from ..algebra.field import Integers
from ..algebra.randomness import Randomness
from . import permutation, rotation
from .messages import Masked, Secret, Selectors, Sparse, Terms
from .parameters import Parameters


class Construction(Protocol):
    """A way to hide which coordinates a user selected."""

    def draw(self, p: Parameters, source: Randomness) -> Secret:
        """Offline: the secret places and masks of a user."""

    def selectors(self, p: Parameters, secret: Secret) -> Selectors:
        """Offline: the vectors to be shared."""

    def mask(self, p: Parameters, secret: Secret, sparse: Sparse) -> Masked:
        """Masked-input phase: X_n."""

    def check(self, p: Parameters, masked: Masked) -> None:
        """Refuse an X that no honest user could have sent."""

    def terms(self, p: Parameters, masked: Masked) -> Terms:
        """Mask-elimination phase: what X_m asks of the shares."""

    def coordinates(self, p: Parameters, group: Integers, slot: Integers, place: Integers) -> Integers:
        """Decoding: the coordinate of an entry of a block."""


_CONSTRUCTIONS: dict[str, Construction] = {"permutation": permutation, "rotation": rotation}


def construction(p: Parameters) -> Construction:
    """The construction that the parameters name."""
    return _CONSTRUCTIONS[p.construction]
