"""Low rank, whole tensors and what users agree on, through the commands."""

import json
from itertools import pairwise

import numpy as np
import pytest
from played import call, must

USERS = range(1, 5)
OPTIONS = ("--users", 4, "--survivors", 3, "--colluders", 1)
CLIP = ("--clip", 5)


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    common = np.outer(rng.normal(size=9), rng.normal(size=8))
    for n in USERS:
        np.savez(
            tmp_path / f"g{n}.npz",
            w=common + 0.1 * rng.normal(size=(9, 8)),
            b=rng.normal(size=3),
        )
    return tmp_path


def steps(folder, name, *init, mask=(), **how):
    """A round by single commands: every user's steps, then the sum."""
    round_ = folder / name
    must("init", round_, *init)
    previous = how.get("after")
    for n in USERS:
        follows = ("--from", folder / previous) if previous else ()
        must("offline", round_, "--user", n, *follows)
    for n in USERS:
        must("mask", round_, "--user", n, "--gradient", folder / f"g{n}.npz", "--feedback", *mask)
    must("freeze", round_)
    for n in USERS:
        must("eliminate", round_, "--user", n)
    must("decode", round_, "--output", folder / f"{name}.npz")
    return np.load(folder / f"{name}.npz")


def dense(folder, name="w"):
    return sum(np.load(folder / f"g{n}.npz")[name] for n in USERS)


def test_a_series_by_commands_finds_the_matrix(files):
    """What the first rounds do not find is in later ones, by feedback."""
    like = ("--like", files / "g1.npz", "--rank", 1, "--clip", 20)
    names = ["first", "second", "third", "fourth", "fifth"]
    totals = [steps(files, "first", *OPTIONS, *like)]
    for before, name in pairwise(names):
        follows = ("--from", files / before)
        totals.append(steps(files, name, *follows, after=before, mask=("--again",)))
    missing = [
        np.linalg.norm(sum(total["w"] for total in totals[:count]) - count * dense(files))
        for count in (1, 5)
    ]
    assert missing[1] < missing[0], "although five times as much was given"
    assert np.allclose(totals[0]["b"], dense(files, "b"), atol=1e-2)
    document = json.loads((files / "second" / "session.json").read_text())
    assert (document["rank"], document["side"]) == (1, "left")
    assert [tensor["reduction"] for tensor in document["layout"]] == ["low-rank", "whole"]
    for name in names[:2]:
        assert "nothing failed" in must("audit", files / name).out
    assert "computed again from the sum in first" in must("audit", files / "second").out


def test_init_and_run_say_what_a_first_round_is_for(files):
    like = ("--like", files / "g1.npz", "--rank", 1)
    said = must("init", files / "round", *OPTIONS, *like).err
    assert "only finds the basis" in said
    assert "the field is 65521" in said
    again = must("init", files / "round", *OPTIONS, *like)
    assert "exists already" in again.out
    gradients = ("--gradients", *(files / f"g{n}.npz" for n in USERS))
    said = must("run", files / "run", *gradients, *OPTIONS[2:], "--rank", 1).err
    assert "only finds the basis" in said


def test_what_a_user_trains_from_is_agreed_on(files):
    model = files / "model.pt"
    model.write_bytes(b"weights")
    like = ("--like", files / "g1.npz", "--top-k", 5)
    must(
        "init", files / "r", *OPTIONS, *like, *CLIP, "--context", model, "--weight-name", "examples"
    )
    for n in USERS:
        must("offline", files / "r", "--user", n)
    mask = ("mask", files / "r", "--user", 1, "--gradient", files / "g1.npz")
    without = call(*mask)
    assert (without.code, "--context FILE" in without.err) == (2, True)
    other = files / "other.pt"
    other.write_bytes(b"a crafted model")
    refused = call(*mask, "--context", other)
    assert refused.code == 65
    assert "not what the users of this session train from" in refused.err
    must(*mask, "--context", model)
    # it is of one round alone: the next one names its own
    must("init", files / "next", "--from", files / "r")
    document = json.loads((files / "next" / "session.json").read_text())
    assert (document["context"], document["weight_name"]) == (None, "examples")
    must("offline", files / "next", "--user", 2, "--from", files / "r")
    stray = ("--gradient", files / "g2.npz", "--context", model)
    assert call("mask", files / "next", "--user", 2, *stray).code == 2


def test_the_twin_without_the_comparison_sends_what_a_crafted_model_gave(files, monkeypatch):
    monkeypatch.setattr("topk_secagg.rounds.mask._check_context", lambda *_: None)
    model = files / "model.pt"
    model.write_bytes(b"weights")
    like = ("--like", files / "g1.npz", "--top-k", 5)
    must("init", files / "r", *OPTIONS, *like, *CLIP, "--context", model)
    for n in USERS:
        must("offline", files / "r", "--user", n)
    must("mask", files / "r", "--user", 1, "--gradient", files / "g1.npz", "--context", model)


def test_inspect_and_status_know_the_basis(files):
    like = ("--like", files / "g1.npz", "--rank", 1)
    steps(files, "r", *OPTIONS, *like)
    assert "basis, intact" in must("inspect", files / "r" / "basis.h5").out
    row = must("log", files / "r", "--json").json["rounds"][0]
    assert (row["reduction"], row["size"]) == ("low-rank", 1)


@pytest.mark.parametrize("how", [("--whole",), ("--density", "1.0"), ("--top-k", 75)])
def test_whole_is_a_dense_sum(files, how):
    total = steps(files, "r", *OPTIONS, "--like", files / "g1.npz", *how, *CLIP)
    assert np.allclose(total["w"], dense(files), atol=1e-6)


def test_whole_tensors_beside_top_k(files):
    like = ("--like", files / "g1.npz", "--top-k", 4, "--whole-tensors", "b", *CLIP)
    total = steps(files, "r", *OPTIONS, *like)
    assert np.allclose(total["b"], dense(files, "b"), atol=1e-6)
    assert 4 <= np.count_nonzero(total["w"]) <= 16
