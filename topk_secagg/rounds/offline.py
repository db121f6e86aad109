"""`offline`: a user's secret of one round: dealt to every user, or from the keys of its series."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from .. import labels
from ..algebra import entropy
from ..algebra.randomness import KEY_BYTES, source_of
from ..brief import Brief
from ..errors import Advice, BadData, Refused, SecAggError, UsageError
from ..progress import Progress, unheard
from ..protocol.constructions import construction
from ..protocol.deal import Block, drawn_key
from ..protocol.parameters import SHARES
from ..storage import chain as chain_file
from ..storage import dealt as dealt_file
from ..storage import secret as secret_file
from ..storage import share_writer
from ..storage.atomic import mark_done, write_whole
from ..storage.chain import Chain
from ..storage.documents import read_bytes
from ..storage.keys import Identity
from ..storage.ledger import Ledger, Previous
from ..storage.secret import StoredSecret
from ..storage.session import Session
from ..storage.share import SharesOfUser
from ..storage.workspace import Workspace
from . import series
from .access import Step, admitted, hint_of_secrets, other_folder, taking_part
from .arguments import CIPHER, OS, SOURCES, AnyRound, check_choice, workspace
from .costs import check_room
from .part import part_taken


@dataclass(frozen=True, repr=False)
class OfflineReport(Brief):
    """What `offline` did: how many share files it wrote, and how many it found complete; where keys
    follow from those of a series, of how many users it has some.

    `share_bytes` are those of the largest share that it sends to one user. `other_folder` is where
    this user prepared the same session before, if that was not here.
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
    skip_generations: bool = False,
    progress: Progress = unheard,
    **access: Unpack[Step],
) -> OfflineReport:
    """Offline phase of one user: draw Z_n, write secrets/user-n.h5 and shares/user-m/from-n.h5 for
    every m. In a later round of a series by keys, put the keys through instead: nothing is sent.

    An interrupted run continues with the same shares, since their noise comes from a key in the
    secret file; noise from the system cannot be drawn again, so there a new secret is drawn
    instead.

    Arguments:
    round: the folder of the round.
    user: the user's number, from 1.
    randomness: "cipher" (AES-256-CTR keyed by the operating system) or "os" (every byte from it).
    from_: an earlier round, from which this one goes on: of the same series, or the last of another
        one. A later round finds it by itself in a folder of secrets.
    skip_generations: go on although this round is more than 100 generations later.
    progress: called with the share that is done, 0 to 1.
    secrets: the folder of the user's secrets and ledgers, instead of the round's own.
    session: refuse any other session than this one; at least 16 of its digits.
    series: the same of the series of the round, whose name `init` and `inspect` say.
    recipients: refuse a session that has other keys than this file.
    identity: the user's keys, in a sealed round.
    max_memory: refuse a round that takes more bytes of memory; by default, more than there are.
    max_disk: refuse a round for whose files a user needs more bytes.

    Returns an OfflineReport.
    """
    space, how = taking_part(round, **access)
    signer = admitted(space, user, how)
    check_choice("source of randomness", randomness, SOURCES)
    if randomness == OS:
        _check_may_be_os(space.session)
    before = None if from_ is None else Workspace(workspace(from_).root, space.secrets)
    if before is not None:
        _check_before(space.session, before.session)
    path = series.chain_path(space, user, before)
    with space.step_of(user), space.chain_of(path):
        _check_first_time(space, user, signer)
        if not space.secret_path(user).exists():
            check_room(space.session, space.root)
        place = _place(space, user, path, before, skip_generations=skip_generations)
        ledger = _ledger(space, user, path, place.previous)
        stored = _secret(space, ledger, randomness)
        if space.session.series is not None and space.session.family is not None:
            return _carried_on(space, ledger, stored, place, path)
        return _dealt(space, ledger, stored, place, path, signer=signer, progress=progress)


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


def _check_before(session: Session, before: Session) -> None:
    """Refuse an earlier round from which this one cannot go on."""
    if session.series is not None:
        series.check_same_series(session, before)
    elif before.id == session.id:
        raise UsageError("a round does not go on from itself", "name an earlier round")


