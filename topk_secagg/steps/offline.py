"""`offline`: the secret of one user, and its shares for every user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..algebra.randomness import (
    KEY_BYTES,
    CipherRandomness,
    Randomness,
    SystemRandomness,
    fresh_key,
    seeded_key,
)
from ..errors import BadData, InputMissing, Refused, UsageError
from ..protocol.messages import ShareBlock
from ..protocol.offline import draw_secret, share_blocks
from ..storage.atomic import make_folder
from ..storage.keys import Identity
from ..storage.ledger import Ledger
from ..storage.sealing import looks_sealed, sealing_shares
from ..storage.secrets import StoredSecret, read_secret, write_secret
from ..storage.shares import share_rows, writing_shares
from ..storage.workspace import Workspace
from .identity import own_identity

Progress = Callable[[float], None]


@dataclass(frozen=True)
class OfflineReport:
    """What `offline` did: how many share files it wrote, and how many it found complete."""

    user: int
    randomness: str
    written: int
    kept: int
    share_bytes: int


def offline(
    space: Workspace,
    user: int,
    randomness: str = "cipher",
    progress: Progress = lambda _: None,
    identity: Path | None = None,
) -> OfflineReport:
    """Draw Z_n and write secrets/user-n.h5 and shares/user-m/from-n.h5 for every m.

    An interrupted run goes on with the same shares, since their noise comes from a key in the secret
    file; noise from the system cannot be drawn again, so there a new secret is drawn instead.
    """
    space.check_user(user)
    p = space.session.parameters
    if randomness == "os" and space.session.insecure:
        raise UsageError("this round is drawn from a public seed", "drop --randomness os")
    signer = own_identity(space, user, identity)
    with space.step_of(user):
        ledger, stored = _secret(space, user, randomness)
        if ledger.shared not in (None, stored.sharing):
            raise Refused(
                f"{space.secret_path(user)} is not the secret whose shares were made",
                "put that one back, or start a new round",
            )
        if randomness == "os" != stored.randomness:
            raise Refused(
                f"the secret of user {user} is there already, and not every byte of it is from the system",
                "drop --randomness os, or start a new round",
            )
        missing = [m for m in space.users() if not _is_complete(space, m, user, stored.sharing, ledger)]
        if missing and stored.randomness == "os":
            if ledger.shared:
                raise Refused(
                    f"shares of user {user} are gone, and their noise cannot be drawn again",
                    "restore them from where they were sent, or start a new round",
                )
            stored = _draw(space, user, stored.randomness)
            missing = list(space.users())
        if missing:
            _write_shares(space, user, stored, missing, progress, signer)
        ledger.complete_sharing(stored.sharing)
    return OfflineReport(user, stored.randomness, len(missing), p.users - len(missing), p.share_bytes)


def _secret(space: Workspace, user: int, randomness: str) -> tuple[Ledger, StoredSecret]:
    """The secret and ledger on disk, or new ones; the ledger first: a secret without one is not used."""
    session = space.session
    if space.secret_path(user).exists():
        return Ledger.read(space.ledger_path(user), session.id, user), read_secret(space, user)
    if not space.ledger_path(user).exists():
        Ledger(space.ledger_path(user), session.id, user, session.insecure).write()
    ledger = Ledger.read(space.ledger_path(user), session.id, user)
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
    source: Randomness = SystemRandomness() if randomness == "os" else CipherRandomness(key)
    name = np.empty(KEY_BYTES, dtype=np.uint8)
    source.child("sharing").fill(name)
    stored = StoredSecret(
        draw_secret(space.session.parameters, source), key, randomness, name.tobytes().hex()
    )
    write_secret(space, user, stored)
    return stored


def _is_complete(space: Workspace, user: int, sender: int, sharing: str, ledger: Ledger) -> bool:
    """Whether the share for `user` is there, whole, and of this very sharing. A sealed one does not show of
    which sharing it is: it counts only when the ledger says that all of this sharing were written."""
    if space.session.recipients:
        path = space.share_path(user, sender)
        return ledger.shared == sharing and looks_sealed(space.session.parameters, path)
    try:
        expected = space.session.header(user, sender=sender, sharing=sharing)
        with share_rows(space.session.parameters, space.share_path(user, sender), expected) as share:
            share.check_all()
    except (InputMissing, BadData):
        return False
    return True


def _write_shares(
    space: Workspace,
    user: int,
    stored: StoredSecret,
    missing: list[int],
    progress: Progress,
    signer: Identity | None,
) -> None:
    """Encode and write block by block."""
    session = space.session
    p = session.parameters
    paths = {m: space.share_path(m, user) for m in missing}
    for path in paths.values():
        make_folder(path.parent, private=True)
    attributes = session.header(user, sender=user, sharing=stored.sharing)
    chosen = [m - 1 for m in missing] if len(missing) < p.users else slice(None)

    def blocks() -> Iterator[ShareBlock]:
        return share_blocks(p, session.points, stored.secret, stored.noise())

    if session.recipients and signer:
        with sealing_shares(p, paths, attributes, session.recipients, signer) as sealed:
            for block in blocks():
                sealed.write("f", block.start, block.f[chosen])
                progress((block.start + block.f.shape[1]) / p.rows / 2)
            for block in blocks():
                sealed.write("h", block.start, block.h[chosen])
                progress(0.5 + (block.start + block.h.shape[1]) / p.rows / 2)
        return
    with writing_shares(p, paths, attributes) as plain, ThreadPoolExecutor(2) as threads:
        pending: list[Future[None]] = []
        for start, f, h in blocks():  # the next block is computed while others hash and write this one
            _wait(pending)
            pending = [
                threads.submit(plain.write, name, start, shares[chosen])
                for name, shares in (("f", f), ("h", h))
            ]
            progress((start + f.shape[1]) / p.rows)
        _wait(pending)


def _wait(pending: list[Future[None]]) -> None:
    """Wait for writes, and pass on what went wrong in them."""
    for future in pending:
        future.result()
