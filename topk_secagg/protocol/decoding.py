"""Decoding: the aggregate from the answers of the users that are left."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..algebra.field import Integers, Symbols, add
from ..algebra.randomness import Randomness
from ..errors import BadData, TooFewSurvivors
from .constructions import construction
from .messages import AnswerRows, Points, Sparse
from .parameters import Parameters

_BUFFER_SYMBOLS = 1 << 21
_CHECK_BITS = 63  # a wrong answer goes unnoticed, or unnamed, with probability 2^-63
_AGAIN = "ask the users to run `topk-secagg eliminate` again from intact files"


@dataclass(frozen=True)
class Decoded:
    """The aggregate, sparse and in order of the coordinates, and the users whose answers were wrong."""

    total: Sparse
    corrected: list[int]


def decode(
    p: Parameters,
    points: Points,
    survivors: int,
    answers: Mapping[int, AnswerRows],
    randomness: Randomness,
    *,
    strict: bool = False,
    progress: Callable[[float], None] = lambda _: None,
) -> Decoded:
    """Y(beta_1)..Y(beta_D) from the answers of U2, for `survivors` = |U1|.

    D+T answers determine Y(x), of degree D+T-1. The answers beyond must lie on the same polynomial; that is
    checked on random combinations of all their columns, drawn here, after the answers were made. If they
    do not, up to floor((|U2|-D-T)/2) wrong users are found from the same combinations and left out.
    """
    users = sorted(answers)
    if len(users) < p.quorum:
        raise TooFewSurvivors(
            f"{len(users)} answers, and {p.quorum} are needed",
            "wait for more users to run `topk-secagg eliminate`",
        )
    decoder = _Decoder(p, points, survivors, answers, progress)
    if len(users) == p.quorum:
        return Decoded(decoder.total(users), [])
    columns = math.ceil(_CHECK_BITS / math.log2(p.field))
    total, words, agreed = decoder.total_and_words(users, columns, randomness)
    if not agreed:
        wrong = _wrong_users(p, points, users, words, strict=strict)
        return Decoded(decoder.total([n for n in users if n not in wrong]), wrong)
    if isinstance(total, BadData):
        raise total
    return Decoded(total, [])


def _wrong_users(
    p: Parameters, points: Points, users: list[int], words: Symbols, *, strict: bool
) -> list[int]:
    """The users whose answers do not agree with the others'; BadData when they cannot be told."""
    from ..algebra.reed_solomon import wrong_positions

    alpha = [points.alpha[n - 1] for n in users]
    most = (len(users) - p.quorum) // 2
    what = f"the {len(users)} answers do not agree with each other"
    if strict:
        raise BadData(f"{what}, and --strict asks for all to agree", _AGAIN)
    found = wrong_positions(alpha, words, p.quorum, p.field) if most else None
    if found is None:
        can = (
            f"up to {most} wrong ones could have been named"
            if most
            else "one more would be needed to name it"
        )
        raise BadData(f"{what}: at least {most + 1} wrong, and which cannot be told ({can})", _AGAIN)
    return [users[i] for i in found]


