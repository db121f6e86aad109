""".npy and .npz files: read exactly, and refused with one clear error when they are anything
else."""

import errno
import io
import struct
import time
import tracemalloc
import warnings
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from played import become, forked, is_root, waited

from topk_secagg.errors import Advice, BadData, InputMissing, SecAggError, UsageError
from topk_secagg.gradients.files import check_writable, read_gradient, write_gradient
from topk_secagg.gradients.formats import suffixes_read
from topk_secagg.gradients.tensors import Gradient, Tensor, left_out

MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3) / 4


def npy(array: object, **options: bool) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def npz(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return stream.getvalue()


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"


def headed(header: str, data: bytes = bytes(64)) -> bytes:
    """A .npy file with any header."""
    text = header.encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def described(descr: str = "'<f4'", shape: str = "(3,)") -> bytes:
    return headed(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}")


def read(folder: Path, suffix: str, content: bytes) -> list[Tensor]:
    path = folder / f"gradient{suffix}"
    path.write_bytes(content)
    return read_gradient(path)


def refused(folder: Path, suffix: str, content: bytes) -> None:
    message = (
        f"gradient{suffix}(: it is damaged, or not what its name says|: it holds an array of type)"
    )
    with pytest.raises(BadData, match=message) as caught:
        read(folder, suffix, content)
    assert caught.value.exit_code == 65
    assert caught.value.hint


# What can be read


BITS = np.array([[0, 1, 1], [1, 0, 1]])
ARRAYS = [
    *map(
        BITS.astype,
        ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint64", "bool"),
    ),
    *(MATRIX.T, np.asfortranarray(MATRIX), MATRIX[:, ::2], MATRIX.astype(">f4")),
    *map(np.ones, ((), (0,), (3, 0), (1, 1, 1))),
    np.array([np.nan, np.inf, -np.inf, -0.0]),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype} {a.shape} {a.strides}")
def test_an_npy_file_is_one_unnamed_tensor_in_any_order_of_memory_and_bytes(tmp_path, array):
    (tensor,) = read(tmp_path, ".npy", npy(array))
    assert (tensor.name, tensor.dtype) == ("", array.dtype.name)
    assert tensor.array.shape == array.shape
    assert tensor.array.astype(tensor.dtype).tobytes() == array.astype(tensor.dtype).tobytes()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_file_is_its_tensors_in_the_order_of_the_file(tmp_path, save):
    arrays = {"z.weight": MATRIX, "a": np.float64(3.5), "m/n": np.zeros(500, dtype=np.float16)}
    save(tmp_path / "gradient.npz", **arrays)
    tensors = read_gradient(tmp_path / "gradient.npz")
    assert [(t.name, t.dtype) for t in tensors] == [
        ("z.weight", "float32"),
        ("a", "float64"),
        ("m/n", "float16"),
    ]
    for tensor, array in zip(tensors, arrays.values(), strict=True):
        assert np.array_equal(tensor.array, array)
        assert tensor.array.shape == array.shape


# Writing and reading again


named = st.lists(
    st.tuples(
        st.text("abc._0/", min_size=1, max_size=6),
        hnp.arrays(
            st.sampled_from(["float16", "float32", "float64"]),
            hnp.array_shapes(min_dims=0, min_side=0, max_side=3),
        ),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda item: item[0],
)


@given(named)
def test_an_npz_file_gives_back_what_was_written(tmp_path_factory, items):
    tensors = Gradient([Tensor(name, array.dtype.name, array) for name, array in items])
    stream, again = io.BytesIO(), io.BytesIO()
    write_gradient(stream, ".npz", tensors)
    write_gradient(again, ".npz", tensors)
    assert stream.getvalue() == again.getvalue(), "the same tensors give the same bytes"
    back = read(tmp_path_factory.mktemp("npz"), ".npz", stream.getvalue())
    for before, after in zip(tensors, back, strict=True):
        assert before[:2] == after[:2]
        assert before.array.shape == after.array.shape
        assert before.array.tobytes() == after.array.tobytes()


def test_an_npy_file_is_all_tensors_one_after_the_other(tmp_path):
    tensors = [
        Tensor("a", "float32", MATRIX),
        Tensor("b", "float32", np.float32([[7]])),
        Tensor("c", "float32", np.asfortranarray(MATRIX)),
    ]
    stream = io.BytesIO()
    write_gradient(stream, ".npy", tensors)
    (tensor,) = read(tmp_path, ".npy", stream.getvalue())
    assert tensor.array.tolist() == [*MATRIX.reshape(-1), 7, *MATRIX.reshape(-1)]


def test_what_was_written_is_read_by_numpy(tmp_path):
    path = tmp_path / "aggregate.npz"
    with path.open("wb") as stream:
        write_gradient(
            stream,
            ".npz",
            Gradient([Tensor("w", "float32", MATRIX), Tensor("", "float32", MATRIX[0])]),
        )
    with np.load(path) as loaded:
        assert sorted(loaded) == ["gradient", "w"]
        assert np.array_equal(loaded["w"], MATRIX)


# Suffixes and missing files


@pytest.mark.parametrize("name", ["gradient.txt", "gradient", "gradient.NPY", "gradient.h5", "npy"])
def test_an_unknown_suffix_is_refused_before_anything_is_read(tmp_path, name):
    for attempt in (read_gradient, check_writable):
        with pytest.raises(UsageError, match=r"no (reader|writer) for|it has no suffix") as caught:
            attempt(tmp_path / name)
        assert ".npy" in caught.value.hint


@pytest.mark.parametrize("suffix", suffixes_read())
def test_a_forbidden_file_cannot_be_read(suffix):
    """In a fork, as another account if this is root's: root may read everything."""

    def attempt() -> None:
        if is_root():
            become(65534)
        with pytest.raises(InputMissing, match="permission denied"):
            read_gradient(path)

    with TemporaryDirectory() as folder:  # every account can get into it, unlike those of pytest
        Path(folder).chmod(0o755)
        path = Path(folder) / f"gradient{suffix}"
        path.touch(mode=0)
        assert waited(forked(attempt)) == 0
        path.chmod(0o644)  # the twin: a file that may be read is refused for another reason
        assert waited(forked(attempt, silent=True)) == 99


# Entries, prefixes and what is None

TORCH = Path(__file__).parents[2] / "fixtures" / "torch-files"


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_an_entry_is_for_checkpoints_of_torch(tmp_path, suffix):
    with pytest.raises(UsageError, match=f"no entry in {suffix} files") as caught:
        read_gradient(tmp_path / f"gradient{suffix}", "model")
    assert caught.value.advice is Advice.NO_ENTRY


def test_a_prefix_is_taken_off_the_names_that_have_it():
    plain = read_gradient(TORCH / "state_dict.pt")
    found = read_gradient(TORCH / "prefixed.pt", strip_prefix="module.")
    assert [t.name for t in found] == [t.name for t in plain]
    assert all(np.array_equal(a.array, b.array) for a, b in zip(found, plain, strict=True))
    again = read_gradient(TORCH / "state_dict.pt", strip_prefix="module.")
    assert [t.name for t in again] == [t.name for t in plain]


def test_a_prefix_goes_with_an_entry_and_with_what_is_none_but_not_with_a_list():
    found = read_gradient(TORCH / "lightning.ckpt", strip_prefix="net.")
    assert [t.name for t in found] == ["weight", "bias"]
    assert found.notes == ("took the entry 'state_dict' of the checkpoint",)
    frozen = read_gradient(TORCH / "frozen.pt", strip_prefix="0.")
    assert frozen.absent == ("weight", "bias", "1.bias")
    assert [t.name for t in read_gradient(TORCH / "list.pt", strip_prefix="1")] == [
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
    ]


def test_names_that_coincide_without_a_prefix_are_refused(tmp_path):
    path = tmp_path / "gradient.npz"
    np.savez(path, **{"weight": MATRIX, "module.weight": MATRIX})
    with pytest.raises(BadData, match=r"same name without the prefix 'module\.'"):
        read_gradient(path, strip_prefix="module.")


def test_a_note_says_what_is_none():
    assert read_gradient(TORCH / "frozen.pt").notes == ("left out, None: 0.weight, 0.bias, 1.bias",)
    assert read_gradient(TORCH / "state_dict.pt").notes == ()
    assert left_out("why", ["a", "b", "c", "d", "e", "f"]) == (
        "left out, why: a, b, c, d and 2 more",
    )


# What is not a gradient


class Bomb:
    """A pickle that says when it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("a pickle was loaded",)


OBJECTS = np.array([Bomb(), 1.0], dtype=object)


def test_pickled_objects_are_refused_and_not_loaded(tmp_path):
    pickled = npy(OBJECTS, allow_pickle=True)
    with pytest.raises(pytest.fail.Exception):
        np.load(io.BytesIO(pickled), allow_pickle=True)
    refused(tmp_path, ".npy", pickled)
    refused(tmp_path, ".npz", npz({"a.npy": npy(MATRIX), "b.npy": pickled}))


@pytest.mark.parametrize(
    "array",
    [
        np.array([1 + 2j]),
        np.array(["text"]),
        np.array([b"bytes"]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        np.zeros(2, dtype=[("a", "<f4"), ("b", "<f4")]),
        np.zeros(2, dtype=np.longdouble),
    ],
    ids=lambda array: str(array.dtype),
)
def test_types_that_no_gradient_has_are_refused(tmp_path, array):
    with pytest.raises(BadData, match="holds an array of type") as caught:
        read(tmp_path, ".npy", npy(array))
    assert "astype" in caught.value.hint
    refused(tmp_path, ".npz", npz({"a.npy": npy(array)}))


OTHER_FILES = (b"", b"\x00", b"hello world", b"\x93NUMPY", b"PK\x03\x04", bytes(1000))
OTHERS = [
    *((suffix, content) for suffix in (".npy", ".npz") for content in OTHER_FILES),
    (".npz", npy(MATRIX)),  # each format under the name of the other
    (".npy", npz({"a.npy": npy(MATRIX)})),
    (".npz", npz({"a.npy": npy(MATRIX), "readme.txt": b"hello"})),
    (".npz", npz({"a.npy": b"hello"})),
    (".npz", npz({"a.npy": npy(MATRIX) + b"\x00"})),
    (".npz", npz({"a.npy": npy(MATRIX)[:-1]})),
    (".npy", npy(MATRIX) + b"\x00"),
    (".npy", npy(MATRIX) + npy(MATRIX)),
]


@pytest.mark.parametrize(("suffix", "content"), OTHERS)
def test_files_of_another_kind_or_with_anything_else_in_them_are_refused(tmp_path, suffix, content):
    refused(tmp_path, suffix, content)


@pytest.mark.parametrize(
    "content",
    [
        described(shape="(10000000000000,)"),
        described(shape="(17,)"),
        described(shape="(100000, 100000)"),
        described(shape="(-1,)"),
        described(shape="(-1, -3)"),
        described(shape="3"),
        described(shape="(3.0,)"),
        described(shape="('3',)"),
        described(shape="(True,)"),
        described(shape="(16, True)"),
        described(shape="(0, 1000000000000000000000000000000)"),
        described(shape="(" + "1, " * 70 + ")"),
        described(descr="'|O'"),
        described(descr="'<f16'"),
        described(descr="'<f3'"),
        described(descr="'(2,3)<f4'"),
        described(descr="None"),
        *map(
            headed,
            ("{'descr': '<f4', 'shape': (3,), }", "[]", "{}", "__import__('os')", "\x00" * 20),
        ),
        *map(headed, ("(" * 3000 + ")" * 3000, HEADER[:-5], "(((", "'''", "{")),
        b"\x93NUMPY\x09\x00" + described()[8:],
    ],
)
def test_wrong_and_truncated_headers_are_refused(tmp_path, content):
    refused(tmp_path, ".npy", content)
    refused(tmp_path, ".npz", npz({"a.npy": content}))


def test_a_header_as_good_as_those_above_is_read(tmp_path):
    (tensor,) = read(tmp_path, ".npy", headed(HEADER, bytes(12)))
    assert tensor.array.tolist() == [0, 0, 0]


# Damage


def cut(content: bytes) -> Iterator[bytes]:
    return (content[:size] for size in range(len(content)))


def flipped(content: bytes, step: int = 1) -> Iterator[bytes]:
    for at in range(0, len(content), step):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[at] ^= 1 << bit
            yield bytes(damaged)


SMALL = {"a.npy": npy(MATRIX), "bias.npy": npy(MATRIX[0])}
LONG = {"a.npy": npy(np.arange(900, dtype=np.float32) % 7), "bias.npy": npy(MATRIX[0])}


def test_a_file_that_is_cut_short_is_refused_wherever_it_is_cut(tmp_path):
    for content in cut(npy(MATRIX)):
        refused(tmp_path, ".npy", content)
    for content in cut(npz(SMALL, zipfile.ZIP_DEFLATED)):
        refused(tmp_path, ".npz", content)


def accepted(folder: Path, suffix: str, content: bytes) -> list[Tensor] | None:
    """The tensors, or None for a clean refusal; a warning or another exception fails the test."""
    try:
        return read(folder, suffix, content)
    except SecAggError:
        return None


def test_a_flipped_bit_in_an_npy_file_is_refused_or_read_without_a_crash(tmp_path):
    crashes = []
    for content in flipped(npy(MATRIX)):
        try:
            accepted(tmp_path, ".npy", content)
        except Exception as error:
            crashes.append(repr(error))
    assert not crashes


@pytest.mark.parametrize(
    "content", [npz(SMALL), npz(LONG, zipfile.ZIP_DEFLATED)], ids=["stored", "deflated"]
)
def test_a_flipped_bit_in_an_npz_file_never_changes_a_tensor(tmp_path, content):
    """A flip in the archive's directory may hide a tensor; the layout then misses it by name."""

    def seen(tensors):
        return [(t.name, t.dtype, t.array.tobytes()) for t in tensors]

    whole = seen(read(tmp_path, ".npz", content))
    crashes = []
    changed = 0
    for damaged in flipped(content, step=2):
        try:
            tensors = accepted(tmp_path, ".npz", damaged)
        except Exception as error:
            crashes.append(repr(error))
        else:
            changed += tensors is not None and not set(seen(tensors)) <= set(whole)
    assert not crashes
    assert not changed


def test_a_directory_before_the_start_of_an_archive_is_damage(tmp_path):
    """The operating system calls such a place an invalid argument, and the file is to blame."""
    content = npz(SMALL)
    for bit in range(8):
        damaged = bytearray(content)
        damaged[-6] ^= 1 << bit  # of where the directory is
        refused(tmp_path, ".npz", bytes(damaged))
    high = bytearray(content)
    high[-3] ^= 0x80
    refused(tmp_path, ".npz", bytes(high))


def test_other_errors_of_the_system_are_not_the_files_fault(tmp_path, monkeypatch):
    def failing(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("topk_secagg.gradients.formats.npy.read_array", failing)
    with pytest.raises(InputMissing, match=r"cannot read .*: input/output error"):
        read(tmp_path, ".npy", npy(MATRIX))


def test_a_header_of_python_2_is_read_without_a_warning_of_numpy(tmp_path):
    content = headed(HEADER.replace("(3,)", "(3L,)"), bytes(12))
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        (tensor,) = read(tmp_path, ".npy", content)
    assert tensor.array.tolist() == [0, 0, 0]
    assert not shown


@pytest.mark.parametrize("bug", [NameError, AttributeError, TypeError, AssertionError])
@pytest.mark.parametrize(
    ("suffix", "function"),
    [
        (".npy", "npy.read_array"),
        (".npz", "npz.read_array"),
        (".safetensors", "safetensors.widen"),
        (".pt", "torch_file._leaves"),
        (".pt", "torch_archive.Archive.array"),
    ],
)
def test_a_bug_of_a_reader_is_not_taken_for_a_damaged_file(
    tmp_path, monkeypatch, suffix, function, bug
):
    """Or the tests of damaged files would pass whatever a reader does."""
    path = tmp_path / f"gradient{suffix}"
    with path.open("wb") as stream:
        kind = "bfloat16" if suffix == ".safetensors" else "float32"
        write_gradient(stream, suffix, Gradient([Tensor("a", kind, np.ones(3, np.float32))]))
    read_gradient(path)

    def broken(*_, **__):
        raise bug("ours")

    monkeypatch.setattr(f"topk_secagg.gradients.formats.{function}", broken)
    with pytest.raises(bug, match="ours"):
        assert read_gradient(path)[0].array


def test_a_header_that_is_no_description_is_refused(tmp_path):
    for text in (
        b"{[]: 1}",
        b"{'descr': 3, 'fortran_order': False, 'shape': ()}",
        b"(",
        b"[1] + 1",
    ):
        header = text.ljust(117) + b"\n"
        refused(tmp_path, ".npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)


def test_two_arrays_of_one_name_are_refused(tmp_path):
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("a.npy", npy(MATRIX))
            archive.writestr("a.npy", npy(MATRIX + 1))
    refused(tmp_path, ".npz", stream.getvalue())


def test_a_zip_bomb_and_a_header_with_an_absurd_shape_take_no_memory(tmp_path):
    path = tmp_path / "bomb.npz"
    absurd = described(shape="(50000000,)")
    np.savez_compressed(path, a=np.zeros(100_000_000, dtype=np.float32))
    assert path.stat().st_size < 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(BadData, match="far more than the file holds"):
            read_gradient(path)
        refused(tmp_path, ".npy", absurd)
        refused(tmp_path, ".npz", npz({"a.npy": absurd}))
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("suffix", "function"), [(".pt", "zipfile.ZipFile"), (".npy", "numpy.lib.format.read_magic")]
)
def test_a_disk_that_fails_is_not_the_fault_of_the_file(tmp_path, monkeypatch, suffix, function):
    path = tmp_path / f"gradient{suffix}"
    with path.open("wb") as stream:
        write_gradient(stream, suffix, Gradient([Tensor("", "float32", np.ones(3, np.float32))]))

    def fail(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(function, fail)
    with pytest.raises(InputMissing, match="input/output error"):
        read_gradient(path)


def test_threads_read_headers_of_numpy_one_after_the_other(tmp_path, monkeypatch):
    """numpy reads them with `ast`, which fails in two threads of Python 3.11 at once."""
    path = tmp_path / "gradient.npy"
    np.save(path, np.arange(3.0))
    reading = Lock()
    read_header = np.lib.format.read_array_header_1_0

    def alone(stream: io.BufferedReader) -> object:
        assert reading.acquire(blocking=False), "two threads read a header"
        try:
            time.sleep(0.01)
            return read_header(stream)
        finally:
            reading.release()

    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", alone)
    with ThreadPoolExecutor(4) as pool:
        for gradient in pool.map(read_gradient, [path] * 8):
            assert gradient[0].array.tolist() == [0, 1, 2]
