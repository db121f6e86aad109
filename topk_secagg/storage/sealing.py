"""Sealed shares: an ordinary share file, signed by its sender and encrypted with age for its receiver.

The sender streams: the bytes of the HDF5 file are produced in order and go straight through the cipher, so
that no plaintext ever reaches its disk. That works because the attributes, which hold the digest and its
signature, stand behind the datasets.
The receiver decrypts into a file that has no name, which vanishes with the process.
"""

from __future__ import annotations

import hashlib
import os
import queue
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from ..algebra.field import Symbols
from ..errors import BadData, InputMissing
from ..protocol.parameters import Parameters
from .artifacts import (
    FORMAT,
    VERSION,
    Attributes,
    checked,
    digest_at_hand,
)
from .atomic import PRIVATE, allow_open_files, open_regular, whole_file, writing
from .hdf5_parser import Dataset
from .hdf5_writer import lay_out, new_file, put_attributes
from .keys import Identity, Recipient, check_signature
from .shares import ShareFile, check_shape, shapes_of, share_shapes

_PENDING = 2  # chunks that may wait for each cipher
_HEADER_LIMIT = 4096  # bytes within which the header of a sealed share ends
_SEALED_OVERHEAD = 1 << 20  # bytes that checksums, HDF5 and age may add to a share


class _Sparse:
    """A file in memory of which only the written parts exist: what HDF5 writes besides the datasets."""

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}
        self.position = self.size = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset."""
        self.position = offset + (0, self.position, self.size)[whence]
        return self.position

    def tell(self) -> int:
        """The offset."""
        return self.position

    def write(self, data: Any) -> int:
        """Keep a part."""
        self.parts[self.position] = bytes(data)
        self.position += len(self.parts[self.position])
        self.size = max(self.size, self.position)
        return len(data)

    def readinto(self, buffer: Any) -> int:
        """What was written there, and zeros elsewhere."""
        view = np.zeros(len(buffer), dtype=np.uint8)
        for start, part in self.parts.items():
            low, high = max(start, self.position), min(start + len(part), self.position + len(view))
            if low < high:
                kept = part[low - start : high - start]
                view[low - self.position : high - self.position] = np.frombuffer(kept, dtype=np.uint8)
        buffer[:] = view.tobytes()
        self.position += len(view)
        return len(view)

    def read(self, size: int) -> bytes:
        """As `readinto`."""
        buffer = bytearray(size)
        self.readinto(buffer)
        return bytes(buffer)

    def truncate(self, size: int) -> int:
        """Set the size."""
        self.size = size
        return size

    def flush(self) -> None:
        """Nothing to do."""


def _skeleton(attributes: Attributes, p: Parameters) -> tuple[_Sparse, dict[str, Dataset]]:
    """A share file without the bytes of its datasets, and where those belong."""
    file = _Sparse()
    with new_file(file) as handle:
        datasets = lay_out(handle, share_shapes(p))
        put_attributes(handle, attributes)
    return file, datasets


class _Cipher:
    """One age encryption in a thread of its own, fed piece by piece."""

    def __init__(self, recipient: Recipient, path: Path) -> None:
        self._pieces: queue.Queue[bytes | None] = queue.Queue(_PENDING)
        self._rest = b""
        self._failure: BaseException | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, args=(recipient, path), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let the thread end before its file is removed."""
        if self._thread.is_alive():
            self._pieces.put(None)
            self._thread.join()

    def _run(self, recipient: Recipient, path: Path) -> None:
        from pyrage import encrypt_io, x25519

        try:
            with path.open("wb") as stream:
                encrypt_io(self, stream, [x25519.Recipient.from_str(recipient.age)])
        except BaseException as error:
            self._failure = error
            while not self._ended:  # let the feeder go on to where it is told
                self._next()

    def _next(self) -> bytes:
        """The next piece; an empty one at the end, which is waited for once only."""
        piece = self._pieces.get()
        self._ended = piece is None
        return piece or b""

    def read(self, size: int) -> bytes:
        """For age: the next bytes, none at the end."""
        if not self._rest:
            self._rest = b"" if self._ended else self._next()
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece

    def feed(self, piece: bytes) -> None:
        """Hand over bytes; what went wrong in the thread comes up here."""
        if self._failure:
            raise self._failure
        if piece:
            self._pieces.put(piece)

    def finish(self) -> None:
        """Wait until all is written."""
        self._pieces.put(None)
        self._thread.join()
        if self._failure:
            raise self._failure


