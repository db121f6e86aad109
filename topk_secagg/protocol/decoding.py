"""Decoding: the aggregate from the answers of the users that are left."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from .. import labels
from ..algebra.field import PIECE, Integers, Symbols, ceil_div
from ..algebra.linear import weighted_sums
from ..algebra.parallel import ahead, cores, reuse_memory
from ..algebra.randomness import Randomness
from ..algebra.reed_solomon import agree, wrong_positions
from ..errors import BadData, TooFewSurvivors, counted, named_users
from .agreement import certain_quorum, is_correctable, liars_excluded, with_more_answers
from .construction import decoding_matrix, front
from .constructions import construction
from .messages import Answers, AnswerShape, Points, Sparse
from .parameters import Parameters

Result = TypeVar("Result")
_BUFFER_SYMBOLS = 1 << 20  # that a thread holds, about
_LEAST_SYMBOLS = 1 << 16  # for which a second thread pays
_CHECK_BITS = 63  # a wrong answer goes unnoticed, or unnamed, with probability 2^-63
_FACTOR_BITS = 22  # of a coefficient: sums of products with symbols are reduced only now and then
_AGAIN = "ask the users to answer again from intact files"


@dataclass(frozen=True)
class Decoded:
    """The aggregate, sparse and in order of coordinates, and the users whose answers were wrong.

    The sum is right if at most `liars_excluded` users lie: as many the other answers' agreement
    excludes.
    """

    total: Sparse
    corrected: list[int]
    liars_excluded: int


def decode(
    p: Parameters,
    points: Points,
    shape: AnswerShape,
    answers: Answers,
    randomness: Randomness,
    *,
    masked_sum: Symbols | None = None,
    strict: bool = False,
    progress: Callable[[float], None] = lambda _: None,
) -> Decoded:
    """The aggregate from the answers of U2, which have this shape.

    D+T answers determine Y(x), of degree D+T-1. The answers beyond must lie on the same polynomial;
    that is checked on random combinations of all their columns, drawn here, after the answers were
    made. If they do not, the wrong ones are found from the same combinations, and left out if they
    are at most T and D+2T others agree. masked_sum is the sum of all X, which `sketch` needs.
    `strict` leaves out none, and asks for D+2T that agree.
    """
    users = sorted(answers)
    if len(users) < p.survivors:
        raise TooFewSurvivors(
            f"{counted(len(users), 'answer')}, and {p.survivors} are needed",
            "wait for more users to answer",
        )
    total, words = _total_and_words(
        p,
        points,
        shape=shape,
        answers={n: answers[n] for n in users},
        masked_sum=masked_sum,
        randomness=randomness,
        progress=progress,
    )
    wrong = _wrong_users(p, points, shape=shape, users=users, words=words)
    agreeing = len(users) - len(wrong)
    if strict:
        _check_strictly(p, shape, agreeing=agreeing, wrong=wrong)
    if wrong:
        right = [n for n in users if n not in wrong][: p.survivors]
        total, _ = _total_and_words(
            p,
            points,
            shape=shape,
            answers={n: answers[n] for n in right},
            masked_sum=masked_sum,
            randomness=randomness,
            progress=progress,
        )
    if isinstance(total, BadData):
        raise total
    return Decoded(total, wrong, liars_excluded(p, agreeing))


def _wrong_users(
    p: Parameters, points: Points, shape: AnswerShape, users: list[int], words: Symbols
) -> list[int]:
    """The users whose answers do not agree with the others'; BadData where that is not certain."""
    alpha = [points.alpha[n - 1] for n in users]
    if agree(alpha, words, dimension=p.survivors, q=p.field):
        return []
    most = (len(users) - p.survivors) // 2
    positions = wrong_positions(alpha, words, dimension=p.survivors, q=p.field) if most else None
    least = most + 1 if positions is None else len(positions)
    if positions is None or not is_correctable(p, answers=len(users), wrong=least):
        raise BadData(
            f"the {len(users)} answers do not agree with each other: at least"
            f" {counted(least, 'is', 'are')} wrong, and nobody can be named for certain",
            *with_more_answers(p, shape.survivor_count, answers=len(users), wrong=least),
        )
    return [users[i] for i in positions]


