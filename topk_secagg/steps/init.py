"""`init`: what all users agree on."""

from __future__ import annotations

import os
from pathlib import Path

from ..algebra.randomness import seeded_key
from ..errors import CannotWrite
from ..gradients.layout import Layout
from ..protocol.messages import Points
from ..protocol.parameters import Parameters
from ..storage.atomic import make_folder, write_whole
from ..storage.keys import Recipient
from ..storage.session import session_bytes
from ..storage.workspace import Workspace

_NONCE_BYTES = 16


def init(
    root: Path,
    parameters: Parameters,
    layout: Layout,
    insecure_seed: int | None = None,
    recipients: tuple[Recipient, ...] | None = None,
) -> Workspace:
    """Write session.json into a new round."""
    from ..algebra.lagrange import default_points

    alpha, beta = default_points(parameters.users, parameters.survivors, parameters.field)
    nonce = (
        os.urandom(_NONCE_BYTES)
        if insecure_seed is None
        else seeded_key(insecure_seed, "nonce")[:_NONCE_BYTES]
    )
    content = session_bytes(
        parameters, Points(tuple(alpha), tuple(beta)), layout, nonce.hex(), insecure_seed, recipients
    )
    make_folder(root)
    space = Workspace(root)
    with space.step_of_all():
        if space.session_path.exists():
            raise CannotWrite(
                f"{space.session_path} is there already",
                "take another folder; a round is never started twice",
            )
        write_whole(space.session_path, content)
    return space
