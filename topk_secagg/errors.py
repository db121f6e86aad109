"""What can go wrong, by who is at fault; each kind carries the exit code of the command line."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any, Self


class Advice(Enum):
    """What a hint is about, for callers that can say it in their own words.

    The library knows no command-line options; the command line says these with its own. Behind
    each stands what it comes with.
    """

    AGAIN = auto()
    CHOOSE_CLIP = auto()
    CLIP = auto()
    CLIPS = auto()  # clip: float
    CLIP_TWICE = auto()
    CONTEXT = auto()
    DEALING = auto()  # dealing: str
    DENSITY = auto()
    DISK = auto()
    ENTRY = auto()
    FOLDER = auto()
    FROM = auto()
    GENERATION = auto()
    GIVE_UP = auto()
    LIKE = auto()
    MAX_DISK = auto()
    MAX_MEMORY = auto()
    NAMES = auto()
    NO_ENTRY = auto()
    OF_OTHER_ROUND = auto()  # option: str
    OF_OTHER_USER = auto()  # user: int
    OWN_SECRETS = auto()
    PIN_SESSION = auto()
    PREFIX = auto()  # prefix: str
    RECIPIENTS = auto()
    SEALED = auto()  # path: Path
    SECRETS = auto()
    SECRETS_FOLDER = auto()
    SESSION_PREFIX = auto()  # prefix: str
    SKIP_GENERATIONS = auto()
    STRICT = auto()
    TOO_FEW_USERS = auto()
    TOP_K = auto()
    WEIGHT = auto()
    WHOLE = auto()
    WITHOUT_THEM = auto()


Hint = tuple[str, Advice | None]  # what to do in words, and what that is about


class SecAggError(Exception):
    """An error that says what is wrong in one line, and what to do in a hint.

    `message` is a sentence, or what follows its `subject` in it, a file mostly. `contexts` are what
    that happened in, from the outermost. `advice` is what the hint is about, with `values`.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        hint: str = "",
        advice: Advice | None = None,
        *,
        subject: object = None,
        **values: object,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.advice = advice
        self.subject = subject
        self.contexts: tuple[object, ...] = ()
        self.values = values

    def __str__(self) -> str:
        return self.said_of(None)

    def said_of(self, known: object) -> str:
        """What is wrong, for a reader who knows that it is about this."""
        around = [str(context) for context in self.contexts if str(context) != str(known)]
        is_known = self.subject is None or str(self.subject) == str(known)
        sentence = self.message if is_known else f"{self.subject} {self.message}"
        return ": ".join([*around, sentence])

    def within(self, context: object) -> Self:
        """This error, which is now said to be about something around what it was about."""
        self.contexts = (context, *self.contexts)
        return self

    def but(self, **changes: Any) -> Self:
        """The same error with another hint, advice or values."""
        other = copy.copy(self)
        vars(other).update(changes)
        return other


class UsageError(SecAggError):
    """The call itself makes no sense: inadmissible parameters, a user that does not exist."""

    exit_code = 2


class BadData(SecAggError):
    """A file is damaged, foreign, of another session or user, or holds a value out of range."""

    exit_code = 65


class OfOtherSession(BadData):
    """A file belongs to another session."""


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
def about(context: object) -> Iterator[None]:
    """Let errors say what they are about."""
    try:
        yield
    except SecAggError as error:
        error.within(context)
        raise


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
