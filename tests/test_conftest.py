"""What tests/conftest.py promises about tests that cannot run here."""

import os
import sys

import pytest
from played import ROOT, process

TESTS = """
import conftest
import pytest

conftest.is_root = lambda: {root}

@pytest.mark.needs_root
def test_for_root():
    pass

def test_for_everybody():
    pass
"""


@pytest.mark.parametrize(
    ("root", "options", "code", "said"),
    [
        (True, [], 0, "2 passed"),
        (False, [], 0, "1 passed, 1 skipped"),
        (False, ["--no-skips"], 1, "1 passed, 1 error"),
        (True, ["--no-skips"], 0, "2 passed"),
        (False, ["-m", "needs_root"], 0, "1 skipped, 1 deselected"),
    ],
)
def test_only_root_runs_what_needs_root_and_skips_can_be_forbidden(
    tmp_path, root, options, code, said
):
    path = tmp_path / "test_accounts.py"
    path.write_text(TESTS.format(root=root))
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    end = process([*command, *options, path], cwd=tmp_path, env=environment)
    assert end.returncode == code, end
    assert said in end.stdout
