"""`eliminate`: Y_n for the frozen survivor set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from ..algebra.field import Integers, Symbols
from ..brief import Brief
from ..errors import BadData, InputMissing, UsageError
from ..progress import Progress, unheard
from ..protocol.constructions import construction
from ..protocol.messages import HeldShares, Masked
from ..storage import answer as answer_file
from ..storage import survivors as survivors_file
from ..storage.atomic import PRIVATE, allow_open_files
from ..storage.keys import Identity
from ..storage.ledger import Ledger
from ..storage.share import HeldKeys, SharesOfUser
from ..storage.survivors import Row, Survivors
from ..storage.workspace import Workspace
from . import series, spend
from .access import Step, admitted, taking_part
from .arguments import AnyRound
from .backups import check_knows
from .frozen import check_arrived, read_frozen

_SPOILT = "do not answer; tell the other users, and start a new round without that user"


@dataclass(frozen=True, repr=False)
class EliminateReport(Brief):
    """What `eliminate` did."""

    user: int
    path: Path
    survivors: list[int]
    survivors_sha256: str
    answers_needed: int
    answer_bytes: int


def eliminate(
    round: AnyRound,
    user: int,
    *,
    progress: Progress = unheard,
    **access: Unpack[Step],
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
    max_memory: refuse a round that takes more bytes of memory; by default, more than there are.
    max_disk: refuse a round for whose files a user needs more bytes.

    Returns an EliminateReport.
    """
    space, how = taking_part(round, **access)
    opener = admitted(space, user, how)
    survivors = survivors_file.read(space)
    if user not in survivors.rows:
        hint = "it dropped out of this round and has nothing to answer"
        raise UsageError(f"user {user} is not among the survivors", hint)
    with series.step_of(space, user):
        ledger = Ledger.read(space.ledger_path(user), space.session.id, user)
        _check(space, ledger, survivors)
        is_done = ledger.answered is not None and spend.finish_answered(space, ledger, survivors)
        if not is_done:
            _answer(space, ledger, survivors, opener=opener, progress=progress)
    p = space.session.parameters
    shape = construction(p).answer_shape(len(survivors.rows))
    return EliminateReport(
        user=user,
        path=space.answer_path(user),
        survivors=survivors.users,
        survivors_sha256=survivors.digest,
        answers_needed=p.survivors,
        answer_bytes=construction(p).bytes_of_answer(shape),
    )


def _check(space: Workspace, ledger: Ledger, survivors: Survivors) -> None:
    """Refuse whatever could lead to answers for two survivor sets, or to an answer for a forged
    X."""
    ledger.check_kept()
    check_knows(space, ledger)
    ledger.check_own_row(survivors)
    # a proposal that this user made binds it no more than others, where users confirm
    ledger.check_survivors(survivors.digest, "seen", "frozen", "confirmed", "answered")
    survivors_file.check_confirmed(space, survivors)


def _answer(
    space: Workspace,
    ledger: Ledger,
    survivors: Survivors,
    *,
    opener: Identity | None,
    progress: Progress,
) -> None:
    """Compute Y, and let it out."""
    session = space.session
    user = ledger.user
    c = construction(session.parameters)
    shape = c.answer_shape(len(survivors.rows))
    masked: dict[int, Masked] = {}
    if c.answer_needs_inputs:
        masked = {m: x.masked for m, x in read_frozen(space, survivors).items()}
    with _held(space, ledger, survivors, opener) as shares:
        chunks = c.answer_chunks(masked, shares, shape)

        def write(path: Path) -> None:
            answer_file.write(
                space,
                user,
                survivors=survivors,
                shape=shape,
                chunks=chunks,
                signer=opener,
                path=path,
                mode=PRIVATE,
                progress=progress,
            )

        spend.answered(space, ledger, survivors, write)


@contextmanager
def _held(
    space: Workspace, ledger: Ledger, survivors: Survivors, opener: Identity | None
) -> Iterator[HeldShares]:
    """What the user holds of every survivor: shares of the sharing that the row names, or the keys
    from which they follow."""
    user = ledger.user
    if space.session.family is not None:
        yield _by_keys(space, ledger, survivors, opener)
        return
    paths = {m: space.share_path(user, m) for m in survivors.users}
    check_arrived(f"share for user {user}", paths)
    allow_open_files(2 * len(survivors.rows))
    with ExitStack() as files:
        held = SharesOfUser(space, user, opener)
        yield {
            m: files.enter_context(held.opened(m, row.sharing)).read
            for m, row in survivors.rows.items()
        }


def _by_keys(
    space: Workspace, ledger: Ledger, survivors: Survivors, opener: Identity | None
) -> HeldShares:
    """The same from keys. A dealer whose keys are missing or do not fit cannot just be left out:
    such an answer is wrong, and the user that gave it would be named."""
    user = ledger.user
    chain = series.read_chain(space, user)
    holding = series.enter(space, chain, opener, only=iter(ledger.holds or ()))
    if holding.chain != chain:
        series.store(space, user, holding.chain)
    for row in survivors.rows.values():
        check_keys_of(user, holding, row)
    return {
        m: _rows_of(space, user, holding.chain.keys[m], row) for m, row in survivors.rows.items()
    }


def check_keys_of(user: int, holding: series.Holding, row: Row) -> None:
    """Refuse to answer without the keys of a survivor, or with others than its X names."""
    m = row.user
    if m in holding.bad:
        raise BadData(f"the keys of user {m} do not fit: {holding.bad[m]}", _SPOILT)
    if m not in holding.chain.lists:
        raise InputMissing(
            f"user {user} has not entered the keys of user {m}: its X does not name them",
            "other users answer; this one holds too little",
        )
    if holding.chain.lists[m] != row.dealt:
        raise BadData(
            f"user {m} gave this user another list of keys than the one that its X names",
            _SPOILT,
        )


def _rows_of(
    space: Workspace, user: int, keys: Mapping[tuple[int, ...], bytes], row: Row
) -> Callable[[Integers], tuple[Symbols, ...]]:
    session = space.session
    deal = session.deal(row.user, row.sharing)
    return HeldKeys(session, user, deal=deal, keys=keys).read
