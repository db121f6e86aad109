"""The parameters that are checked, and inputs that have the same sum."""

import math
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
    """N, U, T, L, K; P picks make it `moments`, with `spare` answers; D blocks if it is not U - T.

    `few` supports, or all, in `permutation`; all picks together, or one by one, in `moments`.
    """

    N: int
    U: int
    T: int
    L: int
    K: int
    P: int | None = None
    D: int | None = None
    q: int | None = None
    spare: int | None = None
    few: int | None = None
    together: bool = False
    dealing: str = "shares"

    @property
    def construction(self) -> str:
        return "permutation" if self.P is None else "moments"

    def parameters(self) -> Parameters:
        """With the smallest field that has room for N values, if none is given."""
        return Parameters.choose(
            users=self.N, survivors=self.U, colluders=self.T, blocks=self.D, top_k=self.K,
            length=self.L,
            field=self.q or (7 if self.N == 3 else 11), construction=self.construction,
            picks=self.P,
            spare=self.spare, clip=0.25, dealing=self.dealing,
        )  # fmt: skip

    def __str__(self) -> str:
        seeds = ", by seeds" if self.dealing == "seeds" else ""
        return self.parameters().summary() + seeds


# For the ordinary run of the tests
QUICK = [
    Case(3, 2, 1, L=2, K=1),
    Case(3, 2, 1, L=3, K=2),
    Case(3, 2, 1, L=4, K=3),
    Case(4, 3, 1, L=4, K=2),
    Case(4, 3, 1, L=3, K=2, D=1),
    Case(4, 3, 1, L=5, K=2, few=2),  # D does not divide L
    Case(4, 3, 1, L=5, K=3, few=1),
    Case(4, 3, 2, L=3, K=2),
    Case(4, 3, 2, L=4, K=3),
    Case(5, 4, 2, L=4, K=2),
    # W = n
    Case(3, 2, 1, L=2, K=1, P=1),
    Case(3, 2, 1, L=5, K=1, P=1),  # M = 5 < n = 6
    Case(3, 2, 1, L=4, K=2, P=1, spare=0, together=True),
    Case(3, 2, 1, L=8, K=2, P=1, spare=0),  # D = 2, then 1; M = 4 < n = 6
    Case(3, 2, 1, L=8, K=3, P=1, spare=0),  # three buckets with two points; padding
    Case(3, 2, 1, L=5, K=2, P=2),  # two picks in one bucket
    Case(4, 3, 1, L=15, K=3, P=1, spare=0),  # D = 3, then 2
    Case(4, 3, 2, L=8, K=2, P=1, spare=0),  # D = 2, then 1; M = 4 < n = 5
    Case(5, 4, 2, L=6, K=3, P=1, spare=0),  # D = 3, then 2
    # W < n
    Case(3, 2, 1, L=7, K=1, P=1, q=11),  # W = 6, M = 7, n = 10
    Case(3, 2, 1, L=20, K=2, P=1, q=11, spare=0),  # M = n = 10
    Case(4, 3, 2, L=10, K=1, P=1),  # W = 8
    # by seeds
    Case(3, 2, 1, L=5, K=2, P=2, dealing="seeds"),
    Case(4, 3, 2, L=4, K=2, P=1, spare=0, dealing="seeds"),
    Case(4, 3, 1, L=4, K=2, P=1, spare=0, dealing="seeds"),
]

# For the command: more, and joint places and inputs of all picks of a user
MORE = [
    Case(4, 3, 1, L=6, K=3),
    Case(4, 3, 1, L=6, K=3, P=2),
    Case(3, 2, 1, L=9, K=1, P=1, q=13),  # M = 9 < n = 12
    Case(4, 2, 1, L=14, K=2, P=1, spare=1),  # W = 8, M = 7 < n = 10
    Case(5, 4, 2, L=20, K=4, P=1, spare=0),
    Case(3, 2, 1, L=6, K=2, P=1, spare=0, together=True),  # n = 3
    Case(3, 2, 1, L=3, K=2, P=2, together=True),
    Case(4, 2, 1, L=4, K=2, P=1, spare=0, together=True),
    Case(4, 3, 2, L=4, K=2, P=1, spare=0, together=True),
    Case(3, 2, 1, L=4, K=2, P=1, spare=0, together=True, dealing="seeds"),
    Case(3, 2, 1, L=7, K=1, P=1, q=11, dealing="seeds"),
    Case(4, 3, 1, L=6, K=3, P=1, spare=0, dealing="seeds"),
    Case(5, 4, 2, L=4, K=2, P=1, dealing="seeds"),
]


