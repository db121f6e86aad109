"""Keys that a user holds, compared with what their dealer published."""

from __future__ import annotations

from ..errors import BadData
from ..storage import dealt as dealt_file
from ..storage.share import KeysFile, OpenShare
from ..storage.workspace import Workspace


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
    """Refuse to answer with keys that are not those of the list that X names.

    An answer without this dealer's term would be wrong, and name its author.
    """
    if expected is None:
        return
    try:
        digest = list_of_keys(space, dealer, share)
    except BadData as error:
        message = f"the keys of user {dealer} do not fit: {error.message}"
        # a list that is damaged can be fetched again; keys that differ from it cannot
        raise BadData(message, error.hint or _HINT) from error
    if digest != expected:
        raise BadData(
            f"user {dealer} gave this user another list of keys than the one that its X names",
            _HINT,
        )


_HINT = "do not answer; tell the other users, and start a new round without that user"
