"""`offline`: the secret of one user, and its shares for every user."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Unpack

from ..algebra import entropy
from ..algebra.randomness import KEY_BYTES, source_of
from ..brief import Brief
from ..errors import Advice, BadData, InputMissing, Refused, SecAggError, UsageError, about
from ..progress import Progress, unheard
from ..protocol.constructions import construction
from ..protocol.family import check_family
from ..protocol.parameters import SHARES
from ..storage import dealt as dealt_file
from ..storage import held as held_file
from ..storage import secret as secret_file
from ..storage import share_writer
from ..storage.atomic import mark_done, write_whole
from ..storage.documents import read_bytes
from ..storage.held import HeldKeys
from ..storage.keys import Identity
from ..storage.ledger import Ledger
from ..storage.secret import StoredSecret
from ..storage.session import Session
from ..storage.share import SharesOfUser
from ..storage.workspace import Workspace
from .access import TakingPart, admitted, hint_of_secrets, other_folder, taking_part
from .arguments import CIPHER, OS, SOURCES, AnyRound, check_choice, workspace
from .keys import part_taken
from .series import carried_keys, check_own_list, has_left, leave


@dataclass(frozen=True, repr=False)
class OfflineReport(Brief):
    """What `offline` did: how many share files it wrote, and how many it found complete.

    `share_bytes` are those of the largest share, or the most keys, that it sends to one user.
    `other_folder` is where this user prepared the same session before, if that was not here.
    """

    user: int
    randomness: str
    shares_written: int
    shares_kept: int
    share_bytes: int
    other_folder: str | None = None


def offline(
    round: AnyRound,
    user: int,
    *,
    randomness: str = CIPHER,
    from_: AnyRound | None = None,
    progress: Progress = unheard,
    **access: Unpack[TakingPart],
) -> OfflineReport:
    """Offline phase of one user: draw Z_n, write secrets/user-n.h5 and shares/user-m/from-n.h5 for
    every m.

    An interrupted run continues with the same shares, since their noise comes from a key in the
    secret file; noise from the system cannot be drawn again, so there a new secret is drawn
    instead.

    Arguments:
    round: the folder of the round.
    user: the user's number, from 1.
    randomness: "cipher" (AES-256-CTR keyed by the operating system) or "os" (every byte from it).
    from_: an earlier round of the same series, from whose keys those of this round follow;
        nothing is sent.
    progress: called with the share that is done, 0 to 1.
    secrets: the folder of the user's secrets and ledgers, instead of the round's own.
    session: refuse any other session than this one; at least 16 of its digits.
    series: the same of the series of the round, whose name `init` and `inspect` say.
    recipients: refuse a session that has other keys than this file.
    identity: the user's keys, in a sealed round.

    Returns an OfflineReport.
    """
    space, how = taking_part(round, **access)
    signer = admitted(space, user, how)
    session = space.session
    p = session.parameters
    check_choice("source of randomness", randomness, SOURCES)
    if randomness == OS:
        _check_may_be_os(session)
    if session.family is not None:
        with about(space.session_path):
            check_family(p, session.points, session.family)
    if session.series is not None or from_ is not None:
        before = None if from_ is None else workspace(from_, space.secrets)
        return _offline_in_series(space, user, earlier=before, signer=signer)
    with space.step_of(user):
        _check_first_time(space, user, signer)
        ledger, stored = _secret(space, user, randomness)
        _check_secret_fits(space, ledger, stored=stored, randomness=randomness)
        missing = _users_without_share(space, ledger, stored)
        if missing and stored.randomness == OS:
            stored = _drawn_again(space, ledger)
            missing = list(space.users())
        dealt = _publish(space, user, stored=stored, signer=signer)
        if missing:
            share_writer.write(
                space,
                users=missing,
                deal=session.deal(user, stored.sharing),
                secret=stored.secret,
                source=source_of(stored.randomness, stored.key),
                signer=signer,
                progress=progress,
            )
        ledger.record(shared=stored.sharing, dealt=dealt)
        # the share for the last user last, which then stands for all
        mark_done(space.secret_path(user), *(space.share_path(m, user) for m in space.users()))
    return OfflineReport(
        user=user,
        randomness=stored.randomness,
        shares_written=len(missing),
        shares_kept=p.users - len(missing),
        share_bytes=max(
            construction(p).held_bytes(m, session.family or ()) for m in space.users() if m != user
        ),
        other_folder=other_folder(space, ledger),
    )


def _check_may_be_os(session: Session) -> None:
    """Refuse randomness from the operating system alone where keys are dealt."""
    dealing = session.parameters.dealing
    if dealing != SHARES:
        raise UsageError(
            f"this round deals {dealing}, which are expanded by a cipher",
            "start a round whose shares are written out",
            Advice.DEALING,
            dealing=SHARES,
        )


def _check_secret_fits(
    space: Workspace, ledger: Ledger, *, stored: StoredSecret, randomness: str
) -> None:
    """Refuse a secret whose shares are not those that were made, or that was drawn otherwise."""
    user = ledger.user
    if ledger.shared not in (None, stored.sharing):
        raise Refused(
            f"{space.secret_path(user)} is not the secret whose shares were made",
            "put that one back, or start a new round",
        )
    if randomness == OS and stored.randomness != OS:
        raise Refused(
            f"user {user} has a secret already, and not every byte of it is from the operating "
            "system",
            "keep it, or start a new round",
        )


def _users_without_share(space: Workspace, ledger: Ledger, stored: StoredSecret) -> list[int]:
    """The users whose share of this secret is not there yet.

    A sealed share does not show of which secret it is: those that are there count only when the
    ledger says that all shares of this secret were written.
    """
    is_sealed = space.session.recipients is not None
    if is_sealed and ledger.shared != stored.sharing:
        return list(space.users())
    return [
        m for m in space.users() if not SharesOfUser(space, m).is_there(ledger.user, stored.sharing)
    ]


def _drawn_again(space: Workspace, ledger: Ledger) -> StoredSecret:
    """A new secret from the operating system, in place of one whose shares are not complete: their
    noise is not kept. Refused once all of them were made."""
    if ledger.shared:
        raise Refused(
            f"shares of user {ledger.user} are gone, and their noise cannot be drawn again",
            "restore them from where they were sent, or start a new round",
        )
    return _draw(space, ledger.user, OS)


def _offline_in_series(
    space: Workspace, user: int, *, earlier: Workspace | None, signer: Identity | None
) -> OfflineReport:
    """The same in a later round of a series: keys follow from those of an earlier round.

    Shares of the root round that arrive late are added until the user masks.
    """
    with space.step_of(user):
        _check_first_time(space, user, signer)
        # keys are read before a ledger is begun: who names a wrong round has lost nothing
        adds_keys = False
        if earlier is None:
            held = _prepared_before(space, user)
        elif _is_stored(space, user) and has_left(space, earlier, user=user):
            held = held_file.read(space, user)
        else:
            adds_keys = True
            held = carried_keys(space, earlier, user=user, identity=signer)
        check_own_list(user, held)
        ledger, stored = _stored_secret(space, user)
        if stored is None:
            stored = _draw(space, user, CIPHER, keys=held.own)
        elif adds_keys and earlier is not None and stored.secret.keys != held.own:
            raise BadData(
                f"the keys that follow from {earlier.root} are not those of this round",
                f"name the round from which user {user} prepared this one",
            )
        if adds_keys:
            held = _stored_with(space, ledger, held)
        # stored here, then erased there, and only then of use: wherever this is stopped, no keys
        # that open this round are forgotten in the earlier one
        if earlier is not None:
            leave(earlier, user, space.session.generation)
        ledger.record(shared=stored.sharing, dealt=held.lists[user])
        mark_done(space.secret_path(user), space.held_path(user))
    return OfflineReport(
        user=user,
        randomness=stored.randomness,
        shares_written=0,
        shares_kept=len(held.lists),
        share_bytes=0,
        other_folder=other_folder(space, ledger),
    )


def _is_prepared(space: Workspace, user: int) -> bool:
    """Whether a user has prepared this round already."""
    if not space.ledger_path(user).exists() and not space.secret_path(user).exists():
        return False
    ledger = _ledger(space, user)
    return ledger.shared is not None and space.secret_path(user).exists()


def _stored_with(space: Workspace, ledger: Ledger, held: HeldKeys) -> HeldKeys:
    """Store the keys that follow from an earlier round, with those that are here already.

    Once X says whose keys its user holds, nothing is added; a file that was lost is made again.
    """
    user = ledger.user
    before = None
    path = space.held_path(user)
    if path.exists():
        try:
            before = held_file.read(space, user)
        except BadData as error:
            raise error.but(hint=f"delete {path} and run this again") from error
        held_file.check_unforgotten(before, path, user)
    if ledger.masked is None:
        more = held if before is None else held.with_more(before)
        held_file.write(space, user, replace(more, own=()))
        return more
    if before is None:
        before = held.only(ledger.holds or ())
        held_file.write(space, user, replace(before, own=()))
    return before


def _is_stored(space: Workspace, user: int) -> bool:
    """Whether the secret and the keys of this round are there: then they are complete, even if
    `offline` was stopped afterwards."""
    return space.secret_path(user).exists() and space.held_path(user).exists()


def _prepared_before(space: Workspace, user: int) -> HeldKeys:
    """What a user holds in this round, where it has prepared it already."""
    if _is_prepared(space, user):
        return held_file.read(space, user)
    raise InputMissing(
        f"this round is generation {space.session.generation} of a series: its keys"
        " follow from those of an earlier round",
        "name that round",
        Advice.FROM,
    )


def _secret(space: Workspace, user: int, randomness: str) -> tuple[Ledger, StoredSecret]:
    """The secret and ledger on disk, or new ones."""
    ledger, stored = _stored_secret(space, user)
    return ledger, stored or _draw(space, user, randomness)


def _stored_secret(space: Workspace, user: int) -> tuple[Ledger, StoredSecret | None]:
    """The ledger on disk, or a new one, and the secret if there is one; the ledger first: a secret
    without one is not used."""
    ledger = _ledger(space, user)
    return ledger, secret_file.read(space, user) if space.secret_path(user).exists() else None


def _ledger(space: Workspace, user: int) -> Ledger:
    """The ledger on disk, or a new one. It must be new, or unused, where there is no secret."""
    session = space.session
    path = space.ledger_path(user)
    if space.secret_path(user).exists():
        ledger = Ledger.read(path, session.id, user)
        ledger.check_kept()  # `forget` may have been stopped before it erased the secret
        return ledger
    if not path.exists():
        folder = str(space.root.resolve()) if space.secrets else None
        Ledger(path, session.id, user=user, folder=folder).write()
    ledger = Ledger.read(path, session.id, user)
    ledger.check_kept()
    if ledger.shared:
        raise Refused(
            f"the secret of user {user} is gone, and its shares were already made",
            "restore it from a backup, or start a new round",
        )
    return ledger


def _check_first_time(space: Workspace, user: int, signer: Identity | None) -> None:
    """Refuse to draw a second secret, with a ledger that knows nothing of the first one: others may
    hold shares of that, which would not fit the X of the second, or its X and Y."""
    if space.ledger_path(user).exists() or space.secret_path(user).exists():
        return
    if part := part_taken(space, user, signer):
        raise Refused(
            f"user {user} has {part} in this round already, and its secret is not in "
            f"{space.private}",
            *hint_of_secrets(
                space, user, "if its secrets are lost, start a new round; else name their folder"
            ),
        )


def _draw(
    space: Workspace, user: int, randomness: str, keys: tuple[bytes, ...] | None = None
) -> StoredSecret:
    """Draw a new secret and make it durable before any share of it exists.

    In a later round of a series its keys are given.
    """
    session = space.session
    c = construction(session.parameters)
    key = entropy.draw(KEY_BYTES, f"secret of user {user} in session {session.id}")
    source = source_of(randomness, key)
    sharing = source.child("sharing").bytes(KEY_BYTES).hex()
    deal = session.deal(user, sharing)
    secret = c.draw_secret(deal, source) if keys is None else c.secret_of_keys(deal, keys)
    stored = StoredSecret(
        secret=secret,
        key=key,
        randomness=randomness,
        sharing=sharing,
    )
    secret_file.write(space, user, stored)
    return stored


def _publish(
    space: Workspace, user: int, stored: StoredSecret, signer: Identity | None
) -> str | None:
    """Write the commitments to the keys of this secret, where shares are dealt by keys; their
    digest."""
    session = space.session
    if session.family is None:
        return None
    path = space.dealt_path(user)
    content = dealt_file.content(session, user, keys=stored.secret.keys, signer=signer)
    there = None
    with suppress(SecAggError):  # nothing is there, or no ordinary file
        there = read_bytes(path, "", largest=len(content))
    if there != content:
        space.make_room(path)
        write_whole(path, content)
    return dealt_file.read(space, user).digest
