"""shares/user-MM/from-NN.h5: what user NN shares with user MM. Large, with a checksum for every few
rows.

The digest of the file covers the table of checksums; rows are checked against it when they are
read. In a round with recipients the file is signed by its sender and encrypted with age for its
receiver.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np

from ..algebra.field import Integers, Symbols, ceil_div, stored_type
from ..algebra.parallel import together
from ..errors import BadData, InputMissing
from ..protocol.construction import stacked
from ..protocol.constructions import construction
from ..protocol.messages import ShareChunk
from ..protocol.parameters import Parameters
from .artifacts import BYTES, SYMBOLS, Artifact, Digest, Kind, opened
from .atomic import PRIVATE, Array, allow_open_files, whole_file
from .hdf5_writer import Shapes, new_file
from .keys import Identity, looks_sealed, sealed, unsealed
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
    return (
        sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in shapes(p).values())
        + 4096
    )


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
        self.check = artifact.read("check")

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
            if hashlib.sha256(part.data).digest() != self.check[first // self.unit, at].tobytes():
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
    expected = s.header(user, sender=sender) | ({"sharing": sharing} if sharing else {})
    file = None
    if s.recipients:
        if identity is None:
            raise InputMissing(
                f"{path} is sealed, and there is no identity of user {user}", "give it"
            )
        file = unsealed(path, sender, _sealed_bytes(p), identity, scratch or space.private)
    with opened(path, KIND, shapes=shapes(p), file=file) as artifact:
        yield ShareFile(p, artifact.expect(expected, s.recipient(sender)))


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
    with suppress(InputMissing, BadData), opened_share(space, user, sender, sharing) as share:
        if sharing:
            share.check_all()
        return True
    return False


def write(
    space: Workspace,
    sender: int,
    users: list[int],
    sharing: str,
    blocks: Iterable[ShareChunk],
    signer: Identity | None,
) -> None:
    """Write the shares for these users; none appears under its name before all are complete.

    The next block is computed while others hash and write this one. Sealed shares are first written
    into nameless files in the folder of the secret that they come from.
    """
    s = space.session
    c = construction(s.parameters)
    layout = shapes(s.parameters)
    checks = np.zeros((len(users), *layout["check"][1]), dtype=np.uint8)
    allow_open_files(2 * len(users))
    # which end in reverse order: all are laid out first, and the last user's appears last
    with ExitStack() as files:
        streams = {}
        for m in reversed(users):
            path = space.share_path(m, sender)
            space.make_room(path, private=True)
            keys = s.recipient(m)
            streams[m] = files.enter_context(
                sealed(path, keys, space.private) if keys else whole_file(path, PRIVATE)
            )
        headers = {m: s.header(m, sender=sender, sharing=sharing) for m in users}
        writers = [
            files.enter_context(new_file(streams[m], layout, KIND.datasets, headers[m]))
            for m in users
        ]

        def put(name: str, start: int, shares: Symbols) -> None:
            column = c.share_names.index(name)
            for m, put_one, check in zip(users, writers, checks, strict=True):
                stored: Array = np.ascontiguousarray(shares[m - 1], dtype=layout[name][0])
                put_one(name, start, stored)
                for first in range(0, len(stored), c.check_rows):
                    digest = hashlib.sha256(stored[first : first + c.check_rows].data).digest()
                    check[(start + first) // c.check_rows, column] = np.frombuffer(
                        digest, dtype=np.uint8
                    )

        puts = (
            partial(put, name, block.start, rows)
            for block in blocks
            for name, rows in block.shares.items()
        )
        together(puts, len(c.share_names))
        for header, put_one, check in zip(headers.values(), writers, checks, strict=True):
            put_one("check", 0, check)
            digest = Digest(KIND, header)
            digest.part("check", check.shape, 0, check)
            digest.sign(signer)
