"""What `plan` foretells must be what a round then takes."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from topk_secagg_cli.main import cli

from topk_secagg.errors import CannotWrite, SecAggError
from topk_secagg.gradients.layout import Layout
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.review import plan
from topk_secagg.steps.init import init
from topk_secagg.steps.keygen import keygen
from topk_secagg.steps.run import run
from topk_secagg.storage.public import masked_bytes
from topk_secagg.storage.workspace import Workspace

OPTIONS = ["--users", "10", "--survivors", "5", "--colluders", "3", "--density", "0.01"]


def parameters(**options):
    return Parameters.choose(**{"users": 4, "survivors": 3, "colluders": 1, "top_k": 20, "length": 600, **options})


def invoke(*arguments):
    result = CliRunner().invoke(cli, list(arguments))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


@pytest.mark.parametrize("construction", ["permutation", "rotation"])
@pytest.mark.parametrize("elimination", ["dense", "syndrome", "auto"])
def test_a_round_takes_the_bytes_that_were_foretold(tmp_path, construction, elimination):
    p = parameters(construction=construction, elimination=elimination)
    files = []
    for n in range(4):
        files.append(tmp_path / f"{n}.npy")
        np.save(files[-1], np.random.default_rng(n).uniform(-1, 1, 600))
    space = init(tmp_path / "round", p, Layout.flat(600))
    report = run(space, files)
    foretold = plan.cost(p)
    used = sum(path.stat().st_size for path in (tmp_path / "round").rglob("*") if path.is_file())
    assert used <= foretold.all_bytes <= 1.2 * used
    assert foretold.masked_bytes == report.masked[0].payload
    assert foretold.answer_bytes == report.answered[0].payload


def test_permutation_is_recommended_while_it_is_small_and_rotation_beyond():
    small = plan.recommended(plan.choices(parameters()))
    large = plan.recommended(plan.choices(parameters(length=100_000, top_k=1000)))
    assert small.parameters.construction == "permutation"
    assert (large.parameters.construction, large.parameters.picks) == ("rotation", 4)


def test_with_a_gradient_the_fewest_picks_that_keep_enough_energy_are_recommended():
    p = parameters(length=100_000, top_k=1000)
    spread = np.zeros(100_000)
    spread[:1000] = 1.0  # neighbours: every bucket has one, and P = 1 keeps all
    best = plan.recommended(plan.choices(p, spread))
    assert best.parameters.picks == 1
    assert best.energy == 1.0
    crowded = np.zeros(100_000)
    crowded[::1000] = np.linspace(1, 2, 100)  # all in few buckets, whatever B is near 1000 / P
    found = {c.parameters.picks: c.energy for c in plan.choices(p, crowded)}
    assert found[0] == 1.0
    assert found[1] < found[2] < found[8]


def test_nothing_that_does_not_fit_the_disk_is_recommended():
    found = plan.choices(parameters(length=100_000, top_k=1000))
    smallest = min(c.all_bytes for c in found)
    assert plan.recommended(found, smallest).all_bytes == smallest
    assert plan.recommended(found, smallest - 1) is None


def test_the_recommended_command_can_be_pasted_and_starts_that_very_round(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("g.npy", np.random.default_rng(0).standard_t(2, 50_000) * 1e-3)
    facts = json.loads(invoke("plan", *OPTIONS, "--clip", "0.5", "--like", "g.npy", "--json"))
    words = shlex.split(facts["command"].replace("ROUND", "round"))
    assert words[0] == "topk-secagg"
    invoke(*words[1:])
    (marked,) = [c for c in facts["choices"] if c["recommended"]]
    p = Workspace(tmp_path / "round").session.parameters
    assert (p.construction, p.picks, p.clip) == (marked["construction"], marked["picks"], 0.5)
    assert plan.cost(p).all_bytes == marked["all_bytes"]
    assert all(c["seconds"] > 0 and 0 <= c["energy"] <= 1 for c in facts["choices"])


def test_plot_draws_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    invoke("plan", *OPTIONS, "--length", "50000", "--plot", str(tmp_path / "p.png"))
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_init_without_a_construction_stops_and_names_the_rotation_command(tmp_path):
    with pytest.raises(SecAggError, match=r"29\.7 TB") as stopped:
        invoke("init", str(tmp_path / "round"), *OPTIONS, "--length", "272474")
    assert stopped.value.exit_code == 2
    words = shlex.split(stopped.value.hint.removeprefix("this would do: "))
    invoke(*words[1:])
    assert Workspace(tmp_path / "round").session.parameters.construction == "rotation"


def test_the_command_to_paste_keeps_every_option(tmp_path):
    """Also those that have nothing to do with the size, in words that a shell reads as they were meant."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    tensors = {"model.w": np.ones(600_000, dtype="f4"), "model.b": np.ones(10, dtype="f4")}
    np.savez(folder / "g 1.npz", **tensors)
    lines = [keygen(n, folder / f"{n}.id").line() for n in range(1, 11)]
    (folder / "keys").write_text("\n".join(lines))
    shape = ("--like", str(folder / "g 1.npz"), "--exclude", "*.b")
    sealed = ("--recipients", str(folder / "keys"))
    round_folder = str(folder / "the round")
    with pytest.raises(SecAggError) as stopped:
        invoke("init", round_folder, *OPTIONS, *shape, *sealed)
    invoke(*shlex.split(stopped.value.hint.removeprefix("this would do: "))[1:])
    session = Workspace(Path(round_folder)).session
    assert session.recipients
    assert session.parameters.length == 600_000
    planned = json.loads(invoke("plan", *OPTIONS, *shape, "--insecure-seed", "3", "--json"))["command"]
    words = [str(folder / "other") if word == "ROUND" else word for word in shlex.split(planned)]
    invoke(*words[1:])
    other = Workspace(folder / "other").session
    assert (other.parameters.length, other.insecure_seed) == (600_000, 3)


