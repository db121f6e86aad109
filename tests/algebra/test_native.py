"""Kernels are compiled once, kept as files and loaded without numba; files that others could write are ignored."""

from __future__ import annotations

import ast
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
import os
import sys
import numpy as np
from topk_secagg.algebra import native
from pathlib import Path
native._folders = lambda: iter([native._Folder(Path(sys.argv[1]), (os.geteuid(),))])
out = np.empty(3, np.uint64)
native.run("geometric", 2**32 % 97, 5 * 2**32 % 97, 97, pow(97, -1, 2**32), out=(out,))
assert [int(v) * pow(2**32, -1, 97) % 97 for v in out] == [1, 5, 25]
print("numba" in sys.modules)
"""


def numba_was_loaded(folder: Path) -> bool:
    """Whether a new process, which keeps its object files here, had to compile."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder], check=True, capture_output=True, text=True
    )
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


def planted(file: str) -> bytes:
    """An object file with a sound digest."""
    return native._sealed(file, b"planted", b"code")


def replace_by(kept: Path, what: str) -> None:
    """Something else under the name of an object file."""
    content, flipped = kept.read_bytes(), bytearray(kept.read_bytes())
    flipped[len(content) // 2] ^= 1
    kept.unlink()
    if what == "a folder":
        kept.mkdir()
    elif what == "a pipe":
        os.mkfifo(kept)
    elif what == "a link":
        kept.with_name("elsewhere").write_bytes(content)
        kept.symlink_to("elsewhere")
    else:
        line = hashlib.sha256(kept.name.encode() + b"\nno line").digest() + b"no line"
        cases = {"flipped": bytes(flipped), "cut": content[:100], "empty": b"", "one line": line}
        kept.write_bytes(cases.get(what, planted("invert-0.o")))
        kept.chmod(0o644)


@pytest.mark.parametrize(
    "what", ["flipped", "cut", "empty", "one line", "another's", "a folder", "a pipe", "a link"]
)
def test_only_the_file_that_was_kept_is_run(kept: Path, what: str) -> None:
    """Damage, and things that other users could put there; the object file of another kernel too."""
    replace_by(kept, what)
    assert numba_was_loaded(kept.parent)


TYPES = ("int", "int", "int", "int", "u8x1")


@pytest.fixture
def trusting(kept: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An object file with a sound digest, in a folder that this process uses."""
    owners = (os.geteuid(),)
    monkeypatch.setattr(native, "_folders", lambda: iter([native._Folder(kept.parent, owners)]))
    assert native._file("geometric", TYPES) == kept.name
    kept.write_bytes(planted(kept.name))
    assert native._kept("geometric", TYPES) == ("planted", b"code")
    return kept


@pytest.mark.parametrize("bit", [0o020, 0o002])
@pytest.mark.parametrize("which", ["the file", "its folder"])
def test_what_others_can_write_to_is_not_run(trusting: Path, which: str, bit: int) -> None:
    path = trusting if which == "the file" else trusting.parent
    path.chmod(path.stat().st_mode | bit)
    assert native._kept("geometric", TYPES) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("which", ["the file", "its folder"])
def test_what_belongs_to_another_user_is_not_run(trusting: Path, which: str) -> None:
    os.chown(trusting if which == "the file" else trusting.parent, 1234, -1)
    assert native._kept("geometric", TYPES) is None


def test_a_folder_behind_a_link_is_not_used(
    trusting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(trusting.parent)
    monkeypatch.setattr(native, "_folders", lambda: iter([native._Folder(link, (os.geteuid(),))]))
    assert native._kept("geometric", TYPES) is None


def test_files_of_root_count_beside_the_source_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of root is not always from root: the command line of a setuid program is one, and says anything."""
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert [folder.owners for folder in native._folders()] == [(1234, 0), (1234,)]
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert len(list(native._folders())) == 1, "a relative cache is ignored"


def test_drafts_of_killed_processes_are_removed_once_they_are_old(tmp_path: Path) -> None:
    old, new = tmp_path / ".draft-1", tmp_path / ".draft-2"
    for draft in (old, new):
        draft.touch()
    os.utime(old, (0, 0))
    native._Folder(tmp_path, (os.geteuid(),)).write("name", b"content")
    assert sorted(tmp_path.iterdir()) == [new, tmp_path / "name"]


def test_the_settings_of_numba_are_part_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    before = native._circumstances.__wrapped__()
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")
    assert native._circumstances.__wrapped__() != before


def test_a_switched_off_compiler_compiles_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert numba_was_loaded(tmp_path)


def test_an_object_file_is_for_its_source_its_compiler_and_its_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = native._file("share", ("int",))
    assert before != native._file("answer", ("int",))
    assert before != native._file("share", ("u4x1",))
    monkeypatch.setattr(native, "_circumstances", lambda: "another processor")
    assert before != native._file("share", ("int",))


def test_an_object_file_is_for_everything_that_the_source_of_the_kernels_imports() -> None:
    folder = Path(native.__file__).parent
    for source in native._SOURCES:
        for node in ast.walk(ast.parse((folder / source).read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                assert f"{node.module}.py" in native._SOURCES, source


def nowhere() -> Iterator[native._Folder]:
    yield native._Folder(Path("/proc/nowhere"), (os.geteuid(),))


def test_where_no_folder_can_be_written_a_kernel_is_compiled_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
        "solve": ("u4x2", "u8x1", *words, *words, "i8x1", "u4x1", "u4x1", "u8x3", "u8x2", "u8x3"),
        "transform": ("u4x2", "u8x1", "int", *words, "i8x1", "u4x1", "u4x1", "u8x2"),
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
    with pytest.raises(ValueError, match="byte order"):
        native.run("invert", values.astype(">u4"), 97, pow(97, -1, 2**32), out=(out,))
    with pytest.raises(ValueError, match="contiguous"):
        native.run("invert", values, 97, pow(97, -1, 2**32), out=(np.empty(12, np.uint64)[::2],))
