"""`freeze`: fix the survivor set U1, with the digest of each X in it; `confirm`: sign it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn, Unpack

from ..brief import Brief
from ..errors import (
    Advice,
    BadData,
    InputMissing,
    Refused,
    TooFewSurvivors,
    UsageError,
    counted,
    named_users,
)
from ..storage import masked as masked_file
from ..storage import survivors as survivors_file
from ..storage.atomic import erase, mark_done
from ..storage.documents import digest
from ..storage.keys import Identity
from ..storage.ledger import Ledger
from ..storage.masked import MaskedFile
from ..storage.workspace import Workspace
from . import barrier, spend
from .access import Access, Step, admitted, check_pins, taking_part
from .arguments import AnyRound, user_list
from .each import for_each
from .frozen import read_frozen, rows_of


@dataclass(frozen=True, repr=False)
class FreezeReport(Brief):
    """U1, whether this call made it so, and whom it left out for what reason."""

    freezer: int | None
    survivors: list[int]
    survivors_sha256: str
    written: bool
    left_out: dict[int, str] = field(default_factory=dict)


def freeze(
    round: AnyRound,
    only: Iterable[int] | None = None,
    *,
    user: int | None = None,
    **access: Unpack[Step],
) -> FreezeReport:
    """Fix the survivors: write survivors.json for the users that have masked.

    It is the step of the session's freezer, which freezes one set a round. Where users confirm,
    anybody may propose a set, and it binds nobody before enough users confirmed it.

    Arguments:
    round: the folder of the round.
    only: these users and no others; their X must be in order.
    user: who freezes; the session's freezer by default, and nobody where users confirm.
    secrets: the folder of the user's secrets and ledgers, instead of the round's own.
    session: refuse any other session than this one; at least 16 of its digits.
    series: the same of the series of the round, whose name `init` and `inspect` say.
    recipients: refuse a session that has other keys than this file.
    identity: the user's keys, in a sealed round.
    max_memory: refuse a round that takes more bytes of memory; by default, more than there are.
    max_disk: refuse a round for whose files a user needs more bytes.

    Returns a FreezeReport.
    """
    space, how = taking_part(round, **access)
    only = None if only is None else user_list("only", only)
    if space.session.confirm:
        return _propose(space, only, user, how)
    signer = _admitted_freezer(space, how, user)
    freezer = space.session.freezer
    assert freezer is not None
    with space.step_of(freezer):
        ledger = Ledger.read(space.ledger_path(freezer), space.session.id, freezer)
        if space.survivors_path.exists():
            return _again(space, ledger, only)
        left_out: dict[int, str] = {}
        rows = ledger.survivors
        if rows is None:
            files, left_out = chosen_masked(space, only)
            rows = rows_of(files)
        # else an earlier call was stopped before survivors.json appeared: it is that set for good
        _check_only(only, [row.user for row in rows])
        content = survivors_file.content(space.session, rows, signer)
        ledger.check_survivors(digest(content), "seen", "frozen", "answered")
        spend.frozen(space, ledger, rows, content)
    return _report(space, content, left_out=left_out)


def _report(
    space: Workspace,
    content: bytes,
    *,
    written: bool = True,
    left_out: dict[int, str] | None = None,
) -> FreezeReport:
    survivors = survivors_file.checked(space, content)
    return FreezeReport(
        freezer=survivors.freezer,
        survivors=survivors.users,
        survivors_sha256=survivors.digest,
        written=written,
        left_out=left_out or {},
    )


def _admitted_freezer(space: Workspace, how: Access, user: int | None) -> Identity | None:
    """`admitted` for the session's freezer; who comes as another user is told who freezes."""
    freezer = space.session.freezer
    assert freezer is not None
    if user is not None:
        space.check_user(user)
    if user not in (None, freezer):
        raise Refused(
            f"user {freezer} freezes this round, not user {user}",
            "two survivor sets would reveal an input; wait for survivors.json",
        )
    try:
        return admitted(space, freezer, how)
    except BadData as error:
        if error.advice is not Advice.OF_OTHER_USER:
            raise
        owner = error.values["user"]
        hint = f"this is the identity of user {owner}, and user {freezer} freezes this round"
        raise error.but(hint=hint, advice=None, values={}) from error


