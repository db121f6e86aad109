"""What is checked of a file, and when: its shape before anything is read, its bytes once."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from topk_secagg.errors import BadData, Refused
from topk_secagg.gradients.layout import Layout
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.steps.init import init
from topk_secagg.steps.mask import mask
from topk_secagg.steps.offline import offline
from topk_secagg.storage.artifacts import KINDS, Artifact, creating, opened, write_artifact
from topk_secagg.storage.public import read_masked
from topk_secagg.storage.workspace import Workspace

L = 40


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    p = Parameters.choose(users=3, survivors=3, colluders=1, top_k=5, length=L)
    space = init(tmp_path / "round", p, Layout.flat(L))
    np.save(tmp_path / "g.npy", np.linspace(-1, 1, L))
    offline(space, 1)
    mask(space, 1, tmp_path / "g.npy")
    return space


def test_what_is_used_is_what_was_checked(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """An X that is changed in place after its digest was checked could unmask its owner."""
    path = space.masked_path(1)
    before = read_masked(space.session, path, 1).masked.value.tolist()
    digest = Artifact.digest

    def then_changed(artifact: Artifact) -> str:
        result = digest(artifact)
        with path.open("r+b") as file:
            file.seek(artifact.datasets["value"].offset)
            file.write(bytes(artifact.datasets["value"].size))
        return result

    content = path.read_bytes()
    monkeypatch.setattr(Artifact, "digest", then_changed)
    assert read_masked(space.session, path, 1).masked.value.tolist() == before
    path.write_bytes(content)
    monkeypatch.setitem(KINDS, "masked", replace(KINDS["masked"], small=False))  # then it is read twice
    assert read_masked(space.session, path, 1).masked.value.tolist() == [0] * 5
    monkeypatch.undo()
    with pytest.raises(BadData, match="does not match its digest"):
        read_masked(space.session, path, 1)


def test_a_file_of_another_size_is_refused_before_it_is_read(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = space.masked_path(1)
    header = space.session.header(1, sharing="0" * 64, weight="1.0")
    value = np.zeros(5, dtype="<u4")
    write_artifact(path, "masked", header, {"index": np.zeros(1 << 20, dtype="|u1"), "value": value})
    monkeypatch.setattr(Artifact, "digest", lambda _: pytest.fail("its content was read"))
    with pytest.raises(BadData, match="index has shape"):
        read_masked(space.session, path, 1)


@pytest.mark.parametrize("shape", [(0, 2**62), (2**40, 2**40, 0)])
def test_absurd_shapes_without_content_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "x.h5"
    attributes = {"session": "0" * 64, "user": 1, "insecure": 0, "survivors": "0" * 64}
    with creating(path, "elimination", attributes, {"y": ("<u4", shape)}):
        pass
    with pytest.raises(BadData, match="absurd shape"), opened(path):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_no_secret_goes_where_somebody_else_can_write(space: Workspace, tmp_path: Path) -> None:
    secrets = space.root / "secrets"
    os.chown(secrets, 65534, 65534)
    with pytest.raises(Refused, match="belongs to somebody else"):
        offline(space, 2)
    theirs = tmp_path / "theirs.h5"
    theirs.touch()
    os.chown(theirs, 65534, 65534)
    header = space.session.header(1)
    with (
        pytest.raises(Refused, match="belongs to somebody else"),
        creating(theirs, "residual", header, {"value": ("<f8", (L,))}),
    ):
        pytest.fail("the file was given to the writer")
