"""Which gradient a user masked: a keyed digest in its ledger, so that the same one is noticed
again.

The key is in the folder of the secrets, so that a ledger alone gives no way to try out gradients.
With a folder for the secrets of many rounds, a user's other ledgers are beside its own.
"""

from __future__ import annotations

import hashlib
import hmac
import os

import numpy as np

from ..algebra import entropy
from ..algebra.randomness import KEY_BYTES
from ..errors import BadData, InputMissing
from .atomic import PRIVATE, Array, check_own, open_regular, write_whole
from .documents import read_bytes
from .ledger import Ledger, parse_ledger
from .workspace import Workspace

_AT_ONCE = 1 << 18  # values that are converted at a time


def read_key(space: Workspace) -> bytes | None:
    """The key of the digests in this folder of secrets; None before anything was masked there."""
    path = space.input_key_path
    if not os.path.lexists(path):
        return None
    with open_regular(path, "check the permissions of the folder of secrets") as stream:
        check_own(os.fstat(stream.fileno()), path)
        key = stream.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise BadData(
            f"{path} is not a key of {KEY_BYTES} bytes",
            "remove it; gradients that were masked before are then not recognised",
        )
    return key


def ensure_key(space: Workspace) -> bytes:
    """The key, new if there is none; users that mask at the same time get the same one."""
    key = read_key(space)
    if key is not None:
        return key
    with space.making_the_input_key():
        key = read_key(space)  # another user may have made it meanwhile
        if key is None:
            key = entropy.draw(KEY_BYTES, "digests of gradients")
            write_whole(space.input_key_path, key, PRIVATE)
    return key


def digest(key: bytes, gradient: Array) -> str:
    """HMAC-SHA-256 of the flat gradient; equal values have equal digests, however they are
    stored."""
    code = hmac.new(key, digestmod=hashlib.sha256)
    for start in range(0, gradient.size, _AT_ONCE):
        values = gradient[start : start + _AT_ONCE].astype("<f8")
        values += 0.0  # which makes zero of minus zero
        code.update(np.ascontiguousarray(values).view(np.uint8).data)
    return code.hexdigest()


def ledgers_with(space: Workspace, wanted: str) -> list[Ledger]:
    """The ledgers of other sessions in this folder of secrets that name the gradient `wanted`."""
    if space.secrets is None:
        return []
    ledgers = []
    for path in sorted(space.secrets.glob("*/user-*.ledger.json")):
        if path.parent == space.private:
            continue
        try:
            content = read_bytes(path, "")
        except InputMissing:
            continue  # removed just now, or of another account
        if wanted.encode() in content:  # there may be thousands, of which few are of interest
            ledgers.append(parse_ledger(path, content))
    return [ledger for ledger in ledgers if ledger.input == wanted]
