"""aggregate.h5: the sum in the field and as reals; who survived, who answered, whose answer was
wrong.

The sum is that of the reduced vectors. Where all of them is sent whole, its coordinates are not
listed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..algebra.field import Integers, Symbols, stored_type
from ..errors import counted
from ..gradients.quantise import dequantise
from ..protocol.agreement import is_correctable
from ..protocol.messages import Sparse
from ..protocol.parameters import Parameters
from .artifacts import SYMBOLS, Artifact, Draft, Kind, Table, write_hashed
from .session import Session
from .survivors import Survivors
from .workspace import Workspace

_USERS = ("survivors", "answering", "corrected")
_NUMBER_BYTES = 4
_COORDINATE_BYTES = 4 + 4 + 8  # index, symbol and real
KIND = Kind(
    "aggregate",
    {
        "index": (("<u4",), "coordinates of the sum: those that are not zero or sent whole"),
        "value": (SYMBOLS, "the sum there, in the field"),
        "real": (("<f8",), "the sum there, as real numbers"),
        "survivors": (("<u4",), "users in the sum, U1"),
        "answering": (("<u4",), "users whose answers were used, U2"),
        "corrected": (("<u4",), "users whose answers were wrong and left out"),
    },
    "decode the round first",
    layouts=({"value", "real", *_USERS}, {"index", "value", "real", *_USERS}),
    attributes=("survivors_sha256",),
)


@dataclass(frozen=True)
class Aggregate:
    """The content of aggregate.h5."""

    total: Sparse
    survivors: list[int]
    answering: list[int]
    corrected: list[int]
    survivors_sha256: str


def write(
    space: Workspace,
    survivors: Survivors,
    total: Sparse,
    answering: list[int],
    corrected: list[int],
) -> None:
    """Write aggregate.h5."""
    s = space.session
    p = s.parameters
    tables = {
        "value": Table(total.value, lambda part: part.astype(stored_type(p.field), copy=False)),
        "real": Table(dequantise(s.fixed_point, total.index, total.value).astype("<f8")),
        "survivors": Table(np.array(survivors.users, dtype="<u4")),
        "answering": Table(np.array(answering, dtype="<u4")),
        "corrected": Table(np.array(corrected, dtype="<u4")),
    }
    if p.whole < p.length:
        tables["index"] = Table(total.index, lambda part: part.astype("<u4", copy=False))
    attributes = s.header(0, survivors_sha256=survivors.digest)
    write_hashed(space.aggregate_path, Draft(KIND, attributes), tables)


def largest_bytes(p: Parameters) -> int:
    """The most bytes that the datasets take: every coordinate, and all users in every list."""
    return p.length * _COORDINATE_BYTES + p.users * len(_USERS) * _NUMBER_BYTES


def parsed(space: Workspace, artifact: Artifact) -> Aggregate:
    """What an open aggregate.h5 of this round holds, with everything checked that needs no other
    file."""
    p = space.session.parameters
    artifact.expect(space.session.header(0))
    for name, d in artifact.datasets.items():
        if len(d.shape) != 1 or d.shape[0] > (p.users if name in _USERS else p.length):
            raise artifact.bad(f"its {name} is too large")
    artifact.verify()
    total = _checked_sum(space.session, artifact)
    users = {name: artifact.read(name).tolist() for name in _USERS}
    _check_users(p, artifact, users)
    return Aggregate(
        total=total,
        **users,
        survivors_sha256=artifact.attributes["survivors_sha256"],
    )


def _checked_sum(s: Session, artifact: Artifact) -> Sparse:
    """The sum: symbols at increasing coordinates, with the reals that belong to them."""
    value = artifact.read("value").astype(np.uint32)
    real = artifact.read("real")
    index = _checked_index(s.parameters, artifact, value)
    if real.size != value.size:
        raise artifact.bad("its datasets are not of one length")
    if np.any(value >= s.parameters.field):
        raise artifact.bad("a value is not below q")
    if not np.array_equal(real, dequantise(s.fixed_point, index, value)):
        raise artifact.bad("its reals are not its values divided by the scale")
    return Sparse(index, value)


def _checked_index(p: Parameters, artifact: Artifact, value: Symbols) -> Integers:
    """The coordinates: none twice, all that are sent whole, and no zero among the others."""
    picked_from = p.length - p.whole
    if ("index" in artifact.datasets) != (picked_from > 0):
        raise artifact.bad("it lists coordinates where all are sent whole, or does not elsewhere")
    if not picked_from:
        if value.size != p.length:
            raise artifact.bad(f"it has {value.size} coordinates, not {p.length}")
        return np.arange(p.length)
    index = artifact.read("index").astype(np.int64)  # not negative: the file's type is unsigned
    if index.size != value.size:
        raise artifact.bad("its datasets are not of one length")
    if np.any(np.diff(index) <= 0):
        raise artifact.bad("its coordinates are not increasing")
    if np.any(index >= p.length):
        raise artifact.bad("a coordinate is not below L")
    if np.any(value[index < picked_from] == 0):
        raise artifact.bad("a value is zero")
    if np.count_nonzero(index >= picked_from) != p.whole:
        raise artifact.bad("a coordinate that is sent whole is missing")
    return index


def _check_users(p: Parameters, artifact: Artifact, users: dict[str, list[int]]) -> None:
    """Refuse lists of users that are not nested, or from which no sum could have been decoded."""
    survivors, answering, corrected = (users[name] for name in _USERS)
    each_once = all(listed == sorted(set(listed)) for listed in users.values())
    if not each_once or not set(corrected) <= set(answering) <= set(survivors):
        raise artifact.bad("its lists of users are not nested")
    agreeing = len(answering) - len(corrected)
    if agreeing < p.survivors:
        raise artifact.bad(
            f"it says that {counted(agreeing, 'user')} answered, and it takes {p.survivors}"
        )
    if corrected and not is_correctable(p, answers=len(answering), wrong=len(corrected)):
        raise artifact.bad(
            f"it leaves out {counted(len(corrected), 'answer')} as wrong, and the"
            f" {counted(agreeing, 'other is', 'others are')} too few to tell"
        )
