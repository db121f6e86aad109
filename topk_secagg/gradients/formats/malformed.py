"""Gradient files that make no sense or cannot be read: what is raised, and how it is reported."""

from __future__ import annotations

import errno
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import BadData, InputMissing

# What parsers raise for bytes that make no sense: zipfile and zlib, struct, pickletools and the
# stack of a pickle, and numpy, which reads headers as Python. Anything else is a bug of ours.
_MALFORMED: tuple[type[Exception], ...] = (
    ValueError,
    LookupError,
    EOFError,
    OverflowError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    tokenize.TokenError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)

_DAMAGED = "it is damaged, or not what its name says"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Say of a file that it is not there, or may not be read."""
    try:
        if path.exists() and not path.is_file():
            raise InputMissing(f"{path} is not a file", "check the path")
        yield
    except FileNotFoundError:
        raise InputMissing(f"{path} is not there", "check the path") from None
    except OSError as error:
        raise InputMissing(
            f"cannot read {path}: {(error.strerror or '').lower()}", "check the path"
        ) from None


@contextmanager
def refusing(what: object, *others: type[Exception]) -> Iterator[None]:
    """Turn every error that a malformed file causes, and `others` that its parser raises, into one
    that names the file, or the part of it."""
    try:
        yield
    except BadData as error:
        error.within(what)
        raise
    except OSError as error:
        # a place before the start of the file, as a damaged archive names it, is an invalid
        # argument; other numbers are not the file's fault
        if error.errno and error.errno != errno.EINVAL:
            raise
        why = _DAMAGED if error.errno else str(error)
        raise BadData(why, "export the gradient again").within(what) from error
    except (*_MALFORMED, *others) as error:
        raise BadData(_DAMAGED, "export the gradient again").within(what) from error
