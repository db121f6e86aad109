"""shares/user-MM/from-NN.h5: what user NN shares with user MM. Large, with a checksum for every few
rows.

The digest of the file covers the table of checksums; rows are checked against it when they are
read. In a round with recipients the file is signed by its sender and encrypted with age for its
receiver.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from ..algebra.field import Integers, Symbols, ceil_div, stored_type
from ..algebra.parallel import together
from ..errors import BadData, InputMissing
from ..protocol.construction import stacked
from ..protocol.constructions import construction
from ..protocol.messages import ShareChunk
from ..protocol.parameters import Parameters
from .artifacts import BYTES, SYMBOLS, Artifact, Attributes, Draft, Kind, opened
from .atomic import PRIVATE, Array, allow_open_files, whole_file
from .hdf5_writer import NewFile, Shapes, bytes_of, new_file
from .keys import Identity, looks_sealed, sealed, unsealed
from .session import Session
from .workspace import Workspace

KIND = Kind(
    "share",
    {
        "f": (SYMBOLS, "f_i(alpha): row i is a share of selector i, cut into D blocks"),
        "h": (SYMBOLS, "h_i(alpha): row i is a share of selector i times its mask"),
        "g": (
            SYMBOLS,
            "g_j(alpha): row i is a share of the moments of pick i, divided by its factor",
        ),
        "check": (BYTES, "SHA-256 of every few rows of each table"),
    },
    "fetch it from the user that made it",
    layouts=({"f", "h", "check"}, {"g", "check"}),
    attributes=("sender", "sharing"),
    undigested=("f", "h", "g"),
    secret=True,
    signed=True,
)
_DIGEST_BYTES = 32
_HEADER_BYTES = 4096  # about what HDF5 adds to the datasets
_FILE_OVERHEAD = 1 << 14  # bytes that HDF5 may add to the datasets
_ROWS_AT_ONCE = 64  # that `check_all` reads, where every row has its own checksum


def shapes(p: Parameters) -> Shapes:
    """Types and shapes of the datasets, in the order of the file: a checksum for every `check_rows`
    rows."""
    c = construction(p)
    table = (stored_type(p.field).str, (c.rows, c.width))
    checks = (ceil_div(c.rows, c.check_rows), len(c.share_names), _DIGEST_BYTES)
    return {**dict.fromkeys(c.share_names, table), "check": ("|u1", checks)}


def file_bytes(p: Parameters) -> int:
    """About what a share file takes on disk."""
    return bytes_of(shapes(p)) + _HEADER_BYTES


def _sealed_bytes(p: Parameters) -> int:
    """The most that a sealed share takes: age adds 16 bytes to every 64 KiB, and a header."""
    return file_bytes(p) + file_bytes(p) // 1024 + _FILE_OVERHEAD


class ShareFile:
    """The rows of an open share file; reads only what is asked for."""

    def __init__(self, p: Parameters, artifact: Artifact) -> None:
        c = construction(p)
        self.artifact = artifact
        self.field = p.field
        self.names = c.share_names
        self.rows = c.rows
        self.unit = c.check_rows
        self.checksums = artifact.read("check")

    def read(self, rows: Integers) -> tuple[Symbols, ...]:
        """Increasing `rows` of every dataset; neighbours are read at once."""
        runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
        parts = (
            [self._run(at, int(run[0]), int(run[-1]) + 1) for run in runs]
            for at in range(len(self.names))
        )
        return tuple(map(stacked, parts))

    def check_all(self) -> None:
        """Read every row and check it."""
        step = max(self.unit, _ROWS_AT_ONCE // self.unit * self.unit)
        for start in range(0, self.rows, step):
            self.read(np.arange(start, min(start + step, self.rows)))

    def _run(self, at: int, start: int, stop: int) -> Symbols:
        """Rows start..stop-1 of one dataset, read in whole units of a checksum."""
        low = start // self.unit * self.unit
        high = min(ceil_div(stop, self.unit) * self.unit, self.rows)
        stored = self.artifact.read_rows(self.names[at], low, high)
        for first in range(low, high, self.unit):
            part = stored[first - low : first - low + self.unit]
            expected = self.checksums[first // self.unit, at].tobytes()
            if hashlib.sha256(part.data).digest() != expected:
                raise self.artifact.bad(
                    f"rows from {first} on do not match their checksum: the file is damaged"
                )
        values = stored[start - low : stop - low].astype(np.uint32, copy=False)
        if values.size and values.max() >= np.uint32(self.field):
            raise self.artifact.bad("a symbol is not below the field's size")
        return values


@contextmanager
def opened_share(
    space: Workspace,
    user: int,
    sender: int,
    sharing: str | None = None,
    identity: Identity | None = None,
    scratch: Path | None = None,
) -> Iterator[ShareFile]:
    """The share that user `user` holds of user `sender`, plain or sealed, with everything but its
    rows checked."""
    s = space.session
    p = s.parameters
    path = space.share_path(user, sender)
    file = None
    if s.recipients:
        if identity is None:
            raise InputMissing(
                f"{path} is sealed, and there is no identity of user {user}", "give it"
            )
        file = unsealed(
            path,
            sender,
            largest=_sealed_bytes(p),
            identity=identity,
            scratch=scratch or space.private,
        )
    with opened(path, KIND, shapes=shapes(p), file=file) as artifact:
        expected = share_header(s, user, sender, sharing=sharing)
        yield ShareFile(p, artifact.expect(expected, s.recipient(sender)))


def share_header(s: Session, user: int, sender: int, *, sharing: str | None) -> Attributes:
    """The attributes that a share must have; without a sharing, it may be of any."""
    if sharing is None:
        return s.header(user, sender=sender)
    return s.header(user, sender=sender, sharing=sharing)


def is_there(space: Workspace, user: int, sender: int, sharing: str | None = None) -> bool:
    """Whether a share has arrived that looks like the right one; if it must be of one sharing,
    every row is checked.

    A sealed one shows only its size.
    """
    p = space.session.parameters
    if space.session.recipients:
        return looks_sealed(
            space.share_path(user, sender), construction(p).share_bytes, _sealed_bytes(p)
        )
    opening = opened_share(space, user, sender, sharing=sharing)
    with suppress(InputMissing, BadData), opening as share:
        if sharing:
            share.check_all()
        return True
    return False


def write(
    space: Workspace,
    sender: int,
    *,
    users: list[int],
    sharing: str,
    chunks: Iterable[ShareChunk],
    signer: Identity | None,
) -> None:
    """Write the shares for these users; none appears under its name before all are complete.

    The next chunk is computed while others hash and write this one. Sealed shares are first written
    into nameless files in the folder of the secret that they come from.
    """
    s = space.session
    c = construction(s.parameters)
    allow_open_files(2 * len(users))
    # which end in reverse order: all are laid out first, and the last user's appears last
    with ExitStack() as opened_files:
        streams = {
            m: opened_files.enter_context(_new_stream(space, m, sender)) for m in reversed(users)
        }
        files = {
            m: _UnfinishedShare(
                s.parameters,
                Draft(KIND, share_header(s, m, sender, sharing=sharing), signer),
                opened_files.enter_context(
                    new_file(streams[m], shapes(s.parameters), KIND.datasets)
                ),
            )
            for m in users
        }

        def put(name: str, start: int, shares: Symbols) -> None:
            for m, file in files.items():
                file.put(name, start, shares[m - 1])

        puts = (
            partial(put, name, start=chunk.start, shares=rows)
            for chunk in chunks
            for name, rows in chunk.shares.items()
        )
        together(puts, len(c.share_names))
        for file in files.values():
            file.finish()


def _new_stream(space: Workspace, user: int, sender: int) -> AbstractContextManager[IO[bytes]]:
    """Where the share for a user is written: a private file, or one that will be sealed for it."""
    path = space.share_path(user, sender)
    space.make_room(path, private=True)
    keys = space.session.recipient(user)
    return sealed(path, keys, space.private) if keys else whole_file(path, PRIVATE)


class _UnfinishedShare:
    """A share of which rows are put, each with its checksum, until it is finished."""

    def __init__(self, p: Parameters, draft: Draft, file: NewFile) -> None:
        self._construction = construction(p)
        self._dtype = stored_type(p.field)
        self._draft = draft
        self._file = file
        _, table_of_checksums = shapes(p)["check"]
        self._checksums = np.zeros(table_of_checksums, dtype=np.uint8)

    def put(self, name: str, start: int, rows: Symbols) -> None:
        """Rows of one dataset from `start` on, which is a multiple of the rows under a checksum."""
        column = self._construction.share_names.index(name)
        unit = self._construction.check_rows
        stored: Array = np.ascontiguousarray(rows, dtype=self._dtype)
        self._file.put(name, start, stored)
        for first in range(0, len(stored), unit):
            checksum = hashlib.sha256(stored[first : first + unit].data).digest()
            row = (start + first) // unit
            self._checksums[row, column] = np.frombuffer(checksum, dtype=np.uint8)

    def finish(self) -> None:
        """Write the checksums, and then the attributes: the digest covers both."""
        self._file.put("check", 0, self._checksums)
        digest = self._draft.new_digest()
        digest.add("check", self._checksums.shape, start=0, rows=self._checksums)
        self._file.finish(self._draft.completed(digest.hexdigest()))
