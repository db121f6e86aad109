"""A secrets/ folder that comes back from a backup is noticed wherever the round still shows what was sent."""

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
from topk_secagg.storage.ledger import Ledger
from topk_secagg.storage.masked import read as read_masked

L = 12


@pytest.fixture
def files(tmp_path):
    for n in range(1, USERS + 2):
        np.save(tmp_path / f"{n}.npy", np.random.default_rng(n).uniform(-1, 1, L))
    return [tmp_path / f"{n}.npy" for n in range(1, USERS + 2)]


def restore(space, backup):
    shutil.rmtree(space.root / "secrets")
    shutil.copytree(backup, space.root / "secrets")


@pytest.fixture(params=["permutation", "moments"])
def restored(request, tmp_path, files):
    """A frozen round whose secrets/ are those from before masking."""
    space = start(tmp_path / "round", Layout.flat(L), construction=request.param)
    shutil.copytree(space.root / "secrets", tmp_path / "backup")
    mask_all(space, files)
    freeze(space)
    restore(space, tmp_path / "backup")
    return space


def test_another_gradient_is_refused_while_x_or_survivors_json_shows_the_first(restored, files):
    for gone in (restored.masked_path(1), restored.survivors_path):
        kept = gone.read_bytes()
        gone.unlink()
        with pytest.raises(Refused, match="does not know"):
            mask(restored, 1, files[4])
        gone.write_bytes(kept)


def test_the_same_gradient_gives_the_same_x_and_the_round_goes_on(restored, files):
    before = restored.masked_path(2).read_bytes()
    mask(restored, 2, files[1])
    assert restored.masked_path(2).read_bytes() == before
    eliminate(restored, 2)


@pytest.mark.parametrize("answered", [True, False])
def test_another_survivor_set_is_refused_while_y_or_the_frozen_set_is_there(tmp_path, files, answered):
    space = start(tmp_path / "round", Layout.flat(L))
    mask_all(space, files)
    shutil.copytree(space.root / "secrets", tmp_path / "backup")
    freeze(space)
    if answered:
        eliminate(space, 2)
    restore(space, tmp_path / "backup")
    if not answered:  # the freezer's ledger is older than the survivors.json that it finds
        with pytest.raises(Refused, match="did not write it"):
            freeze(space, [1, 2, 3])
        return
    space.survivors_path.unlink()
    freeze(space, [1, 2, 3])
    with pytest.raises(Refused, match="another survivor set"):
        eliminate(space, 2)


@pytest.mark.parametrize("restored", ["permutation"], indirect=True)
def test_without_the_check_two_x_would_reveal_how_many_places_they_share(restored, files, monkeypatch):
    """The twin: this is what the backup could have given away."""
    p = restored.session.parameters
    first = read_masked(restored.session, restored.masked_path(1), 1).masked
    monkeypatch.setattr(mask_step, "_sent_before", lambda *_: set())
    monkeypatch.setattr(Ledger, "check_masks", lambda *_: None)
    mask(restored, 1, files[4])
    second = read_masked(restored.session, restored.masked_path(1), 1).masked
    common = set(first.index.tolist()) & set(second.index.tolist())
    tops = [set(np.argsort(-np.abs(np.load(path)))[: p.top_k].tolist()) for path in (files[0], files[4])]
    assert len(common) == len(tops[0] & tops[1])
