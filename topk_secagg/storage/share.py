"""shares/user-MM/from-NN.h5: what user NN shares with user MM: keys or symbols.

Symbols are large, with a checksum for every few rows. The digest of the file covers the table of
checksums; rows are checked against it when they are read. Keys stand for symbols: who reads
rows does not know the difference. In a round with recipients the file is signed by its
sender and encrypted with age for its receiver.

This module says what the file is and reads it; `share_writer` writes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from ..algebra.field import Integers, Symbols, ceil_div, stored_type
from ..algebra.randomness import KEY_BYTES
from ..errors import BadData, InputMissing
from ..protocol.construction import stacked
from ..protocol.constructions import construction
from ..protocol.deal import Block, Deal
from ..protocol.held import KeyShares
from ..protocol.parameters import KEYS, Parameters
from .artifacts import BYTES, SYMBOLS, Artifact, Attributes, Kind, opened
from .documents import DIGEST_BYTES
from .hdf5_writer import Shapes, bytes_of
from .keys import Identity, looks_sealed, unsealed
from .session import Session
from .workspace import Workspace

KIND = Kind(
    "share",
    {
        "f": (
            SYMBOLS,
            "f_i(alpha): row i is a share of selector i, cut into D blocks; sketch: of the masks "
            "of group i",
        ),
        "h": (SYMBOLS, "h_i(alpha): row i is a share of selector i times its mask"),
        "check": (BYTES, "SHA-256 of every few rows of each table"),
        "keys": (BYTES, "the keys of the blocks with this user, in the order of the family"),
    },
    "fetch it from the user that made it",
    layouts=({"f", "h", "check"}, {"f", "check"}, {"keys"}),
    attributes=("sender", "sharing"),
    undigested=("f", "h"),
    secret=True,
    signed=True,
)
_ATTRIBUTES_BYTES = 700  # about what a small HDF5 file has besides its datasets
_DATASET_BYTES = 290  # about what describes a dataset
_HEADER_BYTES = 4096  # more than HDF5 adds to the datasets
_FILE_OVERHEAD = 1 << 14  # bytes that HDF5 may add to the datasets
_ROWS_AT_ONCE = 64  # that `check_all` reads, where every row has its own checksum


def shapes(s: Session, user: int) -> Shapes:
    """Types and shapes of the datasets, in the order of the file."""
    if s.family is not None:
        return {"keys": ("|u1", (len(s.blocks_of(user)), KEY_BYTES))}
    return written_shapes(s.parameters)


def written_shapes(p: Parameters) -> Shapes:
    """Of a share that is written out: a checksum for every `check_rows` rows."""
    c = construction(p)
    table = (stored_type(p.field).str, (c.rows, c.width))
    checks = (ceil_div(c.rows, c.check_rows), len(c.share_names), DIGEST_BYTES)
    return {**dict.fromkeys(c.share_names, table), "check": ("|u1", checks)}


def largest_bytes(s: Session) -> int:
    """The most bytes that the datasets of a share of this round take."""
    if s.family is not None:
        return KEY_BYTES * len(s.family)
    return bytes_of(written_shapes(s.parameters))


def files_bytes(p: Parameters, family: Sequence[Block]) -> int:
    """About what the shares of one dealer take on disk, for all users."""
    users = range(1, p.users + 1)
    return sum(file_bytes(p, family, m) for m in users)


def file_bytes(p: Parameters, family: Sequence[Block], user: int) -> int:
    """About what a share file for this user has, if it is not sealed."""
    if p.dealing == KEYS:
        return construction(p).held_bytes(user, family) + header_bytes(1)
    tables = written_shapes(p)
    return bytes_of(tables) + header_bytes(len(tables))


def header_bytes(datasets: int) -> int:
    """About what attributes and so many datasets take in a file besides their content."""
    return _ATTRIBUTES_BYTES + datasets * _DATASET_BYTES


def _sealed_bytes(s: Session, user: int) -> int:
    """The most that a sealed share takes: age adds 16 bytes to every 64 KiB, and a header."""
    content = bytes_of(shapes(s, user)) + _HEADER_BYTES
    return content + content // 1024 + _FILE_OVERHEAD


def share_header(s: Session, user: int, sender: int, *, sharing: str | None) -> Attributes:
    """The attributes that a share must have; without a sharing, it may be of any."""
    if sharing is None:
        return s.header(user, sender=sender)
    return s.header(user, sender=sender, sharing=sharing)


class OpenShare(Protocol):
    """An open share file, whatever it holds."""

    sharing: str

    @property
    def read(self) -> Callable[[Integers], tuple[Symbols, ...]]:
        """Gives increasing rows of every table of the share."""

    def check_all(self) -> None:
        """BadData unless everything in it can be used."""


class HeldKeys:
    """The keys that a user holds of a dealer, by block, from a share file or from its chain."""

    def __init__(self, s: Session, user: int, *, deal: Deal, keys: Mapping[Block, bytes]) -> None:
        self.sharing = deal.sharing
        self.keys = keys
        self._session = s
        self._user = user
        self._deal = deal

    @cached_property
    def read(self) -> KeyShares:
        """Gives rows of the share that follows from the keys."""
        c = construction(self._session.parameters)
        return KeyShares(c, self._deal, user=self._user, keys=self.keys)

    def check_all(self) -> None:
        """Keys are checked with their dealer's list, which is another file."""


