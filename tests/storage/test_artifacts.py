"""What is checked of a file, and when: its shape before anything is read, every bit of it, its bytes once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from rounds import ROOT, contents, is_root, rewrite

from topk_secagg.errors import BadData, Refused
from topk_secagg.steps.access import Access
from topk_secagg.steps.mask import mask
from topk_secagg.steps.offline import offline
from topk_secagg.storage import aggregate, answer, atomic, masked, residual, secret, survivors
from topk_secagg.storage.artifacts import Artifact, Kind, compose, opened
from topk_secagg.storage.share import opened_share
from topk_secagg.storage.workspace import Workspace

ARCHIVE = ROOT / "fixtures" / "archive" / "v1"
NOBODY = 65534


@pytest.fixture(params=["moments", "moments-spare", "permutation"])
def space(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    """A finished round: the spare one has symbols of two bytes."""
    shutil.copytree(ARCHIVE / request.param, tmp_path / "round")
    return Workspace(tmp_path / "round")


def read_share(space: Workspace) -> None:
    with opened_share(space, 2, 1) as share:
        share.check_all()


def read_answer(space: Workspace) -> None:
    with answer.opened_answer(space, 1, survivors.read(space)) as file:
        file.read(0, file.artifact.datasets["y"].shape[0])


def read_aggregate(space: Workspace) -> None:
    with opened(space.aggregate_path, aggregate.KIND) as artifact:
        aggregate.parsed(space, artifact)


def read_residual(space: Workspace) -> None:
    residual.read(space.root / "residual-01.h5", 1, space.session.parameters.length)


READERS: dict[str, Callable[[Workspace], object]] = {
    "secrets/user-01.h5": lambda space: secret.read(space, 1),
    "shares/user-02/from-01.h5": read_share,
    "masked/user-01.h5": lambda space: masked.read(space.session, space.masked_path(1), 1),
    "elimination/user-01.h5": read_answer,
    "aggregate.h5": read_aggregate,
    "residual-01.h5": read_residual,
}


def test_every_bit_counts(space: Workspace) -> None:
    """A file of each kind with any one bit turned is refused: by the schema, the digest or a gap."""
    found = 0
    for name, read in READERS.items():
        path = space.root / name
        if not path.exists():
            continue
        read(space)
        content = path.read_bytes()
        with path.open("r+b", buffering=0) as file:
            for at, byte in enumerate(content):
                for bit in range(8) if at < 64 or space.root.parent.name.endswith("0") else (at % 8,):
                    os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), at)
                    with pytest.raises(BadData):
                        read(space)
                        pytest.fail(f"{name}: bit {bit} of byte {at} does not matter")
                os.pwrite(file.fileno(), bytes([byte]), at)
        read(space)
        found += 1
    assert found >= 5
