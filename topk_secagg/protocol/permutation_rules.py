"""The parameters of `permutation`: nothing that belongs to another construction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .rules import SHARES, Rules, require

if TYPE_CHECKING:
    from .parameters import Parameters


class PermutationRules(Rules):
    """Shares are written out, and there are neither picks nor buckets."""

    dealings = (SHARES,)

    def default_picks(self, **_: object) -> int:
        """There are none."""
        return 0

    def check(self, p: Parameters) -> None:
        """Top-K alone."""
        require(
            p.picks == 0 and p.buckets == 0,
            "picks do not belong to the construction permutation",
            "leave them out, or choose another construction",
        )
        require(
            p.whole == 0,
            "the construction permutation sends no coordinates whole",
            "select some, or choose another construction",
        )

    def letters(self, p: Parameters) -> dict[str, int]:  # noqa: ARG002
        """It has none of its own."""
        return {}
