"""Every exit code is checked with its reason: the number alone would hide one refusal behind
another."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = sorted(Path(__file__).parents[1].rglob("test_*.py"))


def without_reason(code: str) -> Iterator[int]:
    """Lines with a statement `refuses(...)` that neither names words nor uses what was said."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Expr(value=ast.Call(func=ast.Name(id="refuses"), keywords=given)):
                if "says" not in {keyword.arg for keyword in given}:
                    yield node.lineno


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_every_refusal_names_words_of_its_message(path):
    assert list(without_reason(path.read_text())) == []


def test_a_refusal_without_words_would_be_found():
    assert list(without_reason('def test(refuses):\n    refuses(65, "decode")\n')) == [2]
    assert list(without_reason('refuses(65, "decode", says="damaged")')) == []
    assert list(without_reason('assert "damaged" in refuses(65, "decode").err')) == []
