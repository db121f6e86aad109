"""The parameters that are checked, and inputs that have the same sum."""

from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
from affine import MaskedInputs
from fq import Array
from lab import Input, Lab

from topk_secagg.protocol.parameters import Parameters


@dataclass(frozen=True)
class Case:
    """N, U, T, L, K of a round of `permutation`; `few` of its supports, or all."""

    N: int
    U: int
    T: int
    L: int
    K: int
    few: int | None = None

    def parameters(self) -> Parameters:
        """With the smallest field that has room for N values."""
        return Parameters.choose(
            users=self.N,
            survivors=self.U,
            colluders=self.T,
            top_k=self.K,
            length=self.L,
            field=7 if self.N == 3 else 11,
        )

    def __str__(self) -> str:
        return self.parameters().summary()


# For the ordinary run of the tests
QUICK = [
    Case(3, 2, 1, L=2, K=1),
    Case(3, 2, 1, L=3, K=2),
    Case(3, 2, 1, L=4, K=3),
    Case(4, 3, 1, L=4, K=2),
    Case(4, 3, 1, L=5, K=2, few=2),  # D does not divide L
    Case(4, 3, 1, L=5, K=3, few=1),
    Case(4, 3, 2, L=3, K=2),
    Case(4, 3, 2, L=4, K=3),
    Case(5, 4, 2, L=4, K=2),
]

# For the command: more
MORE = [
    Case(4, 3, 1, L=6, K=3),
]


# For the command: every L from 2 to 6 and K from 1 to 3, all supports
FULL = [
    Case(N, U, T, L, K)
    for N, U, T in ((3, 2, 1), (4, 3, 1), (4, 3, 2), (5, 4, 2))
    for L, K in product(range(2, 7), range(1, 4))
    if K <= L
]


# `sketch`: N, U, T, and what differs from the defaults; W = M if nothing else is said
DEALINGS = ("keys", "shares")
EVERYTHING = {"K": 0, "P": None}  # nothing is picked
SKETCHES = {
    "D = 1": (3, 2, 1, {"L": 4, "K": 2}),
    "no drop-outs": (3, 3, 1, {"L": 4, "K": 2}),
    "T = 2 of three": (3, 3, 2, {"L": 4, "K": 2}),
    "a last group that is not full": (4, 3, 1, {"L": 6, "K": 3}),
    "fewer buckets than D": (4, 4, 1, {"L": 2, "K": 1}),
    "L not divisible by B": (4, 3, 2, {"L": 5, "K": 3}),
    "two may drop out": (4, 2, 1, {"L": 4, "K": 2}),
    "W < M": (3, 2, 1, {"L": 8, "K": 1, "q": 11}),
    "W < M, two buckets": (4, 3, 1, {"L": 18, "K": 2}),
    "everything is sent whole": (4, 3, 1, {**EVERYTHING, "L": 5, "whole": 5}),
    "some is sent whole": (4, 3, 2, {"L": 5, "K": 2, "whole": 3}),
    "some is sent whole, and W < M": (3, 2, 1, {"L": 13, "K": 1, "whole": 5, "q": 11}),
    "two picks": (3, 2, 1, {"L": 6, "K": 4, "P": 2}),
    "five users": (5, 4, 2, {"L": 4, "K": 2}),
}
MORE_SKETCHES = {
    "two groups of three": (5, 4, 1, {"L": 12, "K": 6}),
    "three may drop out": (5, 2, 1, {"L": 4, "K": 2}),
    "T = 3": (5, 4, 3, {"L": 4, "K": 2}),
    "six users": (6, 5, 2, {"L": 6, "K": 3, "q": 13}),
    "six users, everything whole": (6, 4, 2, {**EVERYTHING, "L": 7, "whole": 7, "q": 13}),
    "T = 3, everything whole": (5, 4, 3, {**EVERYTHING, "L": 3, "whole": 3}),
}


# Two rounds of low rank: N, U, T, q, and the tensors. By default one of 3 x 2, of rank 1
SERIES = {
    "three users": ((3, 2, 1, 7), {}),
    "D = 2": ((4, 3, 1, 11), {}),
    "a tensor is whole": ((3, 2, 1, 7), {"shapes": ((2, 2), (1,))}),
}
MORE_SERIES = {
    "no drop-outs": ((3, 3, 2, 7), {}),
    "two may drop out": ((4, 2, 1, 11), {}),
    "T = 2": ((4, 3, 2, 11), {"shapes": ((2, 2),)}),
    "rank 2": ((3, 2, 1, 7), {"shapes": ((3, 4),), "rank": 2}),
}


def sketch_parameters(N: int, U: int, T: int, **raw: Any) -> Parameters:
    """With the smallest field that has room for N values, if none is given."""
    given = {"q": 7 if N == 3 else 11, "L": 6, "K": 3, "P": 1, "whole": 0, "dealing": "keys"} | raw
    return Parameters.choose(
        users=N,
        survivors=U,
        colluders=T,
        length=given["L"],
        whole=given["whole"],
        top_k=given["K"],
        picks=given["P"],
        field=given["q"],
        construction="sketch",
        dealing=given["dealing"],
    )


def same_sum(lab: Lab, users: list[int], seed: int = 0) -> list[list[MaskedInputs]]:
    """Lists of inputs of these users; those in a list have the same sum.

    Values at random, exchanged between every two users; values that cancel out, at different
    supports; values moved from one user to another that has the same support; and nothing but
    zeros.
    """
    rng = np.random.default_rng(seed)
    q = lab.q
    steps = (0, 1, len(lab.supports) - 1)

    def values() -> Array:
        return rng.integers(1, q, lab.c.entries)

    def at(i: int, chosen: Array) -> Input:
        return Input(lab.supports[i % len(lab.supports)], tuple((chosen % q).tolist()))

    base = {m: at(5 * i + 1, values()) for i, m in enumerate(users)}
    lists = [[base, *({**base, a: base[b], b: base[a]} for a, b in combinations(users, 2))]]
    if len(users) > 1:
        a, b, *_ = users
        lists.append([{**base, a: at(i, v), b: at(i, -v)} for i in steps for v in [values()]])
        total = values()
        parts = [v for v in (values() for _ in range(20)) if np.all((total - v) % q)][:2]
        lists.append([{**base, a: at(1, v), b: at(1, total - v)} for v in parts])
    zeros = np.zeros(lab.c.entries, dtype=np.int64)
    lists.append([{m: at(i * step, zeros) for i, m in enumerate(users)} for step in steps])
    if len(users) > 1:
        lists[1].append({**base, a: at(0, zeros), b: at(1, zeros)})
        lists[2].append({**base, a: at(0, zeros), b: at(1, total)})
    return lists