# where the user is in the series


@dataclass(frozen=True)
class _Place:
    """The chain as it is to be in this round, whether that is already in its file, and the round
    before."""

    chain: Chain
    is_stored: bool
    previous: Previous | None


def _place(
    space: Workspace, user: int, path: Path, before: Workspace | None, *, skip_generations: bool
) -> _Place:
    """Find the user's place in the series, and decide whether it may go on to this round."""
    session = space.session
    named = None
    if before is not None:
        folder = os.path.relpath(before.root.resolve(), space.root.resolve())
        named = Previous(before.session.id, folder)
    if session.series is None:
        previous = named or _found_before(space, user)
        if path.exists():
            return _Place(chain_file.read(path, session, user), True, previous)
        return _Place(_new_chain(space, user, path), False, previous)
    chain = series.stored(space, user, path)
    if chain.session == session.id:
        return _Place(chain, True, named)
    standing, previous = series.standing_of(space, user, chain, path)
    series.check_may_go_on(chain, session, standing, skip_generations=skip_generations)
    if standing.ledger is None and named is not None:
        previous = named  # an abandoned round, whose folder is gone
    return _Place(series.advanced(space, chain, path), False, previous)


def _new_chain(space: Workspace, user: int, path: Path) -> Chain:
    """The chain at the first round of its series."""
    session = space.session
    chain = Chain(
        series=session.id,
        user=user,
        session=session.id,
        generation=0,
        folder=chain_file.relative(space.root, path),
    )
    return series.with_family_checked(space, chain)


def _found_before(space: Workspace, user: int) -> Previous | None:
    """The round before the first one of a new series, if it is in the folder of secrets: the one at
    which the series of the last sum ended for this user."""
    last = space.session.before
    if space.secrets is None or last is None:
        return None
    with suppress(SecAggError):
        ledger = Ledger.read(space.private_of(last) / space.ledger_name(user), last, user)
        for chain in space.secrets.glob(f"user-{user:02}.chain-{ledger.series[:16]}.h5"):
            last = chain_file.session_in(chain, ledger.series) or last
        return Previous(last, ".")
    return None


def _ledger(space: Workspace, user: int, path: Path, previous: Previous | None) -> Ledger:
    """The ledger on disk, or a new one."""
    session = space.session
    if not space.ledger_path(user).exists() and not space.secret_path(user).exists():
        Ledger(
            space.ledger_path(user),
            session=session.id,
            user=user,
            series=session.series_root,
            generation=session.generation,
            previous=previous,
            folder=str(space.root.resolve()) if space.secrets else None,
            chain=series.seen_from(space, path),
        ).write()
    ledger = Ledger.read(space.ledger_path(user), session.id, user)
    ledger.check_kept()  # `forget` may have been stopped before it erased the secret
    if ledger.previous is None and previous is not None and ledger.masked is None:
        ledger = ledger.record(previous=previous)
    if session.series is None and previous not in (None, ledger.previous):
        raise BadData(
            f"user {user} prepared this round from another one",
            "name that one, or none",
            Advice.FROM,
        )
    return ledger


# the secret


def _secret(space: Workspace, ledger: Ledger, randomness: str) -> StoredSecret:
    """The secret on disk, or a new one, which must be the one that was shared if one was."""
    user = ledger.user
    if not space.secret_path(user).exists():
        if ledger.shared:
            raise Refused(
                f"the secret of user {user} is gone, and its shares were already made",
                "restore it from a backup, or start a new round",
            )
        return _draw(space, user, randomness)
    stored = secret_file.read(space, user)
    _check_secret_fits(space, ledger, stored=stored, randomness=randomness)
    return stored


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


def _draw(space: Workspace, user: int, randomness: str) -> StoredSecret:
    """Draw a new secret and make it durable before any share of it exists."""
    session = space.session
    key = entropy.draw(KEY_BYTES, f"secret of user {user} in session {session.id}")
    source = source_of(randomness, key)
    sharing = source.child(labels.SHARING).bytes(KEY_BYTES).hex()
    drawn = None
    if session.family is None:
        deal = session.deal(user, sharing)
        drawn = construction(session.parameters).draw_secret(deal, source)
    stored = StoredSecret(key=key, randomness=randomness, sharing=sharing, drawn=drawn)
    secret_file.write(space, user, stored)
    return stored


