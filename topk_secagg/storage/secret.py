"""secrets/user-NN.h5: what a user draws offline. Mode 0600, written before any share of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..algebra.field import stored_type
from ..algebra.randomness import KEY_BYTES
from ..errors import BadData
from ..protocol.constructions import construction
from ..protocol.messages import Secret
from .artifacts import BYTES, SYMBOLS, Draft, Kind, Table, opened, write_hashed
from .atomic import Array
from .hdf5_writer import Shapes
from .session import Session
from .workspace import Workspace

KIND = Kind(
    "secret",
    {
        "place": (SYMBOLS, "permutation: pi(k) of every coordinate k"),
        "mask": (
            SYMBOLS,
            "permutation: r_k of every coordinate k; sketch: u of every symbol of every bucket's "
            "sketch",
        ),
        "keys": (BYTES, "the key of every block of users"),
        "key": (BYTES, "the key of the stream from which noise and rounding are drawn"),
    },
    "run offline for this user first",
    layouts=({"place", "mask", "key"}, {"mask", "key"}, {"mask", "key", "keys"}),
    attributes=("randomness", "sharing"),
    secret=True,
)


@dataclass(frozen=True)
class StoredSecret:
    """Places and masks, and the key from which everything is drawn that must come out the same when
    a step is repeated: rounding, and the noise unless its `randomness` is "os".

    `sharing` is the public name of these shares: an X is unmasked only with shares of the same
    name.
    """

    secret: Secret = field(repr=False)
    key: bytes = field(repr=False)
    randomness: str
    sharing: str
    private: bool = True


def shapes(s: Session) -> Shapes:
    """Types and shapes of the datasets; a place takes as many bytes as it needs to hold any
    place."""
    p = s.parameters
    c = construction(p)
    place = {"place": (stored_type(c.index_bound).str, (c.place_count,))} if c.place_count else {}
    keys = {"keys": ("|u1", (len(s.family), KEY_BYTES))} if s.family is not None else {}
    return {
        **place,
        "mask": (stored_type(p.field).str, (c.mask_count,)),
        "key": ("|u1", (KEY_BYTES,)),
        **keys,
    }


def write(space: Workspace, user: int, stored: StoredSecret) -> None:
    """Write the secret, readable by its owner alone."""
    s = space.session
    secret = stored.secret
    keys = np.frombuffer(b"".join(secret.keys), dtype=np.uint8).reshape(-1, KEY_BYTES)
    arrays: dict[str, Array] = {
        "place": secret.place,
        "mask": secret.mask,
        "key": np.frombuffer(stored.key, dtype=np.uint8),
        "keys": keys,
    }
    tables = {name: Table(arrays[name].astype(dtype)) for name, (dtype, _) in shapes(s).items()}
    attributes = s.header(user, randomness=stored.randomness, sharing=stored.sharing)
    write_hashed(space.secret_path(user), Draft(KIND, attributes), tables)


def read(space: Workspace, user: int) -> StoredSecret:
    """The secret of a user, with every value checked."""
    s = space.session
    with opened(space.secret_path(user), KIND, shapes=shapes(s)) as artifact:
        artifact.expect(s.header(user))
        mask = artifact.read("mask").astype(np.uint32)
        place = mask[:0]
        if "place" in artifact.datasets:
            place = artifact.read("place").astype(np.uint32)
        keys: tuple[bytes, ...] = ()
        if "keys" in artifact.datasets:
            keys = tuple(row.tobytes() for row in artifact.read("keys"))
        secret = Secret(place=place, mask=mask, keys=keys)
        try:
            construction(s.parameters).check_secret(secret)
        except BadData as error:
            raise artifact.bad(str(error)) from error
        key = artifact.read("key").tobytes()
        a = artifact.attributes
        return StoredSecret(
            secret=secret,
            key=key,
            randomness=a["randomness"],
            sharing=a["sharing"],
            private=artifact.mode & 0o077 == 0,
        )
