"""The examples of the documents that need PyTorch or Opacus run, and do what the documents say."""

import re
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs_torch

DOCS = Path(__file__).parents[2] / "docs"


def examples(document: str, section: str) -> dict[str, object]:
    """Run the Python examples of a section, one after the other; what they define."""
    text = (DOCS / document).read_text()
    _, _, rest = text.partition(f"\n## {section}\n")
    body = re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    blocks = re.findall(r"```python\n(.*?)```", body, re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    exec(compile("\n".join(blocks), f"docs/{document}", "exec"), names)
    return names


def test_the_training_loops_learn_in_memory_and_by_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = examples("training.md", "PyTorch")
    untrained = found["accuracy"](found["new_model"]())
    for model in (found["in_memory"], found["by_files"]):
        assert found["accuracy"](model) > max(0.85, untrained)
    last = found["ROUNDS"] - 1
    kept = (tmp_path / "work" / f"round-{last}" / "round" / "secrets").glob("*.residual.h5")
    absent = last % found["USERS"] + 1
    assert sorted(path.name for path in kept) == [
        f"user-{user:02}.residual.h5" for user in range(1, 11) if user != absent
    ]


def test_updates_with_differential_privacy_are_added_up():
    pytest.importorskip("opacus")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns of its generator, and of hooks
        found = examples("security.md", "Differential privacy")
    assert all(0 < epsilon < 10 for epsilon in found["epsilons"])
    total = found["mean"].total
    assert {name: t.shape for name, t in total.items()} == {"weight": (2, 20), "bias": (2,)}
    updates = found["updates"]
    assert all(
        torch.count_nonzero(update["weight"]) == 40 for update in updates
    )  # noise everywhere
    sent = sum(int(torch.count_nonzero(t)) for t in total.values())
    assert 0 < sent <= 42
