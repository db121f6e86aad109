"""Reading and writing X, survivors.json, Y and the aggregate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..algebra.field import SYMBOL, Symbols
from ..errors import BadData, InputMissing, TooFewSurvivors
from ..protocol.masking import check_masked
from ..protocol.messages import Masked
from ..protocol.parameters import Parameters
from . import documents, wire
from .artifacts import Array, Artifact, opened
from .keys import check_signature
from .session import Session
from .workspace import Workspace

SURVIVOR_KEYS = {"session", "insecure", "survivors"}
_LARGEST_WEIGHT = 2.0**53


@dataclass(frozen=True)
class MaskedFile:
    """X_n as read: its digest, the sharing that it belongs to, and its payload in bytes."""

    masked: Masked
    digest: str
    sharing: str
    weight: float
    payload: int


@dataclass(frozen=True)
class Survivors:
    """survivors.json: U1 with the digest and the weight of each X, and the document's own digest."""

    digests: dict[int, str]
    weights: dict[int, float]
    digest: str


def masked_datasets(p: Parameters, masked: Masked) -> dict[str, Array]:
    """X_n on the wire; 32-bit values are typed as such, so that any HDF5 viewer shows them."""
    bits = wire.bits_below(p.field)
    value = wire.pack(masked.value, bits)
    return {"index": _pack_index(p, masked.index), "value": value.view(SYMBOL) if bits == 32 else value}


def masked_bytes(p: Parameters) -> int:
    """The payload of X: the same for every input, or its size would leak."""
    return _index_bytes(p) + wire.packed_bytes(p.entries, wire.bits_below(p.field))


def read_masked(s: Session, path: Path, user: int) -> MaskedFile:
    """X_n, with everything checked."""
    p = s.parameters
    bits = wire.bits_below(p.field)
    size = p.entries if bits == 32 else wire.packed_bytes(p.entries, bits)
    with opened(path, "masked", {"index": (_index_bytes(p),), "value": (size,)}) as artifact:
        artifact.expect(s.header(user))
        if s.recipients:
            check_signature(artifact, s.recipients[user - 1])
        index, value = artifact.read("index"), artifact.read("value")
        if (value.dtype == SYMBOL) != (bits == 32):
            raise artifact.bad("its values are not packed as the field asks for")
        try:
            values = wire.unpack(value.view(np.uint8), p.entries, bits)
            masked = Masked(_unpack_index(p, index), values)
            check_masked(p, masked)
        except BadData as error:
            raise artifact.bad(error.message) from error
        weight = _weight(artifact)
        payload = index.nbytes + value.nbytes
        return MaskedFile(
            masked, artifact.attributes["sha256"], artifact.attributes["sharing"], weight, payload
        )


def sound_weight(weight: float) -> bool:
    """Positive, and small enough that the weights of all users can be summed."""
    return 0 < weight <= _LARGEST_WEIGHT


def weight_text(weight: float) -> str:
    """A weight as an attribute: the shortest decimal that gives it back."""
    return repr(float(weight))


def _weight(artifact: Artifact) -> float:
    """The public weight of a user's input: a positive number in its one spelling."""
    text = artifact.attributes["weight"]
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not (sound_weight(weight) and weight_text(weight) == text):
        raise artifact.bad(f"its weight is {text!r}, which is no positive number up to 2^53")
    return weight


def _index_bytes(p: Parameters) -> int:
    if p.buckets:
        return wire.packed_bytes(p.entries, wire.bits_below(p.width))
    return wire.elias_fano_bytes(p.entries, p.length)


def _pack_index(p: Parameters, index: Symbols) -> wire.Bytes:
    return wire.pack(index, wire.bits_below(p.width)) if p.buckets else wire.elias_fano(index, p.length)


def _unpack_index(p: Parameters, packed: wire.Bytes) -> Symbols:
    if p.buckets:
        return wire.unpack(packed, p.entries, wire.bits_below(p.width))
    return wire.elias_fano_decode(packed, p.entries, p.length)


def survivors_bytes(space: Workspace, digests: dict[int, str], weights: dict[int, float]) -> bytes:
    """The content of survivors.json."""
    rows = [{"user": n, "sha256": digests[n], "weight": weights[n]} for n in sorted(digests)]
    s = space.session
    return documents.dump("survivors", {"session": s.id, "insecure": s.insecure, "survivors": rows})


