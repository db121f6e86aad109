"""What `plan` predicts is what a round then takes, and what `init` chooses is what `plan` marks."""

import shlex
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rounds import call, must

from topk_secagg.errors import CannotWrite, UsageError
from topk_secagg.gradients.layout import Layout
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.review.plan import DENSE, THEOREM, plan
from topk_secagg.steps.costs import check_disk, footprint
from topk_secagg.steps.init import choose_parameters, start
from topk_secagg.steps.run import run
from topk_secagg.storage.workspace import Workspace

OPTIONS = ["--users", "10", "--survivors", "5", "--colluders", "3", "--density", "0.01"]
PAPER = {"users": 10, "survivors": 5, "colluders": 3, "density": 0.01}


def parameters(**options: Any) -> Parameters:
    return Parameters.choose(
        **{"users": 4, "survivors": 3, "colluders": 1, "top_k": 20, "length": 600, **options}
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"construction": "moments", "top_k": 2000, "length": 20_000},
        {"construction": "moments", "top_k": 2000, "length": 20_000, "field": 65521},
        {"construction": "moments", "top_k": 2000, "length": 20_000, "dealing": "shares"},
        {"construction": "sketch", "top_k": 2000, "length": 20_000},
    ],
)
def test_a_round_takes_the_bytes_that_were_predicted(tmp_path, options):
    p = parameters(**options)
    files = []
    for n in range(4):
        files.append(tmp_path / f"{n}.npy")
        np.save(files[-1], np.random.default_rng(n).uniform(-1, 1, p.length))
    space, _ = start(tmp_path / "round", p, Layout.flat(p.length))
    report = run(space, files)
    predicted = footprint(p)
    used = sum(path.stat().st_size for path in (tmp_path / "round").rglob("*") if path.is_file())
    assert used <= predicted.all_bytes <= 1.2 * used
    assert predicted.masked_bytes == report.masked[0].masked_bytes
    assert predicted.answer_bytes == report.answered[0].answer_bytes


def test_where_two_picks_do_not_fit_a_bucket_one_is_chosen():
    moments = partial(parameters, construction="moments")
    assert [moments(top_k=top_k, length=99).picks for top_k in (1, 40, 98, 99)] == [2, 2, 2, 1]
    assert moments(top_k=7, length=7).picks == 1
    with pytest.raises(UsageError, match="close to L"):
        moments(top_k=99, length=99, picks=4)


def test_every_column_has_the_theorem_and_dense_lightsecagg_beside_it():
    p = choose_parameters(272_474, **PAPER)[0]
    found = plan(p)
    rows = {row.name: row for row in found.rows}
    ours = [row.parameters for row in found.rows if row.parameters]
    assert {(p.picks, p.field) for p in ours if p.construction != "sketch"} == {
        (picks, field) for picks in (0, 1, 2, 4, 8) for field in (4281076801, 65521)
    }
    assert (p.construction, p.picks) == ("sketch", 16)
    assert found.best.parameters == p
    assert rows[DENSE].pair_bytes == 272_474 // 2 * 4  # L / (U - T) symbols
    assert rows[DENSE].all_bytes == 100 * rows[DENSE].pair_bytes
    assert rows[DENSE].online_bytes == 272_474 * 6
    assert rows[THEOREM].pair_bytes == pytest.approx(2 * 272_474 * 272_474 / 2 * 4, rel=0.001)
    assert rows[THEOREM].online_bytes == pytest.approx(559_000, rel=0.01)


def test_a_scheme_that_needs_less_is_named():
    written = {**PAPER, "construction": "moments", "dealing": "shares"}
    four = plan(choose_parameters(272_474, **written, picks=4)[0])
    assert [remark for remark in four.remarks if "LightSecAgg needs less offline" in remark]
    two = plan(choose_parameters(272_474, **written, picks=2)[0])
    assert two.remarks == []
    assert plan(choose_parameters(272_474, **PAPER)[0]).remarks == []


def test_more_picks_keep_more_energy():
    crowded = np.zeros(100_000)
    crowded[::1000] = np.linspace(1, 2, 100)  # all in few buckets for every B near 1000 / P
    found = plan(choose_parameters(100_000, **PAPER)[0], crowded)
    energy = {row.parameters.picks: row.energy for row in found.rows if row.parameters}
    assert energy[0] == 1.0
    assert energy[1] < energy[2] < energy[8]


def test_the_command_can_be_pasted_and_starts_the_very_round_that_is_marked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("a b.npy", np.random.default_rng(0).standard_t(2, 50_000) * 1e-4)
    facts = must("plan", *OPTIONS, "--clip", "0.5", "--like", "a b.npy", "--json").json
    words = shlex.split(facts["command"].replace("ROUND", "round"))
    assert words[0] == "topk-secagg"
    must(*words[1:])
    (marked,) = [c for c in facts["choices"] if c["recommended"]]
    p = Workspace(tmp_path / "round").session.parameters
    assert (p.construction, p.picks, p.clip) == (marked["construction"], marked["picks"], 0.5)
    assert footprint(p).all_bytes == marked["all_bytes"]
    ours = [c for c in facts["choices"] if c["field"]]
    assert all(c["seconds"] > 0 and 0 <= c["energy"] <= 1 and c["step"] > 0 for c in ours)


def test_the_table_says_what_its_columns_mean():
    out = must("plan", *OPTIONS, "--length", "272474").out
    for words in ("time is an estimate", "the resolution", "init chooses (*) sketch"):
        assert words in out
    written = ("--construction", "moments", "--picks", "4", "--dealing", "shares")
    out = must("plan", *OPTIONS, "--length", "272474", *written).out
    assert "LightSecAgg needs less offline" in out
    assert out.rstrip().endswith("--construction moments --picks 4 --dealing shares")


@pytest.mark.parametrize(
    ("survivors", "spare", "facts", "words"),
    [
        (7, (), (10, 3), "takes 10 answers that agree (D + 2T), which exclude T = 3 users"),
        (8, (), (11, 2), "and there are 10 users: at most 2 of T = 3 liars are excluded"),
        (10, (), (13, 0), "no liar is excluded; it needs U + T <= N"),
        (5, ("--spare", 0), (13, 0), "no liar is excluded; it needs U + T <= N, and --spare of"),
        (5, ("--spare", 3), (10, 3), "takes 10 answers that agree (D + 2T), which exclude T = 3"),
    ],
)
def test_it_says_what_it_takes_to_exclude_liars(survivors, spare, facts, words):
    options = ["--users", 10, "--survivors", survivors, "--colluders", 3, "--top-k", 20]
    call_of = ("plan", *options, "--length", 5000, "--construction", "moments", *spare)
    found = must(*call_of, "--json").json
    assert (found["certain_answers"], found["liars_excluded"]) == facts
    assert words in must(*call_of).out


def test_plot_draws_a_picture_and_notices_a_missing_matplotlib_first(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    must("plan", *OPTIONS, "--length", "50000", "--plot", tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    like = ("--like", tmp_path / "missing.pt")
    assert "needs matplotlib" in call("plan", *OPTIONS, *like, "--plot", tmp_path / "q.png").err


def test_a_round_that_the_disk_cannot_hold_is_refused(tmp_path, monkeypatch):
    written = {**PAPER, "construction": "moments", "dealing": "shares", "picks": 4}
    p = choose_parameters(272_474, **written)[0]
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=20_000_000))
    check_disk(tmp_path, p, distributed=True)  # what one user sends and receives fits
    with pytest.raises(CannotWrite, match=r"need 89.* MB, and the disk has 20 MB free"):
        check_disk(tmp_path, p, distributed=False)
