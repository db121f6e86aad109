"""Where the program starts."""

import signal

# While the program is still being loaded there is nothing to clean up, so Ctrl-C just ends it:
# before anything else is imported, and again below where somebody has changed it since.
signal.signal(signal.SIGINT, signal.SIG_DFL)

import os  # noqa: E402
from typing import NoReturn  # noqa: E402


def main() -> NoReturn:
    """Run a command."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # numpy's threads, which no step needs, would spin at the start
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from .main import main

    main()


if __name__ == "__main__":
    main()
