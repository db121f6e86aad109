"""Which arrays are trained and which leave in the clear, and how they are put together."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

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
MASKED = ["conv.weight", "scale", "norm.running_mean", "norm.running_var"]


def test_integers_are_in_the_clear_and_nothing_else():
    assert [name for name in MODEL if name not in a.clear_of(MODEL)] == MASKED
    assert [slot.name for slot in a.layout_of(MODEL).slots] == MASKED
    assert {slot.dtype for slot in a.layout_of(MODEL).slots} == {"float64"}


def test_statistics_of_batch_norm_are_known_by_their_names():
    assert a.statistics(MODEL) == ["*running_mean", "*running_var"]
    assert a.statistics({"conv.weight": MODEL["conv.weight"]}) == []


def test_a_difference_has_what_is_trained_in_float64():
    after = {name: (array + 1).astype(array.dtype) for name, array in MODEL.items()}
    update = a.difference(MODEL, after)
    assert list(update) == MASKED
    assert all(part.dtype == np.float64 and (part == 1).all() for part in update.values())
    moved = a.moved(MODEL, update)
    for name, array in moved.items():
        assert array.dtype == MODEL[name].dtype
        np.testing.assert_array_equal(array, after[name] if name in MASKED else MODEL[name])


@pytest.mark.rule(17)
def test_one_part_alone_does_not_move_the_middle_far():
    parts = [
        {"n": np.array([1, 10]), "b": np.array([True])},
        {"n": np.array([2, 20]), "b": np.array([False])},
        {"n": np.array([2**62, -(2**62)]), "b": np.array([True])},
    ]
    middle = a.middle(parts)
    assert middle["n"].tolist() == [2, 10]
    assert middle["b"].tolist() == [True]
    assert a.middle(parts[:2])["n"].tolist() == [1, 10]


@pytest.mark.rule(14)
def test_what_nodes_train_from_is_every_byte_of_it():
    def text(value=1.0, shape=(2,), **config):
        arrays = {"x": np.full(shape, value, np.float32)}
        return a.context_of(RecordDict({"a": a.record_of(arrays), "c": ConfigRecord(config)}), "on")

    same = text(rate=0.5)
    assert same == text(rate=0.5)
    others = [
        text(2.0, rate=0.5),
        text(shape=(1, 2), rate=0.5),
        text(rate=0.25),
        text(),
        text(rate="0.5"),
    ]
    assert len({same, *others}) == 6


@pytest.mark.rule(17)
def test_arrays_that_say_to_be_large_are_not_parsed():
    huge = Array("int64", (3,), "numpy.ndarray", bytes(10_000))
    with pytest.raises(ts.BadData, match="too large"):
        a.check_sizes(ArrayRecord({"n": huge}), {"n": np.zeros(3, np.int64)})
    with pytest.raises(ts.BadData, match="is not one of the model's"):
        a.check_sizes(ArrayRecord({"m": huge}), {"n": np.zeros(3, np.int64)})


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
