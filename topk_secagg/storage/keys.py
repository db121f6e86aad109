"""The keys of a user: an age identity to open sealed shares with, and an Ed25519 key to sign them
with.

An identity file is one of age whose comments hold the signing key, so that `age -d -i FILE` takes
it. A recipients file has a line for each user, as `keygen` prints it: NUMBER age1... ed25519:HEX.
age does not say who encrypted a file; whatever is sealed here is signed inside.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..algebra import entropy
from ..errors import BadData, CannotWrite, InputMissing, Refused
from ..labels import statement
from . import bech32
from .atomic import open_regular, whole_file, writing
from .documents import AGAIN, is_sha256, read_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_SIGNING = "# ed25519 secret: "
_FOLDER = "# folder of secrets: "
_RECIPIENT = re.compile(r"(\d{1,9})\s+(\S+)\s+ed25519:(\S*)", re.ASCII)
_LARGEST_IDENTITY = 1 << 16  # bytes
_AGE_PREFIX = "age-secret-key-"
_AGE_IDENTITY = f"{_AGE_PREFIX}1".upper()  # how the line begins
_AGE_RECIPIENT = "age"
_SECRET_BYTES = 32  # of an X25519 or Ed25519 key
_PUBLIC_BYTES = 32
_PRIME = 2**255 - 19  # of both curves
_WITHOUT_SIGN = 2**255 - 1  # the other bit of an Ed25519 key
# kinds of files that hold keys
IDENTITY = "identity"
RECIPIENTS = "recipients"
_HEADER_LIMIT = 4096  # bytes within which the header of a sealed file ends


def _ed25519() -> Any:
    """The module of the keys that sign; only sealed rounds need it, and start-up is short."""
    from cryptography.hazmat.primitives.asymmetric import ed25519

    return ed25519


def _pyrage() -> Any:
    """The module pyrage; few commands need it either.

    Ctrl-C waits until it is imported: a signal in between is a panic in its native code, which
    prints lines of its own.
    """
    held_back = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        import pyrage
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held_back)
    return pyrage


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


@dataclass(frozen=True)
class Identity:
    """The secret keys of a user, and the number of the folder of secrets in which they were made:
    they take part with that folder alone."""

    age: str = field(repr=False)
    ed25519: str = field(repr=False)
    folder: str = field(repr=False)

    @staticmethod
    def drawn(folder: str) -> Identity:
        """New keys. Any 32 bytes are an X25519 key, and any are an Ed25519 key."""
        return Identity(
            folder=folder,
            age=bech32.encode(_AGE_PREFIX, entropy.draw(_SECRET_BYTES, "age identity")).upper(),
            ed25519=entropy.draw(_SECRET_BYTES, "Ed25519 key").hex(),
        )

    def public(self, user: int) -> Recipient:
        """The public half, as the keys of user n."""
        return Recipient(
            user,
            str(self.opener().to_public()),
            self._signer().public_key().public_bytes_raw().hex(),
        )

    def sign(self, kind: str, digest: str) -> str:
        """The signature of a file of this kind with this digest, in hexadecimal."""
        return self._signer().sign(statement(kind, digest)).hex()

    def opener(self) -> Any:
        """The age identity that pyrage decrypts with."""
        return _pyrage().x25519.Identity.from_str(self.age)

    def _signer(self) -> Ed25519PrivateKey:
        secret = bytes.fromhex(self.ed25519)
        signer: Ed25519PrivateKey = _ed25519().Ed25519PrivateKey.from_private_bytes(secret)
        return signer

    def content(self, user: int) -> bytes:
        """The identity file."""
        public = (
            f"# topk-secagg identity of user {user}\n# public keys: {self.public(user).line()}\n"
        )
        folder = f"{_FOLDER}{self.folder}\n"
        return f"{public}{folder}{_SIGNING}{self.ed25519}\n{self.age}\n".encode()


def check_signature(
    sender: Recipient | None, *, kind: str, digest: str, signature: str | None
) -> None:
    """Refuse a file that its sender did not sign, or that is signed where nobody has keys."""
    if sender is None:
        if signature is not None:
            raise BadData("it is signed, and this round has no keys", AGAIN)
        return
    from cryptography.exceptions import InvalidSignature

    try:
        key = _ed25519().Ed25519PublicKey.from_public_bytes(bytes.fromhex(sender.ed25519))
        key.verify(bytes.fromhex(signature or ""), statement(kind, digest))
    except (ValueError, InvalidSignature) as error:
        raise BadData(
            f"user {sender.user} did not sign it: the file is forged",
            f"ask user {sender.user} for the real one",
        ) from error


def read_identity(path: Path) -> Identity:
    """The identity in a file of `keygen`, which nobody else may read."""
    pyrage = _pyrage()
    with open_regular(path, "make keys first, or check the path") as stream:
        mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
        text = stream.read(_LARGEST_IDENTITY).decode("ascii", "replace")
    if mode & 0o077 and keys_in(text.encode()) != RECIPIENTS:  # which have nothing to hide
        raise Refused(
            f"{path} can be read by others (mode {mode:04o})",
            f"run: chmod 600 {path}, and consider making new keys",
        )
    try:  # there is one of each kind
        (age,) = (line for line in text.splitlines() if line.startswith(_AGE_IDENTITY))
        (signing,) = _values(text, _SIGNING)
        (folder,) = filter(is_sha256, _values(text, _FOLDER))
        identity = Identity(age=age, ed25519=signing, folder=folder)
        identity.public(0)
    except (ValueError, pyrage.IdentityError) as error:
        what = f"{path} is not an identity file of `topk-secagg keygen`"
        if keys_in(text.encode()) == RECIPIENTS:
            what = f"{what}, but has public keys"
        raise BadData(what, "check the path") from error
    return identity


def _values(text: str, label: str) -> Iterator[str]:
    """What stands behind a label, in every line that has it."""
    return (line.removeprefix(label) for line in text.splitlines() if line.startswith(label))


def keys_in(start: bytes) -> str:
    """IDENTITY or RECIPIENTS, if a file that begins like this is one; else nothing."""
    lines = start.decode("ascii", "replace").splitlines()
    if any(line.startswith((_SIGNING, _AGE_IDENTITY)) for line in lines):
        return IDENTITY
    first = next((line.strip() for line in lines if line.strip() and line[0] != "#"), "")
    return RECIPIENTS if _RECIPIENT.fullmatch(first) else ""


def read_recipients(path: Path, users: int) -> tuple[Recipient, ...]:
    """The public keys of users 1..N, one line each, in any order."""
    text = read_bytes(path, "collect the lines that `topk-secagg keygen` prints").decode(
        "ascii", "replace"
    )
    by_user: dict[int, Recipient] = {}
    for line in map(str.strip, text.splitlines()):
        if match := _RECIPIENT.fullmatch(line):
            recipient = Recipient(int(match[1]), match[2], match[3])
            if by_user.setdefault(recipient.user, recipient) is not recipient:
                raise BadData(
                    f"{path} has two lines for user {recipient.user}", "keep one line for each user"
                )
        elif line and not line.startswith("#"):
            raise BadData(
                f"{path}: a line is not NUMBER age1... ed25519:HEX",
                "take it from `topk-secagg keygen`",
            )
    if sorted(by_user) != list(range(1, users + 1)):
        raise BadData(
            f"{path} does not have exactly one line for each of the {users} users",
            "add or drop lines",
        )
    recipients = tuple(by_user[n] for n in sorted(by_user))
    check_recipients(recipients)
    return recipients


def check_recipients(recipients: tuple[Recipient, ...]) -> None:
    """Refuse keys that are no keys, or that two users share; everybody else's round would end."""
    for r in recipients:
        try:
            _check_age(r.age)
            _check_ed25519(r.ed25519)
        except ValueError as error:
            raise BadData(
                f"the keys of user {r.user} are not valid", "take them from `topk-secagg keygen`"
            ) from error
    if len({r.age for r in recipients}) < len(recipients) or len(
        {r.ed25519 for r in recipients}
    ) < len(recipients):
        raise BadData("two users have the same key", "every user runs `topk-secagg keygen` itself")