class SealedWriter:
    """The sealed shares of one sender: all rows of f first, then all of h."""

    def __init__(
        self, p: Parameters, attributes: Sequence[Attributes], ciphers: list[_Cipher], signer: Identity
    ) -> None:
        self.p, self.attributes, self.ciphers, self.signer = p, attributes, ciphers, signer
        self.check = np.zeros((len(ciphers), *check_shape(p)), dtype=np.uint8)
        self.skeletons = [_skeleton(_signed(own, "0" * 64, "0" * 128), p) for own in attributes]
        self.sent = [0] * len(ciphers)

    def write(self, name: str, start: int, shares: Symbols) -> None:
        """The next rows of f or h, (files, rows, width)."""
        unit, column = self.p.check_rows, "fh".index(name)
        for i, rows in enumerate(shares):
            self._skip_to(i, self.skeletons[i][1][name].offset + start * rows[0].nbytes)
            self._send(i, rows.tobytes())
            for first in range(0, len(rows), unit):
                digest = hashlib.sha256(rows[first : first + unit].data).digest()
                self.check[i, (start + first) // unit, column] = np.frombuffer(digest, dtype=np.uint8)

    def finish(self) -> None:
        """Send the checksums and the attributes, now that the digest can be signed."""
        for i, own in enumerate(self.attributes):
            draft, datasets = self.skeletons[i]
            digest = digest_at_hand("share", own, {"check": self.check[i]})
            final, again = _skeleton(_signed(own, digest, self.signer.sign("share", digest)), self.p)
            sent = {at: part for at, part in draft.parts.items() if at < self.sent[i]}
            if again != datasets or any(final.parts.get(at) != part for at, part in sent.items()):
                raise RuntimeError(
                    "this version of HDF5 lays files out in another way; shares cannot be streamed"
                )
            self.skeletons[i] = final, datasets
            self._skip_to(i, datasets["check"].offset)
            self._send(i, self.check[i].tobytes())
            self._skip_to(i, final.size)
        for cipher in self.ciphers:
            cipher.finish()

    def _skip_to(self, i: int, offset: int) -> None:
        """Send what HDF5 has written up to an offset."""
        if offset < self.sent[i]:
            raise ValueError("shares are sealed in the order of the file")
        skeleton = self.skeletons[i][0]
        skeleton.seek(self.sent[i])
        self._send(i, skeleton.read(offset - self.sent[i]))

    def _send(self, i: int, piece: bytes) -> None:
        self.ciphers[i].feed(piece)
        self.sent[i] += len(piece)


def _signed(attributes: Attributes, digest: str, signature: str) -> Attributes:
    return {**attributes, "sha256": digest, "signature": signature}


@contextmanager
def sealing_shares(
    p: Parameters,
    paths: Mapping[int, Path],
    attributes: Attributes,
    recipients: Sequence[Recipient],
    signer: Identity,
) -> Iterator[SealedWriter]:
    """Seal the shares for the users in `paths`; none appears under its name before all are complete."""
    common: Attributes = {**attributes, "format": FORMAT, "version": VERSION, "kind": "share"}
    allow_open_files(2 * len(paths))
    with ExitStack() as files:
        ciphers = []
        for user, path in paths.items():
            temporary = files.enter_context(whole_file(path, PRIVATE))
            ciphers.append(files.enter_context(_Cipher(recipients[user - 1], temporary)))
        writer = SealedWriter(p, [common | {"user": user} for user in paths], ciphers, signer)
        yield writer
        writer.finish()


class _Guarded:
    """The file into which a share is decrypted; a full disk is told from a damaged share."""

    def __init__(self, file: IO[bytes], scratch: Path) -> None:
        self.file, self.scratch = file, scratch

    def write(self, data: bytes) -> int:
        """Write through."""
        with writing(self.scratch):
            return self.file.write(data)

    def flush(self) -> None:
        """Flush through."""
        with writing(self.scratch):
            self.file.flush()


def _is_age(stream: IO[bytes]) -> bool:
    """Whether a file starts with an age header of sane size: the library would read any line to its end."""
    start = stream.read(_HEADER_LIMIT)
    stream.seek(0)
    return start.startswith(b"age-encryption.org/v1\n") and b"\n---" in start


def looks_sealed(p: Parameters, path: Path) -> bool:
    """Whether there is a sealed share of at least the size of a share; its sender cannot see more of it."""
    try:
        with os.fdopen(open_regular(path, ""), "rb") as stream:
            return _is_age(stream) and os.fstat(stream.fileno()).st_size > p.share_bytes
    except (InputMissing, BadData):
        return False


@contextmanager
def sealed_share_rows(
    p: Parameters, path: Path, expected: Attributes, sender: Recipient, identity: Identity, scratch: Path
) -> Iterator[ShareFile]:
    """Decrypt one sealed share into a nameless file, and check whose it is and who signed it."""
    from pyrage import DecryptError, decrypt_io

    fd = open_regular(path, f"fetch it from user {sender.user}")
    with os.fdopen(fd, "rb") as stream, tempfile.TemporaryFile(dir=scratch) as plain:
        refused = BadData(
            f"{path}: the share of user {sender.user} does not open: damaged, or not for this identity",
            f"fetch it from user {sender.user} again",
        )
        if os.fstat(fd).st_size > p.share_bytes + p.share_bytes // 64 + _SEALED_OVERHEAD or not _is_age(
            stream
        ):
            raise refused
        try:
            decrypt_io(stream, _Guarded(plain, scratch), [identity.opener()])
        except (DecryptError, OSError, ValueError) as error:
            raise refused from error
        plain.flush()
        artifact = checked(plain.fileno(), path, "share", shapes_of(p))
        check_signature(artifact, sender)
        yield ShareFile(p, artifact.expect(expected))
