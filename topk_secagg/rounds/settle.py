"""`settle`: commit the residual of a survivor; `forget`: erase what a user no longer needs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from ..brief import Brief
from ..errors import Advice, BadData, InputMissing, Refused, SecAggError, UsageError, counted
from ..storage import held as held_file
from ..storage import masked as masked_file
from ..storage import residual as residual_file
from ..storage import survivors as survivors_file
from ..storage.artifacts import opened
from ..storage.atomic import PRIVATE, erase, mark_done, write_whole
from ..storage.held import HeldKeys
from ..storage.ledger import DECODED, Ledger
from ..storage.session import MOST_GENERATIONS
from ..storage.workspace import Workspace
from .access import Access, Pins, TakingPart, admitted, check_pins, pinned, taking_part
from .arguments import AnyRound
from .published import LEFT_OUT, known_outcome
from .series import check_own_list, latest_keys


@dataclass(frozen=True, repr=False)
class SettleReport(Brief):
    """Where the residual is, and whether this call put it there.

    `survivors_known` is false where there is no survivors.json, and X counts as sent; `before` is
    then a copy of the residual that was replaced, if there was one.
    """

    user: int
    path: Path
    committed: bool
    survivors_known: bool = True
    before: Path | None = None


def commit_residual(space: Workspace, user: int, ledger: Ledger) -> bool:
    """Put the staged residual of a survivor where its user keeps it; whether that was still to be
    done."""
    if ledger.residual is None:
        return False
    staged = space.residual_path(user)
    new = not ledger.residual.committed
    if new:
        residual_file.commit(
            staged, ledger.residual, user=user, length=space.session.parameters.length
        )
        ledger.record(residual=replace(ledger.residual, committed=True))
    staged.unlink(missing_ok=True)
    return new


def settle(round: AnyRound, user: int, **pins: Unpack[Pins]) -> SettleReport:
    """Commit the residual of a user whose X is in the sum, whether or not it answered.

    An X that left counts as sent, unless its user holds survivors.json without it: so it is
    committed where there is no survivors.json too, if X is there. The round may still be going on,
    and leave X out after all: a copy of the old residual stays beside the new one.

    Arguments:
    round: the folder of the round.
    user: the user's number, from 1.
    secrets: the folder of secrets and ledgers, instead of the round's own.
    session: refuse any other session than this one; at least 16 of its digits.
    series: the same of the series of the round, whose name `init` and `inspect` say.
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
        path = Path(ledger.residual.path)
        known = os.path.lexists(space.survivors_path)
        if known:
            _check_in_sum(space, user, ledger)
        else:
            _check_left(space, user, ledger)
            _keep_before(path, ledger.residual)
        committed = commit_residual(space, user, ledger)
        mark_done(path)
    before = before_path(path)
    return SettleReport(
        user=user,
        path=path,
        committed=committed,
        survivors_known=known,
        before=before if not known and before.exists() else None,
    )


def before_path(path: Path) -> Path:
    """Where a copy of a residual stays that was replaced before the survivors were known."""
    return path.with_name(f"{path.stem}.before{path.suffix}")


def _check_in_sum(space: Workspace, user: int, ledger: Ledger) -> None:
    """Refuse a residual whose X is not among the survivors', as enough users say."""
    survivors = survivors_file.read(space)
    try:
        survivors_file.check_confirmed(space, survivors)
    except InputMissing as error:
        hint = f"if the round is given up, move {space.survivors_path} away and run this again"
        raise error.but(hint=f"{error.hint}; {hint}") from error
    if survivors.digests.get(user) == ledger.masked:
        return
    hint = "use the old residual file in the next round"
    if ledger.residual is not None and ledger.residual.committed:
        old = before_path(Path(ledger.residual.path))
        hint = f"{old} is a copy of it" if old.exists() else "it was empty: there was none"
    raise Refused(
        f"the X of user {user} is not in the sum, so that its old residual still holds", hint
    )


def _check_left(space: Workspace, user: int, ledger: Ledger) -> None:
    """Refuse while it is not certain that X ever left: `mask` may have been stopped before."""
    path = space.masked_path(user)
    if not path.exists():
        raise InputMissing(
            f"{space.survivors_path} is not there, nor the X of user {user}, which may not have "
            "left",
            "fetch survivors.json; or mask the same gradient again, which completes the step",
        )
    if masked_file.read(space.session, path, user).digest != ledger.masked:
        raise BadData(
            f"{path} is not the X that user {user} sent", "fetch it from somebody who has it"
        )


def _keep_before(path: Path, residual: residual_file.Residual) -> None:
    """Copy the user's residual before it is replaced; a repeated call finds the new one there."""
    if residual.committed or residual.before is None or not path.is_file():
        return
    with opened(path, residual_file.KIND) as artifact:
        is_old = artifact.attributes["sha256"] == residual.before
    if is_old:
        write_whole(before_path(path), path.read_bytes(), PRIVATE)


@dataclass(frozen=True, repr=False)
class ForgetReport(Brief):
    """The files that were erased, those of other accounts, which were not, and who still needs this
    user's shares.

    `next_keys` is where the keys of the next round of the series are, until that is prepared.
    """

    user: int
    erased: list[Path]
    kept: list[Path]
    needed_by: list[int]
    next_keys: Path | None = None


