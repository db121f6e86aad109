"""What a construction asks of a round's parameters, and which of them it chooses.

This stands beside each construction and not in it: parameters are chosen and checked before
anything that computes is loaded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from ..errors import Advice, UsageError

if TYPE_CHECKING:
    from .parameters import Parameters

# how shares are dealt
KEYS = "keys"
SHARES = "shares"
LARGEST_FIELD = 1 << 32  # symbols have 32 bits


class Rules(ABC):
    """The rules of one construction. The first of its `dealings` is the default."""

    dealings: ClassVar[tuple[str, ...]]

    @abstractmethod
    def default_picks(
        self,
        *,
        users: int,
        blocks: int,
        top_k: int,
        length: int,
        whole: int,
        field: int,
        dealing: str,
    ) -> int:
        """P, where none is given; numbers that no round can have are refused later."""

    @abstractmethod
    def check(self, p: Parameters) -> None:
        """Refuse parameters with which the construction does not work."""

    @abstractmethod
    def letters(self, p: Parameters) -> dict[str, int]:
        """The construction's own parameters by their letters."""


def require(holds: bool, message: str, hint: str, advice: Advice | None = None) -> None:
    """Refuse parameters for which a constraint does not hold."""
    if not holds:
        raise UsageError(message, hint, advice)
