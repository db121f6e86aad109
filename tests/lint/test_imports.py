"""Packages, each importing only those before it; knowledge of a construction in its own module;
Flower in one package alone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from played import python

import topk_secagg

ROOT = Path(topk_secagg.__file__).parent
ORDER = ("algebra", "gradients", "protocol", "storage", "rounds", "review", "flower")
PICKING = (
    "protocol/permutation.py",
    "protocol/buckets.py",
    "protocol/sketch.py",
    "protocol/parameters.py",
    "protocol/permutation_rules.py",
    "protocol/sketch_rules.py",
)
MODULES = sorted(path for name in ORDER for path in (ROOT / name).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """The packages of the library that a module imports from, also inside of functions."""
    to_root = len(path.relative_to(ROOT).parts)  # dots that lead from the module to the library
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == to_root:
            yield (node.module or node.names[0].name).split(".")[0]
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [a.name for a in node.names]
            )
            yield from (name.split(".")[1] for name in names if name.startswith("topk_secagg."))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_imports_only_from_earlier_packages(path):
    package = path.relative_to(ROOT).parts[0]
    allowed = {*ORDER[: ORDER.index(package)], "errors", "brief", "labels", "progress"}
    assert set(imported(path)) <= allowed


def test_a_module_of_a_package_in_a_package_is_looked_at_too():
    found = set(imported(ROOT / "gradients" / "formats" / "torch_file.py"))
    assert found == {"errors"}


def test_one_package_alone_needs_flower():
    """Which is optional: nothing else may import it, nor that package."""
    naming = {
        path.parent.name
        for path in ROOT.rglob("*.py")
        if re.search(r"^\s*(from|import) flwr\b", path.read_text(), re.MULTILINE)
    }
    assert naming == {"flower"}
    assert not [path for path in ROOT.rglob("*.py") if "flower" in imported(path)]


def test_only_running_the_package_leads_to_the_command_line():
    """`python -m topk_secagg` does; importing the library never does."""
    naming = [path for path in ROOT.rglob("*.py") if "topk_secagg_cli" in path.read_text()]
    assert naming == [ROOT / "__main__.py"]
    code = "import sys, topk_secagg.__main__; print('topk_secagg_cli' in sys.modules)"
    assert python(code).stdout == "False\n"


def test_only_the_commands_print():
    """`python -m topk_secagg.algebra.compile` is one, for administrators."""
    printing = re.compile(r"\bprint\(|\bclick\b|\brich\b|sys\.std")
    found = [path for path in MODULES if printing.search(path.read_text())]
    assert [path.relative_to(ROOT).as_posix() for path in found] == ["algebra/compile.py"]


def test_no_module_but_a_construction_asks_which_one_it_is():
    asking = re.compile(r"\.buckets\b|\.construction ?[!=]=")
    found = [path for path in MODULES if asking.search(path.read_text())]
    refusing = "flower/node.py"  # takes part in no other construction than sketch
    assert {path.relative_to(ROOT).as_posix() for path in found} <= {*PICKING, refusing}


def test_the_library_names_no_command_line_options():
    option = re.compile(r"(?<![\w-])--[a-z]")
    style = re.compile(r'STYLE = """.*?"""', re.DOTALL)
    texts = {path.relative_to(ROOT).as_posix(): style.sub("", path.read_text()) for path in MODULES}
    assert [name for name, text in texts.items() if option.search(text)] == []


def test_labels_are_spelled_in_one_module():
    """No key, stream or signature gets its label anywhere else."""
    spelled = re.compile(r"\.child\(\s*f?[\"']|hmac\.digest\([^)]*b\"")
    found = [path.name for path in MODULES if spelled.search(path.read_text())]
    assert found == []
    assert spelled.search('source.child("mask")')
