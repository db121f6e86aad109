"""survivors.json: U1, with the digest and weight of each X; and confirmed/user-NN.json, signatures
of it.

In a round with recipients survivors.json is signed by the user that froze it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..algebra.parallel import ahead
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
from ..protocol.constructions import construction
from . import documents
from .atomic import write_whole
from .documents import Sha256
from .keys import Identity, check_signature
from .masked import MaskedFile
from .masked import read as read_masked
from .session import Session
from .workspace import Workspace

if TYPE_CHECKING:
    from .ledger import Ledger  # which imports this module

_MOST_PER_USER = 512  # bytes
_MOST_ELSE = 2048
_LARGE_BYTES = 1 << 20  # of an X that is worth a thread
_AGAIN = "fetch it again from the user that froze the round"


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
    "freezer": int,
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
    """U1 with the digest and the weight of each X, who froze it, and the document's own digest.

    `sharings` and `dealt` are what answers rest on: they are in each X too.
    """

    digests: dict[int, str]
    weights: dict[int, float]
    sharings: dict[int, str]
    dealt: dict[int, str | None]
    freezer: int
    signature: str | None
    digest: str

    @property
    def users(self) -> list[int]:
        """U1."""
        return sorted(self.digests)


def rows_of(files: Mapping[int, MaskedFile]) -> tuple[Row, ...]:
    """What survivors.json says about these X, in the order of their users."""
    return tuple(
        Row(user=n, sha256=x.digest, weight=x.weight, sharing=x.sharing, dealt=x.dealt)
        for n, x in sorted(files.items())
    )


def content(s: Session, rows: Sequence[Row], freezer: int, signer: Identity | None) -> bytes:
    """survivors.json with these rows; the same rows always give the same bytes."""
    body = {"session": s.id, "freezer": freezer, "survivors": rows}
    return documents.signed("survivors", body, signer)


def parse(path: Path, data: bytes) -> tuple[Survivors, dict[str, Any]]:
    """survivors.json of any session: users with a digest and a positive weight, each once."""
    body = documents.parse(path, data, kind="survivors", types=_TYPES, hint=_AGAIN)
    rows: tuple[Row, ...] = body["survivors"]
    digests = {row.user: row.sha256 for row in rows}
    if len(digests) < len(rows):
        raise BadData("names a user twice", _AGAIN, subject=path)
    survivors = Survivors(
        digests=digests,
        weights={row.user: row.weight for row in rows},
        sharings={row.user: row.sharing for row in rows},
        dealt={row.user: row.dealt for row in rows},
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
    # where users confirm, any user may freeze
    if survivors.freezer != s.freezer and not s.confirm:
        raise BadData(
            f"is from user {survivors.freezer}, and user {s.freezer} freezes this round",
            _AGAIN,
            subject=path,
        )
    with about(path):
        check_signature(
            s.recipient(survivors.freezer),
            kind="survivors",
            digest=documents.digest_unsigned("survivors", body),
            signature=survivors.signature,
        )
    if len(survivors.digests) < p.survivors:
        raise TooFewSurvivors(
            f"names {counted(len(survivors.digests), 'survivor')}, and {p.survivors} are needed",
            "do not answer: it would reveal inputs",
            subject=path,
        )
    return survivors


def _is_of_this_round(space: Workspace, survivors: Survivors) -> bool:
    """Whether users, weights and lists are those that this round can have, by increasing user."""
    largest = space.session.parameters.max_weight
    by_keys = space.session.family is not None
    return (
        all((digest is not None) == by_keys for digest in survivors.dealt.values())
        and {*survivors.digests, survivors.freezer} <= set(space.users())
        and all(0 < weight <= largest for weight in survivors.weights.values())
        and list(survivors.digests) == survivors.users
    )


def fixed(space: Workspace) -> Survivors | None:
    """The survivor set that this round is bound to, as far as its public files show one.

    Where users confirm, any user may sign a set; it binds nobody before enough users confirmed it.
    """
    try:
        survivors = read(space)
    except SecAggError:
        return None
    need = space.session.confirmations
    if need and len(confirmed_by(space, survivors.digest, space.users())) < need:
        return None
    return survivors


def check_arrived(what: str, files: dict[int, Path]) -> None:
    """Refuse to start while files of some users are missing; the message names them all."""
    missing = [n for n, path in files.items() if not path.exists()]
    if missing:
        folder = next(iter(files.values())).parent
        raise InputMissing(
            f"no {what} has arrived from {named_users(missing)} in {folder}",
            f"fetch what is missing from {named_users(missing)}",
        )


def read_frozen(space: Workspace, survivors: Survivors) -> dict[int, MaskedFile]:
    """Every X of U1, each the one that was frozen."""
    return dict(each_frozen(space, survivors))


def each_frozen(space: Workspace, survivors: Survivors) -> Iterator[tuple[int, MaskedFile]]:
    """The same one after the other, so that few are in memory; none if one has not arrived. While
    one is used, the next large one is read."""
    users = survivors.users
    check_arrived("X", {n: space.masked_path(n) for n in users})
    large = construction(space.session.parameters).masked_bytes > _LARGE_BYTES
    calls = (partial(_frozen, space, survivors, user=n) for n in users)
    yield from zip(users, ahead(calls, threads=1 if large else 0), strict=True)


def _frozen(space: Workspace, survivors: Survivors, user: int) -> MaskedFile:
    """One X of the survivors."""
    x = read_masked(space.session, space.masked_path(user), user)
    frozen = (
        survivors.digests[user],
        survivors.weights[user],
        survivors.sharings[user],
        survivors.dealt[user],
    )
    if (x.digest, x.weight, x.sharing, x.dealt) != frozen:
        raise BadData(
            "is not the file that was frozen",
            "fetch the X that survivors.json names by its digest",
            subject=space.masked_path(user),
        )
    return x


# confirmations


def confirm(space: Workspace, user: int, survivors_sha256: str, signer: Identity) -> Path:
    """Publish a user's signature of the digest of survivors.json."""
    path = space.confirmation_path(user)
    space.make_room(path)
    body = _confirmation(space.session, user, survivors_sha256)
    write_whole(path, documents.signed("confirmation", body, signer))
    return path


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


def check_own_row(survivors: Survivors, ledger: Ledger) -> None:
    """Refuse survivors whose row of this user is not what its ledger has: the digest of its X, the
    sharing of its secret and the digest of its list.

    A user without a row passes: it dropped out.
    """
    user = ledger.user
    if user not in survivors.digests:
        return
    row = (survivors.digests[user], survivors.sharings[user], survivors.dealt[user])
    if row != (ledger.masked, ledger.shared, ledger.dealt):
        raise BadData(
            f"survivors.json names an X of user {user} that this user did not send",
            "somebody replaced X or survivors.json; do not confirm or answer it",
        )
