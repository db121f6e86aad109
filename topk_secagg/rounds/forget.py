"""`forget`: erase what a user no longer needs, and keep what says what was spent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from ..brief import Brief
from ..errors import Advice, Refused, SecAggError
from ..storage import chain as chain_file
from ..storage.atomic import erase
from ..storage.ledger import NOTHING, Ledger, Previous
from ..storage.workspace import Workspace
from . import series, spend
from .access import TakingPart, check_pins, taking_part
from .arguments import AnyRound
from .outcome import Evidence, earlier, is_in, is_over, left_out, look


@dataclass(frozen=True, repr=False)
class ForgetReport(Brief):
    """The files that were erased, those of other accounts, which were not, and who still needs this
    user's shares.

    `chain` is where the keys for later rounds of the series are; None where there are none.
    """

    user: int
    erased: list[Path]
    kept: list[Path]
    needed_by: list[int]
    chain: Path | None = None


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

    That is after its answer, or when it dropped out; with `give_up` also before: then the user can
    neither mask nor answer any more, and its X still counts as sent. The ledger stays, and so do
    the digests of what was sent. Of error feedback, what a later round may still take stays.
    Shares for users that have not answered yet stay, where these users seem to run their steps in
    this folder. In a folder of several accounts nobody can erase a sealed share that another
    account put there.

    The keys of a series are in the user's chain, which opens the round that it is at until the next
    `offline`, or `end_series`, erases them.

    Arguments:
    round: the folder of the round.
    user: the user's number, from 1.
    end_series: erase the user's chain too: it takes part in no later round of the series.
    give_up: erase them although the user has not answered.
    secrets: the folder of the user's secrets and ledgers, instead of the round's own.
    session: refuse any other session than this one; at least 16 of its digits.
    series: the same of the series of the round, whose name `init` and `inspect` say.
    recipients: refuse a session that has other keys than this file.
    identity: of no consequence here; as the user's other steps take it.

    Returns a ForgetReport.
    """
    space, how = taking_part(round, **access)
    check_pins(space, how)
    space.check_user(user)
    chain = _chain_path(space, user)
    with space.step_of(user), nullcontext() if chain is None else space.chain_of(chain):
        ledger = Ledger.read(space.ledger_path(user), space.session.id, user)
        ledger, evidence = look(space, ledger)
        if not ledger.forgotten:
            if not give_up:
                _check_over(ledger, evidence)
            gives_up = ledger.gave_up or (give_up and not is_over(ledger, evidence))
            ledger = ledger.record(forgotten=True, gave_up=gives_up)
        others = [m for m in space.users() if m != user]
        needed = _who_needs_shares(space, others)
        paths = [space.secret_path(user), *(space.staged_path(user, what) for what in spend.WHAT)]
        paths += _received(space, user, chain, end_series=end_series)
        paths += [space.share_path(m, user) for m in others if m not in needed]
        paths += _spent_residuals(space, ledger, evidence)
        if end_series and chain is not None:
            paths.append(chain)
        erased, kept = erase(*paths)
    goes_on = chain is not None and space.session.family is not None and chain.exists()
    return ForgetReport(
        user=user,
        erased=erased,
        kept=kept,
        needed_by=needed,
        chain=chain if goes_on else None,
    )


def _chain_path(space: Workspace, user: int) -> Path | None:
    """The file of the user's chain, as far as that can be found."""
    with suppress(SecAggError):
        return series.chain_path(space, user)
    return None


def _check_over(ledger: Ledger, evidence: Evidence) -> None:
    """Refuse while the secret or the shares are still needed."""
    masked_or_may = ledger.masked is not None or evidence.survivors is None
    if masked_or_may and not (ledger.masked and is_over(ledger, evidence)):
        raise Refused(
            f"user {ledger.user} has not answered yet: its secret and shares are still needed",
            "answer first; a user that is not among the survivors can forget as soon as they are "
            "frozen",
            Advice.GIVE_UP,
        )


def _received(
    space: Workspace, user: int, chain: Path | None, *, end_series: bool
) -> Iterator[Path]:
    """The shares that the user got. Keys of a dealer that it has not entered stay: they are for the
    rounds to come."""
    entered = set(space.users())
    if space.session.family is not None and not end_series and chain is not None:
        with suppress(SecAggError):
            entered = set(chain_file.read(chain, space.session, user).lists)
    return (space.share_path(user, m) for m in sorted(entered))


def _who_needs_shares(space: Workspace, others: Iterable[int]) -> list[int]:
    """Those of the other users that may still read, in this folder, what was dealt to them."""
    session = space.session
    # in a sealed round, others may use this folder with secrets elsewhere
    is_sealed = session.recipients is not None
    here = [m for m in others if is_sealed or space.runs_here(m)]
    here = [m for m in here if not _has_forgotten(space, m)]
    if session.family is not None:
        return here if session.series is None else []  # they may go on with the series
    return [m for m in here if not space.answer_path(m).exists()]


def _has_forgotten(space: Workspace, user: int) -> bool:
    """Whether a user that runs its steps here has forgotten the round."""
    with suppress(SecAggError):
        return Ledger.read(space.ledger_path(user), space.session.id, user).forgotten
    return False


def _spent_residuals(space: Workspace, ledger: Ledger, evidence: Evidence) -> Iterator[Path]:
    """Residuals that no later round can take: that of this round, if its X is in no sum, or if an X
    took it that is known to be in one; and the one that this X took, if it is in one itself."""
    if left_out(ledger, evidence) or _is_passed_on(space, ledger):
        yield space.residual_path(ledger.user)
    took = ledger.feedback
    if took not in (None, NOTHING) and is_in(ledger, evidence):
        before = _find(space, ledger, str(took))
        if before is not None:
            yield before / space.residual_path(ledger.user).name


def _is_passed_on(space: Workspace, ledger: Ledger) -> bool:
    """Whether the X that took the residual of this round is known to be among the survivors'."""
    if ledger.taken_by is None or space.secrets is None:
        return False
    taker = earlier(space, ledger.user, Previous(ledger.taken_by, "."))
    return taker is not None and is_in(*taker.looked_at())


def _find(space: Workspace, ledger: Ledger, session: str) -> Path | None:
    """The private folder of an earlier session of the user."""
    there, previous = space, ledger.previous
    while previous is not None:
        before = earlier(there, ledger.user, previous)
        if before is None:
            return None
        if previous.session == session:
            return before.ledger.path.parent
        there, previous = before.space or there, before.ledger.previous
    return None
