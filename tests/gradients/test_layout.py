"""Tensors to one flat vector and back; what does not fit is named."""

import json
import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from topk_secagg.errors import Advice, BadData, UsageError
from topk_secagg.gradients.layout import NOT_GRADIENTS, Layout, Slot
from topk_secagg.gradients.tensors import Gradient, Tensor


def tensor(name: str, values: object, dtype: str = "float32") -> Tensor:
    return Tensor(name, dtype, np.array(values, dtype="float32" if dtype == "bfloat16" else dtype))


def gradient(*tensors: Tensor) -> Gradient:
    return Gradient(list(tensors))


def model() -> Gradient:
    return gradient(
        tensor("conv.weight", [[1, 2, 3], [4, 5, 6]]),
        tensor("conv.bias", [7, 8]),
        tensor("scale", 9),
        tensor("empty", np.empty((0, 3))),
    )


def test_the_order_in_memory_does_not_matter():
    transposed = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    for others in ([], [tensor("b", [6.0])]):
        tensors = gradient(Tensor("a", "float32", transposed), *others)
        assert Layout.like(tensors).flatten(tensors).tolist() == list(range(6 + len(others)))


@given(
    st.lists(
        hnp.arrays(
            st.sampled_from(["float32", "float64", "float16"]),
            hnp.array_shapes(min_dims=0, max_side=3),
            elements=st.integers(-1000, 1000).map(lambda n: n / 8),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_tensors_come_back_from_the_flat_vector(arrays):
    tensors = Gradient([Tensor(f"t{i}", array.dtype.name, array) for i, array in enumerate(arrays)])
    layout = Layout.like(tensors)
    back = layout.unflatten(layout.flatten(tensors).astype(np.float64))
    for before, after in zip(tensors, back, strict=True):
        assert (after.name, after.dtype) == (before.name, before.dtype)
        assert after.array.dtype == before.array.dtype
        assert after.array.shape == before.array.shape
        assert np.array_equal(after.array, before.array)


@pytest.mark.parametrize(
    ("dtypes", "flat"),
    [
        (["float32", "float32"], np.float32),
        (["float16", "float32"], np.float32),
        (["float32", "float64"], np.float64),
        (["int8", "float32"], np.float64),
        (["bool", "float16"], np.float64),
        (["float16"], np.float32),
        (["float64"], np.float64),
        (["int64"], np.float64),
    ],
)
def test_the_flat_vector_holds_every_value_exactly(dtypes, flat):
    tensors = Gradient([tensor(f"t{i}", [0, 1], dtype) for i, dtype in enumerate(dtypes)])
    vector = Layout(tuple(Slot(t.name, (2,), t.dtype) for t in tensors)).flatten(tensors)
    assert vector.dtype == flat
    assert vector.tolist() == [0, 1] * len(dtypes)


def without(name: str) -> Gradient:
    return Gradient([t for t in model() if t.name != name])


def other(name: str, values: object, dtype: str = "float32") -> Gradient:
    """The model with another tensor under this name."""
    return gradient(*without(name), tensor(name, values, dtype))


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        (without("conv.bias"), "tensor 'conv.bias' of the session's layout is missing"),
        (
            gradient(*without("conv.bias"), tensor("conv.biases", [7, 8])),
            "tensor 'conv.bias' .* is missing",
        ),
        (gradient(*without("conv.weight")[:1]), "tensor 'conv.weight' .* is missing"),
        (gradient(), "tensor 'conv.weight' .* is missing"),
        (other("conv.bias", [7, 8, 9]), r"tensor 'conv.bias' has shape \(3,\), the session \(2,\)"),
        (
            other("conv.weight", [1, 2, 3, 4, 5, 6]),
            r"'conv.weight' has shape \(6,\), the session \(2, 3\)",
        ),
        (other("scale", [9]), r"'scale' has shape \(1,\), the session \(\)"),
        (
            other("conv.bias", [7, 8], "float64"),
            "'conv.bias' has type float64, the session float32",
        ),
        (other("conv.bias", [7, 8], "int32"), "'conv.bias' has type int32"),
        (gradient(*model(), tensor("more", [1])), "tensor 'more' is not in the session's layout"),
        (gradient(*model(), tensor("", [1])), r"tensor \(unnamed\) is not in the session's layout"),
        (
            gradient(*without("conv.bias")[:2], tensor("conv.bias", [7]), tensor("empty", [1])),
            "tensor 'conv.bias' has",
        ),
        (
            Gradient(without("conv.bias"), ["conv.bias"]),
            r"^tensor 'conv.bias' of the session's layout is None$",
        ),
    ],
)
def test_the_first_mismatching_tensor_is_named(tensors, match):
    with pytest.raises(BadData, match=match) as caught:
        Layout.like(model()).flatten(tensors)
    assert caught.value.exit_code == 65
    assert caught.value.hint


def test_what_is_none_is_left_out_of_a_session_and_optional_in_other_files():
    frozen = Gradient(without("conv.bias"), ["conv.bias"], ["a note"])
    layout = Layout.like(frozen)
    assert layout.left_out == ("conv.bias",)
    assert frozen.notes == ("a note",)
    for tensors in (
        without("conv.bias"),
        model(),
        Gradient(without("conv.bias"), ["conv.bias", "other"]),
    ):
        assert layout.flatten(tensors).tolist() == [1, 2, 3, 4, 5, 6, 9]


def test_unused_gradients_are_listed_without_buffers():
    buffer = tensor("bn.running_mean", [1.0])
    layout = Layout.like(gradient(*model(), buffer, tensor("steps", [1], "int64")), only=["conv.*"])
    assert layout.unused(gradient(*model(), buffer, tensor("steps", [1], "int64"))) == [
        "scale",
        "empty",
    ]
    assert Layout.like(model()).unused(model()) == []


def prefixed(prefix: str) -> Gradient:
    return Gradient([t._replace(name=prefix + t.name) for t in model()])


@pytest.mark.parametrize(
    ("file", "session", "advice", "prefix"),
    [
        ("module.", "", Advice.PREFIX, "module."),
        ("_orig_mod.", "", Advice.PREFIX, "_orig_mod."),
        ("module._orig_mod.", "", Advice.PREFIX, "module._orig_mod."),
        ("module._orig_mod.", "_orig_mod.", Advice.PREFIX, "module."),
        ("grad_", "", Advice.PREFIX, "grad_"),
        ("a b.", "", Advice.PREFIX, "a b."),
        ("", "module.", Advice.SESSION_PREFIX, "module."),
        ("module.", "_orig_mod.", Advice.SESSION_PREFIX, "_orig_mod."),
    ],
)
def test_names_that_differ_by_a_prefix_are_shown_with_what_maps_them(file, session, advice, prefix):
    layout = Layout.like(prefixed(session))
    beside = [tensor("other.conv.weight", [1]), tensor("conv.weight.more", [1])]
    with pytest.raises(BadData) as caught:
        layout.flatten(gradient(*beside, *prefixed(file)))
    assert (
        caught.value.message
        == f"it has '{file}conv.weight' where the session has '{session}conv.weight'"
    )
    assert caught.value.advice is advice
    assert caught.value.values == {"prefix": prefix}
    assert repr(prefix) in caught.value.hint


def test_names_that_only_look_like_a_prefix_are_missing():
    for tensors in (
        Gradient([t for t in prefixed("module.") if "bias" not in t.name]),
        Gradient([t._replace(array=t.array[None]) for t in prefixed("module.")]),
        Gradient([t._replace(name=f"{t.name}.more") for t in model()]),
        Gradient(prefixed("module.")[1:], ["module.conv.weight"]),
    ):
        with pytest.raises(BadData, match=r"tensor 'conv.weight' .* is missing") as caught:
            Layout.like(model()).flatten(tensors)
        assert caught.value.advice is None


def test_tensors_are_found_by_name_in_any_order():
    with pytest.raises(BadData, match=r"tensor 'a' .* is missing"):
        Layout.like(gradient(tensor("a", [1, 2]))).flatten(gradient(tensor("b", [1, 2])))
    assert Layout.like(model()).flatten(gradient(*model()[::-1])).tolist() == list(range(1, 10))


@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_integers_and_booleans_beside_gradients_are_ignored(dtype):
    beside = gradient(*model(), tensor("steps", [1], dtype))
    assert Layout.like(model()).flatten(beside).tolist() == list(range(1, 10))
    assert Layout.like(beside).flatten(beside).tolist() == list(range(1, 10))
    assert Layout.like(beside).flatten(model()).tolist() == list(range(1, 10))


@pytest.mark.parametrize(("session", "file"), [("", "weight"), ("weight", ""), ("", "")])
def test_one_vector_needs_no_name(session, file):
    layout = Layout.like(gradient(tensor(session, [1, 2])))
    assert layout.flatten(gradient(tensor(file, [3, 4]))).tolist() == [3, 4]
    with pytest.raises(BadData, match="has shape"):
        layout.flatten(gradient(tensor(file, [3, 4, 5])))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("values", "said"),
    [
        *(({"first": [0, 1], "second": [[v, 1], [2, v]]}, "tensor 'second' has 2 values") for v in
          (math.nan, math.inf, -math.inf)),
        ({"a": [1], "b": [math.nan, 1, math.inf], "c": [math.nan]}, "tensor 'b' has 2 values"),
        ({"a": [math.inf, -math.inf, 0.0]}, "tensor 'a' has 2 values"),
        ({"": [math.inf]}, r"tensor \(unnamed\) has 1 value"),
    ],
)  # fmt: skip
def test_values_that_are_not_finite_are_refused_with_the_first_tensor_and_their_count(
    values, said, dtype
):
    tensors = Gradient([tensor(name, value, dtype) for name, value in values.items()])
    with pytest.raises(BadData, match=f"{said} that (is|are) not finite"):
        Layout.like(tensors).flatten(tensors)


