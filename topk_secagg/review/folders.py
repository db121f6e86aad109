"""The part of `audit` that looks into the folders of a round: what lies there, and who may use it.

Others may have put anything there. So it enters only the folders that a round has and follows no
link: a link could lead it through all files of the auditor's machine. It names what it left out.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from ..errors import BadData, InputMissing, SecAggError
from ..rounds import spend
from ..storage import documents, residual
from ..storage.artifacts import opened
from ..storage.atomic import reason
from ..storage.kinds import ARTIFACT_KINDS
from ..storage.workspace import LOCK_NAME, Workspace
from . import points
from .evidence import Evidence

_ARTIFACT_NAME = re.compile(r"(user|from)-\d+(\.ledger|\.residual|\.chain)?\.(h5|json|h5\.age)")
_TEMPORARY_NAME = re.compile(r"\..+\.\d+\.tmp")
_OF_THIS_PROGRAM = (".h5", ".json", ".age")
_OTHERS = 0o077
_EVERYBODY_WRITES = 0o002


def audit_folders(evidence: Evidence) -> None:
    """Check the modes of all files, and look for files that do not belong there."""
    folders = _Folders(evidence)
    folders.enter(evidence.space.root)
    folders.enter(evidence.space.private)  # wherever the user keeps it
    if not any(f.point == points.ONLY_FILES_OF_THE_ROUND for f in evidence.findings):
        evidence.add_pass(points.ONLY_FILES_OF_THE_ROUND, ".")


class _Folders:
    """The files and folders that a round has, and what is there instead."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.space = evidence.space
        self.sealed = evidence.space.session.recipients is not None
        self.shares = evidence.space.share_path(1, 1).parent.parent
        self.expected = _files_of(evidence.space)
        self.kept = _kept_over_rounds(evidence.space)
        self.known = {self.shares, self.space.home, *(path.parent for path in self.expected)}
        self.entered: set[Path] = set()

    def has_folder(self, path: Path) -> bool:
        """Whether a round has such a folder."""
        return path in self.known

    def enter(self, folder: Path) -> None:
        """Look at a folder and at what lies in it, once."""
        if folder in self.entered:
            return
        self.entered.add(folder)
        chosen = folder == self.space.root  # by the auditor itself
        if self.evidence.is_link(folder) and not chosen:
            self._leave_out(folder, "a link, which was not followed")
            return
        if not os.path.lexists(folder):
            return
        try:
            entries = sorted(folder.iterdir())
        except OSError as error:
            self._leave_out(folder, f"it cannot be listed: {reason(error)}")
            return
        # every folder in shares/ is closed, so that shares/ itself need not be
        self._judge_mode(folder, secret=self._is_secret(folder) and folder != self.shares)
        for path in entries:
            if self.evidence.is_link(path):
                self.entered.add(path)  # it is named once
                self._leave_out(path, "a link, which was not followed")
            elif not _is_folder(path):
                self._file(path)
            elif self.has_folder(path):
                self.enter(path)
            else:
                self._leave_out(path, "a folder that this round does not have; it was not opened")

    def _leave_out(self, path: Path, why: str) -> None:
        self.evidence.add_not_checkable(points.ONLY_FILES_OF_THE_ROUND, path, why)

    def _is_secret(self, path: Path) -> bool:
        """Whether only its owner may see it. Everybody may see sealed shares."""
        own_folder = path == self.space.home != self.space.root
        if own_folder or path.is_relative_to(self.space.private) or self._is_kept(path):
            return True
        return not self.sealed and path.is_relative_to(self.shares)

    def _is_kept(self, path: Path) -> bool:
        """Whether it is a file that the folder of secrets has for all rounds, by whatever way the
        round and that folder are given."""
        return path.parent.resolve() / path.name in self.kept

    def _file(self, path: Path) -> None:
        if LOCK_NAME.fullmatch(path.name):
            return
        secret = self._is_secret(path)
        if secret or path in self.expected:
            self._judge_mode(path, secret=secret)
        if path not in self.expected and not self._is_kept(path):
            self._unexpected(path)

    def _judge_mode(self, path: Path, *, secret: bool) -> None:
        """A secret that is open to others is a fail; the mode of a public file is at most noted,
        because copies and checkouts have modes of their own.

        In a sealed round several accounts may share a folder with the sticky bit, in which nobody
        can replace another's file.
        """
        with self.evidence.check(points.PERMISSIONS, path) as check:
            try:
                mode = stat.S_IMODE(path.stat().st_mode)
            except OSError as error:
                raise InputMissing(f"its mode cannot be read: {reason(error)}") from None
            if secret and mode & _OTHERS:
                raise BadData(
                    f"mode {mode:04o}: others than its owner may use it, and it is a secret"
                )
            shared = self.sealed and mode & stat.S_ISVTX
            if mode & _EVERYBODY_WRITES and not shared:
                raise InputMissing(
                    f"mode {mode:04o}: here everybody may write to it; if this is a copy, that "
                    "says nothing about the round"
                )
            check.why = f"mode {mode:04o}"

    def _unexpected(self, path: Path) -> None:
        """Judge a file with a name that this round does not use: it fails only if it pretends to be
        a file of a round."""
        kind = _pretended_kind(path)
        at_root = path.parent == self.space.root
        if _TEMPORARY_NAME.fullmatch(path.name):
            self.evidence.add_pass(
                points.ONLY_FILES_OF_THE_ROUND,
                path,
                "left by a step that was killed, or that is still running",
            )
        elif kind == residual.KIND.name:
            self._leave_out(path, "a residual that its user keeps here")
        elif kind:
            self.evidence.add_fail(
                points.ONLY_FILES_OF_THE_ROUND,
                path,
                f"a {kind} file of this program under a name that it must not have here",
            )
        elif not at_root and _ARTIFACT_NAME.fullmatch(path.name):
            self.evidence.add_fail(
                points.ONLY_FILES_OF_THE_ROUND,
                path,
                "it is named like a file of the round, and this round has no such file",
            )
        elif not at_root or path.suffix in _OF_THIS_PROGRAM:
            self._leave_out(path, "it is not a file of a round")


