"""The digits app by Flower's simulation engine: ten nodes, and drop-outs in every phase."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from digits import FAULTS, LATE_AT, NODES, ROUNDS, data
from test_training import assert_sum_is_that_of_aggregate

import topk_secagg as ts
from topk_secagg.storage.workspace import Workspace

pytest.importorskip("ray")
SCRIPT = Path(__file__).with_name("digits.py")


class Simulated:
    """What a simulation left behind, as `assert_sum_is_that_of_aggregate` reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.accuracy = json.loads((folder / "accuracy.json").read_text())
        self.updates = defaultdict(dict)
        self.residuals = defaultdict(dict)
        nodes = json.loads((folder / "nodes.json").read_text())
        self.users = {node: user for user, node in enumerate(nodes, start=1)}
        for path in (folder / "updates").glob("*.npz"):
            number, node = map(int, path.stem.split("-"))
            parts = dict(np.load(path))
            residual = parts.pop("residual")
            self.updates[number][self.users[node]] = parts
            self.residuals[number][self.users[node]] = residual if residual.size else None

    def rounds(self) -> list[Path]:
        return sorted((self.folder / "server").glob("*/round-*"))

    def weight(self, user: int) -> float:
        return self.weights.get(user, 1.0)

    def check(self, number: int) -> list[int]:
        """The survivors of a round, whose sum is that of `aggregate`."""
        from topk_secagg.storage import survivors as survivors_file

        frozen = survivors_file.read(Workspace(self.rounds()[number - 1]))
        self.weights = frozen.weights
        assert_sum_is_that_of_aggregate(self, number, frozen.users)
        return frozen.users


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)],
        env=os.environ | {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    (folder / "log.txt").write_text(ended.stdout + ended.stderr)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return Simulated(folder)


def test_drop_outs_in_every_phase_are_not_in_the_sum_and_come_back(simulated):
    survivors = [len(simulated.check(number)) for number in range(1, ROUNDS + 1)]
    # one dealt nothing and is out; in the first round another had no shares, in the second one
    # failed while training
    assert survivors == [NODES - 2, NODES - 2, *[NODES - 1] * 4]
    silent = [number for _, number, step in {*FAULTS, *LATE_AT} if step == "answer"]
    for number, folder in enumerate(simulated.rounds(), start=1):
        report = ts.decode(folder)
        assert len(report.answering) <= len(report.survivors) - silent.count(number)
    assert len(silent) == 2


def test_accuracy_rises(simulated):
    assert simulated.accuracy[0] < 0.3
    assert simulated.accuracy[-1] > 0.85
    assert len(simulated.accuracy) == ROUNDS + 1


def test_the_server_knows_the_weights_and_nobody_is_asked_for_more(simulated):
    simulated.check(ROUNDS)
    assert set(simulated.weights.values()) <= {float(len(data(n)[1])) for n in range(NODES)}


def test_after_training_the_nodes_have_no_secrets(simulated):
    state = simulated.folder / "state" / "topk-secagg" / "flower"
    assert len(list(state.glob("partition-*"))) == NODES
    assert all(home.stat().st_mode & 0o077 == 0 for home in state.glob("partition-*"))
    assert list(state.glob("partition-*/secrets/*/*.h5")) == []
