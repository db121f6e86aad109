"""Every rule of docs/security.md has a test, and a twin that takes it away; what docs/rules.md
lists is what pytest collects."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import rules  # noqa: E402

sys.path.pop(0)


def test_the_rules_are_numbered_without_gaps():
    assert list(rules.rules()) == list(range(1, len(rules.rules()) + 1))
    assert len(rules.rules()) == 19


@pytest.mark.parametrize("number", rules.rules())
def test_no_rule_is_without_a_test_and_a_twin(number):
    mine = [test for test in rules.held() if number in test.rules]
    assert mine
    assert any(test.is_twin for test in mine)


def test_no_test_holds_a_rule_that_there_is_not():
    assert {number for test in rules.held() for number in test.rules} <= set(rules.rules())


def test_a_marker_is_found_wherever_pytest_finds_it(request):
    """In a run of all tests, or of some: those that pytest marks are those that are listed."""
    listed = {(test.path, test.owner, test.name): test.rules for test in rules.held()}
    for item in request.session.items:
        marked = {number for mark in item.iter_markers("rule") for number in mark.args}
        path = item.path.relative_to(ROOT).as_posix()
        owner = item.cls.__name__ if item.cls else ""
        assert listed.get((path, owner, item.originalname), set()) == marked, item.nodeid


SAMPLES = {
    "": set(),
    "@pytest.mark.rule(3)": {3},
    "@pytest.mark.rule(3, 4)\n@pytest.mark.other": {3, 4},
    "@pytest.mark.other(5)": set(),
}


@pytest.mark.parametrize("decorators", SAMPLES)
def test_the_numbers_of_a_marker(decorators):
    (test,) = ast.parse(f"{decorators}\ndef test_it(): pass").body
    assert rules._rules_of(test) == SAMPLES[decorators]