def _files_of(space: Workspace) -> set[Path]:
    """Every file that this round can have."""
    files = {space.session_path, space.survivors_path, space.aggregate_path}
    files |= {space.decoded_path}
    if space.session.basis is not None:
        files.add(space.basis_path)
    for n in space.users():
        files |= {space.secret_path(n), space.ledger_path(n), space.residual_path(n)}
        files |= {space.staged_path(n, what) for what in spend.WHAT}
        files |= {space.masked_path(n), space.answer_path(n)}
        files |= {space.share_path(m, n) for m in space.users()}
        if space.session.confirm:
            files.add(space.confirmation_path(n))
        if space.session.family is not None:
            files.add(space.dealt_path(n))
    return files


def _kept_over_rounds(space: Workspace) -> set[Path]:
    """The files of a folder of secrets that are of no single round."""
    files = {space.folder_path, space.input_key_path}
    for n in space.users():
        files |= {space.identity_path(n), space.sent_path(n), space.home / space.chain_name(n)}
        chain = space.chain_path(n)
        if chain is not None:
            files.add(chain)
    return {path.parent.resolve() / path.name for path in files}


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError:  # in a folder that shows names only
        return False


def _pretended_kind(path: Path) -> str:
    """The kind that the file claims to be, or ""."""
    try:
        if path.suffix == ".json":
            return documents.kind_of(path, documents.read_bytes(path, ""))
        with opened(path, *ARTIFACT_KINDS) as artifact:
            return artifact.kind.name
    except (SecAggError, OSError):  # then it is something else, or nobody can tell
        return ""
