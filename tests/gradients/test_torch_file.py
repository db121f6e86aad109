"""Torch files are read as torch reads them, or refused; nothing in them is run, and memory stays
bounded."""

import contextlib
import importlib.util
import io
import json
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from topk_secagg.errors import Advice, BadData
from topk_secagg.gradients.formats import torch_archive, torch_file, torch_pickle
from topk_secagg.gradients.formats.torch_file import read
from topk_secagg.gradients.formats.torch_writer import write
from topk_secagg.gradients.tensors import Gradient, Tensor

FIXTURES = Path(__file__).parents[2] / "fixtures" / "torch-files"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())
GOOD = sorted({case["file"] for case in EXPECTED})
DTYPES = list(torch_archive.DTYPES.values())

PROTO = b"\x80\x02"
ORDERED_DICT = b"ccollections\nOrderedDict\n)R"


# Pickles and zips by hand, to say what torch.save never would.


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def integer(value: int) -> bytes:
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def integers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(integer, values)) + b"t"


def storage(
    kind: str = "FloatStorage", key: str = "0", device: str = "cpu", length: int = 4
) -> bytes:
    return (
        b"("
        + text("storage")
        + f"ctorch\n{kind}\n".encode()
        + text(key)
        + text(device)
        + integer(length)
        + b"tQ"
    )


def tensor(
    size: tuple[int, ...] = (4,),
    stride: tuple[int, ...] = (1,),
    offset: int = 0,
    where: bytes = storage(),
    metadata: bytes = b"",
) -> bytes:
    layout = integer(offset) + integers(size) + integers(stride)
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + where
        + layout
        + b"\x89"
        + ORDERED_DICT
        + metadata
        + b"tR"
    )


def archive(path: Path, code: bytes, members: dict[str, bytes] | None = None) -> Path:
    """A torch file around a pickle, with the four float32 0, 1, 2, 3 as storage 0."""
    contents = {
        "data.pkl": PROTO + code,
        "byteorder": b"little",
        "data/0": np.arange(4, dtype="<f4").tobytes(),
    }
    with zipfile.ZipFile(path, "w") as target:
        for name, content in (contents | (members or {})).items():
            target.writestr(f"archive/{name}", content)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "gradient.pt"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("torch") / "gradient.pt"


def assert_same(tensors: list[Tensor], expected: list[dict[str, Any]]) -> None:
    for got, wanted in zip(tensors, expected, strict=True):
        assert (got.name, got.dtype, list(got.array.shape)) == (
            wanted["name"],
            wanted["dtype"],
            wanted["shape"],
        )
        assert got.array.dtype == np.dtype("float32" if got.dtype == "bfloat16" else got.dtype)
        assert got.array.tobytes().hex() == wanted["hex"]


def refusal(path: Path, entry: str = "") -> BadData:
    with pytest.raises(BadData) as caught:
        read(path, entry)
    error = caught.value
    assert error.contexts[0] == path
    assert error.hint
    said = str(error) + error.hint
    assert "\n" not in said
    assert len(said) < 2500
    assert not error.said_of(path)[0].isupper()
    return error


# Good files.


@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: f"{case['file']}-{case['entry']}")
def test_files_of_torch_read_as_torch_reads_them(case):
    found = read(FIXTURES / case["file"], case["entry"])
    assert_same(found, [t for t in case["tensors"] if "hex" in t])
    assert list(found.absent) == [t["name"] for t in case["tensors"] if "hex" not in t]


def test_every_fixture_is_used():
    names = {p.name for p in FIXTURES.iterdir() if p.suffix in (".pt", ".ckpt")}
    assert {name for name in names if not name.startswith("bad_")} == set(GOOD)
    assert {name for name in names if name.startswith("bad_")} == {
        f"bad_{name}.pt" for name in REFUSED
    }


