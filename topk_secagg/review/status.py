"""`status`: who has done what in a round, what is missing, and what a user should do next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeVar, Unpack

from ..brief import Brief
from ..errors import InputMissing, OfOtherSession, SecAggError, counted, named_users
from ..protocol.constructions import construction
from ..rounds import series, spend
from ..rounds.access import Access, TakingPart, check_pins, taking_part
from ..rounds.arguments import AnyRound
from ..rounds.freeze import answerable, beyond_saving
from ..rounds.part import part_taken
from ..storage import dealt as dealt_file
from ..storage import masked as masked_file
from ..storage import survivors as survivors_file
from ..storage.answer import check_origin, opened_answer
from ..storage.ledger import Ledger
from ..storage.share import SharesOfUser
from ..storage.survivors import Survivors
from ..storage.workspace import Workspace

_POLL_SECONDS = 0.5

# which step makes what leaves a user
_STEP_OF = {
    spend.MASKED: "mask",
    spend.SURVIVORS: "freeze",
    spend.CONFIRMED: "confirm",
    spend.ANSWERED: "eliminate",
}

_Content = TypeVar("_Content")


@dataclass(frozen=True)
class _Missing:
    """Files that a step needs, and whose they are."""

    files: tuple[Path, ...] = ()
    users: tuple[int, ...] = ()


class State(Enum):
    """How the file of a user was found."""

    ABSENT = "absent"
    SOUND = "sound"
    UNSOUND = "unsound"
    OF_OTHER_SESSION = "of another session"


@dataclass(frozen=True)
class FileStatus:
    """The state of a file; `why` says what is wrong with one that is there and not sound."""

    state: State
    why: str = ""

    @property
    def sound(self) -> bool:
        """Whether it can be used."""
        return self.state is State.SOUND


_MissingByName = dict[str, _Missing]  # the name says in words what they are


@dataclass(frozen=True, repr=False)
class UserStatus(Brief):
    """The files of one user: whose shares it holds (None if unknown), and its X, confirmation and
    Y.

    `held_by_x` are the users whose shares it held when it
    masked, as a sound X says. `erased` says that it has forgotten its shares, if its ledger is
    here.
    """

    user: int
    holds: list[int] | None
    masked: FileStatus
    survivor: bool | None
    confirmed: bool
    answered: FileStatus
    held_by_x: list[int] | None = field(default=None, repr=False)
    erased: bool = field(default=False, repr=False)


@dataclass(frozen=True, repr=False)
class Next(Brief):
    """The next step of a user or of the round.

    It waits for `waits_for`, in words, and for the files `missing`; `possible` says whether it can
    run without them.
    """

    step: str  # the name of a command; nothing when all is done, or nothing can be
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


def status(
    round: AnyRound,
    user: int | None = None,
    *,
    wait: float | None = None,
    waiting: Callable[[str], None] = lambda _: None,
    **access: Unpack[TakingPart],
) -> Status:
    """Who has done what in a round, what is missing, and what to do next.

    Arguments:
    round: the folder of the round.
    user: from the point of view of this user.
    wait: return when the next step can be run, or after so many seconds.
    waiting: called with what it waits for, at first and whenever that changes.
    secrets: the folder of the user's secrets and ledgers, instead of the round's own.
    session: refuse any other session than this one; at least 16 of its digits.
    series: the same of the series of the round, whose name `init` and `inspect` say.
    recipients: refuse a session that has other keys than this file.
    identity: of no consequence here; as the user's steps take it.

    Returns a Status.
    """
    space, how = taking_part(round, **access)
    end = time.monotonic() + (wait or 0)
    status = look_at(space, user, access=how)
    before = ""
    while not status.next.ready and (left := end - time.monotonic()) > 0:
        if status.next.waits_for != before:
            before = status.next.waits_for
            waiting(before)
        time.sleep(min(_POLL_SECONDS, left))
        status = look_at(space, user, access=how)
    return status


def look_at(space: Workspace, user: int | None, *, access: Access) -> Status:
    """The status as it is now."""
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
    if user and ledger is not None and not ledger.forgotten:
        with _collecting(problems):
            series.read_chain(space, user)
    problems += _lost_secret(space, user)
    problems += _lost_keys(space, user, ledger)
    wrong_session = _wrong_session(space, users)
    problems += wrong_session
    problems += _other_confirmations(space, survivors)
    decoded = False
    with _collecting(problems):
        decoded = _is_decoded(space)
    next_steps = _NextSteps(space, users, survivors, decoded=decoded)
    following = next_steps.of_user(user, ledger) if user else next_steps.of_round()
    if wrong_session:
        following = Next("", user, waits_for="the session.json of this round", possible=False)
    gave_up = ledger is not None and ledger.forgotten and ledger.answered is None
    sends = user is not None and not gave_up and not wrong_session
    send = _to_send(space, users, user=user, survivors=survivors) if sends and user else []
    return Status(
        users=users,
        survivors=survivors,
        next=following,
        send=send,
        foreign_secrets=space.foreign_secrets(user),
        problems=problems,
    )


@contextmanager
def _collecting(problems: list[str]) -> Iterator[None]:
    """Record what is wrong with a file; a missing file is not a problem."""
    try:
        yield
    except SecAggError as error:
        problems += [] if isinstance(error, InputMissing) else [str(error)]


def _is_decoded(space: Workspace) -> bool:
    """Whether there is a sum; an error if it is damaged or foreign."""
    if not space.aggregate_path.exists():
        return False
    # most rounds that somebody asks about are not decoded yet, and need not load what reads a sum
    from ..storage import aggregate as aggregate_file
    from ..storage.artifacts import opened

    with opened(space.aggregate_path, aggregate_file.KIND) as artifact:
        aggregate_file.parsed(space, artifact)
    return True


def _lost_secret(space: Workspace, user: int | None) -> list[str]:
    """That a user's ledger is elsewhere, where the round has what it dealt or sent."""
    if user is None or space.runs_here(user):
        return []
    part = part_taken(space, user)
    if not part:
        return []
    return [f"user {user} has {part} in this round, and its secret is not in {space.private}"]