class SymbolsFile:
    """A share file with symbols; reads only what is asked for."""

    def __init__(self, p: Parameters, artifact: Artifact) -> None:
        c = construction(p)
        self.artifact = artifact
        self.sharing = str(artifact.attributes["sharing"])
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


class SharesOfUser:
    """The shares that one user got from all dealers in a round, plain or sealed."""

    def __init__(
        self,
        space: Workspace,
        user: int,
        identity: Identity | None = None,
        scratch: Path | None = None,
    ) -> None:
        self.space = space
        self.user = user
        self.identity = identity
        self.scratch = scratch

    @contextmanager
    def opened(self, sender: int, sharing: str | None = None) -> Iterator[OpenShare]:
        """The share of user `sender`, with everything but its rows checked."""
        s = self.space.session
        user = self.user
        path = self.space.share_path(user, sender)
        header = share_header(s, user, sender, sharing=sharing)
        with opened(path, KIND, file=self._unsealed(path, sender)) as unchecked:
            # first whose it is: that decides how many keys it holds
            unchecked.expect_attributes(header)
            unchecked.expect_shapes(shapes(s, user))
            artifact = unchecked.with_datasets_loaded()
            artifact.verify()
            artifact.expect(header, s.recipient(sender))
            deal = s.deal(sender, artifact.attributes["sharing"])
            if s.family is not None:
                rows = zip(s.blocks_of(user), artifact.read("keys"), strict=True)
                keys = {block: row.tobytes() for block, row in rows}
                yield HeldKeys(s, user, deal=deal, keys=keys)
            else:
                yield SymbolsFile(s.parameters, artifact)

    def is_there(self, sender: int, sharing: str | None = None) -> bool:
        """Whether a share has arrived that looks like the right one; if it must be of one sharing,
        every row is checked.

        A sealed one shows only its size.
        """
        s = self.space.session
        if s.recipients:
            return looks_sealed(
                self.space.share_path(self.user, sender),
                bytes_of(shapes(s, self.user)),
                _sealed_bytes(s, self.user),
            )
        with suppress(InputMissing, BadData), self.opened(sender, sharing) as share:
            if sharing:
                share.check_all()
            return True
        return False

    def _unsealed(self, path: Path, sender: int) -> AbstractContextManager[IO[bytes]] | None:
        """The content of a sealed share; None where shares are plain."""
        s = self.space.session
        if not s.recipients:
            return None
        if self.identity is None:
            raise InputMissing(
                f"is sealed, and there is no identity of user {self.user}",
                "give it",
                subject=path,
            )
        return unsealed(
            path,
            sender,
            largest=_sealed_bytes(s, self.user),
            identity=self.identity,
            scratch=self.scratch or self.space.private,
        )
