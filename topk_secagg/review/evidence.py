"""The findings of an audit, and the sound data behind them."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from ..errors import InputMissing, SecAggError
from ..protocol.constructions import construction
from ..protocol.messages import AnswerShape
from ..protocol.parameters import Parameters
from ..storage.aggregate import Aggregate
from ..storage.artifacts import Artifact, Attributes, Kind, opened
from ..storage.dealt import Dealt
from ..storage.kinds import check_size
from ..storage.masked import MaskedFile
from ..storage.session import Session
from ..storage.survivors import Survivors
from ..storage.workspace import Workspace
from . import points
from .points import Point

# What files can cause: our readers raise a SecAggError for every one that is damaged, the system an
# OSError for one that it cannot read. Anything else is a bug of ours, and no finding about a user.
CAUSED_BY_FILES = (SecAggError, OSError, MemoryError)
_LONGEST = 400  # characters of a reason; a hostile file could have it quote a lot


class Verdict(StrEnum):
    """What became of a check; its finding has the reason."""

    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    NOT_CHECKABLE = "not checkable"


@dataclass(frozen=True)
class Finding:
    """The verdict on one point of the audit for one file or folder."""

    point: Point
    subject: str
    verdict: Verdict
    why: str


@dataclass
class Check:
    """A check in progress: what to blame if it fails, the reason to report for a pass, and whether
    it passed."""

    subjects: Sequence[Path | str]
    why: str = ""
    passed: bool = False


class Evidence:
    """The findings so far, and the sound data read so far.

    `confirmed` and `answered` are the digests of the survivors.json that a user's confirmation and
    Y name; `answers` is the shape of every sound Y of a survivor. The sum that these decode to is
    right if at most `liars_excluded` users lie; None if there is no sum. `session_pinned`,
    `series_pinned` and `keys_pinned` say whether these are known to be the right ones, from outside
    the round. `warnings` say what is no verdict on this round alone.
    """

    def __init__(self, space: Workspace, *, session_pinned: bool = False) -> None:
        self.space = space
        self.session_pinned = session_pinned
        self.series_pinned = False
        self.keys_pinned = False
        self.warnings: list[str] = []
        self.session: Session | None = None
        self.findings: list[Finding] = []
        self.masked: dict[int, MaskedFile] = {}
        self.frozen: dict[int, MaskedFile] = {}
        self.dealt: dict[int, Dealt] = {}
        self.survivors: Survivors | None = None
        self.confirmed: dict[int, str] = {}
        self.answered: dict[int, str] = {}
        self.answers: dict[int, AnswerShape] = {}
        self.aggregate: Aggregate | None = None
        self.liars_excluded: int | None = None

    @property
    def p(self) -> Parameters:
        """The parameters of the round."""
        return self.space.session.parameters

    def payloads(self) -> dict[str, int]:
        """The bytes of an X and of the largest Y, 0 where no sound one is available."""
        c = construction(self.p)
        answers = (c.bytes_of_answer(shape) for shape in self.answers.values())
        return {"X": c.masked_bytes if self.masked else 0, "Y": max(answers, default=0)}

    def add_pass(self, point: Point, subject: Path | str, why: str = "") -> None:
        """A point that was checked and holds."""
        self._add(Finding(point=point, subject=str(subject), verdict=Verdict.PASS, why=why))

    def add_fail(self, point: Point, subject: Path | str, why: str) -> None:
        """A point that was checked and does not hold."""
        self._add(Finding(point=point, subject=str(subject), verdict=Verdict.FAIL, why=why))

    def add_not_checkable(self, point: Point, subject: Path | str, why: str) -> None:
        """A point that could not be checked."""
        self._add(
            Finding(point=point, subject=str(subject), verdict=Verdict.NOT_CHECKABLE, why=why)
        )

    def _add(self, finding: Finding) -> None:
        """Keep a finding, with paths relative to the round or to the folder of secrets, and without
        control characters."""
        root = f"{self.space.root}/"
        name = self._shortened(finding.subject).replace(root, "")
        why = self._shortened(finding.why).replace(root, "")
        self.findings.append(
            replace(finding, subject=_printable(name), why=_printable(why[:_LONGEST]))
        )

    def _shortened(self, text: str) -> str:
        """A text in which SECRETS stands for the session's folder of secrets, if that is not in the
        round: its name is longer than a line of a table."""
        if self.space.secrets is None or self.session is None:
            return text
        return text.replace(str(self.space.private), "SECRETS")

    @contextmanager
    def check(self, point: Point, subject: Path | str) -> Iterator[Check]:
        """Add what the body of the `with` statement comes to: a pass, or what it raised.

        An error that files can cause ends here, and `passed` stays false. The body may set `why`,
        the reason of a pass, and `subjects`, the files that are blamed for an error.
        """
        result = Check([subject])
        try:
            yield result
        except CAUSED_BY_FILES as error:
            for blamed in result.subjects:
                self.blame(point, blamed, error)
        else:
            self.add_pass(point, subject, result.why)
            result.passed = True

    def blame(self, point: Point, subject: Path | str, error: Exception) -> None:
        """Add a failed check; if its input is missing or cannot be read, it is not checkable
        instead."""
        if isinstance(error, InputMissing):
            self.add_not_checkable(point, subject, error.said_of(subject))
        elif isinstance(error, SecAggError):
            self.add_fail(point, subject, error.said_of(subject))
        else:  # what this machine cannot read, or has no memory for, may be sound
            self.add_not_checkable(point, subject, f"unreadable ({type(error).__name__})")

    def examine(
        self,
        path: Path,
        kind: Kind,
        *,
        expected: Attributes,
        read: Callable[[Artifact], object],
        last: Point = points.RANGES,
    ) -> None:
        """Check the schema, digest, session, signature and content of an HDF5 file, if there is
        one.

        `read` checks the content, which is the point `last`. It may return the reason to report for
        a pass.
        """
        if not self.available(path):
            return
        signer = self.space.session.recipient(int(expected["user"])) if kind.signed else None
        origin = points.SIGNED_ORIGIN if signer else points.ORIGIN
        to_check = [points.SCHEMA, points.DIGEST, origin, last]
        try:
            with opened(path, kind) as artifact:
                self.add_pass(to_check.pop(0), path, f"a {kind.name} file of version 1")
                check_size(artifact, self.space.session)
                artifact.verify()
                self.add_pass(to_check.pop(0), path)
                artifact.expect(expected, signer)
                self.add_pass(to_check.pop(0), path)
                why = read(artifact)
                self.add_pass(to_check[0], path, why if isinstance(why, str) else "")
        except CAUSED_BY_FILES as error:
            self.blame(to_check[0], path, error)
            for point in to_check[1:]:
                self.add_not_checkable(point, path, f"its {to_check[0]} could not be confirmed")

    def available(self, path: Path) -> bool:
        """Whether there is such a file. One in a closed folder counts: reading it reports why it
        fails.

        What is behind a link does not count.
        """
        if self._link_to(path):
            return False
        try:
            path.lstat()
        except OSError as error:
            return not isinstance(error, FileNotFoundError | NotADirectoryError)
        return True

    def check_not_linked(self, path: Path) -> None:
        """Refuse to read what is behind a link."""
        if link := self._link_to(path):
            raise InputMissing(
                f"{link} is a link, and an audit does not follow links",
                "put the file itself there, or audit the folder that holds it",
            )

    def _link_to(self, path: Path) -> Path | None:
        """The link through which this path of the round leads, if there is one; the folder of the
        round, and that of the secrets, may be given by links."""
        given = [self.space.root, *([self.space.secrets] if self.space.secrets else [])]
        around = (folder for folder in given if path.is_relative_to(folder))
        base = max(around, key=lambda folder: len(folder.parts), default=path.parent)
        inside = [path, *path.parents][: len(path.relative_to(base).parts)]
        return next((part for part in reversed(inside) if self.is_link(part)), None)

    @staticmethod
    def is_link(path: Path) -> bool:
        """Whether a path is a link, which an audit does not follow."""
        try:
            return stat.S_ISLNK(path.lstat().st_mode)
        except OSError:  # nothing is there, or nothing can be seen
            return False


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
