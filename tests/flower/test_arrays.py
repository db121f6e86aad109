"""Which arrays are trained and which leave in the clear, and how they are put together."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

import topk_secagg as ts
from topk_secagg.flower import arrays as a

MODEL = {
    "conv.weight": np.ones((2, 3), np.float32),
    "scale": np.float16(2),
    "norm.running_mean": np.zeros(3, np.float32),
    "norm.running_var": np.ones(3),
    "norm.num_batches_tracked": np.int64(5),
    "table": np.arange(4, dtype=np.uint8),
    "flags": np.array([True, False]),
}
MODEL = {name: np.asarray(array) for name, array in MODEL.items()}
TRAINED = ["conv.weight", "scale"]


def test_buffers_of_batch_norm_and_integers_are_in_the_clear_and_nothing_else():
    assert [name for name in MODEL if name not in a.buffers(MODEL)] == TRAINED
    assert [slot.name for slot in a.layout_of(MODEL).slots] == TRAINED
    assert {slot.dtype for slot in a.layout_of(MODEL).slots} == {"float64"}


def test_a_difference_has_what_is_trained_in_float64():
    after = {name: (array + 1).astype(array.dtype) for name, array in MODEL.items()}
    update = a.difference(MODEL, after)
    assert list(update) == TRAINED
    assert all(part.dtype == np.float64 and (part == 1).all() for part in update.values())
    moved = a.moved(MODEL, update)
    for name, array in moved.items():
        assert array.dtype == MODEL[name].dtype
        np.testing.assert_array_equal(array, after[name] if name in TRAINED else MODEL[name])


def test_the_mean_is_by_weight_and_integers_are_rounded():
    parts = [
        {"x": np.array([1.0], np.float32), "n": np.array([1, 10]), "b": np.array([True])},
        {"x": np.array([4.0], np.float32), "n": np.array([2, 20]), "b": np.array([False])},
    ]
    mean = a.mean(parts, [1.0, 2.0])
    assert mean["x"] == pytest.approx([3.0])
    assert mean["n"].tolist() == [2, 17]
    assert mean["b"].tolist() == [False]
    assert [mean[name].dtype for name in mean] == [parts[0][name].dtype for name in mean]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"extra": np.zeros(1)}, "have other names"),
        ({"scale": np.zeros(2, np.float16)}, r"had shape \(\), and comes back as \(2,\)"),
        ({"scale": np.asarray(2)}, "had type float16, and comes back as int64"),
        ({"table": np.zeros(4)}, "had type uint8, and comes back as float64"),
    ],
)
def test_another_model_is_refused(change, words):
    with pytest.raises(ts.BadData, match=words):
        a.check_same_model(MODEL, MODEL | change)


def test_another_order_is_another_model():
    with pytest.raises(ts.BadData, match="have other names"):
        a.check_same_model(MODEL, dict(reversed(MODEL.items())))


def test_arrays_that_cannot_be_read_are_bad_data():
    record = ArrayRecord({"x": Array("float32", (2,), "numpy.ndarray", b"no array")})
    with pytest.raises(ts.BadData, match="arrays that cannot be read"):
        a.arrays_of(record)


def test_records_and_arrays_are_inverse():
    back = a.arrays_of(a.record_of(MODEL))
    assert list(back) == list(MODEL)
    for name in MODEL:
        np.testing.assert_array_equal(back[name], MODEL[name])