class _Decoder:
    """Goes through the answers a few groups at a time."""

    def __init__(
        self,
        p: Parameters,
        points: Points,
        survivors: int,
        answers: Mapping[int, AnswerRows],
        progress: Callable[[float], None],
    ) -> None:
        self.p, self.points, self.survivors, self.answers = p, points, survivors, answers
        self.progress = progress
        self.width = p.answer_width(survivors)

    def total(self, users: Sequence[int]) -> Sparse:
        """The aggregate from the first D+T of these users, who are trusted."""
        chosen = users[: self.p.quorum]
        decoding = self._decoding_matrix(chosen)
        parts = [
            self._decoded(decoding, first, self._read(chosen, first, last))
            for first, last in self._steps(len(chosen))
        ]
        return _joined(parts)

    def total_and_words(
        self, users: list[int], columns: int, randomness: Randomness
    ) -> tuple[Sparse | BadData, Symbols, bool]:
        """The aggregate from the first D+T users, or why there is none; `columns` random combinations of the
        symbols of each user, (users, columns); and whether the first D+T foretell those of the others."""
        from ..algebra.kernels import inner_products, matmul
        from ..algebra.lagrange import lagrange_matrix

        p = self.p
        alpha = [self.points.alpha[n - 1] for n in users]
        targets = [*self.points.beta[: p.blocks], *alpha[p.quorum :]]
        decoding, foretelling = np.split(lagrange_matrix(alpha[: p.quorum], targets, p.field), [p.blocks])
        words = np.zeros((len(users), columns), dtype=np.uint32)
        parts: list[Sparse] = []
        failure: BadData | None = None
        for first, last in self._steps(len(users)):
            y = self._read(users, first, last)
            coefficients = randomness.integers(p.field, np.empty((columns, y.shape[1]), dtype=np.uint32))
            words = add(words, inner_products(y, coefficients, p.field), p.field)
            if failure is None:
                try:
                    parts.append(self._decoded(decoding, first, y[: p.quorum]))
                except BadData as error:
                    failure = error
        foretold = matmul(foretelling, words[: p.quorum], p.field)
        return failure or _joined(parts), words, np.array_equal(foretold, words[p.quorum :])

    def _steps(self, users: int) -> list[tuple[int, int]]:
        groups = self.p.groups
        step = max(1, _BUFFER_SYMBOLS // (users * self.width))
        return [(first, min(first + step, groups)) for first in range(0, groups, step)]

    def _read(self, users: Sequence[int], first: int, last: int) -> Symbols:
        """Groups first..last-1 of each user, (users, groups * width)."""
        self.progress(last / self.p.groups)
        y = np.empty((len(users), (last - first) * self.width), dtype=np.uint32)
        for row, n in zip(y, users, strict=True):
            row[:] = self.answers[n].read(first, last).reshape(-1)
        return y

    def _decoding_matrix(self, users: Sequence[int]) -> Integers:
        from ..algebra.lagrange import decoding_matrix

        alpha = [self.points.alpha[n - 1] for n in users]
        return decoding_matrix(alpha, self.points.beta, self.p.blocks, self.p.field)

    def _decoded(self, decoding: Integers, first: int, y: Symbols) -> Sparse:
        """The aggregate in the groups from `first` on."""
        from ..algebra.kernels import matmul

        p = self.p
        blocks = matmul(decoding, y, p.field).reshape(p.blocks, -1, self.width)
        if p.by_syndromes(self.survivors):
            slot, group, place, value = self._recovered(blocks)
        else:
            slot, group, place = np.nonzero(blocks)
            value = blocks[slot, group, place]
            if np.any(np.count_nonzero(blocks, axis=2) > p.sparsity(self.survivors)):
                raise BadData("the aggregate is not sparse: an answer or a share is wrong", _AGAIN)
        index = construction(p).coordinates(p, group + first, slot, place)
        if np.any(index >= p.length):
            raise BadData(
                "the aggregate goes beyond the gradient's end: an answer or a share is wrong", _AGAIN
            )
        return Sparse(index.astype(np.int64), value)

    def _recovered(self, blocks: Symbols) -> tuple[Integers, Integers, Integers, Symbols]:
        """The sparse blocks behind their syndromes: slot, group, place and value of each entry."""
        from ..algebra.syndrome import recover

        groups = blocks.shape[1]
        try:
            row, place, value = recover(blocks.reshape(-1, self.width), self.p.width, self.p.field)
        except BadData as error:
            raise BadData(
                "no sparse aggregate fits the answers: an answer or a share is wrong", _AGAIN
            ) from error
        return row // groups, row % groups, place, value


def _joined(parts: list[Sparse]) -> Sparse:
    index = np.concatenate([part.index for part in parts])
    order = np.argsort(index)
    return Sparse(index[order], np.concatenate([part.value for part in parts])[order])
