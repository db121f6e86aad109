"""Writes the shares of one dealer: see `share` for what is in them.

Keys are small, a file at a time. Symbols are written for all users at once, a chunk of
rows at a time, so that memory does not grow with the gradient.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import IO

import numpy as np

from ..algebra.field import Symbols, stored_type
from ..algebra.parallel import together
from ..algebra.randomness import KEY_BYTES, Randomness
from ..progress import Progress, unheard
from ..protocol.constructions import construction
from ..protocol.deal import Block, Deal
from ..protocol.messages import Secret, ShareChunk
from ..protocol.parameters import Parameters
from .artifacts import Draft
from .atomic import PRIVATE, Array, allow_open_files, whole_file
from .hdf5_writer import NewFile, new_file
from .keys import Identity, sealed
from .share import KIND, shapes, share_header, written_shapes
from .workspace import Workspace


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
    """Write the shares for these users as symbols; none of them appears under its name before all
    are complete."""
    chunks = construction(space.session.parameters).share_chunks(deal, secret, source)
    _write_symbols(space, users, deal=deal, chunks=chunks, signer=signer, progress=progress)


def write_keys(
    space: Workspace,
    *,
    users: list[int],
    deal: Deal,
    own_keys: Sequence[bytes],
    signer: Identity | None,
) -> None:
    """Write the shares for these users as keys."""
    keys = dict(zip(deal.family, own_keys, strict=True))
    for m in users:
        _write_keys(space, m, deal=deal, keys=keys, signer=signer)


def _write_keys(
    space: Workspace,
    user: int,
    *,
    deal: Deal,
    keys: Mapping[Block, bytes],
    signer: Identity | None,
) -> None:
    """A share that is keys: those of the blocks with its user."""
    s = space.session
    own = b"".join(keys[block] for block in s.blocks_of(user))
    content = np.frombuffer(own, dtype=np.uint8).reshape(-1, KEY_BYTES)
    draft = Draft(KIND, share_header(s, user, deal.dealer, sharing=deal.sharing), signer)
    digest = draft.new_digest()
    digest.add("keys", content.shape, start=0, rows=content)
    with (
        _new_stream(space, user, deal.dealer) as stream,
        new_file(stream, shapes(s, user), KIND.datasets) as file,
    ):
        file.put("keys", 0, content)
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
    """The shares for these users, written out.

    The next chunk is computed while others hash and write this one. Sealed shares are first written
    into nameless files in the folder of the secret that they come from.
    """
    s = space.session
    c = construction(s.parameters)
    sender = deal.dealer
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
                file.put(name, start, shares[m - 1])

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
