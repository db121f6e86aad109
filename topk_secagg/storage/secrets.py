"""The secret file of a user: mode 0600, written before any share, never overwritten once it is shared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..algebra.randomness import KEY_BYTES, CipherRandomness, Randomness, SystemRandomness
from ..protocol.messages import Secret
from .artifacts import Artifact, opened, write_artifact
from .atomic import PRIVATE, whole_file
from .workspace import Workspace


@dataclass(frozen=True)
class StoredSecret:
    """Places and masks, and the key from which noise and rounding are drawn.

    `sharing` is the public name of these shares: an X is unmasked only with shares of the same name.
    """

    secret: Secret
    key: bytes
    randomness: str
    sharing: str
    private: bool = True

    def noise(self) -> Randomness:
        """The source of the noise in f and h."""
        return SystemRandomness() if self.randomness == "os" else self.rounding()

    def rounding(self) -> Randomness:
        """The source of everything that must come out the same when a step is repeated."""
        return CipherRandomness(self.key)


def write_secret(space: Workspace, user: int, stored: StoredSecret) -> None:
    """Write the secret, readable by its owner alone."""
    s = space.session
    with whole_file(space.secret_path(user), PRIVATE) as temporary:
        write_artifact(
            temporary,
            "secret",
            s.header(user, randomness=stored.randomness, sharing=stored.sharing),
            {
                "place": stored.secret.place,
                "mask": stored.secret.mask,
                "key": np.frombuffer(stored.key, dtype=np.uint8),
            },
        )


def read_secret(space: Workspace, user: int) -> StoredSecret:
    """The secret of a user, with every value checked."""
    s = space.session
    rows = (s.parameters.rows,)
    shapes = {"key": (KEY_BYTES,), "place": rows, "mask": rows}
    with opened(space.secret_path(user), "secret", shapes) as artifact:
        artifact.expect(s.header(user))
        secret = _checked(space, artifact)
        return StoredSecret(
            secret,
            artifact.read("key").tobytes(),
            artifact.attributes["randomness"],
            artifact.attributes["sharing"],
            private=artifact.mode & 0o077 == 0,
        )


def _checked(space: Workspace, artifact: Artifact) -> Secret:
    p = space.session.parameters
    secret = Secret(artifact.read("place"), artifact.read("mask"))
    if np.any(secret.mask >= np.uint32(p.field)):
        raise artifact.bad("a mask is not below the field's size")
    places = np.arange(p.rows) if p.construction == "permutation" else None
    if places is not None and not np.array_equal(np.sort(secret.place), places):
        raise artifact.bad("its places are not a permutation")
    if places is None and np.any(secret.place >= p.width):
        raise artifact.bad("a place is not below the width of a bucket")
    return secret
