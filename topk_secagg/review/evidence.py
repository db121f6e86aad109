"""What an audit has found so far, and the verdict on each point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, ParamSpec

from ..errors import InputMissing, SecAggError
from ..protocol.elimination import answer_shape
from ..protocol.parameters import Parameters
from ..steps.inspect import largest_bytes
from ..storage.aggregate import Aggregate
from ..storage.artifacts import Artifact, Attributes, Kind, opened
from ..storage.masked import MaskedFile
from ..storage.survivors import Survivors
from ..storage.workspace import Workspace

Verdict = Literal["pass", "fail", "not checkable"]
FAIL: Verdict = "fail"
NOT_CHECKABLE: Verdict = "not checkable"
_LONGEST = 400  # characters of a reason; a hostile file could have it quote a lot

Arguments = ParamSpec("Arguments")

_FINDS_FAULTS = "which can find faults but proves no secrecy"
_ESTABLISHES = {
    "parameters admissible": "The numbers in session.json allow a round that is secret and that can be decoded.",
    "points distinct": "No two evaluation points are equal, so that every share and every answer counts.",
    "schema": "Each file has exactly the form that the file format prescribes.",
    "no public seed": "The round was not drawn from a seed that everybody knows, with which anybody could unmask it.",
    "permissions": "By their modes, no secret is open to other accounts, and no file can be changed by everybody.",
    "only files of the round": "Nothing in the folders pretends to be a file of this round.",
    "survivors of this round, from its freezer": "survivors.json is of this session, and names enough users and a "
    "freezer who may fix them; if the round has keys, the freezer signed it.",
    "digest": "No file was damaged by accident since it was written (against forgery there are signatures).",
    "session and user": "Each file says that it is of this session and of the user in its name.",
    "session, user and signature": "Each file is of this session, and the user in its name signed it.",
    "X of the right size, indices and values allowed": "Each X has the size that it must have, and only entries that "
    "an honest user can send.",
    "one survivor set, one set of X": "Every X is the one that survivors.json names, and every Y answers this one "
    "survivors.json; answers for two survivor sets could reveal gradients.",
    "enough survivors hold all shares": "Enough survivors to decode the sum said that they hold all survivors' shares.",
    "masked value uniform": f"The masked values look as random as masks make them, {_FINDS_FAULTS}.",
    "shift uniform": f"The shifts, which hide the chosen coordinates, look random, {_FINDS_FAULTS}.",
    "permuted index uniform": f"The permuted indices, which hide the chosen ones, look random, {_FINDS_FAULTS}.",
    "ranges": "Every number in each file is within the limits that the round sets for it.",
    "Y on one polynomial (Reed-Solomon)": "More users answered than are needed, and all answers agree.",
    "confirmations of survivors.json": "So many users signed this survivors.json that no other one can have as many, "
    "unless more than T users cheat.",
    "aggregate recomputed": "The sum in aggregate.h5 is the one that the available answers decode to.",
    "sums within the clip": "No coordinate of the sum is larger than honest users can make it.",
    "rates against the theorem": "The size of what users sent, beside the paper's theorem: a matter of cost only.",
    "ledgers": "What each user noted that it sent agrees with the files of the round.",
    "masks and places fit X": "With its masks taken off, each X is an input that an honest user can have.",
    "sealed shares open, signed and whole": "Each sealed share opens with its receiver's key, is whole, and is signed "
    "by its sender.",
    "shares interpolate to selectors": "The shares of each user fit together, and hold what an honest user shares.",
    "Y recomputed": "Each answer is exactly what the X and the shares of its user give.",
    "aggregate is the sum of the inputs": "The sum in aggregate.h5 is exactly the sum of what the survivors masked.",
    "everything else": "Nothing else can be checked without a sound session.json.",
}


def establishes(point: str) -> str:
    """What it means that a point passes, in a sentence; nothing for a point that is not known."""
    if point.removesuffix(" in one X") != point:
        return "The same for the X of each user by itself."
    return _ESTABLISHES.get(point, "")


@dataclass(frozen=True)
class Finding:
    """One point of the audit, what it was checked on, and how that came out."""

    point: str
    subject: str
    verdict: Verdict
    why: str


class Evidence:
    """The findings so far, and what was read and found sound on the way.

    `confirmed` and `answered` are the digests of the survivors.json that a user's confirmation and Y name;
    `answers` is D of every sound Y of a survivor.
    """

    def __init__(self, space: Workspace) -> None:
        self.space = space
        self.findings: list[Finding] = []
        self.masked: dict[int, MaskedFile] = {}
        self.frozen: dict[int, MaskedFile] = {}
        self.survivors: Survivors | None = None
        self.confirmed: dict[int, str] = {}
        self.answered: dict[int, str] = {}
        self.answers: dict[int, int] = {}
        self.aggregate: Aggregate | None = None

    @property
    def p(self) -> Parameters:
        """The parameters of the round."""
        return self.space.session.parameters

    def fallbacks(self) -> dict[int, bool]:
        """The D that an answer to these survivors may pack, and whether it is then the fallback."""
        count = len(self.survivors.digests) if self.survivors else 0
        return {answer_shape(self.p, count, fallback=f).blocks: f for f in (True, False) if count}

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
        # the text of an unexpected error could hold anything, also a secret
        expected = isinstance(error, SecAggError)
        self.add(point, subject, verdict, str(error) if expected else f"unreadable ({type(error).__name__})")

    def examine(
        self, path: Path, kind: Kind, expected: Attributes, content: Callable[[Artifact], object], last: str = "ranges"
    ) -> bool:
        """Schema, digest, session, signature and content of an HDF5 file; `content` may return what to say."""
        signer = self.space.session.recipient(int(expected["user"])) if kind.signed else None
        origin = "session, user and signature" if signer else "session and user"
        points = ["schema", "digest", origin, last]
        try:
            with opened(path, kind, verify=False) as artifact:
                self.add(points.pop(0), path, "pass", f"a {kind.name} file of version 1")
                if sum(d.size for d in artifact.datasets.values()) > largest_bytes(kind.name, self.p):
                    raise artifact.bad("it is larger than any such file of this session")
                if artifact.digest() != artifact.attributes["sha256"]:
                    raise artifact.bad("its content does not match its digest: the file is damaged")
                self.add(points.pop(0), path, "pass")
                artifact.expect(expected, signer)
                self.add(points.pop(0), path, "pass")
                said = content(artifact)
                self.add(points[0], path, "pass", said if isinstance(said, str) else "")
        except Exception as error:
            self.blame(points[0], path, error)
            for point in points[1:]:
                self.add(point, path, NOT_CHECKABLE, f"its {points[0]} could not be confirmed")
            return False
        return True


def available(path: Path) -> bool:
    """Whether there is such a file; one in a closed folder counts, and reading it will say why it fails."""
    try:
        path.lstat()
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)
    return True


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
