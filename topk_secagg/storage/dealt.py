"""dealt/user-NN.json: user NN's commitments to the keys that it dealt, public.

Whoever holds a key compares it with the list. X names the digest of the list, so survivors.json
fixes it: all honest holders of a block that answer then have the same key. In a round with
recipients the list is signed by its dealer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..brief import Brief
from ..errors import BadData, about, named_users
from ..protocol.deal import Block, commitment
from . import documents
from .documents import Sha256
from .keys import Identity, check_signature
from .session import Session
from .workspace import Workspace

_TYPES = {
    "session": Sha256,
    "user": int,
    "commitments": tuple[Sha256, ...],
    "signature": str | None,
}
_MOST_PER_BLOCK = 80  # bytes
_MOST_ELSE = 2048
_AGAIN = "fetch it again from the user that dealt"


@dataclass(frozen=True, repr=False)
class Dealt(Brief):
    """The commitments to a dealer's keys, block by block of the family, and the list's digest."""

    user: int
    commitments: dict[Block, str]
    digest: str

    def check(self, keys: Mapping[Block, bytes]) -> None:
        """BadData unless each of the keys is the one that the dealer is committed to."""
        for block, key in keys.items():
            if commitment(key, self.user, block).hex() != self.commitments[block]:
                raise BadData(f"its key for {named_users(block)} is not the one that it published")


def content(s: Session, user: int, keys: Sequence[bytes], signer: Identity | None) -> bytes:
    """dealt/user-NN.json for the keys of the family's blocks."""
    blocks = zip(s.family or (), keys, strict=True)
    body = {
        "session": s.id,
        "user": user,
        "commitments": [commitment(key, user, block).hex() for block, key in blocks],
    }
    return documents.signed("dealt", body, signer)


def parse(path: Path, content: bytes) -> dict[str, Any]:
    """A list of any session."""
    return documents.parse(path, content, kind="dealt", types=_TYPES, hint=_AGAIN)


def read(space: Workspace, user: int) -> Dealt:
    """The list of a dealer of this round, signed in a sealed round."""
    path = space.dealt_path(user)
    s = space.session
    family = s.family or ()
    largest = _MOST_ELSE + _MOST_PER_BLOCK * len(family)
    data = documents.read_bytes(path, "fetch it from the user that dealt", largest=largest)
    body = parse(path, data)
    if body["session"] != s.id or body["user"] != user:
        raise BadData(
            "belongs to another session or user", "was it copied from elsewhere?", subject=path
        )
    if len(body["commitments"]) != len(family) or documents.dump("dealt", body) != data:
        raise BadData("does not have a commitment for every block", _AGAIN, subject=path)
    digest = documents.digest_unsigned("dealt", body)
    with about(path):
        check_signature(s.recipient(user), kind="dealt", digest=digest, signature=body["signature"])
    commitments = dict(zip(family, body["commitments"], strict=True))
    return Dealt(user=user, commitments=commitments, digest=digest)