def _drawn_again(space: Workspace, ledger: Ledger) -> StoredSecret:
    """A new secret from the operating system, in place of one whose shares are not complete: their
    noise is not kept. Refused once all of them were made."""
    if ledger.shared:
        raise Refused(
            f"shares of user {ledger.user} are gone, and their noise cannot be drawn again",
            "restore them from where they were sent, or start a new round",
        )
    return _draw(space, ledger.user, OS)


# later rounds by keys: nothing is sent


def _carried_on(
    space: Workspace, ledger: Ledger, stored: StoredSecret, place: _Place, path: Path
) -> OfflineReport:
    """The keys of this round are those of the chain; it moves once the secret is there."""
    chain = place.chain
    user = ledger.user
    if not place.is_stored:
        chain_file.write(path, space.session, chain)
    ledger = ledger.record(shared=stored.sharing, dealt=chain.lists[user])
    mark_done(space.secret_path(user))
    return OfflineReport(
        user=user,
        randomness=stored.randomness,
        shares_written=0,
        shares_kept=len(chain.lists),
        share_bytes=0,
        other_folder=other_folder(space, ledger),
    )


# rounds in which something is dealt


def _dealt(
    space: Workspace,
    ledger: Ledger,
    stored: StoredSecret,
    place: _Place,
    path: Path,
    *,
    signer: Identity | None,
    progress: Progress,
) -> OfflineReport:
    """Write the shares that are missing, and the list of keys; the chain before them."""
    session = space.session
    user = ledger.user
    if session.series is None and ledger.shared is not None and not place.is_stored:
        raise Refused(
            f"{path} is gone, and user {user} has dealt already",
            "restore it from a backup, or start a new series",
        )
    missing = _users_without_share(space, ledger, stored)
    if missing and stored.randomness == OS:
        stored = _drawn_again(space, ledger)
        missing = list(space.users())
    deal = session.deal(user, stored.sharing)
    dealt = None
    if session.family is None:
        if not place.is_stored:
            chain_file.write(path, session, place.chain)
        if missing:
            assert stored.drawn is not None
            share_writer.write(
                space,
                users=missing,
                deal=deal,
                secret=stored.drawn,
                source=source_of(stored.randomness, stored.key),
                signer=signer,
                progress=progress,
            )
    else:
        source = source_of(stored.randomness, stored.key)
        own = tuple(drawn_key(deal, source, block) for block in session.family)
        dealt = _publish(space, user, own, signer)
        if ledger.shared is None:  # an interrupted call may have left those of another secret
            blocks = zip(session.family, own, strict=True)
            mine: dict[Block, bytes] = {block: key for block, key in blocks if user in block}
            chain_file.write(
                path, session, replace(place.chain, own=own).entered(user, mine, dealt)
            )
        share_writer.write_keys(space, users=missing, deal=deal, own_keys=own, signer=signer)
    ledger = ledger.record(shared=stored.sharing, dealt=dealt)
    # the share for the last user last, which then stands for all
    mark_done(space.secret_path(user), *(space.share_path(m, user) for m in space.users()))
    return OfflineReport(
        user=user,
        randomness=stored.randomness,
        shares_written=len(missing),
        shares_kept=session.parameters.users - len(missing),
        share_bytes=max(
            construction(session.parameters).held_bytes(m, session.family or ())
            for m in space.users()
            if m != user
        ),
        other_folder=other_folder(space, ledger),
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


def _publish(
    space: Workspace, user: int, own_keys: tuple[bytes, ...], signer: Identity | None
) -> str:
    """Write the commitments to the keys that a user dealt; their digest."""
    path = space.dealt_path(user)
    content = dealt_file.content(space.session, user, keys=own_keys, signer=signer)
    there = None
    with suppress(SecAggError):  # nothing is there, or no ordinary file
        there = read_bytes(path, "", largest=len(content))
    if there != content:
        space.make_room(path)
        write_whole(path, content)
    return dealt_file.read(space, user).digest
