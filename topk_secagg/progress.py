"""How long work reports what is done of it."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float], None]  # called with the share that is done, 0 to 1


def unheard(_: float) -> None:
    """What is called where nobody listens."""