def test_a_signalling_nan_is_refused_without_a_warning_of_numpy():
    signalling = Tensor("a", "float16", np.array([0x7D01, 0], np.uint16).view(np.float16))
    tensors = gradient(signalling, tensor("b", [1.0]))
    with (
        warnings.catch_warnings(action="error"),
        pytest.raises(BadData, match="1 value that is not finite"),
    ):
        Layout.like(tensors).flatten(tensors)


def test_the_largest_finite_values_are_let_through():
    most = float(np.finfo(np.float64).max)
    for largest in ([most, most], [-most, -most], [most, -most]):
        tensors = gradient(tensor("a", largest, "float64"), tensor("b", [1.0]))
        assert Layout.like(tensors).flatten(tensors).tolist() == [*largest, 1.0]


def test_buffers_and_integers_are_left_out_of_a_session():
    names = ["bn.weight", "bn.running_mean", "bn.running_var", "bn.num_batches_tracked"]
    tensors = gradient(*(tensor(name, [1.0]) for name in names), tensor("steps", [1], "int64"))
    layout = Layout.like(tensors)
    assert tensors.notes == (f"left out, not gradients: {', '.join(layout.left_out)}",)
    assert [slot.name for slot in layout.slots] == ["bn.weight"]
    assert layout.left_out == (*names[1:], "steps")
    assert len(NOT_GRADIENTS) == 3


