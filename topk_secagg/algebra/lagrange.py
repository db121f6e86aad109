"""Points and Lagrange matrices, in Python integers: they are small, and galois takes half a second to load."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def lagrange_matrix(nodes: Sequence[int], points: Sequence[int], q: int) -> npt.NDArray[np.uint64]:
    """The matrix that turns values at `nodes` into values at `points`, (len(points), len(nodes)).

    Entry (p, i) is prod over j != i of (point_p - node_j) / (node_i - node_j): a polynomial of degree
    below len(nodes) is given by its values at the nodes.
    """
    below = [pow(math.prod(x - y for y in nodes if y != x), -1, q) for x in nodes]
    matrix = np.zeros((len(points), len(nodes)), dtype=np.uint64)
    for row, point in zip(matrix, points, strict=True):
        if point in nodes:
            row[nodes.index(point)] = 1
            continue
        whole = math.prod(point - x for x in nodes) % q
        row[:] = [whole * pow(point - x, -1, q) % q * b % q for x, b in zip(nodes, below, strict=True)]
    return matrix


def default_points(users: int, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """alpha_1..alpha_N and `count` betas, pairwise distinct: beta_u = u - 1 and alpha_n = count + n - 1."""
    return tuple(range(count, count + users)), tuple(range(count))
