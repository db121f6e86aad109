"""The wheel holds every package, and runs a round where nothing else of the project is available;
the archive of the sources holds all tests and documents."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from played import ROOT, process

from topk_secagg.algebra import library

SOURCES = {"topk_secagg": "topk_secagg", "cli": "topk_secagg_cli"}
NEEDED = 77  # the setuptools that pyproject.toml asks for

ROUND = """
import pathlib, sys
import topk_secagg, topk_secagg_cli
where = pathlib.Path(sys.argv.pop(1)).resolve()
for package in (topk_secagg, topk_secagg_cli):
    assert pathlib.Path(package.__file__).resolve().is_relative_to(where), package.__file__
from topk_secagg_cli.main import main
main()
"""


def has_setuptools() -> bool:
    try:
        return int(metadata.version("setuptools").split(".")[0]) >= NEEDED
    except metadata.PackageNotFoundError:
        return False


def expected_files() -> set[str]:
    """Every module of the source tree, under the name that the wheel gives it."""
    return {
        f"{package}/{path.relative_to(ROOT / source).as_posix()}"
        for source, package in SOURCES.items()
        for path in (ROOT / source).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a copy of the sources, so that no build folder is left in the project."""
    base = tmp_path_factory.mktemp("wheel")
    source = base / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", *SOURCES):
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        base,
        source,
    ]
    if has_setuptools():
        command.insert(4, "--no-build-isolation")
    end = subprocess.run(command, capture_output=True, text=True, check=False)
    if end.returncode and "No matching distribution found for setuptools" in end.stderr:
        pytest.skip("neither a new setuptools nor an index to fetch it from")
    assert end.returncode == 0, end.stderr
    return next(base.glob("*.whl"))


def test_the_wheel_holds_exactly_the_modules_of_the_source_tree_the_command_and_the_licence(wheel):
    """A forgotten subpackage imports in an editable install and is missing from the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    assert {name for name in files if ".dist-info/" not in name} == expected_files()
    info = {name.split("/", 1)[1]: text for name, text in files.items() if ".dist-info/" in name}
    assert "topk-secagg = topk_secagg_cli.__main__:main" in info["entry_points.txt"]
    assert "License-Expression: MIT" in info["METADATA"]
    assert any("LICENSE" in name for name in info)


def _take_kernels(unpacked: Path) -> None:
    """Put the compiled kernels there that are kept for us, if they are: the sources are the same.

    `make dist` compiles them from the wheel."""
    found = library.find()
    if found is not None:
        cache = unpacked / "topk_secagg/algebra/__pycache__"
        cache.mkdir()
        shutil.copy(found[0], cache)


def test_the_wheel_alone_can_be_imported_and_runs_a_round(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "unpacked")
    _take_kernels(tmp_path / "unpacked")
    modules = sorted(
        name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for name in expected_files()
        if name.endswith(".py") and not name.endswith("plot.py") and "/flower/" not in name
    )  # (Flower is optional, and not installed here)
    load = f"import importlib\nfor name in {modules!r}:\n    importlib.import_module(name)"
    options = ["--survivors", "3", "--colluders", "1", "--top-k", "2", "--drop-masking", "5"]
    gradients = shutil.copytree(ROOT / "fixtures" / "example", tmp_path / "gradients")
    command = [
        "run",
        tmp_path / "round",
        "--gradients",
        gradients,
        *options,
        "--output",
        tmp_path / "sum.npy",
    ]
    # the unpacked wheel comes before the editable install
    alone = {**os.environ, "PYTHONPATH": str(tmp_path / "unpacked"), "PYTHONDONTWRITEBYTECODE": "1"}
    for code in (["-c", load], ["-c", ROUND, tmp_path / "unpacked", *command]):
        end = process([sys.executable, "-P", *code], cwd=tmp_path, env=alone)
        assert end.returncode == 0, end.stderr
    assert "sum of users 1, 2, 3, 4" in end.stdout
    assert (tmp_path / "sum.npy").exists()


WHOLE_FOLDERS = ("benchmarks", "docs", "experiments", "fixtures", "tests", "workflows")


def files_below(folder: Path) -> set[str]:
    """The files of a folder that belong to the project, by their paths."""
    return {
        path.relative_to(folder.parent).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and ".snakemake" not in path.parts
    }


def test_the_archive_of_the_sources_holds_all_tests_and_documents(tmp_path):
    """setuptools alone would take the tests at the top of tests/, which need the files that it
    leaves out."""
    copy = tmp_path / "source"
    copy.mkdir()
    for path in ROOT.iterdir():
        if path.name in (*WHOLE_FOLDERS, *SOURCES):
            ignore = shutil.ignore_patterns("__pycache__", ".snakemake")
            shutil.copytree(path, copy / path.name, ignore=ignore)
        elif path.is_file() and not path.name.startswith("."):
            shutil.copy(path, copy)
    command = [sys.executable, "-m", "build", "--sdist", "--outdir", tmp_path, copy]
    if has_setuptools():
        command.insert(4, "--no-isolation")
    end = subprocess.run(command, capture_output=True, text=True, check=False)
    if (
        end.returncode
        and "No matching distribution found for setuptools" in end.stdout + end.stderr
    ):
        pytest.skip("neither a new setuptools nor an index to fetch it from")
    assert end.returncode == 0, end.stderr
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        names = {member.name.split("/", 1)[1] for member in archive.getmembers() if member.isfile()}
    for folder in WHOLE_FOLDERS:
        expected = files_below(ROOT / folder)
        assert len(expected) > 3
        assert expected <= names, sorted(expected - names)[:5]
    assert {"Makefile", "CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md"} <= names


def test_the_metadata_names_no_address_where_nothing_is(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("METADATA"))
        head = archive.read(name).decode().partition("\n\n")[0]
    assert "Name: topk-secagg" in head
    assert "URL" not in head
