"""`permutation`: the paper's construction. One selector per coordinate, row i of the matrix P_n."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import labels
from ..algebra.field import Integers, Symbols, ceil_div, to_field
from ..algebra.lagrange import lagrange_matrix
from ..algebra.linear import combine, eliminate, encode
from ..algebra.randomness import Randomness
from ..errors import BadData
from ..gradients.select import top_k
from . import wire
from .construction import Construction, ShareRows
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


class Permutation(Construction[Sparse]):
    """Shares f and h of row i: the selector p_{n,i} = e_{sigma_n(i)}, and r_{n,sigma_n(i)} times
    it."""

    share_names = ("f", "h")
    index_name = "permuted index"
    answer_needs_inputs = True
    decoding_needs_inputs = False
    check_rows = 1  # single rows are read

    def __init__(self, p: Parameters) -> None:
        super().__init__(p)
        self.rows = p.length  # one selector per coordinate
        self.width = ceil_div(p.length, p.blocks)
        self.entries = p.top_k
        self.beta_count = p.survivors
        self.index_bound = p.length
        self.index_code = wire.EliasFano(p.top_k, p.length)  # cheaper than K integers below L

    # offline phase

    def draw_secret(self, deal: Deal, source: Randomness) -> Secret:
        """A uniform permutation pi_n of [L] and a uniform mask vector r_n."""
        mask = np.empty(self.p.length, dtype=np.uint32)
        source.child(labels.MASK).integers(self.p.field, mask)
        return Secret(place=source.child(labels.PLACE).permutation(self.p.length), mask=mask)

    def check_secret(self, secret: Secret) -> None:
        """Places must be a permutation, and masks symbols."""
        if not np.array_equal(np.sort(secret.place), np.arange(self.rows)):
            raise BadData("its places are not a permutation")
        if np.any(secret.mask >= self.p.field):
            raise BadData("a mask is not below the field's size")

    def selectors(self, secret: Secret) -> tuple[Integers, Integers, Symbols]:
        """Row i is e_{sigma_n(i)}: entry `place` of block `slot`; h scales it by
        r_{n,sigma_n(i)} (eq. partition)."""
        sigma = _inverse(secret.place)
        return sigma // self.width, sigma % self.width, secret.mask[sigma]

    def sharing(self, deal: Deal, secret: Secret) -> ShareRows:
        """What computes f_{n,i}(alpha_m) and h_{n,i}(alpha_m), for all m and some rows i.

        f_i(beta_d) = block d of selector i for d <= D and fresh noise z_i^(d) for D < d <= D+T;
        h_i is the same for the selector times mask_i, with other noise
        (eq. polynomial:1 and polynomial:2).
        """
        q = self.p.field
        points = deal.points
        matrix = lagrange_matrix(points.beta, points.alpha, q)
        slot, place, mask = self.selectors(secret)
        scale = {"f": np.ones_like(mask), "h": mask}

        def share(name: str, rows: slice, z: Symbols, out: Symbols) -> None:
            encode(
                matrix,
                z,
                slot=slot[rows],
                place=place[rows],
                scale=scale[name][rows],
                q=q,
                shares=out,
            )

        return share

    def shared_places(
        self,
        points: Points,
        users: Sequence[int],
        first: int,
        shares: Mapping[str, Symbols],
        secret: Secret | None,
    ) -> Integers:
        """Rows of f determine one selector each, and those of h the same times a mask; their
        coordinates."""
        D = self.p.blocks
        count = shares["f"].shape[1]
        beta = np.tile(np.arange(D), count)
        row_of = np.repeat(np.arange(count), D)

        def blocks_of(name: str) -> Symbols:
            flat = self.interpolated(points, users, shares=shares[name], beta=beta, row=row_of)
            return flat.reshape(count, D, self.width)

        f = blocks_of("f")
        h = blocks_of("h")
        row, slot, place = np.nonzero(f)
        if not np.array_equal(row, np.arange(count)) or np.any(f[row, slot, place] != 1):
            raise BadData("f does not hold exactly one 1 in every row")
        mask = h[row, slot, place]
        if np.count_nonzero(mask) != np.count_nonzero(h):
            raise BadData("h is not the selector times a mask")
        coordinate: Integers = slot * self.width + place
        if np.any(coordinate >= self.p.length):
            raise BadData("a selector lies beyond the gradient's end")
        if secret:
            part = slice(first, first + count)
            for shared, own in zip((slot, place, mask), self.selectors(secret), strict=True):
                if np.any(shared != own[part]):
                    raise BadData("the selectors or masks are not those of the sender's secret")
        return coordinate

    # masked-input phase

    def select(self, gradient: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The K largest magnitudes of all."""
        return top_k(gradient, self.p.top_k)

    def mask(self, secret: Secret, sparse: Sparse) -> Masked:
        """X_n = {(pi_n(k), w_k + r_k)} by permuted index: the order says nothing
        (eq. message:phase:1)."""
        if sparse.index.shape != (self.entries,) or sparse.value.shape != (self.entries,):
            raise ValueError(f"X has exactly {self.entries} entries, not {sparse.index.size}")
        index = secret.place[sparse.index]
        value = to_field(sparse.value.astype(np.int64) + secret.mask[sparse.index], self.p.field)
        order = np.argsort(index)
        return Masked(index[order], value[order])

    def check_masked(self, masked: Masked) -> None:
        """K values, and as many distinct permuted indices below L, in increasing order."""
        super().check_masked(masked)
        index = masked.index
        if np.any(index >= np.uint32(self.index_bound)) or np.any(index[1:] <= index[:-1]):
            raise BadData("its indices are not increasing and below L")

    def unmask(self, secret: Secret, masked: Masked) -> Sparse:
        """k = sigma_n(i) and w = x - r_k."""
        index = _inverse(secret.place)[masked.index]
        value = to_field(masked.value.astype(np.int64) - secret.mask[index], self.p.field)
        return Sparse(index, value)

    # mask-elimination phase

    def answer_shape(self, survivor_count: int) -> AnswerShape:
        """One polynomial."""
        return AnswerShape(survivor_count=survivor_count, groups=1, width=self.width)

    def answer_chunks(
        self, masked: MaskedInputs, shares: HeldShares, shape: AnswerShape
    ) -> Iterator[AnswerChunk]:
        """Y_n = sum over m in U1 and entries (i, x) of X_m of x f_{m,i} - h_{m,i}
        (eq. second:message).

        Only the rows that some X names are read.
        """
        total = np.zeros((1, shape.width), dtype=np.uint32)
        for m, x in masked.items():
            row = x.index.astype(np.int64)
            for start in range(0, row.size, self.chunk_rows):
                part = slice(start, start + self.chunk_rows)
                f, h = shares[m](row[part])
                eliminate(f, h, x=x.value[part], q=self.p.field, total=total[0])
        yield AnswerChunk(0, total)

    # decoding

    def decode_groups(
        self,
        matrix: Integers,
        shape: AnswerShape,
        first: int,
        y: Symbols,
        masked_sum: Symbols | None,
    ) -> Sparse:
        """Y(beta_1)..Y(beta_D), one after the other: k = d * width + place."""
        p = self.p
        one_group = np.zeros(p.blocks, dtype=np.int64)
        flat = combine(matrix, y, row=np.arange(p.blocks), group=one_group, q=p.field).reshape(-1)
        index = np.flatnonzero(flat)
        if index.size > shape.survivor_count * p.top_k:
            raise BadData("the aggregate is not sparse")
        if index.size and index[-1] >= p.length:
            raise BadData("the aggregate has values beyond the gradient's end")
        return Sparse(index.astype(np.int64), flat[index])

    def join_groups(self, parts: Sequence[Sparse]) -> Sparse:
        """There is one group."""
        return parts[0]


def _inverse(permutation: Symbols) -> Integers:
    """sigma_n from pi_n."""
    sigma = np.empty(permutation.size, dtype=np.int64)
    sigma[permutation] = np.arange(permutation.size)
    return sigma
