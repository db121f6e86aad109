"""SECRETS/user-NN.sent: keyed digests of what a user has sent; SECRETS/input.key: their key.

A line "SESSION DIGEST" is durable before the X of that input leaves. Nothing is ever taken out:
what has left stays known as long as the folder is there, whatever was forgotten, and whether or not
the round gave a sum. The key is beside the digests, so that they alone give no way to try out
gradients, and no digest without a key is kept anywhere.

An input is the gradient as its user gave it, before residual and weight. One that is zero
everywhere is not recorded: who has nothing to say may say so again.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re

import numpy as np

from .. import labels
from ..algebra import entropy
from ..algebra.randomness import KEY_BYTES
from ..errors import BadData, Refused
from .atomic import PRIVATE, Array, check_own, open_regular, sync_folder, write_whole, writing
from .workspace import Workspace

_AT_ONCE = 1 << 18  # values that are converted at a time
_LINE = re.compile(r"([0-9a-f]{64}) ([0-9a-f]{64})")
_LARGEST = 64 << 20  # bytes: half a million rounds
_LOST = "restore the folder of secrets from a backup; or leave it alone, and join with a new one"


def read_key(space: Workspace) -> bytes | None:
    """The key of the digests in this folder of secrets; None before anything was masked there."""
    path = space.input_key_path
    if not os.path.lexists(path):
        return None
    with open_regular(path, "check the permissions of the folder of secrets") as stream:
        check_own(os.fstat(stream.fileno()), path)
        key = stream.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise BadData(f"{path} is not a key of {KEY_BYTES} bytes", _LOST)
    return key


def ensure_key(space: Workspace) -> bytes:
    """The key, new if nothing was sent yet; users that mask at the same time get the same one."""
    key = read_key(space)
    if key is not None:
        return key
    with space.making_what_is_shared():
        key = read_key(space)  # another user may have made it meanwhile
        if key is None:
            _check_nothing_sent(space)
            key = entropy.draw(KEY_BYTES, "digests of gradients")
            write_whole(space.input_key_path, key, PRIVATE)
    return key


def _check_nothing_sent(space: Workspace) -> None:
    """Refuse to make a new key beside digests that only the lost one can compare."""
    for path in space.home.glob("user-*.sent"):
        raise Refused(f"{space.input_key_path} is gone, and {path} was made with it", _LOST)


def digest(key: bytes, gradient: Array) -> str:
    """HMAC-SHA-256 of the flat gradient; equal values have equal digests, however they are
    stored."""
    code = hmac.new(key, digestmod=hashlib.sha256)
    for start in range(0, gradient.size, _AT_ONCE):
        values = gradient[start : start + _AT_ONCE].astype("<f8")
        values += 0.0  # which makes zero of minus zero
        code.update(np.ascontiguousarray(values).view(np.uint8).data)
    return code.hexdigest()


def name_digest(key: bytes, name: str) -> str:
    """The same of the name of a gradient's file; the label is no multiple of eight bytes."""
    return hmac.digest(key, labels.NAME_OF_GRADIENT + os.fsencode(name), "sha256").hex()


def residual_digest(key: bytes, sha256: str) -> str:
    """The same of what was not sent, from the digest that is in the file that holds it."""
    return hmac.digest(key, labels.RESIDUAL + bytes.fromhex(sha256), "sha256").hex()


def sent(space: Workspace, user: int) -> list[tuple[str, str]]:
    """The session and the digest of everything that a user has sent, in this order."""
    path = space.sent_path(user)
    if not os.path.lexists(path):
        return []
    with open_regular(path, "check the permissions of the folder of secrets") as stream:
        check_own(os.fstat(stream.fileno()), path)
        content = stream.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise BadData(f"{path} is larger than this program makes it", _LOST)
    *lines, _ = content.decode("ascii", "replace").split("\n")  # what was cut off was not sent
    matches = [_LINE.fullmatch(line) for line in lines]
    if not all(matches):
        raise BadData(f"{path} has a line that is not SESSION DIGEST", _LOST)
    return [(match[1], match[2]) for match in matches if match]


def record_sent(space: Workspace, user: int, session: str, input_digest: str) -> None:
    """Add a line, durably; a repeated call adds nothing."""
    before = sent(space, user)
    if (session, input_digest) in before:
        return
    path = space.sent_path(user)
    with writing(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE)
        with os.fdopen(fd, "r+b") as stream:
            stream.seek(sum(len(" ".join(line)) + 1 for line in before))
            stream.truncate()  # the part of a line that a crash left
            stream.write(f"{session} {input_digest}\n".encode())
            stream.flush()
            os.fsync(fd)
        sync_folder(path.parent)
