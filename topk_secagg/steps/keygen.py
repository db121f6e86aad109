"""`keygen`: the keys of one user."""

from __future__ import annotations

from pathlib import Path

from ..errors import CannotWrite
from ..storage.atomic import PRIVATE, write_whole
from ..storage.keys import Identity, Recipient


def keygen(user: int, path: Path) -> Recipient:
    """Write a new identity file, readable by its owner alone; the public keys are returned."""
    if path.exists():
        raise CannotWrite(f"{path} exists", "keys are not overwritten; choose another name")
    identity = Identity.generate()
    write_whole(path, identity.content(user), PRIVATE)
    return identity.public(user)
