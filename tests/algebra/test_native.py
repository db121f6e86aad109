"""A kernel gets only what it can take, and is used only if it computes what it should."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from topk_secagg.algebra import (  # noqa: F401
    calls,
    kernels,
    library,
    native,
    questions,
    recovery,
    selection_kernels,
    sketch_kernels,
)
from topk_secagg.algebra.entry import KERNELS
from topk_secagg.algebra.field import PIECE, to_montgomery

Q = 97


# Questions with known answers


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not used a kernel yet."""
    monkeypatch.setattr(calls, "_answered", {})


def test_every_kernel_has_a_typed_function_and_a_question() -> None:
    assert len(KERNELS) == 15
    for name in KERNELS:
        assert callable(getattr(native, name))
        assert callable(getattr(questions, name))


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_answers_its_question_once_before_it_is_used(
    unasked: None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    ask = calls._ask
    monkeypatch.setattr(calls, "_ask", lambda name: (asked.append(name), ask(name)))
    question = getattr(questions, name)
    assert question()
    assert question()
    assert asked == [name]


def idle(*_: int) -> None:
    """A kernel that does nothing."""


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_that_answers_wrongly_is_not_used(
    unasked: None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "function", lambda *_, **__: idle)
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            getattr(questions, name)()
        message = str(caught.value)
        assert f"the kernel {name} computes wrongly" in message
        assert "numba 0." in message
        assert "llvmlite 0." in message
        assert library.processor() in message


def test_twin_without_questions_a_wrong_kernel_is_used(
    unasked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "function", lambda *_, **__: idle)
    monkeypatch.setattr(calls, "_ask", lambda _: None)
    out = np.zeros(3, np.uint64)
    native.geometric(1, 5, Q, out)
    assert out.tolist() == [0, 0, 0]


def test_a_kernel_is_not_found_with_another_number_of_arguments() -> None:
    """Else it would take its arguments from anywhere."""
    with pytest.raises(
        RuntimeError, match="no kernel geometric takes 4 arguments: compiled with numba"
    ):
        library.function("geometric", 4)


# What kernels are given


def arguments(name: str) -> dict[str, Any]:
    """Arguments that a kernel takes; sizes differ wherever they can."""
    u4, u8, i8 = np.uint32, np.uint64, np.int64
    tables = (np.ones(4, u8), np.ones(2, u8))
    cases: dict[str, dict[str, Any]] = {
        "accept": {"words": np.ones(3, u4), "limit": 5, "out": np.ones(3, u4)},
        "add_streams": {
            "words": np.ones((2, 5), u4),
            "matrix_mm": np.ones((3, 2), u8),
            "limit": 5,
            "filled": np.full(2, 4, i8),
            "sums": np.ones((2, 3, 4), u8),
        },
        "reduce_sums": {"sums": np.ones((2, 3, 4), u8), "out": np.ones((3, 4), u4)},
        "encode": {
            "dense_m": np.ones((2, 3), u8),
            "sparse_m": np.ones((2, 4), u8),
            "noise": np.ones((5, 3, 6), u4),
            "slot": np.full(5, 3, i8),
            "place": np.full(5, 5, i8),
            "scale": np.ones(5, u4),
            "shares": np.ones((2, 5, 6), u4),
        },
        "eliminate": {
            "f": np.ones((2, 3), u4),
            "h": np.ones((2, 3), u4),
            "x_m": np.ones(2, u8),
            "total": np.ones(3, u4),
        },
        "combine": {
            "matrix_mm": np.ones((2, 3), u8),
            "y": np.ones((3, 4, 5), u4),
            "row": np.full(6, 1, i8),
            "group": np.full(6, 3, i8),
            "out": np.ones((6, 5), u4),
        },
        "weigh": {
            "y": np.ones((2, PIECE + 1), u4),
            "factors": np.ones((3, 2), u4),
            "sums": np.ones((2, 3, PIECE), u8),
        },
        "count_places": {"place": np.full(3, 1, u4), "counts": np.ones(2, i8)},
        "arrange": {
            "count": np.array([1, 2], i8),
            "place": np.full(3, 3, u4),
            "value": np.ones(3, u4),
            "first": 0,
            "buckets": 2,
            "ends": np.zeros(4, i8),
            "indices": np.ones(5, u4),
            "values": np.ones(5, u4),
        },
        "geometric": {"first": 1, "ratio_m": 1, "out": np.ones(3, u8)},
        "sketch": {
            "row": np.full(2, 4, i8),
            "place": np.full(2, 7, u4),
            "value": np.ones(2, u4),
            "powers_m": tables,
            "out": np.ones((5, 3), u4),
        },
        "solve": {
            "sketches": np.ones((3, 4), u4),
            "powers_m": np.ones(8, u8),
            "searched": 8,
            "turns": 4,
            "weight": np.ones(3, i8),
            "place": np.ones(7, u4),
            "value": np.ones(7, u4),
        },
        "transform": {
            "sketches": np.ones((3, 4), u4),
            "powers_m": np.ones(4, u8),
            "most": 2,
            "weight": np.ones(3, i8),
            "place": np.ones(7, u4),
            "value": np.ones(7, u4),
        },
    }
    for kind, floats in (("singles", np.float32), ("doubles", np.float64)):
        cases[f"bucket_top_of_{kind}"] = {
            "gradient": np.ones(7, floats),
            "limits": np.zeros(3, floats),
            "places": np.ones((3, 2), i8),
        }
    return cases[name] if name in WITHOUT_FIELD else {"q": Q} | cases[name]


WITHOUT_FIELD = {
    "accept", "add_streams", "count_places", "arrange", "bucket_top_of_singles",
    "bucket_top_of_doubles",
}  # fmt: skip
WRITTEN = {
    "shares", "total", "out", "sums", "counts", "ends", "indices", "values", "weight", "place",
    "value", "filled", "limits", "places",
}  # fmt: skip
READ_SOMEWHERE = {"sums": "reduce_sums", "place": "", "value": ""}
INDICES = {
    ("encode", "slot"), ("encode", "place"), ("combine", "row"), ("combine", "group"),
    ("count_places", "place"), ("arrange", "place"), ("sketch", "row"), ("sketch", "place"),
    ("add_streams", "filled"),
}  # fmt: skip


def is_written(name: str, argument: str) -> bool:
    """Whether a kernel writes to this array."""
    if argument in ("place", "value"):
        return name in ("solve", "transform")
    return argument in WRITTEN and READ_SOMEWHERE.get(argument) != name


def arrays() -> Iterator[tuple[str, str]]:
    """Every array of every kernel."""
    for name in KERNELS:
        for argument, value in arguments(name).items():
            if isinstance(value, np.ndarray):
                yield name, argument


def call(name: str, given: dict[str, Any]) -> None:
    function: Callable[..., None] = getattr(native, name)
    function(**given)


@pytest.fixture
def uncalled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of kernels that would have been called."""
    names: list[str] = []
    monkeypatch.setattr(native, "call", lambda name, *_: names.append(name))
    return names


@pytest.mark.parametrize("name", KERNELS)
def test_what_a_kernel_takes_is_accepted(name: str) -> None:
    call(name, arguments(name))


def not_contiguous(array: np.ndarray) -> np.ndarray:
    """The same numbers, with others between them."""
    return np.repeat(array, 2, axis=array.ndim - 1)[..., ::2]


KINDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "another type": lambda array: array.astype(np.uint16),
    "signed": lambda array: array.view("ui"[array.dtype.kind == "u"] + str(array.itemsize)),
    "another byte order": lambda array: array.astype(array.dtype.newbyteorder()),
    "a dimension more": lambda array: array[None],
    "not contiguous": not_contiguous,
}
SIZES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "shorter": lambda array: array[:-1].copy(),
    "narrower": lambda array: array[..., :-1].copy(),
    "longer": lambda array: np.concatenate([array, array[:1]]),
}
# Nothing else has the same first or last size as these. Other tests say what they must be.
FREE_SIZES = {
    ("add_streams", "words"),
    ("add_streams", "sums"),
    ("bucket_top_of_singles", "gradient"),
    ("bucket_top_of_singles", "places"),
    ("bucket_top_of_doubles", "gradient"),
    ("bucket_top_of_doubles", "places"),
    ("sketch", "out"),
    ("geometric", "out"),
    ("count_places", "place"),
    ("count_places", "counts"),
    ("encode", "sparse_m"),
    ("combine", "matrix_mm"),
    ("combine", "y"),
    ("arrange", "ends"),
    ("arrange", "count"),
    ("solve", "powers_m"),
    ("weigh", "y"),
    ("weigh", "factors"),
}


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize(("name", "argument"), list(arrays()))
def test_a_kernel_is_not_called_with_another_kind_of_array(
    uncalled: list[str], name: str, argument: str, how: str
) -> None:
    given = arguments(name)
    given[argument] = KINDS[how](given[argument])
    with pytest.raises(ValueError, match=r"a kernel takes|an index is not below"):
        call(name, given)
    assert uncalled == []


@pytest.mark.parametrize("how", SIZES)
@pytest.mark.parametrize(
    ("name", "argument"), [pair for pair in arrays() if pair not in FREE_SIZES]
)
def test_a_kernel_is_not_called_with_an_array_of_another_size(
    uncalled: list[str], name: str, argument: str, how: str
) -> None:
    given = arguments(name)
    given[argument] = SIZES[how](given[argument])
    with pytest.raises(
        ValueError, match=r"takes|index|not enough|do not have|do not make|not those"
    ):
        call(name, given)
    assert uncalled == []


@pytest.mark.parametrize(("name", "argument"), [pair for pair in arrays() if is_written(*pair)])
def test_a_kernel_is_not_called_to_write_where_it_may_not(
    uncalled: list[str], name: str, argument: str
) -> None:
    given = arguments(name)
    given[argument].flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        call(name, given)
    assert uncalled == []


@pytest.mark.parametrize("beyond", [0, -1])
@pytest.mark.parametrize(("name", "argument"), sorted(INDICES))
def test_a_kernel_is_not_called_with_an_index_beyond_its_array(
    uncalled: list[str], name: str, argument: str, beyond: int
) -> None:
    """The arrays above hold the largest index that there is."""
    given = arguments(name)
    indices = given[argument]
    if beyond and indices.dtype.kind == "u":
        indices[-1] = 2**32 - 1
    else:
        indices[-1] = -1 if beyond else indices[-1] + 1
    with pytest.raises(ValueError, match="an index is not below"):
        call(name, given)
    assert uncalled == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("weigh", {"factors": np.ones((3, 1), np.uint32)}),
        ("arrange", {"count": np.array([1, 1])}),
        ("arrange", {"count": np.array([-1, 4])}),
        ("geometric", {"out": np.ones(0, np.uint64)}),
        ("sketch", {"out": np.ones((5, 0), np.uint32)}),
        ("add_streams", {"sums": np.ones((3, 3, 4), np.uint64)}),
        ("bucket_top_of_singles", {"places": np.ones((3, 0), np.int64)}),
        (
            "bucket_top_of_doubles",
            {"places": np.ones((0, 2), np.int64), "limits": np.zeros(0)},
        ),
        ("solve", {"searched": 9}),
        ("solve", {"searched": -1}),
        ("solve", {"turns": 3}),
        ("solve", {"powers_m": np.ones(9, np.uint64)}),
        ("transform", {"most": -1}),
        ("transform", {"most": 3}),
    ],
)
def test_a_kernel_is_not_called_with_sizes_that_do_not_fit(
    uncalled: list[str], name: str, change: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"no|at least|first"):
        call(name, arguments(name) | change)
    assert uncalled == []


def test_even_moduli_have_no_montgomery_form() -> None:
    with pytest.raises(ValueError, match="not invertible"):
        native.geometric(1, 1, 96, np.ones(1, np.uint64))


# Twins: without the checks, kernels read and write beyond their arrays


def unchecked(array: np.ndarray, *_: object) -> int:
    """The address of an array, whatever it is."""
    address: int = array.__array_interface__["data"][0]
    return address


def add_five(total: np.ndarray) -> None:
    """total += 5, for a total of eight symbols."""
    f = np.full((1, 8), 5, np.uint32)
    native.eliminate(f, np.zeros_like(f), to_montgomery(np.ones(1, np.uint32), Q), Q, total)


@pytest.mark.parametrize("what", ["too short", "not contiguous", "read-only", "another type"])
def test_twin_without_the_checks_a_kernel_writes_elsewhere(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = np.zeros(32, np.uint32)
    fixed = buffer[8:16]
    fixed.flags.writeable = False
    total = {
        "too short": buffer[8:12],
        "not contiguous": buffer[8:24:2],
        "read-only": fixed,
        "another type": buffer[8:16].view(np.int32),
    }[what]
    with pytest.raises(ValueError, match="kernel"):
        add_five(total)
    assert not buffer.any()
    monkeypatch.setattr(native, "input_at", unchecked)
    monkeypatch.setattr(native, "output_at", unchecked)
    add_five(total)
    assert buffer.tolist() == [0] * 8 + [5] * 8 + [0] * 16


def test_twin_without_the_check_of_indices_a_kernel_reads_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffer = np.arange(16, dtype=np.uint32)
    y = buffer[:8].reshape(1, 2, 4)
    one_mm = to_montgomery(to_montgomery(np.ones((1, 1), np.uint32), Q), Q)
    out = np.zeros((1, 4), np.uint32)
    group = np.array([3])
    with pytest.raises(ValueError, match="an index is not below 2"):
        native.combine(matrix_mm=one_mm, y=y, row=np.zeros(1, np.int64), group=group, q=Q, out=out)
    monkeypatch.setattr(native, "check_indices", lambda *_, **__: None)
    native.combine(matrix_mm=one_mm, y=y, row=np.zeros(1, np.int64), group=group, q=Q, out=out)
    assert out.tolist() == [[12, 13, 14, 15]]


def test_entries_beyond_the_room_are_left_out() -> None:
    """The kernel itself looks where it writes: nobody else can without doing the work."""
    buffer = np.zeros(8, np.uint32)
    values = np.zeros(4, np.uint32)
    for end in (3, -1, 2**40):
        native.arrange(
            count=np.array([2]),
            place=np.zeros(2, np.uint32),
            value=np.full(2, 9, np.uint32),
            first=0,
            buckets=1,
            ends=np.array([end]),
            indices=buffer[2:6],
            values=values,
        )
    assert values.tolist() == [9, 0, 0, 9]
    assert not buffer.any(), "the index of place 0 and row 0 is 0"


def test_powers_that_are_not_distinct_write_nothing_beyond_the_room() -> None:
    """With gamma = 1 all points are roots: more than the room has places for."""
    sketches = np.ones((3, 4), np.uint32)
    ones_m = to_montgomery(np.ones(64, np.uint32), Q)
    weight = np.zeros(3, np.int64)
    place, value = np.zeros((2, 16), np.uint32)
    native.solve(
        sketches=sketches,
        powers_m=ones_m,
        searched=64,
        turns=1,
        q=Q,
        weight=weight,
        place=place[:7],
        value=value[:7],
    )
    assert weight.tolist() == [-1, -1, -1]
    assert not place[7:].any()
    assert not value[7:].any()
