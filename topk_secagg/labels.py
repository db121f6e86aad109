"""Every domain separation of this program, in one block.

A label says what a key, a stream or a signature is for. Two of them that are used with one key
never agree: each begins with a word of its own, and what varies follows, separated by spaces that
it cannot contain; a name that may contain one comes last. Keyed digests of gradients have no label;
they are never compared with those of names, which have one.

A user's key of a round (secrets/user-NN.h5) gives, by HMAC-SHA-256 under these labels, all that the
user draws in it. Keys of blocks, the key of a folder and public nonces have labels of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

# children of a user's key of a round
MASK = "mask"
PLACE = "place"
SHARING = "sharing"
SELECT = "select"


def noise(start: int) -> str:
    """Of the shares of rows start, start+1, ..."""
    return f"noise {start}"


def rounding(values_digest: str) -> str:
    """Of these values, so that masking them again rounds them alike."""
    return f"rounding {values_digest}"


def key(session: str, dealer: int, block: Sequence[int]) -> str:
    """Of the key that a dealer gives to the users of a block."""
    return f"key {session} {dealer} {listed(block)}"


# what is done with the key of a block


def symbols(session: str, dealer: int, block: Sequence[int], sharing: str) -> str:
    """The stream of masks in a session."""
    return f"symbols {session} {dealer} {listed(block)} {sharing}"


def commitment(dealer: int, block: Sequence[int]) -> bytes:
    """What its dealer publishes."""
    return f"commitment {dealer} {listed(block)}".encode()


NEXT = b"next"  # the key of the next generation of a series

# with the key of a folder of secrets
NAME_OF_GRADIENT = b"name of a gradient "
RESIDUAL = b"residual "


# with a public nonce


def basis(column: int, attempt: int, tensor: str) -> bytes:
    """Integers for a column of a tensor's basis."""
    return f"basis {column} {attempt} {tensor}".encode()


# of what leaves no machine: decoding, and rounds in memory
CHECKED_SUMS = "sums"
DECODING = "decode"


def checked_pieces(first: int) -> str:
    """Of the factors with which pieces of answers are compared."""
    return f"pieces {first}"


def user(n: int) -> str:
    """Of a user in a round in memory."""
    return f"user {n}"


def rounding_of_user(n: int) -> str:
    """Of its rounding there."""
    return f"rounding of user {n}"


# signatures


def statement(kind: str, digest: str) -> bytes:
    """What is signed of a file of this kind."""
    return f"topk-secagg {kind} {digest}".encode()


def listed(block: Sequence[int]) -> str:
    """Users in a label."""
    return ",".join(map(str, block))
