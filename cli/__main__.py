"""Where the program starts."""

import os
import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run a command. While it is still being loaded there is nothing to clean up, so Ctrl-C just
    ends it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # numpy's threads, which no step needs, would spin at the start
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from .main import main

    main()


if __name__ == "__main__":
    main()
