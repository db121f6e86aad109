"""survivors.json: U1, with the digest and weight of each X; and confirmed/user-NN.json, signatures
of it.

In a round with recipients survivors.json is signed by the user that freezes it; where users
confirm by nobody: its bytes follow from its rows, and each confirmation signs its digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..brief import Brief
from ..errors import (
    BadData,
    InputMissing,
    OfOtherSession,
    SecAggError,
    TooFewSurvivors,
    about,
    counted,
    named_users,
)
from . import documents
from .documents import Sha256
from .keys import Identity, check_signature
from .session import Session
from .workspace import Workspace

_MOST_PER_USER = 512  # bytes
_MOST_ELSE = 2048
_AGAIN = "fetch it again, or ask who froze the round"


@dataclass(frozen=True)
class Row:
    """One X in survivors.json: its digest and weight, the sharing that it belongs to, and the
    digest of its dealer's list where shares are dealt by keys."""

    user: int
    sha256: Sha256
    weight: float
    sharing: Sha256
    dealt: Sha256 | None


_TYPES = {
    "session": Sha256,
    "freezer": int | None,
    "survivors": tuple[Row, ...],
    "signature": str | None,
}
_CONFIRMATION_TYPES = {
    "session": Sha256,
    "user": int,
    "survivors_sha256": Sha256,
    "signature": str,
}


@dataclass(frozen=True, repr=False)
class Survivors(Brief):
    """U1 as survivors.json has it: a row for each user, who froze it (None where users confirm),
    and the document's own digest."""

    rows: Mapping[int, Row]
    freezer: int | None
    signature: str | None
    digest: str

    @property
    def users(self) -> list[int]:
        """U1."""
        return list(self.rows)

    @property
    def weights(self) -> dict[int, float]:
        """The public weight of each user's X."""
        return {n: row.weight for n, row in self.rows.items()}


def content(s: Session, rows: Sequence[Row], signer: Identity | None) -> bytes:
    """survivors.json with these rows; the same rows always give the same bytes. Where users
    confirm, nobody signs it."""
    body = {"session": s.id, "freezer": s.freezer, "survivors": rows}
    return documents.signed("survivors", body, None if s.confirm else signer)


def parse(path: Path, data: bytes) -> tuple[Survivors, dict[str, Any]]:
    """survivors.json of any session: users with a digest and a positive weight, each once."""
    body = documents.parse(path, data, kind="survivors", types=_TYPES, hint=_AGAIN)
    rows: tuple[Row, ...] = body["survivors"]
    users = [row.user for row in rows]
    if sorted(set(users)) != users:
        raise BadData("does not name each user once, in order", _AGAIN, subject=path)
    survivors = Survivors(
        rows={row.user: row for row in rows},
        freezer=body["freezer"],
        signature=body["signature"],
        digest=documents.digest(data),
    )
    return survivors, body


def read(space: Workspace) -> Survivors:
    """survivors.json, which must name at least U users of this session, and be signed in a sealed
    round."""
    largest = _MOST_ELSE + _MOST_PER_USER * space.session.parameters.users
    data = documents.read_bytes(
        space.survivors_path,
        "wait until the round is frozen, or fetch survivors.json",
        largest=largest,
    )
    return checked(space, data)


def checked(space: Workspace, data: bytes) -> Survivors:
    """The same from its bytes."""
    path = space.survivors_path
    s = space.session
    p = s.parameters
    survivors, body = parse(path, data)
    if body["session"] != s.id:
        raise OfOtherSession(
            "belongs to another session", "was it copied from elsewhere?", subject=path
        )
    if documents.dump("survivors", body) != data:
        raise BadData("is not written as this program writes it", _AGAIN, subject=path)
    if not _is_of_this_round(space, survivors):
        raise BadData("names users or weights that are not in this round", _AGAIN, subject=path)
    if survivors.freezer != s.freezer:
        whose = "nobody" if s.freezer is None else f"user {s.freezer}"
        raise BadData(
            f"is from user {survivors.freezer}, and {whose} freezes this round",
            _AGAIN,
            subject=path,
        )
    with about(path):
        check_signature(
            None if s.freezer is None else s.recipient(s.freezer),
            kind="survivors",
            digest=documents.digest_unsigned("survivors", body),
            signature=survivors.signature,
        )
    if len(survivors.rows) < p.survivors:
        raise TooFewSurvivors(
            f"names {counted(len(survivors.rows), 'survivor')}, and {p.survivors} are needed",
            "do not answer: it would reveal inputs",
            subject=path,
        )
    return survivors


