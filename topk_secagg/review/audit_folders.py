"""Permissions in the folders of a round, and files that do not belong there."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from ..errors import BadData, InputMissing
from ..steps.inspect import KINDS
from ..storage import documents, residual
from ..storage.artifacts import opened
from .evidence import Evidence

_ONLY = "only files of the round"
_ARTIFACT_NAME = re.compile(r"(user|from)-\d+(\.ledger|\.residual)?\.(h5|json|h5\.age)")
_TEMPORARY_NAME = re.compile(r"\..+\.\d+\.tmp")
_LOCK_NAME = re.compile(r"\.(user-\d+\.)?lock")


def audit_folders(found: Evidence) -> None:
    """Check the permissions of all files, and look for files that do not belong there."""
    space, root, sealed = found.space, found.space.root, found.space.session.recipients is not None
    shares = space.share_path(1, 1).parent.parent
    public = [space.masked_path, space.answer_path, *([space.confirmation_path] if space.session.confirm else [])]
    expected = {space.session_path, space.survivors_path, space.aggregate_path}
    for n in space.users():
        expected |= {path(n) for path in (space.secret_path, space.ledger_path, space.residual_path, *public)}
        expected |= {space.share_path(m, n) for m in space.users()}
    known = {shares, *(path.parent for path in expected)}
    for path in _walk(root, space.private, shares, *(path(1).parent for path in public)):
        # everybody may see sealed shares
        secret = path.is_relative_to(space.private) or (not sealed and path.is_relative_to(shares))
        if path.is_dir():
            if path in known:  # every folder in shares/ is closed, so that it need not be
                _check_mode(found, path, secret=secret and path != shares, sealed=sealed)
            continue
        if _LOCK_NAME.fullmatch(path.name):
            continue
        if secret or path in expected:
            _check_mode(found, path, secret=secret)
        if path not in expected:
            _unexpected(found, path)
    for path in sorted(root.iterdir()):
        if path.is_dir() and path not in known:
            found.add(_ONLY, path, "not checkable", "a folder that this round does not have; it was not opened")
    if not any(f.point == _ONLY for f in found.findings):
        found.add(_ONLY, ".", "pass")


def _walk(root: Path, *folders: Path) -> Iterator[Path]:
    """The round's folders and their files, in order; links are followed, but not in circles."""
    seen = set()
    for top in (root, *folders):
        for where, below, names in os.walk(top, followlinks=True):
            status = Path(where).stat()
            if (status.st_dev, status.st_ino) in seen:
                below[:] = []
                continue
            seen.add((status.st_dev, status.st_ino))
            below[:] = [] if top == root else sorted(below)
            yield Path(where)
            yield from (Path(where, name) for name in sorted(names))


def _check_mode(found: Evidence, path: Path, *, secret: bool, sealed: bool = False) -> None:
    """In a sealed round a folder may be open to all if it has the sticky bit: nobody can replace another's file."""
    with found.check("permissions", path) as check:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError as error:
            raise InputMissing(f"its mode cannot be read: {(error.strerror or '').lower()}") from None
        if secret and mode & 0o077:
            raise BadData(f"mode {mode:04o}: others than its owner may use it, and it is a secret")
        if mode & 0o002 and not (sealed and mode & stat.S_ISVTX):
            raise BadData(f"mode {mode:04o}: anybody may write to it")
        check.why = f"mode {mode:04o}"


def _unexpected(found: Evidence, path: Path) -> None:
    """Judge a file with a name that this round does not use: it fails only if it pretends to be a file of a round."""
    what, at_root = _pretended(path), path.parent == found.space.root
    if _TEMPORARY_NAME.fullmatch(path.name):
        found.add(_ONLY, path, "pass", "left by a step that was killed, or that is still running")
    elif what == residual.KIND.name:
        found.add(_ONLY, path, "not checkable", "a residual that its user keeps here")
    elif what:
        found.add(_ONLY, path, "fail", f"a {what} file of this program under a name that it must not have here")
    elif not at_root and _ARTIFACT_NAME.fullmatch(path.name):
        found.add(_ONLY, path, "fail", "it is named like a file of the round, and this round has no such file")
    elif not at_root or path.suffix in (".h5", ".json", ".age"):
        found.add(_ONLY, path, "not checkable", "it is not a file of a round")


def _pretended(path: Path) -> str:
    """The kind that the file claims to be, or ""."""
    try:
        if path.suffix == ".json":
            return documents.kind_of(path, documents.read_bytes(path, ""))
        with opened(path, *KINDS, verify=False) as artifact:
            return artifact.kind.name
    except Exception:  # then it is something else
        return ""
