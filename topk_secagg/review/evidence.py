"""What an audit has found so far, and the verdict on each point."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, ParamSpec

import numpy.typing as npt

from ..errors import InputMissing, SecAggError
from ..protocol.parameters import Parameters
from ..storage.artifacts import Artifact, Attributes, opened
from ..storage.keys import check_signature
from ..storage.public import MaskedFile, Survivors
from ..storage.workspace import Workspace

Verdict = Literal["pass", "fail", "not checkable"]
FAIL: Verdict = "fail"
NOT_CHECKABLE: Verdict = "not checkable"
_LONGEST = 400  # characters of a reason; a hostile file could have it quote a lot

Arguments = ParamSpec("Arguments")


@dataclass(frozen=True)
class Finding:
    """One point of the audit, what it was checked on, and how that came out."""

    point: str
    subject: str
    verdict: Verdict
    why: str


class Evidence:
    """The findings so far, and what was read and found sound on the way."""

    def __init__(self, space: Workspace) -> None:
        self.space = space
        self.findings: list[Finding] = []
        self.masked: dict[int, MaskedFile] = {}
        self.frozen: dict[int, MaskedFile] = {}
        self.survivors: Survivors | None = None
        self.answered: dict[int, str] = {}
        self.answers: list[int] = []
        self.aggregate: dict[str, npt.NDArray[Any]] = {}

    @property
    def p(self) -> Parameters:
        """The parameters of the round."""
        return self.space.session.parameters

    def add(self, point: str, subject: Path | str, verdict: Verdict, why: str = "") -> None:
        """Note a finding, with paths as seen from the round and nothing that could upset a terminal."""
        root = f"{self.space.root}/"
        name = str(subject).removeprefix(root)
        text = why.replace(root, "").removeprefix(f"{name}: ").removeprefix(f"{name} ")
        self.findings.append(Finding(point, _printable(name), verdict, _printable(text[:_LONGEST])))

    def check(
        self,
        point: str,
        subject: Path | str,
        work: Callable[Arguments, str | None],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> bool:
        """Pass unless `work` raises; it returns what is to be said of a pass."""
        try:
            self.add(point, subject, "pass", work(*args, **kwargs) or "")
        except Exception as error:  # whatever a damaged file provokes must not stop the audit
            self.blame(point, subject, error)
            return False
        return True

    def blame(self, point: str, subject: Path | str, error: Exception) -> None:
        """What is missing cannot be checked; anything else is a fail."""
        verdict = NOT_CHECKABLE if isinstance(error, InputMissing) else FAIL
        # the text of an error that nobody foresaw could hold anything, also a secret
        foreseen = isinstance(error, SecAggError)
        self.add(point, subject, verdict, str(error) if foreseen else f"unreadable ({type(error).__name__})")

    def examine(
        self,
        path: Path,
        kind: str,
        expected: Attributes,
        content: Callable[[Artifact], str | None],
        files: ExitStack,
        last: str = "ranges",
    ) -> bool:
        """Schema, digest, session, signature and content of an HDF5 file; it stays open in `files`."""
        signers = self.space.session.recipients if kind in ("masked", "elimination") else None
        points = ["schema", "digest", "session and user", *["signature"][: bool(signers)], last]
        try:
            artifact = files.enter_context(opened(path, kind, verify=False))
            self.add(points.pop(0), path, "pass", f"a {kind} file of version 1")
            if artifact.digest() != artifact.attributes["sha256"]:
                raise artifact.bad("its content does not match its digest: the file is damaged")
            self.add(points.pop(0), path, "pass")
            artifact.expect(expected)
            self.add(points.pop(0), path, "pass")
            if signers:
                check_signature(artifact, signers[artifact.attributes["user"] - 1])
                self.add(points.pop(0), path, "pass")
            why = content(artifact)
            self.add(points.pop(0), path, "pass", why or "")
        except Exception as error:
            failed = points.pop(0)
            self.blame(failed, path, error)
            for point in points:
                self.add(point, path, NOT_CHECKABLE, f"its {failed} could not be confirmed")
            return False
        return True


def at_hand(path: Path) -> bool:
    """Whether there is such a file; one in a closed folder counts, and reading it will say why it fails."""
    try:
        path.lstat()
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)
    return True


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
