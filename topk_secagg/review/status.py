"""`status`: who has done what in a round, what is missing, and what a user should do next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import InputMissing, SecAggError
from ..protocol.elimination import answer_shape
from ..storage import masked as masked_file
from ..storage import survivors as survivors_file
from ..storage.answer import opened_answer
from ..storage.ledger import Ledger
from ..storage.share import is_there
from ..storage.survivors import Survivors
from ..storage.workspace import Workspace


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
    """The next step of a user, or of the round; what it waits for, and whether it could go on without that."""

    step: str  # the name of a command, or nothing when all is done
    user: int | None = None
    waits_for: str = ""
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
    survivors, problems = None, []
    try:
        survivors = survivors_file.read(space)
    except InputMissing:
        pass
    except SecAggError as error:
        problems.append(error.message)
    confirmed = survivors_file.confirmed_by(space, survivors.digest, space.users()) if survivors else []
    users = [_user(space, n, survivors, own=n == user) for n in space.users()]
    for found in users:
        found.confirmed = found.user in confirmed
    following = _next_of_user(space, user, users, survivors) if user else _next_of_round(space, users, survivors)
    return Status(
        users,
        survivors,
        following,
        _send(space, user, users) if user else [],
        foreign_secrets(space, user) if user else [],
        problems,
    )


def _user(space: Workspace, n: int, survivors: Survivors | None, *, own: bool) -> UserStatus:
    found = UserStatus(n)
    if own or space.ledger_path(n).exists():
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


def _next_of_round(space: Workspace, users: list[UserStatus], survivors: Survivors | None) -> Next:
    """The first step that some user has not done."""
    s = space.session
    missing = [n for n in space.users() if any(n not in other.holds for other in users if other.holds is not None)]
    if (missing or all(u.holds is None for u in users)) and survivors is None:
        return Next("offline", waits_for=f"shares of user {_list(missing or space.users())}")
    if survivors is None:
        return _next_freeze(space, users, s.freezer)
    if s.confirm and sum(u.confirmed for u in users) < s.confirmations:
        return Next("confirm", waits_for=f"confirmations of user {_list(u.user for u in users if not u.confirmed)}")
    return _next_decode(space, users, survivors)


def _next_of_user(space: Workspace, user: int, users: list[UserStatus], survivors: Survivors | None) -> Next:
    """The next step of one user, as far as its own ledger shows what it has done."""
    own, s = users[user - 1], space.session
    try:
        ledger = Ledger.read(space.ledger_path(user), s.id, user)
    except SecAggError:
        ledger = None
    if ledger is None or ledger.shared is None:
        return Next("offline", user)
    if survivors and not own.survivor:
        return Next("forget" if not ledger.forgotten else "", user)
    if ledger.masked is None:
        missing = _list(m for m in space.users() if m not in (own.holds or []))
        return Next("mask", user, f"shares of user {missing} for user {user}" if missing else "")
    if survivors is None:
        if user == s.freezer or s.confirm:
            return _next_freeze(space, users, user)
        return Next("eliminate", user, f"survivors.json of user {s.freezer}", possible=False)
    if s.confirm and ledger.confirmed is None:
        return Next("confirm", user)
    if ledger.answered is None or own.answered != "yes":
        return Next("eliminate", user, _lacking(space, user, users, survivors), possible=False)
    return _next_decode(space, users, survivors)


def _next_freeze(space: Workspace, users: list[UserStatus], user: int) -> Next:
    missing = [u.user for u in users if u.masked != "yes"]
    possible = len(users) - len(missing) >= space.session.parameters.survivors
    return Next("freeze", user, f"X of user {_list(missing)}" if missing else "", possible=possible)


def _lacking(space: Workspace, user: int, users: list[UserStatus], survivors: Survivors) -> str:
    """What a user still needs to answer."""
    own, s = users[user - 1], space.session
    inputs = _list(n for n in survivors.users if users[n - 1].masked != "yes")
    shares = _list(n for n in survivors.users if n not in (own.holds or []))
    parts = [f"X of user {inputs}"] if inputs else []
    parts += [f"shares of user {shares} for user {user}"] if shares else []
    if s.confirm and sum(u.confirmed for u in users) < s.confirmations:
        parts.append(f"confirmations of user {_list(u.user for u in users if not u.confirmed)}")
    return ", ".join(parts)


def _next_decode(space: Workspace, users: list[UserStatus], survivors: Survivors) -> Next:
    if space.aggregate_path.exists():
        return Next("")
    p, count = space.session.parameters, len(survivors.digests)
    for fallback in (False, True):
        shape = answer_shape(p, count, fallback=fallback)
        if sum(u.answered == "yes" and u.blocks == shape.blocks for u in users) >= shape.quorum:
            return Next("decode")
    silent = _list(n for n in survivors.users if users[n - 1].answered != "yes")
    return Next("decode", waits_for=f"answers of user {silent}", possible=False)


def _send(space: Workspace, user: int, users: list[UserStatus]) -> list[tuple[Path, str]]:
    """The files of a user that others need, and to whom each goes."""
    if space.aggregate_path.exists():
        return []
    files = [(space.share_path(m, user), f"user {m} only") for m in space.users() if m != user]
    everybody = [space.masked_path(user), space.confirmation_path(user), space.answer_path(user)]
    if users[user - 1].survivor is not None and user == space.session.freezer:
        everybody.append(space.survivors_path)
    return [(path, whom) for path, whom in [*files, *((p, "everybody") for p in everybody)] if path.exists()]


def foreign_secrets(space: Workspace, user: int | None = None) -> list[Path]:
    """Secrets of other users in the round's folder, which should never have come here.

    Where those of all users are, one person runs the whole round; a single one is that of the user who asks.
    """
    found = {n: space.root / "secrets" / f"user-{n:02}.h5" for n in space.users()}
    there = [n for n, path in found.items() if path.exists()]
    if len(there) == len(found) or (user is None and len(there) < 2):
        return []
    return [found[n] for n in there if n != user]


def _list(users: Iterable[int]) -> str:
    return ", ".join(map(str, users))
