"""The barrier around another party's bytes: they spoil that party, and nobody else.

Readers refuse what they know to be wrong. Whatever else a parser raises, over bytes that nobody
thought of, is logged here, and means the same: that party's file is bad.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import BadData, SecAggError

_log = logging.getLogger(__name__)


@contextmanager
def around(path: Path) -> Iterator[None]:
    """Read another party's file. What the disk does is not the party's fault."""
    try:
        yield
    except (SecAggError, OSError):
        raise
    except Exception as error:
        what = type(error).__name__
        _log.warning("%s is taken for damaged: %s: %s", path, what, error)
        raise BadData(f"cannot be read ({what})", "fetch it again", subject=path) from error
