"""secrets/user-NN.residual.h5: error feedback, what a user did not send in one round.

weight * input + decay * (the residual before) - what was sent, for every coordinate of the
gradient. It is bound to its session, and never changed: the next round takes the residual of the
user's last X that counted (rounds/feedback.py). Mode 0600.
"""

from __future__ import annotations

import numpy as np

from ..errors import BadData
from . import inputs
from .artifacts import Content, Draft, Kind, Table, opened
from .atomic import Array
from .hdf5_writer import Shapes
from .session import Session
from .workspace import Workspace

KIND = Kind(
    "residual",
    {"value": (("<f8",), "what the user has not sent yet, for every coordinate of the gradient")},
    "mask without the feedback to start from zero",
    secret=True,
)


def shapes(length: int) -> Shapes:
    """Type and shape of the dataset."""
    return {"value": ("<f8", (length,))}


def content(session: Session, user: int, value: Array) -> Content:
    """The residual of a user as a file."""
    tables = {"value": Table(value.astype("<f8", copy=False))}
    return Content.of(Draft(KIND, session.header(user)), tables)


def read(space: Workspace, user: int, *, session: str, digest: str, length: int) -> Array:
    """The residual of a user in a session whose secrets are kept like those of this round, which
    must be the one of this keyed digest."""
    path = space.private_of(session) / space.residual_path(user).name
    with opened(path, KIND, shapes=shapes(length)) as artifact:
        artifact.expect({"session": session, "user": user})
        key = inputs.read_key(space)
        if key is None or inputs.residual_digest(key, artifact.attributes["sha256"]) != digest:
            raise artifact.bad("it is not the residual that the ledger names")
        value = artifact.read("value")
    if not np.isfinite(value).all():
        raise BadData(f"{path}: a value is not finite", "mask without the feedback")
    return value
