"""The whole way with real PyTorch: gradients saved by torch go in, and torch loads the
aggregate."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs_torch

ROOT = Path(__file__).parent.parent.parent


def test_torch_gradients_go_in_and_the_aggregate_steps_an_optimiser_and_loads_as_weights(tmp_path):
    import topk_secagg as ts

    files = sorted((ROOT / "fixtures" / "gradients").glob("user-*.pt"))[:4]
    ts.init(tmp_path / "round", users=4, survivors=3, colluders=1, top_k=60, like=files[0],
            clip=4.0, construction="sketch")  # fmt: skip
    ts.run(tmp_path / "round", files, output=tmp_path / "mean.pt", mean=True)
    aggregate = torch.load(tmp_path / "mean.pt", weights_only=True)
    one = torch.load(files[0], weights_only=True)
    assert {n: (t.shape, t.dtype) for n, t in aggregate.items()} == {
        n: (t.shape, t.dtype) for n, t in one.items()
    }
    assert sum(int(t.count_nonzero()) for t in aggregate.values()) >= 60

    net = runpy.run_path(str(ROOT / "fixtures" / "gradients" / "make.py"))["Net"]
    model = net()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        p.grad = aggregate[name]
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name] - 0.5 * aggregate[name])
    assert str(net().load_state_dict(aggregate)) == "<All keys matched successfully>"


def test_the_examples_of_the_document_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "gradients.md").read_text(), re.DOTALL
    )
    assert len(blocks) >= 3
    exec(compile("\n".join(blocks), "docs/gradients.md", "exec"), {})


def test_a_list_goes_back_to_the_parameters_it_came_from(tmp_path):
    import topk_secagg as ts

    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    model[0].requires_grad_(requires_grad=False)
    model(torch.ones(1, 2)).sum().backward()
    file = tmp_path / "gradient.pt"
    torch.save([p.grad for p in model.parameters()], file)
    options = {"survivors": 3, "colluders": 1, "density": 1.0, "clip": 9.0}
    ts.run(tmp_path / "round", [file] * 4, output=tmp_path / "sum.pt", **options)
    total = torch.load(tmp_path / "sum.pt", weights_only=True)
    for p, g in zip(model.parameters(), total, strict=True):
        assert (g is None) == (p.grad is None)
        assert g is None or torch.allclose(g, 4 * p.grad, atol=1e-6)


def test_residuals_of_state_dicts_go_into_the_next_round_as_they_are():
    import topk_secagg as ts

    torch.manual_seed(0)
    gradients = [
        {
            "w": torch.randn(4, 5),
            "b": torch.randn(3).to(torch.bfloat16),
            "bn.running_mean": torch.ones(3),
        }
        for _ in range(4)
    ]
    kept = {}
    for _ in range(2):
        found = ts.aggregate(gradients, survivors=3, colluders=1, top_k=3, residuals=kept)
        kept = found.residuals
    types = {name: t.dtype for name, t in found.total.items()}
    assert types == {"w": torch.float32, "b": torch.bfloat16}
    assert {t.dtype for t in kept[1].values()} == {torch.float64}


def test_safetensors_written_here_are_what_the_library_reads(tmp_path):
    from safetensors.torch import load_file, save_file

    from topk_secagg.gradients.files import read_gradient, write_gradient

    values = {
        "a": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3) / 3,
        "b": torch.tensor(0.1, dtype=torch.float64),
    }
    save_file(values, tmp_path / "in.safetensors")
    found = read_gradient(tmp_path / "in.safetensors")
    with (tmp_path / "out.safetensors").open("wb") as stream:
        write_gradient(stream, ".safetensors", found)
    again = load_file(tmp_path / "out.safetensors")
    assert all(
        torch.equal(again[name], value) and again[name].dtype == value.dtype
        for name, value in values.items()
    )
    assert np.array_equal({t.name: t for t in found}["a"].array, values["a"].float().numpy())


def test_modules_and_state_dicts_are_aggregated_as_they_are():
    import topk_secagg as ts

    def model():
        tied = torch.nn.Linear(3, 3)
        return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), tied, tied)

    modules = [model() for _ in range(4)]
    options = {"survivors": 3, "colluders": 1, "density": 1.0}
    with pytest.raises(ts.BadData, match="no gradients"):
        ts.aggregate(modules, **options)
    for module in modules:
        module(torch.randn(5, 2)).square().mean().backward()
    total = ts.aggregate(modules, **options).total
    for name, parameter in modules[0].named_parameters():
        plain = sum(dict(module.named_parameters())[name].grad for module in modules)
        assert total[name].dtype == parameter.dtype
        assert torch.allclose(total[name], plain, atol=1e-6)
    states = [module.state_dict() for module in modules]
    total = ts.aggregate(states, **options).total
    assert "1.running_mean" not in total
    assert torch.allclose(total["3.weight"], sum(s["2.weight"] for s in states), atol=1e-6)
    missing, unexpected = model().load_state_dict(total, strict=False)
    assert not unexpected
    assert all("running" in name or "num_batches" in name for name in missing)
