"""`eliminate`: Y_n for the frozen survivor set."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from ..brief import Brief
from ..errors import Refused, UsageError
from ..progress import Progress, unheard
from ..protocol.constructions import construction
from ..storage import answer as answer_file
from ..storage import survivors as survivors_file
from ..storage.answer import answered_before
from ..storage.atomic import allow_open_files
from ..storage.ledger import Ledger
from ..storage.share import SharesOfUser
from ..storage.workspace import Workspace
from .access import TakingPart, admitted, taking_part
from .arguments import AnyRound
from .keys import check_keys_of_survivor
from .settle import commit_residual


@dataclass(frozen=True, repr=False)
class EliminateReport(Brief):
    """What `eliminate` did."""

    user: int
    path: Path
    survivors: list[int]
    survivors_sha256: str
    answer_bytes: int


def eliminate(
    round: AnyRound,
    user: int,
    *,
    progress: Progress = unheard,
    **access: Unpack[TakingPart],
) -> EliminateReport:
    """Mask-elimination phase of one user: read U1, its X and the shares of U1 for this user, and
    write Y.

    A user answers one survivor set in a round.

    Arguments:
    round: the folder of the round.
    user: the user's number, from 1.
    progress: called with the share that is done, 0 to 1.
    secrets: the folder of the user's secrets and ledgers, instead of the round's own.
    session: refuse any other session than this one; at least 16 of its digits.
    series: the same of the series of the round, whose name `init` and `inspect` say.
    recipients: refuse a session that has other keys than this file.
    identity: the user's keys, in a sealed round.

    Returns an EliminateReport.
    """
    space, how = taking_part(round, **access)
    opener = admitted(space, user, how)
    session = space.session
    p = session.parameters
    survivors = survivors_file.read(space)
    if user not in survivors.digests:
        hint = "it dropped out of this round and has nothing to answer"
        raise UsageError(f"user {user} is not among the survivors", hint)
    with space.step_of(user):
        ledger = Ledger.read(space.ledger_path(user), session.id, user)
        _check(space, ledger, survivors)
        shape = construction(p).answer_shape(len(survivors.digests))
        masked = {}
        if not construction(p).needs_masked_sum:  # else an answer depends on no X
            frozen = survivors_file.read_frozen(space, survivors)
            masked = {m: x.masked for m, x in frozen.items()}
        if session.series is None:
            paths = {m: space.share_path(user, m) for m in survivors.users}
            survivors_file.check_arrived(f"share for user {user}", paths)
        allow_open_files(2 * len(survivors.users))
        with ExitStack() as files:
            held = SharesOfUser(space, user, opener)
            shares = {}
            for m in survivors.users:
                share = files.enter_context(held.opened(m, survivors.sharings[m]))
                check_keys_of_survivor(space, m, share=share, expected=survivors.dealt[m])
                shares[m] = share.read
            chunks = construction(p).answer_chunks(masked=masked, shares=shares, shape=shape)
            # durable before a byte of Y is anywhere that others can see
            ledger = ledger.record(answered=survivors.digest)
            answer_file.write(
                space,
                user,
                survivors=survivors,
                shape=shape,
                chunks=chunks,
                signer=opener,
                progress=progress,
            )
        commit_residual(space, user, ledger)
    return EliminateReport(
        user=user,
        path=space.answer_path(user),
        survivors=survivors.users,
        survivors_sha256=survivors.digest,
        answer_bytes=shape.groups * shape.width * p.symbol_bytes,
    )


def _check(space: Workspace, ledger: Ledger, survivors: survivors_file.Survivors) -> None:
    """Refuse whatever could lead to answers for two survivor sets, or to an answer for a forged
    X."""
    user = ledger.user
    ledger.check_kept()
    survivors_file.check_own_row(survivors, ledger)
    # a user that froze a set answers no other, unless users confirm and agreed on another one
    frozen = () if space.session.confirm else ("frozen",)
    ledger.check_survivors(survivors.digest, *frozen, "confirmed", "answered")
    if answered_before(space, user) not in (None, survivors.digest):
        raise Refused(
            f"user {user} has answered another survivor set in this round already",
            "was the secrets folder restored from a backup? do not answer; start a new round",
        )
    survivors_file.check_confirmed(space, survivors)
