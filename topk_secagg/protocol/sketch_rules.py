"""The parameters of `sketch`: its picks, and the buckets that follow from them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..algebra.field import ceil_div, divisors
from .buckets import bucket_count, buckets_for
from .rules import KEYS, LARGEST_FIELD, SHARES, Rules, require

if TYPE_CHECKING:
    from .parameters import Parameters

_MOST_PICKS = 16  # by default: decoding takes longer with more
_WORTH_MORE_PICKS = 1.05  # times the fewest bytes: more picks keep more of the largest coordinates


class SketchRules(Rules):
    """P picks in each of B buckets, and coordinates that are sent whole."""

    dealings = (KEYS, SHARES)

    def default_picks(
        self,
        *,
        users: int,
        blocks: int,
        top_k: int,
        length: int,
        whole: int,
        field: int,
        dealing: str,
    ) -> int:
        """The largest P up to 16 for which a user sends hardly more symbols than for any other: X,
        Y, and the shares that are written out."""
        if not top_k:
            return 0
        written = users - 1 if dealing == SHARES else 0

        def symbols(picks: int) -> float:
            buckets = bucket_count(top_k, picks)
            if buckets < 1:
                return math.inf
            sizes = buckets_for(
                users=users, blocks=blocks, picks=picks, buckets=buckets, length=length, whole=whole
            )
            if not sizes.is_direct and smallest_order(field, sizes.sparse.places) is None:
                return math.inf
            return sizes.width * (sizes.count + ceil_div(sizes.count, blocks) * (1 + written))

        most = max(1, min(_MOST_PICKS, length - whole))
        sent = {picks: symbols(picks) for picks in range(1, most + 1)}
        enough = _WORTH_MORE_PICKS * min(sent.values())
        return max(picks for picks, count in sent.items() if count <= enough)

    def check(self, p: Parameters) -> None:
        """Buckets may have fewer coordinates than picks; the field has room for their places."""
        P = p.picks
        B = p.buckets
        picked_from = p.length - p.whole
        if not p.top_k:
            require(P == B == 0, "nothing is picked where all is sent whole", "leave picks out")
            return
        require(P >= 1, f"{P} picks per bucket", "keep P >= 1")
        fitting = bucket_count(p.top_k, P)
        require(
            fitting == B,
            f"{B} buckets do not fit K = {p.top_k} and P = {P}",
            f"there are {fitting}",
        )
        require(
            picked_from >= P,
            f"cannot pick more than the {picked_from} coordinates",
            "choose fewer picks",
        )
        sizes = p.sizes
        places = sizes.sparse.places
        require(
            sizes.is_direct or p.field - 1 >= places,
            f"a field of {p.field} elements has no {places} places",
            "keep q - 1 >= ceil(L / B): choose a larger field or more coordinates to send",
        )

    def letters(self, p: Parameters) -> dict[str, int]:
        """P, B and M or n, where something is picked; and what is sent whole."""
        letters = {}
        if p.picks:
            sizes = p.sizes
            places = {"M": sizes.sparse.places} if sizes.is_direct else {"n": p.order}
            letters = {"P": p.picks, "B": p.buckets, **places}
        return letters | ({"whole": p.whole} if p.whole else {})


def smallest_order(field: int, places: int) -> int | None:
    """The smallest divisor of q - 1 that is at least the number of places, if there is one."""
    if not 1 < field < LARGEST_FIELD:  # which is refused later
        return None
    return next((d for d in divisors(field - 1) if d >= places), None)
