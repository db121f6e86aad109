"""What a user checks before it takes part in a round: which session this is, whose keys it has, its own keys.

`keygen` makes these.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadData, CannotWrite, Refused, UsageError
from ..storage.atomic import PRIVATE, write_whole
from ..storage.keys import Identity, Recipient, read_identity, read_recipients
from ..storage.session import Session
from ..storage.workspace import Workspace

_SHORTEST_PIN = 16


@dataclass(frozen=True)
class Access:
    """How a user takes part.

    `identity`: its key file, in a sealed round. `session`: the name, or the first 16 digits or more, of the only
    session to take part in. `recipients`: the user's own list of everybody's public keys, which the session must
    have. `insecure`: take part although the round is drawn from a public seed.
    """

    identity: Path | None = None
    session: str | None = None
    recipients: Path | None = None
    insecure: bool = False


PLAIN = Access()


def keygen(user: int, path: Path) -> Recipient:
    """Make the keys of one user for sealed rounds.

    Arguments:
    user: the user's number, from 1.
    path: the new identity file, which only its owner can read.

    Returns the public keys; `line()` of them is a line of the file that `init` takes as `recipients`.
    """
    if path.exists():
        raise CannotWrite(f"{path} exists", "keys are not overwritten; choose another name")
    identity = Identity.generate()
    write_whole(path, identity.content(user), PRIVATE)
    return identity.public(user)


def admitted(space: Workspace, user: int, access: Access) -> Identity | None:
    """The keys of a user of a sealed round, which must be those in the session, once everything about that is as
    expected; None in a plain round."""
    space.check_user(user)
    s, path = space.session, access.identity
    check_session(s, access)
    if s.insecure and not access.insecure:
        raise Refused(
            "this round is drawn from a public seed: anyone can unmask it",
            "use it for tests only, and say that you know",
            "insecure",
        )
    recipient = s.recipient(user)
    if recipient is None:
        if space.root.stat().st_uid != os.geteuid():
            raise Refused(
                f"{space.root} belongs to another account, and this round is not sealed",
                "plain shares are for two users only: share a folder in rounds with keys, or use a folder of your own",
            )
        if path is not None:
            raise Refused(
                "an identity was given, and this round is not sealed",
                "your shares would be readable by anyone who gets the files; ask for a session with keys",
            )
        return None
    if path is None:
        raise UsageError(
            "this round is sealed and signed, and no identity was given", topic="identity"
        )
    identity = read_identity(path)
    if identity.public(user) != recipient:
        raise BadData(
            f"{path} does not hold the keys that the session has for user {user}",
            "give the right identity",
        )
    return identity


def check_session(s: Session, access: Access) -> None:
    """Refuse another session than the one expected, or one with other keys."""
    if access.session is not None:
        pin = access.session.lower()
        if len(pin) < _SHORTEST_PIN or set(pin) - set("0123456789abcdef"):
            raise UsageError(
                f"{access.session!r} does not name a session",
                f"give at least {_SHORTEST_PIN} of its hex digits",
            )
        if not s.id.startswith(pin):
            raise Refused(
                f"this is session {s.fingerprint}, not {pin[:_SHORTEST_PIN]}",
                "ask the user that started the round which session.json is the right one",
            )
    if access.recipients is not None:
        if s.recipients is None:
            raise Refused(
                "the session has no keys, and you expect it to have some",
                "do not take part: your shares would not be sealed",
            )
        for theirs, mine in zip(
            s.recipients, read_recipients(access.recipients, len(s.recipients)), strict=True
        ):
            if theirs != mine:
                raise Refused(
                    f"the session has other keys for user {mine.user} than {access.recipients}",
                    "do not take part: shares for that user would go to somebody else",
                )
