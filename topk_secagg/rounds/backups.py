"""Whether a ledger is as old as what its user has sent: a folder of secrets that came back from a
backup must not be used."""

from __future__ import annotations

from contextlib import suppress

from ..errors import Refused, SecAggError
from ..storage import masked as masked_file
from ..storage import survivors as survivors_file
from ..storage.answer import answered_before
from ..storage.ledger import Ledger
from ..storage.workspace import Workspace

_HINT = (
    "was the folder of secrets restored from a backup? do not use it in this round: start a new one"
)


def check_knows(space: Workspace, ledger: Ledger) -> None:
    """Refuse a ledger that does not know what its user has sent in the round, as its public files
    show it.

    In a sealed round, files that are not signed as they should be show nothing; nor does a
    survivors.json that too few users confirmed, where users confirm.
    """
    user = ledger.user
    if _published_x(space, user) - {ledger.masked}:
        raise Refused(f"user {user} has sent another X in this round than its ledger knows", _HINT)
    answered = answered_before(space, user)
    if answered not in (None, ledger.answered):
        raise Refused(
            f"user {user} has answered another survivor set in this round than its ledger knows",
            _HINT,
        )


def _published_x(space: Workspace, user: int) -> set[str | None]:
    """The digests of X that this user sent."""
    known: set[str | None] = set()
    with suppress(SecAggError):
        known.add(masked_file.read(space.session, space.masked_path(user), user).digest)
    survivors = survivors_file.fixed(space)
    if survivors is not None and user in survivors.rows:
        known.add(survivors.rows[user].sha256)
    return known
