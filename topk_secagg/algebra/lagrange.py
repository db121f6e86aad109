"""Lagrange matrices, in Python integers: they are small, and galois takes half a second to load."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def lagrange_matrix(nodes: Sequence[int], points: Sequence[int], q: int) -> npt.NDArray[np.uint64]:
    """The matrix that turns values at `nodes` into values at `points`, (len(points), len(nodes)).

    Entry (p, i) is prod over j != i of (point_p - node_j) / (node_i - node_j): a polynomial of
    degree below len(nodes) is given by its values at the nodes. A point that is a node has its
    value.
    """
    below = [pow(math.prod(x - y for y in nodes if y != x), -1, q) for x in nodes]
    matrix = np.empty((len(points), len(nodes)), dtype=np.uint64)
    for row, point in zip(matrix, points, strict=True):
        if point in nodes:
            row[:] = [int(x == point) for x in nodes]
            continue
        whole = math.prod(point - x for x in nodes) % q
        row[:] = [
            whole * pow(point - x, -1, q) % q * b % q for x, b in zip(nodes, below, strict=True)
        ]
    return matrix
