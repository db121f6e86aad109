"""Error feedback: what was not sent is kept, exactly once, even after crashes and repeated steps."""

import shutil

import numpy as np
import pytest
from rounds import USERS, finish, start

from topk_secagg.errors import Refused
from topk_secagg.gradients.layout import Layout
from topk_secagg.steps import eliminate as eliminate_step
from topk_secagg.steps.eliminate import eliminate
from topk_secagg.steps.freeze import freeze
from topk_secagg.steps.mask import mask
from topk_secagg.storage import residual as residual_file

L, K = 12, 3


@pytest.fixture
def gradients(tmp_path):
    def make(seed):
        values = np.random.default_rng(seed).uniform(-1, 1, (USERS, L))
        for n in range(USERS):
            np.save(tmp_path / f"g{n + 1}.npy", values[n])
        return values

    return make


def mask_all(space, folder, **options):
    for user in space.users():
        mask(space, user, folder / f"g{user}.npy", residual=folder / f"r{user}.h5", **options)


def kept(path):
    value, _ = residual_file.read(path, int(path.stem[1:]), L)
    return np.zeros(L) if value is None else value


@pytest.mark.parametrize(("construction", "weight"), [("permutation", 1.0), ("moments", 3.0)])
def test_over_twelve_rounds_sent_plus_residual_is_the_sum_of_the_gradients(tmp_path, gradients, construction, weight):
    sent, given = np.zeros(L), np.zeros((USERS, L))
    dropped = {5: 2, 11: 1}
    for number in range(12):
        values = gradients(number)
        options = {"construction": construction, "clip": 60.0, "max_weight": weight}
        space = start(tmp_path / f"round-{number}", Layout.flat(L), top_k=K, **options)
        mask_all(space, tmp_path, weight=weight)
        survivors = [u for u in space.users() if u != dropped.get(number)]
        freeze(space, survivors)
        sent += finish(space) / weight
        for user in survivors:
            given[user - 1] += values[user - 1]
        shutil.rmtree(space.root)
    residual = sum(kept(tmp_path / f"r{user}.h5") for user in range(1, USERS + 1))
    assert np.abs(sent + residual - given.sum(axis=0)).max() < 1e-9
    assert np.abs(residual).max() > 0.1


def test_steps_can_be_repeated_before_and_after_the_commit(tmp_path, gradients):
    gradients(2)
    space = start(tmp_path / "round", Layout.flat(L), top_k=K)
    for user in space.users():
        first = mask(space, user, tmp_path / f"g{user}.npy", residual=tmp_path / f"r{user}.h5")
        again = mask(space, user, tmp_path / f"g{user}.npy", residual=tmp_path / f"r{user}.h5")
        assert first.digest == again.digest
    freeze(space)
    eliminate(space, 1)
    committed = (tmp_path / "r1.h5").read_bytes()
    eliminate(space, 1)
    assert mask(space, 1, tmp_path / "g1.npy", residual=tmp_path / "r1.h5").digest
    assert (tmp_path / "r1.h5").read_bytes() == committed
    for gradient, options in (("g2", {}), ("g1", {"weight": 0.5}), ("g1", {"select": "random"})):
        with pytest.raises(Refused):
            mask(space, 1, tmp_path / f"{gradient}.npy", residual=tmp_path / "r1.h5", **options)


def test_an_old_round_never_touches_the_residual_again(tmp_path, gradients):
    gradients(2)
    space = start(tmp_path / "round", Layout.flat(L), top_k=K)
    residual = tmp_path / "r1.h5"
    mask(space, 1, tmp_path / "g1.npy", residual=residual)
    for user in (2, 3, 4):
        mask(space, user, tmp_path / f"g{user}.npy")
    finish(space)
    assert not space.residual_path(1).exists()
    later = start(tmp_path / "later", Layout.flat(L), top_k=K, clip=8.0)
    mask(later, 1, tmp_path / "g2.npy", residual=residual)
    for user in (2, 3, 4):
        mask(later, user, tmp_path / f"g{user}.npy")
    finish(later)
    newest = residual.read_bytes()
    residual_file.stage(space.residual_path(1), space.session, 1, np.ones(L))  # as a crash could leave it
    eliminate(space, 1)
    mask(space, 1, tmp_path / "g1.npy", residual=residual)
    assert residual.read_bytes() == newest
    assert not space.residual_path(1).exists()
    residual.unlink()
    eliminate(space, 1)
    assert not residual.exists()


def test_a_crash_before_the_commit_leaves_the_old_residual_and_the_next_run_commits(tmp_path, gradients, monkeypatch):
    gradients(3)
    space = start(tmp_path / "round", Layout.flat(L), top_k=K)
    mask_all(space, tmp_path)
    freeze(space)

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(eliminate_step, "commit_residual", crash)
        with pytest.raises(KeyboardInterrupt):
            eliminate(space, 1)
    assert not (tmp_path / "r1.h5").exists()
    with monkeypatch.context() as patch:
        patch.setattr(residual_file, "write_whole", crash)
        with pytest.raises(KeyboardInterrupt):
            eliminate(space, 1)
    assert not (tmp_path / "r1.h5").exists()
    eliminate(space, 1)
    assert np.abs(kept(tmp_path / "r1.h5")).max() > 0


def test_a_residual_that_was_changed_is_not_overwritten(tmp_path, gradients):
    gradients(4)
    space = start(tmp_path / "round", Layout.flat(L), top_k=K)
    mask_all(space, tmp_path)
    finish(space)
    later = start(tmp_path / "later", Layout.flat(L), top_k=K, clip=8.0)
    gradients(5)
    mask_all(later, tmp_path)
    freeze(later)
    residual_file.stage(tmp_path / "r1.h5", later.session, 1, np.ones(L))
    before = (tmp_path / "r1.h5").read_bytes()
    with pytest.raises(Refused, match="not the residual that was added"):
        eliminate(later, 1)
    assert (tmp_path / "r1.h5").read_bytes() == before


def test_what_is_clipped_away_stays_in_the_residual(tmp_path):
    values = np.zeros(L)
    values[3] = 5.0
    np.save(tmp_path / "g.npy", values)
    space = start(tmp_path / "round", Layout.flat(L), top_k=K, clip=1.0)
    for user in space.users():
        report = mask(space, user, tmp_path / "g.npy", residual=tmp_path / f"r{user}.h5", saturate=True)
        assert report.clipped == 1
    finish(space)
    step = 1 / space.session.parameters.scale
    assert abs(kept(tmp_path / "r1.h5")[3] - 4.0) <= step


def test_without_the_commit_the_sum_would_be_wrong(tmp_path, gradients, monkeypatch):
    """The twin of the twelve rounds: leave the commit out, and the invariant breaks."""
    monkeypatch.setattr(eliminate_step, "commit_residual", lambda *_: None)
    with pytest.raises(AssertionError):
        test_over_twelve_rounds_sent_plus_residual_is_the_sum_of_the_gradients(tmp_path, gradients, "permutation", 1.0)
