"""shares/user-MM/from-NN.h5: what user NN shares with user MM: keys, a seed, or symbols.

Symbols are large, with a checksum for every few rows. The digest of the file covers the table of
checksums; rows are checked against it when they are read. Keys and seeds stand for symbols: who
reads rows does not know the difference. In a round with recipients the file is signed by its
sender and encrypted with age for its receiver.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from ..algebra.field import Integers, Symbols, ceil_div, stored_type
from ..algebra.parallel import together
from ..algebra.randomness import KEY_BYTES, Randomness
from ..errors import BadData, InputMissing
from ..progress import Progress, unheard
from ..protocol.construction import stacked
from ..protocol.constructions import construction
from ..protocol.deal import Block, Deal, drawn_key
from ..protocol.held import KeyShares, SeedShares
from ..protocol.messages import Secret, ShareChunk
from ..protocol.parameters import KEYS, SEEDS, SHARES, Parameters
from . import held as held_file
from .artifacts import BYTES, SYMBOLS, Artifact, Attributes, Draft, Kind, opened
from .atomic import PRIVATE, Array, allow_open_files, whole_file
from .hdf5_writer import NewFile, Shapes, bytes_of, new_file
from .keys import Identity, looks_sealed, sealed, unsealed
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
        "g": (
            SYMBOLS,
            "g_j(alpha): row i is a share of the moments of pick i, divided by its factor",
        ),
        "check": (BYTES, "SHA-256 of every few rows of each table"),
        "seed": (BYTES, "the seed of the stream that the share is"),
        "keys": (BYTES, "the keys of the blocks with this user, in the order of the family"),
    },
    "fetch it from the user that made it",
    layouts=({"f", "h", "check"}, {"g", "check"}, {"f", "check"}, {"seed"}, {"keys"}),
    attributes=("sender", "sharing"),
    undigested=("f", "h", "g"),
    secret=True,
    signed=True,
)
_DIGEST_BYTES = 32
_ATTRIBUTES_BYTES = 700  # about what a small HDF5 file has besides its datasets
_DATASET_BYTES = 290  # about what describes a dataset
_HEADER_BYTES = 4096  # more than HDF5 adds to the datasets
_FILE_OVERHEAD = 1 << 14  # bytes that HDF5 may add to the datasets
_ROWS_AT_ONCE = 64  # that `check_all` reads, where every row has its own checksum


def shapes(s: Session, user: int, sender: int) -> Shapes:
    """Types and shapes of the datasets, in the order of the file."""
    p = s.parameters
    if s.family is not None:
        return {"keys": ("|u1", (len(s.blocks_of(user)), KEY_BYTES))}
    if construction(p).is_seeded(sender, user):
        return {"seed": ("|u1", (KEY_BYTES,))}
    return written_shapes(p)


def written_shapes(p: Parameters) -> Shapes:
    """Of a share that is written out: a checksum for every `check_rows` rows."""
    c = construction(p)
    table = (stored_type(p.field).str, (c.rows, c.width))
    checks = (ceil_div(c.rows, c.check_rows), len(c.share_names), _DIGEST_BYTES)
    return {**dict.fromkeys(c.share_names, table), "check": ("|u1", checks)}


def largest_bytes(s: Session) -> int:
    """The most bytes that the datasets of a share of this round take."""
    if s.family is not None:
        return KEY_BYTES * len(s.family)
    return max(KEY_BYTES, bytes_of(written_shapes(s.parameters)))


def files_bytes(p: Parameters, family: Sequence[Block]) -> int:
    """About what the shares of one dealer take on disk, for all users."""
    users = range(1, p.users + 1)
    return sum(file_bytes(p, family, m, sender=1) for m in users)


def file_bytes(p: Parameters, family: Sequence[Block], user: int, sender: int) -> int:
    """About what the share file of a pair of users has, if it is not sealed."""
    c = construction(p)
    if c.is_written(sender, user):
        tables = written_shapes(p)
        return bytes_of(tables) + header_bytes(len(tables))
    return c.held_bytes(sender, user, family) + header_bytes(1)


def header_bytes(datasets: int) -> int:
    """About what attributes and so many datasets take in a file besides their content."""
    return _ATTRIBUTES_BYTES + datasets * _DATASET_BYTES


def _sealed_bytes(s: Session, user: int, sender: int) -> int:
    """The most that a sealed share takes: age adds 16 bytes to every 64 KiB, and a header."""
    content = bytes_of(shapes(s, user, sender)) + _HEADER_BYTES
    return content + content // 1024 + _FILE_OVERHEAD


def dealing_of(artifact: Artifact) -> str:
    """What a share file holds: keys, a seed, or shares that are written out."""
    if "keys" in artifact.datasets:
        return KEYS
    return SEEDS if "seed" in artifact.datasets else SHARES


class OpenShare(Protocol):
    """An open share file, whatever it holds."""

    sharing: str

    def read(self, rows: Integers) -> tuple[Symbols, ...]:
        """Increasing rows of every table of the share."""

    def check_all(self) -> None:
        """BadData unless everything in it can be used."""


class SeedFile:
    """A share file with a seed."""

    def __init__(self, s: Session, user: int, *, deal: Deal, artifact: Artifact) -> None:
        self.sharing = deal.sharing
        seed = artifact.read("seed").tobytes()
        self.read = SeedShares(construction(s.parameters), deal, user=user, seed=seed)

    def check_all(self) -> None:
        """Any seed will do."""


class KeysFile:
    """Keys by their blocks, from a share file; in a later round of a series, those that the user
    holds, which were compared with the list of this digest."""

    def __init__(
        self,
        s: Session,
        user: int,
        *,
        deal: Deal,
        keys: Mapping[Block, bytes],
        compared_with: str | None = None,
    ) -> None:
        self.sharing = deal.sharing
        self.keys = keys
        self.compared_with = compared_with
        self.read = KeyShares(construction(s.parameters), deal, user=user, keys=keys)

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


@contextmanager
def opened_share(
    space: Workspace,
    user: int,
    sender: int,
    sharing: str | None = None,
    identity: Identity | None = None,
    scratch: Path | None = None,
) -> Iterator[OpenShare]:
    """The share that user `user` holds of user `sender`, plain or sealed, with everything but its
    rows checked."""
    s = space.session
    if s.series is not None:
        yield _held_share(space, user, sender=sender, sharing=sharing or "")
        return
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
            largest=_sealed_bytes(s, user, sender),
            identity=identity,
            scratch=scratch or space.private,
        )
    header = share_header(s, user, sender, sharing=sharing)
    with opened(path, KIND, file=file) as unchecked:
        # first whose it is: that decides whether it holds keys, a seed or symbols
        unchecked.expect_attributes(header)
        unchecked.expect_shapes(shapes(s, user, sender))
        artifact = unchecked.with_datasets_loaded()
        artifact.verify()
        artifact.expect(header, s.recipient(sender))
        deal = s.deal(sender, artifact.attributes["sharing"])
        dealing = dealing_of(artifact)
        if dealing == KEYS:
            rows = zip(s.blocks_of(user), artifact.read("keys"), strict=True)
            keys = {block: row.tobytes() for block, row in rows}
            yield KeysFile(s, user, deal=deal, keys=keys)
        elif dealing == SEEDS:
            yield SeedFile(s, user, deal=deal, artifact=artifact)
        else:
            yield SymbolsFile(s.parameters, artifact)


def _held_share(space: Workspace, user: int, sender: int, sharing: str) -> KeysFile:
    """What a user holds of a dealer in a later round of a series."""
    s = space.session
    held = held_file.read_unforgotten(space, user)
    if sender not in held.lists:
        raise InputMissing(
            f"{space.held_path(user)} has no keys of user {sender}",
            "fetch that user's share of the root round, and run offline again",
        )
    return KeysFile(
        s,
        user,
        deal=s.deal(sender, sharing),
        keys=held.keys[sender],
        compared_with=held.lists[sender],
    )


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
    s = space.session
    if s.series is not None:
        with suppress(InputMissing, BadData):
            return sender in held_file.read(space, user).lists
        return False
    if s.recipients:
        return looks_sealed(
            space.share_path(user, sender),
            bytes_of(shapes(s, user, sender)),
            _sealed_bytes(s, user, sender),
        )
    opening = opened_share(space, user, sender, sharing=sharing)
    with suppress(InputMissing, BadData), opening as share:
        if sharing:
            share.check_all()
        return True
    return False


def write(
    space: Workspace,
    *,
    users: list[int],
    deal: Deal,
    secret: Secret,
    source: Randomness,
    signer: Identity | None,
    progress: Progress = unheard,
) -> None:
    """Write the shares for these users: keys, seeds, and symbols that are written out.

    None of the symbols appears under its name before all are complete."""
    c = construction(space.session.parameters)
    for m in users:
        if not c.is_written(deal.dealer, m):
            _write_small(space, m, deal=deal, secret=secret, source=source, signer=signer)
    written = [m for m in users if c.is_written(deal.dealer, m)]
    if written:
        chunks = c.share_chunks(deal, secret, source)
        _write_symbols(space, written, deal=deal, chunks=chunks, signer=signer, progress=progress)


def _write_small(
    space: Workspace,
    user: int,
    *,
    deal: Deal,
    secret: Secret,
    source: Randomness,
    signer: Identity | None,
) -> None:
    """A share that is keys or a seed."""
    s = space.session
    if s.family is None:
        name = "seed"
        content = np.frombuffer(drawn_key(deal, source, (user,)), dtype=np.uint8)
    else:
        name = "keys"
        rows = [key for block, key in zip(s.family, secret.keys, strict=True) if user in block]
        content = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, KEY_BYTES)
    draft = Draft(KIND, share_header(s, user, deal.dealer, sharing=deal.sharing), signer)
    digest = draft.new_digest()
    digest.add(name, content.shape, start=0, rows=content)
    with (
        _new_stream(space, user, deal.dealer) as stream,
        new_file(stream, shapes(s, user, deal.dealer), KIND.datasets) as file,
    ):
        file.put(name, 0, content)
        file.finish(draft.completed(digest.hexdigest()))


def _write_symbols(
    space: Workspace,
    users: list[int],
    *,
    deal: Deal,
    chunks: Iterable[ShareChunk],
    signer: Identity | None,
    progress: Progress,
) -> None:
    """The shares for these users that are written out.

    The next chunk is computed while others hash and write this one. Sealed shares are first written
    into nameless files in the folder of the secret that they come from.
    """
    s = space.session
    c = construction(s.parameters)
    sender = deal.dealer
    place = {m: at for at, m in enumerate(c.written(sender))}  # in a chunk
    allow_open_files(2 * len(users))
    # which end in reverse order: all are laid out first, and the last user's appears last
    with ExitStack() as opened_files:
        streams = {
            m: opened_files.enter_context(_new_stream(space, m, sender)) for m in reversed(users)
        }
        files = {
            m: _UnfinishedShare(
                s.parameters,
                Draft(KIND, share_header(s, m, sender, sharing=deal.sharing), signer),
                opened_files.enter_context(
                    new_file(streams[m], written_shapes(s.parameters), KIND.datasets)
                ),
            )
            for m in users
        }

        def put(name: str, start: int, shares: Symbols) -> None:
            for m, file in files.items():
                file.put(name, start, shares[place[m]])

        def puts() -> Iterator[Callable[[], None]]:
            for chunk in chunks:
                for name, rows in chunk.shares.items():
                    yield partial(put, name, start=chunk.start, shares=rows)
                progress(chunk.stop / c.rows)

        together(puts(), len(c.share_names))
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
        _, table_of_checksums = written_shapes(p)["check"]
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
