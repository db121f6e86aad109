"""`offline`: the secret of one user, and its shares for every user."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from ..algebra.randomness import KEY_BYTES, fresh_key, seeded_key, source_of
from ..brief import Brief
from ..errors import Refused, UsageError
from ..progress import Progress, unheard
from ..protocol.constructions import construction
from ..protocol.messages import ShareChunk
from ..storage import secret as secret_file
from ..storage import share as share_file
from ..storage.atomic import mark_done
from ..storage.ledger import Ledger
from ..storage.secret import StoredSecret
from ..storage.workspace import Workspace
from .access import TakingPart, admitted, taking_part
from .arguments import SOURCES, AnyRound, check_choice


@dataclass(frozen=True, repr=False)
class OfflineReport(Brief):
    """What `offline` did: how many share files it wrote, and how many it found complete.

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
    randomness: str = "cipher",
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
    progress: called with the share that is done, 0 to 1.
    secrets: the folder of the user's secrets and ledgers, instead of the round's own.
    session: refuse any other session than this one; at least 16 of its digits.
    recipients: refuse a session that has other keys than this file.
    identity: the user's keys, in a sealed round.
    insecure: take part although the round is drawn from a public seed.

    Returns an OfflineReport.
    """
    space, how = taking_part(round, **access)
    signer = admitted(space, user, how)
    p = space.session.parameters
    check_choice("source of randomness", randomness, SOURCES)
    if randomness == "os" and space.session.insecure:
        raise UsageError(
            "this round is drawn from a public seed, not from the operating system", topic="seed"
        )
    with space.step_of(user):
        ledger, stored = _secret(space, user, randomness)
        if ledger.shared not in (None, stored.sharing):
            raise Refused(
                f"{space.secret_path(user)} is not the secret whose shares were made",
                "put that one back, or start a new round",
            )
        if randomness == "os" != stored.randomness:
            raise Refused(
                f"user {user} has a secret already, and not every byte of it is from the operating "
                "system",
                "keep it, or start a new round",
            )
        # a sealed share does not show of which sharing it is: it counts only when the ledger says
        # that all of this sharing were written
        unknown = space.session.recipients is not None and ledger.shared != stored.sharing
        missing = [
            m
            for m in space.users()
            if unknown or not share_file.is_there(space, m, sender=user, sharing=stored.sharing)
        ]
        if missing and stored.randomness == "os":
            if ledger.shared:
                raise Refused(
                    f"shares of user {user} are gone, and their noise cannot be drawn again",
                    "restore them from where they were sent, or start a new round",
                )
            stored = _draw(space, user, stored.randomness)
            missing = list(space.users())
        if missing:
            share_file.write(
                space,
                user,
                users=missing,
                sharing=stored.sharing,
                blocks=_shares(space, stored, progress),
                signer=signer,
            )
        ledger.record(shared=stored.sharing)
        # the share for the last user last, which then stands for all
        mark_done(space.secret_path(user), *(space.share_path(m, user) for m in space.users()))
    return OfflineReport(
        user=user,
        randomness=stored.randomness,
        shares_written=len(missing),
        shares_kept=p.users - len(missing),
        share_bytes=construction(p).share_bytes,
        other_folder=other_folder(space, ledger),
    )


def other_folder(space: Workspace, ledger: Ledger) -> str | None:
    """Where this user prepared this session, if its round has another folder now.

    The folder was moved, or an old session.json was issued once more, with old X and shares.
    """
    if space.secrets is None or ledger.folder in (None, str(space.root.resolve())):
        return None
    return ledger.folder


def _secret(space: Workspace, user: int, randomness: str) -> tuple[Ledger, StoredSecret]:
    """The secret and ledger on disk, or new ones; the ledger first: a secret without one is not
    used."""
    session = space.session
    path = space.ledger_path(user)
    if space.secret_path(user).exists():
        return Ledger.read(path, session.id, user), secret_file.read(space, user)
    if not path.exists():
        folder = str(space.root.resolve()) if space.secrets else None
        Ledger(path, session.id, user=user, insecure=session.insecure, folder=folder).write()
    ledger = Ledger.read(path, session.id, user)
    ledger.check_kept()
    if ledger.shared:
        raise Refused(
            f"the secret of user {user} is gone, and its shares were already made",
            "restore it from a backup, or start a new round",
        )
    return ledger, _draw(space, user, "seed" if session.insecure else randomness)


def _draw(space: Workspace, user: int, randomness: str) -> StoredSecret:
    """Draw a new secret and make it durable before any share of it exists."""
    seed = space.session.insecure_seed
    key = fresh_key() if seed is None else seeded_key(seed, f"user {user}")
    source = source_of(randomness, key)
    name = np.empty(KEY_BYTES, dtype=np.uint8)
    source.child("sharing").fill(name)
    stored = StoredSecret(
        secret=construction(space.session.parameters).draw_secret(source),
        key=key,
        randomness=randomness,
        sharing=name.tobytes().hex(),
    )
    secret_file.write(space, user, stored)
    return stored


def _shares(space: Workspace, stored: StoredSecret, progress: Progress) -> Iterator[ShareChunk]:
    """The shares of this secret for all users, block by block."""
    c = construction(space.session.parameters)
    for block in c.share_chunks(
        space.session.points, stored.secret, source_of(stored.randomness, stored.key)
    ):
        yield block
        progress(block.stop / c.rows)
