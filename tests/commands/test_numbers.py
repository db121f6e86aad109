"""Sums do not wrap, and what is no number is in none of them."""

import numpy as np
import pytest
from played import must, words

from topk_secagg.gradients.layout import Layout
from topk_secagg.gradients.quantise import FixedPoint

USERS = 5
OPTIONS = words("--survivors 3 --colluders 1 --top-k 3 --clip 1")
LARGEST = [1.0, -1.0, 0.25, 0.0]


@pytest.fixture
def total(tmp_path):
    """total(gradient): the sum of a round in which all users have this gradient, whole."""
    (tmp_path / "gradients").mkdir()

    def sum_of(gradient: list[float]) -> np.ndarray:
        for user in range(1, USERS + 1):
            np.save(tmp_path / f"gradients/user-{user:02}.npy", np.array(gradient))
        output = tmp_path / "sum.npy"
        folders = ("--gradients", tmp_path / "gradients", "--output", output)
        must("run", tmp_path / "round", *OPTIONS, *folders)
        return np.load(output)

    return sum_of


@pytest.mark.rule(6)
def test_values_at_the_clip_of_all_users_add_up(total):
    assert total(LARGEST) == pytest.approx([5, -5, 1.25, 0], abs=1e-6)


@pytest.mark.rule(6)
def test_without_room_for_all_users_the_sum_has_another_sign(total, monkeypatch):
    """The twin: as many steps as one user alone could have."""
    of = FixedPoint.of

    def for_one(field, _users, max_weight, clips):
        return of(field, 1, max_weight, clips)

    monkeypatch.setattr(FixedPoint, "of", staticmethod(for_one))
    assert not np.allclose(total(LARGEST)[:2], [5, -5], atol=0.5)


@pytest.mark.rule(7)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_not_masked(round_at, refuses, tmp_path, value):
    r = round_at("offline")
    np.save(tmp_path / "bad.npy", np.array([0.5, value, 0.0, 0.0]))
    refuses(65, *r.mask(1, gradient=tmp_path / "bad.npy"), says="not finite")
    refuses(65, *r.mask(1, "--saturate", gradient=tmp_path / "bad.npy"), says="not finite")


@pytest.mark.rule(7)
def test_without_the_check_everybody_has_a_wrong_sum_and_nothing_says_so(
    round_at, monkeypatch, tmp_path
):
    """The twin."""
    r = round_at("offline")
    np.save(tmp_path / "bad.npy", np.array([0.5, np.nan, 0.0, 0.0]))
    with monkeypatch.context() as patch:
        patch.setattr(Layout, "_refuse_non_finite", lambda *_: None)
        with np.errstate(invalid="ignore"):
            must(*r.mask(1, gradient=tmp_path / "bad.npy"))
    for user in (2, 3, 4):
        must(*r.mask(user))
    r.play(after="masked")
    found = r.reals()
    assert np.isfinite(found).all()
