"""Where the program starts."""

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run a command. While it is still being loaded there is nothing to clean up, so Ctrl-C just ends it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .main import main

    main()


if __name__ == "__main__":
    main()
