"""`sketch`: any size, the fewest bytes in all, and almost nothing before the gradient exists.

Coordinate k lies in bucket b = k mod B at place k // B. A user sends P picks of every bucket as
their sketch: the sum of w gamma^(place j) over the picks, for j < W, with gamma of order
n >= ceil(L / B). The mask of a sketch is uniform, so it can be shared by keys. See docs/scheme.md
for why that is secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..algebra.field import Integers, Symbols, add, ceil_div, smallest_generator, subtract
from ..algebra.lagrange import lagrange_matrix
from ..algebra.linear import combine
from ..algebra.randomness import Randomness
from ..algebra.sketches import Entries, add_sketches, arranged, recover
from ..algebra.streams import StreamSums
from ..errors import BadData
from ..gradients.select import bucket_top
from . import wire
from .construction import CHUNK_SYMBOLS, Construction, ShareRows
from .deal import Deal, drawn_key, symbol_stream
from .family import block_values
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
from .parameters import KEYS, Parameters

_CHECK_BYTES = 1 << 16  # of a share under one checksum: all rows are read
_NOTHING = np.empty(0, dtype=np.uint32)


class Sketch(Construction[Entries]):
    """Share f of a group of D buckets: a uniform polynomial of degree U-1 for each symbol of a
    sketch, whose values at the betas mask the buckets."""

    share_names = ("f",)
    index_name = ""
    needs_masked_sum = True

    def __init__(self, p: Parameters) -> None:
        super().__init__(p)
        q = p.field
        self.order = p.order  # n
        self.gamma = pow(smallest_generator(q), (q - 1) // self.order, q)
        self.width = self.sketch_width(p.users)  # W: what N survivors could need
        self.check_rows = max(1, _CHECK_BYTES // (self.width * p.symbol_bytes))
        self.rows = ceil_div(p.buckets, p.blocks)  # groups
        self.entries = p.buckets * self.width
        self.beta_count = p.blocks
        self.index_bound = 1
        self.index_code = wire.Packed(0, 1)  # there are no indices

    def sketch_width(self, survivor_count: int) -> int:
        """W1 = min(2 |U1| P, n): so many symbols determine |U1| P of n places."""
        return min(2 * survivor_count * self.p.picks, self.order)

    # offline phase

    @property
    def place_count(self) -> int:
        """There are no secret places."""
        return 0

    @property
    def mask_count(self) -> int:
        """A mask for every symbol of every bucket's sketch, up to the end of the last group."""
        return self.rows * self.p.blocks * self.width

    def draw_secret(self, deal: Deal, source: Randomness) -> Secret:
        """The masks of all buckets, and the keys from which they follow if shares are keys."""
        if self.p.dealing == KEYS:
            return self.secret_of_keys(
                deal, tuple(drawn_key(deal, source, block) for block in deal.family)
            )
        mask = np.empty(self.mask_count, dtype=np.uint32)
        source.child("mask").integers(self.p.field, mask)
        return Secret(place=_NOTHING, mask=mask)

    def secret_of_keys(self, deal: Deal, keys: tuple[bytes, ...]) -> Secret:
        """u = f(beta_1), ..., f(beta_D) of every group, f = sum over R of G(key_R) g_R."""
        matrix = block_values(self.p, deal.points, family=deal.family, at=deal.points.beta)
        streams = [
            symbol_stream(deal, key, block) for key, block in zip(keys, deal.family, strict=True)
        ]
        return Secret(place=_NOTHING, mask=self._masks(matrix, streams), keys=keys)

    def _masks(self, matrix: Integers, streams: Sequence[Randomness]) -> Symbols:
        """The masks of all groups' buckets, one after the other: matrix (D, streams) times what
        the streams give."""
        p = self.p
        sums = StreamSums(streams, matrix, p.field)
        masks = np.empty((self.rows, p.blocks, self.width), dtype=np.uint32)
        step = max(1, CHUNK_SYMBOLS // (p.blocks * self.width))
        for start in range(0, self.rows, step):
            part = masks[start : start + step]
            drawn = sums.read(len(part) * self.width)
            part[:] = drawn.reshape(p.blocks, len(part), self.width).swapaxes(0, 1)
        return masks.reshape(-1)

    def check_secret(self, secret: Secret) -> None:
        """Masks must be symbols."""
        if np.any(secret.mask >= self.p.field):
            raise BadData("a mask is not below the field's size")

    def sharing(self, deal: Deal, secret: Secret) -> ShareRows:
        """f(alpha_m) of all users, through the masks at the betas and noise at the alphas of users
        1 to T."""
        p = self.p
        q = p.field
        points = deal.points
        masks = secret.mask.reshape(self.rows, p.blocks, self.width)
        nodes = [*points.beta, *points.alpha[: p.colluders]]
        matrix = lagrange_matrix(nodes, points.alpha, q)

        def share_f(_: str, rows: slice, z: Symbols, out: Symbols) -> None:
            values = np.concatenate([masks[rows], z], axis=1)
            user, row = np.divmod(np.arange(p.users * len(z)), len(z))
            out[:] = combine(matrix, values.swapaxes(0, 1), row=user, group=row, q=q).reshape(
                out.shape
            )

        return share_f

    def shared_places(
        self,
        points: Points,
        users: Sequence[int],
        first: int,
        shares: Mapping[str, Symbols],
        secret: Secret | None,
    ) -> Integers:
        """Rows of f lie on polynomials of degree U-1, whose values at the betas are the masks.

        There are no secret places.
        """
        f = shares["f"]
        D = self.p.blocks
        row, beta = np.divmod(np.arange(f.shape[1] * D), D)
        masks = self.interpolated(points, users, shares=f, beta=beta, row=row)
        if secret:
            own = secret.mask.reshape(-1, self.width)[first * D : first * D + len(masks)]
            if not np.array_equal(masks, own):
                raise BadData("the masks are not those of the sender's secret")
        return _NOTHING

    # masked-input phase

    @property
    def coordinate_count(self) -> int:
        """P of every bucket, or all that there are."""
        return min(self.p.buckets * self.p.picks, self.p.length)

    def select(self, gradient: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The P largest magnitudes of every bucket; everything where buckets have no more."""
        p = self.p
        if p.length // p.buckets < p.picks:
            return np.arange(p.length)
        return bucket_top(gradient, p.buckets, p.picks)

    def sketch(self, sparse: Sparse) -> Symbols:
        """S(w)_(b,j) = sum of w gamma^(k j) over the picks of bucket b, w at place k: (B, W)."""
        p = self.p
        place, bucket = np.divmod(sparse.index, p.buckets)
        total = np.zeros((p.buckets, self.width), dtype=np.uint32)
        add_sketches(
            row=bucket, place=place, value=sparse.value, gamma=self.gamma, q=p.field, total=total
        )
        return total

    def mask(self, secret: Secret, sparse: Sparse) -> Masked:
        """X = S(w) + u: B W symbols, uniform for every input."""
        p = self.p
        bucket = sparse.index % p.buckets
        if np.any(np.bincount(bucket, minlength=p.buckets) > p.picks):
            raise ValueError(f"more than {p.picks} picks in a bucket")
        ordered = np.sort(sparse.index)
        if np.any(ordered[1:] == ordered[:-1]):
            raise ValueError("a coordinate is picked twice")
        u = secret.mask[: self.entries]
        return Masked(index=_NOTHING, value=add(self.sketch(sparse).reshape(-1), u, p.field))

    def unmask(self, secret: Secret, masked: Masked) -> Sparse:
        """The input behind X - u, which has at most P entries in a bucket."""
        p = self.p
        symbols = subtract(masked.value, secret.mask[: self.entries], p.field)
        sketch = symbols.reshape(p.buckets, self.width)
        narrow = sketch[:, : self.sketch_width(1)]
        sparse = self.join_groups([self.recovered(0, narrow, survivor_count=1)])
        if not np.array_equal(self.sketch(sparse), sketch):
            raise BadData(f"it is no sketch of at most {p.picks} coordinates in every bucket")
        return sparse

    # mask-elimination phase

    def answer_shape(self, survivor_count: int) -> AnswerShape:
        """W1 = min(2 |U1| P, n) symbols for each group of D = U - T buckets."""
        return AnswerShape(
            survivor_count=survivor_count,
            groups=self.rows,
            width=self.sketch_width(survivor_count),
        )

    def answer_chunks(
        self,
        masked: MaskedInputs,  # noqa: ARG002 - it does not depend on any X
        shares: HeldShares,
        shape: AnswerShape,
    ) -> Iterator[AnswerChunk]:
        """Y_n = sum over m in U1 of f_m(alpha_n), for j < W1."""
        if len(shares) != shape.survivor_count:  # with another user's term it answers another set
            raise ValueError(f"shares of {len(shares)} users for {shape.survivor_count} survivors")
        step = max(1, CHUNK_SYMBOLS // self.width)
        for first in range(0, shape.groups, step):
            rows = np.arange(first, min(first + step, shape.groups))
            total = np.zeros((rows.size, shape.width), dtype=np.uint32)
            for share in shares.values():
                total = add(total, share(rows)[0][:, : shape.width], self.p.field)
            yield AnswerChunk(first, total)

    # decoding

    def decode_groups(
        self,
        matrix: Integers,
        shape: AnswerShape,
        first: int,
        y: Symbols,
        masked_sum: Symbols | None,
    ) -> Entries:
        """The sum of all X less Y(beta_1), Y(beta_2), ... of the groups is the sketch of the sum.

        masked_sum (B, W1): the sum of the X of U1.
        """
        p = self.p
        if masked_sum is None:
            raise ValueError("a sketch is decoded with the sum of all X")
        low = first * p.blocks
        bucket = np.arange(low, min(low + y.shape[1] * p.blocks, p.buckets))
        masks = combine(
            matrix, y, row=bucket % p.blocks, group=(bucket - low) // p.blocks, q=p.field
        )
        sketch = subtract(masked_sum[bucket], masks, p.field)
        return self.recovered(low, sketch, shape.survivor_count)

    def recovered(self, first: int, sketch: Symbols, survivor_count: int) -> Entries:
        """The sums in buckets first, first+1, ... from their sketch (buckets, W1).

        BadData unless each has at most |U1| P non-zero entries, where |U1| is the number of
        survivors, and all of them at places that are coordinates.
        """
        p = self.p
        entries = recover(
            sketch,
            weight=survivor_count * p.picks,
            order=self.order,
            gamma=self.gamma,
            q=p.field,
            places=p.places,
        )
        last = p.places - 1  # the only place that not all buckets have
        full = p.length - last * p.buckets  # the buckets that have it: they are the first
        suspects = np.flatnonzero(entries.place >= last)
        bucket = first + np.searchsorted(np.cumsum(entries.counts), suspects, side="right")
        if np.any(entries.place[suspects] > last) or np.any(bucket >= full):
            raise BadData("the aggregate has values at places that are no coordinates")
        return entries

    def join_groups(self, parts: Sequence[Entries]) -> Sparse:
        """All entries by place k // B; those of a place come bucket by bucket."""
        return Sparse(*arranged(parts, self.p.places))
