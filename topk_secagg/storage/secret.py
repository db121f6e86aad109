"""secrets/user-NN.h5: what a user draws offline. Mode 0600, written before any share of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..algebra.field import stored_type
from ..algebra.randomness import KEY_BYTES
from ..errors import BadData
from ..protocol.constructions import construction
from ..protocol.messages import Secret
from .artifacts import BYTES, SYMBOLS, Artifact, Draft, Kind, Table, opened, write_hashed
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
        "key": (BYTES, "the key of the stream from which noise and rounding are drawn"),
    },
    "run offline for this user first",
    layouts=({"place", "mask", "key"}, {"mask", "key"}, {"key"}),
    attributes=("randomness", "sharing"),
    secret=True,
)


@dataclass(frozen=True)
class StoredSecret:
    """The key from which everything is drawn that must come out the same when a step is repeated:
    rounding, and the noise unless its `randomness` is "os".

    `sharing` is the public name of these shares: an X is unmasked only with shares of the same
    name. `drawn` are places and masks, None where they follow from keys.
    """

    key: bytes = field(repr=False)
    randomness: str
    sharing: str
    drawn: Secret | None = field(default=None, repr=False)
    private: bool = True

    def secret(self, s: Session, user: int, own_keys: Sequence[bytes]) -> Secret:
        """Places and masks: those that were drawn, or that follow from the user's own keys."""
        if self.drawn is not None:
            return self.drawn
        deal = s.deal(user, self.sharing)
        return construction(s.parameters).secret_of_keys(deal, tuple(own_keys))


def shapes(s: Session) -> Shapes:
    """Types and shapes of the datasets; a place takes as many bytes as it needs to hold any
    place."""
    p = s.parameters
    key: Shapes = {"key": ("|u1", (KEY_BYTES,))}
    if s.family is not None:
        return key
    c = construction(p)
    place = {"place": (stored_type(c.index_bound).str, (c.place_count,))} if c.place_count else {}
    return {**place, "mask": (stored_type(p.field).str, (c.mask_count,)), **key}


def write(space: Workspace, user: int, stored: StoredSecret) -> None:
    """Write the secret, readable by its owner alone."""
    s = space.session
    arrays: dict[str, Array] = {"key": np.frombuffer(stored.key, dtype=np.uint8)}
    if stored.drawn is not None:
        arrays |= {"place": stored.drawn.place, "mask": stored.drawn.mask}
    tables = {name: Table(arrays[name].astype(dtype)) for name, (dtype, _) in shapes(s).items()}
    attributes = s.header(user, randomness=stored.randomness, sharing=stored.sharing)
    write_hashed(space.secret_path(user), Draft(KIND, attributes), tables)


def read(space: Workspace, user: int) -> StoredSecret:
    """The secret of a user, with every value checked."""
    s = space.session
    with opened(space.secret_path(user), KIND, shapes=shapes(s)) as artifact:
        artifact.expect(s.header(user))
        a = artifact.attributes
        return StoredSecret(
            key=artifact.read("key").tobytes(),
            randomness=a["randomness"],
            sharing=a["sharing"],
            drawn=None if s.family is not None else _drawn(s, artifact),
            private=artifact.mode & 0o077 == 0,
        )


def _drawn(s: Session, artifact: Artifact) -> Secret:
    """Places and masks, every one checked."""
    mask = artifact.read("mask").astype(np.uint32)
    place = mask[:0]
    if "place" in artifact.datasets:
        place = artifact.read("place").astype(np.uint32)
    secret = Secret(place=place, mask=mask)
    try:
        construction(s.parameters).check_secret(secret)
    except BadData as error:
        raise artifact.bad(str(error)) from error
    return secret