def _propose(
    space: Workspace, only: list[int] | None, user: int | None, how: Access
) -> FreezeReport:
    """`freeze` where users confirm: anybody may propose, and nobody is bound by it."""
    check_pins(space, how)
    if user is not None:
        admitted(space, user, how)
    if space.survivors_path.exists():
        before = survivors_file.read(space)
        _check_only(only, before.users)
        mark_done(space.survivors_path)
        content = survivors_file.content(space.session, tuple(before.rows.values()), None)
        return _report(space, content, written=False)
    files, left_out = chosen_masked(space, only)
    content = survivors_file.content(space.session, rows_of(files), None)
    spend.proposed(space, content)
    return _report(space, content, left_out=left_out)


def _again(space: Workspace, ledger: Ledger, only: Iterable[int] | None) -> FreezeReport:
    """A survivors.json that is there already stays as it is; one that this user did not write is
    not its own."""
    before = survivors_file.read(space)
    if ledger.frozen is None and before.signature is None:
        raise Refused(
            f"{space.survivors_path} exists, and user {ledger.user} did not write it",
            "somebody planted it: delete it and freeze again",
        )
    ledger.check_survivors(before.digest, "seen", "frozen", "answered")
    _check_only(only, before.users)
    mark_done(space.survivors_path)
    erase(space.staged_path(ledger.user, spend.SURVIVORS))
    return FreezeReport(
        freezer=before.freezer,
        survivors=before.users,
        survivors_sha256=before.digest,
        written=False,
    )


def _check_only(only: Iterable[int] | None, survivors: list[int]) -> None:
    """Refuse other users than those that are frozen already."""
    if only is not None and sorted(set(only)) != survivors:
        raise Refused(
            f"the survivors of this round are fixed already: {', '.join(map(str, survivors))}",
            "users that came late drop out of this round; freeze these users and no others",
        )


def chosen_masked(
    space: Workspace, only: Iterable[int] | None = None
) -> tuple[dict[int, MaskedFile], dict[int, str]]:
    """The sound X to freeze, and why the others were left out."""
    need = space.session.parameters.survivors

    def read(n: int) -> MaskedFile:
        space.check_user(n)
        if not space.masked_path(n).exists():
            raise InputMissing(
                f"{space.masked_path(n)} is not there", f"user {n} has not masked; leave it out"
            )
        with barrier.around(space.masked_path(n)):
            return masked_file.read(space.session, space.masked_path(n), n)

    attempts = for_each(list(space.present("masked")) if only is None else sorted(set(only)), read)
    files = attempts.reports if only is None else attempts.every_report()
    if only is None:
        _check_hope(space, files)
    unsound = attempts.left_out(space.masked_path)
    if len(files) < need:
        _too_few(len(files), need, unsound, named=only is not None)
    files = with_agreed_lists(files)
    kept = answerable({n: x.holds for n, x in files.items()}, need)
    lost = [n for n in files if n not in kept]
    if only is None and not kept:
        what = f"there are no {need} users yet that hold each other's shares"
        what += f" (users that lack some: {_early(space, files)})"
        raise TooFewSurvivors(what, "wait for more users to mask, with all shares")
    if only is not None and lost:
        what = f"fewer than {need} of these users hold the shares of {named_users(lost)}"
        raise TooFewSurvivors(what, f"leave out {named_users(lost)}")
    left_out = unsound | dict.fromkeys(lost, "too few users hold its share")
    return {n: files[n] for n in kept}, left_out


def _too_few(sound: int, need: int, unsound: Mapping[int, str], *, named: bool) -> NoReturn:
    """Refuse to freeze fewer users than must survive; say which X do not count."""
    if named:
        what = f"{counted(sound, 'user is named', 'users are named')}, and {need} must survive"
        raise TooFewSurvivors(what, f"name at least {need} users that have masked")
    sounds = counted(sound, "user has masked soundly", "users have masked soundly")
    parts = [f"{sounds}, and {need} must survive"]
    parts += [f"user {n} does not count: {why}" for n, why in unsound.items()]
    hint = "wait for more users to mask"
    if unsound:
        hint = f"fetch X of {named_users(unsound)} again, or {hint}"
    raise TooFewSurvivors("; ".join(parts), hint)


def _early(space: Workspace, files: Mapping[int, MaskedFile]) -> str:
    """Who masked before the shares of all users had arrived."""
    everybody = len(space.users())
    return ", ".join(str(n) for n, x in sorted(files.items()) if len(x.holds) < everybody)


def _check_hope(space: Workspace, files: dict[int, MaskedFile]) -> None:
    """Say so if this round can never be frozen, whoever masks yet."""
    need = space.session.parameters.survivors
    holds = {n: x.holds for n, x in files.items()}
    if beyond_saving(holds, space.users(), need):
        raise TooFewSurvivors(
            f"this round is beyond saving: no {need} users can hold each other's shares any more, "
            "because X says for good whose shares its user held "
            f"(users that lack some: {_early(space, files)})",
            "start a new round, and mask when all shares have arrived",
        )