def test_reading_needs_no_torch():
    code = f"""
import sys
from pathlib import Path
from topk_secagg.gradients.formats.torch_file import read
assert len(read(Path({str(FIXTURES / "views.pt")!r}))) == 15
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=FIXTURES.parents[1])


def test_a_file_made_by_hand_is_read_and_any_byte_but_zero_is_true(path):
    [t] = read(archive(path, tensor((2, 2), (1, 2)) + b"."))
    assert (t.name, t.dtype, t.array.tolist()) == ("", "float32", [[0, 2], [1, 3]])
    code = tensor((3,), where=storage("BoolStorage", length=3)) + b"."
    [t] = read(archive(path, code, {"data/0": b"\x00\x02\xff"}))
    assert t.array.view(np.uint8).tolist() == [0, 1, 1]


def test_only_the_storages_of_the_entry_are_read_and_views_share_memory(path):
    broken = tensor(where=storage(key="missing"))
    archive(path, b"}(" + text("a") + tensor() + text("b") + broken + b"u.")
    assert [t.name for t in read(path, "a")] == [""]
    assert "'data/missing' is missing" in str(refusal(path))
    tensors = {t.name: t.array for t in read(FIXTURES / "views.pt")}
    assert np.shares_memory(tensors["base"], tensors["transposed"])
    # the longest key goes first
    assert [t.array.tolist() for t in read(FIXTURES / "checkpoint.pt", "model.best.weight")] == [
        [1, 1]
    ]
    assert [t.name for t in read(FIXTURES / "checkpoint.pt", "model")] == ["weight", "bias"]


# Entries that cannot be had.


@pytest.mark.parametrize(
    ("file", "entry", "message", "hint"),
    [
        (
            "checkpoint",
            "",
            "'optimizer.param_groups.0.lr' is of the type float",
            "'model', 'model.best', '",
        ),
        ("checkpoint", "epoch", "'epoch' is of the type int", "'gradients'"),
        ("checkpoint", "note", "'note' is of the type str", "'gradients'"),
        ("checkpoint", "nothing", "'nothing' is None", "'gradients'"),
        ("checkpoint", "limits", "'limits.0' is of the type int", "'gradients'"),
        ("checkpoint", "size", "'size' is a torch.Size", "'gradients'"),
        ("checkpoint", "type", "'type' is a torch.float32", "'gradients'"),
        ("checkpoint", "complex buffer", "its tensor: it is complex", "view_as_real"),
        ("checkpoint", "modle", "no entry 'modle'", "'gradients'"),
        ("checkpoint", "gradients.7", "no entry 'gradients.7'", "'gradients'"),
        ("checkpoint", "gradients.-1", "no entry 'gradients.-1'", "'gradients'"),
        ("checkpoint", "epoch.0", "no entry 'epoch.0'", "'gradients'"),
        ("tensor", "weight", "no entry 'weight'", "nothing but tensors"),
        ("state_dict", "weight", "no entry 'weight'", "nothing but tensors"),
    ],
)  # fmt: skip
def test_an_entry_without_tensors_is_named_with_the_possible_choices(file, entry, message, hint):
    error = refusal(FIXTURES / f"{file}.pt", entry)
    assert message in str(error)
    assert hint in error.hint
    advice = {"'gradients'": Advice.ENTRY, "nothing but tensors": Advice.NO_ENTRY}
    assert error.advice is advice.get(hint, error.advice)


# The entry that is obvious, and what is None.

WEIGHTS = {"weight": tensor(), "bias": tensor()}
OPTIMIZER = {"state": {"0": {"step": tensor(), "exp_avg": tensor()}}, "param_groups": [{"lr": 3}]}


def pickled(value: Any) -> bytes:
    """A pickle of dicts, lists, numbers, None and tensors (which are pickles already)."""
    match value:
        case bytes():
            return value
        case None:
            return b"N"
        case int():
            return integer(value)
        case dict():
            return b"}(" + b"".join(text(key) + pickled(item) for key, item in value.items()) + b"u"
        case list():
            return b"](" + b"".join(map(pickled, value)) + b"e"
    raise TypeError(value)


@pytest.mark.parametrize(
    ("content", "entry"),
    [
        ({"state_dict": WEIGHTS}, "state_dict"),
        ({"state_dict": WEIGHTS, "epoch": 3}, "state_dict"),
        ({"state_dict": WEIGHTS, "scheduler": None}, "state_dict"),
        ({"state_dict": WEIGHTS, "ema": WEIGHTS, "epoch": 3}, "state_dict"),
        ({"model_state_dict": WEIGHTS, "ema": WEIGHTS, "optimizer": OPTIMIZER}, "model_state_dict"),
        ({"model": WEIGHTS, "optimizer": OPTIMIZER, "rng": tensor()}, "model"),
        ({"model": {"weight": tensor(), "bias": None}, "epoch": 3}, "model"),
        ({"gradients": [tensor(), None], "epoch": 3}, "gradients"),
    ],
)
def test_the_obvious_entry_of_a_checkpoint_is_taken_and_a_note_says_so(path, content, entry):
    archive(path, pickled(content) + b".")
    found, named = read(path), read(path, entry)
    assert found.notes == (f"took the entry {entry!r} of the checkpoint",)
    assert named.notes == ()
    assert (described(found), found.absent, found.sequence) == (
        described(named),
        named.absent,
        named.sequence,
    )


@pytest.mark.parametrize(
    "content",
    [
        {"state_dict": WEIGHTS, "model_state_dict": WEIGHTS, "epoch": 3},
        {"model": WEIGHTS, "ema": WEIGHTS, "epoch": 3},
        {"model": WEIGHTS, "gradients": [tensor()], "epoch": 3},
        {"nested": {"model": WEIGHTS}, "epoch": 3},
        {"weight": tensor(), "epoch": 3},
        OPTIMIZER,
        [WEIGHTS, 3],
    ],
    ids=str,
)
def test_an_ambiguous_entry_is_not_guessed(path, content):
    error = refusal(archive(path, pickled(content) + b"."))
    assert "not a tensor" in str(error)
    assert error.advice is Advice.ENTRY


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (
            {"state_dict": WEIGHTS, "head": tensor()},
            ["state_dict.weight", "state_dict.bias", "head"],
        ),
        (
            {"encoder": WEIGHTS, "head": {"weight": tensor()}},
            ["encoder.weight", "encoder.bias", "head.weight"],
        ),
        ([WEIGHTS], ["0.weight", "0.bias"]),
    ],
)
def test_of_a_file_that_is_all_tensors_nothing_is_left_out(path, content, names):
    found = read(archive(path, pickled(content) + b"."))
    assert sorted(t.name for t in found.under_every_name()) == sorted(names)
    assert (found.notes, found.sequence) == ((), False)


def test_what_is_none_is_not_a_tensor_but_has_a_name(path):
    found = read(archive(path, pickled({"a": tensor(), "b": None, "c": {"d": None}}) + b"."))
    assert [t.name for t in found] == ["a"]
    assert found.absent == ("b", "c.d")
    for second in (None, tensor()):
        twice = archive(path, pickled({"a.b": tensor(), "a": {"b": second}}) + b".")
        assert "two of its tensors are called 'a.b'" in str(refusal(twice))


@pytest.mark.parametrize("content", [{"a": None}, [None, None], {"a": {"b": None}}])
def test_a_file_in_which_all_is_none_is_refused(path, content):
    error = refusal(archive(path, pickled(content) + b"."))
    assert "all that it holds is None" in str(error)
    assert "backward" in error.hint


@pytest.mark.parametrize(
    ("file", "entry", "sequence"),
    [
        ("list.pt", "", True),
        ("tuple.pt", "", True),
        ("frozen_list.pt", "", True),
        ("checkpoint.pt", "gradients", True),
        ("list.pt", "2", False),
        ("tensor.pt", "", False),
        ("frozen.pt", "", False),
        ("nested.pt", "heads", False),
    ],
)
def test_a_list_of_tensors_is_distinguished_from_a_mapping(file, entry, sequence):
    assert read(FIXTURES / file, entry).sequence is sequence


def test_a_hint_lists_some_of_many_entries(path):
    items = b"".join(text(f"w{i}") + tensor() for i in range(50))
    error = refusal(archive(path, b"}(" + items + text("step") + b"K\x07u."))
    assert "'step' is of the type int" in str(error)
    assert error.hint.endswith("'w11', ... (50 in all)")


# Files that are not what is asked for.

REFUSED = {
    "module": ("pickled 'torch.nn.modules.linear.Linear'", "state_dict"),
    "sparse": ("'weight': it is sparse", "to_dense"),
    "csr": ("'weight': it is sparse", "to_dense"),
    "quantised": ("'weight': it is quantised", "dequantize"),
    "complex": ("'weight': it is complex", "view_as_real"),
    "conjugated": ("'weight': it is complex", "view_as_real"),
    "negated": ("negated or conjugated lazily", "resolve_neg"),
    "float8": ("of the type float8_e4m3fn", "float32"),
    "uint16": ("of the type uint16", "float32"),
    "meta": ("'weight': it is a meta tensor", "cpu"),
    "nested_tensor": ("nested tensor", "unbind"),
    "numpy": ("pickled 'numpy._core.multiarray._reconstruct'", "only tensors"),
    "no_tensor": ("'epoch' is of the type int", "only tensors"),
    "legacy": ("old format", "newer torch"),
    "protocol": ("not of protocol 2", "pickle_protocol"),
    "torchscript": ("TorchScript", "torch.jit.load(path).state_dict()"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_files_of_torch_are_refused_with_a_hint_that_helps(name):
    error = refusal(FIXTURES / f"bad_{name}.pt")
    message, hint = REFUSED[name]
    assert message in str(error)
    assert hint in error.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\x93NUMPY\x01\x00", "not a file of torch.save"),
        (b"\x80\x04\x95.", "plain pickle"),
        (b"PK\x03\x04" + bytes(100), "damaged"),
        (b"PK\x05\x06" + bytes(18), "not a file of torch.save"),
    ],
)
def test_files_of_other_formats_are_refused(path, content, message):
    path.write_bytes(content)
    assert message in str(refusal(path))


def test_a_file_cut_short_anywhere_is_refused(path):
    whole = (FIXTURES / "tensor.pt").read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refusal(path)


# Zips that lie.


def test_a_flipped_bit_in_a_storage_or_in_the_pickle_is_found(path):
    archive(path, tensor() + b".")
    whole = path.read_bytes()
    for piece in (np.arange(4, dtype="<f4").tobytes(), b"_rebuild_tensor_v2", b"little"):
        at = whole.index(piece)
        path.write_bytes(whole[: at + 4] + bytes([whole[at + 4] ^ 1]) + whole[at + 5 :])
        assert "CRC does not match" in str(refusal(path))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_compressed_members_and_a_member_that_is_there_twice_are_refused(path):
    archive(path, tensor() + b".")
    with zipfile.ZipFile(path, "a") as target:
        target.writestr("archive/data/0", bytes(16))
    assert "'archive/data/0' is there twice" in str(refusal(path))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("archive/data.pkl", PROTO + tensor() + b".")
        target.writestr("archive/data/0", bytes(1 << 20))
    assert "is compressed" in str(refusal(path))


def test_members_at_the_same_place_are_refused(path):
    archive(path, tensor() + b".", {"data/1": bytes(16)})
    content = path.read_bytes()
    with zipfile.ZipFile(path) as source:
        first, second = (source.getinfo(f"archive/data/{key}").header_offset for key in (0, 1))
    directory = content.rindex(b"archive/data/1") - 4
    assert struct.unpack_from("<L", content, directory) == (second,)
    path.write_bytes(content[:directory] + struct.pack("<L", first) + content[directory + 4 :])
    assert "overlaps another one" in str(refusal(path))
    path.write_bytes(content[:directory] + struct.pack("<L", 1 << 31) + content[directory + 4 :])
    assert "damaged" in str(refusal(path))


def set_at(content, at, value):
    return content[:at] + value + content[at + len(value) :]


def in_entry(content, offset, value):
    """Change the entry of data/0 in the directory, counted from its name."""
    return set_at(content, content.rindex(b"archive/data/0") + offset, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.replace(b"PK\x03\x04\x14\0\0", b"PK\x03\x04\x14\0\1"), "encrypted"),
        (lambda c: c.replace(b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\x40\0"), "encrypted"),
        (
            lambda c: c.replace(b"PK\3\4\x14\0\0\0\0\0", b"PK\3\4\x14\0\0\0\x08\0"),
            "two different headers",
        ),
        (lambda c: c.replace(b"PK\3\4\x14\0", b"PK\0\0\x14\0"), "not a file of torch.save"),
        (lambda c: c.replace(b"archive/data.pkl", b"archive/data.pk\0"), "not one of torch.save"),
        (
            lambda c: c.replace(b"archive/data.pkl", b"archive/code.pkl"),
            "a zip, but not one of torch.save",
        ),
        (lambda c: c.replace(b"archive/data/0", b"another/data/0"), "not one of torch.save's"),
        (lambda c: c.replace(b"archive/data/0", b"archive/data/1"), "'data/0' is missing"),
        (lambda c: c.replace(b"archive/data/0", b"archive/data/1", 1), "two different headers"),
        (lambda c: b"PK\3\4" + bytes(60) + c, "in front of its zip"),
        (
            lambda c: in_entry(c, -26, struct.pack("<LL", 1 << 30, 1 << 30)),
            "overlaps another one",
        ),  # its sizes
        (lambda c: in_entry(c, -8, b"\x10"), "'archive/data/0' is a directory"),
    ],
)
def test_zips_that_torch_does_not_write_are_refused(path, change, message):
    content = archive(path, tensor() + b".").read_bytes()
    path.write_bytes(change(content))
    assert path.read_bytes() != content
    assert message in str(refusal(path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *(("byteorder", order, "byte order") for order in (b"", b"middle", b"little\n", b"BIG")),
        ("data/0", bytes(15), "part of a number"),
    ],
)
def test_members_that_torch_does_not_write_are_refused(path, name, content, message):
    assert message in str(refusal(archive(path, tensor() + b".", {name: content})))


# Tensors that lie.


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (tensor((5,)), "reaches beyond its storage"),
        (tensor((2,), (4,)), "reaches beyond its storage"),
        (tensor((1,), offset=4), "reaches beyond its storage"),
        (tensor((), (), offset=4), "reaches beyond its storage"),
        (tensor((2, 2), (2**62, 1)), "reaches beyond its storage"),
        (tensor((4,), (1,), offset=2**200), "reaches beyond its storage"),
        (tensor((-1,)), "negative size"),
        (tensor((4,), (-1,), offset=3), "negative size"),
        (tensor((4,), offset=-1), "negative size"),
        (tensor((-2, -2), (1, 1)), "negative size"),
        (tensor((4,), ()), "no tensor has"),
        (tensor((1,) * 33, (1,) * 33), "no tensor has"),
        (tensor().replace(integers((4,)), b"G" + bytes(8) + b"\x85"), "no tensor has"),
        (tensor().replace(integers((4,)), text("4") + b"\x85"), "no tensor has"),
        (tensor().replace(integers((4,)), b"(\x88t"), "no tensor has"),
        (tensor().replace(integers((4,)), b"](K\x04e"), "of a kind unknown here"),
        (tensor((0, 2**70), (1, 1)), "it is damaged"),
        (tensor((2**40,), (0,)), "far more than the file holds"),
        (tensor((2**62, 2**62), (0, 0)), "far more than the file holds"),
        (tensor(where=storage(length=3)), "another size or type"),
        (tensor(where=storage(length=-4)), "another size or type"),
        (tensor(where=storage("DoubleStorage", length=4)), "another size or type"),
        (tensor(where=storage("IntStorage")) + tensor() + b"\x86", "another size or type"),
        (tensor(where=storage(key="../data.pkl")), "is missing"),
        (tensor(where=storage(device="meta")), "meta tensor"),
        (tensor(where=storage("ComplexFloatStorage", length=2)), "is complex"),
        (tensor(where=storage("QInt8Storage", length=16)), "is in a 'torch.QInt8Storage'"),
        (tensor(where=storage("UntypedStorage", length=16)), "is in a 'torch.UntypedStorage'"),
        (tensor(where=b"N"), "of a kind unknown here"),
        (tensor(metadata=b"}" + text("neg") + b"\x88s"), "negated or conjugated lazily"),
        (tensor(metadata=b"}" + text("conj") + b"\x88s"), "negated or conjugated lazily"),
        (tensor(metadata=b"}}"), "of a kind unknown here"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)R", "of a kind unknown here"),
        (b"ctorch._utils\n_rebuild_parameter\n)R", "of a kind unknown here"),
        (b"ctorch._utils\n_rebuild_parameter\nN\x85R", "of a kind unknown here"),
        (b"ctorch._utils\n_rebuild_wrapper_subclass\n)R", "of a kind unknown here"),
        (
            b"ctorch._utils\n_rebuild_parameter\n" * 4 + tensor() + b"\x85R" * 4,
            "of a kind unknown here",
        ),
    ],
)  # fmt: skip
def test_impossible_tensors_are_refused(path, code, message):
    assert message in str(refusal(archive(path, code + b".")))


# Pickles that lie.

RUN = text("touch MARKER") + b"\x85R."
SELF = b"]q\x00"


def doubling(levels: int, width: int = 2, bottom: bytes = b"]") -> bytes:
    """Lists of `width` references to the list before: width^levels times `bottom`."""
    steps = (
        b"]q" + bytes([i]) + b"(" + (b"h" + bytes([i - 1])) * width + b"e"
        for i in range(1, levels + 1)
    )
    return bottom + b"q\x00" + b"".join(steps) + b"."


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (b"cos\nsystem\n" + RUN, "pickled 'os.system'"),
        (b"cposix\nsystem\n" + RUN, "pickled 'posix.system'"),
        (b"c__builtin__\neval\n" + RUN, "pickled '__builtin__.eval'"),
        (b"cbuiltins\ngetattr\n" + RUN, "pickled 'builtins.getattr'"),
        (b"ctorch\nload\n" + RUN, "pickled 'torch.load'"),
        (b"ctorch.storage\n_load_from_bytes\n" + RUN, "pickled 'torch.storage._load_from_bytes'"),
        (b"ctorch.hub\nload\n" + RUN, "pickled 'torch.hub.load'"),
        (b"ctorch\nfloat32.os\n.", "pickled 'torch.float32.os'"),
        (b"c" + b"x" * 5000 + b"\ny\n.", "xxx...'"),
        (b"c\x1b[31m\x00\ny\n.", "\\x1b[31m"),
        (b"c__builtin__\nset\n" + RUN, "its content is a __builtin__.set"),
        (b"ctorch\nSize\n" + RUN, "its content is a torch.Size"),
        (b"ios\nsystem\n.", "opcode INST"),
        (b"(cos\n", "damaged"),
        (b")\x81.", "opcode NEWOBJ"),
        (b"\x8c\x02os\x8c\x06system\x93.", "opcode SHORT_BINUNICODE"),
        (b"\x82\x01.", "opcode EXT1"),
        (b"N2.", "opcode DUP"),
        (b"]0.", "opcode POP"),
        (b"\x8b\xff\xff\xff\x7f.", "damaged"),
        (b"\x8e" + b"\xff" * 8, "damaged"),
        (b"\x96" + b"\xff" * 8, "damaged"),
        (b"I" + b"9" * 5000 + b"\n.", "damaged"),
        (b"\x80\x04.", "not of protocol 2"),
        (b"X\xff\xff\xff\xffab", "damaged"),
        (b"X\x01\x00\x00\x00\xff.", "damaged"),
        (b"X\x03\x00\x00\x00\xed\xa0\x80.", "damaged"),  # a surrogate
        (b"\x8a\xff\x01", "damaged"),
        (b"]", "damaged"),
        (b"G\x00", "damaged"),
        (b".", "damaged"),
        (b"(.", "damaged"),
        (b"N\x86.", "damaged"),
        (b"R.", "damaged"),
        (b"t.", "damaged"),
        (b"q\x00.", "damaged"),
        (b"h\x00.", "damaged"),
        (b"Na.", "damaged"),
        (b"}Na.", "not a list"),
        (b"]NNs.", "not a dict"),
        (b"]}b.", "not a dict"),
        (b"}(NNNu.", "damaged"),
        (b"})Ns.", "neither text nor a number"),
        (b"}]Ns.", "neither text nor a number"),
        (b"}" + b")" + b"\x85" * 40_000 + b"Ns.", "neither text nor a number"),
        (b"}(K\x01N" + text("1") + b"Nu.", "the key '1' twice"),
        (b"N)R.", "not a function"),
        (b"ctorch\nSize\nNR.", "not a function"),
        (b"NQ.", "not a storage"),
        (b"(" + text("module") + b"tQ.", "not a storage"),
        (storage() + b".", "its content is of the type storage, not a tensor"),
        (ORDERED_DICT[:-2] + b"]\x85R.", "its content is a collections.OrderedDict"),
        (b"Nr\xff\xff\xff\xff.", "its content is None"),
        (b"}.", "no tensor"),
        (b"]h\x00.", "damaged"),
        (SELF + b"h\x00a.", "nested over 32 deep, or in themselves"),
        (SELF + b"(h\x00h\x00e.", "nested over 32 deep, or in themselves"),
        (b"}q\x00" + text("a") + b"h\x00s.", "nested over 32 deep, or in themselves"),
        (b"]" * 40_000 + b"a" * 39_999 + b".", "far more|nested over 32 deep"),
        (doubling(31), "far more than the file holds"),
        (doubling(60), "nested over 32 deep"),
        (doubling(5, width=500), "far more than the file holds"),
    ],
)  # fmt: skip
def test_pickles_that_torch_does_not_write_are_refused(path, code, message, monkeypatch):
    monkeypatch.chdir(path.parent)
    error = refusal(archive(path, code))
    assert any(part in str(error) for part in message.split("|")), str(error)
    assert not (path.parent / "MARKER").exists()


def test_a_module_that_the_file_names_is_not_imported(path):
    assert "antigravity" not in sys.modules
    refusal(archive(path, b"cantigravity\nfly\n)R."))
    assert "antigravity" not in sys.modules


# Memory.

MANY = 1 << 19
EMPTY = tensor((0,), (1,))
EXPANDED = tensor((MANY,), (0,))  # 2 MiB of 4 bytes: one such is allowed
SLOTS = (b"r" + struct.pack("<I", slot * 99991 % 2**32) for slot in range(MANY // 5))
NAMES = b"".join(integer(i) + b"h\x00" for i in range(10_000))
GREEDY = {
    "dicts": b"}" * MANY,
    "lists": b"]" * MANY,
    "marks": b"(" * MANY,
    "tuples in tuples": b")" + b"\x85" * MANY + b".",
    "dicts of one": b"}K\x01Ns" * (MANY // 5),
    "memo": b"N" + b"".join(SLOTS) + b".",
    "memo slots": b"Nr\xff\xff\xff\xffr\xff\xff\xff\x7f.",
    "wide text": text("\U0001f600" + "a" * MANY) + b".",
    "false length": b"X\xff\xff\xff\x7f" + b"a" * MANY,
    "one expanded tensor": tensor((2**34,), (0,)) + b".",
    "many expanded tensors": EXPANDED + b"q\x00(" + b"h\x00" * 10_000 + b"t.",
    "many empty tensors": doubling(3, width=900, bottom=EMPTY),
    "long names": EMPTY + b"q\x00}" + text("k" * 50_000) + b"}(" + NAMES + b"us.",
    "wide names": EMPTY + b"q\x00}" + text("\U0001f600" + "k" * 50_000) + b"}(" + NAMES + b"us.",
    "a dict in itself": b"}q\x00(" + NAMES + text("x") + b"Nu.",
}


def peak(path: Path) -> int:
    """The most memory that is in use at once while a file is refused."""
    tracemalloc.start()
    try:
        refusal(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def allowed(path: Path) -> int:
    """The budget, and the bytes of the pickle once as an array and once as text."""
    size = path.stat().st_size
    return torch_pickle.BUDGET_FACTOR * size + torch_pickle.BUDGET_FLOOR + 4 * size


@pytest.mark.parametrize("name", GREEDY)
def test_a_small_file_never_takes_much_memory(path, name):
    archive(path, GREEDY[name])
    assert peak(path) <= allowed(path)


def test_many_members_do_not_take_much_memory(path):
    with zipfile.ZipFile(path, "w") as target:
        for i in range(5000):
            target.writestr(zipfile.ZipInfo(f"a/{i}"), b"")
    assert peak(path) <= allowed(path)


def test_within_the_budget_tensors_are_read_and_without_it_memory_grows(path, monkeypatch):
    [t] = read(archive(path, EXPANDED + b"."))
    assert (t.array.shape, t.array.strides) == ((MANY,), (0,))
    archive(path, GREEDY["dicts"])
    limit = allowed(path)
    monkeypatch.setattr(torch_pickle, "BUDGET_FLOOR", 1 << 40)
    assert peak(path) > 2 * limit


def test_an_absurdly_large_pickle_is_refused_unread(path, monkeypatch):
    monkeypatch.setattr(torch_file, "_MAX_PICKLE", 100)
    assert "pickle is too large" in str(refusal(archive(path, tensor() + b".")))


# Time.


def deep_with_long_keys(path: Path) -> Path:
    """A small file whose leaves all have names of 1.5 MB."""
    into = b"}" + text("k" * 50_000) + b"q\x00" + b"}h\x00" * 29
    return archive(path, into + b"](" + b"N" * 500 + b"e" + b"s" * 30 + b".")


A_WHILE = 0.04  # seconds: twenty times what it takes, and a third of what names would take


def seconds_to_look_for_an_entry(path: Path) -> float:
    """The fewest of three."""
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        assert "no entry 'a'" in str(refusal(path, "a"))
        taken.append(time.perf_counter() - start)
    return min(taken)


@pytest.mark.rule(18)
def test_an_entry_is_looked_for_without_putting_names_together(path):
    assert seconds_to_look_for_an_entry(deep_with_long_keys(path)) < A_WHILE


@pytest.mark.rule(18)
def test_twin_where_names_are_put_together_it_takes_long(path, monkeypatch):
    def naive(keys, entry):
        lengths = range(1, len(keys) + 1)
        return next((n for n in lengths if torch_file._name(keys[:n]) == entry), 0)

    monkeypatch.setattr(torch_file, "_reach", naive)
    assert seconds_to_look_for_an_entry(deep_with_long_keys(path)) > A_WHILE


@given(
    keys=st.lists(st.one_of(st.text("a.", max_size=3), st.integers(0, 11)), min_size=1, max_size=4),
    entry=st.text("a.1", min_size=1, max_size=7),
)
def test_an_entry_is_found_where_its_name_says(keys, entry):
    names = [torch_file._name(tuple(keys[:n])) for n in range(1, len(keys) + 1)]
    expected = names.index(entry) + 1 if entry in names else 0
    assert torch_file._reach(tuple(keys), entry) == expected


# Damage at random: a file is read or refused, and no other error gets out.


def tolerant(path: Path) -> None:
    with contextlib.suppress(BadData):
        read(path)


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(
        sorted(p.name for p in FIXTURES.iterdir() if p.suffix in (".pt", ".ckpt"))
    ),
    edits=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=8),
)
def test_damaged_files_are_read_or_refused(scratch, name, edits):
    content = bytearray((FIXTURES / name).read_bytes())
    for at, value in edits:
        content[at % len(content)] = value
    scratch.write_bytes(content)
    tolerant(scratch)


# Python itself warns of a backslash that damage has made
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
@settings(max_examples=300, deadline=None)
@example(name="views", edits=[(16, ord("\\"))])
@given(
    name=st.sampled_from(
        ["views", "checkpoint", "parameters", "bad_sparse", "bad_quantised", "bad_negated"]
    ),
    edits=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_damaged_pickles_with_a_good_crc_are_read_or_refused(scratch, name, edits):
    with zipfile.ZipFile(FIXTURES / f"{name}.pt") as source:
        members = {n.partition("/")[2]: source.read(n) for n in source.namelist()}
    code = bytearray(members["data.pkl"][2:])
    for at, value in edits:
        code[at % len(code)] = value
    tolerant(archive(scratch, b"", members | {"data.pkl": PROTO + bytes(code)}))


OPCODES = [bytes([c]) for c in b"hjqrKMJ\x8aGXN\x88\x89()t\x85\x86\x87]ae}sucRbQ."]
PIECES = [
    *OPCODES,
    tensor(),
    storage(),
    text("a"),
    b"K\x00",
    b"q\x00",
    b"h\x00",
    b"ctorch\nSize\n",
    ORDERED_DICT,
]


@settings(max_examples=300, deadline=None)
@given(code=st.lists(st.sampled_from(PIECES), max_size=30))
def test_any_program_is_read_or_refused(scratch, code):
    tolerant(archive(scratch, b"".join(code) + b"."))


# Writing.


def values(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Any bits of the type, NaNs and infinities too."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype == "bfloat16":
        return (rng.integers(0, 2**16, shape, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    width = np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * width), dtype).reshape(shape)


@st.composite
def tensor_lists(draw: st.DrawFn) -> list[Tensor]:
    names = draw(
        st.lists(
            st.text(st.characters(codec="utf-8"), max_size=8), min_size=1, max_size=4, unique=True
        )
    )
    shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
    tensors = []
    for name in names:
        dtype = draw(st.sampled_from(DTYPES))
        array = values(dtype, draw(shapes), draw(st.integers(0, 99)))
        tensors.append(Tensor(name, dtype, array.T if draw(st.booleans()) else array))
    return tensors


def written(tensors: list[Tensor]) -> bytes:
    stream = io.BytesIO()
    write(stream, tensors if isinstance(tensors, Gradient) else Gradient(tensors))
    return stream.getvalue()


def described(tensors: list[Tensor]) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    return [(t.name, t.dtype, t.array.shape, t.array.tobytes()) for t in tensors]


@settings(deadline=None)
@given(tensors=tensor_lists())
def test_what_is_written_is_read_again(scratch, tensors):
    scratch.write_bytes(written(tensors))
    assert described(read(scratch)) == described(tensors)


@pytest.mark.parametrize("file", ["list.pt", "tuple.pt", "frozen_list.pt"])
def test_a_list_is_written_as_a_list_with_none_in_its_places(path, file):
    found = read(FIXTURES / file)
    path.write_bytes(written(found))
    again = read(path)
    assert described(again) == described(found)
    assert (again.absent, again.sequence) == (found.absent, True)
    path.write_bytes(written(Gradient(found)))
    assert not read(path).sequence, "without the mark it is a mapping"


def test_the_same_tensors_give_the_same_bytes_aligned():
    tensors = [Tensor(f"w{i}", dtype, values(dtype, (5, 3), i)) for i, dtype in enumerate(DTYPES)]
    content = written(tensors)
    assert content == written(tensors)
    for i, t in enumerate(tensors):
        if t.dtype not in ("bool", "bfloat16"):
            assert content.index(t.array.tobytes()) % 64 == 0, i


def test_a_stream_that_cannot_seek_is_written(path):
    class Pipe(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            content.extend(data)
            return len(data)

    content = bytearray()
    tensors = [
        Tensor("w", "float32", values("float32", (100,), 1)),
        Tensor("b", "int8", values("int8", (), 2)),
    ]
    write(Pipe(), Gradient(tensors))
    path.write_bytes(content)
    assert described(read(path)) == described(tensors)


def test_a_large_endian_array_is_written_as_its_values(path):
    path.write_bytes(written([Tensor("w", "float32", np.arange(3, dtype=">f4"))]))
    assert read(path)[0].array.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("bits", "rounded"),
    [
        (0x3F800000, 0x3F80),  # 1
        (0x3F808000, 0x3F80),  # a tie: to even, down
        (0x3F818000, 0x3F82),  # a tie: to even, up
        (0x3F808001, 0x3F81),
        (0x3F807FFF, 0x3F80),
        (0x7F7FFFFF, 0x7F80),  # the largest float32 is nearer to infinity
        (0xFF800000, 0xFF80),
        (0x00000001, 0x0000),
        (0x80000000, 0x8000),
        (0x7FAB0000, 0x7FAB),  # a signalling NaN of bfloat16 stays as it is
        (0x7F800001, 0x7FC0),  # a NaN stays a NaN
        (0xFFFFFFFF, 0xFFFF),
    ],
)
def test_bfloat16_is_rounded_to_nearest_even(path, bits, rounded):
    path.write_bytes(
        written([Tensor("", "bfloat16", np.array([bits], np.uint32).view(np.float32))])
    )
    assert read(path)[0].array.view(np.uint32).tolist() == [rounded << 16]


# The same with torch itself, where it is installed.


def as_described(value: Any, name: str = "") -> tuple[str, str, tuple[int, ...], bytes]:
    value = value.detach()
    dtype = str(value.dtype).removeprefix("torch.")
    return (
        name,
        dtype,
        tuple(value.shape),
        (value.float() if dtype == "bfloat16" else value).numpy().tobytes(),
    )


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_view_of_any_type_is_as_torch_loads_it(torch, scratch, data):
    tensors = {}
    base = torch.arange(60)
    for i in range(data.draw(st.integers(1, 3))):
        dtype = data.draw(st.sampled_from(DTYPES))
        size = data.draw(st.lists(st.integers(0, 3), max_size=4))
        stride = data.draw(st.lists(st.integers(0, 6), min_size=len(size), max_size=len(size)))
        offset = data.draw(st.integers(0, 5))
        view = base.to(getattr(torch, dtype)).as_strided(size, stride, offset)
        tensors[f"layer.{i}"] = (
            torch.nn.Parameter(view)
            if view.is_floating_point() and data.draw(st.booleans())
            else view
        )
    torch.save(tensors, scratch)
    loaded = torch.load(scratch, weights_only=True)
    assert described(read(scratch)) == [as_described(value, name) for name, value in loaded.items()]


@settings(deadline=None)
@given(tensors=tensor_lists())
def test_torch_loads_what_is_written(torch, scratch, tensors):
    scratch.write_bytes(written(tensors))
    for options in ({}, {"mmap": True}):
        loaded = torch.load(scratch, weights_only=True, **options)
        items = {"": loaded}.items() if isinstance(loaded, torch.Tensor) else loaded.items()
        assert [as_described(value, name) for name, value in items] == described(tensors)


def test_torch_loads_a_list_with_none_in_its_places(torch, scratch):
    scratch.write_bytes(written(read(FIXTURES / "frozen_list.pt")))
    loaded, wanted = (
        torch.load(path, weights_only=True) for path in (scratch, FIXTURES / "frozen_list.pt")
    )
    assert type(loaded) is list
    assert [t is None for t in loaded] == [True, True, False, True, False, False]
    assert all(torch.equal(a, b) for a, b in zip(loaded, wanted, strict=True) if b is not None)


def test_bfloat16_is_rounded_as_torch_rounds_it(torch, scratch):
    upper = np.arange(2**16, dtype=np.uint32) << np.uint32(16)
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    array = (upper[:, None] | lower).view(np.float32)
    array = array[~np.isnan(array).any(axis=1)]
    scratch.write_bytes(written([Tensor("", "bfloat16", array)]))
    assert torch.equal(
        torch.load(scratch, weights_only=True), torch.from_numpy(array).to(torch.bfloat16)
    )


def test_a_module_takes_what_is_written(torch, scratch):
    scratch.write_bytes(written(read(FIXTURES / "checkpoint.pt", "model")))
    module = torch.nn.Linear(2, 1)
    module.load_state_dict(torch.load(scratch, weights_only=True))
    assert module.weight.dtype == torch.float32


@pytest.mark.filterwarnings("ignore")
def test_the_fixtures_are_what_their_script_makes(torch, tmp_path):
    if not torch.__version__.startswith("2.13.0"):
        pytest.skip("another torch writes other bytes")
    spec = importlib.util.spec_from_file_location("make_torch_fixtures", FIXTURES / "make.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.HERE = tmp_path
    script.main()
    made = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert made == {
        p.name: p.read_bytes() for p in FIXTURES.iterdir() if p.suffix in (".pt", ".ckpt", ".json")
    }
