"""The parameters of a round, and the communication rates of Theorem 1: symbols sent per input
symbol.

Every constraint of the scheme is checked here, when the parameters are made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..algebra.field import DEFAULT_FIELD, is_prime, stored_type
from ..brief import Brief
from ..errors import Advice, counted
from ..gradients.quantise import LARGEST_CLIP, FixedPoint, quantisation_scale
from .buckets import Buckets, bucket_count, buckets_for
from .permutation_rules import PermutationRules
from .rules import KEYS as KEYS
from .rules import LARGEST_FIELD, Rules, require
from .rules import SHARES as SHARES
from .sketch_rules import SketchRules, smallest_order

PERMUTATION = "permutation"
SKETCH = "sketch"
_RULES: dict[str, Rules] = {PERMUTATION: PermutationRules(), SKETCH: SketchRules()}
CONSTRUCTIONS = tuple(_RULES)
DEALINGS = {name: rules.dealings for name, rules in _RULES.items()}  # the first is the default

DERIVED = {"buckets"}  # parameters that follow from others


@dataclass(frozen=True, repr=False)
class Parameters(Brief):
    """N users, at least U survive, at most T collude; K of L coordinates; the field F_q.

    The coordinates are those of the reduced vector. The last `whole` of them are sent whole, and K
    of those before them. `picks` (P) and `buckets` (B) are those of the latter; they are 0 where
    there are none, and in `permutation`.
    `dealing` says what a share file holds: keys, or shares that are written out. Use
    `Parameters.choose` to fill in the defaults.
    """

    users: int
    survivors: int
    colluders: int
    top_k: int
    length: int
    whole: int
    field: int
    construction: str
    picks: int
    buckets: int
    dealing: str
    max_weight: float

    @staticmethod
    def choose(
        *,
        users: int,
        survivors: int,
        colluders: int,
        top_k: int | None = None,
        length: int,
        whole: int = 0,
        field: int = DEFAULT_FIELD,
        construction: str = PERMUTATION,
        picks: int | None = None,
        dealing: str | None = None,
        max_weight: float = 1.0,
    ) -> Parameters:
        """Fill in the buckets, and check everything.

        Arguments:
        users: N.
        survivors: U, the users that must remain at least.
        colluders: T, the users that together learn nothing but the sum.
        top_k: K, the coordinates that each user picks; none where all are sent whole.
        length: L, the coordinates of a gradient.
        whole: how many coordinates at the end every user sends, besides those that it picks.
        field: q, a prime below 2^32.
        construction: "permutation" or "sketch".
        picks: P, in the construction sketch. By default the P up to 16 with the fewest bytes.
        dealing: "keys" (sketch) or "shares"; by default the first that the construction has.
        max_weight: the largest weight that a user may give its gradient.
        """
        rules = _rules(construction)
        if dealing is None:
            dealing = rules.dealings[0]
        top_k = top_k or 0
        if picks is None:
            picks = rules.default_picks(
                users=users,
                blocks=max(1, survivors - colluders),
                top_k=top_k,
                length=length,
                whole=whole,
                field=field,
                dealing=dealing,
            )
        return Parameters(
            users=users,
            survivors=survivors,
            colluders=colluders,
            top_k=top_k,
            length=length,
            whole=whole,
            field=field,
            construction=construction,
            picks=picks,
            buckets=bucket_count(top_k, picks),
            dealing=dealing,
            max_weight=float(max_weight),
        )

    def changed(self, **given: Any) -> Parameters:
        """The same round with some of the arguments of `choose` given anew; what follows from them
        is computed again."""
        kept = {name: value for name, value in vars(self).items() if name not in DERIVED}
        sizes = ("length", "top_k", "whole")
        is_resized = any(given.get(name, kept[name]) != kept[name] for name in sizes)
        if is_resized or not self.picks:
            del kept["picks"]  # the best number may be another one
        return Parameters.choose(**kept | given)

    def __post_init__(self) -> None:
        _check_users(self)
        _check_field(self)
        _check_coordinates(self)
        _check_weight(self)
        rules = _rules(self.construction)
        require(
            self.dealing in rules.dealings,
            f"the construction {self.construction} does not deal {self.dealing!r:.20}",
            f"one of {', '.join(rules.dealings)}",
        )
        rules.check(self)

    @property
    def blocks(self) -> int:
        """D = U - T, what an answer packs into one group."""
        return self.survivors - self.colluders

    @property
    def largest(self) -> int:
        """The largest magnitude of a quantised value: N of them do not wrap."""
        return (self.field - 1) // 2 // self.users

    def fixed_point(self, clip_runs: Iterable[tuple[int, float]]) -> FixedPoint:
        """How reals are written in the field; so many symbols behind each other have which clip."""
        return FixedPoint.of(self.field, self.users, self.max_weight, clip_runs)

    def scale(self, clip: float) -> int:
        """Steps per unit of a tensor with this clip."""
        return quantisation_scale(self.field, self.users, clip, self.max_weight)

    @property
    def symbol_bytes(self) -> int:
        """What a stored symbol takes: one byte when q < 2^8, two when q < 2^16, else four."""
        return stored_type(self.field).itemsize

    @property
    def sizes(self) -> Buckets:
        """The buckets of both parts, and their width."""
        return buckets_for(
            users=self.users,
            blocks=self.blocks,
            picks=self.picks,
            buckets=self.buckets,
            length=self.length,
            whole=self.whole,
        )

    @property
    def order(self) -> int:
        """n, the order of gamma: the smallest divisor of q - 1 that is at least M."""
        places = self.sizes.sparse.places
        order = smallest_order(self.field, places)
        if order is None:
            raise ValueError(f"no element of F_{self.field} has {places} powers")
        return order

    def summary(self) -> str:
        """The parameters in one line, by the paper's letters."""
        letters = {
            "N": self.users,
            "U": self.survivors,
            "T": self.colluders,
            "D": self.blocks,
            "K": self.top_k,
            "L": self.length,
            "q": self.field,
        }
        own = _rules(self.construction).letters(self)
        return ", ".join([*_spelled(letters), self.construction, *_spelled(own)])


