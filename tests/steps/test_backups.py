"""A secrets/ folder that comes back from a backup is noticed wherever the round still shows what was sent."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from rounds import USERS, mask_all, start

from topk_secagg.errors import Refused
from topk_secagg.gradients.layout import Layout
from topk_secagg.steps import mask as mask_step
from topk_secagg.steps.eliminate import eliminate
from topk_secagg.steps.freeze import freeze
from topk_secagg.steps.mask import mask
from topk_secagg.storage.public import read_masked

L = 12


@pytest.fixture
def files(tmp_path):
    for n in range(1, USERS + 2):
        np.save(tmp_path / f"{n}.npy", np.random.default_rng(n).uniform(-1, 1, L))
    return [tmp_path / f"{n}.npy" for n in range(1, USERS + 2)]


@pytest.fixture
def restored(tmp_path, files):
    """A frozen round whose secrets/ are those from before masking."""
    space = start(tmp_path / "round", Layout.flat(L))
    shutil.copytree(space.root / "secrets", tmp_path / "backup")
    mask_all(space, files)
    freeze(space)
    shutil.rmtree(space.root / "secrets")
    shutil.copytree(tmp_path / "backup", space.root / "secrets")
    return space


def test_another_gradient_is_refused_while_x_is_there(restored, files):
    restored.survivors_path.unlink()
    with pytest.raises(Refused, match="does not know"):
        mask(restored, 1, files[4])


def test_another_gradient_is_refused_while_survivors_json_names_x(restored, files):
    restored.masked_path(1).unlink()
    with pytest.raises(Refused, match="does not know"):
        mask(restored, 1, files[4])


def test_the_same_gradient_gives_the_same_x_and_the_round_goes_on(restored, files):
    before = restored.masked_path(1).read_bytes()
    mask(restored, 1, files[0])
    assert restored.masked_path(1).read_bytes() == before
    eliminate(restored, 1)


def test_another_survivor_set_is_refused_while_y_is_there(tmp_path, files):
    space = start(tmp_path / "round", Layout.flat(L))
    mask_all(space, files)
    shutil.copytree(space.root / "secrets", tmp_path / "backup")
    freeze(space)
    eliminate(space, 1)
    shutil.rmtree(space.root / "secrets")
    shutil.copytree(tmp_path / "backup", space.root / "secrets")
    space.survivors_path.unlink()
    freeze(space, [1, 2, 3])
    with pytest.raises(Refused, match="another survivor set"):
        eliminate(space, 1)


def test_without_the_check_two_x_would_reveal_the_difference(restored, files, monkeypatch):
    """The twin: this is what the backup could have given away."""
    p = restored.session.parameters
    first = read_masked(restored.session, restored.masked_path(1), 1).masked
    monkeypatch.setattr(mask_step, "sent_before", lambda *_: set())
    mask(restored, 1, files[4])
    second = read_masked(restored.session, restored.masked_path(1), 1).masked
    common = sorted(set(first.index.tolist()) & set(second.index.tolist()))
    tops = [set(np.argsort(-np.abs(np.load(path)))[: p.top_k].tolist()) for path in (files[0], files[4])]
    both = tops[0] & tops[1]
    assert len(common) == len(both)
