"""The apps in examples/flower, as their README runs them: `flwr run`, ten simulated nodes."""

import re
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")
from processes import FLOWER, Processes

EXAMPLES = Path(__file__).parents[2] / "examples" / "flower"
NODES = 10


def accuracies(output: str) -> list[float]:
    """What the server measured before the first round and after each."""
    return [float(found) for found in re.findall(r"^round \d+: accuracy (\S+)$", output, re.M)]


def run(name: str, folder: Path, rounds: int) -> str:
    """The output of an app of the examples."""
    with Processes(folder) as processes:
        process = processes.start(
            name,
            FLOWER / "flwr",
            "run",
            EXAMPLES / name,
            "local",
            "--stream",
            "--federation-config",
            f"num-supernodes={NODES}",
            "--run-config",
            f"num-server-rounds={rounds}",
        )
        assert process.wait() == 0, process.text()
        return process.text()


def test_digits_in_numpy_are_learnt(tmp_path):
    output = run("digits", tmp_path, rounds=4)
    found = accuracies(output)
    assert len(found) == 5, output
    assert found[0] < 0.3
    assert found[-1] > 0.8
    assert output.count(f"the sum of {NODES} users, from {NODES} answers") == 4


def test_digits_with_pytorch_are_learnt(tmp_path):
    pytest.importorskip("torch")
    output = run("pytorch", tmp_path, rounds=3)
    found = accuracies(output)
    assert len(found) == 4, output
    assert found[0] < 0.3
    assert found[-1] > 0.8
    assert output.count(f"the sum of {NODES} users, from {NODES} answers") == 3
