"""masked/user-NN.h5: X_n, public. Its size does not depend on the input."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..algebra.field import stored_type
from ..errors import BadData
from ..protocol import wire
from ..protocol.constructions import construction
from ..protocol.messages import Masked
from ..protocol.parameters import KEYS, Parameters
from .artifacts import BYTES, SYMBOLS, Content, Draft, Kind, Table, opened
from .atomic import Array
from .documents import DIGEST_BYTES
from .hdf5_writer import Shapes
from .keys import Identity
from .session import Session

KIND = Kind(
    "masked",
    {
        "index": (BYTES, "packed: Elias-Fano code of the permuted indices"),
        "value": (SYMBOLS, "masked values, at ceil(log2 q) bits each"),
        "holds": (
            BYTES,
            "one bit per user, from user 1 on: whether its share had arrived; with keys, the "
            "digest of each user's list, or zeros",
        ),
    },
    "it has not arrived, or its user has not masked",
    layouts=({"index", "value", "holds"}, {"value", "holds"}),
    attributes=("sharing", "weight"),
    optional=("dealt",),
    signed=True,
)


@dataclass(frozen=True)
class MaskedFile:
    """X_n as read: its digest, the sharing that it belongs to, its public weight, and whose shares
    its user held.

    Where shares are dealt by keys, `dealt` is the digest of the user's own list of commitments, and
    `lists` are those of the dealers whose keys it held.
    """

    masked: Masked
    digest: str
    sharing: str
    weight: float
    holds: frozenset[int]
    dealt: str | None
    lists: Mapping[int, str]


def shapes(p: Parameters) -> Shapes:
    """Packed indices; values at log2 q bits, as symbols where these are whole bytes; a bit for
    every user, or a digest."""
    c = construction(p)
    symbol = stored_type(p.field)
    whole = c.value_code.bits == 8 * symbol.itemsize
    value = (symbol.str, (c.entries,)) if whole else ("|u1", (c.value_code.size,))
    holds = (p.users, DIGEST_BYTES) if p.dealing == KEYS else (wire.Packed(p.users, 2).size,)
    index: Shapes = {"index": ("|u1", (c.index_code.size,))} if c.has_indices else {}
    return {**index, "value": value, "holds": ("|u1", holds)}


def content(
    s: Session,
    user: int,
    *,
    sharing: str,
    masked: Masked,
    weight: float,
    holds: Mapping[int, str | None],
    dealt: str | None,
    signer: Identity | None,
) -> Content:
    """X_n as a file. `holds` are the users whose shares its user held, each with the digest of its
    list where shares are dealt by keys."""
    p = s.parameters
    c = construction(s.parameters)
    datasets = {
        "index": c.index_code.pack(masked.index),
        "value": c.value_code.pack(masked.value).view(shapes(p)["value"][0]),
        "holds": _packed_holds(p, holds),
    }
    # the shortest decimal that gives it back
    attributes = dict(s.header(user, sharing=sharing, weight=repr(float(weight))))
    if dealt is not None:
        attributes["dealt"] = dealt
    tables = {name: Table(datasets[name]) for name in shapes(p)}
    return Content.of(Draft(KIND, attributes, signer), tables)


def _packed_holds(p: Parameters, holds: Mapping[int, str | None]) -> Array:
    """A bit for every user, or the digest of its list."""
    users = range(1, p.users + 1)
    if p.dealing != KEYS:
        return np.packbits(np.array([m in holds for m in users]), bitorder="little")
    digests = [bytes.fromhex(holds.get(m) or "") or bytes(DIGEST_BYTES) for m in users]
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(p.users, DIGEST_BYTES)


def _unpacked_holds(p: Parameters, packed: Array) -> dict[int, str | None]:
    """The inverse of `_packed_holds`."""
    if p.dealing != KEYS:
        bits = wire.Packed(p.users, 2).unpack(packed)
        return {m: None for m, bit in enumerate(bits, start=1) if bit}
    return {m: row.tobytes().hex() for m, row in enumerate(packed, start=1) if row.any()}


def read(s: Session, path: Path, user: int) -> MaskedFile:
    """X_n, with everything checked."""
    p = s.parameters
    with opened(path, KIND, shapes=shapes(p)) as artifact:
        artifact.expect(s.header(user), s.recipient(user))
        try:
            c = construction(p)
            value = c.value_code.unpack(artifact.read("value").view(np.uint8))
            index = value[:0]
            if "index" in artifact.datasets:
                index = c.index_code.unpack(artifact.read("index"))
            masked = Masked(index, value)
            c.check_masked(masked)
            holds = _unpacked_holds(p, artifact.read("holds"))
        except BadData as error:
            raise artifact.bad(str(error)) from error
        a = artifact.attributes
        if ("dealt" in a) != (p.dealing == KEYS):
            raise artifact.bad("it names a list of keys, or none, against the session")
        weight = 0.0
        with suppress(ValueError):
            weight = float(a["weight"])
        # a number has one spelling
        if not 0 < weight <= p.max_weight or repr(weight) != a["weight"]:
            raise artifact.bad(
                f"its weight is {a['weight']!r}, which is not a positive number up to "
                f"{p.max_weight:g}"
            )
        return MaskedFile(
            masked=masked,
            digest=a["sha256"],
            sharing=a["sharing"],
            weight=weight,
            holds=frozenset(holds),
            dealt=a.get("dealt"),
            lists={m: digest for m, digest in holds.items() if digest is not None},
        )