def test_only_and_exclude_choose_by_shell_patterns():
    assert [s.name for s in Layout.like(model(), only=["conv.*"]).slots] == [
        "conv.weight",
        "conv.bias",
    ]
    chosen = Layout.like(model(), only=["*.bias", "scale"], exclude=["s*"])
    assert [s.name for s in chosen.slots] == ["conv.bias"]
    assert chosen.left_out == ("conv.weight", "scale", "empty")
    assert chosen.flatten(model()).tolist() == [7, 8]


@pytest.mark.parametrize(
    "tensors", [[], [tensor("a", [])], [tensor("a", np.empty((3, 0)))], [tensor("a", [1], "int64")]]
)
def test_a_session_needs_at_least_one_gradient(tensors):
    with pytest.raises(UsageError, match="nothing is left"):
        Layout.like(Gradient(tensors))


def test_what_a_session_records_makes_the_same_layout():
    for layout in (
        Layout.like(model()),
        Layout.like(model(), only=["scale"]),
        Layout.flat(3),
        LIST,
    ):
        assert Layout.from_json(*json.loads(json.dumps(layout.as_json())).values()) == layout


LIST = Layout.like(
    Gradient([tensor("0", [1]), tensor("2", [2]), tensor("3", [3], "int8")], ["1"], sequence=True)
)
GOOD = {"name": "a", "shape": [1], "dtype": "float32"}
FIRST = {**GOOD, "name": 0}


def test_the_names_of_a_list_are_its_positions_in_a_session():
    recorded = LIST.as_json()
    assert [slot["name"] for slot in recorded["layout"]] == [0, 2]
    assert recorded["left_out"] == [3, 1]
    assert all(
        type(slot["name"]) is str
        for slot in Layout.like(gradient(tensor("0", [1]))).as_json()["layout"]
    )


def test_the_sum_of_a_list_knows_what_was_left_out():
    back = LIST.unflatten(np.array([4.0, 5.0]))
    assert [(t.name, t.array.tolist()) for t in back] == [("0", [4.0]), ("2", [5.0])]
    assert (back.sequence, set(back.absent)) == (True, {"1", "3"})
    assert not Layout.like(model()).unflatten(np.zeros(9)).sequence


@pytest.mark.parametrize(
    ("slots", "left_out"),
    [
        *((slots, []) for slots in ([], [None], [[]], [{"name": "a", "shape": [1]}], [GOOD, GOOD])),
        *(([{**GOOD, **change}], []) for change in (
            {"more": 1}, {"name": 1}, {"name": None}, {"name": []}, {"shape": 1}, {"shape": [1.0]},
            {"shape": [True]},
            {"shape": [-1]}, {"shape": ["1"]}, {"dtype": "int32"}, {"dtype": ["float32"]},
            {"dtype": None},
        )),
        *(([GOOD], left_out) for left_out in (["a"], ["b", "b"], [1], [[]])),
        *(([FIRST], left_out) for left_out in (["b"], ["1"], [True], [1.0], [2], [0])),
        ([FIRST, GOOD], []), ([FIRST, FIRST], []), ([{**FIRST, "name": -1}], [0]),
        ([{**FIRST, "name": 1}], [2]),
        ([{**FIRST, "name": False}], []),
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_layout_is_refused(slots, left_out):
    Layout.from_json([GOOD], ["b"])
    Layout.from_json([FIRST], [2, 1])
    with pytest.raises(ValueError, match="layout"):
        Layout.from_json(slots, left_out)
