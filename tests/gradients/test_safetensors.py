"""Safetensors are read without the library, which is the oracle: what it reads, we read alike; what
it refuses, we refuse."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize
from safetensors.numpy import load, save

from topk_secagg.errors import BadData, InputMissing
from topk_secagg.gradients.files import read_gradient
from topk_secagg.gradients.layout import Layout
from topk_secagg.gradients.tensors import TensorInFile

PAIR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def content(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def read(path: Path, whole: bytes) -> dict[str, np.ndarray]:
    path.write_bytes(whole)
    return {t.name: t.array for t in read_gradient(path)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "gradient.safetensors"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("safetensors") / "gradient.safetensors"


def test_every_type_is_read_as_the_library_reads_it(path):
    rng = np.random.default_rng(1)
    kinds = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "?")
    arrays = {f"w{kind}": rng.integers(0, 2, (3, 2)).astype(kind) for kind in kinds}
    arrays |= {"scalar": np.array(3, np.float32), "nothing": np.zeros((0, 4), np.float32)}
    whole = save(arrays)
    found, expected = read(path, whole), load(whole)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_bfloat16_is_widened_exactly(path):
    bits = np.array([0x3F80, 0xBF00, 0x7F80, 0x0001], "<u2")
    header = {"w": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}
    found = read(path, content(header, bits.tobytes()))["w"]
    assert found.dtype == np.float32
    assert found.view(np.uint32).tolist() == [int(b) << 16 for b in bits]


def one(**changed: Any) -> dict[str, Any]:
    return {"w": PAIR | changed}


REFUSED = {
    "empty": b"",
    "no length": b"\x01\x00",
    "no header": struct.pack("<Q", 0),
    "a length beyond the file": content(one(), bytes(8), length=1 << 20),
    "an absurd length": content(one(), bytes(8), length=(1 << 64) - 1),
    "a list": content([PAIR], bytes(8)),
    "a number": content(3),
    "not JSON": content(b"{'w': 3}"),
    "a byte order mark": content(b"\xef\xbb\xbf" + json.dumps(one()).encode(), bytes(8)),
    "not UTF-8": content(b'{"\xff": {}}'),
    "half a character": content(b'{"\\ud800": {"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
    "no description": content({"w": 3}),
    "a description that lacks a place": content({"w": {"dtype": "F32", "shape": [2]}}, bytes(8)),
    "three offsets": content(one(data_offsets=[0, 8, 8]), bytes(8)),
    "an offset that is text": content(one(data_offsets=["0", 8]), bytes(8)),
    "an offset that is true": content(one(shape=[], data_offsets=[False, 4]), bytes(4)),
    "an offset that is no integer": content(one(data_offsets=[0.0, 8]), bytes(8)),
    "a negative offset": content(one(data_offsets=[-8, 0]), bytes(8)),
    "a negative extent": content(one(shape=[-2]), bytes(8)),
    "two negative extents": content(one(shape=[-2, -1]), bytes(8)),
    "a shape of text": content(one(shape="2"), bytes(8)),
    "a shape that is none": content(one(shape=None), bytes(8)),
    "a shape of another size": content(one(shape=[3]), bytes(8)),
    "an unknown type": content(one(dtype="F33"), bytes(8)),
    "a type that is a list": content(one(dtype=["F32"]), bytes(8)),
    "bytes behind": content(one(), bytes(9)),
    "bytes that are missing": content(one(), bytes(7)),
    "a gap": content({"v": PAIR, "w": PAIR | {"data_offsets": [9, 17]}}, bytes(17)),
    "an overlap": content({"v": PAIR, "w": PAIR | {"data_offsets": [4, 12]}}, bytes(12)),
    "one place for two": content({"v": PAIR, "w": PAIR}, bytes(8)),
    "metadata of numbers": content(one() | {"__metadata__": {"a": 3}}, bytes(8)),
    "metadata that are a list": content(one() | {"__metadata__": []}, bytes(8)),
    "an extent beyond all": content(one(shape=[0, 1 << 70], data_offsets=[0, 0])),
    "nested without end": content(b'{"w":' + b"[" * 100_000),
}
STRICTER = {  # what the library lets pass
    "a name that is there twice": content(
        b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
        b'"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        bytes(8),
    ),
    "a space in front": content(b" " + json.dumps(one()).encode(), bytes(8)),
    "many dimensions": content(one(shape=[2] + [1] * 40), bytes(8)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_library_refuses_is_refused(path, case):
    with pytest.raises((SafetensorError, OverflowError, RecursionError)):
        deserialize(REFUSED[case])
    with pytest.raises(BadData) as caught:
        read(path, REFUSED[case])
    assert str(caught.value).startswith(f"{path}: ")
    assert caught.value.hint


@pytest.mark.parametrize("case", STRICTER)
def test_what_could_be_read_in_two_ways_is_refused_too(path, case):
    with pytest.raises(BadData):
        read(path, STRICTER[case])


def test_a_type_that_is_not_read_is_named(path):
    whole = content({"w": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}, bytes(2))
    assert deserialize(whole)
    with pytest.raises(BadData, match="tensor 'w' has type F8_E4M3, which is not read"):
        read(path, whole)


names = st.sampled_from(["a", "b", "c", "__metadata__"])
numbers = st.integers(-1, 24) | st.sampled_from([True, 1.0, "8", None, 1 << 64])
descriptions = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "BF16", "I8", "BOOL", "F7"]),
        "shape": st.lists(numbers | st.integers(0, 3), max_size=3),
        "data_offsets": st.lists(numbers | st.integers(0, 24), min_size=2, max_size=2),
    }
)


@settings(max_examples=400, deadline=None)
@given(header=st.dictionaries(names, descriptions, max_size=3), size=st.integers(0, 24))
def test_any_header_is_read_as_by_the_library_or_refused(scratch, header, size):
    whole = content(header, bytes(range(size)))
    try:
        found = read(scratch, whole)
    except BadData:
        return
    expected = dict(deserialize(whole))
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert list(array.shape) == expected[name]["shape"]
        if expected[name]["dtype"] not in ("BF16", "BOOL"):
            assert array.tobytes() == bytes(expected[name]["data"])


@settings(max_examples=300, deadline=None)
@given(edits=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_files_are_read_as_by_the_library_or_refused(scratch, edits):
    whole = bytearray(save({"weight": np.arange(6.0), "bias": np.ones(2, np.float32)}))
    for at, value in edits:
        whole[at % len(whole)] = value
    try:
        found = read(scratch, bytes(whole))
    except BadData:
        return
    assert found.keys() == dict(deserialize(bytes(whole))).keys()


def test_a_file_cut_short_anywhere_is_refused(path):
    whole = save({"w": np.arange(3.0)})
    for size in range(len(whole)):
        with pytest.raises(BadData):
            read(path, whole[:size])


# Values stay in the file.


def test_of_a_large_file_no_more_than_the_flat_vector_and_a_tensor_is_in_memory(path):
    """bfloat16, whose tensors take twice their bytes in the file."""
    count, size = 16, 100_000
    header = {
        f"w{start}": {"dtype": "BF16", "shape": [size], "data_offsets": [start, start + 2 * size]}
        for start in range(0, 2 * size * count, 2 * size)
    }
    path.write_bytes(content(header, bytes(2 * size * count)))
    flat, tensor = 4 * size * count, (2 + 4) * size
    tracemalloc.start()
    try:
        gradient = read_gradient(path)
        layout = Layout.like(gradient)
        assert tracemalloc.get_traced_memory()[1] < tensor
        assert layout.flatten(gradient).nbytes == flat
        assert tracemalloc.get_traced_memory()[1] < flat + 2 * tensor
    finally:
        tracemalloc.stop()
    assert all(isinstance(t, TensorInFile) for t in gradient)


def test_a_file_that_changes_while_it_is_read_is_an_error_and_no_traceback(path):
    path.write_bytes(save({"w": np.arange(3.0)}))
    (tensor,) = read_gradient(path)
    path.write_bytes(b"")
    with pytest.raises(BadData, match="it is damaged"):
        assert tensor.array
    path.unlink()
    with pytest.raises(InputMissing, match="is not there"):
        assert tensor.array
