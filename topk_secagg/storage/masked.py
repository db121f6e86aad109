"""masked/user-NN.h5: X_n, public. Its size does not depend on the input."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..algebra.field import stored_type
from ..errors import BadData
from ..protocol import wire
from ..protocol.constructions import construction
from ..protocol.messages import Masked
from ..protocol.parameters import Parameters
from .artifacts import BYTES, SYMBOLS, Content, Draft, Kind, Table, opened
from .hdf5_writer import Shapes
from .keys import Identity
from .session import Session

KIND = Kind(
    "masked",
    {
        "index": (
            BYTES,
            "packed: Elias-Fano code of the permuted indices, or shifts at ceil(log2 n) bits each",
        ),
        "value": (BYTES + SYMBOLS, "masked values, at ceil(log2 q) bits each"),
        "holds": (BYTES, "one bit per user, from user 1 on: whether its share had arrived"),
    },
    "it has not arrived, or its user has not masked",
    attributes=("sharing", "weight"),
    signed=True,
)


@dataclass(frozen=True)
class MaskedFile:
    """X_n as read: its digest, the sharing that it belongs to, its public weight, and whose shares
    its user held."""

    masked: Masked
    digest: str
    sharing: str
    weight: float
    holds: frozenset[int]


def shapes(p: Parameters) -> Shapes:
    """Packed indices; values at log2 q bits, as symbols where these are whole bytes; a bit for
    every user."""
    c = construction(p)
    symbol = stored_type(p.field)
    whole = c.value_code.bits == 8 * symbol.itemsize
    value = (symbol.str, (c.entries,)) if whole else ("|u1", (c.value_code.size,))
    return {
        "index": ("|u1", (c.index_code.size,)),
        "value": value,
        "holds": ("|u1", (wire.Packed(p.users, 2).size,)),
    }


def content(
    s: Session,
    user: int,
    *,
    sharing: str,
    masked: Masked,
    weight: float,
    holds: frozenset[int],
    signer: Identity | None,
) -> Content:
    """X_n as a file."""
    p = s.parameters
    c = construction(s.parameters)
    bits = np.array([m in holds for m in range(1, p.users + 1)])
    datasets = {
        "index": c.index_code.pack(masked.index),
        "value": c.value_code.pack(masked.value).view(shapes(p)["value"][0]),
        "holds": np.packbits(bits, bitorder="little"),
    }
    # the shortest decimal that gives it back
    attributes = s.header(user, sharing=sharing, weight=repr(float(weight)))
    tables = {name: Table(array) for name, array in datasets.items()}
    return Content.of(Draft(KIND, attributes, signer), tables)


def read(s: Session, path: Path, user: int) -> MaskedFile:
    """X_n, with everything checked."""
    p = s.parameters
    with opened(path, KIND, shapes=shapes(p)) as artifact:
        artifact.expect(s.header(user), s.recipient(user))
        try:
            c = construction(p)
            value = c.value_code.unpack(artifact.read("value").view(np.uint8))
            masked = Masked(c.index_code.unpack(artifact.read("index")), value)
            c.check_masked(masked)
            holds = np.flatnonzero(wire.Packed(p.users, 2).unpack(artifact.read("holds"))) + 1
        except BadData as error:
            raise artifact.bad(error.message) from error
        a = artifact.attributes
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
            holds=frozenset(holds.tolist()),
        )
