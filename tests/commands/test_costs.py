"""A session.json of a kilobyte can ask for any number of bytes: each step computes what the round
costs, and refuses above its user's limit before it draws, reads or writes anything."""

import os
from pathlib import Path

import pytest
from played import call, contents, must, words

from topk_secagg.algebra import entropy
from topk_secagg.rounds import access, costs
from topk_secagg.rounds import decode as decode_step
from topk_secagg.rounds.costs import machine_memory, price
from topk_secagg.storage.workspace import Workspace

pytestmark = pytest.mark.rule(18)

HUGE = words("--users 5 --survivors 3 --colluders 1 --density 0.01 --length 4000000000 --dealing")
STEPS = {
    "offline": "--user 1",
    "mask": "--user 1 --gradient none.npy",
    "freeze": "",
    "eliminate": "--user 1",
    "decode": "",
}


class Drawn(BaseException):
    """The step had begun to pay."""


@pytest.fixture
def huge(tmp_path, monkeypatch):
    """What somebody sends who wants users to draw four billion masks."""
    with monkeypatch.context() as patch:  # its own disk is no obstacle for a session.json
        patch.setattr(costs, "_check_free", lambda *_: None)
        must("init", tmp_path / "round", *HUGE, "shares", "--construction", "sketch")
    assert (tmp_path / "round/session.json").stat().st_size < 2500
    return tmp_path / "round"


@pytest.fixture
def drawing(monkeypatch):
    def stop(*_: object) -> None:
        raise Drawn

    monkeypatch.setattr(entropy, "draw", stop)


@pytest.mark.parametrize("step", STEPS)
def test_each_step_refuses_before_anything_is_drawn(huge, refuses, drawing, step):
    """With one machine or another: 64 GB are more than this step may take."""
    options = words(STEPS[step])
    said = refuses(77, step, huge, *options, "--max-memory", "16GB", says="GB of memory")
    assert "--max-memory SIZE" in said.err
    said = refuses(77, step, huge, *options, *words("--max-memory 900GB --max-disk 9GB"))
    assert "the files of this round take about" in said.err
    assert "--max-disk SIZE" in said.err


def test_by_default_the_machine_is_the_limit(huge, refuses, drawing, monkeypatch):
    monkeypatch.setattr(costs, "machine_memory", lambda: 8 << 30)
    refuses(77, "offline", huge, "--user", 1, says="the limit is 8.59 GB")
    assert 1 << 28 < machine_memory() < 1 << 50


def test_a_container_has_less(monkeypatch, tmp_path):
    monkeypatch.setattr(costs, "_CONTAINER_MEMORY", tmp_path / "memory.max")
    machine = machine_memory()
    for text, found in (("max\n", machine), ("104857600\n", 100 << 20)):
        (tmp_path / "memory.max").write_text(text)
        assert machine_memory() == found


@pytest.mark.parametrize("name", ["MEMORY", "DISK"])
def test_a_variable_sets_the_limit_for_every_step(huge, refuses, drawing, monkeypatch, name):
    monkeypatch.setattr(costs, "machine_memory", lambda: 1 << 50)
    monkeypatch.setenv(f"TOPK_SECAGG_MAX_{name}", "100MB")
    for step, options in STEPS.items():
        refuses(77, step, huge, *words(options), says="the limit is 100 MB")


def test_without_the_check_the_step_draws(huge, drawing, monkeypatch):
    """The twin: nothing else is between session.json and what is drawn for it."""
    monkeypatch.setattr(access, "check_affordable", lambda *_: None)
    monkeypatch.setattr(costs, "_check_free", lambda *_: None)
    with pytest.raises(Drawn):
        call("offline", huge, "--user", 1)


def test_a_full_disk_is_seen_before_anything_is_drawn(huge, refuses, drawing, monkeypatch):
    monkeypatch.setattr(costs, "machine_memory", lambda: 1 << 50)
    free = os.statvfs(huge)
    real = os.statvfs
    few = os.statvfs_result((*free[:4], 1000, *free[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: few if Path(path) == huge else real(path))
    refuses(73, "offline", huge, "--user", 1, says="and the disk has")


@pytest.mark.parametrize("given", ["", "2 Gb", "1e9", "-1", "GB", "0.5GB"])
def test_what_is_no_size(huge, refuses, given):
    refuses(2, "offline", huge, "--user", 1, "--max-disk", given, says="size")


@pytest.mark.parametrize("construction", ["permutation", "sketch"])
@pytest.mark.parametrize("dealing", [None, "shares"])
def test_the_price_is_about_what_a_user_has_on_its_disk_in_the_end(
    new_round, construction, dealing
):
    """Its own files, and those that it fetches: shares for it, and every X and Y."""
    if construction == "permutation" and dealing is None:
        dealing = "shares"
    big = {"length": 4000, "top_k": 400} if construction == "sketch" else {"length": 60}
    r = new_round(dealing=dealing, residual=True, **big).play()
    sizes = {name: len(content) for name, (content, _) in contents(r.folder).items()}
    own = sum(
        size
        for name, size in sizes.items()
        if not name.startswith(("secrets/", "shares/", "dealt/"))
        or "user-01" in name
        or "from-01" in name
    )
    cost = price(Workspace(r.folder).session)
    assert 0.6 * own < cost.disk < 2.5 * own
    must(*r.decode("--max-disk", cost.disk))
    assert call(*r.decode("--max-disk", cost.disk - 1)).code == 77


def test_decode_is_asked_too(round_at, refuses, monkeypatch):
    r = round_at("answered")
    refuses(77, *r.decode("--max-memory", "1MB"), says="of memory")
    monkeypatch.setattr(decode_step, "check_affordable", lambda *_: None)
    must(*r.decode("--max-memory", "1MB"))
