"""Offline phase: draw Z_n and share its selectors with every user."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..algebra.randomness import Randomness
from .constructions import construction
from .messages import Points, Secret, ShareBlock
from .parameters import Parameters


def draw_secret(p: Parameters, source: Randomness) -> Secret:
    """The secret permutation or places, and the masks."""
    return construction(p).draw(p, source)


def share_blocks(
    p: Parameters, points: Points, secret: Secret, noise: Randomness, start: int = 0
) -> Iterator[ShareBlock]:
    """f_{n,i}(alpha_m) and h_{n,i}(alpha_m) for all m, a block of rows at a time.

    f_i(beta_d) = block d of selector i for d <= D and fresh noise z_i^(d) for D < d <= D+T; h_i is the
    same for mask_i times the selector with noise of its own (eq. polynomial:1 and polynomial:2).
    Every block draws from a stream of its own, so that an interrupted run can go on at any block.
    Two sets of buffers take turns: a block is valid until the next but one is drawn.
    """
    from ..algebra.kernels import encode
    from ..algebra.lagrange import encoding_matrix

    matrix = encoding_matrix(points.alpha, points.beta, p.blocks, p.colluders, p.field)
    slot, place, mask = construction(p).selectors(p, secret)
    ones = np.ones(p.block_rows, dtype=np.uint32)
    shape = (p.users, p.block_rows, p.width)
    buffers = [tuple(np.empty(shape, dtype=np.uint32) for _ in "fh") for _ in range(2)]
    z = np.empty((p.block_rows, p.colluders, p.width), dtype=np.uint32)
    for turn, first in enumerate(range(start, p.rows, p.block_rows)):
        part = slice(first, min(first + p.block_rows, p.rows))
        count = part.stop - first
        source = noise.child(f"noise {first}")
        f, h = (buffer[:, :count] for buffer in buffers[turn % 2])
        for shares, scale in ((f, ones[:count]), (h, mask[part])):
            source.integers(p.field, z[:count])
            encode(matrix, z[:count], slot[part], place[part], scale, p.field, shares)
        yield ShareBlock(first, f, h)
