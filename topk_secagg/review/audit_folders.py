"""The folders of a round: who may read and write what, and what does not belong there."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from ..errors import BadData, InputMissing
from ..storage import documents
from ..storage.artifacts import FORMAT, opened
from .evidence import FAIL, NOT_CHECKABLE, Evidence

_ONLY = "only files of the round"
_PRIVATE_FOLDERS = ("secrets", "shares")
_PUBLIC_FOLDERS = ("masked", "elimination")
_ARTIFACT_NAME = re.compile(r"(user|from)-\d+(\.ledger|\.residual)?\.(h5|json|h5\.age)")
_TEMPORARY_NAME = re.compile(r"\..+\.\d+\.tmp")
_LOCK_NAME = re.compile(r"\.(user-\d+\.)?lock")


def audit_folders(found: Evidence) -> None:
    """Permissions of all files, and files that do not belong there."""
    space, users = found.space, found.space.users()
    expected = {space.session_path, space.survivors_path, space.aggregate_path}
    for n in users:
        expected |= {space.secret_path(n), space.ledger_path(n), space.residual_path(n)}
        expected |= {space.masked_path(n), space.answer_path(n), *(space.share_path(m, n) for m in users)}
    folders = {space.root, *(path.parent for path in expected), space.root / "shares"}
    for path in _walk(space.root):
        private = any(path.is_relative_to(space.root / folder) for folder in _PRIVATE_FOLDERS)
        if path.is_dir():
            if path in folders:
                closed = private and path != space.root / "shares"  # in which every folder is closed
                found.check("permissions", path, _mode, path, private=closed)
            continue
        if _LOCK_NAME.fullmatch(path.name):
            continue
        if private or path in expected:
            found.check("permissions", path, _mode, path, private=private)
        if path not in expected:
            _unexpected(found, path)
    for path in sorted(space.root.iterdir()):
        if path.is_dir() and path.name not in (*_PRIVATE_FOLDERS, *_PUBLIC_FOLDERS):
            found.add(_ONLY, path, NOT_CHECKABLE, "a folder that no round has; it was not looked into")
    if not any(f.point == _ONLY for f in found.findings):
        found.add(_ONLY, ".", "pass")


def _walk(root: Path) -> Iterator[Path]:
    """The round's own folders and their files, in order; links are followed, but not in circles."""
    seen = set()
    for folder in ("", *_PRIVATE_FOLDERS, *_PUBLIC_FOLDERS):
        for where, folders, names in os.walk(root / folder, followlinks=True):
            status = Path(where).stat()
            if (status.st_dev, status.st_ino) in seen:
                folders[:] = []
                continue
            seen.add((status.st_dev, status.st_ino))
            folders[:] = sorted(folders) if folder else []
            yield Path(where)
            yield from (Path(where, name) for name in sorted(names))


def _mode(path: Path, *, private: bool) -> str:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise InputMissing(f"cannot be looked at: {(error.strerror or '').lower()}") from None
    if private and mode & 0o077:
        raise BadData(f"mode {mode:04o}: others than its owner may use it, and it is a secret")
    if mode & 0o002:
        raise BadData(f"mode {mode:04o}: anybody may write to it")
    return f"mode {mode:04o}"


def _unexpected(found: Evidence, path: Path) -> None:
    """A file under a name that no file of this round has: bad only if it pretends to be one."""
    point, what, at_root = _ONLY, _pretended(path), path.parent == found.space.root
    if _TEMPORARY_NAME.fullmatch(path.name):
        found.add(point, path, "pass", "left by a step that was killed, or that is still running")
    elif what == "residual":
        found.add(point, path, NOT_CHECKABLE, "a residual that its user keeps here")
    elif what:
        found.add(point, path, FAIL, f"a {what} of this program under a name that it must not have here")
    elif not at_root and _ARTIFACT_NAME.fullmatch(path.name):
        found.add(point, path, FAIL, "it is named like a file of the round, and none has this name here")
    elif not at_root or path.suffix in (".h5", ".json", ".age"):
        found.add(point, path, NOT_CHECKABLE, "no file of a round, and nothing is known about it")


def _pretended(path: Path) -> str:
    """The kind of artifact or document that a file says it is, or nothing."""
    try:
        if path.suffix == ".json":
            document = json.loads(documents.read_bytes(path, ""))
            return "document" if document["format"] == FORMAT else ""
        with opened(path, verify=False) as artifact:
            return artifact.kind.name
    except Exception:  # then it is something else
        return ""