def _rules(construction: str) -> Rules:
    """The rules of the construction of this name."""
    require(
        construction in _RULES,
        f"unknown construction {construction!r}",
        f"one of {', '.join(CONSTRUCTIONS)}",
    )
    return _RULES[construction]


def _spelled(letters: dict[str, int]) -> list[str]:
    """Letters with their values."""
    return [f"{letter} {value}" for letter, value in letters.items()]


# constraints


def _check_users(p: Parameters) -> None:
    """1 <= T < U <= N."""
    N = p.users
    U = p.survivors
    T = p.colluders
    require(T >= 1, f"{T} colluders: at least one must be tolerated", "keep T >= 1")
    require(T < U, f"{T} colluders among {U} survivors leave nobody to hide among", "keep T < U")
    require(U <= N, f"{U} survivors of {counted(N, 'user')}", "keep U <= N", Advice.TOO_FEW_USERS)


def _check_field(p: Parameters) -> None:
    """A prime with room for the points."""
    q = p.field
    require(
        5 <= q < LARGEST_FIELD and is_prime(q),
        f"the field size {q} is not a prime below 2^32",
        "choose a prime",
    )
    require(
        q >= p.users + p.survivors,
        f"a field of {q} elements has no {p.users} + {p.survivors} distinct points",
        "keep q >= N + U",
    )


def _check_coordinates(p: Parameters) -> None:
    """K of those that are not sent whole."""
    L = p.length
    K = p.top_k
    whole = p.whole
    require(1 <= L < 2**32, f"a gradient of {L} coordinates", "keep 1 <= L < 2^32")
    require(
        0 <= whole <= L,
        f"{whole} of {L} coordinates cannot be sent whole",
        "send at most all whole",
    )
    if whole == L:
        require(
            K == 0,
            f"all coordinates are sent whole: {K} cannot be selected besides",
            "select none, or send fewer whole",
        )
    else:
        require(
            1 <= K <= L - whole,
            f"cannot select {K} of {L - whole} coordinates",
            "keep 1 <= K <= L, less what is sent whole" if whole else "keep 1 <= K <= L",
        )


def _check_weight(p: Parameters) -> None:
    """A weight that leaves room for N of the largest values."""
    require(
        0 < p.max_weight <= LARGEST_CLIP,
        f"the largest weight is {p.max_weight:g}",
        "choose a positive number up to 2^53",
    )
    require(
        p.largest >= 1,
        f"a field of {p.field} elements has no room for {p.users} values",
        "choose a larger field",
    )


# rates


def theorem_r1(p: Parameters) -> float:
    """R1 = (K + log_q C(L, K)) / L; coordinates that are sent whole have a symbol each."""
    L = p.length - p.whole
    K = p.top_k
    choices = math.lgamma(L + 1) - math.lgamma(K + 1) - math.lgamma(L - K + 1)
    return (p.whole + K + choices / math.log(p.field)) / p.length


def theorem_r2(p: Parameters) -> float:
    """R2 = 1 / (U - T)."""
    return 1 / p.blocks


class Rate(NamedTuple):
    """A measured rate beside the theorem's."""

    name: str
    measured: float
    theorem: float

    def facts(self) -> dict[str, float]:
        """For JSON: r1 and r1_theorem, or r2 and r2_theorem."""
        key = self.name.lower()
        return {key: self.measured, f"{key}_theorem": self.theorem}


def rate_of_masked(p: Parameters, payload: int) -> Rate:
    """R1 of an X with a payload of so many bytes, in symbols of log2 q bits."""
    symbols = payload / (math.log2(p.field) / 8)
    return Rate("R1", symbols / p.length, theorem_r1(p))


def rate_of_answer(p: Parameters, payload: int) -> Rate:
    """R2 of a Y with a payload of so many bytes; a symbol is stored in one, two or four of them."""
    symbols = payload / p.symbol_bytes
    return Rate("R2", symbols / p.length, theorem_r2(p))
