"""Small rounds for the tests of the phases: parameters, inputs, and whole rounds step by step."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import oracle
import pytest

from topk_secagg.algebra.field import DEFAULT_FIELD, Symbols
from topk_secagg.algebra.randomness import CipherRandomness
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.decoding import Decoded, decode
from topk_secagg.protocol.messages import Masked, Points, Secret, Sparse
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.protocol.round import InMemoryShares, answer, deal, reader_of

TINY_CLIP = 2.0**-20  # leaves room for a scale in the smallest fields


def source(name: str) -> CipherRandomness:
    return CipherRandomness(bytes(32)).child(name)


def round_of(
    N: int,
    U: int,
    T: int,
    q: int = DEFAULT_FIELD,
    *,
    P: int | None = None,
    clip: float = TINY_CLIP,
    **raw: Any,
) -> Parameters:
    """`moments` where there are picks P, else `permutation`; L, K, D and `spare` are in `raw`."""
    letters = {"L": "length", "K": "top_k", "D": "blocks", "spare": "spare"}
    return Parameters.choose(
        users=N, survivors=U, colluders=T, field=q, clip=clip, construction="moments" if P else "permutation",
        picks=P, **{letters[name]: value for name, value in raw.items()},
    )  # fmt: skip


def in_small_blocks(monkeypatch: pytest.MonkeyPatch, p: Parameters, symbols: int = 240) -> None:
    """Shares are dealt, and answers read, a few rows at a time."""
    monkeypatch.setattr("topk_secagg.protocol.construction.CHUNK_SYMBOLS", symbols)
    monkeypatch.setattr("topk_secagg.protocol.decoding._BUFFER_SYMBOLS", symbols)
    monkeypatch.setattr("topk_secagg.protocol.moments._READ_CHECKS", 2)
    monkeypatch.setattr(construction(p), "check_rows", 1)


def pairs(message: Sparse | Masked) -> oracle.Pairs:
    return list(zip(message.index.tolist(), message.value.tolist(), strict=True))


def any_input(p: Parameters, chance: random.Random) -> Sparse:
    """An input that can be masked, with any symbols as its values, the extreme ones often."""
    if p.buckets:
        inside = [range(b, p.length, p.buckets) for b in range(p.buckets)]
        index = [k for bucket in inside for k in sorted(chance.sample(bucket, p.picks))]
    else:
        index = sorted(chance.sample(range(p.length), p.top_k))
    q, least = p.field, int(p.fixed_point.never_zero)
    extreme = [least, 1, q - 1, (q - 1) // 2, (q + 1) // 2]
    value = [
        chance.choice([*extreme, *(chance.randrange(least, q) for _ in range(5))]) for _ in index
    ]
    return Sparse(np.array(index, dtype=np.int64), np.array(value, dtype=np.uint32))


def any_inputs(p: Parameters, name: str) -> dict[int, Sparse]:
    """User 2 cancels what user 1 says, and user 3 says something else of the same coordinates."""
    chance = random.Random(name)
    inputs = {n: any_input(p, chance) for n in range(1, p.users + 1)}
    minus = (-inputs[1].value.astype(np.int64) % p.field).astype(np.uint32)
    inputs[2] = Sparse(inputs[1].index, minus)
    if p.users > 2:
        inputs[3] = Sparse(inputs[1].index, inputs[3].value)
    return inputs


def plain_sum(p: Parameters, inputs: Iterable[Sparse]) -> list[int]:
    return oracle.plain_sum([pairs(x) for x in inputs], p.length, p.field)


@dataclass(frozen=True)
class Round:
    """The offline phase of all users, and an input for each."""

    p: Parameters
    points: Points
    secrets: dict[int, Secret]
    shares: dict[int, dict[int, InMemoryShares]]  # [holder][sender]
    inputs: Mapping[int, Sparse]

    @staticmethod
    def of(p: Parameters, name: str, inputs: Mapping[int, Sparse] | None = None) -> Round:
        points, users = construction(p).points(), range(1, p.users + 1)
        sources = {n: source(f"{name} {n}") for n in users}
        secrets = {n: construction(p).draw_secret(sources[n]) for n in users}
        dealt = {n: deal(p, points, secrets[n], sources[n]) for n in users}
        shares = {m: {n: dealt[n][m - 1] for n in users} for m in users}
        return Round(p, points, secrets, shares, inputs or any_inputs(p, name))

    def with_spare(self, spare: int) -> Round:
        """The same offline phase: how many answers may be missing is not known to it."""
        return replace(self, p=replace(self.p, spare=spare))

    def masked(self, u1: Iterable[int]) -> dict[int, Masked]:
        return {n: construction(self.p).mask(self.secrets[n], self.inputs[n]) for n in u1}

    def answers(self, u1: Iterable[int], *, fallback: bool = False) -> dict[int, Symbols]:
        masked = self.masked(u1)
        shape = construction(self.p).answer_shape(len(masked), fallback=fallback)
        return {n: answer(self.p, self.points, n, masked, self.shares[n], shape) for n in masked}

    def plain_sum(self, u1: Iterable[int]) -> list[int]:
        return plain_sum(self.p, [self.inputs[n] for n in u1])

    def decode(
        self,
        survivors: int,
        answers: Mapping[int, Symbols],
        *,
        fallback: bool = False,
        strict: bool = False,
    ) -> tuple[list[int], list[int]]:
        """The aggregate, and who was corrected."""
        found = self.decoded(survivors, answers, fallback=fallback, strict=strict)
        return self.dense(found.total), found.corrected

    def decoded(
        self,
        survivors: int,
        answers: Mapping[int, Symbols],
        *,
        fallback: bool = False,
        strict: bool = False,
    ) -> Decoded:
        """All that decoding finds."""
        shape = construction(self.p).answer_shape(survivors, fallback=fallback)
        given = {n: reader_of(y) for n, y in answers.items()}
        return decode(self.p, self.points, shape, given, source("decode"), strict=strict)

    def dense(self, total: Sparse) -> list[int]:
        """A sum as a vector."""
        return dense(self.p, total)


def dense(p: Parameters, total: Sparse) -> list[int]:
    assert np.all(np.diff(total.index) > 0), "the coordinates increase"
    assert np.all(total.value), "what is zero is left out"
    vector = [0] * p.length
    for k, w in pairs(total):
        vector[k] = w
    return vector
