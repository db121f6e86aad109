"""`status`: who has done what in a round, what is missing, and what a user should do next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..brief import Brief
from ..errors import InputMissing, SecAggError
from ..protocol.constructions import construction
from ..steps.access import PLAIN, Access, check_pins
from ..storage import masked as masked_file
from ..storage import survivors as survivors_file
from ..storage.answer import opened_answer
from ..storage.ledger import Ledger
from ..storage.share import is_there
from ..storage.survivors import Survivors
from ..storage.workspace import Workspace


@dataclass(frozen=True)
class _Missing:
    """Files that a step needs, and whose they are."""

    files: tuple[Path, ...] = ()
    users: tuple[int, ...] = ()


_Lack = dict[str, _Missing]  # by what they are


@dataclass(repr=False)
class UserStatus(Brief):
    """The files of one user: whose shares it holds (None if unknown), and its X, confirmation and
    Y.

    X and Y are "yes", "", or what is wrong.
    """

    user: int
    holds: list[int] | None = None
    masked: str = ""
    survivor: bool | None = None
    confirmed: bool = False
    answered: str = ""
    blocks: int | None = None


@dataclass(frozen=True, repr=False)
class Next(Brief):
    """The next step of a user or of the round.

    It waits for `waits_for`, in words, and for the files `missing`; `possible` says whether it can
    run without them.
    """

    step: str  # the name of a command, or nothing when all is done
    user: int | None = None
    waits_for: str = ""
    missing: tuple[Path, ...] = ()
    possible: bool = True
    users: tuple[int, ...] = ()  # whose files are missing

    @property
    def ready(self) -> bool:
        """Whether everything that the step needs is there."""
        return not self.waits_for


@dataclass(frozen=True, repr=False)
class Status(Brief):
    """A round as its files show it."""

    users: list[UserStatus]
    survivors: Survivors | None
    next: Next
    send: list[tuple[Path, str]]
    foreign_secrets: list[Path]
    problems: list[str]


def status(space: Workspace, user: int | None = None, *, access: Access = PLAIN) -> Status:
    """Who has done what in a round, what is missing, and what to do next.

    Arguments:
    space: the round (`Workspace`).
    user: from the point of view of this user.
    access: the session and the keys that are expected (`Access`).

    Returns a Status.
    """
    check_pins(space, access)
    if user is not None:
        space.check_user(user)
    problems: list[str] = []
    survivors = None
    ledger = None
    with _collecting(problems):
        survivors = survivors_file.read(space)
    with _collecting(problems):
        ledger = Ledger.read(space.ledger_path(user), space.session.id, user) if user else None
    users = [_user(space, n, survivors, own=n == user) for n in space.users()]
    look = _Look(space, users, survivors)
    following = look.next_of_user(user, ledger) if user else look.next_of_round()
    send = _send(space, user, survivors) if user else []
    return Status(users, survivors, following, send, space.foreign_secrets(user), problems)


@contextmanager
def _collecting(problems: list[str]) -> Iterator[None]:
    """Record what is wrong with a file; a missing file is not a problem."""
    try:
        yield
    except SecAggError as error:
        problems += [] if isinstance(error, InputMissing) else [error.message]


def _user(space: Workspace, n: int, survivors: Survivors | None, *, own: bool) -> UserStatus:
    """The status of one user."""
    found = UserStatus(n)
    if own or space.runs_here(n):
        found.holds = [m for m in space.users() if is_there(space, n, m)]
    if survivors:
        found.survivor = n in survivors.digests
        found.confirmed = bool(survivors_file.confirmed_by(space, survivors.digest, [n]))
    if space.masked_path(n).exists():
        with _noting(found, "masked"):
            x = masked_file.read(space.session, space.masked_path(n), n)
            found.holds = sorted(x.holds) if found.holds is None else found.holds
            if survivors and survivors.digests.get(n, x.digest) != x.digest:
                raise SecAggError("not the one that was frozen")
    if space.answer_path(n).exists():
        with _noting(found, "answered"):
            if survivors is None:
                raise SecAggError("for another survivor set")
            with opened_answer(space, n, survivors) as answer:
                found.blocks = answer.shape.blocks
    return found


@contextmanager
def _noting(found: UserStatus, what: str) -> Iterator[None]:
    """Record "yes" for a sound file, or what is wrong with it."""
    try:
        yield
        setattr(found, what, "yes")
    except SecAggError as error:
        setattr(found, what, error.message.partition(": ")[2] or error.message)


def _lack(what: str, users: Iterable[int], path: Callable[[int], Path], after: str = "") -> _Lack:
    """The missing files of these users."""
    files = {n: path(n) for n in users}
    if not files:
        return {}
    named = f"{what} of user {', '.join(map(str, files))}{after}"
    return {named: _Missing(tuple(files.values()), tuple(files))}


def _waiting(step: str, user: int | None, lack: _Lack, *, possible: bool = False) -> Next:
    """The step that waits for these files."""
    return Next(
        step=step,
        user=user,
        waits_for=", ".join(lack),
        missing=tuple(path for missing in lack.values() for path in missing.files),
        possible=possible or not lack,
        users=tuple(dict.fromkeys(n for missing in lack.values() for n in missing.users)),
    )


@dataclass(frozen=True)
class _Look:
    """Finds the next step from the status of all users."""

    space: Workspace
    users: list[UserStatus]
    survivors: Survivors | None

    def next_of_round(self) -> Next:
        """The first step that some user has not done."""
        if self.survivors is None:
            lack = self._all_shares()
            freeze = self._freeze(self.space.session.freezer)
            return (
                freeze
                if freeze.possible or not lack
                else _waiting("offline", None, lack, possible=True)
            )
        lack = self._confirmations()
        return (
            _waiting("confirm", None, lack, possible=True) if lack else self._decode(self.survivors)
        )

    def next_of_user(self, user: int, ledger: Ledger | None) -> Next:
        """The next step of one user, as far as its own ledger shows what it has done."""
        own = self.users[user - 1]
        s = self.space.session
        if ledger is None or ledger.shared is None:
            return Next("offline", user) if self.survivors is None else Next("", user)
        if self.survivors is None:
            if ledger.masked is None:
                # else nobody could answer for U users
                enough = len(own.holds or []) >= s.parameters.survivors
                return _waiting(
                    "mask", user, self._shares(user, self.space.users()), possible=enough
                )
            if user == s.freezer:
                return self._freeze(user)
            survivors = _Missing((self.space.survivors_path,), (s.freezer,))
            frozen = {f"survivors.json of user {s.freezer}": survivors}
            return _waiting("confirm" if s.confirm else "eliminate", user, frozen)
        if s.confirm and ledger.confirmed is None:  # those that dropped out count too
            return _waiting("confirm", user, self._inputs(self.survivors.users))
        if not own.survivor:  # as one user says, until enough have confirmed it
            if ledger.forgotten:
                return Next("", user)
            return _waiting("forget", user, self._confirmations())
        if not ledger.forgotten and (ledger.answered is None or own.answered != "yes"):
            users = self.survivors.users
            return _waiting(
                "eliminate",
                user,
                self._inputs(users) | self._shares(user, users) | self._confirmations(),
            )
        following = self._decode(self.survivors)
        return following if following.step or ledger.forgotten else Next("forget", user)

    def _shares(self, user: int, senders: Iterable[int]) -> _Lack:
        missing = set(senders) - set(self.users[user - 1].holds or [])
        return _lack(
            "shares", sorted(missing), lambda m: self.space.share_path(user, m), f" for user {user}"
        )

    def _all_shares(self) -> _Lack:
        """The shares that some user lacks, for users whose shares are visible here."""
        lacking = {
            u.user: set(self.space.users()) - set(u.holds)
            for u in self.users
            if u.holds is not None
        }
        senders = sorted(set().union(*lacking.values())) if lacking else self.space.users()
        if not senders:
            return {}
        files = tuple(
            self.space.share_path(n, m) for n, missing in lacking.items() for m in sorted(missing)
        )
        named = f"shares of user {', '.join(map(str, senders))}"
        return {named: _Missing(files, tuple(senders))}

    def _inputs(self, users: Iterable[int]) -> _Lack:
        return _lack(
            "X", (n for n in users if self.users[n - 1].masked != "yes"), self.space.masked_path
        )

    def _confirmations(self) -> _Lack:
        """The missing confirmations, if there are too few."""
        enough = sum(u.confirmed for u in self.users) >= self.space.session.confirmations
        missing = (u.user for u in self.users if not u.confirmed and not enough)
        return _lack("confirmations", missing, self.space.confirmation_path)

    def _freeze(self, user: int) -> Next:
        enough = (
            sum(u.masked == "yes" for u in self.users) >= self.space.session.parameters.survivors
        )
        return _waiting("freeze", user, self._inputs(self.space.users()), possible=enough)

    def _decode(self, survivors: Survivors) -> Next:
        if self.space.aggregate_path.exists():
            return Next("")
        c = construction(self.space.session.parameters)
        if c.decodable(len(survivors.digests), {u.user: u.blocks for u in self.users}):
            return Next("decode")
        silent = (n for n in survivors.users if self.users[n - 1].answered != "yes")
        lack = _lack("answers", silent, self.space.answer_path)
        return _waiting("decode", None, lack or {"enough answers of one kind": _Missing()})


def _send(space: Workspace, user: int, survivors: Survivors | None) -> list[tuple[Path, str]]:
    """The files that a user should send, and the receiver of each."""
    if space.aggregate_path.exists():
        return []
    files = [(space.share_path(m, user), f"user {m} only") for m in space.users() if m != user]
    everybody = [space.masked_path(user), space.confirmation_path(user), space.answer_path(user)]
    if survivors and user == survivors.freezer:
        everybody.append(space.survivors_path)
    files += [(path, "everybody") for path in everybody]
    return [(path, whom) for path, whom in files if path.exists()]
