"""Small rounds for the tests of the phases: parameters, inputs, and whole rounds step by step."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import oracle
import pytest

from topk_secagg.algebra.field import DEFAULT_FIELD, Integers, Symbols
from topk_secagg.algebra.randomness import CipherRandomness, Randomness
from topk_secagg.gradients.quantise import FixedPoint
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.deal import Deal
from topk_secagg.protocol.decoding import Decoded, decode
from topk_secagg.protocol.held import WrittenShares
from topk_secagg.protocol.messages import AnswerShape, Masked, Points, Secret, Sparse
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.protocol.round import (
    answer,
    deal_shares,
    new_deal,
    reader_of,
    sum_of_masked,
)


def source(name: str) -> CipherRandomness:
    return CipherRandomness(bytes(32)).child(name)


def round_of(
    N: int,
    U: int,
    T: int,
    q: int = DEFAULT_FIELD,
    *,
    P: int | None = None,
    construct: str | None = None,
    dealing: str = "shares",
    **raw: Any,
) -> Parameters:
    """By default `sketch` where there are picks P or `whole`, else `permutation`; with shares.

    L, K and `whole` are in `raw`.
    """
    letters = {"L": "length", "K": "top_k", "whole": "whole"}
    return Parameters.choose(
        users=N,
        survivors=U,
        colluders=T,
        field=q,
        construction=construct or ("sketch" if P or "whole" in raw else "permutation"),
        picks=P,
        dealing=dealing,
        **{letters[name]: value for name, value in raw.items()},
    )


def fixed_of(p: Parameters, clip: float = 1.0) -> FixedPoint:
    """One clip for all coordinates."""
    return FixedPoint.of(p.field, p.users, p.max_weight, [(p.length, clip)])


def in_small_blocks(monkeypatch: pytest.MonkeyPatch, p: Parameters, symbols: int = 240) -> None:
    """Shares are dealt, and answers read, a few rows at a time."""
    for module in ("construction", "sketch"):
        monkeypatch.setattr(f"topk_secagg.protocol.{module}.CHUNK_SYMBOLS", symbols)
    monkeypatch.setattr("topk_secagg.algebra.streams.SUMS_AT_ONCE", symbols)
    monkeypatch.setattr("topk_secagg.protocol.decoding._BUFFER_SYMBOLS", symbols)
    monkeypatch.setattr(construction(p), "check_rows", 1)


def a_deal(p: Parameters, name: str, dealer: int = 1) -> Deal:
    """A dealing of a user whose source has this name."""
    return new_deal(p, construction(p).points(), dealer, source(name))


def a_secret(p: Parameters, name: str) -> Secret:
    """What user 1 draws."""
    return construction(p).draw_secret(a_deal(p, name), source(name))


def pairs(message: Sparse | Masked) -> oracle.Pairs:
    return list(zip(message.index.tolist(), message.value.tolist(), strict=True))


def any_input(p: Parameters, chance: random.Random) -> Sparse:
    """An input that can be masked, with extreme values often.

    Where there are buckets, one may have fewer picks than P, or none.
    """
    picked_from = p.length - p.whole
    if p.construction == "sketch":
        index = []
        for b in range(p.buckets):
            inside = range(b, picked_from, p.buckets)
            most = min(p.picks, len(inside))
            count = chance.randint(0, most)
            index += sorted(chance.sample(inside, chance.choice([count, most])))
        index += range(picked_from, p.length)
    else:
        index = sorted(chance.sample(range(p.length), p.top_k))
    return with_any_values(p, np.array(index, dtype=np.int64), chance)


def with_any_values(p: Parameters, index: Integers, chance: random.Random) -> Sparse:
    """These coordinates with any symbols as their values; where the sum itself is what is decoded,
    with any that a user can send."""

    def any_value(k: int) -> int:
        is_bounded = p.construction == "sketch" and (p.sizes.is_direct or k >= p.length - p.whole)
        most = p.largest if is_bounded else (p.field - 1) // 2
        return chance.choice(
            [0, 1, -1, most, -most, *(chance.randint(-most, most) for _ in "12345")]
        )

    value = [any_value(k) % p.field for k in index.tolist()]
    return Sparse(index, np.array(value, dtype=np.uint32))


def any_inputs(p: Parameters, name: str) -> dict[int, Sparse]:
    """User 2 cancels what user 1 says, and user 3 says something else of the same coordinates."""
    chance = random.Random(name)
    inputs = {n: any_input(p, chance) for n in range(1, p.users + 1)}
    minus = (-inputs[1].value.astype(np.int64) % p.field).astype(np.uint32)
    inputs[2] = Sparse(inputs[1].index, minus)
    if p.users > 2:
        inputs[3] = with_any_values(p, inputs[1].index, chance)
    return inputs


def plain_sum(p: Parameters, inputs: Iterable[Sparse]) -> list[int]:
    return oracle.plain_sum([pairs(x) for x in inputs], p.length, p.field)


@dataclass(frozen=True)
class SteppedRound:
    """The offline phase of all users, and an input for each."""

    p: Parameters
    points: Points
    deals: dict[int, Deal]
    secrets: dict[int, Secret]
    shares: dict[int, dict[int, WrittenShares]]  # [holder][sender]
    inputs: Mapping[int, Sparse]
    sums: dict[tuple[int, ...], Symbols | None] = field(default_factory=dict, init=False)

    @staticmethod
    def of(p: Parameters, name: str, inputs: Mapping[int, Sparse] | None = None) -> SteppedRound:
        points = construction(p).points()
        users = range(1, p.users + 1)
        sources = {n: source(f"{name} {n}") for n in users}
        deals = {n: new_deal(p, points, n, sources[n]) for n in users}
        secrets = {n: construction(p).draw_secret(deals[n], sources[n]) for n in users}
        dealt = {n: written_out(p, deals[n], secrets[n], sources[n]) for n in users}
        return SteppedRound(
            p=p,
            points=points,
            deals=deals,
            secrets=secrets,
            shares={m: {n: dealt[n][m - 1] for n in users} for m in users},
            inputs=inputs or any_inputs(p, name),
        )

    def masked(self, u1: Iterable[int]) -> dict[int, Masked]:
        return {n: construction(self.p).mask(self.secrets[n], self.inputs[n]) for n in u1}

    def answers(self, u1: Iterable[int]) -> dict[int, Symbols]:
        masked = self.masked(u1)
        shape = construction(self.p).answer_shape(len(masked))
        held = {n: {m: self.shares[n][m] for m in masked} for n in masked}
        return {n: answer(self.p, masked, held[n], shape) for n in masked}

    def masked_sum(self, u1: tuple[int, ...], shape: AnswerShape) -> Symbols | None:
        """The sum of all X of U1, where decoding needs it; kept, since many answers are tried."""
        if not construction(self.p).decoding_needs_inputs:
            return None
        if u1 not in self.sums:
            self.sums[u1] = sum_of_masked(self.p, self.masked(u1).values(), shape)
        return self.sums[u1]

    def plain_sum(self, u1: Iterable[int]) -> list[int]:
        return plain_sum(self.p, [self.inputs[n] for n in u1])

    def decode(
        self,
        u1: Iterable[int],
        answers: Mapping[int, Symbols],
        *,
        strict: bool = False,
    ) -> tuple[list[int], list[int]]:
        """The aggregate, and who was corrected."""
        found = self.decoded(u1, answers, strict=strict)
        return self.dense(found.total), found.corrected

    def decoded(
        self,
        u1: Iterable[int],
        answers: Mapping[int, Symbols],
        *,
        strict: bool = False,
    ) -> Decoded:
        """All that decoding finds."""
        u1 = tuple(u1)
        shape = construction(self.p).answer_shape(len(u1))
        return decode(
            self.p,
            self.points,
            shape,
            {n: reader_of(y) for n, y in answers.items()},
            source("decode"),
            masked_sum=self.masked_sum(u1, shape),
            strict=strict,
        )

    def dense(self, total: Sparse) -> list[int]:
        """A sum as a vector."""
        return dense(self.p, total)


def written_out(
    p: Parameters, deal: Deal, secret: Secret, chance: Randomness
) -> list[WrittenShares]:
    """What users 1..N hold of one dealer, whole: keys too."""
    rows = np.arange(construction(p).rows)
    return [WrittenShares(held(rows)) for held in deal_shares(p, deal, secret, chance)]


def dense(p: Parameters, total: Sparse) -> list[int]:
    assert np.all(np.diff(total.index) > 0), "the coordinates increase"
    picked = total.index < p.length - p.whole
    assert np.all(total.value[picked]), "what is zero is left out"
    vector = [0] * p.length
    for k, w in pairs(total):
        vector[k] = w
    return vector