# For the command: every L from 2 to 6 and K from 1 to 3, with P = 1 and 2, all supports; in
# `moments`, larger n
FULL = [
    Case(N, U, T, L, K, P, spare=None if P is None else 0)
    for N, U, T in ((3, 2, 1), (4, 3, 1), (4, 3, 2), (5, 4, 2))
    for P, L, K in product((None, 1, 2), range(2, 7), range(1, 4))
    if (P or 1) <= L // math.ceil(K / (P or 1))
] + [
    Case(N, U, T, places * K, K, P=1, q=q, spare=spare)
    for N, U, T in ((3, 2, 1), (4, 2, 1), (4, 3, 2))
    for q, K, spare in ((11, 1, None), (11, 2, 0), (13, 1, None), (13, 2, 0))
    for places in range(6, q)
]
FULL += [*MORE, Case(3, 2, 1, L=8, K=2, P=1, spare=0, together=True)]


# `sketch`: N, U, T, and what differs from the defaults
DEALINGS = ("keys", "seeds", "shares")
SKETCHES = {
    "D = 1": (3, 2, 1, {"L": 4, "K": 2}),
    "no drop-outs": (3, 3, 1, {"L": 4, "K": 2}),
    "T = 2 of three": (3, 3, 2, {"L": 4, "K": 2}),
    "a last group that is not full": (4, 3, 1, {"L": 6, "K": 3}),
    "fewer buckets than D": (4, 4, 1, {"L": 2, "K": 1}),
    "L not divisible by B": (4, 3, 2, {"L": 5, "K": 3}),
    "two may drop out": (4, 2, 1, {"L": 4, "K": 2}),
    "W < n": (3, 2, 1, {"L": 8, "K": 1, "q": 11}),
    "two picks": (3, 2, 1, {"L": 6, "K": 4, "P": 2}),
    "five users": (5, 4, 2, {"L": 4, "K": 2}),
}
MORE_SKETCHES = {
    "two groups of three": (5, 4, 1, {"L": 12, "K": 6}),
    "three may drop out": (5, 2, 1, {"L": 4, "K": 2}),
    "T = 3": (5, 4, 3, {"L": 4, "K": 2}),
    "six users": (6, 5, 2, {"L": 6, "K": 3, "q": 13}),
}


def sketch_parameters(N: int, U: int, T: int, **raw: Any) -> Parameters:
    """With the smallest field that has room for N values, if none is given."""
    given = {"q": 7 if N == 3 else 11, "L": 6, "K": 3, "P": 1, "dealing": "keys"} | raw
    return Parameters.choose(
        users=N,
        survivors=U,
        colluders=T,
        length=given["L"],
        top_k=given["K"],
        picks=given["P"],
        field=given["q"],
        construction="sketch",
        dealing=given["dealing"],
        clip=0.25,
    )


def same_sum(lab: Lab, users: list[int], seed: int = 0) -> list[list[MaskedInputs]]:
    """Lists of inputs of these users; those in a list have the same sum.

    Values at random, exchanged between every two users; values that cancel out, at different
    supports; values moved from one user to another that has the same support; and, where there may
    be zeros, nothing but zeros.
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
    if not lab.c.p.fixed_point.never_zero:
        zeros = np.zeros(lab.c.entries, dtype=np.int64)
        lists.append([{m: at(i * step, zeros) for i, m in enumerate(users)} for step in steps])
        if len(users) > 1:
            lists[1].append({**base, a: at(0, zeros), b: at(1, zeros)})
            lists[2].append({**base, a: at(0, zeros), b: at(1, total)})
    return lists
