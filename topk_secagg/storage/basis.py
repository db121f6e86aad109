"""basis.h5: the public basis on which all users of a low-rank round project, as integers in steps
of 2^-20.

Its digest is in session.json. Users that have the sum from which it follows compute it; the file is
for all others, and for auditors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from ..algebra.bases import Basis, digest
from .artifacts import Draft, Kind, Table, opened, write_hashed
from .hdf5_writer import Shapes
from .session import Session
from .workspace import Workspace

KIND = Kind(
    "basis",
    {"value": (("<i4",), "entries in steps of 2^-20: each tensor's basis, row by row")},
    "fetch it from the user that started the round",
)


def shapes(s: Session) -> Shapes:
    """Type and shape of the dataset."""
    return {"value": ("<i4", (sum(_sizes(s)),))}


def _sizes(s: Session) -> list[int]:
    """Of the tensors' bases."""
    return [math.prod(tensor.basis_shape) for tensor in s.reduction.tensors]


def write(space: Workspace, bases: Sequence[Basis]) -> None:
    """Write basis.h5."""
    value = np.concatenate([basis.reshape(-1) for basis in bases]).astype("<i4")
    draft = Draft(KIND, space.session.header(0))
    write_hashed(space.basis_path, draft, {"value": Table(value)})


def of_round(space: Workspace) -> list[Basis]:
    """The bases of all tensors: empty ones where nothing is projected."""
    s = space.session
    if not s.reduction.has_basis:
        return [np.empty(tensor.basis_shape, np.int32) for tensor in s.reduction.tensors]
    return read(space)


def read(space: Workspace) -> list[Basis]:
    """The basis of every tensor; it must be the one of session.json."""
    s = space.session
    with opened(space.basis_path, KIND, shapes=shapes(s)) as artifact:
        artifact.expect(s.header(0))
        artifact.verify()
        value = artifact.read("value")
    ends = [0, *accumulate(_sizes(s))]
    parts = [value[start:stop] for start, stop in pairwise(ends)]
    bases = [
        part.reshape(tensor.basis_shape).astype(np.int32)
        for part, tensor in zip(parts, s.reduction.tensors, strict=True)
    ]
    if digest(bases) != s.basis:
        raise artifact.bad("it is not the basis of this session", KIND.missing)
    return bases
