"""A series of rounds: keys that follow from those of an earlier round, on the user's own machine."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from ..errors import BadData, InputMissing, Refused, UsageError
from ..storage import dealt as dealt_file
from ..storage import held as held_file
from ..storage import secret as secret_file
from ..storage.held import Held
from ..storage.keys import Identity
from ..storage.ledger import Ledger
from ..storage.session import Session
from ..storage.share import KeysFile, opened_share
from ..storage.workspace import Workspace


def carried_keys(
    space: Workspace, earlier: Workspace, user: int, identity: Identity | None
) -> Held:
    """The keys of this round that follow from those of an earlier one of the same series."""
    _check_same_series(space.session, earlier.session)
    before = keys_of_round(earlier, user, identity)
    generation = space.session.generation
    if before.generation > generation:
        raise Refused(
            f"{earlier.root} has keys of generation {before.generation}, and this round is "
            f"generation {generation}: keys never go back",
            "name a round that is not later than this one, or start a new series",
        )
    return before.advanced(generation)


def _check_same_series(session: Session, earlier: Session) -> None:
    """Refuse a round that does not belong to the series, or keeps not what it must keep."""
    if session.series is None:
        raise UsageError(
            "this round is no later one of a series: its keys are dealt",
            "leave out the earlier round",
            "from",
        )
    if earlier.family is None or earlier.series_root != session.series_root:
        raise BadData(
            "the earlier round does not belong to the series of this one",
            "name a round of the same series",
        )
    for name, value in session.kept_in_series().items():
        if earlier.kept_in_series()[name] != value:
            raise BadData(
                f"this round has another {name} than its series",
                "do not use it: ask who started it",
            )


def keys_of_round(space: Workspace, user: int, identity: Identity | None) -> Held:
    """All keys of a round that a user has: its own, and those that it holds of others.

    In the root round these were dealt; each is compared with its dealer's list, and left out if it
    has not arrived or does not fit.
    """
    ledger = Ledger.read(space.ledger_path(user), space.session.id, user)
    if ledger.forgotten:
        return _next_generation(space, user)
    own = secret_file.read(space, user).secret.keys
    if space.session.series is not None:
        held = held_file.read(space, user)
        # with own keys it is of the next generation: `forget` was stopped
        return held if held.own else replace(held, own=own)
    keys = {}
    lists = {}
    for m in space.users():
        with (
            suppress(InputMissing, BadData),
            opened_share(space, user, m, identity=identity) as share,
        ):
            if isinstance(share, KeysFile):
                dealt = dealt_file.read(space, m)
                dealt.check(share.keys)
                keys[m] = share.keys
                lists[m] = dealt.digest
    return Held(space.session.generation, keys, lists, own)


def check_own_list(user: int, keys: Held) -> None:
    """Refuse keys with which a user could not go on: its X names its own list."""
    if user not in keys.lists:
        raise InputMissing(
            f"user {user} lacks its own list of keys of the root round, or its own share",
            f"put them back: dealt/user-{user:02}.json, and its share for itself",
        )


def _next_generation(space: Workspace, user: int) -> Held:
    """What a user kept when it forgot a round."""
    held = held_file.read(space, user) if space.held_path(user).exists() else None
    if held is None or not held.own:  # the keys of this round are about to be erased
        raise Refused(
            f"user {user} has ended the series with this round", "a new series needs new keys"
        )
    return held
