"""A whole round in memory, in the order of the paper's section III."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..algebra.field import Integers, Symbols
from ..algebra.randomness import Randomness
from ..errors import TooFewSurvivors
from .constructions import construction, stacked
from .decoding import decode
from .masking import mask_input
from .messages import AnswerShape, Held, Inputs, Points, Reading, Secret, Sparse
from .offline import choose_points, draw_secret
from .parameters import Parameters


@dataclass(frozen=True)
class InMemoryShares:
    """The shares that one user holds of another: f and h, or g, (rows, width) each."""

    tables: tuple[Symbols, ...]

    def __call__(self, rows: Integers) -> tuple[Symbols, ...]:
        """The given rows of each; without a copy if they are neighbours."""
        low, high = rows[0], rows[-1] + 1
        return tuple(
            table[low:high] if high - low == rows.size else table[rows] for table in self.tables
        )


def run_round(
    p: Parameters,
    inputs: Mapping[int, Sparse],
    survivors: Iterable[int],
    answering: Iterable[int],
    randomness: Randomness,
) -> Sparse:
    """The sum over `survivors` (U1) of the sparse inputs, decoded from the `answering` users (U2).

    Arguments:
    p: the parameters of the round.
    inputs: the sparse quantised input of every user that masks.
    survivors: U1, the users whose inputs are summed.
    answering: U2, those of them that answer.
    randomness: the source of all secrets and noise.
    """
    users = range(1, p.users + 1)
    u1, u2 = sorted(survivors), sorted(answering)
    if len(u1) < p.survivors:
        raise TooFewSurvivors(f"{len(u1)} survivors, and {p.survivors} are needed")
    if not set(u2) <= set(u1):
        raise ValueError("U2 is not within U1")

    # Offline phase: Z_n for every user
    points = choose_points(p)
    sources = {n: randomness.child(f"user {n}") for n in users}
    secrets = {n: draw_secret(p, sources[n]) for n in users}
    dealt = {n: deal(p, points, secrets[n], sources[n]) for n in users}
    shares = {m: {n: dealt[n][m - 1] for n in users} for m in users}

    # Masked-input phase: X_n
    masked = {n: mask_input(p, secrets[n], inputs[n]) for n in u1}

    # Mask-elimination phase: Y_n, with D = U - T where fewer answer than the round packs its answers for
    c = construction(p)
    shape = c.answer_shape(len(u1), fallback=len(u2) < c.answer_shape(len(u1)).quorum)
    answers = {n: reading(answer(p, points, n, masked, shares[n], shape)) for n in u2}

    # Decoding
    return decode(p, points, shape, answers, randomness.child("decode")).total


def deal(p: Parameters, points: Points, secret: Secret, source: Randomness) -> list[InMemoryShares]:
    """The shares of one user for users 1..N."""
    c = construction(p)
    tables = {name: np.empty((p.users, c.rows, c.width), dtype=np.uint32) for name in c.share_names}
    for block in c.share_blocks(points, secret, source):
        for name, shares in block.shares.items():
            tables[name][:, block.start : block.stop] = shares
    return [InMemoryShares(tuple(table[m] for table in tables.values())) for m in range(p.users)]


def answer(
    p: Parameters, points: Points, user: int, masked: Inputs, shares: Held, shape: AnswerShape
) -> Symbols:
    """The whole Y of one user for the survivors in `masked` (eq. second:message), (groups, width)."""
    blocks = construction(p).answer_blocks(points, user, masked, shares, shape)
    return stacked([groups for _, groups in blocks])


def reading(y: Symbols) -> Reading:
    """How `decode` reads a Y that is in memory."""
    return lambda start, out: np.copyto(out, y[start : start + len(out)])
