"""How long work reports what is done of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Progress = Callable[[float], None]  # called with the share that is done, 0 to 1


class UserProgress(Protocol):
    """How the phases of several users report."""

    def __call__(self, phase: str, user: int, count: int, done: float | None = None, /) -> None:
        """A user, one of `count`, has finished a phase; or, with user 0, it begins, or the share
        `done` of it is done."""


def unheard(_: float) -> None:
    """What is called where nobody listens."""


def unheard_of_users(*_: object) -> None:
    """The same for phases of several users."""
