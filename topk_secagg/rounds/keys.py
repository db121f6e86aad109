"""Whether a user has taken part, and whether keys that a user holds fit what their dealer
published."""

from __future__ import annotations

from contextlib import suppress

from ..errors import BadData, SecAggError, about
from ..storage import dealt as dealt_file
from ..storage import masked as masked_file
from ..storage import survivors as survivors_file
from ..storage.keys import Identity
from ..storage.share import KeysFile, OpenShare, SharesOfUser
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
    return "masked" if survivors and user in survivors.digests else ""


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


def list_of_keys(space: Workspace, dealer: int, share: OpenShare) -> str | None:
    """The digest of a dealer's list, with which the keys of its share agree; None without keys."""
    if not isinstance(share, KeysFile):
        return None
    if share.compared_with is not None:
        return share.compared_with
    dealt = dealt_file.read(space, dealer)
    dealt.check(share.keys)
    return dealt.digest


def check_keys_of_survivor(
    space: Workspace, dealer: int, share: OpenShare, expected: str | None
) -> None:
    """Refuse to answer with keys of this dealer that do not fit the list that its X names.

    `expected` is the digest of that list; None where shares are not dealt by keys. The dealer
    cannot just be left out: such an answer is wrong, and the user that gave it would be named.
    """
    if expected is None:
        return
    try:
        with about(f"the keys of user {dealer} do not fit"):
            digest = list_of_keys(space, dealer, share)
    except BadData as error:
        # a damaged list comes with the hint to fetch it again; keys that differ have no hint
        raise error.but(hint=error.hint or _HINT) from error
    if digest != expected:
        raise BadData(
            f"user {dealer} gave this user another list of keys than the one that its X names",
            _HINT,
        )


_HINT = "do not answer; tell the other users, and start a new round without that user"
