"""Error feedback: what a user did not send in one round, kept for the next.

`mask` stages the new residual with the user's secrets, and the ledger remembers what it replaces.
It is committed once the user is among the survivors: the file named by the user is replaced if it
is still the one that was read, and left alone if it is the new one already; then the ledger says
so. Every step can be repeated, and a crash between any two leaves the old residual or the new one.

While a residual waits, a note beside the user's file says for which round.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from ..errors import CannotWrite, Refused, SecAggError
from .artifacts import Artifact, Draft, Kind, Table, opened, write_hashed
from .atomic import PRIVATE, Array, pread_into, write_whole
from .documents import Sha256, read_bytes
from .hdf5_writer import Shapes
from .session import Session

KIND = Kind(
    "residual",
    {"value": (("<f8",), "what the user has not sent yet, for every coordinate of the gradient")},
    "check the path",
    secret=True,
)


@dataclass(frozen=True)
class Residual:
    """The residual of a user: where it is kept, the digest of what was read, and of what replaces
    it.

    `before` is None when there was no file yet. `input` is the digest of the gradient, its weight
    and the way of selecting, so that a repeated `mask` can be distinguished from another one after
    the commit. Once it is `committed` the user's file is never touched again by this round.
    """

    path: Annotated[str, lambda path: "\0" not in path]
    before: Sha256 | None
    after: Sha256
    input: Sha256
    committed: bool = False


def shapes(length: int) -> Shapes:
    """Type and shape of the dataset."""
    return {"value": ("<f8", (length,))}


def read(path: Path, user: int, length: int) -> tuple[Array | None, str | None]:
    """The residual of a user and its digest; (None, None) when there is no file yet."""
    if not path.exists():
        return None, None
    with opened(path, KIND, shapes=shapes(length)) as artifact:
        artifact.expect({"user": user})
        return _vector(artifact), artifact.attributes["sha256"]


def stage(path: Path, session: Session, user: int, value: Array) -> str:
    """Write the new residual beside the secret; the digest is returned."""
    tables = {"value": Table(value.astype("<f8", copy=False))}
    return write_hashed(path, Draft(KIND, session.header(user)), tables)


def commit(staged: Path, residual: Residual, user: int, length: int) -> None:
    """Replace the user's file by the staged one, unless that has been done."""
    path = Path(residual.path)
    _, current = read(path, user, length)
    if current != residual.after:
        if current != residual.before:
            raise Refused(
                f"{path} is not the residual that was added when masking",
                "put that file back and run this again; nothing else is lost",
            )
        with opened(staged, KIND, shapes=shapes(length)) as artifact:
            if artifact.attributes["sha256"] != residual.after:
                raise artifact.bad("it is not the residual that the ledger names")
            _vector(artifact)
            content = pread_into(artifact.fd, np.empty(os.fstat(artifact.fd).st_size, np.uint8), 0)
        if not path.parent.is_dir():
            raise CannotWrite(
                f"cannot write {path}: its folder is gone", "make the folder and run this again"
            )
        write_whole(path, content.tobytes(), PRIVATE)
    note_path(path).unlink(missing_ok=True)


def note_path(path: Path) -> Path:
    """The note that a residual waits to be committed to this file."""
    return path.with_name(f".{path.name}.waiting")


def leave_note(path: Path, session: str, root: Path) -> None:
    """Say that the residual of this round waits for its user to be among the survivors."""
    write_whole(
        note_path(path), json.dumps({"session": session, "round": str(root)}).encode(), PRIVATE
    )


def waiting_round(path: Path, session: str) -> str | None:
    """The folder of another round whose residual was never committed to this file."""
    try:
        note = json.loads(read_bytes(note_path(path), ""))
        return str(note["round"]) if note["session"] != session else None
    except (SecAggError, ValueError, KeyError, TypeError, RecursionError):
        return None


def input_digest(gradient: Array, weight: float, select: str) -> str:
    """SHA-256 of what a user gave to `mask`: how it is sent, and the flat gradient."""
    digest = hashlib.sha256(f"weight {weight!r} select {select}\n".encode())
    digest.update(np.ascontiguousarray(gradient).view(np.uint8).data)
    return digest.hexdigest()


def _vector(artifact: Artifact) -> Array:
    value = artifact.read("value")
    if not np.isfinite(value).all():
        raise artifact.bad("a value is not finite", "remove the file to start from zero")
    return value
