"""What anybody checks before using a round: which session this is, and whose keys it has.

A user that takes part also has keys of its own, which `keygen` makes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from ..errors import Advice, BadData, Hint, Refused, UsageError
from ..storage import folder as folder_file
from ..storage.atomic import PRIVATE, write_whole
from ..storage.keys import Identity, Recipient, read_identity, read_recipients
from ..storage.ledger import Ledger
from ..storage.session import FINGERPRINT_DIGITS, Session
from ..storage.workspace import Workspace
from .arguments import AnyPath, AnyRound, optional_path, path_of, whole_number, workspace
from .costs import check_affordable


class Pins(TypedDict, total=False):
    """What every function takes that reads a round: where its secrets are, and which session and
    keys are expected."""

    secrets: AnyPath | None
    session: str | None
    series: str | None
    recipients: AnyPath | None


class Limits(TypedDict, total=False):
    """What the round may cost at most, in bytes."""

    max_memory: int | None
    max_disk: int | None


class Decoding(Pins, Limits, total=False):
    """What decoding takes: the pins and the limits."""


class TakingPart(Pins, total=False):
    """What every function takes that is for one user: the pins, and its keys."""

    identity: AnyPath | None


class Step(TakingPart, Limits, total=False):
    """What every step of a user takes: the limits too."""


@dataclass(frozen=True)
class Access:
    """How somebody uses a round: `Pins` or `TakingPart` without the folders.

    `session`: the name, or the first 16 digits or more, of the only session to use; `series`: the
    same of the only series. `recipients`: an own list of everybody's public
    keys, which the session must have. These are the pins, which every function takes that reads a
    round. `identity` is for users that take part: the user's key file in a sealed round. What a
    round costs may not be above `max_memory` and `max_disk`, in bytes; by default not above the
    memory of the machine.
    """

    identity: Path | None = None
    session: str | None = None
    series: str | None = None
    recipients: Path | None = None
    max_memory: int | None = None
    max_disk: int | None = None


PLAIN = Access()


def taking_part(
    round: AnyRound,
    *,
    secrets: AnyPath | None = None,
    session: str | None = None,
    series: str | None = None,
    recipients: AnyPath | None = None,
    identity: AnyPath | None = None,
    max_memory: int | None = None,
    max_disk: int | None = None,
) -> tuple[Workspace, Access]:
    """The round, and what is expected of it and of who uses it."""
    access = Access(
        identity=optional_path("identity", identity),
        session=session,
        series=series,
        recipients=optional_path("recipients", recipients),
        max_memory=None if max_memory is None else whole_number("max_memory", max_memory),
        max_disk=None if max_disk is None else whole_number("max_disk", max_disk),
    )
    return workspace(round, secrets), access


def keygen(user: int, secrets: AnyPath) -> Recipient:
    """Make the keys of one user for sealed rounds, in its folder of secrets, to which they are
    tied.

    Keys that are there already stay.

    Arguments:
    user: the user's number, from 1.
    secrets: the folder of secrets, in which user-NN.identity is made; a new one too.

    Returns the public keys; `line()` of them is a line of the file that `init` takes as
    `recipients`.
    """
    if whole_number("user", user) < 1:
        raise UsageError(f"there is no user {user}", "users are numbered from 1")
    folder = path_of("secrets", secrets)
    space = Workspace(folder, folder)
    path = space.identity_path(user)
    number = folder_file.ensure(space)
    if not os.path.lexists(path):
        write_whole(path, Identity.drawn(number).content(user), PRIVATE)
    identity = read_identity(path)
    folder_file.check(space, identity.folder, str(path))
    return identity.public(user)


def admitted(space: Workspace, user: int, access: Access) -> Identity | None:
    """The keys of a user of a sealed round, which must be those in the session, and tied to the
    folder of secrets, once everything about that is as expected; None in a plain round."""
    check_pins(space, access)
    space.check_user(user)
    check_affordable(space, access.max_memory, access.max_disk)
    recipient = space.session.recipient(user)
    if recipient is None:
        _check_plain(space, access)
        return None
    if space.secrets is None:
        raise Refused(
            "this round is sealed, and its secrets would be in the folder of the round: a copy of "
            "that, or a fresh one, brings a fresh ledger along",
            "name the folder of secrets in which `keygen` made the user's identity",
            Advice.SECRETS_FOLDER,
        )
    path = access.identity or space.identity_path(user)
    identity = read_identity(path)
    _check_owner(space.session, user, identity, path)
    folder_file.check(space, identity.folder, str(path))
    return identity


def _check_plain(space: Workspace, access: Access) -> None:
    """Refuse a plain round in another account's folder, or with an identity."""
    if space.root.stat().st_uid != os.geteuid():
        raise Refused(
            f"{space.root} belongs to another account, and this round is not sealed",
            "plain shares are for two users only: share a folder in rounds with keys, "
            "or use a folder of your own",
        )
    if access.identity is not None:
        raise Refused(
            "an identity was given, and this round is not sealed",
            "your shares would be readable by anyone who gets the files; "
            "ask for a session with keys",
        )


