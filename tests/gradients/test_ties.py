"""Tied weights: one tensor under two names is counted once, and comes back under both."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from played import assert_one_error, call, must, words
from safetensors.numpy import save_file

import topk_secagg as ts
from topk_secagg.errors import BadData
from topk_secagg.gradients.files import read_gradient, write_gradient
from topk_secagg.gradients.formats import torch_file
from topk_secagg.gradients.layout import Layout
from topk_secagg.gradients.tensors import Gradient, Tensor

ROUND = words("--survivors 3 --colluders 1 --density 1.0 --clip 8")
NOTE = "tied, so counted once: head.weight is embedding.weight"


def tied_gradient(scale: float = 1.0, *, sequence: bool = False) -> Gradient:
    """An embedding that is also the output layer, and a bias."""
    names = ("0", "1", "2") if sequence else ("embedding.weight", "bias", "head.weight")
    weight = np.arange(1, 7, dtype=np.float32).reshape(2, 3) * np.float32(scale)
    tensors = [Tensor(names[0], "float32", weight), Tensor(names[1], "float32", weight[0] / 8)]
    return Gradient(tensors, sequence=sequence, ties={names[2]: names[0]})


def written(path: Path, gradient: Gradient) -> Path:
    with path.open("wb") as stream:
        write_gradient(stream, path.suffix, gradient)
    return path


def files(folder: Path, suffix: str) -> list[Path]:
    folder.mkdir()
    return [written(folder / f"user-{n}{suffix}", tied_gradient(n / 4)) for n in range(1, 5)]


@pytest.mark.parametrize("sequence", [False, True])
def test_a_tied_tensor_of_a_torch_file_is_listed_once_and_a_note_says_so(tmp_path, sequence):
    path = written(tmp_path / "g.pt", tied_gradient(sequence=sequence))
    found = read_gradient(path)
    names = ("0", "1", "2") if sequence else ("embedding.weight", "bias", "head.weight")
    assert [t.name for t in found] == list(names[:2])
    assert found.ties == {names[2]: names[0]}
    assert found.notes == (f"tied, so counted once: {names[2]} is {names[0]}",)
    assert Layout.like(found).length == 9  # and not 15


@pytest.mark.parametrize("suffix", [".pt", ".npz", ".safetensors"])
def test_the_sum_comes_back_under_both_names(tmp_path, suffix):
    """In safetensors once, with a line in the metadata that says so."""
    folder = tmp_path / "in"
    files(folder, ".pt")
    output = tmp_path / f"sum{suffix}"
    result = must("run", tmp_path / "round", "--gradients", folder, *ROUND, "--output", output)
    assert NOTE in result.err
    assert f"users 1, 2, 3, 4: {NOTE}" in result.err
    session = json.loads((tmp_path / "round/session.json").read_text())
    assert session["parameters"]["length"] == 9
    assert session["layout"][0]["also"] == ["head.weight"]
    assert "also" not in session["layout"][1]
    total = read_gradient(output)
    values = {t.name: t.array for t in total.under_every_name()}
    assert set(values) == {"embedding.weight", "bias", "head.weight"}
    expected = sum(tied_gradient(n / 4)[0].array for n in range(1, 5))
    for name in ("embedding.weight", "head.weight"):
        assert np.allclose(values[name], expected, atol=1e-6)
    assert total.ties == ({} if suffix == ".npz" else {"head.weight": "embedding.weight"})


def test_a_round_over_safetensors_with_tied_weights_gives_both_names_back(tmp_path):
    """Such files hold them once; safetensors.torch.save_model names the other in the metadata."""
    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(1, 5):
        weight, bias = (t.array for t in tied_gradient(n / 4))
        save_file(
            {"embedding.weight": np.ascontiguousarray(weight), "bias": bias},
            folder / f"user-{n}.safetensors",
            metadata={"format": "pt", "head.weight": "embedding.weight", "author": "nobody"},
        )
    output = tmp_path / "sum.pt"
    result = must("run", tmp_path / "round", "--gradients", folder, *ROUND, "--output", output)
    assert NOTE in result.err
    assert read_gradient(output).ties == {"head.weight": "embedding.weight"}


@pytest.mark.parametrize("kept", ["embedding.weight", "head.weight"])
def test_a_user_may_save_a_tied_tensor_once_under_either_name(kept):
    layout = Layout.like(tied_gradient())
    weight, bias = tied_gradient(2)
    once = Gradient([bias, weight._replace(name=kept)])
    assert layout.flatten(once).tolist() == layout.flatten(tied_gradient(2)).tolist()


def test_a_user_may_save_two_equal_copies_but_not_two_that_differ(tmp_path):
    layout = Layout.like(tied_gradient())
    weight, bias = tied_gradient()
    copies = Gradient([weight, bias, weight._replace(name="head.weight", array=weight.array + 0)])
    assert layout.flatten(copies).tolist() == layout.flatten(tied_gradient()).tolist()
    other = weight._replace(name="head.weight", array=weight.array * 2)
    with pytest.raises(BadData, match=r"'embedding\.weight' and 'head\.weight' differ"):
        layout.flatten(Gradient([weight, bias, other]))
    like = written(tmp_path / "tied.pt", tied_gradient())
    must("init", tmp_path / "round", "--users", 4, *ROUND, "--like", like)
    must("offline", tmp_path / "round", "--user", "all")
    apart = written(tmp_path / "apart.npz", Gradient([weight, bias, other]))
    result = call("mask", tmp_path / "round", "--user", 1, "--gradient", apart)
    assert result.code == 65
    assert_one_error(result)
    assert "one tied tensor" in result.err


def test_in_a_round_without_the_second_name_a_tied_file_still_fits():
    weight, bias = tied_gradient()
    layout = Layout.like(Gradient([weight, bias]))
    assert layout.flatten(tied_gradient()).tolist() == [*range(1, 7), 0.125, 0.25, 0.375]
    untied = Gradient([weight, bias, weight._replace(name="head.weight")])
    with pytest.raises(BadData, match=r"'head\.weight' is not in the session's layout"):
        layout.flatten(untied)


def test_only_and_exclude_choose_among_the_names_of_a_tied_tensor():
    kept = Layout.like(tied_gradient(), only=["head.*"])
    assert [slot.names for slot in kept.slots] == [("head.weight",)]
    assert kept.left_out == ("embedding.weight", "bias")
    assert kept.unused(tied_gradient()) == ["bias"]
    assert kept.flatten(tied_gradient()).tolist() == [1, 2, 3, 4, 5, 6]
    without = Layout.like(tied_gradient(), exclude=["head.*"])
    assert [slot.names for slot in without.slots] == [("embedding.weight",), ("bias",)]


def test_a_prefix_is_taken_off_both_names(tmp_path):
    prefixed = Gradient(
        [t._replace(name=f"module.{t.name}") for t in tied_gradient()],
        ties={"module.head.weight": "module.embedding.weight"},
    )
    path = written(tmp_path / "g.pt", prefixed)
    assert read_gradient(path, strip_prefix="module.").ties == tied_gradient().ties


@pytest.mark.parametrize("sequence", [False, True])
def test_the_layout_of_tied_tensors_comes_back_from_session_json(sequence):
    layout = Layout.like(tied_gradient(sequence=sequence))
    kept = json.loads(json.dumps(layout.as_json()))
    assert Layout.from_json(*kept.values()) == layout
    for wrong in ([], "head.weight", None, [kept["layout"][0]["name"]]):
        damaged = [{**kept["layout"][0], "also": wrong}, kept["layout"][1]]
        with pytest.raises(ValueError, match="layout"):
            Layout.from_json(damaged, kept["left_out"])


def test_views_that_overlap_in_another_way_are_tensors_of_their_own(tmp_path):
    found = torch_file.read(Path(__file__).parents[2] / "fixtures" / "torch-files" / "views.pt")
    views = {t.name: t.array for t in found}
    assert np.shares_memory(views["base"], views["transposed"])
    assert found.ties == {}


@given(st.integers(1, 5), st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_any_ties_are_read_as_they_were_written(tmp_path_factory, count, chosen):
    tensors = [Tensor(f"t{i}", "float32", np.full(2, i, np.float32)) for i in range(count)]
    ties = {f"u{i}": f"t{first % count}" for i, first in enumerate(chosen)}
    path = tmp_path_factory.mktemp("ties") / "g.pt"
    found = read_gradient(written(path, Gradient(tensors, ties=ties)))
    assert [t.name for t in found] == [t.name for t in tensors]
    assert found.ties == ties


def test_many_names_of_one_large_tensor_take_no_memory(tmp_path):
    """Without ties, each name would be charged with the whole tensor, and the file refused."""
    weight = Tensor("t", "float32", np.zeros(1 << 20, np.float32))
    ties = {f"u{i}": "t" for i in range(100)}
    path = written(tmp_path / "g.pt", Gradient([weight], ties=ties))
    assert len(read_gradient(path).ties) == 100


def test_in_memory_the_same_array_under_two_names_is_tied_too():
    weight = np.linspace(-1, 1, 6).reshape(2, 3)
    gradients = [{"a": weight * n, "b": np.ones(2)} for n in (0.25, 0.5, 0.75, 1)]
    for one in gradients:
        one["c"] = one["a"]
    result = ts.aggregate(gradients, survivors=3, colluders=1, density=1.0)
    assert result.parameters.length == 8
    assert result.total["c"] is result.total["a"]
    assert np.allclose(result.total["c"], 2.5 * weight, atol=1e-6)
    apart = [{**one, "c": one["a"].copy()} for one in gradients]
    assert ts.aggregate(apart, survivors=3, colluders=1, density=1.0).parameters.length == 14


def test_torch_ties_them_again(torch, tmp_path):
    model = torch.nn.ModuleDict(
        {"embedding": torch.nn.Embedding(4, 3), "head": torch.nn.Linear(3, 4, bias=False)}
    )
    model["head"].weight = model["embedding"].weight
    for n in range(1, 5):
        torch.save(model.state_dict(), tmp_path / f"user-{n}.pt")
    inputs = [tmp_path / f"user-{n}.pt" for n in range(1, 5)]
    options = {"survivors": 3, "colluders": 1, "density": 1.0, "clip": 9.0}
    report = ts.run(tmp_path / "round", inputs, **options, output=tmp_path / "sum.pt")
    assert report.round.session.parameters.length == 12
    assert sorted(report.total) == ["embedding.weight", "head.weight"]
    total = torch.load(tmp_path / "sum.pt", weights_only=True)
    assert total["head.weight"].data_ptr() == total["embedding.weight"].data_ptr()
    model.load_state_dict(total)
    ts.run(tmp_path / "round", inputs, output=tmp_path / "sum.safetensors")
    from safetensors.torch import load_model, save_model

    load_model(model, tmp_path / "sum.safetensors")
    save_model(model, tmp_path / "again.safetensors")
    assert len(read_gradient(tmp_path / "again.safetensors").ties) == 1
