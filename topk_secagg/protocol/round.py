"""A whole round in memory, in the order of the paper's section III."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..algebra.field import Integers, Symbols
from ..algebra.randomness import Randomness
from ..errors import TooFewSurvivors
from .construction import stacked
from .constructions import construction
from .decoding import decode
from .messages import AnswerReader, AnswerShape, HeldShares, MaskedInputs, Points, Secret, Sparse
from .parameters import Parameters


@dataclass(frozen=True)
class InMemoryShares:
    """The shares that one user holds of another: f and h, or g, (rows, width) each."""

    tables: tuple[Symbols, ...]

    def __call__(self, rows: Integers) -> tuple[Symbols, ...]:
        """The given rows of each; without a copy if they are neighbours."""
        low = rows[0]
        high = rows[-1] + 1
        wanted = slice(low, high) if high - low == rows.size else rows
        return tuple(table[wanted] for table in self.tables)


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
    u1 = sorted(survivors)
    u2 = sorted(answering)
    if len(u1) < p.survivors:
        raise TooFewSurvivors(f"{len(u1)} survivors, and {p.survivors} are needed")
    if not set(u2) <= set(u1):
        raise ValueError("U2 is not within U1")
    c = construction(p)

    # Offline phase: Z_n for every user
    points = c.points()
    sources = {n: randomness.child(f"user {n}") for n in users}
    secrets = {n: c.draw_secret(sources[n]) for n in users}
    dealt = {n: deal(p, points, secrets[n], sources[n]) for n in users}
    shares = {m: {n: dealt[n][m - 1] for n in users} for m in users}

    # Masked-input phase: X_n
    masked = {n: c.mask(secrets[n], inputs[n]) for n in u1}

    # Mask-elimination phase: Y_n, with D = U - T where fewer answer than the round packs its
    # answers for
    fallback = len(u2) < c.answer_shape(len(u1)).quorum
    shape = c.answer_shape(len(u1), fallback=fallback)
    answers = {n: reader_of(answer(p, points, n, masked, shares[n], shape)) for n in u2}

    # Decoding
    return decode(p, points, shape, answers, randomness.child("decode")).total


def deal(p: Parameters, points: Points, secret: Secret, source: Randomness) -> list[InMemoryShares]:
    """The shares of one user for users 1..N."""
    c = construction(p)
    tables = {name: np.empty((p.users, c.rows, c.width), dtype=np.uint32) for name in c.share_names}
    for chunk in c.share_chunks(points, secret, source):
        for name, shares in chunk.shares.items():
            tables[name][:, chunk.start : chunk.stop] = shares
    return [InMemoryShares(tuple(table[m] for table in tables.values())) for m in range(p.users)]


def answer(
    p: Parameters,
    points: Points,
    user: int,
    masked: MaskedInputs,
    shares: HeldShares,
    shape: AnswerShape,
) -> Symbols:
    """The whole Y of one user for the survivors in `masked` (eq. second:message),
    (groups, width)."""
    chunks = construction(p).answer_chunks(points, user, masked, shares, shape)
    return stacked([chunk.groups for chunk in chunks])


def reader_of(y: Symbols) -> AnswerReader:
    """How `decode` reads a Y that is in memory."""
    return lambda start, out: np.copyto(out, y[start : start + len(out)])
