"""The whole way with real PyTorch: gradients saved by torch go in, and torch loads the aggregate."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent.parent


def test_torch_gradients_go_in_and_the_aggregate_steps_an_optimiser_and_loads_as_weights(tmp_path, capsys):
    import topk_secagg as ts

    files = sorted((ROOT / "fixtures" / "gradients").glob("user-*.pt"))[:4]
    space = ts.init(tmp_path / "round", users=4, survivors=3, colluders=1, top_k=60, like=files[0],
                    clip=4.0, construction="moments")  # fmt: skip
    ts.run(space, files, output=tmp_path / "mean.pt", mean=True)
    aggregate = torch.load(tmp_path / "mean.pt", weights_only=True)
    one = torch.load(files[0], weights_only=True)
    assert {n: (t.shape, t.dtype) for n, t in aggregate.items()} == {n: (t.shape, t.dtype) for n, t in one.items()}
    assert sum(int(t.count_nonzero()) for t in aggregate.values()) >= 60

    sys.argv = ["apply_sum.py", str(tmp_path / "mean.pt")]
    runpy.run_path(str(ROOT / "experiments" / "apply_sum.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "All keys matched" in printed
    moved = int(printed.split("moved ")[1].split()[0])
    assert moved == sum(int(t.count_nonzero()) for t in aggregate.values())


def test_the_examples_of_the_document_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "gradients.md").read_text(), re.DOTALL)
    assert len(blocks) >= 3
    found = {}
    exec(compile("\n".join(blocks), "docs/gradients.md", "exec"), found)
    assert [name for name in found["mean"] if name.startswith("0.")] == []
    assert {name for name in found["missing"] if not name.startswith("0.")} == {
        "1.running_mean", "1.running_var", "1.num_batches_tracked"
    }  # fmt: skip


def test_safetensors_written_here_are_what_the_library_reads(tmp_path):
    from safetensors.torch import load_file, save_file

    from topk_secagg.gradients.files import read_gradient, write_gradient

    values = {"a": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3) / 3, "b": torch.tensor(0.1, dtype=torch.float64)}
    save_file(values, tmp_path / "in.safetensors")
    found = read_gradient(tmp_path / "in.safetensors")
    with (tmp_path / "out.safetensors").open("wb") as stream:
        write_gradient(stream, ".safetensors", found)
    again = load_file(tmp_path / "out.safetensors")
    assert all(torch.equal(again[name], value) and again[name].dtype == value.dtype for name, value in values.items())
    assert np.array_equal({t.name: t for t in found}["a"].array, values["a"].float().numpy())
