"""What can go wrong, by who is at fault; each kind carries the exit code of the command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class SecAggError(Exception):
    """An error with one line that says what is wrong and a hint that says what to do.

    `topic` names what the hint is about, with a value after a space where there is one, for callers
    that can say it in their own words: the library knows no command-line options.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "", topic: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.topic = topic


class UsageError(SecAggError):
    """The call itself makes no sense: inadmissible parameters, a user that does not exist."""

    exit_code = 2


class BadData(SecAggError):
    """A file is damaged, foreign, of another session or user, or holds a value out of range."""

    exit_code = 65


class InputMissing(SecAggError):
    """A file that an earlier step (or another user) should have provided is not there."""

    exit_code = 66


class TooFewSurvivors(SecAggError):
    """Fewer users are left than the round needs."""

    exit_code = 69


class CannotWrite(SecAggError):
    """The output cannot be written: no room, no permission, or something is in the way."""

    exit_code = 73


class CannotLock(CannotWrite):
    """The file system has no locks, so that a second process could use the same secret."""


class Busy(SecAggError):
    """Another process is running this step."""

    exit_code = 75


class Refused(SecAggError):
    """Doing it would give a secret away: spent material, a second survivor set."""

    exit_code = 77


@contextmanager
def about(subject: object) -> Iterator[None]:
    """Let errors say what they are about."""
    try:
        yield
    except SecAggError as error:
        raise type(error)(f"{subject}: {error.message}", error.hint, error.topic) from error


def counted(count: int, one: str, several: str = "") -> str:
    """A number and what it counts: 1 user, 2 users; with the verb, where the number decides it:
    counted(n, "user has", "users have")."""
    return f"{count} {one if count == 1 else several or one + 's'}"


def named_users(users: Iterable[int | str]) -> str:
    """Users in a message: user 3, or users 1, 2, 4."""
    numbers = list(map(str, users))
    return f"{'user' if len(numbers) == 1 else 'users'} {', '.join(numbers)}"


def no_coalition(size: int) -> str:
    """That so many users cannot do something: no user alone, or no 3 users together."""
    return "no user alone" if size == 1 else f"no {size} users together"


def amount(count: float) -> str:
    """Bytes in a message: 1234567 is 1.23 MB. Three digits, and never an exponent."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB", "TB", "PB", "EB", "ZB"):
        count /= 1000
        if count < 999.5:  # which three digits round to 1000
            return f"{count:.3g} {unit}"
    return ">999 ZB"
