"""Checks of what Python callers pass; what comes from the command line has been parsed already."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from numbers import Real
from os import PathLike
from typing import Any

from ..errors import UsageError


def whole_number(name: str, value: Any) -> int:
    """An integer of Python or numpy, as an int."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise UsageError(
            f"{name} is {_shown(value)}, which is not an integer", "give an integer"
        ) from None


def real_number(name: str, value: Any) -> float:
    """A number of Python or numpy, as a float; it may be infinite, or no number at all."""
    try:
        number = value.item() if hasattr(value, "item") else value  # of numpy and torch
        if isinstance(number, bool) or not isinstance(number, Real):
            raise TypeError
        return float(number)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise UsageError(
            f"{name} is {_shown(value)}, which is not a number", "give a number"
        ) from None


def is_path(value: Any) -> bool:
    """Whether it names a file instead of holding its content."""
    return isinstance(value, str | bytes | PathLike)


def by_user(name: str, given: Any) -> dict[int, Any]:
    """A list (users 1, 2, ...) or a mapping of users as a dictionary."""
    if isinstance(given, Mapping):
        found = {whole_number(f"a user in {name}", user): value for user, value in given.items()}
        if len(found) < len(given):
            raise UsageError(f"a user appears twice in {name}", "give one value for each user")
        return found
    try:
        if is_path(given):
            raise TypeError
        return dict(enumerate(given, start=1))
    except TypeError:
        raise UsageError(
            f"{name}: {_shown(given)} is neither a list nor a mapping of users",
            "give a list, for users 1 to N in order, or a mapping {user: value}",
        ) from None


def some_users(name: str, given: Any, users: Iterable[int]) -> list[int]:
    """A collection of users, each of whom must be one of these."""
    try:
        if is_path(given):
            raise TypeError
        found = sorted({whole_number(f"a user in {name}", user) for user in given})
    except TypeError:
        raise UsageError(
            f"{name} is {_shown(given)}, which is not a list of users",
            "give a list, such as [4, 5]",
        ) from None
    known = list(users)
    for user in found:
        if user not in known:
            raise UsageError(
                f"{name} has user {user}, whom this round does not have",
                f"users are 1 to {len(known)}",
            )
    return found


def _shown(value: Any) -> str:
    """A value in a message: its type alone, since values can be large."""
    return (
        f"{value!r:.60}" if isinstance(value, str | bytes | int | float) else type(value).__name__
    )
