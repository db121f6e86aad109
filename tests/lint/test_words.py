"""Habits of storage/ and review/: names say what a value is, and calls with many arguments name
them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import topk_secagg

ROOT = Path(topk_secagg.__file__).parent
MODULES = sorted(path for name in ("storage", "review") for path in (ROOT / name).glob("*.py"))
# how a value was come by, or nothing
EMPTY_WORDS = {"found", "taken", "told", "picked", "made", "go", "unsigned"}
# functions of C libraries, which know no names, and what hands its arguments on to one
NAMELESS = {"struct.pack", "h5py.h5f.create", "os.posix_fadvise", "self._try"}
MOST_POSITIONAL = 3
LONGEST_FUNCTION = 48  # lines, so that it is seen at once


def names(tree: ast.AST) -> Iterator[str]:
    """Every name that is given to something: variables, arguments, attributes and functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def crowded_calls(tree: ast.AST) -> list[str]:
    """Calls with more than three arguments that have no names."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    crowded = [call for call in calls if len(call.args) > MOST_POSITIONAL]
    return [ast.unparse(call) for call in crowded if ast.unparse(call.func) not in NAMELESS]


def long_functions(tree: ast.AST) -> list[str]:
    """Functions that do not fit on a screen."""
    return [f.name for f in functions(tree) if (f.end_lineno or 0) - f.lineno >= LONGEST_FUNCTION]


def returning_checks(tree: ast.AST) -> list[str]:
    """Functions called check_... that return something, where they should raise."""
    checks = [f for f in functions(tree) if f.name.lstrip("_").startswith("check_")]
    return [f.name for f in checks if f.returns is None or ast.unparse(f.returns) != "None"]


@pytest.fixture(params=MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def source(request):
    return request.param.read_text()


def test_names_say_what_a_value_is(source):
    assert EMPTY_WORDS & set(names(ast.parse(source))) == set()


def test_calls_with_more_than_three_arguments_name_them(source):
    assert crowded_calls(ast.parse(source)) == []


def test_no_function_has_to_be_scrolled(source):
    assert long_functions(ast.parse(source)) == []
    assert [line for line in source.splitlines() if len(line) > 100] == []


def test_a_check_raises_and_returns_nothing(source):
    assert returning_checks(ast.parse(source)) == []


def test_all_of_this_is_noticed():
    long = "\n".join(["def long():", *["    pass"] * LONGEST_FUNCTION])
    bad = f"found = f(1, 2, 3, 4)\ndef check_it() -> str: ...\n{long}"
    tree = ast.parse(bad)
    assert "found" in names(tree)
    assert crowded_calls(tree) == ["f(1, 2, 3, 4)"]
    assert returning_checks(tree) == ["check_it"]
    assert long_functions(tree) == ["long"]
