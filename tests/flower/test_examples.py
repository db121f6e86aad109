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


@pytest.mark.parametrize("name", ["digits", "pytorch"])
def test_the_readme_shows_all_that_differs_from_an_ordinary_app(name):
    blocks = re.findall(r"```diff\n(.*?)```", (EXAMPLES / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    package = EXAMPLES / name / f"{name}_app"
    for block, app in zip(blocks, ("client_app.py", "server_app.py"), strict=True):
        text = (package / app).read_text()
        changes = block.splitlines()
        added = [line[1:] for line in changes if line.startswith("+")]
        removed = [line[1:] for line in changes if line.startswith("-")]
        ours = [line for line in text.splitlines() if "topk" in line.lower()]
        assert set(ours) <= set(added)
        assert "\n".join(added[1:]) in text
        assert added[0] in text.splitlines()
        # without it: the same app, in which nothing of ours is left
        plain = text.replace(added[0] + "\n", "").replace("\n".join(added[1:]), *removed)
        assert "topk" not in plain.lower()
        compile(plain, app, "exec")


def test_digits_in_numpy_are_learnt(tmp_path):
    output = run("digits", tmp_path, rounds=4)
    found = accuracies(output)
    assert len(found) == 5, output
    assert found[0] < 0.3
    assert found[-1] > 0.8
    assert output.count(f": {NODES} of {NODES} users, ") == 4


def test_digits_with_pytorch_are_learnt(tmp_path):
    pytest.importorskip("torch")
    output = run("pytorch", tmp_path, rounds=3)
    found = accuracies(output)
    assert len(found) == 4, output
    assert found[0] < 0.3
    assert found[-1] > 0.8
    assert output.count(f": {NODES} of {NODES} users, ") == 3
