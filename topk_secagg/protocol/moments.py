"""`moments`: the same guarantee as the paper's construction, with an offline cost that does not grow with L.

Coordinate k lies in bucket b = k mod B at place k // B. A user sends P picks of every bucket, and shares of
each pick only the moments v_s = (gamma^(s j)) of a secret place s, divided by a secret factor rho. See
docs/scheme.md for why that suffices and why it is secret.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..algebra.field import Integers, Symbols, divisors, multiply, smallest_generator
from ..algebra.lagrange import lagrange_matrix
from ..algebra.linear import combine
from ..algebra.moments import Entries, answer, arranged, recover, share
from ..algebra.parallel import ahead
from ..algebra.randomness import Randomness
from ..errors import BadData
from . import wire
from .constructions import Construction, stacked
from .messages import AnswerBlock, AnswerShape, Held, Inputs, Masked, Points, Secret, Sparse
from .parameters import Parameters, require

_CHECK_BYTES = 1 << 16  # of a share under one checksum
_READ_CHECKS = 16  # checksums' worth of rows that are read at a time
_TOGETHER = 1 << 17  # symbols of several users' shares that are worth a copy, to save calls
_CELLS = 1 << 17  # entries of a gradient that are compared at a time


class Moments(Construction[Entries]):
    """Share g of pick i of bucket b: a Shamir sharing of rho^-1 v_s at beta_b, with T noise vectors."""

    share_names = ("g",)
    index_name = "shift"
    never_zero = True
    distinct = False

    def __init__(self, p: Parameters) -> None:
        super().__init__(p)
        N, P, B, q = p.users, p.picks, p.buckets, p.field
        require(P >= 1, f"{P} picks per bucket", "keep P >= 1")
        least = -(-p.top_k // P)
        require(
            least == B, f"{B} buckets do not fit K = {p.top_k} and P = {P}", f"there are {least}"
        )
        require(
            p.length // B >= P,
            f"cannot pick {P} of the {p.length // B} coordinates of a bucket: K = {p.top_k} is close to L",
            "choose fewer picks, a smaller K, or the construction permutation",
        )
        D = p.survivors - p.colluders
        require(
            p.blocks == D,
            f"D = {p.blocks}: the construction moments chooses D when it answers",
            f"record {D}",
        )
        require(
            p.spare is None or p.spare >= 0, f"{p.spare} spare answers", "keep them at 0 or more"
        )
        betas = self.beta_count = N - p.colluders  # the most buckets that an answer packs
        self.share_quorum = p.colluders + 1  # a sharing has degree T
        require(
            q >= N + betas,
            f"a field of {q} elements has no {N} + {betas} distinct points",
            "keep q >= 2 N - T",
        )
        self.places = -(-p.length // B)  # M
        require(
            q - 1 >= self.places,
            f"a field of {q} elements has no {self.places} places",
            "keep q - 1 >= ceil(L / B): choose a larger field or more coordinates to send",
        )
        # n is the smallest divisor of q - 1 that is at least M; gamma has order n
        self.order = self.index_bound = next(d for d in divisors(q - 1) if d >= self.places)
        self.letters = {"P": P, "B": B, "n": self.order, "spare": p.spare}
        self.gamma = pow(smallest_generator(q), (q - 1) // self.order, q)
        self.rows = self.entries = B * P
        self.index_code = wire.Packed(self.entries, self.order)
        self.width = min(
            2 * N * P, self.order
        )  # W: the moments of a pick that N survivors could need
        self.check_rows = max(1, _CHECK_BYTES // (self.width * p.symbol_bytes))  # all rows are read

    # offline phase

    def draw(self, source: Randomness) -> Secret:
        """For every pick: s uniform in [0, n) and rho uniform in F_q*."""
        mask = source.child("mask").integers(self.p.field - 1, np.empty(self.rows, dtype=np.uint32))
        mask += np.uint32(1)
        place = source.child("place").integers(self.order, np.empty(self.rows, dtype=np.uint32))
        return Secret(place, mask)

    def check_secret(self, secret: Secret) -> str:
        """Places below n, and factors that are symbols and not zero."""
        if np.any(secret.place >= self.order):
            return f"a place is not below {self.order}"
        bad = np.any(secret.mask >= self.p.field) or not np.all(secret.mask)
        return "a factor is zero or not below the field's size" if bad else ""

    def _points_of(self, rows: Integers) -> Integers:
        """Which beta the bucket of each pick has: b mod (N - T)."""
        point: Integers = rows // self.p.picks % self.beta_count
        return point

    def sharing(
        self, points: Points, secret: Secret
    ) -> Callable[[str, slice, Symbols, Symbols], None]:
        """g_j(alpha_m) = rho^-1 gamma^(s j) + (alpha_m - beta_b) sum_t z_(t,j) alpha_m^t for all m."""
        q, T = self.p.field, self.p.colluders
        matrix = np.array(
            [
                [[(a - b) * pow(a, t, q) % q for t in range(T)] for a in points.alpha]
                for b in points.beta
            ],
            dtype=np.uint64,
        )

        def share_g(_: str, rows: slice, z: Symbols, out: Symbols) -> None:
            point = self._points_of(np.arange(rows.start, rows.stop))
            share(secret.place[rows], secret.mask[rows], point, matrix, z, self.gamma, q, out)

        return share_g

    def check_shares(
        self,
        points: Points,
        users: Sequence[int],
        first: int,
        shares: Mapping[str, Symbols],
        secret: Secret | None,
    ) -> Integers:
        """Rows of g determine rho^-1 v_s each, for some place s and factor rho; the places s."""
        every = np.arange(shares["g"].shape[1])
        rows = first + every
        found = self.interpolated(points, users, shares["g"], self._points_of(rows), every)
        place = self._places_of(found)
        if secret:
            ones = multiply(found[:, 0], secret.mask[rows], self.p.field)
            if np.any(place != secret.place[rows]) or np.any(ones != 1):
                raise BadData("the places or factors are not those of the sender's secret")
        return place

    def _places_of(self, found: Symbols) -> Integers:
        """The place s of each row rho^-1 v_s, which two moments determine; the others must follow from them."""
        wrong = BadData("g does not hold the moments of one place in every row")
        count = self.width if self.width == self.order else 2
        try:
            entries, place, value = recover(
                found[:, :count], 1, self.order, self.gamma, self.p.field
            )
        except BadData as error:
            raise wrong from error
        rows, again, ones = np.arange(len(found)), np.zeros_like(found), np.ones_like(found)
        if np.any(entries != 1):
            raise wrong
        answer(ones, place, value, ones[:, 0], rows, self.gamma, self.p.field, again)
        if not np.array_equal(again, found):
            raise wrong
        return place

    # masked-input phase

    def select(self, gradient: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The P largest magnitudes of every bucket."""
        return bucket_top(gradient, self.p.buckets, self.p.picks)

    def mask(self, secret: Secret, sparse: Sparse) -> Masked:
        """delta = (k - s) mod n and x = w rho, pick by pick: one-time pads in Z_n and in F_q*.

        sparse.index (B P,) lists P coordinates of bucket 0, then P of bucket 1, and so on.
        """
        place, bucket = np.divmod(sparse.index, self.p.buckets)
        if (bucket != np.arange(self.rows) // self.p.picks).any():
            raise ValueError("the picks are not listed bucket by bucket")
        if not sparse.value.all():
            raise ValueError("a value of zero would show")
        delta = (place - secret.place.astype(np.int64)) % self.order
        return Masked(delta.astype(np.uint32), multiply(sparse.value, secret.mask, self.p.field))

    def unmask(self, secret: Secret, masked: Masked) -> Sparse:
        """k = (delta + s) mod n within the bucket, and w = x / rho."""
        q, bucket = self.p.field, np.arange(self.rows) // self.p.picks
        place = (masked.index.astype(np.int64) + secret.place) % self.order
        inverse = np.array([pow(rho, -1, q) for rho in secret.mask.tolist()], dtype=np.uint32)
        return Sparse(place * self.p.buckets + bucket, multiply(masked.value, inverse, q))

    # mask-elimination phase

    def answer_shape(self, survivors: int, *, fallback: bool = False) -> AnswerShape:
        """D = U - T, or max(U - T, |U1| - T - r) with r spare answers; W1 = min(2 |U1| P, n) moments a group."""
        p, blocks = self.p, self.p.blocks
        if p.spare is not None and not fallback:
            blocks = max(blocks, survivors - p.colluders - p.spare)
        width = min(2 * survivors * p.picks, self.order)
        return AnswerShape(survivors, blocks, blocks + p.colluders, -(-p.buckets // blocks), width)

    def answer_blocks(
        self, points: Points, user: int, masked: Inputs, shares: Held, shape: AnswerShape
    ) -> Iterator[AnswerBlock]:
        """Y_n[group]_j = sum over b in the group of l_b(alpha_n) sum over m and picks of x gamma^(delta j) g_j."""
        p, unit, inputs = self.p, self.p.picks * shape.blocks, list(masked.values())
        basis = self._basis(points, user, shape)
        step = max(1, _READ_CHECKS * self.check_rows // unit)
        parts = [
            (first, np.arange(first * unit, min((first + step) * unit, self.rows)))
            for first in range(0, shape.groups, step)
        ]
        reads = (partial(shares[m], rows) for _, rows in parts for m in masked)
        read = ahead(reads, int(self.rows * self.width > _CELLS))
        for first, rows in parts:
            part = slice(first * unit, first * unit + rows.size)
            scale, group = basis[rows // p.picks], rows // unit - first
            total = np.zeros((group[-1] + 1, shape.width), dtype=np.uint32)
            together = max(1, _TOGETHER // (rows.size * self.width))
            for at in range(0, len(inputs), together):
                some = inputs[at : at + together]
                g = stacked([next(read)[0] for _ in some])
                shift, value = (
                    stacked([x.index[part] for x in some]),
                    stacked([x.value[part] for x in some]),
                )
                answer(g, shift, value, scale, group, self.gamma, p.field, total)
            yield first, total

    def _basis(self, points: Points, user: int, shape: AnswerShape) -> Symbols:
        """l_b(alpha_n) for every bucket b: prod over the others e of its group of (alpha_n-beta_e)/(beta_b-beta_e)."""
        D, count = shape.blocks, self.beta_count

        def group(start: int, size: int) -> list[int]:
            nodes = tuple(points.beta[(start + i) % count] for i in range(size))
            return _group_basis(nodes, points.alpha[user - 1], self.p.field)

        full, rest = divmod(self.p.buckets, D)
        period = count // math.gcd(D, count)  # groups, after which the betas repeat
        groups = np.array(
            [group(first * D, D) for first in range(min(full, period))], dtype=np.uint32
        )
        return np.append(
            np.resize(groups, full * D), np.array(group(full * D, rest), dtype=np.uint32)
        )

    # decoding

    def decoded(self, matrix: Integers, shape: AnswerShape, first: int, y: Symbols) -> Entries:
        """Y(beta_b) are the moments of bucket b of the sum, which has at most |U1| P non-zero entries there."""
        p = self.p
        low = first * shape.blocks
        bucket = np.arange(low, min(low + y.shape[1] * shape.blocks, p.buckets))
        sums = combine(matrix, y, bucket % self.beta_count, (bucket - low) // shape.blocks, p.field)
        entries = recover(
            sums, shape.survivors * p.picks, self.order, self.gamma, p.field, self.places
        )
        last = self.places - 1  # the only place that not all buckets have
        at = np.flatnonzero(entries.place >= last)
        row = low + np.searchsorted(np.cumsum(entries.counts), at, side="right")
        if np.any(entries.place[at] > last) or np.any(row >= p.length - last * p.buckets):
            raise BadData("the aggregate has values at places that are no coordinates")
        return entries

    def joined(self, parts: Sequence[Entries]) -> Sparse:
        """All entries by place k // B; those of a place come bucket by bucket."""
        return Sparse(*arranged(parts, self.places))


@lru_cache(maxsize=256)
def _group_basis(nodes: tuple[int, ...], alpha: int, q: int) -> list[int]:
    """The Lagrange polynomials of these nodes at alpha."""
    return [int(v) for v in lagrange_matrix(nodes, [alpha], q)[0]]


def bucket_top(gradient: npt.NDArray[Any], buckets: int, picks: int) -> npt.NDArray[Any]:
    """The `picks` largest magnitudes among the coordinates k with k mod B = b, for b = 0..B-1: (B P,).

    A few buckets at a time are copied side by side, and their largest is taken out `picks` times; ties go to the lower
    coordinate.
    """
    whole, rest = divmod(gradient.size, buckets)
    table, last = gradient[: whole * buckets].reshape(whole, buckets), gradient[whole * buckets :]
    places = np.empty((buckets, picks), dtype=np.int64)
    step = max(64, _CELLS // max(1, whole))
    for first in range(0, buckets, step):
        part = slice(first, min(first + step, buckets))
        cells = np.empty((part.stop - first, whole + (rest > 0)), dtype=gradient.dtype)
        cells[:, :whole] = np.abs(table[:, part]).T
        if rest:
            cells[:, -1] = -1
            cells[: last[part].size, -1] = np.abs(last[part])
        rows = np.arange(len(cells))
        for j in range(picks):
            places[part, j] = largest = cells.argmax(axis=1)
            cells[rows, largest] = -1
    places.sort(axis=1)
    return (places * buckets + np.arange(buckets)[:, None]).reshape(-1)