def _check_strictly(p: Parameters, shape: AnswerShape, agreeing: int, wrong: list[int]) -> None:
    """Refuse if an answer is wrong, or if fewer than D+2T agree."""
    if wrong:
        raise BadData(
            f"the {'answer' if len(wrong) == 1 else 'answers'} of {named_users(wrong)}"
            f" {'does' if len(wrong) == 1 else 'do'} not agree with the others,"
            " and strict decoding asks for all to agree",
            _AGAIN,
        )
    needed = certain_quorum(p)
    if agreeing < needed:
        agree_already = counted(agreeing, "answer agrees", "answers agree")
        raise BadData(
            f"{agree_already}, and strict decoding asks for {needed} (D + 2T):"
            f" {needed - agreeing} missing",
            *with_more_answers(p, shape.survivor_count, answers=agreeing, wrong=0),
        )


def _total_and_words(
    p: Parameters,
    points: Points,
    shape: AnswerShape,
    answers: Answers,
    masked_sum: Symbols | None,
    randomness: Randomness,
    progress: Callable[[float], None],
) -> tuple[Sparse | BadData, Symbols]:
    """The aggregate from the first D+T answers, or why there is none, and random combinations of
    the symbols of each answer, (users, columns): none for D+T answers, which always agree.

    Symbols are combined in two steps: pieces of PIECE symbols, and then the PIECE sums. If a symbol
    is wrong, each step hides it with a probability of at most 1 / bound, so a column does with at
    most 2 / bound.
    """
    c = construction(p)
    q = p.field
    quorum = p.survivors  # D + T
    matrix = decoding_matrix(points, tuple(answers)[:quorum], others=(), q=q)
    bound = min(q, 1 << _FACTOR_BITS)
    columns = math.ceil(_CHECK_BITS / (math.log2(bound) - 1)) if len(answers) > quorum else 0

    def work(first: int, y: Symbols) -> tuple[Any, Integers]:
        flat = y.reshape(len(y), -1)
        factors = np.empty((columns, ceil_div(flat.shape[1], PIECE)), dtype=np.uint32)
        sums = weighted_sums(
            flat, randomness.child(labels.checked_pieces(first)).integers(bound, factors), q
        )
        try:
            return c.decode_groups(
                matrix, shape, first=first, y=y[:quorum], masked_sum=masked_sum
            ), sums
        except BadData as error:
            return BadData(f"{error}: an answer or a share is wrong", _AGAIN), sums

    sums = np.zeros((len(answers), columns, PIECE), np.uint64)
    parts = dict[int, Any]()
    for first, (part, more) in _each(shape, answers, work=work, progress=progress):
        sums += more
        parts[first] = part
    factors = randomness.child(labels.CHECKED_SUMS).integers(
        q, np.empty((columns, PIECE), dtype=np.uint32)
    )
    words = (sums % np.uint64(q) * factors % np.uint64(q)).sum(axis=2) % np.uint64(q)
    failures = [part for part in parts.values() if isinstance(part, BadData)]
    total = failures[0] if failures else c.join_groups([parts[first] for first in sorted(parts)])
    return total, words.astype(np.uint32)


def _each(
    shape: AnswerShape,
    answers: Answers,
    work: Callable[[int, Symbols], Result],
    progress: Callable[[float], None],
) -> Iterator[tuple[int, Result]]:
    """The first of a few groups, and the result of `work` on it and these groups of each answer,
    (users, groups, width); in any order."""
    groups = shape.groups
    width = shape.width
    symbols = len(answers) * groups * width
    count = ceil_div(symbols, _BUFFER_SYMBOLS * cores()) * cores()  # all cores have the same to do
    step = ceil_div(groups, min(count, groups))
    threads = cores() if symbols > _LEAST_SYMBOLS else 0
    if threads:
        reuse_memory()
    buffers = [
        np.empty(len(answers) * step * width, dtype=np.uint32) for _ in range(max(1, threads))
    ]
    count = ceil_div(groups, step)
    starts = iter(range(0, groups, step))
    reading = Lock()

    def read_and_work() -> tuple[int, Result]:
        buffer = buffers.pop()
        try:
            with reading:  # one group after the other: they are hashed
                first = next(starts)
                y = front(buffer, len(answers), min(step, groups - first), width)
                for read, rows in zip(answers.values(), y, strict=True):
                    read(first, rows)
            return first, work(first, y)
        finally:
            buffers.append(buffer)

    for done, result in enumerate(ahead(repeat(read_and_work, count), threads), start=1):
        yield result
        progress(done / count)
