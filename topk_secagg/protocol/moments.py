"""`moments`: the same guarantee as the paper's construction, with an offline cost that does not
grow with L.

Coordinate k lies in bucket b = k mod B at place k // B. A user sends P picks of every bucket, and
shares of each pick only the moments v_s = (gamma^(s j)) of a secret place s, divided by a secret
factor rho. See docs/scheme.md for why that suffices and why it is secret.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial

import numpy as np

from ..algebra.field import Integers, Symbols, ceil_div, multiply
from ..algebra.lagrange import lagrange_matrix
from ..algebra.linear import combine
from ..algebra.moments import Entries, answer, recover, share
from ..algebra.parallel import ahead
from ..algebra.randomness import Randomness
from ..errors import BadData
from . import wire
from .buckets import Buckets
from .construction import ShareRows, stacked
from .deal import Deal
from .messages import (
    AnswerChunk,
    AnswerShape,
    HeldShares,
    Masked,
    MaskedInputs,
    Points,
    Secret,
    Sparse,
)
from .parameters import Parameters

_READ_CHECKS = 16  # checksums' worth of rows that are read at a time
_TOGETHER_SYMBOLS = 1 << 17  # of several users' shares that are worth a copy, to save calls
_READ_AHEAD_SYMBOLS = 1 << 17  # of a share, from which reading ahead pays


class Moments(Buckets):
    """Share g of pick i of bucket b: a Shamir sharing of rho^-1 v_s at beta_b, with T noise
    vectors."""

    share_names = ("g",)
    index_name = "shift"

    def __init__(self, p: Parameters) -> None:
        super().__init__(p)
        self.rows = p.buckets * p.picks
        self.entries = self.rows
        self.beta_count = p.users - p.colluders  # the most buckets that an answer packs
        self.share_quorum = p.colluders + 1  # a sharing has degree T
        self.index_bound = self.order
        self.index_code = wire.Packed(self.entries, self.order)

    # offline phase

    @property
    def seed_count(self) -> int:
        """T values of a polynomial of degree T are free: its value at beta_b is given."""
        return self.p.colluders

    def draw_secret(self, deal: Deal, source: Randomness) -> Secret:  # noqa: ARG002
        """For every pick: s uniform in [0, n) and rho uniform in F_q*."""
        mask = np.empty(self.rows, dtype=np.uint32)
        source.child("mask").integers(self.p.field - 1, mask)
        mask += np.uint32(1)
        place = np.empty(self.rows, dtype=np.uint32)
        source.child("place").integers(self.order, place)
        return Secret(place, mask)

    def check_secret(self, secret: Secret) -> None:
        """Places below n, and factors that are symbols and not zero."""
        if np.any(secret.place >= self.order):
            raise BadData(f"a place is not below {self.order}")
        if np.any(secret.mask >= self.p.field) or not np.all(secret.mask):
            raise BadData("a factor is zero or not below the field's size")

    def _beta_of(self, rows: Integers) -> Integers:
        """Which beta the bucket of each pick has: b mod (N - T)."""
        beta: Integers = rows // self.p.picks % self.beta_count
        return beta

    def sharing(self, deal: Deal, secret: Secret) -> ShareRows:
        """g_j(alpha_m) = rho^-1 gamma^(s j) + (alpha_m - beta_b) sum_t z_(t,j) alpha_m^t for all
        m; by seeds, the polynomial through the secret at beta_b and the seeds' symbols."""
        q = self.p.field
        alphas = [deal.points.alpha[m - 1] for m in self.written(deal.dealer)]
        seeded = [deal.points.alpha[m - 1] for m in self.seeded(deal.dealer)]
        if seeded:
            matrix = np.array(
                [lagrange_matrix([b, *seeded], alphas, q) for b in deal.points.beta],
                dtype=np.uint64,
            )
        else:
            powers = range(self.p.colluders)
            matrix = np.array(
                [
                    [[1, *((a - b) * pow(a, t, q) % q for t in powers)] for a in alphas]
                    for b in deal.points.beta
                ],
                dtype=np.uint64,
            )

        def share_g(_: str, rows: slice, z: Symbols, out: Symbols) -> None:
            beta = self._beta_of(np.arange(rows.start, rows.stop))
            share(
                place=secret.place[rows],
                factor=secret.mask[rows],
                point=beta,
                matrix=matrix,
                noise=z,
                gamma=self.gamma,
                q=q,
                shares=out,
            )

        return share_g

    def shared_places(
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
        moments = self.interpolated(
            points, users, shares=shares["g"], beta=self._beta_of(rows), row=every
        )
        place = self._places_of(moments)
        if secret:
            ones = multiply(moments[:, 0], secret.mask[rows], self.p.field)
            if np.any(place != secret.place[rows]) or np.any(ones != 1):
                raise BadData("the places or factors are not those of the sender's secret")
        return place

    def _places_of(self, moments: Symbols) -> Integers:
        """The place s of each row rho^-1 v_s, which two moments determine; the others must follow
        from them."""
        wrong = BadData("g does not hold the moments of one place in every row")
        count = self.width if self.width == self.order else 2
        try:
            entries, place, value = recover(
                moments[:, :count], 1, order=self.order, gamma=self.gamma, q=self.p.field
            )
        except BadData as error:
            raise wrong from error
        if np.any(entries != 1):
            raise wrong
        expected = np.zeros_like(moments)
        ones = np.ones_like(moments)
        every = np.arange(len(moments))
        answer(
            ones,
            place,
            value=value,
            scale=ones[:, 0],
            group=every,
            gamma=self.gamma,
            q=self.p.field,
            total=expected,
        )
        if not np.array_equal(expected, moments):
            raise wrong
        return place

    # masked-input phase

    def mask(self, secret: Secret, sparse: Sparse) -> Masked:
        """delta = (k - s) mod n and x = w rho, pick by pick: one-time pads in Z_n and in F_q*.

        sparse.index (B P,) lists P coordinates of bucket 0, then P of bucket 1, and so on.
        """
        self._check_input(sparse)
        place, bucket = np.divmod(sparse.index, self.p.buckets)
        if (bucket != np.arange(self.rows) // self.p.picks).any():
            raise ValueError("the picks are not listed bucket by bucket")
        if not sparse.value.all():
            raise ValueError("a value of zero would show")
        delta = (place - secret.place.astype(np.int64)) % self.order
        return Masked(delta.astype(np.uint32), multiply(sparse.value, secret.mask, self.p.field))

    def unmask(self, secret: Secret, masked: Masked) -> Sparse:
        """k = (delta + s) mod n within the bucket, and w = x / rho."""
        q = self.p.field
        bucket = np.arange(self.rows) // self.p.picks
        place = (masked.index.astype(np.int64) + secret.place) % self.order
        inverse = np.array([pow(rho, -1, q) for rho in secret.mask.tolist()], dtype=np.uint32)
        return Sparse(place * self.p.buckets + bucket, multiply(masked.value, inverse, q))

    # mask-elimination phase

    def answer_shape(self, survivor_count: int, *, fallback: bool = False) -> AnswerShape:
        """D = U - T, or max(U - T, |U1| - T - r) with r spare answers; W1 = min(2 |U1| P, n)
        moments a group."""
        p = self.p
        blocks = p.blocks
        if p.spare is not None and not fallback:
            blocks = max(blocks, survivor_count - p.colluders - p.spare)
        return AnswerShape(
            survivor_count=survivor_count,
            blocks=blocks,
            quorum=blocks + p.colluders,
            groups=ceil_div(p.buckets, blocks),
            width=self.moment_count(survivor_count),
        )

    def answer_chunks(
        self,
        points: Points,
        user: int,
        masked: MaskedInputs,
        shares: HeldShares,
        shape: AnswerShape,
    ) -> Iterator[AnswerChunk]:
        """Y_n[group]_j = sum over b in the group of l_b(alpha_n) sum over m and picks of
        x gamma^(delta j) g_j."""
        p = self.p
        inputs = list(masked.values())
        basis = self._basis(points, user, shape)
        group_rows = p.picks * shape.blocks
        step = max(1, _READ_CHECKS * self.check_rows // group_rows)  # groups at a time
        parts = [
            (first, np.arange(first * group_rows, min((first + step) * group_rows, self.rows)))
            for first in range(0, shape.groups, step)
        ]
        reads = (partial(shares[m], rows) for _, rows in parts for m in masked)
        read = ahead(reads, int(self.rows * self.width > _READ_AHEAD_SYMBOLS))
        for first, rows in parts:
            part = slice(first * group_rows, first * group_rows + rows.size)
            scale = basis[rows // p.picks]
            group = rows // group_rows - first
            total = np.zeros((group[-1] + 1, shape.width), dtype=np.uint32)
            together = max(1, _TOGETHER_SYMBOLS // (rows.size * self.width))
            for at in range(0, len(inputs), together):
                some = inputs[at : at + together]
                g = stacked([next(read)[0] for _ in some])
                shift = stacked([x.index[part] for x in some])
                value = stacked([x.value[part] for x in some])
                answer(
                    g,
                    shift,
                    value=value,
                    scale=scale,
                    group=group,
                    gamma=self.gamma,
                    q=p.field,
                    total=total,
                )
            yield AnswerChunk(first, total)

    def _basis(self, points: Points, user: int, shape: AnswerShape) -> Symbols:
        """l_b(alpha_n) for every bucket b: prod over the others e of its group of
        (alpha_n - beta_e) / (beta_b - beta_e)."""
        D = shape.blocks
        count = self.beta_count

        def group(start: int, size: int) -> list[int]:
            nodes = tuple(points.beta[(start + i) % count] for i in range(size))
            return _group_basis(nodes, points.alpha[user - 1], self.p.field)

        full, rest = divmod(self.p.buckets, D)
        period = count // math.gcd(D, count)  # groups, after which the betas repeat
        first_groups = [group(first * D, D) for first in range(min(full, period))]
        of_full_groups = np.resize(np.array(first_groups, dtype=np.uint32), full * D)
        return np.append(of_full_groups, np.array(group(full * D, rest), dtype=np.uint32))

    # decoding

    def decode_groups(
        self,
        matrix: Integers,
        shape: AnswerShape,
        first: int,
        y: Symbols,
        masked_sum: Symbols | None,  # noqa: ARG002 - answers are enough
    ) -> Entries:
        """Y(beta_b) are the moments of bucket b of the sum."""
        p = self.p
        low = first * shape.blocks
        bucket = np.arange(low, min(low + y.shape[1] * shape.blocks, p.buckets))
        sums = combine(
            matrix, y, row=bucket % self.beta_count, group=(bucket - low) // shape.blocks, q=p.field
        )
        return self.recovered(low, sums, shape.survivor_count)


@lru_cache(maxsize=256)
def _group_basis(nodes: tuple[int, ...], alpha: int, q: int) -> list[int]:
    """The Lagrange polynomials of these nodes at alpha."""
    return [int(v) for v in lagrange_matrix(nodes, [alpha], q)[0]]
