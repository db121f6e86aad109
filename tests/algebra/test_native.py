"""Kernels are compiled once, kept as files and loaded without numba; files that others could write are ignored."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from topk_secagg.algebra import kernels, native

PROGRAM = """
import sys
import numpy as np
from topk_secagg.algebra import native
from pathlib import Path
native._folders = lambda: iter([Path(sys.argv[1])])
out = np.empty(3, np.uint64)
native.run("geometric", 2**32 % 97, 5 * 2**32 % 97, 97, pow(97, -1, 2**32), out=(out,))
assert [int(v) * pow(2**32, -1, 97) % 97 for v in out] == [1, 5, 25]
print("numba" in sys.modules)
"""


def numba_was_loaded(folder: Path) -> bool:
    """Whether a new process, which keeps its object files here, had to compile."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, folder], check=True, capture_output=True, text=True)
    return done.stdout == "True\n"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The object file that a process left."""
    assert numba_was_loaded(tmp_path)
    (file,) = tmp_path.iterdir()
    assert not numba_was_loaded(tmp_path)
    return file


def test_a_kernel_is_compiled_once_and_then_loaded_without_numba(kept: Path) -> None:
    assert kept.name.startswith("geometric-")
    assert kept.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "folder"])
def test_a_damaged_object_file_is_not_run(kept: Path, damage: str) -> None:
    content = bytearray(kept.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "folder":
        kept.unlink()
        kept.mkdir()
    else:
        kept.write_bytes({"flip": bytes(content), "cut": bytes(content[:100]), "empty": b""}[damage])
    assert numba_was_loaded(kept.parent)


@pytest.mark.parametrize(("mode", "used"), [(0o644, True), (0o600, True), (0o664, False), (0o646, False)])
def test_an_object_file_that_others_can_write_to_is_not_run(
    kept: Path, mode: int, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_folders", lambda: iter([kept.parent]))
    body = b"planted\ncode"
    types = ("int", "int", "int", "int", "u8x1")
    assert native._file("geometric", types) == kept.name
    kept.write_bytes(hashlib.sha256(body).digest() + body)
    kept.chmod(mode)
    assert native._kept("geometric", types) == (("planted", b"code") if used else None)


def test_an_object_file_of_another_user_is_not_run(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_folders", lambda: iter([kept.parent]))
    types = ("int", "int", "int", "int", "u8x1")
    assert native._kept("geometric", types)
    os.chown(kept, 1234, -1) if os.geteuid() == 0 else monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert native._kept("geometric", types) is None


def test_an_object_file_is_for_its_source_its_compiler_and_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = native._file("share", ("int",))
    assert before != native._file("answer", ("int",))
    assert before != native._file("share", ("u4x1",))
    monkeypatch.setattr(native, "_circumstances", lambda: "another processor")
    assert before != native._file("share", ("int",))


def nowhere() -> Iterator[Path]:
    yield Path("/proc/nowhere")


def test_where_no_folder_can_be_written_a_kernel_is_compiled_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_folders", nowhere)
    symbol, code = native._compiled("geometric", ("int", "int", "int", "int", "u8x1"))
    assert symbol.encode() in code


def test_kernels_need_nothing_but_themselves() -> None:
    """No allocation, no Python: an object file has no symbol that a process would have to provide."""
    import llvmlite.binding as llvm

    words = ("int", "int")
    for name, types in {
        "geometric": (*words, *words, "u8x1"),
        "invert": ("u4x1", *words, "u8x1"),
        "solve": ("u4x2", "u8x1", "u8x1", *words, "i8x1", "i8x2", "u8x2", "u8x3", "u8x2"),
        "transform": ("u4x2", "u8x1", *words, "i8x1", "i8x2", "u8x2", "u8x2"),
    }.items():
        _, code = kernels.machine_code(name, types)
        assert llvm.ObjectFileRef.from_data(code)
        for helper in (b"NRT_", b"Py", b"numba_"):
            assert helper not in code, name


def test_inputs_are_made_contiguous_and_outputs_must_be() -> None:
    values = np.arange(1, 13, dtype=np.uint32)[::2]
    out = np.empty(6, np.uint64)
    native.run("invert", values, 97, pow(97, -1, 2**32), out=(out,))
    back = pow(2**32, -1, 97)
    assert [int(v) * back * int(a) % 97 for v, a in zip(out, values, strict=True)] == [1] * 6
    with pytest.raises(ValueError, match="contiguous"):
        native.run("invert", values, 97, pow(97, -1, 2**32), out=(np.empty(12, np.uint64)[::2],))
