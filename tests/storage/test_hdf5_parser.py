"""Our reader of HDF5 sees what HDF5 sees in our files, and no other file misleads it."""

import os
import random
import struct
import tracemalloc
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from played import ROOT, said_end

from topk_secagg.storage import hdf5_parser
from topk_secagg.storage.hdf5_parser import Dataset, Unknown, lookup3, parse
from topk_secagg.storage.hdf5_writer import Shapes, new_file

NAMES = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=20)
SHAPES = st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple)
VALUES = st.integers(0, 2**64 - 1) | st.text("0123456789abcdef -.", min_size=1, max_size=128)
TYPES = ["|u1", "<u2", "<u4", "<u8", "<i4", "<f8"]
ARCHIVE = ROOT / "fixtures" / "archive" / "v1"


@pytest.fixture(autouse=True)
def _every_checksum_once(monkeypatch):
    """Most pieces of a file stay the same from one lie to the next."""
    monkeypatch.setattr(hdf5_parser, "lookup3", lru_cache(64)(lookup3))


def written(path: Path, shapes: Shapes, attributes: dict[str, str | int]) -> None:
    """A file with these datasets, all zero."""
    with path.open("w+b") as stream:
        with new_file(stream, shapes, dict.fromkeys(shapes, ((), "what it holds"))) as file:
            file.finish(attributes)
        os.truncate(path, said_end(stream))  # datasets at the end exist only once they are written


class Structure(NamedTuple):
    """What a file consists of."""

    attributes: dict[str, str | int]
    datasets: dict[str, Dataset]


def parsed(path: Path) -> Structure:
    with path.open("rb") as file:
        return Structure(*parse(file.fileno()))


def by_hdf5(path: Path) -> Structure:
    """The same by the library, as far as it is asked."""
    seen = Structure({}, {})
    with h5py.File(path, "r") as file:
        for name, value in file.attrs.items():
            seen.attributes[name] = value.decode() if isinstance(value, bytes) else int(value)
        for name in file:
            d = file[name]
            place = d.id.get_offset() or 0
            description = d.attrs["description"].decode()
            seen.datasets[name] = Dataset(d.dtype, d.shape, place, d.nbytes, description)
    return seen


@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    attributes=st.dictionaries(NAMES, VALUES, min_size=1, max_size=16),
    shapes=st.dictionaries(
        NAMES, st.tuples(st.sampled_from(TYPES), SHAPES), min_size=1, max_size=8
    ),
)
def test_it_sees_what_hdf5_sees(tmp_path, attributes, shapes):
    path = tmp_path / "x.h5"
    written(path, shapes, attributes)
    assert parsed(path) == by_hdf5(path)


@pytest.mark.parametrize("name", sorted(path.name for path in ARCHIVE.iterdir() if path.is_dir()))
def test_it_reads_every_file_of_a_round_as_hdf5_does(name):
    for path in (ARCHIVE / name).rglob("*.h5"):
        found = parsed(path)
        assert found == by_hdf5(path)
        content = path.read_bytes()
        with h5py.File(path, "r") as file:
            for key, d in found.datasets.items():
                assert file[key][...].tobytes() == content[d.offset : d.offset + d.size], (
                    path,
                    key,
                )


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.h5"
    shapes = {"index": ("|u1", (5,)), "value": ("<u4", (3, 2)), "short": ("<u2", (3,))}
    written(path, shapes, {f"name{i}": i for i in range(6)} | {"text": "x" * 64, "user": 3})
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


def test_a_changed_byte_of_metadata_is_refused_or_stays_within_the_file(small):
    """Every byte, with checksums that fit: refused, or what it says is within the file."""
    content = small.read_bytes()
    refused = accepted = 0
    for start, end in pieces(content):
        for at in range(start, end):
            for value in {0, 1, 0x7F, 0xFF, content[at] ^ 1, content[at] ^ 0x40} - {content[at]}:
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


def test_several_changed_bytes_cause_no_other_error(small):
    """Several bytes at once."""
    content = small.read_bytes()
    places = pieces(content)
    source = random.Random(7)
    for _ in range(1500):
        data = bytearray(content)
        for start, end in source.sample(places, 2):
            for _ in range(source.randrange(1, 4)):
                data[source.randrange(start, end)] = source.choice(
                    (0, 1, 4, 16, 0xFF, source.randrange(256))
                )
            reseal(data, start, end)
        small.write_bytes(data)
        with suppress(Unknown):
            parsed(small)


