"""The parameters of a round. Every constraint of the scheme is checked here, once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..algebra.field import DEFAULT_FIELD, is_prime
from ..errors import UsageError

CONSTRUCTIONS = ("permutation", "rotation")
ELIMINATIONS = ("dense", "syndrome", "auto")
DEFAULT_PICKS = 4
SYMBOL_BYTES = 4
_BLOCK_SYMBOLS = 1 << 20


@dataclass(frozen=True)
class Parameters:
    """N users, at least U survive, at most T collude; D blocks; K of L coordinates; the field F_q.

    `picks` (P) and `buckets` (B) belong to the construction `rotation`, and are 0 in `permutation`.
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
    elimination: str
    clip: float
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
        elimination: str = "auto",
        clip: float = 1.0,
    ) -> Parameters:
        """Fill in D = U - T, the buckets and the scale, and check everything."""
        if blocks is None:
            blocks = survivors - colluders
        buckets = 0
        _require(
            construction == "rotation" or picks is None,
            "picks belong to the construction rotation",
            "drop --picks or add --construction rotation",
        )
        if construction == "rotation":
            picks = DEFAULT_PICKS if picks is None else picks
            buckets = least_buckets(top_k, max(picks, 1), max(blocks, 1))
        return Parameters(
            users=users,
            survivors=survivors,
            colluders=colluders,
            blocks=blocks,
            top_k=top_k,
            length=length,
            field=field,
            construction=construction,
            picks=picks or 0,
            buckets=buckets,
            elimination=elimination,
            clip=float(clip),
            scale=quantisation_scale(field, users, clip),
        )

    def __post_init__(self) -> None:
        N, U, T, D, q = self.users, self.survivors, self.colluders, self.blocks, self.field
        _require(T >= 1, f"at least one colluder must be tolerated, not {T}", "take --colluders 1 or more")
        _require(T < U, f"{T} colluders among {U} survivors leave nothing to hide in", "keep T < U")
        _require(U <= N, f"{U} survivors of {N} users", "keep U <= N")
        _require(
            1 <= D <= U - T,
            f"{D} blocks do not fit {U} survivors and {T} colluders",
            "keep 1 <= D <= U - T",
        )
        _require(
            q < 2**32 and is_prime(q),
            f"{q} is not a prime below 2^32",
            f"take --field {DEFAULT_FIELD} (2^32 - 5)",
        )
        _require(
            q >= N + U, f"the field has {q} elements, and {N} + {U} points are needed", "keep q >= N + U"
        )
        _require(1 <= self.length < 2**32, f"a gradient of {self.length} coordinates", "keep 1 <= L < 2^32")
        _require(
            1 <= self.top_k <= self.length,
            f"cannot select {self.top_k} of {self.length} coordinates",
            "keep 1 <= K <= L",
        )
        _require(
            math.isfinite(self.clip) and self.clip > 0, f"the clip is {self.clip}", "take a positive number"
        )
        _require(
            self.scale == quantisation_scale(q, N, self.clip) and self.scale >= 1 and self.largest >= 1,
            f"a field of {q} elements has no room for {N} values up to {self.clip:g}",
            "take another --clip or a larger --field",
        )
        _require(
            self.construction in CONSTRUCTIONS,
            f"unknown construction {self.construction!r}",
            "permutation or rotation",
        )
        _require(
            self.elimination in ELIMINATIONS,
            f"unknown elimination {self.elimination!r}",
            "dense, syndrome or auto",
        )
        if self.construction == "permutation":
            _require(
                self.picks == 0 and self.buckets == 0,
                "picks belong to the construction rotation",
                "drop --picks or add --construction rotation",
            )
        else:
            self._check_buckets()
        _require(
            self.elimination != "syndrome" or self.width < q,
            f"syndromes need a field larger than a block of {self.width}",
            "take --elimination dense",
        )

    def _check_buckets(self) -> None:
        P, B, D = self.picks, self.buckets, self.blocks
        _require(P >= 1, f"{P} picks per bucket", "take --picks 1 or more")
        least = least_buckets(self.top_k, P, D)
        _require(least == B, f"{B} buckets do not fit K = {self.top_k}, P = {P}, D = {D}", f"take {least}")
        _require(
            self.width >= P,
            f"cannot pick {P} of the {self.width} places of a bucket",
            "take fewer --picks or a smaller K",
        )

    @cached_property
    def width(self) -> int:
        """Symbols in one share row: ceil(L/D), or the M = ceil(L/B) places of a bucket."""
        return -(-self.length // (self.buckets or self.blocks))

    @property
    def rows(self) -> int:
        """Selectors that a user shares: one per coordinate, or one per pick."""
        return self.buckets * self.picks or self.length

    @property
    def groups(self) -> int:
        """Packed polynomials in Y: one, or one for every D buckets."""
        return self.buckets // self.blocks or 1

    @property
    def entries(self) -> int:
        """Entries of X: K, or B P."""
        return self.buckets * self.picks or self.top_k

    @property
    def quorum(self) -> int:
        """Answers that determine Y(x): D + T."""
        return self.blocks + self.colluders

    @property
    def largest(self) -> int:
        """The largest magnitude of a quantised value: N of them do not wrap."""
        return (self.field - 1) // 2 // self.users

    @property
    def block_rows(self) -> int:
        """Rows that are drawn, encoded and written at a time. Part of the format: the noise of a
        block comes from a stream of its own. In `rotation` a block holds whole groups."""
        unit = self.blocks * self.picks or 1
        return max(1, min(self.rows, _BLOCK_SYMBOLS // (self.users * self.width)) // unit) * unit

    @property
    def check_rows(self) -> int:
        """Rows under one checksum in a share: `permutation` reads single rows, `rotation` all."""
        return self.block_rows if self.buckets else 1

    def sparsity(self, survivors: int) -> int:
        """At most so many entries of a decoded block are not zero: t = |U1| P, or |U1| K."""
        return survivors * (self.picks or self.top_k)

    def by_syndromes(self, survivors: int) -> bool:
        """Whether the answers for `survivors` users are syndromes; `auto` takes what is smaller."""
        if self.elimination == "auto":
            return 2 * self.sparsity(survivors) < self.width < self.field
        return self.elimination == "syndrome"

    def answer_width(self, survivors: int) -> int:
        """Symbols of Y per group: the width, or 2 t syndromes."""
        return 2 * self.sparsity(survivors) if self.by_syndromes(survivors) else self.width

    @property
    def share_bytes(self) -> int:
        """Offline symbols of one ordered pair of users, in bytes: f and h."""
        return 2 * self.rows * self.width * SYMBOL_BYTES

    @property
    def offline_bytes(self) -> int:
        """Offline symbols of all ordered pairs, in bytes."""
        return self.users**2 * self.share_bytes

    def summary(self) -> str:
        """The parameters in one line, by the paper's letters."""
        letters = f"N {self.users}, U {self.survivors}, T {self.colluders}, D {self.blocks}, "
        sizes = f"K {self.top_k}, L {self.length}, q {self.field}, {self.construction}"
        return letters + sizes + (f", P {self.picks}, B {self.buckets}" if self.buckets else "")

    def as_dict(self) -> dict[str, Any]:
        """The keys and values that session.json records."""
        return {name: getattr(self, name) for name in PARAMETER_NAMES}


PARAMETER_NAMES = (
    "users", "survivors", "colluders", "blocks", "top_k", "length", "field",
    "construction", "picks", "buckets", "elimination", "clip", "scale",
)  # fmt: skip


def least_buckets(top_k: int, picks: int, blocks: int) -> int:
    """B: the smallest multiple of D with B P >= K."""
    return -(-top_k // (picks * blocks)) * blocks


def quantisation_scale(field: int, users: int, clip: float) -> int:
    """Steps per unit: floor((q-1)/2 / (N clip)), so that N clipped values never wrap."""
    if not (math.isfinite(clip) and clip > 0) or users < 1:
        return 0
    try:
        return math.floor((field - 1) // 2 / (users * clip))
    except (OverflowError, ZeroDivisionError):  # numbers that no field or round has
        return 0


def _require(holds: bool, message: str, hint: str) -> None:
    if not holds:
        raise UsageError(message, hint)
