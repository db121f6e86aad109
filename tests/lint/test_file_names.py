"""No two test files have one name: pytest imports them by it, and could not collect both."""

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]


def shared_names(paths):
    counts = Counter(path.name for path in paths)
    return [name for name, count in counts.items() if count > 1]


def test_every_test_file_has_a_name_of_its_own():
    """Those that need Flower run alone."""
    paths = [path for path in TESTS.rglob("test_*.py") if path.parent.name != "flower"]
    assert shared_names(paths) == []


def test_a_name_that_two_have_would_be_found():
    assert shared_names([Path("a/test_x.py"), Path("b/test_x.py"), Path("b/test_y.py")]) == [
        "test_x.py"
    ]
