"""secrets/user-NN.held.h5: the keys that a user holds of every dealer, in later rounds of a series.

They follow from those of the root round, which were sent, so that nothing is sent any more. Once
its user has forgotten a round, the file holds the keys of the next generation, with the user's own:
from them the series goes on, and nothing of this round follows. Mode 0600.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..algebra.randomness import KEY_BYTES
from ..errors import BadData
from ..protocol.deal import Block, next_key
from .artifacts import BYTES, Draft, Kind, Table, opened, write_hashed
from .atomic import Array
from .hdf5_writer import Shapes
from .masked import DIGEST_BYTES
from .session import Session
from .workspace import Workspace

KIND = Kind(
    "held",
    {
        "keys": (BYTES, "by dealer: the keys of the blocks with this user, or zeros"),
        "dealt": (BYTES, "by dealer: the digest of its list of commitments, or zeros"),
        "own": (BYTES, "the user's own key of every block, for the next generation"),
    },
    "run offline for this user first, from an earlier round of the series",
    layouts=({"keys", "dealt"}, {"keys", "dealt", "own"}),
    attributes=("generation",),
    secret=True,
)


@dataclass(frozen=True)
class HeldKeys:
    """The keys of one generation that a user holds, by dealer and block, with the digest of each
    dealer's list; `own` are those that it dealt itself, block by block of the family."""

    generation: int
    keys: Mapping[int, Mapping[Block, bytes]] = field(repr=False)
    lists: Mapping[int, str]
    own: tuple[bytes, ...] = field(default=(), repr=False)

    def with_more(self, others: HeldKeys) -> HeldKeys:
        """With the keys of dealers that only the others have."""
        return replace(
            self, keys={**others.keys, **self.keys}, lists={**others.lists, **self.lists}
        )

    def only(self, dealers: Collection[int]) -> HeldKeys:
        """Without the keys of other dealers than these."""
        return replace(
            self,
            keys={m: keys for m, keys in self.keys.items() if m in dealers},
            lists={m: digest for m, digest in self.lists.items() if m in dealers},
        )

    def advanced(self, generation: int) -> HeldKeys:
        """The keys of a later generation: each is put through `next_key` again and again."""
        steps = generation - self.generation

        def put_through(key: bytes) -> bytes:
            for _ in range(steps):
                key = next_key(key)
            return key

        return replace(
            self,
            generation=generation,
            keys={
                m: {block: put_through(key) for block, key in blocks.items()}
                for m, blocks in self.keys.items()
            },
            own=tuple(map(put_through, self.own)),
        )


def shapes(s: Session, user: int, *, with_own: bool) -> Shapes:
    """Types and shapes of the datasets."""
    users = s.parameters.users
    blocks = len(s.blocks_of(user))
    own = {"own": ("|u1", (len(s.family or ()), KEY_BYTES))} if with_own else {}
    return {
        "keys": ("|u1", (users, blocks, KEY_BYTES)),
        "dealt": ("|u1", (users, DIGEST_BYTES)),
        **own,
    }


def largest_bytes(s: Session) -> int:
    """The most bytes that the datasets of such a file take in a round."""
    blocks = len(s.family or ())
    return s.parameters.users * (KEY_BYTES * blocks + DIGEST_BYTES) + KEY_BYTES * blocks


def write(space: Workspace, user: int, held: HeldKeys) -> None:
    """Write the file, readable by its owner alone; with the user's own keys if `held` has them."""
    s = space.session
    types = shapes(s, user, with_own=bool(held.own))
    arrays: dict[str, Array] = {
        name: np.zeros(shape, dtype=np.uint8) for name, (_, shape) in types.items()
    }
    for m, digest in held.lists.items():
        arrays["dealt"][m - 1] = np.frombuffer(bytes.fromhex(digest), dtype=np.uint8)
        arrays["keys"][m - 1] = _table([held.keys[m][block] for block in s.blocks_of(user)])
    if held.own:
        arrays["own"][:] = _table(held.own)
    attributes = s.header(user, generation=held.generation)
    tables = {name: Table(array) for name, array in arrays.items()}
    write_hashed(space.held_path(user), Draft(KIND, attributes), tables)


def _table(keys: list[bytes] | tuple[bytes, ...]) -> Array:
    return np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, KEY_BYTES)


def read(space: Workspace, user: int) -> HeldKeys:
    """The keys that a user holds, with everything checked that can be without their dealers'
    lists."""
    s = space.session
    path = space.held_path(user)
    with opened(path, KIND) as artifact:
        with_own = "own" in artifact.datasets
        artifact.expect_shapes(shapes(s, user, with_own=with_own))
        loaded = artifact.with_datasets_loaded()
        loaded.verify()
        loaded.expect(s.header(user))
        generation = loaded.attributes["generation"]
        if generation != s.generation + with_own:
            raise loaded.bad(
                f"it holds keys of generation {generation}", "was it copied from elsewhere?"
            )
        digests = loaded.read("dealt")
        tables = loaded.read("keys")
        own = tuple(row.tobytes() for row in loaded.read("own")) if with_own else ()
    lists = {m: row.tobytes().hex() for m, row in enumerate(digests, start=1) if row.any()}
    blocks = s.blocks_of(user)
    keys = {
        m: {block: row.tobytes() for block, row in zip(blocks, tables[m - 1], strict=True)}
        for m in lists
    }
    return HeldKeys(generation=generation, keys=keys, lists=lists, own=own)


def read_unforgotten(space: Workspace, user: int) -> HeldKeys:
    """The keys of this round that a user holds, and not those of the next one."""
    held = read(space, user)
    check_unforgotten(held, space.held_path(user), user)
    return held


def check_unforgotten(held: HeldKeys, path: Path, user: int) -> None:
    """Refuse the keys of the next round, which `forget` stores first."""
    if held.own:
        raise BadData(
            f"holds the keys of the next round: user {user} was forgetting this one",
            "forget it again",
            subject=path,
        )
