"""Masked-input phase: X_n from the sparse input and the secret."""

from __future__ import annotations

import numpy as np

from ..errors import BadData
from .constructions import construction
from .messages import Masked, Secret, Sparse
from .parameters import Parameters


def mask_input(p: Parameters, secret: Secret, sparse: Sparse) -> Masked:
    """X_n: the hidden indices with x_{n,k} = w_{n,k} + r_{n,k} (eq. message:first and message:phase:1)."""
    if sparse.index.shape != (p.entries,) or sparse.value.shape != (p.entries,):
        raise ValueError(f"X has exactly {p.entries} entries, not {sparse.index.size}")
    return construction(p).mask(p, secret, sparse)


def check_masked(p: Parameters, masked: Masked) -> None:
    """Refuse what no honest user could have sent: a count, an index or a value out of range."""
    if masked.index.shape != (p.entries,) or masked.value.shape != (p.entries,):
        raise BadData(f"it does not have exactly {p.entries} entries")
    if np.any(masked.value >= np.uint32(p.field)):
        raise BadData("a value is not below the field's size")
    construction(p).check(p, masked)
