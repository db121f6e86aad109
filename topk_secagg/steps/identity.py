"""Whose keys a step uses in a round with recipients."""

from __future__ import annotations

from pathlib import Path

from ..errors import BadData, UsageError
from ..storage.keys import Identity, read_identity
from ..storage.workspace import Workspace


def own_identity(space: Workspace, user: int, path: Path | None) -> Identity | None:
    """The keys of a user of a sealed round, which must be those in the session; None in a plain round."""
    recipients = space.session.recipients
    if recipients is None:
        return None
    if path is None:
        raise UsageError(
            "this round is sealed and signed, and no identity was given", "add --identity FILE (see keygen)"
        )
    identity = read_identity(path)
    if identity.public(user) != recipients[user - 1]:
        raise BadData(
            f"{path} does not hold the keys that the session has for user {user}", "check --identity"
        )
    return identity
