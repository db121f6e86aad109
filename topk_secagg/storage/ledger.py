"""The ledger of a user: what was shared, which X was sent, which survivor set was answered.

A line is durable before the file that it covers appears; material that is spent stays spent.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import BadData, Refused
from . import documents
from .atomic import PRIVATE, write_whole
from .residual import Residual

_KEYS = {"session", "user", "insecure", "shared", "masked", "answered", "residual"}


@dataclass(frozen=True)
class Ledger:
    """`shared` names the sharing whose shares are all written, `masked` is the digest of X_n, and
    `answered` that of the survivors.json for which Y_n was made."""

    path: Path
    session: str
    user: int
    insecure: int
    shared: str | None = None
    masked: str | None = None
    answered: str | None = None
    residual: Residual | None = None

    @staticmethod
    def read(path: Path, session: str, user: int) -> Ledger:
        """The ledger on disk, which must be of this session and user."""
        hint = "without its ledger the secret cannot be used; take part in a new round"
        ledger = parse_ledger(path, documents.read_bytes(path, hint))
        if ledger.session != session or ledger.user != user:
            raise BadData(f"{path} belongs to another session or user", "was it copied from elsewhere?")
        return ledger

    def write(self) -> None:
        """Make the ledger durable."""
        body: dict[str, Any] = {key: getattr(self, key) for key in sorted(_KEYS)}
        body["residual"] = self.residual and asdict(self.residual)
        write_whole(self.path, documents.dump("ledger", body), PRIVATE)

    def complete_sharing(self, sharing: str) -> Ledger:
        """Record that all shares of this sharing are written."""
        return self._record(replace(self, shared=sharing))

    def check_masks(self, digest: str) -> None:
        """Refuse a second X. Two X from the same masks reveal the difference of their inputs."""
        if self.masked not in (None, digest):
            raise Refused(
                f"user {self.user} has already masked another input in this round",
                "masks are good for one input only; start a new round for another gradient",
            )

    def spend_masks(self, digest: str, residual: Residual | None = None) -> Ledger:
        """Record that X with this digest is sent, and the residual that waits to be committed."""
        self.check_masks(digest)
        return self._record(replace(self, masked=digest, residual=residual or self.residual))

    def check_answer(self, digest: str) -> None:
        """Refuse a second survivor set. Two answers reveal one user's input."""
        if self.answered not in (None, digest):
            raise Refused(
                f"user {self.user} has already answered another survivor set in this round",
                "a user answers one survivor set per round; start a new round",
            )

    def answer(self, digest: str) -> Ledger:
        """Record that the survivor set with this digest is answered."""
        self.check_answer(digest)
        return self._record(replace(self, answered=digest))

    def settle_residual(self) -> Ledger:
        """Record that the residual is where its user keeps it."""
        assert self.residual is not None
        return self._record(replace(self, residual=replace(self.residual, committed=True)))

    def _record(self, changed: Ledger) -> Ledger:
        if changed != self:
            changed.write()
        return changed


def parse_ledger(path: Path, content: bytes) -> Ledger:
    """A ledger from its bytes, whosever it is."""
    body = documents.parse(path, content, "ledger", _KEYS)
    digests = [
        body["session"],
        *(body[key] for key in ("shared", "masked", "answered") if body[key] is not None),
    ]
    try:
        body["residual"] = body["residual"] and Residual.from_json(body["residual"])
        sound = (
            all(map(documents.is_digest, digests))
            and type(body["user"]) is int
            and body["insecure"] in (0, 1)
        )
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise BadData(f"{path} is not what a ledger looks like", "take part in a new round")
    return Ledger(path, **body)
