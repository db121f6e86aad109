"""What all tests share: Hypothesis that repeats itself, and `import oracle` from any folder."""

import os
import sys
from pathlib import Path

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