def _check_owner(session: Session, user: int, identity: Identity, path: Path) -> None:
    """Refuse keys that the session does not have for this user."""
    if identity.public(user) == session.recipient(user):
        return
    wrong = BadData(
        f"{path} does not hold the keys that the session has for user {user}",
        "give the right identity",
    )
    owner = next((r.user for r in session.recipients or () if identity.public(r.user) == r), None)
    if owner is None:
        raise wrong
    hint = f"{wrong.hint}: this is that of user {owner}"
    raise wrong.but(hint=hint, advice=Advice.OF_OTHER_USER, values={"user": owner})


def check_pins(space: Workspace, access: Access) -> None:
    """Refuse another session or series than the one expected, or one with other keys."""
    check_session(space, access)
    check_series(space, access)
    check_keys(space, access)


def check_session(space: Workspace, access: Access) -> None:
    """Refuse another session than the pinned one, before anything in session.json is parsed."""
    if access.session is not None:
        _check_pin("session", space.session_id, access.session)


def check_series(space: Workspace, access: Access) -> None:
    """Refuse a session of another series than the pinned one.

    The session with which the series began will do as a pin too. It says less than the name of the
    series: anybody can write it into a session with other recipients.
    """
    if access.series is None:
        return
    session = space.session
    if not session.series_root.startswith(_digits("series", access.series)):
        _check_pin("series", session.series_name, access.series)


def names_series(access: Access, session: Session) -> bool:
    """Whether the name of the session's series was given, which covers all users' keys."""
    return access.series is not None and session.series_name.startswith(
        _digits("series", access.series)
    )


def _digits(what: str, given: str) -> str:
    """The digits of a pin, in lower case."""
    pin = given.lower()
    if len(pin) < FINGERPRINT_DIGITS or set(pin) - set("0123456789abcdef"):
        raise UsageError(
            f"{given!r} does not name a {what}",
            f"give at least {FINGERPRINT_DIGITS} of its hex digits",
        )
    return pin


def _check_pin(what: str, name: str, given: str) -> None:
    """Refuse a name that does not begin with the digits that were given."""
    pin = _digits(what, given)
    if not name.startswith(pin):
        same = next(i for i, _ in enumerate(pin) if not name.startswith(pin[: i + 1]))
        digits = max(FINGERPRINT_DIGITS, same + 1)  # enough to see where they differ
        raise Refused(
            f"this is {what} {name[:digits]}, not {pin[:digits]}",
            "ask the user that started the round which session.json is the right one",
            Advice.PIN_SESSION if what == "session" else None,
        )


def check_keys(space: Workspace, access: Access) -> None:
    """Refuse a session with other keys than the pinned ones, or with none."""
    if access.recipients is None:
        return
    keys = space.session.recipients
    if keys is None:
        raise Refused(
            "the session has no keys, and you expect it to have some",
            "do not use this round: nothing in it is sealed or signed",
        )
    for theirs, mine in zip(keys, read_recipients(access.recipients, len(keys)), strict=True):
        if theirs != mine:
            raise Refused(
                f"the session has other keys for user {mine.user} than {access.recipients}",
                "do not use this round: that user's part in it is somebody else's",
            )


def hint_of_secrets(space: Workspace, user: int, hint: str) -> Hint:
    """A hint to name the folder of a user's secrets; where they are in the round's own, which no
    name of a folder leads to, it says that."""
    own = Workspace(space.root)
    if space.secrets is None or not own.runs_here(user):
        return hint, Advice.SECRETS_FOLDER
    return f"they are in the folder of the round, {own.private}", Advice.OWN_SECRETS


def other_folder(space: Workspace, ledger: Ledger) -> str | None:
    """Where this user prepared this session, if its round has another folder now.

    The folder was moved, or an old session.json was issued once more, with old X and shares.
    """
    if space.secrets is None or ledger.folder in (None, str(space.root.resolve())):
        return None
    return ledger.folder