def beyond_saving(holds: Mapping[int, Collection[int]], users: Iterable[int], need: int) -> bool:
    """Whether there will never be `need` users that hold each other's shares.

    Whoever is not in `holds` has not masked, and may still come to hold everything. True is
    certain; False is not, because only users with too few partners are struck out, again and again.
    """
    hopeful = set(users)

    def has(n: int, m: int) -> bool:
        return n not in holds or m in holds[n]

    def partners(n: int) -> int:
        return sum(has(n, m) and has(m, n) for m in hopeful) if has(n, n) else 0

    while struck := {n for n in hopeful if partners(n) < need}:
        hopeful -= struck
    return not hopeful


def with_agreed_lists(files: Mapping[int, MaskedFile]) -> dict[int, MaskedFile]:
    """These X, each without the dealers whose keys were compared with another list than the one
    that the dealer's X names."""
    return {
        n: replace(
            x,
            holds=frozenset(
                m for m in x.holds if m not in files or x.lists.get(m) == files[m].dealt
            ),
        )
        for n, x in files.items()
    }


def answerable(holds: Mapping[int, Collection[int]], need: int) -> list[int]:
    """The users to freeze so that at least `need` of them hold the shares of all of them.

    Leaves out, one at a time, the user whose share most of the others lack.
    """
    kept = set(holds)
    lacks = {n: kept.difference(holds[n]) for n in kept}
    lacked_by = {m: {n for n in kept if m in lacks[n]} for m in kept}
    while len(kept) >= need:
        if sum(not lacks[n] for n in kept) >= need:
            return sorted(kept)
        worst = max(kept, key=lambda m: (len(lacked_by[m]), m))
        kept.remove(worst)
        for n in lacked_by.pop(worst):
            lacks[n].discard(worst)
        for m in lacks.pop(worst):
            lacked_by[m].discard(worst)
    return []


@dataclass(frozen=True, repr=False)
class ConfirmReport(Brief):
    """What `confirm` did, and who has confirmed this survivors.json so far."""

    user: int
    path: Path
    survivors: list[int]
    survivors_sha256: str
    confirmed: list[int]
    needed: int


def confirm(round: AnyRound, user: int, **access: Unpack[Step]) -> ConfirmReport:
    """Sign the digest of survivors.json, after the ledger: a user confirms one set per round.

    So it confirms only a set that can be answered: with every X in it here and sound, and its own
    X, if there is one, the one that it sent. Otherwise one user could have all others confirm
    survivors for whom nobody has an answer.

    Arguments:
    round: the folder of the round.
    user: the user's number, from 1.
    secrets: the folder of the user's secrets and ledgers, instead of the round's own.
    session: refuse any other session than this one; at least 16 of its digits.
    series: the same of the series of the round, whose name `init` and `inspect` say.
    recipients: refuse a session that has other keys than this file.
    identity: the user's keys, in a sealed round.
    max_memory: refuse a round that takes more bytes of memory; by default, more than there are.
    max_disk: refuse a round for whose files a user needs more bytes.

    Returns a ConfirmReport.
    """
    space, how = taking_part(round, **access)
    return confirm_once(space, user, how, has_every_x=True)


def confirm_once(space: Workspace, user: int, how: Access, *, has_every_x: bool) -> ConfirmReport:
    """`confirm`, which reads every X of the survivors only where the user has them."""
    signer = admitted(space, user, how)
    session = space.session
    if not session.confirm or signer is None:
        raise UsageError(
            "users do not confirm in this round", "the survivors are fixed by one user alone"
        )
    with space.step_of(user):
        survivors = survivors_file.read(space)
        ledger = Ledger.read(space.ledger_path(user), session.id, user)
        ledger.check_survivors(survivors.digest, "confirmed", "answered")
        if ledger.confirmed is None:
            ledger.check_own_row(survivors)
            if has_every_x:
                read_frozen(space, survivors)
        spend.confirmed(space, ledger, survivors, signer)
    there = survivors_file.confirmed_by(space, survivors.digest, space.users())
    return ConfirmReport(
        user=user,
        path=space.confirmation_path(user),
        survivors=survivors.users,
        survivors_sha256=survivors.digest,
        confirmed=there,
        needed=session.confirmations,
    )
