"""What became of the rounds in which a user sent a gradient: it must not be sent again lightly.

A round that failed counts as published. A user that dealt bad shares, or sent noise, knows its own
part of the answers: it subtracts that, and has the sum of the honest users alone. The same
gradients in another round with other survivors give a second sum, and the difference is somebody's
input.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ..errors import Advice, Busy, CannotLock, Refused, SecAggError
from ..storage import aggregate as aggregate_file
from ..storage import inputs
from ..storage import survivors as survivors_file
from ..storage.artifacts import opened
from ..storage.atomic import Array
from ..storage.ledger import DECODED, FAILED, Ledger
from ..storage.workspace import Workspace

LEFT_OUT = "left out"
PUBLISHED = (
    "a round that failed counts as published: "
    "do not send the same gradient again with other survivors"
)


def record_outcome(space: Workspace, outcome: str) -> None:
    """Tell the ledgers that are here what became of the round, if they remember a gradient.

    A sum, once decoded, stays known. A ledger of another account, of a user that is at work, or on
    a file system without locks is left as it is: `mask` then asks if its user answered, unless it
    finds the sum itself.
    """
    for user in space.users():
        if _ledger_without(space, user, outcome) is None:
            continue
        with suppress(Busy, CannotLock, Refused), space.step_of(user):
            ledger = _ledger_without(space, user, outcome)
            if ledger is not None:
                ledger.record(outcome=outcome)


def _ledger_without(space: Workspace, user: int, outcome: str) -> Ledger | None:
    """The ledger of a user, if it is here, remembers a gradient, and does not know the outcome."""
    try:
        ledger = Ledger.read(space.ledger_path(user), space.session.id, user)
    except SecAggError:  # it is not here, or is no ledger of this round
        return None
    known = ledger.input is None or ledger.outcome in (outcome, DECODED)
    return None if known else ledger


def known_outcome(ledger: Ledger) -> str | None:
    """What became of the X of a ledger: DECODED, FAILED, LEFT_OUT, or None if that is not known.

    The ledger says so, or else the public files in the folder of its round.
    """
    space = Workspace(Path(ledger.folder)) if ledger.folder else None
    with suppress(SecAggError, OSError):
        if space and space.session.id == ledger.session:
            survivors = survivors_file.fixed(space)
            if survivors and ledger.user not in survivors.digests and ledger.answered is None:
                return LEFT_OUT
            if ledger.outcome is None and _has_sum(space, ledger):
                return DECODED
    return ledger.outcome


def _has_sum(space: Workspace, ledger: Ledger) -> bool:
    """Whether the sum of the survivors that this user answered for is in the folder of the
    round."""
    with opened(space.aggregate_path, aggregate_file.KIND) as artifact:
        aggregate = aggregate_file.parsed(space, artifact)
    return ledger.answered in (None, aggregate.survivors_sha256)


def sent_before(space: Workspace, gradient: Array, *, again: bool) -> list[str]:
    """The other rounds in which this very gradient was masked, and may be in a sum.

    Refuses if one of them failed, or was answered and has no sum that its user knows of; `again`
    goes on all the same.
    """
    key = inputs.read_key(space)
    if key is None:
        return []
    rounds = []
    for ledger in inputs.ledgers_with(space, inputs.digest(key, gradient)):
        outcome = known_outcome(ledger)
        if outcome == LEFT_OUT:
            continue
        where = ledger.folder or f"session {ledger.session}"
        if outcome == FAILED and not again:
            raise Refused(
                f"this gradient was masked in the round in {where} too, and that round failed",
                PUBLISHED,
                Advice.AGAIN,
            )
        if outcome is None and ledger.answered and not again:
            raise Refused(
                f"this gradient was answered for in the round in {where}, and no sum is known",
                "decode that round first; if it cannot be decoded, it counts as published",
                Advice.DECODE_FIRST,
                folder=where,
            )
        rounds.append(where)
    return rounds
