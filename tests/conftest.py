"""What all tests share: Hypothesis that repeats itself, and `import oracle` from any folder."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=80)
settings.load_profile("repeatable")
