"""Kernels are compiled once, kept as a file and loaded without numba.

Files that others could write are ignored.
"""

from __future__ import annotations

import ast
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from topk_secagg.algebra import compile as compiling
from topk_secagg.algebra import library
from topk_secagg.algebra.library import Code, Folder

ALL_QUESTIONS = """
import os
import sys
from pathlib import Path
from topk_secagg.algebra import library, native, questions

folder, code = map(Path, sys.argv[1:])
library.folders = lambda: iter([library.Folder(folder, (os.geteuid(),))])
compiled = []

def compile_kernels():
    compiled.append(True)
    return library.Code("numba 0 and llvmlite 0", code.read_bytes())

library.compile_kernels = compile_kernels
names = [name for name in vars(questions) if callable(getattr(native, name, None))]
asked = [name for name in names if name[0].islower() and name != "to_montgomery"]
assert len(asked) == 15, asked
assert all(getattr(questions, name)() for name in asked)
print("compiled" if compiled else "loaded", "numba" in sys.modules)
"""


@pytest.fixture(scope="session")
def code() -> Code:
    """All kernels, as they were compiled while this was installed; otherwise they are compiled
    now, by a process whose settings would switch the compiler off."""
    kept = library.find()
    if kept is not None:
        return kept[1]
    with pytest.MonkeyPatch.context() as settings:
        settings.setenv("NUMBA_DISABLE_JIT", "1")
        settings.setenv("NUMBA_BOUNDSCHECK", "1")
        return library.compile_kernels()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """The only folder for object files."""
    only = Folder(tmp_path / "kept", (os.geteuid(),))
    monkeypatch.setattr(library, "folders", lambda: iter([only]))
    return only


PLANTED = Code("numba 0 and llvmlite 0", b"code\nof kernels")


@pytest.fixture
def kept(folder: Folder) -> Path:
    """An object file with a sound digest, that this process would load."""
    path = library.keep(PLANTED, [folder])
    assert path is not None
    assert path == folder.path / library.file_name()
    assert library.find() == (path, PLANTED)
    return path


def test_a_file_is_whole_and_its_own(kept: Path) -> None:
    assert [path.name for path in kept.parent.iterdir()] == [library.file_name()]
    assert kept.stat().st_mode & 0o777 == 0o644


def test_a_later_process_loads_the_file_and_not_numba(tmp_path: Path, code: Code) -> None:
    """And all kernels answer their questions, whatever settings of numba there were."""
    file = tmp_path / "code"
    file.write_bytes(code.machine_code)
    for expected in ("compiled False\n", "loaded False\n"):
        done = subprocess.run(
            [sys.executable, "-c", ALL_QUESTIONS, tmp_path / "kept", file],
            capture_output=True,
            text=True,
        )
        assert done.stdout == expected, done.stderr


def test_the_code_says_what_compiled_it_and_needs_nothing_else(code: Code) -> None:
    """No allocation, no Python: no symbol that a process without numba would have to provide."""
    import llvmlite
    import llvmlite.binding as llvm
    import numba

    assert code.compilers == f"numba {numba.__version__} and llvmlite {llvmlite.__version__}"
    assert llvm.ObjectFileRef.from_data(code.machine_code)
    for helper in (b"NRT_", b"Py", b"numba_"):
        assert helper not in code.machine_code


# What stands in the file's place


def replace_by(kept: Path, what: str) -> None:
    """Something else under the name of an object file."""
    content = kept.read_bytes()
    flipped = bytearray(content)
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
        contents = {
            "flipped": bytes(flipped),
            "cut": content[:-1],
            "short": content[:10],
            "empty": b"",
            "another's": PLANTED.sealed("kernels-0.o"),
        }
        kept.write_bytes(contents[what])
        kept.chmod(0o644)


@pytest.mark.parametrize(
    "what", ["flipped", "cut", "short", "empty", "another's", "a folder", "a pipe", "a link"]
)
def test_only_the_file_that_was_kept_is_run(kept: Path, what: str) -> None:
    """Damage, and things that other users could put there; a file for another processor too."""
    replace_by(kept, what)
    assert library.find() is None


