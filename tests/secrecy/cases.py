"""The parameters that are checked, and inputs that have the same sum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from affine import Inputs
from lab import Input, Lab

from topk_secagg.protocol.parameters import Parameters

ELIMINATIONS = ("dense", "syndrome")


@dataclass(frozen=True)
class Case:
    """N, U, T, L, K; P picks make it `rotation`; D blocks if it is not U - T. `few` supports, or all."""

    N: int
    U: int
    T: int
    L: int
    K: int
    P: int | None = None
    D: int | None = None
    few: int | None = None

    @property
    def construction(self) -> str:
        return "permutation" if self.P is None else "rotation"

    def parameters(self, elimination: str) -> Parameters:
        """With the smallest field that has room for N values."""
        return Parameters.choose(
            users=self.N,
            survivors=self.U,
            colluders=self.T,
            blocks=self.D,
            top_k=self.K,
            length=self.L,
            field=7 if self.N == 3 else 11,
            construction=self.construction,
            picks=self.P,
            elimination=elimination,
            clip=0.25,
        )

    def __str__(self) -> str:
        sizes = f"{self.construction} ({self.N},{self.U},{self.T}) L{self.L} K{self.K}"
        return sizes + (f" P{self.P}" if self.P else "") + (f" D{self.D}" if self.D else "")


# For the ordinary run of the tests
QUICK = [
    Case(3, 2, 1, L=2, K=1),
    Case(3, 2, 1, L=3, K=2),
    Case(3, 2, 1, L=4, K=3),
    Case(4, 3, 1, L=4, K=2),
    Case(4, 3, 1, L=3, K=2, D=1),
    Case(4, 3, 1, L=5, K=2, few=2),  # D does not divide L
    Case(4, 3, 1, L=6, K=3, few=2),
    Case(4, 3, 2, L=3, K=2),
    Case(4, 3, 2, L=4, K=3),
    Case(5, 4, 2, L=4, K=2),
    Case(3, 2, 1, L=6, K=1, P=1),  # one bucket of 6 places: for |U1| = 2, the 4 syndromes are fewer
    Case(3, 2, 1, L=6, K=2, P=1),  # two groups
    Case(3, 2, 1, L=4, K=2, P=2),  # two picks in one bucket
    Case(4, 3, 1, L=6, K=2, P=1),
    Case(4, 3, 1, L=5, K=2, P=1),  # padding
    Case(4, 3, 1, L=4, K=3, P=2),
    Case(4, 3, 2, L=6, K=3, P=1),
    Case(4, 3, 2, L=6, K=2, P=2, few=2),
    Case(5, 4, 2, L=6, K=2, P=1),
    Case(5, 4, 2, L=6, K=3, P=1, few=3),  # two groups, padding
]


def _fits(U: int, T: int, L: int, K: int, P: int | None) -> bool:
    """Whether K is not more than L, and P picks fit a bucket."""
    if P is None:
        return K <= L
    buckets = math.ceil(math.ceil(K / P) / (U - T)) * (U - T)
    return K <= L and math.ceil(L / buckets) >= P


# For the command: every L from 2 to 6 and K from 1 to 3, with P = 1 and 2, all supports
FULL = [
    Case(N, U, T, L, K, P)
    for N, U, T in ((3, 2, 1), (4, 3, 1), (4, 3, 2), (5, 4, 2))
    for P in (None, 1, 2)
    for L in range(2, 7)
    for K in range(1, 4)
    if _fits(U, T, L, K, P)
]


def same_sum(lab: Lab, users: list[int], seed: int = 0) -> list[list[Inputs]]:
    """Lists of inputs of these users; those in a list have the same sum.

    Values at random, exchanged between every two users; nothing but zeros, at different supports; values that
    cancel out, beside zeros elsewhere; and values moved from one user to another that has the same support.
    """
    rng = np.random.default_rng(seed)
    supports, q, entries = lab.supports, lab.q, lab.p.entries
    zeros = (0,) * entries

    def values() -> tuple[int, ...]:
        return tuple(rng.integers(1, q, entries).tolist())

    def at(i: int) -> tuple[int, ...]:
        return supports[i % len(supports)]

    base = {m: Input(at(5 * i + 1), values()) for i, m in enumerate(users)}
    exchanged = [{**base, a: base[b], b: base[a]} for a, b in combinations(users, 2)]
    nothing = [
        {m: Input(at(i * step), zeros) for i, m in enumerate(users)} for step in (0, 1, len(supports) - 1)
    ]
    lists = [[base, *exchanged], nothing]
    if len(users) > 1:
        a, b, *_ = users
        plus = values()
        minus = tuple((-v) % q for v in plus)
        nothing.append({**nothing[0], a: Input(at(2), plus), b: Input(at(2), minus)})
        total = tuple((v + w) % q for v, w in zip(plus, base[a].values, strict=True))
        lists.append(
            [
                {**base, a: Input(at(1), plus), b: Input(at(1), base[a].values)},
                {**base, a: Input(at(1), total), b: Input(at(1), zeros)},
                {**base, a: Input(at(0), zeros), b: Input(at(1), total)},
            ]
        )
    return lists
