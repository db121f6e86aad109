"""Error feedback: what was not sent is kept, exactly once, even after crashes and repeated steps.

What `settle` and `forget` do with a residual is in tests/commands/test_settle.py.
"""

import shutil

import numpy as np
import pytest
from played import call, must, rewrite

from topk_secagg.rounds import eliminate as eliminate_step
from topk_secagg.storage import residual as residual_file
from topk_secagg.storage.workspace import Workspace

L, K, USERS = 12, 3, 4
ALL = (1, 2, 3, 4)
SIZES = {"users": USERS, "length": L, "top_k": K, "masking": ALL, "answering": ALL}


@pytest.fixture
def gradients(tmp_path):
    def make(seed):
        values = np.random.default_rng(seed).uniform(-1, 1, (USERS, L))
        for n in ALL:
            np.save(tmp_path / f"g{n}.npy", values[n - 1])
        return values

    return make


@pytest.fixture
def shared(new_round):
    """shared("round"): a round in which all users have shared their secrets."""

    def make(folder="round", **options):
        r = new_round(folder, **SIZES, **options)
        must(*r.init("--max-weight", 3))
        return r.play(after="init", upto="offline")

    return make


@pytest.fixture
def mask(tmp_path):
    """mask(r, 1): the command with which a user masks its gradient, or another one, and keeps a
    residual."""

    def command(r, user, *more, gradient=None):
        how = ("--residual", tmp_path / f"r{user}.h5", *more)
        return r.mask(user, *how, gradient=tmp_path / f"g{gradient or user}.npy")

    return command


def kept(path):
    value, _ = residual_file.read(path, int(path.stem[1:]), L)
    return np.zeros(L) if value is None else value


@pytest.mark.parametrize(
    ("construction", "weight"), [("permutation", 1.0), ("moments", 3.0), ("sketch", 2.0)]
)
def test_over_twelve_rounds_sent_plus_residual_is_the_sum_of_the_gradients(
    tmp_path, gradients, shared, mask, construction, weight
):
    sent = np.zeros(L)
    given = np.zeros((USERS, L))
    dropped = {5: 2, 11: 1}
    for number in range(12):
        values = gradients(number)
        r = shared(f"round-{number}", **({"picks": 4} if construction == "moments" else {}))
        for user in ALL:
            must(*mask(r, user, "--weight", weight))
        survivors = [n for n in ALL if n != dropped.get(number)]
        must(*r.freeze("--only", ",".join(map(str, survivors))))
        for user in survivors:
            must(*r.eliminate(user))
            given[user - 1] += values[user - 1]
        must(*r.decode())
        sent += r.reals() / weight
        shutil.rmtree(r.folder)
    residual = sum(kept(tmp_path / f"r{user}.h5") for user in ALL)
    assert np.abs(sent + residual - given.sum(axis=0)).max() < 1e-9
    assert np.abs(residual).max() > 0.1


def test_without_the_commit_the_sum_would_be_wrong(tmp_path, gradients, shared, mask, monkeypatch):
    """The twin of the twelve rounds: leave the commit out, and the invariant breaks."""
    monkeypatch.setattr(eliminate_step, "commit_residual", lambda *_, **__: None)
    twelve_rounds = test_over_twelve_rounds_sent_plus_residual_is_the_sum_of_the_gradients
    with pytest.raises(AssertionError, match="1e-09"):
        twelve_rounds(tmp_path, gradients, shared, mask, "permutation", 1.0)


@pytest.fixture
def frozen(gradients, shared, mask):
    """A frozen round in which all users keep residuals, and mask twice with the same result."""
    gradients(2)
    r = shared()
    for user in (*ALL, *ALL):
        must(*mask(r, user))
    must(*r.freeze())
    return r


def test_steps_can_be_repeated_before_and_after_the_commit(frozen, mask, refuses, tmp_path):
    must(*frozen.eliminate(1))
    committed = (tmp_path / "r1.h5").read_bytes()
    for command in (frozen.eliminate(1), mask(frozen, 1)):
        must(*command)
        assert (tmp_path / "r1.h5").read_bytes() == committed
    for gradient, more in ((2, ()), (1, ("--weight", 0.5)), (1, ("--select", "random"))):
        second = mask(frozen, 1, *more, gradient=gradient)
        refuses(77, *second, says="already masked another input")


