"""Gradient files in, aggregate files out: names, shapes, types, weights and what is left out."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rounds import USERS, finish, mask_all, start

from topk_secagg.errors import BadData, UsageError
from topk_secagg.gradients.files import read_gradient, write_gradient
from topk_secagg.gradients.layout import Layout
from topk_secagg.gradients.tensors import Tensor
from topk_secagg.steps.mask import mask

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


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("back", SUFFIXES)
def test_the_aggregate_has_the_names_shapes_and_types_of_the_gradient(tmp_path, suffix, back):
    files = [save(tmp_path / f"{n}{suffix}", tensors(n)) for n in range(USERS)]
    space = start(tmp_path / "round", Layout.like(read_gradient(files[0])), top_k=10)
    mask_all(space, files)
    finish(space, tmp_path / f"sum{back}")
    result = read_gradient(tmp_path / f"sum{back}")
    assert [(t.name, t.array.shape, t.dtype) for t in result] == [(t.name, t.array.shape, t.dtype) for t in tensors(0)]
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


def test_npy_output_is_one_flat_vector(tmp_path):
    files = [save(tmp_path / f"{n}.npz", tensors(n)) for n in range(USERS)]
    space = start(tmp_path / "round", Layout.like(read_gradient(files[0])), top_k=10)
    mask_all(space, files)
    total = finish(space, tmp_path / "sum.npy")
    assert np.array_equal(np.load(tmp_path / "sum.npy").astype(np.float16), total.astype(np.float16))
    assert np.load(tmp_path / "sum.npy").shape == (10,)


def test_batch_norm_buffers_are_left_out_of_a_state_dict_and_ignored_when_masking(tmp_path):
    weight = Tensor("bn.weight", "float32", np.array([0.5, -0.5, 0.25], np.float32))
    buffers = [
        Tensor("bn.running_mean", "float32", np.full(3, 9, np.float32)),
        Tensor("bn.running_var", "float32", np.full(3, 9, np.float32)),
        Tensor("bn.num_batches_tracked", "int64", np.array(7)),
    ]
    files = [save(tmp_path / f"{n}.pt", [weight, *buffers]) for n in range(USERS)]
    layout = Layout.like(read_gradient(files[0]))
    assert [s.name for s in layout.slots] == ["bn.weight"]
    assert layout.left_out == ("bn.running_mean", "bn.running_var", "bn.num_batches_tracked")
    space = start(tmp_path / "round", layout)
    assert json.loads(space.session_path.read_text())["left_out"] == list(layout.left_out)
    mask_all(space, files)
    assert np.allclose(finish(space), 4 * weight.array, atol=1e-6)


def test_only_and_exclude_choose_tensors_by_pattern():
    found = tensors(0)
    assert [s.name for s in Layout.like(found, only=["conv.*", "half"]).slots] == ["conv.weight", "half"]
    assert [s.name for s in Layout.like(found, exclude=["*l*"]).slots] == ["conv.weight", "nothing"]
    with pytest.raises(UsageError, match="nothing is left"):
        Layout.like(found, only=["missing"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t[1:], "'conv.weight' of the session's layout is missing"),
        (lambda t: [t[0]._replace(array=t[0].array.T), *t[1:]], r"'conv.weight' has shape \(3, 2\)"),
        (lambda t: [t[0], t[1]._replace(dtype="float32", array=t[1].array.astype("f4")), *t[2:]], "'half' has type"),
        (lambda t: [*t, Tensor("more", "float32", np.zeros(1, "f4"))], "'more' is not in the session's layout"),
    ],
)
def test_a_gradient_that_does_not_fit_names_the_first_tensor_that_differs(change, named):
    with pytest.raises(BadData, match=named):
        Layout.like(tensors(0)).flatten(change(tensors(1)))


def test_the_order_of_a_state_dict_does_not_matter(tmp_path):
    layout = Layout.like(tensors(0))
    assert np.array_equal(layout.flatten(tensors(1)), layout.flatten(tensors(1)[::-1]))


def test_weighted_mean_by_sample_counts(tmp_path):
    counts = [10, 30, 20, 40]
    rng = np.random.default_rng(3)
    gradients = rng.uniform(-1, 1, (USERS, 6))
    files = []
    for n, gradient in enumerate(gradients):
        files.append(tmp_path / f"{n}.npy")
        np.save(files[-1], gradient)
    space = start(tmp_path / "round", Layout.flat(6), top_k=6, clip=40.0)
    for user in space.users():
        mask(space, user, files[user - 1], weight=counts[user - 1])
    finish(space, tmp_path / "mean.npy", mean=True)
    wanted = np.average(gradients, axis=0, weights=counts)
    assert np.allclose(np.load(tmp_path / "mean.npy"), wanted, atol=USERS / space.session.parameters.scale)


def test_a_weight_that_is_no_positive_number_is_refused(tmp_path):
    np.save(tmp_path / "g.npy", np.zeros(6))
    space = start(tmp_path / "round", Layout.flat(6))
    for weight in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="weight"):
            mask(space, 1, tmp_path / "g.npy", weight=weight)


@pytest.mark.parametrize("construction", ["permutation", "rotation"])
def test_random_selection_goes_through_the_same_protocol(tmp_path, construction):
    L, K = 60, 12
    gradients = np.random.default_rng(5).uniform(0.5, 1, (USERS, L))
    files = []
    for n, gradient in enumerate(gradients):
        files.append(tmp_path / f"{n}.npy")
        np.save(files[-1], gradient)
    space = start(tmp_path / "round", Layout.flat(L), top_k=K, construction=construction)
    mask_all(space, files, select="random")
    total = finish(space)
    assert 0 < np.count_nonzero(total) <= USERS * K
    everything = gradients.sum(axis=0)
    assert np.all(total <= everything + 1e-6)
    # every sum is a sum of some users' values: nobody sends anything but their gradient there
    sums = np.array([[sum(g[k] for i, g in enumerate(gradients) if m >> i & 1) for m in range(16)] for k in range(L)])
    assert np.all(np.abs(sums - total[:, None]).min(axis=1) < 1e-6)


def test_random_selection_differs_between_users_and_covers_all_coordinates(tmp_path):
    from topk_secagg.algebra.randomness import CipherRandomness
    from topk_secagg.gradients.sparsify import select_random
    from topk_secagg.protocol.parameters import Parameters

    p = Parameters.choose(users=4, survivors=3, colluders=1, top_k=3, length=9)
    counts = np.zeros(9)
    for n in range(3000):
        index = select_random(p, CipherRandomness(n.to_bytes(32, "big")))
        assert len(set(index.tolist())) == 3
        counts[index] += 1
    assert np.all(np.abs(counts - 1000) < 5 * np.sqrt(1000 * 2 / 3))


def test_a_weight_that_whoever_froze_changed_is_not_answered(tmp_path):
    from topk_secagg.steps.eliminate import eliminate
    from topk_secagg.steps.freeze import freeze

    np.save(tmp_path / "g.npy", np.full(6, 0.5))
    space = start(tmp_path / "round", Layout.flat(6))
    mask_all(space, [tmp_path / "g.npy"] * USERS)
    freeze(space)
    text = space.survivors_path.read_text()
    space.survivors_path.write_text(text.replace('"weight": 1.0', '"weight": 9.0', 1))
    with pytest.raises(BadData, match="not the file that was frozen"):
        eliminate(space, 2)