def _lost_keys(space: Workspace, user: int | None, ledger: Ledger | None) -> list[str]:
    """That a user's chain is not there, without which it has no part in a later round."""
    if user is None or space.session.series is None or (ledger is not None and ledger.forgotten):
        return []
    with suppress(InputMissing):  # nothing here says where it is
        path = series.chain_path(space, user)
        if not path.exists():
            return [str(series.lost(space, user, path))]
    return []


def _wrong_session(space: Workspace, users: Iterable[UserStatus]) -> list[str]:
    """That session.json is likely not the one of this folder: no X and no Y fits it."""
    states = {file.state for u in users for file in (u.masked, u.answered)}
    if states - {State.ABSENT} != {State.OF_OTHER_SESSION}:
        return []
    return [f"no X and no Y here belongs to {space.session_path}: is it another round's?"]


def _other_confirmations(space: Workspace, survivors: Survivors | None) -> list[str]:
    """Who has confirmed another survivors.json than the one that is here."""
    if not space.session.confirm or survivors is None:
        return []
    others = survivors_file.confirmed_others(space, survivors.digest)
    return [f"{named_users(others)} confirmed another survivors.json than this one"] * bool(others)


def _user(space: Workspace, n: int, survivors: Survivors | None, *, own: bool) -> UserStatus:
    """The status of one user."""
    x, masked = _state(
        space.masked_path(n), lambda: masked_file.read(space.session, space.masked_path(n), n)
    )
    _, answered = _state(space.answer_path(n), lambda: _check_answer(space, n, survivors))
    if x and survivors and n in survivors.rows and survivors.rows[n].sha256 != x.digest:
        masked = FileStatus(State.UNSOUND, "not the one that was frozen")
    held_by_x = sorted(x.holds) if x else None
    holds = held_by_x
    erased = False
    if own or space.runs_here(n):
        with suppress(SecAggError):
            erased = Ledger.read(space.ledger_path(n), space.session.id, n).forgotten
        holds = _held(space, n)
    confirmed = survivors_file.confirmed_by(space, survivors.digest, [n]) if survivors else []
    return UserStatus(
        user=n,
        holds=holds,
        masked=masked,
        survivor=n in survivors.rows if survivors else None,
        confirmed=bool(confirmed),
        answered=answered,
        held_by_x=held_by_x,
        erased=erased,
    )


