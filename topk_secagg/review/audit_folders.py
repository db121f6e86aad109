"""The folders of a round: who may read and write what, and what does not belong there."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadData, InputMissing
from ..steps.inspect import KINDS
from ..storage import documents, residual
from ..storage.artifacts import opened
from ..storage.workspace import Workspace
from .evidence import FAIL, NOT_CHECKABLE, Evidence

_ONLY = "only files of the round"
_ARTIFACT_NAME = re.compile(r"(user|from)-\d+(\.ledger|\.residual)?\.(h5|json|h5\.age)")
_TEMPORARY_NAME = re.compile(r"\..+\.\d+\.tmp")
_LOCK_NAME = re.compile(r"\.(user-\d+\.)?lock")


@dataclass(frozen=True)
class _Folders:
    """The folders of a round, and the files that they may have."""

    secrets: Path
    shares: Path
    public: tuple[Path, ...]
    expected: set[Path]
    sealed: bool

    def is_secret(self, path: Path) -> bool:
        """Whether only one user may see it; sealed shares may be seen by all."""
        return path.is_relative_to(self.secrets) or (not self.sealed and path.is_relative_to(self.shares))


def _folders(space: Workspace) -> _Folders:
    users = space.users()
    public = [space.masked_path, space.answer_path]
    if space.session.confirm:
        public.append(space.confirmation_path)
    expected = {space.session_path, space.survivors_path, space.aggregate_path}
    for n in users:
        expected |= {space.secret_path(n), space.ledger_path(n), space.residual_path(n)}
        expected |= {*(path(n) for path in public), *(space.share_path(m, n) for m in users)}
    return _Folders(
        space.private,
        space.share_path(1, 1).parent.parent,
        tuple(path(1).parent for path in public),
        expected,
        space.session.recipients is not None,
    )


def audit_folders(found: Evidence) -> None:
    """Permissions of all files, and files that do not belong there."""
    root, folders = found.space.root, _folders(found.space)
    known = {folders.shares, *(path.parent for path in folders.expected)}
    for path in _walk(root, folders):
        secret = folders.is_secret(path)
        if path.is_dir():
            if path in known:
                closed = secret and path != folders.shares  # in which every folder is closed
                found.check("permissions", path, _mode, path, secret=closed, sealed=folders.sealed)
            continue
        if _LOCK_NAME.fullmatch(path.name):
            continue
        if secret or path in folders.expected:
            found.check("permissions", path, _mode, path, secret=secret)
        if path not in folders.expected:
            _unexpected(found, path)
    for path in sorted(root.iterdir()):
        if path.is_dir() and path not in known:
            found.add(_ONLY, path, NOT_CHECKABLE, "a folder that this round does not have; it was not opened")
    if not any(f.point == _ONLY for f in found.findings):
        found.add(_ONLY, ".", "pass")


def _walk(root: Path, folders: _Folders) -> Iterator[Path]:
    """The round's own folders and their files, in order; links are followed, but not in circles."""
    seen = set()
    for top in (root, folders.secrets, folders.shares, *folders.public):
        for where, below, names in os.walk(top, followlinks=True):
            status = Path(where).stat()
            if (status.st_dev, status.st_ino) in seen:
                below[:] = []
                continue
            seen.add((status.st_dev, status.st_ino))
            below[:] = [] if top == root else sorted(below)
            yield Path(where)
            yield from (Path(where, name) for name in sorted(names))


def _mode(path: Path, *, secret: bool, sealed: bool = False) -> str:
    """In a sealed round a folder may be open to all if nobody can replace another's file there (the sticky bit)."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise InputMissing(f"its mode cannot be read: {(error.strerror or '').lower()}") from None
    if secret and mode & 0o077:
        raise BadData(f"mode {mode:04o}: others than its owner may use it, and it is a secret")
    if mode & 0o002 and not (sealed and mode & stat.S_ISVTX):
        raise BadData(f"mode {mode:04o}: anybody may write to it")
    return f"mode {mode:04o}"


def _unexpected(found: Evidence, path: Path) -> None:
    """A file under a name that no file of this round has: bad only if it pretends to be one."""
    what, at_root = _pretended(path), path.parent == found.space.root
    if _TEMPORARY_NAME.fullmatch(path.name):
        found.add(_ONLY, path, "pass", "left by a step that was killed, or that is still running")
    elif what == residual.KIND.name:
        found.add(_ONLY, path, NOT_CHECKABLE, "a residual that its user keeps here")
    elif what:
        found.add(_ONLY, path, FAIL, f"a {what} file of this program under a name that it must not have here")
    elif not at_root and _ARTIFACT_NAME.fullmatch(path.name):
        found.add(_ONLY, path, FAIL, "it is named like a file of the round, and this round has no such file")
    elif not at_root or path.suffix in (".h5", ".json", ".age"):
        found.add(_ONLY, path, NOT_CHECKABLE, "it is not a file of a round")


def _pretended(path: Path) -> str:
    """The kind of file that it says it is, or nothing."""
    try:
        if path.suffix == ".json":
            return documents.kind_of(path, documents.read_bytes(path, ""))
        with opened(path, *KINDS, verify=False) as artifact:
            return artifact.kind.name
    except Exception:  # then it is something else
        return ""
