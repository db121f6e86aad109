"""aggregate.h5: the sum, sparse, in the field and as reals; who survived, who answered, whose
answer was wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..algebra.field import stored_type
from ..gradients.quantise import dequantise
from ..protocol.agreement import is_correctable
from ..protocol.messages import Sparse
from .artifacts import SYMBOLS, Artifact, Content, Kind
from .atomic import Array
from .survivors import Survivors
from .workspace import Workspace

_USERS = ("survivors", "answering", "corrected")
KIND = Kind(
    "aggregate",
    {
        "index": (("<u4",), "coordinates at which the sum is not zero"),
        "value": (SYMBOLS, "the sum there, in the field"),
        "real": (("<f8",), "the sum there, as real numbers"),
        "survivors": (("<u4",), "users in the sum, U1"),
        "answering": (("<u4",), "users whose answers were used, U2"),
        "corrected": (("<u4",), "users whose answers were wrong and left out"),
    },
    "decode the round first",
    attributes=("survivors", "blocks"),
)


@dataclass(frozen=True)
class Aggregate:
    """The content of aggregate.h5."""

    total: Sparse
    survivors: list[int]
    answering: list[int]
    corrected: list[int]
    blocks: int
    digest: str


def write(
    space: Workspace,
    survivors: Survivors,
    total: Sparse,
    blocks: int,
    answering: list[int],
    corrected: list[int],
) -> None:
    """Write aggregate.h5."""
    s = space.session
    p = s.parameters
    users = zip(_USERS, (survivors.users, answering, corrected), strict=True)
    datasets = {"index": total.index, "value": total.value, "real": total.value}
    datasets |= {name: np.array(listed, dtype="<u4") for name, listed in users}
    made: dict[str, Callable[[Array], Array]] = {
        "index": lambda part: part.astype("<u4", copy=False),
        "value": lambda part: part.astype(stored_type(p.field), copy=False),
        "real": partial(dequantise, p.fixed_point),
    }
    attributes = s.header(0, survivors=survivors.digest, blocks=blocks)
    Content(KIND, attributes, datasets, made=made).write(space.aggregate_path)


def parsed(space: Workspace, artifact: Artifact) -> Aggregate:
    """What an open aggregate.h5 of this round holds, with everything checked that needs no other
    file."""
    p = space.session.parameters
    artifact.expect(space.session.header(0))
    for name, d in artifact.datasets.items():
        if len(d.shape) != 1 or d.shape[0] > (p.users if name in _USERS else p.length):
            raise artifact.bad(f"its {name} is too large")
    artifact.verify()
    content = {name: artifact.read(name) for name in artifact.datasets}
    index = content["index"].astype(np.int64)
    value = content["value"]
    real = content["real"]
    if not index.size == value.size == real.size:
        raise artifact.bad("its datasets are not of one length")
    if np.any(np.diff(index) <= 0) or np.any(index >= p.length) or np.any(value >= p.field):
        raise artifact.bad(
            "its coordinates are not increasing and below L, or a value is not below q"
        )
    value = value.astype(np.uint32)
    if np.any(value == 0) or not np.array_equal(real, dequantise(p.fixed_point, value)):
        raise artifact.bad("its reals are not its values divided by the scale, or it lists zeros")
    u1, u2, wrong = (content[name].tolist() for name in _USERS)
    if any(users != sorted(set(users)) for users in (u1, u2, wrong)) or not set(wrong) <= set(
        u2
    ) <= set(u1):
        raise artifact.bad("its lists of users are not nested")
    blocks = int(artifact.attributes["blocks"])
    if len(u2) - len(wrong) < blocks + p.colluders:
        raise artifact.bad(
            f"it says that {len(u2) - len(wrong)} users answered, and it takes "
            f"{blocks + p.colluders}"
        )
    if wrong and not is_correctable(p, blocks, len(u2), len(wrong)):
        raise artifact.bad(
            f"it leaves out {len(wrong)} answers as wrong, and the {len(u2) - len(wrong)} others"
            " are too few to tell"
        )
    return Aggregate(Sparse(index, value), u1, u2, wrong, blocks, artifact.attributes["survivors"])
