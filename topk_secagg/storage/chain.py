"""user-NN.chain*.h5: where a user is in a series of rounds, and the keys that it has there.

One file for each user and series, which is replaced as a whole and only goes forwards: to a later
generation, or to another session of the same one as long as no X has left (rounds/series.py
decides that). Keys of a later generation follow from those that are here, and those that are here
are not kept. Mode 0600.

A dealer is *entered* when its keys are first found: they are compared with its list of
commitments, once, and the list's digest stays here with them. A series whose shares are written
out in every round has the file too, without keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..algebra.randomness import KEY_BYTES
from ..protocol.deal import Block, next_key
from .artifacts import BYTES, Draft, Kind, Table, opened, write_hashed
from .atomic import Array
from .documents import DIGEST_BYTES
from .hdf5_writer import Shapes
from .session import Session

KIND = Kind(
    "chain",
    {
        "folder": (BYTES, "the folder of the session's round, seen from this file's folder"),
        "keys": (BYTES, "by dealer: the keys of the blocks with this user, or zeros"),
        "dealt": (BYTES, "by dealer: the digest of its list of commitments, or zeros"),
        "own": (BYTES, "the user's own key of every block"),
    },
    "name the folder of the user's secrets, or run offline for this user first",
    layouts=({"folder"}, {"folder", "keys", "dealt", "own"}),
    attributes=("series", "generation", "field"),
    secret=True,
)
_LONGEST_PATH = 1 << 12  # bytes
_LARGEST = 1 << 30  # bytes


@dataclass(frozen=True)
class Chain:
    """A user's place in a series: the `session` that it is at, and the round's `folder`.

    `keys` are those of this generation, by dealer that was entered and by block, and `lists` the
    digests of these dealers' lists; `own` are the keys that the user itself dealt, block by block
    of the family. `checked` is the field for which the family was checked last, 0 without keys.
    """

    series: str
    user: int
    session: str
    generation: int
    folder: str
    checked: int = 0
    keys: Mapping[int, Mapping[Block, bytes]] = field(default_factory=dict, repr=False)
    lists: Mapping[int, str] = field(default_factory=dict)
    own: tuple[bytes, ...] = field(default=(), repr=False)

    def entered(self, dealer: int, keys: Mapping[Block, bytes], list_digest: str) -> Chain:
        """With the keys that a dealer gave in the root round, which fit its list."""
        steps = self.generation
        ours = {block: put_through(key, steps) for block, key in keys.items()}
        return replace(
            self,
            keys={**self.keys, dealer: ours},
            lists={**self.lists, dealer: list_digest},
        )

    def at(self, session: Session, folder: str) -> Chain:
        """The chain at a session of the same series, of this generation or a later one."""
        steps = session.generation - self.generation
        return replace(
            self,
            session=session.id,
            generation=session.generation,
            folder=folder,
            keys={
                m: {block: put_through(key, steps) for block, key in blocks.items()}
                for m, blocks in self.keys.items()
            },
            own=tuple(put_through(key, steps) for key in self.own),
        )


def put_through(key: bytes, steps: int) -> bytes:
    """A key so many generations later. There is no way back."""
    if steps < 0:
        raise ValueError("keys never go back")
    for _ in range(steps):
        key = next_key(key)
    return key


def relative(folder: Path, path: Path) -> str:
    """How the file of a chain names the folder of a round: so a training can be moved as a
    whole."""
    return os.path.relpath(folder.resolve(), path.parent.resolve())


def shapes(s: Session, user: int, folder_bytes: int) -> Shapes:
    """Types and shapes of the datasets."""
    folder: Shapes = {"folder": ("|u1", (folder_bytes,))}
    if s.family is None:
        return folder
    users = s.parameters.users
    return {
        **folder,
        "keys": ("|u1", (users, len(s.blocks_of(user)), KEY_BYTES)),
        "dealt": ("|u1", (users, DIGEST_BYTES)),
        "own": ("|u1", (len(s.family), KEY_BYTES)),
    }


def largest_bytes(s: Session) -> int:
    """The most bytes that the datasets of such a file take in a series."""
    blocks = len(s.family or ())
    users = s.parameters.users
    return users * (KEY_BYTES * blocks + DIGEST_BYTES) + KEY_BYTES * blocks + _LONGEST_PATH


def write(path: Path, s: Session, chain: Chain) -> None:
    """Replace the file, durably and as a whole."""
    folder = np.frombuffer(os.fsencode(chain.folder), dtype=np.uint8)
    types = shapes(s, chain.user, folder.size)
    arrays: dict[str, Array] = {
        name: np.zeros(shape, dtype=np.uint8) for name, (_, shape) in types.items()
    }
    arrays["folder"] = folder
    if s.family is not None:
        for m, digest in chain.lists.items():
            arrays["dealt"][m - 1] = np.frombuffer(bytes.fromhex(digest), dtype=np.uint8)
            arrays["keys"][m - 1] = _table(
                chain.keys[m][block] for block in s.blocks_of(chain.user)
            )
        arrays["own"][:] = _table(chain.own)
    attributes: dict[str, str | int] = {
        "session": chain.session,
        "user": chain.user,
        "series": chain.series,
        "generation": chain.generation,
        "field": chain.checked,
    }
    tables = {name: Table(array) for name, array in arrays.items()}
    write_hashed(path, Draft(KIND, attributes), tables)


def _table(keys: Iterable[bytes]) -> Array:
    return np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, KEY_BYTES)


def read(path: Path, s: Session, user: int) -> Chain:
    """The chain of a user in the series of a session."""
    with opened(path, KIND) as artifact:
        sizes = artifact.datasets["folder"].shape
        if len(sizes) != 1 or sizes[0] > _LONGEST_PATH:
            raise artifact.bad("it does not name a folder")
        artifact.expect_attributes({"user": user, "series": s.series_root})
        artifact.expect_shapes(shapes(s, user, sizes[0]))
        loaded = artifact.with_datasets_loaded()
        loaded.verify()
        a = loaded.attributes
        empty = Chain(
            series=a["series"],
            user=user,
            session=a["session"],
            generation=a["generation"],
            folder=os.fsdecode(loaded.read("folder").tobytes()),
            checked=a["field"],
        )
        if s.family is None:
            return empty
        digests = loaded.read("dealt")
        tables = loaded.read("keys")
        own = tuple(row.tobytes() for row in loaded.read("own"))
    lists = {m: row.tobytes().hex() for m, row in enumerate(digests, start=1) if row.any()}
    blocks = s.blocks_of(user)
    keys = {
        m: {block: row.tobytes() for block, row in zip(blocks, tables[m - 1], strict=True)}
        for m in lists
    }
    return replace(empty, keys=keys, lists=lists, own=own)


def generation_in(path: Path, series: str) -> int:
    """The generation that the chain in a file is at, whosever it is; 0 if it is of another
    series."""
    place = _place_in(path, series)
    return 0 if place is None else place[1]


def session_in(path: Path, series: str) -> str | None:
    """The session that the chain in a file is at; None if it is of another series."""
    place = _place_in(path, series)
    return None if place is None else place[0]


def _place_in(path: Path, series: str) -> tuple[str, int] | None:
    """Session and generation, of a file whose session is not at hand."""
    with opened(path, KIND) as artifact:
        if artifact.attributes["series"] != series:
            return None
        if sum(dataset.size for dataset in artifact.datasets.values()) > _LARGEST:
            raise artifact.bad("it is larger than any chain")
        artifact.verify()
        return str(artifact.attributes["session"]), int(artifact.attributes["generation"])
