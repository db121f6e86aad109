"""Gradient files in, aggregate files out: names, shapes, types, and what is left out."""

import numpy as np
import pytest
from rounds import USERS, edit, finish, mask_all, start

from topk_secagg.errors import BadData
from topk_secagg.gradients.files import read_gradient, write_gradient
from topk_secagg.gradients.layout import Layout
from topk_secagg.gradients.tensors import Tensor
from topk_secagg.steps.eliminate import eliminate
from topk_secagg.steps.freeze import freeze

SUFFIXES = (".pt", ".safetensors", ".npz")


def tensors(seed):
    rng = np.random.default_rng(seed)
    return [
        Tensor("conv.weight", "float32", rng.uniform(-1, 1, (2, 3)).astype(np.float32)),
        Tensor("half", "float16", rng.uniform(-1, 1, (3,)).astype(np.float16)),
        Tensor("scalar", "float64", np.array(rng.uniform(-1, 1))),
        Tensor("nothing", "float32", np.zeros((0, 4), np.float32)),
    ]


def save(path, content):
    with path.open("wb") as stream:
        write_gradient(stream, path.suffix, content)
    return path


@pytest.mark.parametrize("construction", ["permutation", "moments"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_aggregate_has_the_names_shapes_and_types_of_the_gradient(tmp_path, suffix, construction):
    files = [save(tmp_path / f"{n}{suffix}", tensors(n)) for n in range(USERS)]
    picks = 2 if construction == "moments" else None
    layout = Layout.like(read_gradient(files[0]))
    space = start(tmp_path / "round", layout, top_k=10, construction=construction, picks=picks)
    mask_all(space, files)
    for back in (*SUFFIXES, ".npy"):
        total = finish(space, tmp_path / f"sum{back}")
        result = read_gradient(tmp_path / f"sum{back}")
        if back == ".npy":  # one flat vector
            assert result[0].array.shape == (10,)
            assert np.array_equal(result[0].array.astype(np.float16), total.astype(np.float16))
            continue
        assert [(t.name, t.array.shape, t.dtype) for t in result] == [
            (t.name, t.array.shape, t.dtype) for t in tensors(0)
        ]
        step = 1 / space.session.parameters.scale
        for at, t in enumerate(result):
            plain = sum(tensors(n)[at].array.astype(np.float64) for n in range(USERS))
            precision = np.abs(plain) * np.finfo(t.array.dtype).eps
            assert np.all(np.abs(t.array - plain) <= USERS * step + precision)


def test_bfloat16_goes_in_and_comes_out(tmp_path):
    values = np.array([0.5, -0.25, 0.75, 0.125], np.float32)
    files = [save(tmp_path / f"{n}.pt", [Tensor("w", "bfloat16", values)]) for n in range(USERS)]
    space = start(tmp_path / "round", Layout.like(read_gradient(files[0])), top_k=4)
    mask_all(space, files)
    for back in (".pt", ".safetensors"):
        finish(space, tmp_path / f"sum{back}")
        (result,) = read_gradient(tmp_path / f"sum{back}")
        assert result.dtype == "bfloat16"
        assert np.allclose(result.array, 4 * values, rtol=2**-8)


@pytest.mark.parametrize("construction", ["permutation", "moments"])
def test_random_selection_goes_through_the_same_protocol(tmp_path, construction):
    L, K = 60, 12
    gradients = np.random.default_rng(5).uniform(0.5, 1, (USERS, L))
    files = [tmp_path / f"{n}.npy" for n in range(USERS)]
    for path, gradient in zip(files, gradients, strict=True):
        np.save(path, gradient)
    space = start(tmp_path / "round", Layout.flat(L), top_k=K, construction=construction)
    mask_all(space, files, select="random")
    total = finish(space)
    assert 0 < np.count_nonzero(total) <= USERS * K
    # every sum is a sum of some users' values
    sums = np.array([[sum(g[k] for i, g in enumerate(gradients) if m >> i & 1) for m in range(16)] for k in range(L)])
    assert np.all(np.abs(sums - total[:, None]).min(axis=1) < 1e-6)


def test_a_weight_that_the_freezer_changed_is_not_answered(tmp_path):
    np.save(tmp_path / "g.npy", np.full(6, 0.5))
    space = start(tmp_path / "round", Layout.flat(6), max_weight=9.0)
    mask_all(space, [tmp_path / "g.npy"] * USERS)
    freeze(space)
    edit(space.survivors_path, lambda content: content["survivors"][0].update(weight=9.0))
    with pytest.raises(BadData, match="not the file that was frozen"):
        eliminate(space, 2)
