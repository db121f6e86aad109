"""The parameters of a round, and the communication rates of Theorem 1: symbols sent per input symbol.

Every constraint of the scheme is checked when the parameters are made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..algebra.field import DEFAULT_FIELD, is_prime, stored_type
from ..brief import Brief
from ..errors import UsageError

_DEFAULT_PICKS = 4


@dataclass(frozen=True, repr=False)
class Parameters(Brief):
    """N users, at least U survive, at most T collude; K of L coordinates; the field F_q.

    `blocks` is D: fixed in `permutation`, and U - T, the least that an answer packs, in `moments`.
    `picks` (P), `buckets` (B) and `spare` belong to `moments`; in `permutation` they are 0, 0 and None.
    Use `Parameters.choose` to fill in the defaults.
    """

    users: int
    survivors: int
    colluders: int
    blocks: int
    top_k: int
    length: int
    field: int
    construction: str
    picks: int
    buckets: int
    spare: int | None
    clip: float
    max_weight: float
    scale: int

    @staticmethod
    def choose(
        *,
        users: int,
        survivors: int,
        colluders: int,
        top_k: int,
        length: int,
        blocks: int | None = None,
        field: int = DEFAULT_FIELD,
        construction: str = "permutation",
        picks: int | None = None,
        spare: int | None = None,
        clip: float = 1.0,
        max_weight: float = 1.0,
    ) -> Parameters:
        """Fill in D = U - T, the buckets and the scale, and check everything.

        Arguments:
        users: N.
        survivors: U, the users that must remain at least.
        colluders: T, the users that together learn nothing but the sum.
        top_k: K, the coordinates that each user sends.
        length: L, the coordinates of a gradient.
        blocks: D, in the construction permutation; U - T by default.
        field: q, a prime below 2^32.
        construction: "permutation" or "moments".
        picks: P, in the construction moments; 4 by default, or as many as a bucket has coordinates.
        spare: in the construction moments, how many answers may be missing, so that answers are
            smaller; by default any U of them decode.
        clip: the largest magnitude of a gradient's values.
        max_weight: the largest weight that a user may give its gradient.
        """
        require(
            construction == "permutation" or blocks is None,
            "blocks belong to the construction permutation: moments chooses D when it answers",
            "leave them out, or choose the construction permutation",
        )
        if construction == "moments" and picks is None:
            fitting = (
                n
                for n in range(_DEFAULT_PICKS, 1, -1)
                if top_k < 1 or length // -(-top_k // n) >= n
            )
            picks = next(fitting, 1)
        return Parameters(
            users=users,
            survivors=survivors,
            colluders=colluders,
            blocks=survivors - colluders if blocks is None else blocks,
            top_k=top_k,
            length=length,
            field=field,
            construction=construction,
            picks=picks or 0,
            buckets=-(-top_k // max(picks, 1)) if picks is not None else 0,
            spare=spare,
            clip=float(clip),
            max_weight=float(max_weight),
            scale=quantisation_scale(field, users, clip, max_weight),
        )

    def __post_init__(self) -> None:
        from .constructions import construction

        N, U, T, D = self.users, self.survivors, self.colluders, self.blocks
        K, L, q = self.top_k, self.length, self.field
        require(T >= 1, f"{T} colluders: at least one must be tolerated", "keep T >= 1")
        require(
            T < U, f"{T} colluders among {U} survivors leave nobody to hide among", "keep T < U"
        )
        require(U <= N, f"{U} survivors of {N} users", "keep U <= N")
        require(
            D >= 1 and D + T <= U,
            f"D = {D} blocks do not fit U = {U} and T = {T}",
            "keep 1 <= D <= U - T",
        )
        require(
            5 <= q < 2**32 and is_prime(q),
            f"the field size {q} is not a prime below 2^32",
            "choose a prime",
        )
        require(
            q >= N + U,
            f"a field of {q} elements has no {N} + {U} distinct points",
            "keep q >= N + U",
        )
        require(1 <= L < 2**32, f"a gradient of {L} coordinates", "keep 1 <= L < 2^32")
        require(1 <= K <= L, f"cannot select {K} of {L} coordinates", "keep 1 <= K <= L")
        for name, value in (("clip", self.clip), ("largest weight", self.max_weight)):
            require(
                0 < value <= 2.0**53,
                f"the {name} is {value:g}",
                "choose a positive number up to 2^53",
            )
        fitting = quantisation_scale(q, N, self.clip, self.max_weight)
        require(
            self.scale == fitting >= 1 and self.largest >= 1,
            f"a field of {q} elements has no room for {N} values up to {self.clip * self.max_weight:g}",
            "choose another clip, a smaller largest weight, or a larger field",
        )
        construction(self)  # checks what only it needs

    @property
    def largest(self) -> int:
        """The largest magnitude of a quantised value: N of them do not wrap."""
        return (self.field - 1) // 2 // self.users

    @property
    def symbol_bytes(self) -> int:
        """What a stored symbol takes: two bytes when q < 2^16, else four."""
        return stored_type(self.field).itemsize

    def summary(self) -> str:
        """The parameters in one line, by the paper's letters."""
        from .constructions import construction

        shared = {
            "N": self.users,
            "U": self.survivors,
            "T": self.colluders,
            "K": self.top_k,
            "L": self.length,
        }
        parts = [f"{letter} {value}" for letter, value in (shared | {"q": self.field}).items()]
        own = [
            f"{letter} {value}"
            for letter, value in construction(self).letters.items()
            if value is not None
        ]
        return ", ".join([*parts, self.construction, *own])


def quantisation_scale(field: int, users: int, clip: float, max_weight: float = 1.0) -> int:
    """Steps per unit: floor((q-1)/2 / (N clip max_weight)), so that N weighted values never wrap."""
    try:
        return math.floor((field - 1) // 2 / (users * (clip * max_weight)))
    except (OverflowError, ValueError, ZeroDivisionError):  # numbers that no field or round has
        return 0


def require(holds: bool, message: str, hint: str) -> None:
    """Refuse parameters for which a constraint does not hold."""
    if not holds:
        raise UsageError(message, hint)


def theorem_r1(p: Parameters) -> float:
    """R1 = (K + log_q C(L, K)) / L."""
    L, K = p.length, p.top_k
    choices = math.lgamma(L + 1) - math.lgamma(K + 1) - math.lgamma(L - K + 1)
    return (K + choices / math.log(p.field)) / L


def theorem_r2(p: Parameters) -> float:
    """R2 = 1 / (U - T)."""
    return 1 / (p.survivors - p.colluders)


def rates(p: Parameters, name: str, payload: int) -> dict[str, float]:
    """R1 of an X with this payload, in symbols of log2 q bits, or R2 of a Y, which stores every symbol in two or four
    bytes; beside what the theorem says."""
    symbol, theorem = (
        (math.log2(p.field) / 8, theorem_r1) if name == "R1" else (p.symbol_bytes, theorem_r2)
    )
    return {name: payload / symbol / p.length, f"{name}_theorem": theorem(p)}