def forget(
    round: AnyRound,
    user: int,
    *,
    end_series: bool = False,
    give_up: bool = False,
    **access: Unpack[TakingPart],
) -> ForgetReport:
    """Erase the secret of a user, the shares that it holds, and its plain copies of those that it
    made.

    That is after its answer, or when it dropped out; with `give_up` also before, in a round that
    will have no sum: then the user can neither mask nor answer any more. The ledger stays: what is
    spent stays spent. That of a round that is given up also keeps the digest of the gradient, since
    such a round counts as published.
    Shares for users that have not answered yet stay, where these users seem to run their steps in
    this folder. In a folder of several accounts nobody can erase a sealed share that another
    account put there.

    Where shares were dealt by keys, those of the next generation are stored first, so that the
    series goes on, unless `end_series`. They open the next round: once that is prepared, forget
    this one with `end_series`, also if it was forgotten without.

    Arguments:
    round: the folder of the round.
    user: the user's number, from 1.
    end_series: erase the keys for later rounds too.
    give_up: erase them although the user has not answered.
    secrets: the folder of secrets and ledgers, instead of the round's own.
    session: refuse any other session than this one; at least 16 of its digits.
    series: the same of the series of the round, whose name `init` and `inspect` say.
    recipients: refuse a session that has other keys than this file.
    identity: the user's keys, which open the keys that it holds in the first round of a sealed
        series.

    Returns a ForgetReport.
    """
    space, how = taking_part(round, **access)
    check_pins(space, how)
    space.check_user(user)
    with space.step_of(user):
        ledger = Ledger.read(space.ledger_path(user), space.session.id, user)
        if not ledger.forgotten:
            if not give_up:
                _check_done(space, user, ledger)
            _check_settled(space, user, ledger, give_up=give_up)
            if space.session.family is not None and not end_series and ledger.carried is None:
                _keep_next_generation(space, user, how)
            # the digest would tell gradients apart; but a round without a sum counts as published,
            # and `mask` must still know what was sent in it
            known = ledger.input if give_up and not _has_outcome(ledger) else None
            ledger.record(forgotten=True, input=known)
        others = [m for m in space.users() if m != user]
        needed = _who_needs_shares(space, others)
        paths = [space.secret_path(user), space.residual_path(user)]
        paths += [space.share_path(user, m) for m in space.users()]
        paths += [space.share_path(m, user) for m in others if m not in needed]
        next_keys = space.held_path(user)
        goes_on = not end_series and _has_next_generation(space, user)
        if not goes_on:
            paths.append(next_keys)
        erased, kept = erase(*paths)
    return ForgetReport(
        user=user,
        erased=erased,
        kept=kept,
        needed_by=needed,
        next_keys=next_keys if goes_on else None,
    )


def _who_needs_shares(space: Workspace, others: Iterable[int]) -> list[int]:
    """Those of the other users that may still read, in this folder, what was dealt to them."""
    session = space.session
    if session.series is not None:
        return []  # later rounds of a series have no shares
    # in a sealed round, others may use this folder with secrets elsewhere
    is_sealed = session.recipients is not None
    here = [m for m in others if is_sealed or space.runs_here(m)]
    here = [m for m in here if not _has_forgotten(space, m)]
    if session.family is not None:
        return here  # they may go on with the series
    return [m for m in here if not space.answer_path(m).exists()]


def _keep_next_generation(space: Workspace, user: int, access: Access) -> None:
    """Store the keys of the next generation, before those of this one are erased."""
    identity = admitted(space, user, access) if space.session.series is None else None
    session = space.session
    if session.generation < MOST_GENERATIONS:
        held = latest_keys(space, user, identity)
        # else the series would end here, unnoticed
        check_own_list(user, held)
        _check_can_go_on(space, user, held)
        held_file.write(space, user, held.advanced(session.generation + 1))


def _check_can_go_on(space: Workspace, user: int, held: HeldKeys) -> None:
    """Refuse to store the keys of too few dealers: nobody could answer with them."""
    need = space.session.parameters.survivors
    if len(held.lists) < need:
        raise InputMissing(
            f"user {user} holds the keys of {counted(len(held.lists), 'user')}, and an answer "
            f"takes those of at least {need}: the series would end here",
            "fetch the others' shares first, to go on",
            Advice.END_SERIES,
        )


def _has_next_generation(space: Workspace, user: int) -> bool:
    """Whether the keys that a user holds are those of the next generation: only these are stored
    with its own.

    They are still those of this one if no generation follows, or if a call with `end_series` was
    stopped.
    """
    with suppress(SecAggError):
        return bool(held_file.read(space, user).own)
    return False


def _has_forgotten(space: Workspace, user: int) -> bool:
    """Whether a user that runs its steps here has forgotten the round."""
    with suppress(SecAggError):
        return Ledger.read(space.ledger_path(user), space.session.id, user).forgotten
    return False


def _check_done(space: Workspace, user: int, ledger: Ledger) -> None:
    """Refuse while the secret or the shares are still needed."""
    if ledger.answered is None and not _dropped_out(space, user, ledger):
        raise Refused(
            f"user {user} has not answered yet: its secret and shares are still needed",
            "answer first; a user that is not among the survivors can forget as soon as they are "
            "frozen",
            Advice.GIVE_UP,
        )


def _check_settled(space: Workspace, user: int, ledger: Ledger, *, give_up: bool) -> None:
    """Refuse to erase a residual that is not committed, unless its user dropped out."""
    if ledger.residual is None or ledger.residual.committed:
        return
    dropped_out = False
    if ledger.answered is None:
        try:
            dropped_out = _dropped_out(space, user, ledger)
        except InputMissing:  # too few have confirmed, and if it is given up, none will
            if not give_up:
                raise
    if not dropped_out:
        raise Refused(f"the residual of user {user} is not committed yet", "settle it first")


def _has_outcome(ledger: Ledger) -> bool:
    """Whether it is known that there is a sum, or that X is in none."""
    return known_outcome(ledger) in (DECODED, LEFT_OUT)


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
