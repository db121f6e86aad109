"""What a user sends, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topk_secagg.errors import amount

if TYPE_CHECKING:
    from topk_secagg.protocol.parameters import Parameters


def sending_line(p: Parameters, *, in_series: bool = False) -> str:
    """What a user sends before its gradient and with it."""
    from topk_secagg.rounds.costs import sent

    own = sent(p, in_series=in_series)
    return f"a user sends {amount(own.before)} before and {amount(own.online)} with its gradient"