def _check_age(text: str) -> None:
    """A ValueError for a key to which nothing can be sealed, or in another spelling than its own:
    one key would be two users."""
    key = bech32.decode(_AGE_RECIPIENT, text)
    if len(key) != _PUBLIC_BYTES:
        raise ValueError("it has another size")
    _check_order(int.from_bytes(key, "little"))


def _check_ed25519(text: str) -> None:
    """A ValueError for a key that is not written as `keygen` does, or for which anybody can sign:
    a point of small order."""
    key = bytes.fromhex(text)
    if len(key) != _PUBLIC_BYTES or key.hex() != text:
        raise ValueError("a key has one spelling only")
    y = int.from_bytes(key, "little") & _WITHOUT_SIGN
    if y >= _PRIME or y == 1:  # which is the neutral element
        raise ValueError("it is not a point")
    _check_order((1 + y) * pow(1 - y, -1, _PRIME) % _PRIME)  # the same point, as X25519 has it


def _check_order(u: int) -> None:
    """A ValueError for a point of Curve25519 that is not written the one way, or of small order:
    a key exchange with it gives zero, whoever does it."""
    from cryptography.hazmat.primitives.asymmetric import x25519

    if u >= _PRIME:
        raise ValueError("a key has one spelling only")
    point = x25519.X25519PublicKey.from_public_bytes(u.to_bytes(_PUBLIC_BYTES, "little"))
    x25519.X25519PrivateKey.from_private_bytes(bytes(_PUBLIC_BYTES)).exchange(point)


