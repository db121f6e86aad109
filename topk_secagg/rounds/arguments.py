"""Checks of what Python callers pass; what comes from the command line has been parsed already."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping, Sequence
from numbers import Real
from os import PathLike, fsdecode
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..gradients.tensors import is_path
from ..storage.atomic import open_regular
from ..storage.workspace import Workspace

AnyPath = str | PathLike[str]  # a file or a folder
AnyRound = AnyPath | Workspace  # the folder of a round

SELECTIONS = ("top", "random")
CIPHER = "cipher"  # a source of randomness: AES-256-CTR keyed by the operating system
OS = "os"  # another: every byte is from the operating system
SOURCES = (CIPHER, OS)

_READ_AT_ONCE = 1 << 20


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


def path_of(name: str, given: Any) -> Path:
    """A string or a path as a Path."""
    if not is_path(given):
        raise UsageError(f"{name} is {_shown(given)}, which is not a path", "give a path")
    text = fsdecode(given)
    if not text:  # Path would make the current folder of it
        raise UsageError(f"{name} is an empty path", "give a path, or . for the current folder")
    return Path(text)


def optional_path(name: str, given: Any) -> Path | None:
    """The same, or None where nothing is given."""
    return None if given is None else path_of(name, given)


def workspace(given: Any, secrets: Any = None) -> Workspace:
    """The round that a string, a path or a Workspace names, with its secrets in another folder if
    one is given."""
    if isinstance(given, Workspace):
        if secrets is None:
            return given
        return Workspace(given.root, path_of("secrets", secrets))
    return Workspace(path_of("round", given), optional_path("secrets", secrets))


def context_digest(given: Any) -> str | None:
    """The digest of the file that users train from; None where none is given."""
    if given is None:
        return None
    path = path_of("context", given)
    hashed = hashlib.sha256()
    with open_regular(path, "check the path") as stream:
        while part := stream.read(_READ_AT_ONCE):
            hashed.update(part)
    return hashed.hexdigest()


def patterns(name: str, given: Any) -> tuple[str, ...]:
    """One pattern, or several, as a tuple."""
    try:
        listed = (given,) if isinstance(given, str) else tuple(given or ())
    except (TypeError, ValueError):
        listed = (given,)
    for pattern in listed:
        if not isinstance(pattern, str):
            raise UsageError(f"{name} has {_shown(pattern)}, which is not a pattern", "give names")
    return listed


def by_user(name: str, given: Any) -> dict[int, Any]:
    """A list (users 1, 2, ...) or a mapping of users as a dictionary."""
    if isinstance(given, Mapping):
        values = {whole_number(f"a user in {name}", user): value for user, value in given.items()}
        if len(values) < len(given):
            raise UsageError(f"a user appears twice in {name}", "give one value for each user")
        return values
    try:
        if is_path(given):
            raise TypeError
        return dict(enumerate(given, start=1))
    except TypeError:
        raise UsageError(
            f"{name}: {_shown(given)} is neither a list nor a mapping of users",
            "give a list, for users 1 to N in order, or a mapping {user: value}",
        ) from None


def user_list(name: str, given: Any) -> list[int]:
    """A collection of users as a sorted list."""
    try:
        if is_path(given):
            raise TypeError
        return sorted({whole_number(f"a user in {name}", user) for user in given})
    except TypeError:
        raise UsageError(
            f"{name} is {_shown(given)}, which is not a list of users",
            "give a list, such as [4, 5]",
        ) from None


def check_choice(what: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse a word that is none of these."""
    if not isinstance(value, str) or value not in choices:
        raise UsageError(f"unknown {what} {value!r:.60}", f"one of {', '.join(choices)}")


def _shown(value: Any) -> str:
    """A value in a message: its type alone, since values can be large."""
    return (
        f"{value!r:.60}" if isinstance(value, str | bytes | int | float) else type(value).__name__
    )
