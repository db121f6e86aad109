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
import clients  # noqa: E402
import train  # noqa: E402


@pytest.fixture
def data(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    for name in (*cifar.PARTS["train"], *cifar.PARTS["test"]):
        rows = rng.integers(256, size=(400, 3073), dtype=np.uint8)
        rows[:, 0] %= 10
        (tmp_path / f"{name}.bin").write_bytes(rows.tobytes())
    monkeypatch.setattr(clients, "LOCAL_STEPS", 1)
    monkeypatch.setattr(clients, "BATCH", 4)
    monkeypatch.setattr(train, "RECORDED", 1)
    monkeypatch.setattr(train, "BY_FILES", 2)
    return tuple(clients.Images(split, tmp_path, 16) for split in ("train", "test"))


@pytest.mark.parametrize("method", ["plain", "topk", "topk-ef", "random"])
def test_an_interrupted_curve_goes_on_and_every_sum_is_exact(method, data, tmp_path):
    settings = train.Settings(method, 0.001, 1.0, 0.3, 16, 3, 0)
    train.Curve(settings, data, tmp_path, "curve").run(2, tmp_path)
    resumed = train.Curve(settings, data, tmp_path, "curve")
    assert resumed.at.done == 2
    resumed.run(3, tmp_path)
    rows = list(csv.DictReader((tmp_path / f"{settings.name}.csv").read_text().splitlines()))
    assert [row["round"] for row in rows] == ["1", "2", "3"]
    secure = method != "plain"
    assert (rows[-1]["exact_rounds"], rows[-1]["rounds_by_files"]) == (
        ("3", "1") if secure else ("0", "0")
    )
    assert len({row["online_bytes"] for row in rows}) == 3
    assert (resumed.at.residuals != {}) == (method == "topk-ef")

    with pytest.raises(SystemExit, match="other settings"):
        train.Curve(train.replace(settings, seed=1), data, tmp_path, "curve")


def test_a_sum_that_is_not_exact_stops_the_curve(data, tmp_path, monkeypatch):
    honest = train.ts.aggregate

    def wrong(*args, **kwargs):
        result = honest(*args, **kwargs)
        result.total[result.sent[result.survivors[0]].index[0]] += 1 / result.parameters.scale
        return result

    monkeypatch.setattr(train.ts, "aggregate", wrong)
    with pytest.raises(SystemExit, match="not the plain sum"):
        train.Curve(train.Settings("topk", 0.001, 1.0, 0.3, 16, 3, 0), data, tmp_path, "curve").run(
            1
        )


def test_drop_outs_leave_as_many_as_are_needed():
    for drop, masking in ((0.0, 10), (0.3, 7), (0.5, 5)):
        settings = train.Settings("topk", 0.01, 1.0, drop, 16, 3, 0)
        dropped, silent = train.drop_outs(settings, 7)
        assert 10 - len(dropped) == masking
        assert 10 - len({*dropped, *silent}) == 5
