"""The rules of docs/security.md, and the tests that hold each of them.

A rule is a heading `### NUMBER. title`. A test says which rules it holds by the marker
`@pytest.mark.rule(NUMBER, ...)`, of its own, of its class, or of its module (`pytestmark`). cog
puts `listed()` into docs/rules.md, and `make lint` sees that it is current; tests/test_rules.py
sees that no rule is without a test, and no marker without a rule.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RULES = ROOT / "docs" / "security.md"
_HEADING = re.compile(r"^### (\d+)\. (.+)$", re.MULTILINE)
_TWIN = re.compile(r"^test_(if|else|without)_|_succeed_without|_sabotage_|twin")
_Marked = ast.ClassDef | ast.FunctionDef


class Held(NamedTuple):
    """A test that holds rules: its file from the root, the class that it is in if any, its name,
    and whether it is a twin: one that takes the rule away, and sees the attack succeed."""

    path: str
    owner: str
    name: str
    rules: frozenset[int]
    is_twin: bool


def rules() -> dict[int, str]:
    """The title of each rule."""
    return {int(number): title for number, title in _HEADING.findall(RULES.read_text())}


def held() -> list[Held]:
    """All tests that hold a rule, in the order of files and lines."""
    paths = sorted(ROOT.glob("tests/**/test_*.py"))
    return [test for path in paths for test in _held_in(path)]


def _held_in(path: Path) -> Iterator[Held]:
    module = ast.parse(path.read_text())
    outer = frozenset().union(*(_rules_in(node.value) for node in module.body if _is_mark(node)))
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            inner = outer | _rules_of(node)
            found = [(node.name, test, inner) for test in node.body]
        else:
            found = [("", node, outer)]
        for owner, test, around in found:
            if isinstance(test, ast.FunctionDef) and test.name.startswith("test"):
                marked = around | _rules_of(test)
                if marked:
                    place = path.relative_to(ROOT).as_posix()
                    yield Held(place, owner, test.name, marked, _is_twin(test))


def _is_mark(node: ast.stmt) -> bool:
    names = [ast.unparse(target) for target in getattr(node, "targets", ())]
    return isinstance(node, ast.Assign) and names == ["pytestmark"]


def _rules_of(node: _Marked) -> frozenset[int]:
    return frozenset().union(*(_rules_in(mark) for mark in node.decorator_list))


def _rules_in(expression: ast.expr) -> frozenset[int]:
    """The numbers in the calls of pytest.mark.rule that an expression has."""
    calls = [node for node in ast.walk(expression) if isinstance(node, ast.Call)]
    marks = [call for call in calls if ast.unparse(call.func) == "pytest.mark.rule"]
    return frozenset(ast.literal_eval(number) for call in marks for number in call.args)


def _is_twin(test: ast.FunctionDef) -> bool:
    return bool(_TWIN.search(f"{test.name} {ast.get_docstring(test)}".lower()))


def listed() -> str:
    """For each rule the tests that hold it, file by file; those that are twins are in italics."""
    tests = held()
    return "\n".join(
        line for number, title in rules().items() for line in _section(number, title, tests)
    )


def _section(number: int, title: str, tests: list[Held]) -> Iterator[str]:
    anchor = re.sub(r"[^\w\- ]", "", f"{number}. {title}").lower().replace(" ", "-")
    yield f"## [{number}. {title}](security.md#{anchor})\n"
    mine = [test for test in tests if number in test.rules]
    for path in dict.fromkeys(test.path for test in mine):
        yield f"`{path}`\n"
        for test in mine:
            if test.path == path:
                words = test.name.removeprefix("test_").replace("_", " ")
                owner = f"{test.owner}: " if test.owner else ""
                yield f"- {owner}*{words}*" if test.is_twin else f"- {owner}{words}"
        yield ""