def test_an_old_round_never_touches_the_residual_again(frozen, shared, mask, tmp_path):
    frozen.play(after="frozen")
    space = Workspace(frozen.folder)
    residual = tmp_path / "r1.h5"
    assert not space.residual_path(1).exists()
    later = shared("later")
    for user in ALL:
        must(*mask(later, user, gradient=user % USERS + 1))
    later.play(after="masked")
    newest = residual.read_bytes()
    residual_file.stage(
        space.residual_path(1), space.session, 1, np.ones(L)
    )  # as a crash could leave it
    must(*frozen.eliminate(1))
    must(*mask(frozen, 1))
    assert residual.read_bytes() == newest
    assert not space.residual_path(1).exists()
    residual.unlink()
    must(*frozen.eliminate(1))
    assert not residual.exists()


def test_a_crash_before_the_commit_leaves_the_old_residual_and_the_next_run_commits(
    frozen, tmp_path, monkeypatch
):
    def crash(*_):
        raise RecursionError

    for where, name in ((eliminate_step, "commit_residual"), (residual_file, "write_whole")):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, crash)
            assert call(*frozen.eliminate(1)).code == 1
        assert not (tmp_path / "r1.h5").exists()
    must(*frozen.eliminate(1))
    assert np.abs(kept(tmp_path / "r1.h5")).max() > 0


def test_a_residual_that_was_changed_is_not_overwritten(frozen, gradients, shared, mask, tmp_path):
    frozen.play(after="frozen")
    gradients(5)
    later = shared("later")
    for user in ALL:
        must(*mask(later, user))
    must(*later.freeze())
    residual_file.stage(tmp_path / "r1.h5", Workspace(later.folder).session, 1, np.ones(L))
    before = (tmp_path / "r1.h5").read_bytes()
    result = call(*later.eliminate(1))
    assert (result.code, "not the residual that was added" in result.err) == (77, True)
    assert (tmp_path / "r1.h5").read_bytes() == before


def test_what_is_clipped_away_stays_in_the_residual(new_round, tmp_path):
    values = np.zeros(L)
    values[3] = 5.0
    np.save(tmp_path / "g.npy", values)
    r = new_round(**SIZES)
    must(*r.init("--clip", 1))
    r.play(after="init", upto="offline")
    for user in ALL:
        how = ("--residual", tmp_path / f"r{user}.h5", "--saturate", "--json")
        assert must(*r.mask(user, *how, gradient=tmp_path / "g.npy")).json["clipped"] == 1
    r.play(after="masked")
    assert (
        abs(kept(tmp_path / "r1.h5")[3] - 4.0) <= 1 / Workspace(r.folder).session.parameters.scale
    )


def test_a_round_that_fails_counts_as_sent(frozen, mask, shared, gradients, tmp_path):
    """The residual is committed when Y leaves, whatever becomes of the sum."""
    for user in ALL:
        must(*frozen.eliminate(user))
    path = frozen.folder / "elimination/user-02.h5"
    rewrite(path, lambda _, found: found["y"].fill(0))
    committed = {user: (tmp_path / f"r{user}.h5").read_bytes() for user in ALL}
    assert call(*frozen.decode()).code == 65
    assert {user: (tmp_path / f"r{user}.h5").read_bytes() for user in ALL} == committed
    gradients(3)
    later = shared("later")
    assert must(*mask(later, 1)).err == ""  # nothing waits to be settled


def test_an_x_that_left_counts_as_sent_unless_survivors_json_lacks_it(
    frozen, mask, shared, gradients, refuses, tmp_path
):
    gradients(3)
    said = must(*mask(shared("later"), 1)).err  # user 1 has not answered
    assert f"the residual of the round in {frozen.folder} was never settled" in said
    assert f"run `topk-secagg settle {frozen.folder} --user 1` first" in said
    assert "unless its survivors.json leaves user 1 out" in said
    must(*frozen.settle(1))
    assert np.abs(kept(tmp_path / "r1.h5")).max() > 0