def read_survivors(space: Workspace) -> Survivors:
    """survivors.json, which must name at least U users of this session."""
    path = space.survivors_path
    hint = "run `topk-secagg freeze` first, or copy survivors.json from whoever did"
    content = documents.read_bytes(path, hint)
    body = documents.parse(path, content, "survivors", SURVIVOR_KEYS)
    if body["session"] != space.session.id or body["insecure"] != space.session.insecure:
        raise BadData(f"{path} belongs to another session", "was it copied from elsewhere?")
    rows = survivor_rows(path, body)
    if (
        not set(rows.digests) <= set(space.users())
        or survivors_bytes(space, rows.digests, rows.weights) != content
    ):
        raise BadData(f"{path} names users that are not in this round", "fetch it again")
    need = space.session.parameters.survivors
    if len(rows.digests) < need:
        raise TooFewSurvivors(
            f"{path} names {len(rows.digests)} survivors, and {need} are needed",
            "no answer is given: it would give inputs away",
        )
    return replace(rows, digest=documents.digest(content))


def survivor_rows(path: Path, body: dict[str, Any]) -> Survivors:
    """The rows of survivors.json: users with a digest and a positive weight, each once."""
    rows = body["survivors"]
    sound = isinstance(rows, list) and all(
        isinstance(row, dict)
        and set(row) == {"user", "sha256", "weight"}
        and type(row["user"]) is int
        and documents.is_digest(row["sha256"])
        and type(row["weight"]) is float
        and sound_weight(row["weight"])
        for row in rows
    )
    if not sound or len({row["user"] for row in rows}) < len(rows):
        raise BadData(f"{path} does not name users with their digests and weights", "fetch it again")
    return Survivors({r["user"]: r["sha256"] for r in rows}, {r["user"]: r["weight"] for r in rows}, "")


def sent_before(space: Workspace, user: int, sharing: str) -> set[str]:
    """Digests of X that this user sent with this sharing, as far as the round's public files show it.

    A ledger that does not know of them is older than they are: secrets/ came back from a backup.
    """
    found: set[str] = set()
    with suppress(InputMissing, BadData):
        x = read_masked(space.session, space.masked_path(user), user)
        found |= {x.digest} if x.sharing == sharing else set()
    with suppress(InputMissing, BadData, TooFewSurvivors):
        found |= {digest for n, digest in read_survivors(space).digests.items() if n == user}
    return found


def answered_before(space: Workspace, user: int) -> str | None:
    """The digest of the survivors.json that this user's Y in the round answers."""
    with suppress(InputMissing, BadData), opened(space.answer_path(user), "elimination") as artifact:
        artifact.expect(space.session.header(user))
        if space.session.recipients:
            check_signature(artifact, space.session.recipients[user - 1])
        return str(artifact.attributes["survivors"])
    return None


def read_frozen(space: Workspace, survivors: Survivors) -> dict[int, MaskedFile]:
    """Every X of U1, each the one that was frozen."""
    result = {}
    for n, digest in survivors.digests.items():
        result[n] = read_masked(space.session, space.masked_path(n), n)
        if result[n].digest != digest or result[n].weight != survivors.weights[n]:
            raise BadData(
                f"{space.masked_path(n)} is not the file that was frozen",
                "fetch the X that survivors.json names by its digest",
            )
    return result


class AnswerFile:
    """Y_n in an open file, read group by group."""

    def __init__(self, p: Parameters, artifact: Artifact, survivors: int) -> None:
        artifact.expect_shape("y", p.groups, p.answer_width(survivors))
        self.artifact = artifact
        self.field = p.field

    @property
    def payload(self) -> int:
        """Bytes of Y."""
        return self.artifact.datasets["y"].size

    def read(self, start: int, stop: int) -> Symbols:
        """Groups start..stop-1."""
        y: Symbols = self.artifact.read_rows("y", start, stop)
        if y.max() >= np.uint32(self.field):
            raise self.artifact.bad("a symbol is not below the field's size")
        return y


@contextmanager
def answer_rows(space: Workspace, user: int, survivors: Survivors) -> Iterator[AnswerFile]:
    """Open Y_n and check that it was made for this survivor set and these X."""
    s = space.session
    shapes = {"y": (s.parameters.groups, s.parameters.answer_width(len(survivors.digests)))}
    with opened(space.answer_path(user), "elimination", shapes) as artifact:
        artifact.expect(s.header(user))
        if s.recipients:
            check_signature(artifact, s.recipients[user - 1])
        if artifact.attributes["survivors"] != survivors.digest:
            raise artifact.bad(
                "it answers another survivor set, or other masked inputs",
                "all answers must be for one survivors.json; ask the user which one was answered",
            )
        yield AnswerFile(s.parameters, artifact, len(survivors.digests))
