"""`init`: what all users agree on."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ..algebra.randomness import seeded_key
from ..errors import Refused
from ..gradients.layout import Layout
from ..protocol.messages import Points
from ..protocol.parameters import Parameters
from ..storage.atomic import make_folder, write_whole
from ..storage.keys import Recipient
from ..storage.session import Session, session_bytes
from ..storage.workspace import Workspace

_NONCE_BYTES = 16


def init(
    root: Path,
    parameters: Parameters,
    layout: Layout,
    insecure_seed: int | None = None,
    recipients: tuple[Recipient, ...] | None = None,
) -> Workspace:
    """Write session.json into a new round; a round that was started like this before is left as it is."""
    from ..algebra.lagrange import default_points

    alpha, beta = default_points(parameters.users, parameters.survivors, parameters.field)
    nonce = (
        os.urandom(_NONCE_BYTES)
        if insecure_seed is None
        else seeded_key(insecure_seed, "nonce")[:_NONCE_BYTES]
    )
    points = Points(tuple(alpha), tuple(beta))
    content = session_bytes(parameters, points, layout, nonce.hex(), insecure_seed, recipients)
    make_folder(root)
    space = Workspace(root)
    with space.step_of_all():
        if not space.session_path.exists():
            write_whole(space.session_path, content)
        elif replace(space.session, id="", nonce="") != Session(
            "", "", insecure_seed, parameters, points, layout, recipients
        ):
            raise Refused(
                f"{space.session_path} is there already, with other parameters", "take another folder"
            )
    return space