def test_the_command_to_paste_puts_options_before_the_end_of_options(tmp_path):
    with pytest.raises(SecAggError) as stopped:
        invoke("init", *OPTIONS, "--length", "272474", "--", str(tmp_path / "round"))
    invoke(*shlex.split(stopped.value.hint.removeprefix("this would do: "))[1:])
    assert Workspace(tmp_path / "round").session.parameters.construction == "rotation"


def test_advice_that_does_not_fit_is_not_given(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "free_bytes", lambda _: 10**6)
    for more in ((), ("--construction", "rotation"), ("--construction", "permutation")):
        with pytest.raises(SecAggError) as stopped:
            invoke("init", str(tmp_path / "round"), *OPTIONS, "--length", "272474", *more)
        assert "nothing fits here, the smallest choice needs" in stopped.value.hint


def test_init_stops_with_advice_when_the_disk_cannot_hold_the_round(tmp_path, monkeypatch):
    p = parameters(length=100_000, top_k=1000, construction="rotation", picks=4)
    monkeypatch.setattr(plan, "free_bytes", lambda _: plan.cost(p).all_bytes - 1)
    options = ["--users", "4", "--survivors", "3", "--colluders", "1", "--top-k", "1000", "--length", "100000"]
    with pytest.raises(CannotWrite, match="free") as stopped:
        invoke("init", str(tmp_path / "round"), *options, "--construction", "rotation", "--picks", "4")
    assert "--picks 2" in stopped.value.hint
    assert not (tmp_path / "round" / "session.json").exists()
    invoke("init", str(tmp_path / "round"), *options, "--construction", "rotation", "--picks", "4", "--distributed")


@pytest.mark.parametrize(
    ("picks", "length", "k"), [(1, 272_474, 2725), (4, 272_474, 2725), (2, 10_000, 500), (8, 5000, 50)]
)
def test_the_payload_of_x_is_close_to_the_rate_of_rotation(picks, length, k):
    p = parameters(length=length, top_k=k, construction="rotation", picks=picks)
    bits = p.entries * (math.log2(p.field) + math.log2(p.width))
    assert bits <= 8 * masked_bytes(p) <= 1.03 * bits + 16