def _held(space: Workspace, n: int) -> list[int]:
    """Whose shares a user holds: those that have arrived, and with keys those that were entered
    too."""
    entered: set[int] = set()
    if space.session.family is not None:
        with suppress(SecAggError):
            entered = set(series.read_chain(space, n).lists)
    if space.session.keys_go_on:
        return sorted(entered)
    shares = SharesOfUser(space, n)
    here = (m for m in space.users() if shares.is_there(m) and _is_listed(space, m))
    return sorted(entered.union(here))


def _state(path: Path, read: Callable[[], _Content]) -> tuple[_Content | None, FileStatus]:
    """What a file holds, if it is sound, and how it was found."""
    if not path.exists():
        return None, FileStatus(State.ABSENT)
    try:
        return read(), FileStatus(State.SOUND)
    except OfOtherSession as error:
        return None, FileStatus(State.OF_OTHER_SESSION, error.said_of(path))
    except SecAggError as error:
        return None, FileStatus(State.UNSOUND, error.said_of(path))


def _is_listed(space: Workspace, dealer: int) -> bool:
    """Whether there is a sound list of a dealer's keys, where shares are dealt by keys."""
    if space.session.family is None or space.session.series is not None:
        return True
    with suppress(SecAggError):
        dealt_file.read(space, dealer)
        return True
    return False


def _check_answer(space: Workspace, n: int, survivors: Survivors | None) -> None:
    """Refuse an answer that is not sound."""
    if survivors is None:
        check_origin(space, n)
        raise InputMissing("there is no sound survivors.json that it answers")
    with opened_answer(space, n, survivors):
        return


def _missing_files(
    one: str, several: str, users: Iterable[int], path: Callable[[int], Path]
) -> _MissingByName:
    """The missing files of these users; `one` and `several` have a place for the users."""
    files = {n: path(n) for n in users}
    if not files:
        return {}
    what = one if len(files) == 1 else several
    return {what.format(named_users(files)): _Missing(tuple(files.values()), tuple(files))}


def _waiting(
    step: str, user: int | None, missing: _MissingByName, *, possible: bool = False
) -> Next:
    """The step that waits for these files."""
    files = [path for part in missing.values() for path in part.files]
    users = [n for part in missing.values() for n in part.users]
    return Next(
        step=step,
        user=user,
        waits_for=", ".join(missing),
        missing=tuple(files),
        possible=possible or not missing,
        users=tuple(dict.fromkeys(users)),
    )


