"""Points and Lagrange matrices: small algebra, done with galois."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from . import compiled  # noqa: F401 - before galois


@lru_cache(maxsize=8)
def galois_field(q: int) -> Any:
    """F_q in galois, without just-in-time compilation: its matrices here are tiny."""
    import galois

    return galois.GF(q, compile="python-calculate")


def lagrange_matrix(nodes: Sequence[int], points: Sequence[int], q: int) -> npt.NDArray[np.uint64]:
    """The matrix that turns values at `nodes` into values at `points`, (len(points), len(nodes)).

    Entry (p, i) is prod over j != i of (point_p - node_j) / (node_i - node_j): a polynomial of degree
    below len(nodes) is given by its values at the nodes.
    """
    if not points:
        return np.empty((0, len(nodes)), dtype=np.uint64)
    field = galois_field(q)
    x, targets = field(list(nodes)), field(list(points))
    matrix = field.Ones((len(points), len(nodes)))
    for i in range(len(nodes)):
        others = np.delete(x, i)
        matrix[:, i] = np.prod(np.subtract.outer(targets, others), axis=1) / np.prod(x[i] - others)
    return np.asarray(matrix).astype(np.uint64)


def encoding_matrix(
    alpha: Sequence[int], beta: Sequence[int], blocks: int, colluders: int, q: int
) -> npt.NDArray[np.uint64]:
    """From the D blocks and T noises at beta_1..beta_{D+T} to every alpha: (N, D+T)."""
    return lagrange_matrix(beta[: blocks + colluders], alpha, q)


def decoding_matrix(alpha: Sequence[int], beta: Sequence[int], blocks: int, q: int) -> npt.NDArray[np.uint64]:
    """From D+T answers at their alphas to the D blocks at beta_1..beta_D: (D, D+T)."""
    return lagrange_matrix(alpha, beta[:blocks], q)


def default_points(users: int, survivors: int, q: int) -> tuple[list[int], list[int]]:
    """N + U pairwise distinct elements of F_q: beta_u = u - 1 and alpha_n = U + n - 1."""
    field = galois_field(q)
    elements = [int(e) for e in field(list(range(users + survivors)))]
    return elements[survivors:], elements[:survivors]
