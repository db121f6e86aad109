"""Files of version 1 open and decode for ever."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from topk_secagg.steps.decode import decode
from topk_secagg.steps.eliminate import eliminate
from topk_secagg.steps.inspect import inspect
from topk_secagg.steps.mask import mask
from topk_secagg.steps.offline import offline
from topk_secagg.storage.artifacts import opened
from topk_secagg.storage.residual import read_residual
from topk_secagg.storage.workspace import Workspace

ARCHIVE = Path(__file__).parent.parent.parent / "fixtures" / "archive" / "v1"
ROUNDS = sorted(path.name for path in ARCHIVE.iterdir() if path.is_dir())
USERS = 4


def content(path):
    with opened(path) as artifact:
        return {name: artifact.read(name).tolist() for name in artifact.datasets}


@pytest.fixture(params=ROUNDS)
def space(request, tmp_path):
    shutil.copytree(ARCHIVE / request.param, tmp_path / "round")
    return Workspace(tmp_path / "round")


def identity(space, user):
    return ARCHIVE / f"user-{user:02}.identity" if space.session.recipients else None


def test_all_rounds_are_there():
    assert ROUNDS == ["permutation", "permutation-field-97", "rotation-syndrome", "sealed"]


def test_every_file_is_intact(space):
    files = [path for path in space.root.rglob("*") if path.suffix in (".h5", ".json")]
    assert len(files) > 12
    for path in files:
        assert inspect(path).intact, path


def test_the_aggregate_comes_out_as_it_did(space, tmp_path):
    before = content(space.aggregate_path)
    space.aggregate_path.unlink()
    decode(space, tmp_path / "mean.npy", mean=True)
    assert content(space.aggregate_path) == before
    assert np.array_equal(np.load(tmp_path / "mean.npy"), np.load(space.root / "expected.npy"))


def test_the_answers_come_out_as_they_did_and_a_late_one_agrees(space):
    for user in range(1, USERS):
        before = content(space.answer_path(user))
        eliminate(space, user, identity=identity(space, user))
        assert content(space.answer_path(user)) == before
    eliminate(space, USERS, identity=identity(space, USERS))
    report = decode(space)
    assert report.answering == [1, 2, 3, 4]
    assert report.corrected == []


def test_the_offline_phase_is_complete_and_the_masked_inputs_are_the_same(space):
    for user in space.users():
        before = content(space.masked_path(user))
        assert offline(space, user, identity=identity(space, user)).written == 0
        weight = 2.0 if user == USERS else 1.0
        mask(space, user, ARCHIVE / f"gradient-{user:02}.npy", weight=weight, identity=identity(space, user))
        assert content(space.masked_path(user)) == before


def test_shares_that_are_made_again_are_the_same(space):
    if space.session.recipients:
        pytest.skip("age encrypts differently every time")
    path = space.share_path(2, 3)
    before = content(path)
    path.unlink()
    assert offline(space, 3).written == 1
    assert content(path) == before


def test_the_residual_opens(space):
    value, _ = read_residual(space.root / "residual-01.h5", 1, space.session.parameters.length)
    assert np.array_equal(value, np.load(ARCHIVE / "gradient-01.npy"))
