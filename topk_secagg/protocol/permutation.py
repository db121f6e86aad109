"""`permutation`: the paper's construction. One selector per coordinate, row i of the matrix P_n."""

from __future__ import annotations

import numpy as np

from ..algebra.field import Integers, add
from ..algebra.randomness import Randomness
from ..errors import BadData
from .messages import Masked, Secret, Selectors, Sparse, Terms
from .parameters import Parameters


def draw(p: Parameters, source: Randomness) -> Secret:
    """A uniform permutation pi_n of [L] and a uniform mask vector r_n."""
    return Secret(
        place=source.child("place").permutation(p.length),
        mask=source.child("mask").integers(p.field, np.empty(p.length, dtype=np.uint32)),
    )


def selectors(p: Parameters, secret: Secret) -> Selectors:
    """p_{n,i} = e_{sigma_n(i)}, cut into D blocks, scaled by r_{n,sigma_n(i)} in h (eq. partition)."""
    sigma = np.empty(p.length, dtype=np.int64)
    sigma[secret.place] = np.arange(p.length)
    return Selectors(slot=sigma // p.width, place=sigma % p.width, mask=secret.mask[sigma])


def mask(p: Parameters, secret: Secret, sparse: Sparse) -> Masked:
    """X_n = {(pi_n(k), w_k + r_k)} by permuted index: the order says nothing (eq. message:phase:1)."""
    index = secret.place[sparse.index]
    value = add(sparse.value, secret.mask[sparse.index], p.field)
    order = np.argsort(index)
    return Masked(index[order], value[order])


def check(p: Parameters, masked: Masked) -> None:
    """K distinct permuted indices below L, in increasing order."""
    index = masked.index.astype(np.int64)
    if np.any(index[1:] <= index[:-1]) or np.any(index >= p.length):
        raise BadData("its indices are not increasing and below L")


def terms(p: Parameters, masked: Masked) -> Terms:  # noqa: ARG001 - the verb's signature
    """Every entry names its own row; nothing is rotated; there is one group."""
    row = masked.index.astype(np.int64)
    return Terms(row=row, rotation=np.zeros_like(row), group=np.zeros_like(row))


def coordinates(p: Parameters, group: Integers, slot: Integers, place: Integers) -> Integers:  # noqa: ARG001
    """The D blocks stand one after the other: k = slot * width + place."""
    return slot * p.width + place
