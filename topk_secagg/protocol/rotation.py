"""`rotation`: a selector at a secret place for each pick only, rotated by its owner to where it is needed.

Not in the paper; the same secrecy with an offline cost linear in L. See docs/scheme.md.
"""

from __future__ import annotations

import numpy as np

from ..algebra.field import Integers, add
from ..algebra.randomness import Randomness
from ..errors import BadData
from .messages import Masked, Secret, Selectors, Sparse, Terms
from .parameters import Parameters


def draw(p: Parameters, source: Randomness) -> Secret:
    """For pick i = b P + j: a uniform place s in [0, M) and a uniform mask r."""
    return Secret(
        place=source.child("place").integers(p.width, np.empty(p.rows, dtype=np.uint32)),
        mask=source.child("mask").integers(p.field, np.empty(p.rows, dtype=np.uint32)),
    )


def selectors(p: Parameters, secret: Secret) -> Selectors:
    """Bucket b sits in slot b mod D; the selector of a pick is 1 at its secret place."""
    bucket = np.arange(p.rows, dtype=np.int64) // p.picks
    return Selectors(slot=bucket % p.blocks, place=secret.place.astype(np.int64), mask=secret.mask)


def mask(p: Parameters, secret: Secret, sparse: Sparse) -> Masked:
    """delta = (k - s) mod M and x = w + r, pick by pick: both are one-time pads.

    sparse.index (B P,) lists P coordinates of bucket 0, then P of bucket 1, and so on.
    """
    if np.any(sparse.index % p.buckets != np.arange(p.rows) // p.picks):
        raise ValueError("the picks are not listed bucket by bucket")
    delta = (sparse.index // p.buckets - secret.place.astype(np.int64)) % p.width
    return Masked(delta.astype(np.uint32), add(sparse.value, secret.mask, p.field))


def check(p: Parameters, masked: Masked) -> None:
    """B P rotations below M."""
    if np.any(masked.index >= p.width):
        raise BadData("a rotation is not below the width of a bucket")


def terms(p: Parameters, masked: Masked) -> Terms:
    """Every row is used, rotated by its delta, in the group of its bucket."""
    row = np.arange(p.rows, dtype=np.int64)
    return Terms(row=row, rotation=masked.index.astype(np.int64), group=row // (p.picks * p.blocks))


def coordinates(p: Parameters, group: Integers, slot: Integers, place: Integers) -> Integers:
    """Bucket b = group * D + slot holds the coordinates k with k mod B = b, in order of k // B."""
    coordinate: Integers = place * p.buckets + group * p.blocks + slot
    return coordinate
