"""What all tests share: reproducible Hypothesis, no waiting for the disk, and `import oracle` and
`import rounds` from any folder."""

import os
import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))
os.umask(0o022)

settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    max_examples=80,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is no failure
)
settings.load_profile("repeatable")


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk():
    """A test does not have to survive a power cut; the order of syncs is tested on its own."""
    with mock.patch.object(os, "fsync", return_value=None):
        yield
