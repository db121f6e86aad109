"""`sketch`: any size, the fewest bytes in all, and almost nothing before the gradient exists.

Coordinate k lies in bucket b = k mod B at place k // B. A user sends P picks of every bucket as
their sketch: the sum of w gamma^(place j) over the picks, for j < W, with gamma of order
n >= M = ceil(L / B). Where W = M the bucket's entries themselves are its sketch; so it is in the
buckets of coordinates that are sent whole. The mask of a sketch is uniform, so it can be shared by
keys. See docs/scheme.md for why that is secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import labels
from ..algebra.field import (
    Integers,
    Symbols,
    add,
    ceil_div,
    is_beyond,
    smallest_generator,
    subtract,
)
from ..algebra.lagrange import lagrange_matrix
from ..algebra.linear import combine
from ..algebra.randomness import Randomness
from ..algebra.sketches import Entries, add_sketches, arranged, recover
from ..algebra.streams import StreamSums
from ..errors import BadData
from ..gradients.select import bucket_top
from . import wire
from .construction import CHUNK_SYMBOLS, Construction, ShareRows, stacked
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


class Decoded(NamedTuple):
    """Neighbouring buckets of the sum: the entries that were found in those of the sparse part, and
    the symbols of those whose entries are their sketch, (buckets, W)."""

    found: Entries | None
    direct: Symbols


class Sketch(Construction[Decoded]):
    """Share f of a group of D buckets: a uniform polynomial of degree U-1 for each symbol of a
    sketch, whose values at the betas mask the buckets."""

    share_names = ("f",)
    index_name = ""
    answer_needs_inputs = False
    decoding_needs_inputs = True

    def __init__(self, p: Parameters) -> None:
        super().__init__(p)
        sizes = p.sizes
        self.sparse = sizes.sparse
        self.whole = sizes.whole
        self.width = sizes.width  # W: what N survivors could need
        self.buckets = sizes.count
        # whose entries are found from their sketches; those of the others are their sketches
        self.searched = 0 if sizes.is_direct else self.sparse.buckets
        self.check_rows = max(1, _CHECK_BYTES // (self.width * p.symbol_bytes))
        self.rows = ceil_div(self.buckets, p.blocks)  # groups
        self.entries = self.buckets * self.width
        self.beta_count = p.blocks
        self.index_bound = 1
        self.index_code = wire.Packed(0, 1)  # there are no indices

    @cached_property
    def order(self) -> int:
        """n."""
        return self.p.order

    @cached_property
    def gamma(self) -> int:
        """g^((q-1)/n), of order n."""
        q = self.p.field
        return pow(smallest_generator(q), (q - 1) // self.order, q)

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
        source.child(labels.MASK).integers(self.p.field, mask)
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
        """P of every sparse bucket, or all that there are, and what is sent whole."""
        return min(self.sparse.buckets * self.p.picks, self.sparse.length) + self.whole.length

    def select(self, gradient: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The P largest magnitudes of every sparse bucket, or everything where buckets have no
        more; then all that is sent whole."""
        p = self.p
        picked_from = self.sparse.length
        if picked_from < self.sparse.buckets * p.picks or not self.sparse.buckets:
            return np.arange(p.length)
        picks = bucket_top(gradient[:picked_from], self.sparse.buckets, p.picks)
        return np.concatenate([picks, np.arange(picked_from, p.length)])

    def sketch(self, sparse: Sparse) -> Symbols:
        """S(w)_(b,j) = sum of w gamma^(k j) over the picks of bucket b, w at place k; or w itself
        at place j: (B, W)."""
        picks, whole = self._parts(sparse)
        table = np.empty((self.buckets, self.width), dtype=np.uint32)
        table[: self.whole.first] = self._sketch_of_picks(picks)
        table[self.whole.first :] = self.whole.table(whole, self.width)
        return table

    def _sketch_of_picks(self, picks: Sparse) -> Symbols:
        """The sketches of the sparse buckets."""
        place, bucket = np.divmod(picks.index, max(1, self.sparse.buckets))
        total = np.zeros((self.sparse.buckets, self.width), dtype=np.uint32)
        if self.searched:
            add_sketches(
                row=bucket,
                place=place,
                value=picks.value,
                gamma=self.gamma,
                q=self.p.field,
                total=total,
            )
        else:
            total[bucket, place] = picks.value
        return total

    def _parts(self, sparse: Sparse) -> tuple[Sparse, Symbols]:
        """The picks, at most P of each bucket and none twice, and the values that are sent
        whole."""
        end = sparse.index.size - self.whole.length
        if end < 0 or not np.array_equal(
            sparse.index[end:], np.arange(self.whole.start, self.p.length)
        ):
            raise ValueError("not all coordinates that are sent whole are there")
        picks = Sparse(sparse.index[:end], sparse.value[:end])
        self._check_picks(picks.index)
        return picks, sparse.value[end:]

    def _check_picks(self, index: Integers) -> None:
        """At most P of each bucket, and none twice."""
        if not index.size:
            return
        bucket = index % max(1, self.sparse.buckets)
        if index.max() >= self.sparse.length or np.bincount(bucket).max() > self.p.picks:
            raise ValueError(f"more than {self.p.picks} picks in a bucket")
        ordered = np.sort(index)
        if np.any(ordered[1:] == ordered[:-1]):
            raise ValueError("a coordinate is picked twice")

    def mask(self, secret: Secret, sparse: Sparse) -> Masked:
        """X = S(w) + u: B W symbols, uniform for every input."""
        u = secret.mask[: self.entries]
        return Masked(index=_NOTHING, value=add(self.sketch(sparse).reshape(-1), u, self.p.field))

    def unmask(self, secret: Secret, masked: Masked) -> Sparse:
        """The input behind X - u, which has at most P entries in a sparse bucket."""
        symbols = subtract(masked.value, secret.mask[: self.entries], self.p.field)
        sketch = symbols.reshape(self.buckets, self.width)
        sparse = self.join_groups([self.recovered(0, sketch, survivor_count=1)])
        try:
            again = self.sketch(sparse)
        except ValueError as error:
            raise BadData(str(error)) from error
        if not np.array_equal(again, sketch):
            raise BadData(f"it is no sketch of at most {self.p.picks} coordinates in every bucket")
        return sparse

    # mask-elimination phase

    def _searched_width(self, survivor_count: int) -> int:
        """2 |U1| P symbols determine |U1| P entries of a bucket."""
        return 2 * survivor_count * self.p.picks

    def answer_shape(self, survivor_count: int) -> AnswerShape:
        """W1 symbols for each group of D = U - T buckets: 2 |U1| P where buckets are searched, and
        at least as many as a bucket has of what is sent whole; else all W."""
        needed = max(self._searched_width(survivor_count), self.whole.places)
        return AnswerShape(
            survivor_count=survivor_count,
            groups=self.rows,
            width=needed if self.searched else self.width,
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
    ) -> Decoded:
        """The sum of all X less Y(beta_1), Y(beta_2), ... of the groups is the sketch of the sum.

        masked_sum (B, W1): the sum of the X of U1.
        """
        p = self.p
        if masked_sum is None:
            raise ValueError("a sketch is decoded with the sum of all X")
        low = first * p.blocks
        bucket = np.arange(low, min(low + y.shape[1] * p.blocks, self.buckets))
        masks = combine(
            matrix, y, row=bucket % p.blocks, group=(bucket - low) // p.blocks, q=p.field
        )
        sketch = subtract(masked_sum[low : low + bucket.size], masks, p.field)
        return self.recovered(low, sketch, shape.survivor_count)

    def recovered(self, first: int, sketch: Symbols, survivor_count: int) -> Decoded:
        """The sums in buckets first, first+1, ... from their sketch (buckets, W1).

        BadData unless each of those that are searched has at most |U1| P non-zero entries, where
        |U1| is the number of survivors, and all of them at places that are coordinates; and unless
        the symbols of the others are sums of |U1| values.
        """
        end = max(0, self.searched - first)
        direct = sketch[end:]
        if is_beyond(direct, survivor_count * self.p.largest, self.p.field):
            raise BadData("a sum is larger than so many values can be")
        found = self._found(first, sketch[:end], survivor_count) if end else None
        return Decoded(found, direct)

    def _found(self, first: int, sketch: Symbols, survivor_count: int) -> Entries:
        """The entries of the buckets first, first+1, ... that are searched."""
        p = self.p
        sparse = self.sparse
        entries = recover(
            sketch[:, : self._searched_width(survivor_count)],
            weight=survivor_count * p.picks,
            order=self.order,
            gamma=self.gamma,
            q=p.field,
            places=sparse.places,
        )
        last = sparse.places - 1  # the only place that not all buckets have
        full = sparse.length - last * sparse.buckets  # the buckets that have it, the first ones
        suspects = np.flatnonzero(entries.place >= last)
        bucket = first + np.searchsorted(np.cumsum(entries.counts), suspects, side="right")
        if np.any(entries.place[suspects] > last) or np.any(bucket >= full):
            raise BadData("the aggregate has values at places that are no coordinates")
        return entries

    def join_groups(self, parts: Sequence[Decoded]) -> Sparse:
        """All non-zero entries of the sparse part by place k // B, those of a place bucket by
        bucket; then all that was sent whole."""
        direct = stacked([part.direct for part in parts])
        split = self.sparse.buckets - self.searched
        values = self.whole.vector(direct[split:])
        if not self.sparse.buckets:
            return Sparse(np.arange(self.p.length), values)
        picks = self._picks(parts, direct[:split])
        if not self.whole.length:
            return picks
        return Sparse(
            np.concatenate([picks.index, np.arange(self.whole.start, self.p.length)]),
            np.concatenate([picks.value, values]),
        )

    def _picks(self, parts: Sequence[Decoded], direct: Symbols) -> Sparse:
        """The non-zero entries of the sparse part: those that were found, or that are there."""
        if self.searched:
            found = [part.found for part in parts if part.found]
            return Sparse(*arranged(found, self.sparse.places))
        flat = self.sparse.vector(direct)
        index = np.flatnonzero(flat)
        return Sparse(index, flat[index])
