"""The parameters of a round, and the communication rates of Theorem 1: symbols sent per input
symbol.

Every constraint of the scheme is checked here, when the parameters are made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..algebra.field import DEFAULT_FIELD, ceil_div, divisors, is_prime, stored_type
from ..brief import Brief
from ..errors import Advice, UsageError, counted
from ..gradients.quantise import LARGEST_CLIP
from .buckets import Buckets, bucket_count, buckets_for

PERMUTATION = "permutation"
SKETCH = "sketch"
# how shares are dealt
KEYS = "keys"
SHARES = "shares"
DEALINGS = {
    PERMUTATION: (SHARES,),
    SKETCH: (KEYS, SHARES),
}  # of each construction; the first is the default
CONSTRUCTIONS = tuple(DEALINGS)

_LARGEST_FIELD = 1 << 32  # symbols have 32 bits
DERIVED = {"buckets"}  # parameters that follow from others
_MOST_PICKS = 16  # by default: decoding takes longer with more
_WORTH_MORE_PICKS = 1.05  # times the fewest bytes: more picks keep more of the largest coordinates


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
        if dealing is None:
            dealing = DEALINGS.get(construction, (SHARES,))[0]
        top_k = top_k or 0
        if construction == SKETCH and picks is None and top_k:
            picks = _cheapest_picks(
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
            picks=picks or 0,
            buckets=bucket_count(top_k, picks or 0),
            dealing=dealing,
            max_weight=float(max_weight),
        )

    def changed(self, **given: Any) -> Parameters:
        """The same round with some of the arguments of `choose` given anew; what follows from them
        is computed again."""
        kept = {name: value for name, value in vars(self).items() if name not in DERIVED}
        if self.construction == PERMUTATION:
            kept["picks"] = None
        sizes = ("length", "top_k", "whole")
        is_resized = any(given.get(name, kept[name]) != kept[name] for name in sizes)
        if self.construction == SKETCH and is_resized:
            del kept["picks"]  # the best number may be another one
        return Parameters.choose(**kept | given)

    def __post_init__(self) -> None:
        _check_users(self)
        _check_field(self)
        _check_coordinates(self)
        _check_weight(self)
        _require(
            self.construction in CONSTRUCTIONS,
            f"unknown construction {self.construction!r}",
            f"one of {', '.join(CONSTRUCTIONS)}",
        )
        _require(
            self.dealing in DEALINGS[self.construction],
            f"the construction {self.construction} does not deal {self.dealing!r:.20}",
            f"one of {', '.join(DEALINGS[self.construction])}",
        )
        if self.construction == PERMUTATION:
            _check_permutation(self)
        if self.construction == SKETCH:
            _check_sketch(self)

    @property
    def blocks(self) -> int:
        """D = U - T, what an answer packs into one group."""
        return self.survivors - self.colluders

    @property
    def largest(self) -> int:
        """The largest magnitude of a quantised value: N of them do not wrap."""
        return (self.field - 1) // 2 // self.users

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
        order = _order(self.field, places)
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
        own = {}
        if self.picks:
            own = {"P": self.picks, "B": self.buckets}
            sizes = self.sizes
            own |= {"M": sizes.sparse.places} if sizes.is_direct else {"n": self.order}
        if self.whole:
            own |= {"whole": self.whole}
        return ", ".join([*_spelled(letters), self.construction, *_spelled(own)])


def _spelled(letters: dict[str, int]) -> list[str]:
    """Letters with their values."""
    return [f"{letter} {value}" for letter, value in letters.items()]


def _cheapest_picks(
    *,
    users: int,
    blocks: int,
    top_k: int,
    length: int,
    whole: int,
    field: int,
    dealing: str,
) -> int:
    """The largest P up to 16 for which a user of `sketch` sends hardly more symbols than for any
    other: X, Y, and the shares that are written out.

    Numbers that no round can have are refused later.
    """
    written = users - 1 if dealing == SHARES else 0

    def symbols(picks: int) -> float:
        buckets = bucket_count(top_k, picks)
        if buckets < 1:
            return math.inf
        sizes = buckets_for(
            users=users, blocks=blocks, picks=picks, buckets=buckets, length=length, whole=whole
        )
        if not sizes.is_direct and _order(field, sizes.sparse.places) is None:
            return math.inf
        return sizes.width * (sizes.count + ceil_div(sizes.count, blocks) * (1 + written))

    most = max(1, min(_MOST_PICKS, length - whole))
    sent = {picks: symbols(picks) for picks in range(1, most + 1)}
    enough = _WORTH_MORE_PICKS * min(sent.values())
    return max(picks for picks, count in sent.items() if count <= enough)


def _order(field: int, places: int) -> int | None:
    """The smallest divisor of q - 1 that is at least the number of places, if there is one."""
    if not 1 < field < _LARGEST_FIELD:  # which is refused later
        return None
    return next((d for d in divisors(field - 1) if d >= places), None)


# constraints


def _require(holds: bool, message: str, hint: str, advice: Advice | None = None) -> None:
    """Refuse parameters for which a constraint does not hold."""
    if not holds:
        raise UsageError(message, hint, advice)


def _check_users(p: Parameters) -> None:
    """1 <= T < U <= N."""
    N = p.users
    U = p.survivors
    T = p.colluders
    _require(T >= 1, f"{T} colluders: at least one must be tolerated", "keep T >= 1")
    _require(T < U, f"{T} colluders among {U} survivors leave nobody to hide among", "keep T < U")
    _require(U <= N, f"{U} survivors of {counted(N, 'user')}", "keep U <= N", Advice.TOO_FEW_USERS)


def _check_field(p: Parameters) -> None:
    """A prime with room for the points."""
    q = p.field
    _require(
        5 <= q < _LARGEST_FIELD and is_prime(q),
        f"the field size {q} is not a prime below 2^32",
        "choose a prime",
    )
    _require(
        q >= p.users + p.survivors,
        f"a field of {q} elements has no {p.users} + {p.survivors} distinct points",
        "keep q >= N + U",
    )


def _check_coordinates(p: Parameters) -> None:
    """K of those that are not sent whole."""
    L = p.length
    K = p.top_k
    whole = p.whole
    _require(1 <= L < 2**32, f"a gradient of {L} coordinates", "keep 1 <= L < 2^32")
    _require(
        0 <= whole <= L,
        f"{whole} of {L} coordinates cannot be sent whole",
        "send at most all whole",
    )
    if whole == L:
        _require(
            K == 0,
            f"all coordinates are sent whole: {K} cannot be selected besides",
            "select none, or send fewer whole",
        )
    else:
        _require(
            1 <= K <= L - whole,
            f"cannot select {K} of {L - whole} coordinates",
            "keep 1 <= K <= L, less what is sent whole" if whole else "keep 1 <= K <= L",
        )


def _check_weight(p: Parameters) -> None:
    """A weight that leaves room for N of the largest values."""
    _require(
        0 < p.max_weight <= LARGEST_CLIP,
        f"the largest weight is {p.max_weight:g}",
        "choose a positive number up to 2^53",
    )
    _require(
        p.largest >= 1,
        f"a field of {p.field} elements has no room for {p.users} values",
        "choose a larger field",
    )


def _check_permutation(p: Parameters) -> None:
    """Nothing that belongs to another construction."""
    _require(
        p.picks == 0 and p.buckets == 0,
        "picks do not belong to the construction permutation",
        "leave them out, or choose another construction",
    )
    _require(
        p.whole == 0,
        "the construction permutation sends no coordinates whole",
        "select some, or choose another construction",
    )


def _check_sketch(p: Parameters) -> None:
    """P picks in each of B buckets, which may have fewer coordinates, and room for their places in
    the field."""
    P = p.picks
    B = p.buckets
    picked_from = p.length - p.whole
    if not p.top_k:
        _require(P == B == 0, "nothing is picked where all is sent whole", "leave picks out")
        return
    _require(P >= 1, f"{P} picks per bucket", "keep P >= 1")
    fitting = bucket_count(p.top_k, P)
    _require(
        fitting == B, f"{B} buckets do not fit K = {p.top_k} and P = {P}", f"there are {fitting}"
    )
    _require(
        picked_from >= P,
        f"cannot pick more than the {picked_from} coordinates",
        "choose fewer picks",
    )
    sizes = p.sizes
    places = sizes.sparse.places
    _require(
        sizes.is_direct or p.field - 1 >= places,
        f"a field of {p.field} elements has no {places} places",
        "keep q - 1 >= ceil(L / B): choose a larger field or more coordinates to send",
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