@dataclass(frozen=True)
class _NextSteps:
    """Finds the next step from the status of all users."""

    space: Workspace
    users: list[UserStatus]
    survivors: Survivors | None
    decoded: bool

    def of_round(self) -> Next:
        """The first step that some user has not done."""
        if self.survivors is None:
            missing = self._all_shares()
            freeze = self._freeze(self.space.session.freezer)
            if freeze.possible or not missing:
                return freeze
            return _waiting("offline", None, missing, possible=True)
        missing = self._confirmations()
        if missing:
            return _waiting("confirm", None, missing, possible=True)
        return self._decode(self.survivors)

    def of_user(self, user: int, ledger: Ledger | None) -> Next:
        """The next step of one user, as far as its own ledger shows what it has done."""
        if ledger is None or ledger.shared is None:
            return self._unprepared(user, ledger)
        stopped = self._stopped(user)
        if stopped and not ledger.forgotten:
            return Next(stopped, user)
        if self.survivors is None:
            return self._before_freezing(user, ledger)
        return self._after_freezing(user, ledger, self.survivors)

    def _stopped(self, user: int) -> str:
        """The step that was stopped when its file was about to leave: its copy is still here."""
        paths = {self.space.staged_path(user, what): step for what, step in _STEP_OF.items()}
        return next((step for path, step in paths.items() if path.exists()), "")

    def _unprepared(self, user: int, ledger: Ledger | None) -> Next:
        """To prepare the round; also where the user seems to have done that with another folder of
        secrets, of which the step that is due says more."""
        if self.survivors is None:
            return Next("offline", user)
        own = self.users[user - 1]
        if ledger is not None or not own.survivor or own.answered.sound:
            return self._decode(self.survivors)
        is_open = self.space.session.confirm and not own.confirmed
        return Next("confirm" if is_open else "eliminate", user)

    def _before_freezing(self, user: int, ledger: Ledger) -> Next:
        """To mask, to freeze, or to wait for survivors.json."""
        s = self.space.session
        if ledger.forgotten:  # it has given the round up, and the sum is for it too
            return _waiting("decode", None, self._survivors_file())
        if ledger.masked is None:
            # else nobody could answer for U users
            enough = len(self.users[user - 1].holds or []) >= s.parameters.survivors
            return _waiting("mask", user, self._shares(user, self.space.users()), possible=enough)
        if s.freezer in (user, None):
            return self._freeze(user)
        return _waiting("confirm" if s.confirm else "eliminate", user, self._survivors_file())

    def _survivors_file(self) -> _MissingByName:
        """survivors.json, of the freezer if there is one."""
        freezer = self.space.session.freezer
        whose = "" if freezer is None else f" of user {freezer}"
        users = () if freezer is None else (freezer,)
        return {f"survivors.json{whose}": _Missing((self.space.survivors_path,), users)}

    def _after_freezing(self, user: int, ledger: Ledger, survivors: Survivors) -> Next:
        """To confirm, to answer, to decode or to forget."""
        s = self.space.session
        own = self.users[user - 1]
        # those that dropped out count too, until enough have confirmed
        needed = not ledger.forgotten and (own.survivor or self._confirmations())
        if s.confirm and ledger.confirmed is None and needed:
            return _waiting("confirm", user, self._inputs(survivors.users))
        missing = self._confirmations()
        if not own.survivor and missing:  # as one user says, until enough have confirmed it
            return _waiting("decode", None, missing)
        owes = ledger.answered is None or not own.answered.sound
        if own.survivor and not ledger.forgotten and owes:
            needs_inputs = construction(s.parameters).answer_needs_inputs
            inputs = self._inputs(survivors.users) if needs_inputs else {}
            shares = self._shares(user, survivors.users)
            return _waiting("eliminate", user, inputs | shares | missing)
        following = self._decode(survivors)
        return following if following.step or ledger.forgotten else Next("forget", user)

    def _shares(self, user: int, senders: Iterable[int]) -> _MissingByName:
        lacking = set(senders) - set(self.users[user - 1].holds or [])
        shares = _missing_files(
            one=f"share of {{}} for user {user}",
            several=f"shares of {{}} for user {user}",
            users=sorted(lacking),
            path=lambda m: self.space.share_path(user, m),
        )
        if self.space.session.keys_go_on:
            return {name: _Missing((), missing.users) for name, missing in shares.items()}
        if self.space.session.family is None:
            return shares
        unlisted = sorted(m for m in lacking if not self.space.dealt_path(m).exists())
        return shares | _missing_files(
            one="list of {}", several="lists of {}", users=unlisted, path=self.space.dealt_path
        )

    def _all_shares(self) -> _MissingByName:
        """The shares that some user lacks that has not masked, for users whose shares are visible
        here."""
        everybody = set(self.space.users())
        has_masked = self._held_by_x().keys()
        visible = {u.user: u.holds for u in self.users if u.holds is not None}
        lacking = {n: everybody - set(holds) for n, holds in visible.items() if n not in has_masked}
        senders = sorted(set().union(*lacking.values())) if visible else self.space.users()
        if not senders:
            return {}
        files = tuple(
            self.space.share_path(n, m) for n, theirs in lacking.items() for m in sorted(theirs)
        )
        return {f"shares of {named_users(senders)}": _Missing(files, tuple(senders))}

    def _inputs(self, users: Iterable[int]) -> _MissingByName:
        lacking = (n for n in users if not self.users[n - 1].masked.sound)
        return _missing_files(
            one="X of {}", several="X of {}", users=lacking, path=self.space.masked_path
        )

    def _confirmations(self) -> _MissingByName:
        """The missing confirmations, if there are too few."""
        lacking = [u.user for u in self.users if not u.confirmed]
        there = len(self.users) - len(lacking)
        needed = self.space.session.confirmations - there
        if needed <= 0:
            return {}
        what = counted(needed, "more confirmation")
        several = f"{what} of {{}}" if needed < len(lacking) else "confirmations of {}"
        return _missing_files(
            one="confirmation of {}",
            several=several,
            users=lacking,
            path=self.space.confirmation_path,
        )

    def _freeze(self, user: int | None) -> Next:
        users = self.space.users()
        need = self.space.session.parameters.survivors
        held_by_x = self._held_by_x()
        # where nobody can save the round any more, that is for freeze to say
        possible = bool(answerable(held_by_x, need)) or beyond_saving(held_by_x, users, need)
        return _waiting("freeze", user, self._inputs(users), possible=possible)

    def _held_by_x(self) -> dict[int, frozenset[int]]:
        """Whose shares each user held that has masked soundly."""
        return {u.user: frozenset(u.held_by_x) for u in self.users if u.held_by_x is not None}

    def _decode(self, survivors: Survivors) -> Next:
        if self.decoded:
            return Next("")
        p = self.space.session.parameters
        answers = [u.user for u in self.users if u.answered.sound]
        inputs = self._inputs(survivors.users) if construction(p).decoding_needs_inputs else {}
        silent = (n for n in survivors.users if not self.users[n - 1].answered.sound)
        missing = _missing_files(
            one="answer of {}",
            several="answers of {}",
            users=silent,
            path=self.space.answer_path,
        )
        # every answer more checks the others
        enough = len(answers) >= p.survivors and not inputs
        return _waiting("decode", None, inputs | missing, possible=enough)


