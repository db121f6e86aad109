"""Files for one reader: encrypted with age, so that `age -d -i IDENTITY` opens them too.

age does not say who encrypted a file; whatever is sealed here is signed inside.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..errors import BadData, InputMissing
from .atomic import open_regular, whole_file, writing
from .keys import Identity, Recipient

_HEADER_LIMIT = 4096  # bytes within which the header of a sealed file ends


def seal(plain: IO[bytes], path: Path, recipient: Recipient) -> None:
    """Encrypt an open file for one reader, under the name `path`."""
    from pyrage import encrypt_io, x25519

    plain.seek(0)
    with whole_file(path) as stream:
        encrypt_io(plain, _Guarded(stream, path), [x25519.Recipient.from_str(recipient.age)])


@contextmanager
def unsealed(path: Path, sender: int, largest: int, identity: Identity, scratch: Path) -> Iterator[int]:
    """The plaintext of a sealed file of user `sender`, as a file without a name, which vanishes with the process."""
    from pyrage import DecryptError, decrypt_io

    refused = BadData(
        f"{path}: the share of user {sender} does not open: it is damaged, or not for this identity",
        f"fetch it from user {sender} again",
    )
    fd = open_regular(path, f"fetch it from user {sender}")
    with os.fdopen(fd, "rb") as stream, tempfile.TemporaryFile(dir=scratch) as plain:
        if os.fstat(fd).st_size > largest or not _is_age(stream):
            raise refused
        try:
            decrypt_io(stream, _Guarded(plain, scratch), [identity.opener()])
        except (DecryptError, OSError, ValueError) as error:
            raise refused from error
        plain.flush()
        yield plain.fileno()


class _Guarded:
    """A file to write to; a full disk is reported as such, not as damaged data."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self.file, self.path = file, path

    def write(self, data: bytes) -> int:
        """Write through."""
        with writing(self.path):
            return self.file.write(data)

    def flush(self) -> None:
        """Flush through."""
        with writing(self.path):
            self.file.flush()


def _is_age(stream: IO[bytes]) -> bool:
    """Whether a file starts with an age header of sane size: the library would read any line to its end."""
    start = stream.read(_HEADER_LIMIT)
    stream.seek(0)
    return start.startswith(b"age-encryption.org/v1\n") and b"\n---" in start


def looks_sealed(path: Path, least: int, largest: int) -> bool:
    """Whether there is a sealed file of plausible size; without the key nobody can see more of it."""
    try:
        with os.fdopen(open_regular(path, ""), "rb") as stream:
            return _is_age(stream) and least < os.fstat(stream.fileno()).st_size <= largest
    except (InputMissing, BadData):
        return False
