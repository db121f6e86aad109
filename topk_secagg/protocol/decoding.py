"""Decoding: the aggregate from the answers of the users that are left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ..algebra.field import Integers, Symbols
from ..errors import BadData, TooFewSurvivors
from .constructions import construction
from .messages import AnswerRows, Points, Sparse
from .parameters import Parameters

_BUFFER_SYMBOLS = 1 << 21


def decode_blocks(
    p: Parameters, points: Points, survivors: int, answers: Mapping[int, AnswerRows]
) -> Iterator[Sparse]:
    """The non-zero coordinates of the aggregate, a few groups at a time, increasing within a yield.

    D+T answers determine Y(x), of degree D+T-1; its values at beta_1..beta_D are the blocks of the
    sum. Answers beyond D+T must lie on the same polynomial.
    """
    from ..algebra.kernels import matmul
    from ..algebra.lagrange import codeword_check, decoding_matrix

    users = sorted(answers)
    if len(users) < p.quorum:
        raise TooFewSurvivors(
            f"{len(users)} answers, and {p.quorum} are needed",
            "wait for more users to run `topk-secagg eliminate`",
        )
    alpha = [points.alpha[n - 1] for n in users]
    decoding = decoding_matrix(alpha[: p.quorum], points.beta, p.blocks, p.field)
    foretell = codeword_check(alpha, p.quorum, p.field)
    width = p.answer_width(survivors)
    step = max(1, _BUFFER_SYMBOLS // (len(users) * width))
    for first in range(0, p.groups, step):
        last = min(first + step, p.groups)
        y = np.concatenate([answers[n].read(first, last).reshape(1, -1) for n in users])
        if np.any(matmul(foretell, y[: p.quorum], p.field) != y[p.quorum :]):
            raise BadData(
                f"the {len(users)} answers do not agree with each other: at least one is wrong",
                "ask the users to run `topk-secagg eliminate` again from intact files",
            )
        blocks = matmul(decoding, y[: p.quorum], p.field).reshape(p.blocks, last - first, width)
        yield _coordinates(p, first, _entries(p, survivors, blocks))


def _entries(p: Parameters, survivors: int, blocks: Symbols) -> tuple[Integers, ...]:
    """The non-zero entries of (D, groups, answer width) as arrays slot, group, place, value."""
    if not p.by_syndromes(survivors):
        slot, group, place = np.nonzero(blocks)
        return slot, group, place, blocks[slot, group, place]
    from ..algebra.syndrome import recover

    groups = blocks.shape[1]
    row, place, value = recover(blocks.reshape(p.blocks * groups, -1), p.width, p.field)
    return row // groups, row % groups, place, value


def _coordinates(p: Parameters, first: int, entries: tuple[Integers, ...]) -> Sparse:
    """Entries of blocks as coordinates of the gradient; padding is always zero."""
    slot, group, place, value = entries
    index = construction(p).coordinates(p, group + first, slot, place)
    if np.any(index >= p.length):
        raise BadData(
            "the aggregate is not zero beyond the gradient's end: an answer or a share is wrong",
            "ask the users to run `topk-secagg eliminate` again from intact files",
        )
    order = np.argsort(index)
    return Sparse(index[order].astype(np.int64), value[order])
