"""Tests that need Flower: `make test-flower` runs them, in an environment of their own."""

import os
from importlib.util import find_spec

import pytest

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
collect_ignore_glob = [] if find_spec("flwr") else ["test_*.py"]


@pytest.fixture
def lab(tmp_path):
    """lab(train, users=5, ...): a federation, a strategy around FedAvg, and what was trained."""
    from federation import Lab

    def make(**changes):
        return Lab(tmp_path, **changes)

    return make
