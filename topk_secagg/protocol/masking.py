"""Masked-input phase: X_n from the sparse input and the secret."""

from __future__ import annotations

import numpy as np

from ..errors import BadData
from .constructions import construction
from .messages import Masked, Secret, Sparse
from .parameters import Parameters


def mask_input(p: Parameters, secret: Secret, sparse: Sparse) -> Masked:
    """X_n: the hidden indices with the masked values (eq. message:first and message:phase:1)."""
    entries = construction(p).entries
    if sparse.index.shape != (entries,) or sparse.value.shape != (entries,):
        raise ValueError(f"X has exactly {entries} entries, not {sparse.index.size}")
    return construction(p).mask(secret, sparse)


def check_masked(p: Parameters, masked: Masked) -> None:
    """Refuse what no honest user could have sent: a count, an index or a value out of range.

    permutation: K distinct permuted indices below L, in increasing order; moments: B P shifts below n, and no zeros.
    """
    c, index = construction(p), masked.index
    if index.shape != (c.entries,) or masked.value.shape != (c.entries,):
        raise BadData(f"it does not have exactly {c.entries} entries")
    if np.any(masked.value >= np.uint32(p.field)):
        raise BadData("a value is not below the field's size")
    beyond = np.any(index >= np.uint32(c.index_bound))
    if c.distinct and (beyond or np.any(index[1:] <= index[:-1])):
        raise BadData("its indices are not increasing and below L")
    if beyond:
        raise BadData(f"a {c.index_name} is not below {c.index_bound}")
    if c.never_zero and not np.all(masked.value):
        raise BadData("a value is zero")
