"""Which answers are wrong: a polynomial's values at the users' points are a Reed-Solomon codeword.

The words here are random combinations of all columns, a few symbols a user. Only finding out who is
wrong needs linear algebra over F_q, and with it galois.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .field import Symbols
from .lagrange import lagrange_matrix


def agree(alpha: Sequence[int], words: Symbols, dimension: int, q: int) -> bool:
    """Whether each column of `words` (users, columns) is a polynomial of degree < dimension."""
    predicting = lagrange_matrix(alpha[:dimension], alpha[dimension:], q).astype(object)
    values = words.astype(object)
    return bool(np.all((predicting @ values[:dimension] - values[dimension:]) % q == 0))


def wrong_positions(
    alpha: Sequence[int], words: Symbols, dimension: int, q: int
) -> list[int] | None:
    """The rows of `words` (users, columns) that keep the others from agreeing.

    None if they cannot be found: at most floor((users - dimension) / 2) rows can be. If no more are
    wrong, the answer is certain.
    """
    most = (len(alpha) - dimension) // 2
    wrong: set[int] = set()
    for column in words.T:
        positions = _berlekamp_welch(alpha, column, dimension=dimension, most=most, q=q)
        if positions is None:
            return None
        wrong |= positions
    right = [i for i in range(len(alpha)) if i not in wrong]
    if len(wrong) > most or not agree(
        [alpha[i] for i in right], words[right], dimension=dimension, q=q
    ):
        return None
    return sorted(wrong)


def _berlekamp_welch(
    alpha: Sequence[int], word: Symbols, dimension: int, most: int, q: int
) -> set[int] | None:
    """The positions of at most `most` errors in one word, or None.

    Find E (degree <= most) and Q (degree < dimension + most), not both zero, with Q(a_i) = y_i
    E(a_i) for all i: if at most `most` symbols are wrong, Q / E is the polynomial behind the
    others.
    """
    galois = _galois()
    field = galois.GF(q, compile="python-calculate")
    points = field(list(alpha))
    values = field(word.astype(object))
    powers = field([[pow(a, j, q) for j in range(dimension + most)] for a in alpha])
    system = np.hstack([powers, -(values[:, None] * powers[:, : most + 1])])
    solutions = system.view(field).null_space()
    if not len(solutions):
        return None
    solution = solutions[0]
    quotient = galois.Poly(solution[: dimension + most][::-1], field=field)
    locator = galois.Poly(solution[dimension + most :][::-1], field=field)
    if locator == galois.Poly.Zero(field) or quotient % locator != galois.Poly.Zero(field):
        return None
    behind = quotient // locator
    return (
        set(np.flatnonzero(np.asarray(behind(points) != values)).tolist())
        if behind.degree < dimension
        else None
    )


@lru_cache(maxsize=1)
def _galois() -> Any:
    """galois, which cannot be imported where numba has no folder for its cache.

    Nothing is compiled here.
    """
    import numba

    with tempfile.TemporaryDirectory() as folder:
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = folder
        import galois

        numba.config.CACHE_DIR = before
    return galois
