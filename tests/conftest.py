"""What all tests share: reproducible Hypothesis, no waiting for the disk, `import oracle`, `played`
and `deterministic` from any folder, which tests only root can run, rounds at every stage, which are
played once and copied, and what a refusal must be like."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))
import deterministic  # noqa: F401 - for `import deterministic` in any test

sys.path.pop(0)  # or the folder `torch` beside it would pass for PyTorch
sys.path.insert(0, str(Path(__file__).parent))
from played import RECIPES, Round, Stages, assert_one_error, call, contents, is_root, leftovers

os.umask(0o022)
os.environ.pop("COLUMNS", None)  # tables are as wide as in any pipe

settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    max_examples=80,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is no failure
)
# `make test-fresh`: other examples in every run, and how to get those that fail again
settings.register_profile(
    "fresh",
    settings.get_profile("repeatable"),
    derandomize=False,
    max_examples=400,
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_addoption(parser):
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="a test that is skipped fails: where everything that it needs has to be there",
    )


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "needs_root: the test becomes another account, gives files away or mounts a file system",
    )
    config.addinivalue_line("markers", "needs_torch: the test calls PyTorch, or is skipped")
    config.addinivalue_line(
        "markers", "rule(number, ...): the test holds these rules of docs/security.md"
    )


def pytest_collection_modifyitems(items):
    for item in items:
        if "torch" in getattr(item, "fixturenames", ()):
            item.add_marker("needs_torch")


def pytest_runtest_setup(item):
    if item.get_closest_marker("needs_root") and not is_root():
        pytest.skip("only root can run it: make test-root")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.skipped and item.config.getoption("--no-skips"):
        report.outcome = "failed"
    return report


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk():
    """A test does not have to survive a power cut; another test checks the order of syncs."""
    with mock.patch.object(os, "fsync", return_value=None):
        yield


@pytest.fixture(scope="session")
def torch():
    """PyTorch, where it is installed: `make test-torch` runs the tests that ask for it."""
    return pytest.importorskip("torch")


@pytest.fixture(scope="session")
def stages(tmp_path_factory):
    """The stages of a round with this recipe; another name gives another session."""
    made = {}

    def get(recipe):
        if recipe not in made:
            made[recipe] = Stages(recipe, tmp_path_factory.mktemp(recipe.name), upto="")
        return made[recipe]

    return get


@pytest.fixture
def construction():
    """The paper's, unless a test is for both."""
    return "permutation"


@pytest.fixture
def round_at(stages, construction, tmp_path):
    """round_at("masked"): a copy of a round up to that stage. Changes to the recipe come by
    name."""

    def at(stage, folder="round", **changes):
        return stages(replace(RECIPES[construction], **changes)).copy(stage, tmp_path / folder)

    return at


@pytest.fixture
def new_round(construction, tmp_path):
    """new_round(picks=1): a round that is not started yet."""

    def make(folder="round", **changes):
        recipe = replace(RECIPES[construction], **changes)
        return Round(recipe, tmp_path / folder, tmp_path / f"{folder}-inputs").prepare()

    return make


@pytest.fixture
def refuses(tmp_path):
    """refuses(65, "decode", folder, says="damaged"): that exit code, one clear error with these
    words, and nothing changed anywhere. Several reasons share a code, so every case names words of
    its own.

    Files with the names `besides` may change: in decoded.json, `decode` notes that a round
    failed."""

    def state(besides):
        found = contents(tmp_path).items()
        return {name: content for name, content in found if Path(name).name not in besides}

    def check(code, *args, says=(), besides=()):
        before = state(besides)
        result = call(*args)
        assert result.code == code, result
        assert_one_error(result)
        # (the path of a test's folder has words of the test's name, which prove nothing)
        said = result.err.replace(str(tmp_path), "")
        for phrase in [says] if isinstance(says, str) else says:
            assert phrase in said, (phrase, result)
        assert leftovers(tmp_path) == []
        assert state(besides) == before
        return result

    return check
