"""Rounds through the steps, in one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from topk_secagg.gradients.layout import Layout
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.steps.decode import decode
from topk_secagg.steps.eliminate import eliminate
from topk_secagg.steps.freeze import freeze
from topk_secagg.steps.init import init
from topk_secagg.steps.mask import mask
from topk_secagg.steps.offline import offline
from topk_secagg.storage.artifacts import opened
from topk_secagg.storage.workspace import Workspace

USERS = 4


def start(root: Path, layout: Layout, **options: Any) -> Workspace:
    chosen = {"users": USERS, "survivors": 3, "colluders": 1, "top_k": 3, **options}
    space = init(root, Parameters.choose(length=layout.length, **chosen), layout)
    for user in space.users():
        offline(space, user)
    return space


def finish(space: Workspace, output: Path | None = None, *, mean: bool = False) -> np.ndarray:
    for user in freeze(space).survivors:
        eliminate(space, user)
    decode(space, output, mean=mean)
    total = np.zeros(space.session.parameters.length)
    with opened(space.aggregate_path, "aggregate") as artifact:
        total[artifact.read("index")] = artifact.read("real")
    return total


def mask_all(space: Workspace, gradients: Sequence[Path], **options: Any) -> None:
    for user in space.users():
        mask(space, user, gradients[user - 1], **options)
