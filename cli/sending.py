"""What a user sends with each choice, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topk_secagg.errors import amount

if TYPE_CHECKING:
    from topk_secagg.protocol.parameters import Parameters

_OPTIONS = {"sketch": "total", "moments": "online"}  # what --minimise says for a construction


def sending_line(p: Parameters, *, in_series: bool = False) -> str:
    """What a user sends before its gradient and with it, and what the other choice would send."""
    from topk_secagg.rounds.costs import other_choice, sent

    own = sent(p, in_series=in_series)
    line = f"a user sends {amount(own.before)} before and {amount(own.online)} with its gradient"
    other = other_choice(p)
    if other is None:
        return line
    return f"{line}; {_choice_words(other)}"


def _choice_words(p: Parameters) -> str:
    """What a user would send with a choice of --minimise."""
    from topk_secagg.rounds.costs import sent

    theirs = sent(p)
    return (
        f"with --minimise {_OPTIONS[p.construction]} ({p.construction}) {amount(theirs.before)} "
        f"before and {amount(theirs.online)} with its gradient"
    )


def minimise_line(p: Parameters) -> str:
    """What a user would send with each choice of --minimise."""
    from topk_secagg.rounds.costs import choice_of

    choices = [choice_of(p, construction) for construction in _OPTIONS]
    words = "; ".join(_choice_words(choice) for choice in choices if choice is not None)
    return f"a user sends {words}" if words else ""
