"""A series of rounds: keys that follow from those of an earlier round, on the user's own
machine."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from ..errors import Advice, BadData, InputMissing, Refused, UsageError
from ..storage import dealt as dealt_file
from ..storage import held as held_file
from ..storage import secret as secret_file
from ..storage.atomic import erase
from ..storage.held import HeldKeys
from ..storage.keys import Identity
from ..storage.ledger import Ledger
from ..storage.session import Session
from ..storage.share import KeysFile, SharesOfUser
from ..storage.workspace import Workspace
from .keys import list_of_keys

_WORDS = {  # for what a series keeps
    "users": "number of users",
    "survivors": "number of survivors",
    "colluders": "number of colluders",
    "points": "set of points",
    "family": "family of blocks",
    "recipients": "list of recipients",
    "freezer": "freezer",
    "confirm": "rule of confirmation",
}


def carried_keys(
    space: Workspace, earlier: Workspace, user: int, identity: Identity | None
) -> HeldKeys:
    """The keys of this round that follow from those of an earlier one of the same series."""
    _check_same_series(space.session, earlier.session)
    before = latest_keys(earlier, user, identity)
    generation = space.session.generation
    if before.generation > generation:
        raise Refused(
            f"{earlier.root} has keys of generation {before.generation}, and this round is "
            f"generation {generation}: keys never go back",
            "name a round that is not later than this one; if you have no keys of one, this round "
            "has to be started from the one that you named, or in a new series",
            Advice.STARTED_FROM,
            folder=earlier.root,
        )
    return before.advanced(generation)


def leave(earlier: Workspace, user: int, generation: int) -> None:
    """Note in an earlier round that its keys were carried on to this generation, and erase what
    `forget` kept there: the series goes on from the later round alone.

    Otherwise the keys that are left would open that round after it is forgotten.
    """
    with earlier.step_of(user):
        ledger = Ledger.read(earlier.ledger_path(user), earlier.session.id, user)
        ledger = ledger.record(carried=max(generation, ledger.carried or 0))
        if ledger.forgotten:
            erase(earlier.held_path(user))


def has_left(space: Workspace, earlier: Workspace, user: int) -> bool:
    """Whether a user carried the keys of an earlier round of the same series on to the generation
    of this one, or a later one, and has forgotten them there."""
    _check_same_series(space.session, earlier.session)
    generation = space.session.generation
    ledger = Ledger.read(earlier.ledger_path(user), earlier.session.id, user)
    return ledger.forgotten and (ledger.carried or 0) >= generation


def _check_same_series(session: Session, earlier: Session) -> None:
    """Refuse a round that does not belong to the series, or keeps not what it must keep."""
    if session.series is None:
        raise UsageError(
            "this round is no later one of a series: its keys are dealt",
            "leave out the earlier round",
        )
    if earlier.id == session.id:
        raise UsageError("the keys of a round do not follow from its own", "name an earlier round")
    if earlier.family is None or earlier.series_root != session.series_root:
        raise BadData(
            "the earlier round does not belong to the series of this one",
            "name a round of the same series",
        )
    for name, value in session.kept_in_series().items():
        if earlier.kept_in_series()[name] != value:
            raise BadData(
                f"this round has another {_WORDS[name]} than its series",
                "do not use it: ask who started it",
            )


def latest_keys(space: Workspace, user: int, identity: Identity | None) -> HeldKeys:
    """The keys from which a user goes on after a round: those of the round, or, once it has
    forgotten them, those of the next generation, which it kept."""
    ledger = Ledger.read(space.ledger_path(user), space.session.id, user)
    if ledger.forgotten:
        return _next_generation(space, user)
    own = secret_file.read(space, user).secret.keys
    if space.session.series is None:
        return _dealt_keys(space, user, own=own, identity=identity)
    held = held_file.read(space, user)
    if held.own:  # `forget` was stopped in between: these are of the next generation already
        return held
    return replace(held, own=own)


def _dealt_keys(
    space: Workspace, user: int, *, own: tuple[bytes, ...], identity: Identity | None
) -> HeldKeys:
    """The keys of the root round, where they were dealt: those of the user itself too.

    Each is compared with its dealer's list. One that has not arrived or does not fit is left out,
    and may be added later. The user's own list must fit all its keys: X names it, and with another
    one its holders would take this user for a cheat.
    """
    keys = {}
    lists = {}
    shares = SharesOfUser(space, user, identity)
    blocks = space.session.family or ()
    for m in space.users():
        with suppress(InputMissing, BadData), shares.opened(m) as share:
            digest = list_of_keys(space, m, share)
            if m == user:
                dealt_file.read(space, user).check(dict(zip(blocks, own, strict=True)))
            if isinstance(share, KeysFile) and digest is not None:
                keys[m] = share.keys
                lists[m] = digest
    return HeldKeys(generation=0, keys=keys, lists=lists, own=own)


def check_own_list(user: int, keys: HeldKeys) -> None:
    """Refuse keys with which a user could not go on: its X names its own list."""
    if user not in keys.lists:
        raise InputMissing(
            f"user {user} lacks its own list of keys of the root round, or its own share, or they "
            "do not fit its keys",
            f"put them back: dealt/user-{user:02}.json, and its share for itself",
        )


def _next_generation(space: Workspace, user: int) -> HeldKeys:
    """What a user kept when it forgot a round."""
    held = held_file.read(space, user) if space.held_path(user).exists() else None
    if held is None or not held.own:  # the keys of this round are about to be erased
        carried = Ledger.read(space.ledger_path(user), space.session.id, user).carried
        if carried is not None:
            raise Refused(
                f"user {user} has forgotten this round, and carried its keys on to generation "
                f"{carried}",
                "name the round of that generation",
                Advice.FROM,
            )
        raise Refused(
            f"user {user} has ended the series with this round", "a new series needs new keys"
        )
    return held
