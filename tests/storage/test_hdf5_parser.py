"""Our reader of HDF5 sees what HDF5 sees in our files, and is not led astray by any other."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topk_secagg.storage.hdf5_parser import Dataset, Structure, Unknown, lookup3, parse
from topk_secagg.storage.hdf5_writer import lay_out, new_file, put_attributes

NAMES = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=20)
SHAPES = st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple)
VALUES = st.integers(0, 2**64 - 1) | st.text("0123456789abcdef -.", min_size=1, max_size=128)


@contextmanager
def descriptor(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def parsed(path: Path) -> Structure:
    with descriptor(path) as fd:
        return parse(fd)


def by_hdf5(path: Path) -> Structure:
    """The same by the library, as far as it is asked."""
    seen = Structure()
    with h5py.File(path, "r") as file:
        for name, value in file.attrs.items():
            seen.attributes[name] = value.decode() if isinstance(value, bytes) else int(value)
        for name in file:
            d = file[name]
            seen.datasets[name] = Dataset(d.dtype, d.shape, d.id.get_offset() or 0)
    return seen


@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    attributes=st.dictionaries(NAMES, VALUES, min_size=1, max_size=16),
    shapes=st.dictionaries(
        NAMES, st.tuples(st.sampled_from(["|u1", "<u4", "<u8", "<f8"]), SHAPES), min_size=1, max_size=8
    ),
)
def test_it_sees_what_hdf5_sees(
    tmp_path: Path, attributes: dict[str, str | int], shapes: dict[str, tuple[str, tuple[int, ...]]]
) -> None:
    path = tmp_path / "x.h5"
    with new_file(path) as file:
        laid = lay_out(file, shapes)
        put_attributes(file, attributes)
    with path.open("ab") as stream:  # datasets at the end exist only once they are written
        stream.truncate(max(path.stat().st_size, *(d.offset + d.size for d in laid.values())))
    found = parsed(path)
    assert found.datasets == laid
    assert found == by_hdf5(path)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.h5"
    with new_file(path) as file:
        lay_out(file, {"index": ("|u1", (5,)), "value": ("<u4", (3, 2))})
        put_attributes(file, {f"name{i}": i for i in range(6)} | {"text": "x" * 64, "user": 3})
    return path


def pieces(content: bytes) -> list[tuple[int, int]]:
    """Start and end of the metadata that a checksum follows."""
    found = [(0, 44)]
    for signature in (b"OHDR", b"OCHK"):
        at = content.find(signature)
        while at >= 0:
            ends = range(at + 8, len(content) - 3)
            found.append((at, next(e for e in ends if sealed(content, at, e))))
            at = content.find(signature, at + 1)
    return found


def sealed(content: bytes, start: int, end: int) -> bool:
    return int.from_bytes(content[end : end + 4], "little") == lookup3(content[start:end])


def reseal(data: bytearray, start: int, end: int) -> None:
    data[end : end + 4] = struct.pack("<I", lookup3(bytes(data[start:end])))


def test_no_byte_of_the_metadata_can_lie_it_astray(small: Path) -> None:
    """Every byte, with checksums that fit: refused, or what it says is within the file."""
    content = small.read_bytes()
    refused = accepted = 0
    for start, end in pieces(content):
        for at in range(start, end):
            for value in {0, 1, 2, 0x7F, 0x80, 0xFF, content[at] ^ 1, content[at] ^ 0x40} - {content[at]}:
                data = bytearray(content)
                data[at] = value
                reseal(data, start, end)
                small.write_bytes(data)
                try:
                    found = parsed(small)
                except Unknown:
                    refused += 1
                else:
                    accepted += 1
                    for d in found.datasets.values():
                        assert d.offset + d.size <= len(content)
    assert refused > 1000
    assert accepted > 0  # the values of attributes, which the digest covers


def test_random_lies(small: Path) -> None:
    """Several bytes at once."""
    content = small.read_bytes()
    places = pieces(content)
    source = random.Random(7)
    for _ in range(3000):
        data = bytearray(content)
        for start, end in source.sample(places, 2):
            for _ in range(source.randrange(1, 4)):
                data[source.randrange(start, end)] = source.choice((0, 1, 4, 16, 0xFF, source.randrange(256)))
            reseal(data, start, end)
        small.write_bytes(data)
        with suppress(Unknown):
            parsed(small)


def test_every_cut_is_refused(small: Path) -> None:
    content = small.read_bytes()
    for length in range(len(content)):
        small.write_bytes(content[:length])
        with pytest.raises(Unknown):
            parsed(small)


def continuation(content: bytes) -> int:
    """Where the root header says where it goes on."""
    (at,) = [a for a, _ in pieces(content) if content[a : a + 4] == b"OCHK"]
    return content.index(struct.pack("<Q", at))


@pytest.mark.parametrize(
    ("offset", "length"),
    [(48, 100), (0, 2**63), (2**64 - 1, 16), (2**63, 16), (100, 7), (0, 0), (0, 2**20)],
)
def test_a_header_that_goes_on_elsewhere(small: Path, offset: int, length: int) -> None:
    content = small.read_bytes()
    data = bytearray(content)
    at = continuation(content)
    data[at : at + 16] = struct.pack("<QQ", offset, length)
    start, end = next((a, e) for a, e in pieces(content) if a < at < e)
    reseal(data, start, end)
    small.write_bytes(data)
    with pytest.raises(Unknown):
        parsed(small)


def test_a_header_that_goes_round_in_circles(small: Path) -> None:
    """The continuation holds nothing but a message that leads back to it."""
    data = bytearray(small.read_bytes())
    start, end = next((a, e) for a, e in pieces(bytes(data)) if data[a : a + 4] == b"OCHK")
    circle = struct.pack("<BHBQQ", 16, 16, 0, start, end + 4 - start)
    rest = end - start - 4 - len(circle)
    data[start + 4 : end] = circle + struct.pack("<BHB", 0, rest - 4, 0) + bytes(rest - 4)
    reseal(data, start, end)
    small.write_bytes(data)
    with pytest.raises(Unknown, match="without end"):
        parsed(small)


@pytest.mark.parametrize("address", [0, 2**62 - 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_root_that_is_elsewhere(small: Path, address: int) -> None:
    data = bytearray(small.read_bytes())
    data[36:44] = struct.pack("<Q", address)
    reseal(data, 0, 44)
    small.write_bytes(data)
    with pytest.raises(Unknown):
        parsed(small)


def test_one_dataset_under_two_names(small: Path) -> None:
    with h5py.File(small, "r+", libver=("v110", "v110"), locking=False) as file:
        h5py.h5o.link(file["value"].id, file.id, b"again")
    with pytest.raises(Unknown, match="one twice"):
        parsed(small)


def test_a_huge_file_costs_nothing(small: Path) -> None:
    os.truncate(small, 1 << 40)
    tracemalloc.start()
    with pytest.raises(Unknown):
        parsed(small)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_what_hdf5_changed_in_place_is_still_read(small: Path) -> None:
    with h5py.File(small, "r+", libver=("v110", "v110"), locking=False) as file:
        file.attrs.modify("user", np.uint64(9))
        file["value"][0, 1] = 7
    assert parsed(small).attributes["user"] == 9
    assert parsed(small) == by_hdf5(small)
