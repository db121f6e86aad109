"""Whether a user has taken part in a round, as far as its public files show."""

from __future__ import annotations

from contextlib import suppress

from ..errors import SecAggError
from ..storage import dealt as dealt_file
from ..storage import masked as masked_file
from ..storage import survivors as survivors_file
from ..storage.keys import Identity
from ..storage.share import SharesOfUser
from ..storage.workspace import Workspace


def part_taken(space: Workspace, user: int, opener: Identity | None = None) -> str:
    """What a user has done in this round, as far as its files show: "dealt", "masked", or nothing.

    In a later round of a series nothing is dealt, and in others the shares may be gone.
    """
    if has_dealt(space, user, opener):
        return "dealt"
    with suppress(SecAggError):
        masked_file.read(space.session, space.masked_path(user), user)
        return "masked"
    survivors = survivors_file.fixed(space)
    return "masked" if survivors and user in survivors.rows else ""


def has_dealt(space: Workspace, user: int, opener: Identity | None = None) -> bool:
    """Whether something that a user dealt in this round is here: its list, or a share.

    A file that only has the name of one does not count: anybody could have put it there. In a
    sealed round that is the user's signed list, or, where there are no lists, its share for itself;
    without its identity that share counts if it looks sealed.
    """
    if space.session.family is not None:
        with suppress(SecAggError):
            dealt_file.read(space, user)
            return True
        return False
    if space.session.recipients is None:
        return any(SharesOfUser(space, m).is_there(user) for m in space.users())
    own = SharesOfUser(space, user, opener)
    if opener is None:
        return own.is_there(user)
    with suppress(SecAggError), own.opened(user):
        return True
    return False
