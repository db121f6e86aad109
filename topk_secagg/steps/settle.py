"""`settle`: commit the residual of a survivor; `forget`: erase what a user no longer needs."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from ..brief import Brief
from ..errors import InputMissing, Refused, SecAggError, UsageError
from ..storage import held as held_file
from ..storage import residual as residual_file
from ..storage import survivors as survivors_file
from ..storage.atomic import mark_done
from ..storage.ledger import Ledger
from ..storage.session import MOST_GENERATIONS
from ..storage.workspace import Workspace
from .access import Access, Pins, TakingPart, admitted, check_pins, pinned, taking_part
from .arguments import AnyRound
from .series import keys_of_round


@dataclass(frozen=True, repr=False)
class SettleReport(Brief):
    """Where the residual is, and whether this call put it there."""

    user: int
    path: Path
    committed: bool


def commit_residual(space: Workspace, user: int, ledger: Ledger) -> bool:
    """Put the staged residual of a survivor where its user keeps it; whether that was still to be
    done."""
    if ledger.residual is None:
        return False
    staged = space.residual_path(user)
    new = not ledger.residual.committed
    if new:
        residual_file.commit(staged, ledger.residual, user, space.session.parameters.length)
        ledger.record(residual=replace(ledger.residual, committed=True))
    staged.unlink(missing_ok=True)
    return new


def settle(round: AnyRound, user: int, **pins: Unpack[Pins]) -> SettleReport:
    """Commit the residual of a user whose X is in the sum, whether or not it answered.

    Arguments:
    round: the folder of the round.
    user: the user's number, from 1.
    secrets: the folder of secrets and ledgers, instead of the round's own.
    session: refuse any other session than this one; at least 16 of its digits.
    series: the same of the session with which the series of the round began.
    recipients: refuse a session that has other keys than this file.

    Returns a SettleReport.
    """
    space, access = pinned(round, **pins)
    check_pins(space, access)
    space.check_user(user)
    with space.step_of(user):
        ledger = Ledger.read(space.ledger_path(user), space.session.id, user)
        if ledger.residual is None:
            raise UsageError(
                f"user {user} has no residual in this round", "there is nothing to settle"
            )
        survivors = survivors_file.read(space)
        survivors_file.check_confirmed(space, survivors)
        if survivors.digests.get(user) != ledger.masked:
            raise Refused(
                f"the X of user {user} is not in the sum, so that its old residual still holds",
                "use the old residual file in the next round",
            )
        committed = commit_residual(space, user, ledger)
        mark_done(Path(ledger.residual.path))
    return SettleReport(user, Path(ledger.residual.path), committed)


@dataclass(frozen=True, repr=False)
class ForgetReport(Brief):
    """The files that were erased, those of other accounts, which were not, and who still needs this
    user's shares."""

    user: int
    erased: list[Path]
    kept: list[Path]
    needed_by: list[int]


def forget(
    round: AnyRound, user: int, *, end_series: bool = False, **access: Unpack[TakingPart]
) -> ForgetReport:
    """Erase the secret of a user, the shares that it holds, and its plain copies of those that it
    made.

    That is after its answer, or when it dropped out. The ledger stays: what is spent stays spent.
    Shares for users that have not answered yet stay, where these users seem to run their steps in
    this folder. In a folder of several accounts nobody can erase a sealed share that another
    account put there.

    Where shares were dealt by keys, those of the next generation are stored first, so that the
    series goes on, unless `end_series`.

    Arguments:
    round: the folder of the round.
    user: the user's number, from 1.
    end_series: erase the keys for later rounds too.
    secrets: the folder of secrets and ledgers, instead of the round's own.
    session: refuse any other session than this one; at least 16 of its digits.
    series: the same of the session with which the series of the round began.
    recipients: refuse a session that has other keys than this file.
    identity: the user's keys, which open the keys that it holds in the first round of a sealed
        series.
    insecure: go on although the round is drawn from a public seed.

    Returns a ForgetReport.
    """
    space, how = taking_part(round, **access)
    check_pins(space, how)
    space.check_user(user)
    with space.step_of(user):
        ledger = Ledger.read(space.ledger_path(user), space.session.id, user)
        if not ledger.forgotten:
            _check_done(space, user, ledger)
            if space.session.family is not None and not end_series:
                _keep_next_generation(space, user, how)
            ledger.record(forgotten=True, input=None)  # which would tell gradients apart
        others = [m for m in space.users() if m != user]
        # else some may fall back
        final = space.session.parameters.spare is None or space.aggregate_path.exists()
        # then others may use this folder with secrets elsewhere
        sealed = space.session.recipients is not None
        here = [m for m in others if sealed or space.runs_here(m)]
        needed = [m for m in here if not (final and space.answer_path(m).exists())]
        paths = [space.secret_path(user), space.residual_path(user)]
        paths += [space.share_path(user, m) for m in space.users()]
        if space.session.family is not None:  # others may yet go on with the series
            needed = [m for m in here if not _has_forgotten(space, m)]
        paths += [space.share_path(m, user) for m in others if m not in needed]
        if end_series:
            paths.append(space.held_path(user))
        erased = []
        kept = []
        for path in paths:
            try:
                path.unlink()
                erased.append(path)
            except FileNotFoundError:
                pass
            except PermissionError:
                if path.stat().st_uid == os.geteuid():
                    raise
                kept.append(path)
    return ForgetReport(user, erased, kept, needed)


def _keep_next_generation(space: Workspace, user: int, access: Access) -> None:
    """Store the keys of the next generation, before those of this one are erased."""
    identity = admitted(space, user, access) if space.session.series is None else None
    session = space.session
    if session.generation < MOST_GENERATIONS:
        held = keys_of_round(space, user, identity)
        held_file.write(space, user, held.advanced(session.generation + 1))


def _has_forgotten(space: Workspace, user: int) -> bool:
    """Whether a user that runs its steps here has forgotten the round."""
    with suppress(SecAggError):
        return Ledger.read(space.ledger_path(user), space.session.id, user).forgotten
    return False


def _check_done(space: Workspace, user: int, ledger: Ledger) -> None:
    """Refuse while the secret or the shares are still needed."""
    if ledger.answered is None:
        if not _dropped_out(space, user, ledger):
            raise Refused(
                f"user {user} has not answered yet: its secret and shares are still needed",
                "answer first; a user that is not among the survivors can forget as soon as they "
                "are frozen",
            )
    elif ledger.residual and not ledger.residual.committed:
        raise Refused(f"the residual of user {user} is not committed yet", "settle it first")


def _dropped_out(space: Workspace, user: int, ledger: Ledger) -> bool:
    """Whether the survivors are fixed (where users confirm, by enough of them) without its X."""
    try:
        survivors = survivors_file.read(space)
    except InputMissing:
        return False
    if user in survivors.digests and survivors.digests[user] == ledger.masked:
        return False
    survivors_file.check_confirmed(space, survivors)
    return True