def _is_of_this_round(space: Workspace, survivors: Survivors) -> bool:
    """Whether users, weights and lists are those that this round can have."""
    largest = space.session.parameters.max_weight
    by_keys = space.session.family is not None
    users = space.users()
    return all(
        row.user in users and 0 < row.weight <= largest and (row.dealt is not None) == by_keys
        for row in survivors.rows.values()
    )


def fixed(space: Workspace) -> Survivors | None:
    """The survivor set that this round is bound to, as far as its public files show one.

    Where users confirm, any user may propose a set; it binds nobody before enough confirmed it.
    """
    try:
        survivors = read(space)
    except SecAggError:
        return None
    need = space.session.confirmations
    if need and len(confirmed_by(space, survivors.digest, space.users())) < need:
        return None
    return survivors


# confirmations


def confirmation(s: Session, user: int, survivors_sha256: str, signer: Identity) -> bytes:
    """A user's signature of the digest of survivors.json, as a file."""
    body = _confirmation(s, user, survivors_sha256)
    return documents.signed("confirmation", body, signer)


def _confirmation(s: Session, user: int, survivors_sha256: str) -> dict[str, Any]:
    """What a confirmation signs: session, user and survivors.json."""
    return {
        "session": s.id,
        "user": user,
        "survivors_sha256": survivors_sha256,
    }


def parse_confirmation(path: Path, data: bytes) -> dict[str, Any]:
    """A confirmation of any session."""
    return documents.parse(path, data, kind="confirmation", types=_CONFIRMATION_TYPES)


def confirmed_by(space: Workspace, survivors_sha256: str, users: Iterable[int]) -> list[int]:
    """Those of `users` whose valid confirmation of this survivors.json is there."""
    result = []
    s = space.session
    for n in users:
        path = space.confirmation_path(n)
        with suppress(InputMissing, BadData):
            body = parse_confirmation(path, documents.read_bytes(path, "", largest=_MOST_ELSE))
            signature = body.pop("signature")
            check_signature(
                s.recipient(n),
                kind="confirmation",
                digest=documents.digest_unsigned("confirmation", body),
                signature=signature,
            )
            if body == _confirmation(s, n, survivors_sha256):
                result.append(n)
    return result


def confirmed_before(space: Workspace, user: int) -> str | None:
    """The digest of the survivors.json that this user's confirmation signs."""
    with suppress(InputMissing, BadData):
        path = space.confirmation_path(user)
        body = parse_confirmation(path, documents.read_bytes(path, "", largest=_MOST_ELSE))
        digest = str(body["survivors_sha256"])
        if confirmed_by(space, digest, [user]):
            return digest
    return None


def confirmed_others(space: Workspace, survivors_sha256: str) -> list[int]:
    """The users that confirmed another survivors.json than this one."""
    known = (None, survivors_sha256)
    return [n for n in space.users() if confirmed_before(space, n) not in known]


def check_confirmed(space: Workspace, survivors: Survivors) -> None:
    """Refuse survivors that too few users have confirmed, in a round with confirmations.

    There any user can freeze: survivors.json alone is the word of one of them.
    """
    need = space.session.confirmations
    there = confirmed_by(space, survivors.digest, space.users()) if need else []
    if len(there) < need:
        missing = [n for n in space.users() if n not in there]
        raise InputMissing(
            f"{counted(len(there), 'user has', 'users have')} confirmed these survivors, and "
            f"{need} must; missing: {named_users(missing)}",
            "ask them to confirm, and fetch their files from confirmed/",
        )
