"""The keys of a user: an age identity to open shares with, and an Ed25519 key to sign them with.

An identity file is one of age whose comments hold the signing key, so that `age -d -i FILE` takes it.
A recipients file has a line for each user, as `keygen` prints it: NUMBER age1... ed25519:HEX.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ..errors import BadData, Refused
from .atomic import open_regular
from .documents import read_bytes

_SIGNING = "# ed25519 secret: "
_LARGEST_IDENTITY = 1 << 16  # bytes


@dataclass(frozen=True)
class Recipient:
    """The public keys of a user."""

    user: int
    age: str
    ed25519: str

    @property
    def fingerprint(self) -> str:
        """To compare keys by eye: the start of the SHA-256 of both."""
        return hashlib.sha256(f"{self.age} {self.ed25519}".encode()).hexdigest()[:16]

    def line(self) -> str:
        """As `keygen` prints it."""
        return f"{self.user} {self.age} ed25519:{self.ed25519}"

    def verify(self, kind: str, digest: str, signature: str) -> bool:
        """Whether this user signed the file of this kind with this digest."""
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.ed25519))
            key.verify(bytes.fromhex(signature), _statement(kind, digest))
        except (ValueError, InvalidSignature):
            return False
        return True


@dataclass(frozen=True)
class Identity:
    """The secret keys of a user."""

    age: str
    ed25519: str

    @staticmethod
    def generate() -> Identity:
        """New keys from the operating system's entropy."""
        from pyrage import x25519

        return Identity(str(x25519.Identity.generate()), Ed25519PrivateKey.generate().private_bytes_raw().hex())

    def public(self, user: int) -> Recipient:
        """The public half, as the keys of user n."""
        return Recipient(user, str(self.opener().to_public()), self._signer().public_key().public_bytes_raw().hex())

    def sign(self, kind: str, digest: str) -> str:
        """The signature of a file of this kind with this digest, in hexadecimal."""
        return self._signer().sign(_statement(kind, digest)).hex()

    def opener(self) -> Any:
        """The age identity that pyrage decrypts with."""
        from pyrage import x25519

        return x25519.Identity.from_str(self.age)

    def _signer(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(self.ed25519))

    def content(self, user: int) -> bytes:
        """The identity file."""
        public = f"# topk-secagg identity of user {user}\n# public keys: {self.public(user).line()}\n"
        return f"{public}{_SIGNING}{self.ed25519}\n{self.age}\n".encode()


def _statement(kind: str, digest: str) -> bytes:
    """What is signed."""
    return f"topk-secagg {kind} {digest}".encode()


def read_identity(path: Path) -> Identity:
    """The identity in a file of `keygen`, which nobody else may read."""
    with os.fdopen(open_regular(path, "make keys first, or check the path"), "rb") as stream:
        mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
        text = stream.read(_LARGEST_IDENTITY).decode("ascii", "replace")
    if mode & 0o077:
        raise Refused(
            f"{path} can be read by others (mode {mode:04o})", f"run: chmod 600 {path}, and consider making new keys"
        )
    try:  # there is one key of each kind
        (signing,) = (line.removeprefix(_SIGNING) for line in text.splitlines() if line.startswith(_SIGNING))
        (age,) = (line for line in text.splitlines() if line.startswith("AGE-SECRET-KEY-1"))
        identity = Identity(age, signing)
        identity.public(0)
    except Exception as error:  # pyrage.IdentityError is not among the built-in kinds
        raise BadData(f"{path} is not an identity file of `topk-secagg keygen`", "check the path") from error
    return identity


def read_recipients(path: Path, users: int) -> tuple[Recipient, ...]:
    """The public keys of users 1..N, one line each, in any order."""
    text = read_bytes(path, "collect the lines that `topk-secagg keygen` prints").decode("ascii", "replace")
    found: dict[int, Recipient] = {}
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3 or not words[0].isdigit() or len(words[0]) > 9 or not words[2].startswith("ed25519:"):
            raise BadData(f"{path}: a line is not NUMBER age1... ed25519:HEX", "take it from `topk-secagg keygen`")
        recipient = Recipient(int(words[0]), words[1], words[2].removeprefix("ed25519:"))
        if recipient.user in found:
            raise BadData(f"{path} has two lines for user {recipient.user}", "keep one line for each user")
        found[recipient.user] = recipient
    if sorted(found) != list(range(1, users + 1)):
        raise BadData(f"{path} does not have exactly one line for each of the {users} users", "add or drop lines")
    recipients = tuple(found[n] for n in sorted(found))
    check_recipients(recipients)
    return recipients


def check_recipients(recipients: tuple[Recipient, ...]) -> None:
    """Refuse keys that are no keys, or that two users share."""
    from pyrage import RecipientError, x25519

    for r in recipients:
        try:
            x25519.Recipient.from_str(r.age)
            key = bytes.fromhex(r.ed25519)
            Ed25519PublicKey.from_public_bytes(key)
            if r.ed25519 != key.hex():
                raise ValueError("a key has one spelling only")
        except (RecipientError, ValueError) as error:
            raise BadData(f"the keys of user {r.user} are not valid", "take them from `topk-secagg keygen`") from error
    if len({r.age for r in recipients}) < len(recipients) or len({r.ed25519 for r in recipients}) < len(recipients):
        raise BadData("two users have the same key", "every user runs `topk-secagg keygen` itself")
