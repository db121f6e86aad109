"""A curve of experiments/cifar10 in miniature: interrupted, resumed, and drawn. Needs PyTorch."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs_torch

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path[:0] = [str(EXPERIMENTS), str(EXPERIMENTS / "cifar10")]
import cifar  # noqa: E402
import curve  # noqa: E402
import images  # noqa: E402


@pytest.fixture
def data(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    for name in (*cifar.PARTS["train"], *cifar.PARTS["test"]):
        rows = rng.integers(256, size=(400, 3073), dtype=np.uint8)
        rows[:, 0] %= 10
        (tmp_path / f"{name}.bin").write_bytes(rows.tobytes())
    monkeypatch.setattr(curve, "USUAL_STEPS", 1)
    monkeypatch.setattr(images, "BATCH", 4)
    monkeypatch.setattr(curve, "BY_FILES", 2)
    return tuple(images.Images(split, tmp_path, 16) for split in ("train", "test"))


LOW_RANK = {"rank": 2, "field": curve.TWO_BYTES, "clip_from_sum": 2.0}


def settings_of(method="topk-ef", **others):
    """Three rounds of a tiny curve."""
    usual = LOW_RANK if method == "rank" else {}
    usual = usual | {
        "density": 0.001,
        "scale": 1.0,
        "drop": 0.3,
        "task": "16x16",
        "rounds": 3,
        "seed": 0,
        "steps": 1,
    }
    return curve.Settings(method=method, **(usual | others))


def curve_of(settings, data, work, checkpoint="curve"):
    """From its checkpoint, if there is one."""
    task = images.Cifar(*data, users=settings.users, seed=settings.seed)
    return curve.Curve(settings, task, work, checkpoint)


@pytest.mark.parametrize("method", curve.METHODS)
def test_an_interrupted_curve_goes_on_and_every_sum_is_exact(method, data, tmp_path):
    settings = settings_of(method)
    curve_of(settings, data, tmp_path).run(2, tmp_path)
    resumed = curve_of(settings, data, tmp_path)
    assert resumed.at.done == 2
    resumed.run(3, tmp_path)
    rows = list(csv.DictReader((tmp_path / f"{settings.name}.csv").read_text().splitlines()))
    assert [row["round"] for row in rows] == ["1", "2", "3"]
    secure = method != "plain"
    assert (rows[-1]["exact_rounds"], rows[-1]["rounds_by_files"]) == (
        ("3", "1") if secure else ("0", "0")
    )
    assert len({row["online_bytes"] for row in rows}) == 3
    assert (resumed.at.residuals != {}) == (method == "rank" or method.endswith("-ef"))

    with pytest.raises(SystemExit, match="other settings"):
        curve_of(curve.replace(settings, seed=1), data, tmp_path)


def test_low_rank_loses_nothing_and_sends_little(data, tmp_path, monkeypatch):
    given, decoded = [], []
    honest = curve.Curve.low_rank_sum

    def watched(self, moved, dropped, silent):
        total = honest(self, moved, dropped, silent)
        given.append(sum(moved.values()))
        decoded.append(total)
        return total

    monkeypatch.setattr(curve.Curve, "low_rank_sum", watched)
    training = curve_of(settings_of("rank", rounds=4), data, tmp_path)
    rows = training.run(4)
    kept = sum(training.at.residuals.values())
    np.testing.assert_allclose(sum(given), sum(decoded) + kept, atol=1e-12)
    assert rows[-1]["exact_rounds"] == 4
    assert rows[-1]["online_bytes"] < 4 * 1.6 * 2 * 6000  # X and Y, of two bytes
    assert rows[-1]["residual_norm"] > 0
    assert rows[-1]["alone"] < 0.01
    assert {
        tensor.rank for tensor in training.at.projection.reduction.tensors if tensor.basis_shape[0]
    } == {2}


def test_what_is_kept_decays_only_while_its_user_is_there(data, tmp_path):
    training = curve_of(settings_of("rank", decay=0.5), data, tmp_path)
    training.run(1)
    before = dict(training.at.residuals)
    training.run(2)
    dropped, _ = curve.drop_outs(training.settings, 1)
    absent = [user for user in dropped if user in before]
    assert absent
    for user in absent:
        assert training.at.residuals[user] is before[user]


def test_keys_are_counted_in_the_first_round_alone(data, tmp_path):
    rows = curve_of(settings_of(), data, tmp_path).run(3)
    before = [row["offline_bytes"] for row in rows]
    assert before == 3 * before[:1]
    assert before[0] > 0


def test_more_users_write_their_shares_out_in_every_round(data, tmp_path):
    settings = settings_of(users=22, drop=0.5)
    assert (settings.survivors, settings.colluders) == (11, 6)
    training = curve_of(settings, data, tmp_path)
    assert len(training.task.owned) == 22
    assert sum(map(len, training.task.owned)) == len(data[0].labels)
    rows = training.run(2)
    assert rows[1]["offline_bytes"] == 2 * rows[0]["offline_bytes"] > 0


def test_the_name_says_what_is_not_usual():
    usual = settings_of("plain", rounds=800, steps=5)
    assert usual.name == "16x16-drop30-plain"
    low_rank = settings_of("rank", rounds=800, steps=5)
    assert low_rank.name == "16x16-drop30-rank-2"
    one_byte = curve.replace(low_rank, field=251, clip_from_sum=0.5, decay=0.95, seed=1)
    assert one_byte.name == "16x16-drop30-rank-2-q251-F0.5-decay0.95-seed1"
    many_steps = curve.replace(usual, steps=30, rounds=134)
    assert many_steps.name == "16x16-drop30-plain-30steps"
    many_users = curve.replace(usual, users=50, rounds=300, seed=1)
    assert many_users.name == "16x16-drop30-plain-50users-seed1"
    assert curve.replace(usual, rounds=13).name == "16x16-drop30-plain-13rounds"


def test_a_clip_that_follows_is_twice_the_largest_of_the_last_sum(data, tmp_path, monkeypatch):
    sums = []
    honest = curve.ts.aggregate

    def watched(*args, **kwargs):
        result = honest(*args, **kwargs)
        sums.append((kwargs["clip"], kwargs["field"], np.abs(result.total).max()))
        return result

    monkeypatch.setattr(curve.ts, "aggregate", watched)
    settings = settings_of(field=65521, clip_from_sum=2.0)
    assert settings.name == "16x16-drop30-topk-ef-0.1-sketch-q65521-follow-3rounds"
    curve_of(settings, data, tmp_path).run(2)
    curve_of(settings, data, tmp_path).run(3)  # goes on with the clip of the checkpoint
    clips = [clip for clip, _, _ in sums]
    assert clips[0] == curve.CLIP
    assert clips[1:] == [2 * largest for _, _, largest in sums[:-1]]
    assert {field for _, field, _ in sums} == {65521}


def test_finished_curves_are_drawn_and_tabulated(data, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    import draw

    results = tmp_path / "results"
    for settings in (
        settings_of("plain", density=0.01),
        settings_of("plain", density=0.01, seed=1),
        settings_of(density=0.01),
        settings_of(density=0.001, field=65521, clip_from_sum=2.0),
        settings_of("rank"),
    ):
        curve_of(settings, data, tmp_path, settings.name).run(3, results)
    unfinished = settings_of("plain", density=0.01, seed=2)
    curve_of(unfinished, data, tmp_path, unfinished.name).run(2, results)
    curves = draw.read(results)
    assert len(curves) == 5
    assert len(draw.read(results, unfinished=True)) == 6
    monkeypatch.setitem(draw.REACHED, "accuracy", (0.0, 2.0))
    lines = draw.bytes_to_reach(curves).splitlines()
    assert lines[2].startswith("| no secure aggregation | 2 | 1.1 MB (1.1 MB..1.1 MB) | not by all")
    assert any(line.startswith("| the same, by dense LightSecAgg | 2 | 6.5 MB") for line in lines)
    assert "not reached" in lines[-1]
    rows = draw.table(curves).splitlines()[2:]
    assert [row.split(" | ")[2:4] for row in rows] == [
        ["no secure aggregation", "0, 1"],
        ["rank 2, 16 bits", "0"],
        ["top-K 1 %, 32 bits", "0"],
        ["top-K 0.1 %, 16 bits", "0"],
    ]
    monkeypatch.setattr(sys, "argv", ["draw.py", str(tmp_path)])
    draw.main()
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    training = "16x16-drop30-1steps-3rounds.svg"
    assert names == [f"bytes-{training}", f"rounds-{training}"]
    picture = (tmp_path / "figures" / names[0]).read_text()
    assert "1  all entries, in the clear or by SecAgg+ (2 seeds): 1,090 kB a round" in picture
    assert "prefers-color-scheme: dark" in picture


def test_a_sum_that_is_not_exact_stops_the_curve(data, tmp_path, monkeypatch):
    honest = curve.ts.aggregate

    def wrong(*args, **kwargs):
        result = honest(*args, **kwargs)
        sent = result.sent[result.survivors[0]]
        result.total[sent.index[0]] += result.fixed_point.step
        return result

    monkeypatch.setattr(curve.ts, "aggregate", wrong)
    with pytest.raises(SystemExit, match="not the plain sum"):
        curve_of(settings_of("topk"), data, tmp_path).run(1)


def test_drop_outs_leave_as_many_as_are_needed():
    for drop, masking in ((0.0, 10), (0.3, 7), (0.5, 5)):
        settings = settings_of("topk", density=0.01, drop=drop)
        dropped, silent = curve.drop_outs(settings, 7)
        assert 10 - len(dropped) == masking
        assert 10 - len({*dropped, *silent}) == 5