# sealed files: encrypted for one reader, so that `age -d -i IDENTITY` opens them too


@contextmanager
def sealed(path: Path, recipient: Recipient, scratch: Path) -> Iterator[IO[bytes]]:
    """A file without a name to write to; when the block ends it is encrypted for one reader, under
    the name `path`."""
    import tempfile  # here and below: few commands open sealed files, and start-up is short

    pyrage = _pyrage()
    with writing(scratch), tempfile.TemporaryFile(dir=scratch) as plain:
        yield plain
        plain.seek(0)
        with whole_file(path) as stream:
            target = _Guarded(stream, path)
            try:
                pyrage.encrypt_io(plain, target, [pyrage.x25519.Recipient.from_str(recipient.age)])
            finally:  # the library makes another error of it, or none
                if target.error:
                    raise target.error


@contextmanager
def unsealed(
    path: Path, sender: int, *, largest: int, identity: Identity, scratch: Path
) -> Iterator[IO[bytes]]:
    """The plaintext of a sealed file of user `sender`, as a file without a name, which vanishes
    with the process."""
    import tempfile

    pyrage = _pyrage()
    refused = BadData(
        f"{path}: the share of user {sender} does not open: it is damaged, or not for this "
        "identity",
        f"fetch it from user {sender} again",
    )
    hint = f"fetch it from user {sender}"
    with (
        open_regular(path, hint) as stream,
        tempfile.TemporaryFile(dir=scratch, buffering=0) as plain,
    ):
        if os.fstat(stream.fileno()).st_size > largest or not _is_age(stream):
            raise refused
        target = _Guarded(plain, scratch)
        try:
            pyrage.decrypt_io(stream, target, [identity.opener()])
        except (pyrage.DecryptError, OSError, ValueError) as error:
            raise target.error or refused from error
        yield plain


class _Guarded:
    """A file to write to; a full disk is reported as such, not as damaged data."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self.file = file
        self.path = path
        self.error: CannotWrite | None = None

    def write(self, data: bytes) -> int:
        try:
            with writing(self.path):
                return self.file.write(data)
        except CannotWrite as error:
            self.error = error
            raise

    def flush(self) -> None:
        with writing(self.path):
            self.file.flush()


def _is_age(stream: IO[bytes]) -> bool:
    """Whether a file starts with an age header of sane size: the library would read any line to its
    end."""
    start = stream.read(_HEADER_LIMIT)
    stream.seek(0)
    return start.startswith(b"age-encryption.org/v1\n") and b"\n---" in start


def looks_sealed(path: Path, least: int, largest: int) -> bool:
    """Whether there is a sealed file of plausible size; without the key nobody can see more of
    it."""
    with suppress(InputMissing, BadData), open_regular(path, "") as stream:
        return _is_age(stream) and least < os.fstat(stream.fileno()).st_size <= largest
    return False