def test_twin_without_the_digest_a_damaged_file_would_be_run(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_by(kept, "another's")
    monkeypatch.setattr(Code, "sealed", lambda *_, **__: kept.read_bytes())
    assert library.find() == (kept, PLANTED)


@pytest.mark.parametrize("bit", [0o020, 0o002])
@pytest.mark.parametrize("which", ["the file", "its folder"])
def test_what_others_can_write_to_is_not_run(
    kept: Path, which: str, bit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept if which == "the file" else kept.parent
    path.chmod(path.stat().st_mode | bit)
    assert library.find() is None
    monkeypatch.setattr(Folder, "check", lambda *_, **__: None)
    assert library.find() == (kept, PLANTED), "the twin: without the check it would be run"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("which", ["the file", "its folder"])
def test_what_belongs_to_another_user_is_not_run(
    kept: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(kept if which == "the file" else kept.parent, 1234, -1)
    assert library.find() is None
    monkeypatch.setattr(Folder, "check", lambda *_, **__: None)
    assert library.find() == (kept, PLANTED), "the twin: without the check it would be run"


def test_a_folder_behind_a_link_is_not_used(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(kept.parent)
    monkeypatch.setattr(library, "folders", lambda: iter([Folder(link, (os.geteuid(),))]))
    assert library.find() is None
    monkeypatch.setattr(os, "O_NOFOLLOW", 0)
    assert library.find() == (link / kept.name, PLANTED), "the twin: a link would be followed"


def test_files_of_root_count_beside_the_source_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of root is not always from root: the command line of a setuid program is one."""
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert [folder.owners for folder in library.folders()] == [(1234, 0), (1234,)]
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert len(list(library.folders())) == 1, "a relative cache is ignored"


def test_what_a_killed_process_left_is_never_in_the_way(folder: Folder) -> None:
    """Drafts have names of their own, whatever number a process has: in a container it is always
    the same."""
    folder.path.mkdir()
    for pid in (os.getpid(), 1):
        (folder.path / f".draft-{pid}").touch()
    folder.write("name", b"content")
    folder.write("name", b"another")
    assert folder.read("name") == b"another"
    assert len(list(folder.path.iterdir())) == 3


# What a file is for


def test_a_file_is_for_its_source_its_compiler_and_its_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import llvmlite

    name = library.file_name.__wrapped__
    names = {name()}
    monkeypatch.setattr(library, "processor", lambda: "another processor")
    names.add(name())
    monkeypatch.setattr(llvmlite, "__version__", "0")
    names.add(name())
    source = tmp_path / "algebra"
    source.mkdir()
    for file in library.COMPILED:
        (source / file).write_bytes((library.SOURCE / file).read_bytes())
    monkeypatch.setattr(library, "SOURCE", source)
    assert name() in names
    (source / "kernels.py").write_text("")
    names.add(name())
    assert len(names) == 4


def test_a_file_is_for_everything_that_the_source_of_the_kernels_imports() -> None:
    for source in library.COMPILED:
        for node in ast.walk(ast.parse((library.SOURCE / source).read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                names = [node.module] if node.module else [alias.name for alias in node.names]
                assert {f"{name}.py" for name in names} <= set(library.COMPILED), source


# Compiling


def test_compiling_is_announced_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The console says it, once; and what goes wrong is said in a line."""
    monkeypatch.setattr(library, "COMPILER", "topk_secagg.no_such_module")
    caplog.set_level(logging.INFO, "topk_secagg")
    with pytest.raises(RuntimeError, match=r"cannot be compiled: .*no_such_module"):
        library.compile_kernels()
    assert caplog.messages == ["compiling kernels for the first time; this takes a few seconds"]


def test_the_compiler_loads_nothing_from_the_folder_it_is_called_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a module nor a file of settings; and paths that depend on the folder are left out."""
    (tmp_path / "numba.py").write_text("raise SystemExit('planted')")
    (tmp_path / "topk_secagg.py").write_text("raise SystemExit('planted')")
    calls = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        calls.append((command, options))
        command = [*command[:2], "-c", "import numba, topk_secagg"]
        kept = {name: options[name] for name in ("cwd", "env")}
        done = actual(command, capture_output=True, **kept)  # type: ignore[call-overload]
        return subprocess.CompletedProcess(command, done.returncode, b"numba 0\ncode", done.stderr)

    actual = subprocess.run
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "path", ["", ".", *sys.path])
    monkeypatch.chdir(tmp_path)
    assert library.compile_kernels() == Code("numba 0", b"code")
    ((command, options),) = calls
    assert command == [sys.executable, "-P", "-m", "topk_secagg.algebra.machine_code"]
    environment = options["env"]
    assert isinstance(environment, dict)
    assert all(Path(p).is_absolute() for p in environment["PYTHONPATH"].split(os.pathsep))
    assert [name for name in environment if name.startswith("NUMBA_")] == ["NUMBA_OPT"]


def test_a_command_that_compiles_leaves_nothing_beside_the_source(
    tmp_path: Path, code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip removes only what it installed: a folder of the package's name would stay."""
    beside = Folder(tmp_path / "beside", (os.geteuid(),))
    cache = Folder(tmp_path / "cache", (os.geteuid(),))
    monkeypatch.setattr(library, "folders", lambda: iter([beside, cache]))
    monkeypatch.setattr(library, "compile_kernels", lambda: code)
    library._loaded.__wrapped__()
    assert library.find() == (cache.path / library.file_name(), code)
    assert not beside.path.exists()


def test_administrators_compile_beside_the_source_or_to_their_cache(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(library, "compile_kernels", lambda: PLANTED)
    nowhere = Folder(Path("/proc/nowhere"), (os.geteuid(),))
    monkeypatch.setattr(library, "folders", lambda: iter([nowhere, folder]))
    path = folder.path / library.file_name()
    compiling.main()
    assert library.find() == (path, PLANTED)
    compiling.main()
    expected = [f"compiled the kernels: {path}", f"the kernels are compiled already: {path}"]
    assert capsys.readouterr().out.splitlines() == expected
    monkeypatch.setattr(library, "folders", lambda: iter([nowhere]))
    with pytest.raises(SystemExit, match="cannot be kept: nobody may write to /proc/nowhere"):
        compiling.main()
