"""Nothing takes the message of an error apart, or tests its words; advice goes with its values."""

import ast
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from topk_secagg_cli import console

import topk_secagg
from topk_secagg.errors import Advice

LIBRARY = Path(topk_secagg.__file__).parent
SOURCES = sorted([*LIBRARY.rglob("*.py"), *Path(console.__file__).parent.glob("*.py")])
TAKEN_APART = {"removeprefix", "removesuffix", "partition", "rpartition", "split", "startswith"}


def errors_raised(tree: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """Each advice that a call gives, and the values beside it."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        for part in [*node.args, *(keyword.value for keyword in node.keywords)]:
            match part:
                case ast.Attribute(value=ast.Name(id="Advice"), attr=name):
                    yield name, {keyword.arg or "" for keyword in node.keywords}


def test_every_advice_is_given_somewhere_and_no_other_is_put_into_words():
    given = {
        node.attr
        for path in SOURCES
        if path.name not in ("errors.py", "console.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "Advice"
    }
    assert given == {advice.name for advice in Advice}


def test_the_words_of_the_command_line_use_values_that_come_with_the_advice():
    named = {
        advice.name: {field for _, field, _, _ in string.Formatter().parse(words) if field}
        for advice, words in console.HINTS.items()
    }
    for path in SOURCES:
        for name, values in errors_raised(ast.parse(path.read_text())):
            values = values - {"advice", "subject", "hint"}
            assert named.get(name, set()) - {"hint"} <= values or not values, (path, name)


def taken_apart(tree: ast.AST) -> list[int]:
    """Lines that look into the text of an error."""
    lines = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr=of), attr=how)):
                if of in ("message", "hint") and how in TAKEN_APART:
                    lines.append(node.lineno)
            case ast.Compare(left=left, comparators=[*others]):
                words = [ast.unparse(part) for part in (left, *others)]
                if any(part.endswith(("error.message", "error.hint")) for part in words):
                    lines.append(node.lineno)
                if any(part == "str(error)" for part in words):
                    lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_code_takes_a_message_apart(path):
    assert taken_apart(ast.parse(path.read_text())) == []


def test_code_that_takes_a_message_apart_would_be_found():
    for code in (
        'error.message.removeprefix("x")',
        'error.hint.partition(": ")[2]',
        'if "another" in error.message: pass',
        'if str(error) == "it is damaged": pass',
    ):
        assert taken_apart(ast.parse(code)) == [1], code
