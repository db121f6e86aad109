"""Gradient files in, aggregate files out: names, shapes, types, and what is left out."""

import numpy as np
import pytest
from played import datasets, document, edit, every, must, write_tensors

from topk_secagg.gradients.files import read_gradient
from topk_secagg.gradients.tensors import Tensor
from topk_secagg.storage.workspace import Workspace

USERS = 4
SUFFIXES = (".pt", ".safetensors", ".npz")
OPTIONS = ("--survivors", 3, "--colluders", 1)


def tensors(seed):
    rng = np.random.default_rng(seed)
    return [
        Tensor("conv.weight", "float32", rng.uniform(-1, 1, (2, 3)).astype(np.float32)),
        Tensor("half", "float16", rng.uniform(-1, 1, (3,)).astype(np.float16)),
        Tensor("scalar", "float64", np.array(rng.uniform(-1, 1))),
        Tensor("nothing", "float32", np.zeros((0, 4), np.float32)),
    ]


def total(folder, length):
    found = datasets(folder / "aggregate.h5")
    if "index" not in found:
        return found["real"]
    vector = np.zeros(length)
    vector[found["index"]] = found["real"]
    return vector


@every
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_aggregate_has_the_names_shapes_and_types_of_the_gradient(
    tmp_path, suffix, construction
):
    files = [write_tensors(tmp_path / f"{n}{suffix}", tensors(n)) for n in range(USERS)]
    how = ("--construction", construction)
    must("run", tmp_path / "round", "--gradients", *files, *OPTIONS, "--top-k", 10, *how)
    step = Workspace(tmp_path / "round").session.fixed_point.step
    for back in (*SUFFIXES, ".npy"):
        must("decode", tmp_path / "round", "--output", tmp_path / f"sum{back}")
        result = read_gradient(tmp_path / f"sum{back}")
        if back == ".npy":  # one flat vector
            flat = total(tmp_path / "round", 10)
            assert result[0].array.shape == (10,)
            assert np.array_equal(result[0].array.astype(np.float16), flat.astype(np.float16))
            continue
        assert [(t.name, t.array.shape, t.dtype) for t in result] == [
            (t.name, t.array.shape, t.dtype) for t in tensors(0)
        ]
        for at, t in enumerate(result):
            plain = sum(tensors(n)[at].array.astype(np.float64) for n in range(USERS))
            precision = np.abs(plain) * np.finfo(t.array.dtype).eps
            assert np.all(np.abs(t.array - plain) <= USERS * step + precision)


def test_bfloat16_goes_in_and_comes_out(tmp_path):
    values = np.array([0.5, -0.25, 0.75, 0.125], np.float32)
    files = [
        write_tensors(tmp_path / f"{n}.pt", [Tensor("w", "bfloat16", values)]) for n in range(USERS)
    ]
    must("run", tmp_path / "round", "--gradients", *files, *OPTIONS, "--top-k", 4)
    for back in (".pt", ".safetensors"):
        must("decode", tmp_path / "round", "--output", tmp_path / f"sum{back}")
        (result,) = read_gradient(tmp_path / f"sum{back}")
        assert result.dtype == "bfloat16"
        assert np.allclose(result.array, 4 * values, rtol=2**-8)


@every
def test_random_selection_goes_through_the_same_protocol(tmp_path, construction):
    L, K = 60, 12
    gradients = np.random.default_rng(5).uniform(0.5, 1, (USERS, L))
    files = [tmp_path / f"{n}.npy" for n in range(USERS)]
    for path, gradient in zip(files, gradients, strict=True):
        np.save(path, gradient)
    how = ("--top-k", K, "--construction", construction, "--select", "random")
    must("run", tmp_path / "round", "--gradients", *files, *OPTIONS, *how)
    found = total(tmp_path / "round", L)
    p = document(tmp_path / "round/session.json")["parameters"]
    each = p["buckets"] * p["picks"] or K  # K, rounded up to whole buckets
    assert K <= each < K + max(1, p["picks"])
    assert 0 < np.count_nonzero(found) <= USERS * each
    # every sum is a sum of some users' values
    sums = np.array(
        [
            [sum(g[k] for i, g in enumerate(gradients) if m >> i & 1) for m in range(16)]
            for k in range(L)
        ]
    )
    assert np.all(np.abs(sums - found[:, None]).min(axis=1) < 1e-6)


def test_a_weight_that_the_freezer_changed_is_not_answered(new_round, refuses):
    r = new_round()
    must(*r.init("--max-weight", 9))
    r.play(after="init", upto="frozen")
    edit(r.folder / "survivors.json", lambda content: content["survivors"][0].update(weight=9.0))
    assert "not the file that was frozen" in refuses(65, *r.eliminate(2)).err
