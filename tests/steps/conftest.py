"""`import rounds` from the tests of the steps."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
