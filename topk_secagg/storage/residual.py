"""Error feedback: what a user did not send in one round, kept for the next.

`mask` stages the new residual in the round, and the ledger remembers what it replaces. `eliminate`
commits it, once the user is among the survivors: the file named by the user is replaced if it is still
the one that was read, and left alone if it is the new one already; then the ledger says so. Every step can
be repeated, and a crash between any two leaves the old residual or the new one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadData, CannotWrite, InputMissing, Refused
from .artifacts import Artifact, opened, write_artifact
from .atomic import PRIVATE, whole_file, write_whole
from .documents import is_digest
from .session import Session

Vector = npt.NDArray[Any]


@dataclass(frozen=True)
class Residual:
    """The residual of a user: where it is kept, the digest of what was read, and of what replaces it.

    `before` is None when there was no file yet. `input` is the digest of the gradient, its weight and the
    way of selecting, so that a repeated `mask` can be told from another one after the commit. Once it is
    `committed` the user's file is never touched again by this round.
    """

    path: str
    before: str | None
    after: str
    input: str
    committed: bool = False

    @staticmethod
    def from_json(raw: dict[str, Any]) -> Residual:
        """The inverse of `dataclasses.asdict`; TypeError or ValueError for anything else."""
        residual = Residual(**raw)
        digests = [residual.after, residual.input, residual.before or residual.after]
        if (
            type(residual.committed) is not bool
            or type(residual.path) is not str
            or "\0" in residual.path
            or not all(map(is_digest, digests))
        ):
            raise ValueError("a path and three digests are expected")
        return residual


def read_residual(path: Path, user: int, length: int) -> tuple[Vector | None, str | None]:
    """The residual of a user and its digest; (None, None) when there is no file yet."""
    try:
        with opened(path, "residual", {"value": (length,)}) as artifact:
            artifact.expect({"user": user})
            return _vector(artifact), artifact.attributes["sha256"]
    except InputMissing:
        if path.exists():
            raise
        return None, None


def stage_residual(path: Path, session: Session, user: int, value: Vector) -> str:
    """Write the new residual into the round; the digest is returned."""
    with whole_file(path, PRIVATE) as temporary:
        return write_artifact(
            temporary, "residual", session.header(user), {"value": value.astype("<f8", copy=False)}
        )


def commit_residual(staged: Path, residual: Residual, user: int, length: int) -> None:
    """Replace the user's file by the staged one, unless that has been done."""
    path = Path(residual.path)
    _, current = read_residual(path, user, length)
    if current == residual.after:
        return
    if current != residual.before:
        raise Refused(
            f"{path} is not the residual that was added when masking",
            "put that file back and run this again; nothing else is lost",
        )
    with opened(staged, "residual", {"value": (length,)}) as artifact:
        if artifact.attributes["sha256"] != residual.after:
            raise artifact.bad("it is not the residual that the ledger names")
        _vector(artifact)
    if not path.parent.is_dir():
        raise CannotWrite(f"cannot write {path}: its folder is gone", "make the folder and run this again")
    write_whole(path, staged.read_bytes(), PRIVATE)


def input_digest(gradient: Vector, weight: float, select: str) -> str:
    """SHA-256 of what a user gave to `mask`: how it is sent, and the flat gradient."""
    digest = hashlib.sha256(f"weight {weight!r} select {select}\n".encode())
    digest.update(np.ascontiguousarray(gradient).view(np.uint8).data)
    return digest.hexdigest()


def _vector(artifact: Artifact) -> Vector:
    value = artifact.read("value")
    if not np.isfinite(value).all():
        raise BadData(f"{artifact.path}: a value is not finite", "remove the file to start from zero")
    return value