def test_every_cut_is_refused(small):
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
    ("piece", "value"),
    [
        *(("root", struct.pack("<Q", at)) for at in (0, 2**62 - 1, 2**63 - 1, 2**63, 2**64 - 1)),
        *(("continuation", struct.pack("<QQ", *where)) for where in (
            (48, 100), (0, 2**63), (2**64 - 1, 16), (2**63, 16), (100, 7), (0, 0), (0, 2**20),
        )),
    ],
)  # fmt: skip
def test_a_wrong_address_of_the_root_or_of_a_continuation_is_refused(small, piece, value):
    content = small.read_bytes()
    data = bytearray(content)
    at = 36 if piece == "root" else continuation(content)
    data[at : at + len(value)] = value
    reseal(data, *next((a, e) for a, e in pieces(content) if a < at < e))
    small.write_bytes(data)
    with pytest.raises(Unknown):
        parsed(small)


def test_a_header_that_continues_in_itself_is_refused(small):
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


def test_one_dataset_under_two_names(small):
    with h5py.File(small, "r+", libver=("v110", "v110"), locking=False) as file:
        h5py.h5o.link(file["value"].id, file.id, b"again")
    with pytest.raises(Unknown, match="one twice"):
        parsed(small)


def test_a_huge_file_costs_nothing(small):
    os.truncate(small, 1 << 40)
    tracemalloc.start()
    with pytest.raises(Unknown):
        parsed(small)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("shape", [(0, 2**62), (2**40, 2**40, 0)])
def test_absurd_shapes_without_content(tmp_path, shape):
    written(tmp_path / "x.h5", {"y": ("<u4", shape)}, {"user": 1})
    with pytest.raises(Unknown, match="absurd shape"):
        parsed(tmp_path / "x.h5")


def accounted(path: Path) -> list[tuple[int, int]]:
    """Start and end of every piece of metadata, with its checksum, and of every dataset."""
    datasets = [(d.offset, d.offset + d.size) for d in parsed(path).datasets.values()]
    return sorted([*((start, end + 4) for start, end in pieces(path.read_bytes())), *datasets])


def test_our_files_have_no_gaps(small):
    ends = [0, *(end for _, end in accounted(small))]
    assert [*(start for start, _ in accounted(small)), small.stat().st_size] == ends


def test_nothing_can_be_hidden_behind_the_pieces(small):
    before = parsed(small)
    content = bytearray(small.read_bytes() + bytes(5))
    content[28:36] = struct.pack("<Q", len(content))  # where the superblock says that the file ends
    reseal(content, 0, 44)
    small.write_bytes(content)
    assert parsed(small) == before
    for at in range(len(content) - 5, len(content)):
        small.write_bytes(content[:at] + b"\1" + content[at + 1 :])
        with pytest.raises(Unknown, match="belong to nothing"):
            parsed(small)


def with_offset(path: Path, name: str, offset: int) -> None:
    """Move a dataset, under a checksum that fits."""
    d = parsed(path).datasets[name]
    where = struct.pack("<QQ", d.offset, d.size)
    with path.open("r+b") as file:
        data = bytearray(file.read(4096))
        ((start, end),) = [(a, e) for a, e in pieces(bytes(data)) if where in data[a:e]]
        at = data.index(where, start)
        data[at : at + 8] = struct.pack("<Q", offset)
        reseal(data, start, end)
        file.seek(0)
        file.write(data)


def test_pieces_that_overlap(small):
    """A dataset that lies in another, in a header, or outside of the file, under a checksum that
    fits."""
    content = small.read_bytes()
    found = parsed(small).datasets
    places = {start for start, _ in accounted(small)} | {
        found["value"].offset + 1,
        len(content) - 1,
        len(content),
    }
    places |= {1 << 20, 2**63, 2**64 - 2}  # far outside
    for offset in places - {found["value"].offset}:
        small.write_bytes(content)
        with_offset(small, "value", offset)
        with pytest.raises(Unknown, match=r"overlap|belong to nothing"):
            parsed(small)


def test_two_huge_datasets_in_the_same_place_are_refused_unread(tmp_path):
    """Together as large as the file, so that what they leave free is as large as one of them: it is
    not read."""
    path = tmp_path / "x.h5"
    half = 1 << 40
    written(path, {"a": ("|u1", (half,)), "b": ("|u1", (half,))}, {"user": 1})
    with_offset(path, "a", parsed(path).datasets["b"].offset)
    tracemalloc.start()
    with pytest.raises(Unknown, match="overlap"):
        parsed(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_what_hdf5_changed_in_place_is_still_read(small):
    with h5py.File(small, "r+", libver=("v110", "v110"), locking=False) as file:
        file.attrs.modify("user", np.uint64(9))
        file["value"][0, 1] = 7
    assert parsed(small).attributes["user"] == 9
    assert parsed(small) == by_hdf5(small)