def _to_send(
    space: Workspace, users: Sequence[UserStatus], *, user: int, survivors: Survivors | None
) -> list[tuple[Path, str]]:
    """The files that a user has made for others, and the receiver of each; but not what has
    evidently arrived, and none once there is a sum."""
    if space.aggregate_path.exists():
        return []
    others = [u for u in users if u.user != user]
    lacking = [u.user for u in others if user not in (u.held_by_x or [])]
    files = [(space.share_path(m, user), f"user {m} only") for m in lacking]
    is_known = survivors is not None and _is_known_to(others, survivors, user)
    everybody = [space.dealt_path(user)] if lacking else []
    if not (is_known and survivors and user in survivors.rows):
        everybody.append(space.masked_path(user))
    everybody += [space.confirmation_path(user), space.answer_path(user)]
    if survivors and survivors.freezer in (user, None) and not is_known:
        everybody.append(space.survivors_path)
    files += [(path, "everybody") for path in everybody]
    return [(path, whom) for path, whom in files if path.exists()]


def _is_known_to(others: Sequence[UserStatus], survivors: Survivors, user: int) -> bool:
    """Whether another user has these survivors, with the X in them: it wrote, confirmed or answered
    them."""
    if survivors.freezer not in (user, None):
        return True
    return any(u.confirmed or u.answered.sound for u in others)
