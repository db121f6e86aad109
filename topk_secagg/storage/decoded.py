"""secrets/decoded.json: what this account's own decoding of a round gave.

Anybody can write an aggregate.h5. Whoever decoded, and found the sum, need not take somebody's word
that there is one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_type_hints

from ..errors import SecAggError
from . import documents
from .atomic import PRIVATE, make_folder, write_whole
from .documents import Sha256
from .workspace import Workspace

DECODED = "decoded"
FAILED = "failed"
_LARGEST = 1 << 12  # bytes


@dataclass(frozen=True)
class Decoded:
    """The outcome, for which survivors.json, and the digest of the sum if there is one."""

    session: Sha256
    survivors_sha256: Sha256
    aggregate_sha256: Sha256 | None
    outcome: Annotated[str, (DECODED, FAILED).__contains__]


_TYPES = get_type_hints(Decoded, include_extras=True)


def record(space: Workspace, decoded: Decoded) -> None:
    """Remember it, if this account has secrets of the round here, or named a folder for them; a sum
    once decoded stays known."""
    if space.secrets is None and not _is_own(space.private):
        return
    before = read(space)
    if before is not None and before.outcome == DECODED:
        return
    make_folder(space.private, private=True)
    write_whole(space.decoded_path, documents.dump("decoded", vars(decoded)), PRIVATE)


def _is_own(folder: Path) -> bool:
    """Whether a folder is there, and belongs to this account."""
    with suppress(OSError):
        return folder.stat().st_uid == os.geteuid()
    return False


def read(space: Workspace, session: str = "") -> Decoded | None:
    """What the own decoding of a session gave, by default of that of the round; None if there was
    none."""
    session = session or space.session.id
    path = space.private_of(session) / space.decoded_name
    with suppress(SecAggError):
        content = documents.read_bytes(path, "", largest=_LARGEST)
        decoded = parse(path, content)
        return decoded if decoded.session == session else None
    return None


def parse(path: Path, content: bytes) -> Decoded:
    """The outcome of any session, from the bytes of its file."""
    return Decoded(**documents.parse(path, content, kind="decoded", types=_TYPES))
