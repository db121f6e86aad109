"""HDF5 files made to do harm: refused before anything is read from them, and in little memory."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import pytest
from damage import bounded_memory, guarded, reseal
from fault_lab import RECIPES, Bench, forked, judged, scratch, waited

from topk_secagg.storage.hdf5_parser import lookup3

LIBVER = ("v110", "v110")
LITTLE = 32 << 20
Hostile = Callable[[h5py.File, str, Path], None]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with scratch() as folder:
        yield Bench(RECIPES["permutation"], folder)


def external_link(file: h5py.File, name: str, folder: Path) -> None:
    with h5py.File(folder / "other.h5", "w") as other:
        other[name] = file[name][...]
    del file[name]
    file[name] = h5py.ExternalLink(str(folder / "other.h5"), name)


def soft_link(file: h5py.File, name: str, _folder: Path) -> None:
    file.move(name, "elsewhere")
    file[name] = h5py.SoftLink("/elsewhere")


def link_cycle(file: h5py.File, name: str, _folder: Path) -> None:
    del file[name]
    file[name] = h5py.SoftLink(f"/{name}")


def group_cycle(file: h5py.File, name: str, _folder: Path) -> None:
    del file[name]
    file[name] = file["/"]


def same_dataset_twice(file: h5py.File, name: str, _folder: Path) -> None:
    file["again"] = file[name]


def virtual(file: h5py.File, name: str, folder: Path) -> None:
    shape, dtype = file[name].shape, file[name].dtype
    with h5py.File(folder / "source.h5", "w") as other:
        other[name] = file[name][...]
    del file[name]
    layout = h5py.VirtualLayout(shape, dtype)
    layout[...] = h5py.VirtualSource(str(folder / "source.h5"), name, shape)
    file.create_virtual_dataset(name, layout)


def stored_outside(file: h5py.File, name: str, folder: Path) -> None:
    array = file[name][...]
    (folder / "outside").write_bytes(array.tobytes())
    del file[name]
    outside = [(str(folder / "outside"), 0, h5py.h5f.UNLIMITED)]
    file.create_dataset(name, array.shape, array.dtype, external=outside)


def password_file(file: h5py.File, name: str, _folder: Path) -> None:
    shape, dtype = file[name].shape, file[name].dtype
    del file[name]
    file.create_dataset(name, shape, dtype, external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])


def chunked(file: h5py.File, name: str, _folder: Path) -> None:
    array = file[name][...]
    del file[name]
    file.create_dataset(name, data=array, chunks=True)


def compressed(file: h5py.File, name: str, _folder: Path) -> None:
    array = file[name][...]
    del file[name]
    file.create_dataset(name, data=array, chunks=True, compression="gzip")


def bomb(file: h5py.File, name: str, _folder: Path) -> None:
    dtype = file[name].dtype
    del file[name]
    file.create_dataset(name, (2**31,), dtype, chunks=(2**20,), compression="gzip")


def huge(file: h5py.File, name: str, _folder: Path) -> None:
    dtype = file[name].dtype
    del file[name]
    file.create_dataset(name, (2**40,), dtype)


def huge_square(file: h5py.File, name: str, _folder: Path) -> None:
    dtype = file[name].dtype
    del file[name]
    file.create_dataset(name, (2**31, 2**29), dtype)


def compact(file: h5py.File, name: str, _folder: Path) -> None:
    array = file[name][...]
    del file[name]
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    space, kind = h5py.h5s.create_simple(array.shape), h5py.h5t.py_create(array.dtype)
    h5py.h5d.create(file.id, name.encode(), kind, space, plist).write(h5py.h5s.ALL, h5py.h5s.ALL, array)


def scalar(file: h5py.File, name: str, _folder: Path) -> None:
    dtype = file[name].dtype
    del file[name]
    file.create_dataset(name, (), dtype)


def empty(file: h5py.File, name: str, _folder: Path) -> None:
    dtype = file[name].dtype
    del file[name]
    file.create_dataset(name, data=h5py.Empty(dtype))


def growing(file: h5py.File, name: str, _folder: Path) -> None:
    array = file[name][...]
    del file[name]
    file.create_dataset(name, data=array, maxshape=(None,) * array.ndim, chunks=True)


def typed(dtype: object) -> Hostile:
    def change(file: h5py.File, name: str, _folder: Path) -> None:
        shape = file[name].shape
        del file[name]
        file.create_dataset(name, shape, dtype)

    return change


def named_type(file: h5py.File, name: str, _folder: Path) -> None:
    del file[name]
    file[name] = np.dtype("<u4")


def more_groups(file: h5py.File, _name: str, _folder: Path) -> None:
    file.create_group("more/and/more")


def many_datasets(file: h5py.File, _name: str, _folder: Path) -> None:
    for i in range(2000):
        file.create_group(f"g{i}")


def variable_text(file: h5py.File, _name: str, _folder: Path) -> None:
    file.attrs["session"] = "0" * 64


def long_text(file: h5py.File, _name: str, _folder: Path) -> None:
    file.attrs["session"] = np.bytes_(b"x" * (1 << 22))


def many_attributes(file: h5py.File, _name: str, _folder: Path) -> None:
    for i in range(3000):
        file.attrs[f"a{i}"] = np.uint64(i)


def reference_attribute(file: h5py.File, name: str, _folder: Path) -> None:
    file.attrs.create("session", file[name].ref, dtype=h5py.ref_dtype)


def reference_dataset(file: h5py.File, name: str, _folder: Path) -> None:
    shape = file[name].shape
    del file[name]
    file.create_dataset(name, shape, h5py.ref_dtype)


def region_dataset(file: h5py.File, name: str, _folder: Path) -> None:
    shape = file[name].shape
    del file[name]
    file.create_dataset(name, shape, h5py.regionref_dtype)


def odd_name(file: h5py.File, name: str, _folder: Path) -> None:
    file.move(name, "\x1b[31mred\n")


HOSTILE = {
    f.__name__: f
    for f in (
        external_link, soft_link, link_cycle, group_cycle, same_dataset_twice, virtual, stored_outside,
        password_file, chunked, compressed, bomb, huge, huge_square, compact, scalar, empty, growing,
        named_type, more_groups, many_datasets, variable_text, long_text, many_attributes,
        reference_attribute, reference_dataset, region_dataset, odd_name,
    )
} | {
    f"type {what}": typed(dtype)
    for what, dtype in {
        "float": "<f4", "big-endian": ">u4", "signed": "<i4", "wide": "<u8", "opaque": "V4", "text": "S4",
        "compound": [("a", "<u4"), ("b", "<f8")], "variable text": h5py.string_dtype(), "bool": "?",
        "variable length": h5py.vlen_dtype("<u4"), "enum": h5py.enum_dtype({"a": 1}, "<u4"),
        "array": np.dtype(("<u4", (3,))), "complex": "<c16",
    }.items()
}  # fmt: skip

# a file of each kind, the dataset that is changed, the stage, and who reads it
READERS = {
    "masked": ("masked/user-02.h5", "value", "masked", "freeze"),
    "share": ("shares/user-01/from-02.h5", "f", "frozen", "eliminate"),
    "elimination": ("elimination/user-02.h5", "y", "answered", "decode"),
    "secret": ("secrets/user-01.h5", "place", "offline", "mask"),
}


def _reader(bench: Bench, name: str) -> tuple[object, ...]:
    state = bench.round
    return {"freeze": state.freeze(), "eliminate": state.eliminate(1), "decode": state.decode(), "mask": state.mask(1)}[
        name
    ]


def _check_refused(bench: Bench, kind: str, make: Callable[[Path], None]) -> None:
    path, _, stage, reader = READERS[kind]
    state = bench.at(stage)
    target = state.folder / path
    content = target.read_bytes()
    target.unlink()
    target.write_bytes(content)
    make(target)
    with bounded_memory(LITTLE) as grown:
        for command in (_reader(bench, reader), ("inspect", target)):
            result = judged(*command)
            assert result.code == 65, (command, result)
        assert not grown()


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("kind", ["masked", "share"])
def test_hostile_structure_is_refused(bench: Bench, tmp_path: Path, kind: str, what: str) -> None:
    def make(target: Path) -> None:
        with h5py.File(target, "r+", libver=LIBVER, locking=False) as file:
            HOSTILE[what](file, READERS[kind][1], tmp_path)

    _check_refused(bench, kind, make)


def test_an_attribute_as_large_as_the_memory_is_not_loaded(bench: Bench) -> None:
    def make(target: Path) -> None:
        def inside() -> None:  # a fork, so that the memory it takes is not counted
            with h5py.File(target, "r+", libver=LIBVER, locking=False) as file:
                file.attrs["large"] = np.zeros(1 << 23, dtype="<u8")

        assert waited(forked(inside)) == 0

    _check_refused(bench, "masked", make)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("version", [0, 2, 2**64 - 1])
def test_another_version_is_refused_even_with_a_digest_that_fits(bench: Bench, kind: str, version: int) -> None:
    def make(target: Path) -> None:
        with h5py.File(target, "r+", libver=LIBVER, locking=False) as file:
            file.attrs.modify("version", np.uint64(version))
            reseal(file)

    _check_refused(bench, kind, make)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("offset", [0, 1 << 20, 2**63, 2**64 - 2])
def test_datasets_that_lie_elsewhere_are_refused(bench: Bench, kind: str, offset: int) -> None:
    """The address in the metadata of HDF5 points out of the file, and the checksum fits."""

    def make(target: Path) -> None:
        with h5py.File(target, "r") as file:
            old = struct.pack("<Q", file[READERS[kind][1]].id.get_offset())
        content = target.read_bytes()
        ((start, end),) = [(a, z) for a, z in guarded(content) if content[a : a + 4] == b"OHDR" and old in content[a:z]]
        data = bytearray(content)
        at = content.index(old, start)
        data[at : at + 8] = struct.pack("<Q", offset)
        data[end : end + 4] = struct.pack("<I", lookup3(bytes(data[start:end])))
        target.write_bytes(data)

    _check_refused(bench, kind, make)


def test_nothing_is_opened_besides_the_file(bench: Bench, tmp_path: Path) -> None:
    """What a hostile file points to stays untouched: a pipe there would block whoever opens it."""
    for make in (external_link, virtual, stored_outside):
        folder = tmp_path / make.__name__
        folder.mkdir()

        def change(target: Path, make: Hostile = make, folder: Path = folder) -> None:
            with h5py.File(target, "r+", libver=LIBVER, locking=False) as file:
                make(file, "value", folder)
            for other in list(folder.iterdir()):
                other.unlink()
                os.mkfifo(other)

        _check_refused(bench, "masked", change)


@pytest.mark.parametrize("kind", READERS)
def test_metadata_that_lies_never_reaches_hdf5(bench: Bench, kind: str) -> None:
    """The library would go down over some of it, so it is not asked at all (storage/test_hdf5_parser.py)."""
    path, _, stage, reader = READERS[kind]
    state = bench.at(stage)
    with (
        mock.patch.object(h5py.h5f, "open", side_effect=AssertionError),
        mock.patch.object(h5py, "File", side_effect=AssertionError),
    ):
        assert judged("inspect", state.folder / path).code == 0
        if reader == "freeze":
            assert judged(*_reader(bench, reader)).code == 0


@pytest.fixture(scope="module")
def sealed() -> Iterator[Bench]:
    with scratch() as folder:
        yield Bench(RECIPES["sealed"], folder)


def _a_pipe(path: Path) -> None:
    os.mkfifo(path)


def _zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _one_long_line(path: Path) -> None:
    path.write_bytes(b"age-encryption.org/v1\n-> X25519 ")
    os.truncate(path, 1 << 28)


@pytest.mark.parametrize("make", [_a_pipe, _zeros, _one_long_line])
def test_what_is_no_sealed_share_is_refused_at_once(sealed: Bench, make: Callable[[Path], None]) -> None:
    state = sealed.at("frozen")
    target = state.folder / "shares" / "user-01" / "from-02.h5.age"
    target.unlink()
    make(target)
    with bounded_memory(LITTLE) as grown:
        assert judged(*state.eliminate(1)).code in (65, 66)
        assert not grown()
