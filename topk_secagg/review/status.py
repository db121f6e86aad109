"""`status`: who has done what in a round, what is missing, and what a user should do next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ..errors import InputMissing, SecAggError
from ..protocol.elimination import answer_shape
from ..storage import masked as masked_file
from ..storage import survivors as survivors_file
from ..storage.answer import opened_answer
from ..storage.ledger import Ledger
from ..storage.share import is_there
from ..storage.survivors import Survivors
from ..storage.workspace import Workspace

Found = TypeVar("Found")


@dataclass
class UserStatus:
    """The files of one user: whose shares it holds (None: not known here), and its X, confirmation and Y.

    X and Y are "yes", "", or what is wrong.
    """

    user: int
    holds: list[int] | None = None
    masked: str = ""
    survivor: bool | None = None
    confirmed: bool = False
    answered: str = ""
    blocks: int | None = None


@dataclass(frozen=True)
class Next:
    """The next step of a user, or of the round; what it waits for, in words and as files, and whether it could go on
    without that."""

    step: str  # the name of a command, or nothing when all is done
    user: int | None = None
    waits_for: str = ""
    missing: tuple[Path, ...] = ()
    possible: bool = True

    @property
    def ready(self) -> bool:
        """Whether everything that the step needs is there."""
        return not self.waits_for


@dataclass(frozen=True)
class Status:
    """A round as its files show it."""

    users: list[UserStatus]
    survivors: Survivors | None
    next: Next
    send: list[tuple[Path, str]] = field(default_factory=list)
    foreign_secrets: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def status(space: Workspace, user: int | None = None) -> Status:
    """What the files of a round say, from the point of view of a user if one is given."""
    if user is not None:
        space.check_user(user)
    problems: list[str] = []
    survivors = _read(lambda: survivors_file.read(space), problems)
    ledger = _read(lambda: Ledger.read(space.ledger_path(user), space.session.id, user), problems) if user else None
    confirmed = survivors_file.confirmed_by(space, survivors.digest, space.users()) if survivors else []
    users = [_user(space, n, survivors, own=n == user) for n in space.users()]
    for found in users:
        found.confirmed = found.user in confirmed
    look = _Look(space, users, survivors)
    return Status(
        users,
        survivors,
        look.next_of_user(user, ledger) if user else look.next_of_round(),
        _send(space, user, survivors) if user else [],
        space.foreign_secrets(user),
        problems,
    )


def _read(look: Callable[[], Found], problems: list[str]) -> Found | None:
    """A file of the round; None if it is not there, or if it is not sound, which is a problem."""
    try:
        return look()
    except InputMissing:
        return None
    except SecAggError as error:
        problems.append(error.message)
        return None


def _user(space: Workspace, n: int, survivors: Survivors | None, *, own: bool) -> UserStatus:
    found = UserStatus(n)
    if own or space.runs_here(n):
        found.holds = [m for m in space.users() if is_there(space, n, m)]
    found.survivor = n in survivors.digests if survivors else None
    if space.masked_path(n).exists():
        found.masked = _sound(lambda: _masked(space, found, survivors))
    if space.answer_path(n).exists():
        found.answered = (
            "for another survivor set" if survivors is None else _sound(lambda: _answered(space, found, survivors))
        )
    return found


def _sound(look: Callable[[], None]) -> str:
    """Yes, or what is wrong."""
    try:
        look()
    except SecAggError as error:
        return error.message.partition(": ")[2] or error.message
    return "yes"


def _masked(space: Workspace, found: UserStatus, survivors: Survivors | None) -> None:
    n = found.user
    x = masked_file.read(space.session, space.masked_path(n), n)
    if found.holds is None:
        found.holds = sorted(x.holds)
    if survivors and n in survivors.digests and survivors.digests[n] != x.digest:
        raise SecAggError("not the one that was frozen")


def _answered(space: Workspace, found: UserStatus, survivors: Survivors) -> None:
    with opened_answer(space, found.user, survivors) as answer:
        found.blocks = answer.blocks


@dataclass(frozen=True)
class _Lack:
    """What a step needs and has not got: in words, and which files these are."""

    words: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def add(self, what: str, users: Iterable[int], path: Callable[[int], Path], after: str = "") -> _Lack:
        """Files of these users, if there are any such users."""
        users = list(users)
        if users:
            self.words.append(f"{what} of user {_list(users)}{after}")
            self.files.extend(map(path, users))
        return self

    def before(self, step: str, user: int | None = None, *, possible: bool = False) -> Next:
        """The step that waits for all this."""
        return Next(step, user, ", ".join(self.words), tuple(self.files), possible=possible or not self.words)


@dataclass(frozen=True)
class _Look:
    """What the files say, and what follows from it."""

    space: Workspace
    users: list[UserStatus]
    survivors: Survivors | None

    def next_of_round(self) -> Next:
        """The first step that some user has not done."""
        if self.survivors is None:
            lack = self._all_shares()
            if lack.words and not self._enough_masked():
                return lack.before("offline", possible=True)
            return self._freeze(self.space.session.freezer)
        if self._unconfirmed():
            return self._confirmations(_Lack()).before("confirm", possible=True)
        return self._decode()

    def next_of_user(self, user: int, ledger: Ledger | None) -> Next:
        """The next step of one user, as far as its own ledger shows what it has done."""
        own, s = self.users[user - 1], self.space.session
        if ledger is None or ledger.shared is None:
            return Next("offline", user) if self.survivors is None else Next("", user)
        if self.survivors is None:
            if ledger.masked is None:
                enough = len(own.holds or []) >= s.parameters.survivors  # else nobody could answer for U users
                return self._shares(_Lack(), user, self.space.users()).before("mask", user, possible=enough)
            if user == s.freezer:
                return self._freeze(user)
            survivors = _Lack([f"survivors.json of user {s.freezer}"], [self.space.survivors_path])
            return survivors.before("confirm" if s.confirm else "eliminate", user)
        if s.confirm and ledger.confirmed is None:  # those that dropped out count too
            return Next("confirm", user)
        if not own.survivor:
            return Next("" if ledger.forgotten else "forget", user)
        if not ledger.forgotten and (ledger.answered is None or own.answered != "yes"):
            return self._eliminate(user)
        following = self._decode()
        return following if following.step or ledger.forgotten else Next("forget", user)

    def _shares(self, lack: _Lack, user: int, senders: Iterable[int]) -> _Lack:
        held = self.users[user - 1].holds or []
        missing = (m for m in senders if m not in held)
        return lack.add("shares", missing, lambda m: self.space.share_path(user, m), f" for user {user}")

    def _all_shares(self) -> _Lack:
        """The shares that some user lacks, of those users whose shares can be seen from here."""
        lacking = {u.user: set(self.space.users()) - set(u.holds) for u in self.users if u.holds is not None}
        senders = sorted(set().union(*lacking.values())) if lacking else list(self.space.users())
        lack = _Lack([f"shares of user {_list(senders)}"] if senders else [])
        lack.files.extend(self.space.share_path(n, m) for n, missing in lacking.items() for m in sorted(missing))
        return lack

    def _inputs(self, lack: _Lack, users: Iterable[int]) -> _Lack:
        return lack.add("X", (n for n in users if self.users[n - 1].masked != "yes"), self.space.masked_path)

    def _unconfirmed(self) -> list[int]:
        """Who has not confirmed, while too few have."""
        there = sum(u.confirmed for u in self.users)
        return [u.user for u in self.users if not u.confirmed] if there < self.space.session.confirmations else []

    def _confirmations(self, lack: _Lack) -> _Lack:
        return lack.add("confirmations", self._unconfirmed(), self.space.confirmation_path)

    def _enough_masked(self) -> bool:
        return sum(u.masked == "yes" for u in self.users) >= self.space.session.parameters.survivors

    def _freeze(self, user: int) -> Next:
        return self._inputs(_Lack(), self.space.users()).before("freeze", user, possible=self._enough_masked())

    def _eliminate(self, user: int) -> Next:
        assert self.survivors is not None
        lack = self._inputs(_Lack(), self.survivors.users)
        return self._confirmations(self._shares(lack, user, self.survivors.users)).before("eliminate", user)

    def _decode(self) -> Next:
        if self.space.aggregate_path.exists():
            return Next("")
        assert self.survivors is not None
        p, count = self.space.session.parameters, len(self.survivors.digests)
        for fallback in (False, True):
            shape = answer_shape(p, count, fallback=fallback)
            if sum(u.answered == "yes" and u.blocks == shape.blocks for u in self.users) >= shape.quorum:
                return Next("decode")
        silent = (n for n in self.survivors.users if self.users[n - 1].answered != "yes")
        lack = _Lack().add("answers", silent, self.space.answer_path)
        return lack.before("decode") if lack.words else Next("decode", waits_for="enough answers of one kind")


def _send(space: Workspace, user: int, survivors: Survivors | None) -> list[tuple[Path, str]]:
    """The files of a user that others need, and to whom each goes."""
    if space.aggregate_path.exists():
        return []
    files = [(space.share_path(m, user), f"user {m} only") for m in space.users() if m != user]
    everybody = [space.masked_path(user), space.confirmation_path(user), space.answer_path(user)]
    if survivors and user == survivors.freezer:
        everybody.append(space.survivors_path)
    return [(path, whom) for path, whom in [*files, *((p, "everybody") for p in everybody)] if path.exists()]


def _list(users: Iterable[int]) -> str:
    return ", ".join(map(str, users))
