"""`permutation`: the paper's construction. One selector per coordinate, row i of the matrix P_n."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..algebra.field import Integers, Symbols, to_field
from ..algebra.lagrange import lagrange_matrix
from ..algebra.linear import combine, eliminate, encode
from ..algebra.randomness import Randomness
from ..errors import BadData
from . import wire
from .constructions import Construction
from .messages import AnswerBlock, AnswerShape, Held, Inputs, Masked, Points, Secret, Sparse
from .parameters import Parameters, require

_PART = 1 << 18  # coordinates of a gradient that are looked at together
_SAMPLE, _MARGIN = 1 << 14, 64


class Permutation(Construction[Sparse]):
    """Shares f and h of row i: the selector p_{n,i} = e_{sigma_n(i)}, and r_{n,sigma_n(i)} times it."""

    share_names = ("f", "h")
    index_name = "permuted index"
    never_zero = False
    distinct = True
    check_rows = 1  # single rows are read

    def __init__(self, p: Parameters) -> None:
        super().__init__(p)
        require(
            p.picks == 0 and p.buckets == 0 and p.spare is None,
            "picks and spare answers belong to the construction moments, not to permutation",
            "leave them out, or choose the construction moments",
        )
        self.letters = {"D": p.blocks}
        self.rows = self.index_bound = p.length  # one selector per coordinate
        self.width = -(-p.length // p.blocks)
        self.entries, self.beta_count = p.top_k, p.survivors
        self.index_code = wire.EliasFano(p.top_k, p.length)  # cheaper than K integers below L
        self.share_quorum = p.blocks + p.colluders  # f and h have degree D + T - 1

    # offline phase

    def draw(self, source: Randomness) -> Secret:
        """A uniform permutation pi_n of [L] and a uniform mask vector r_n."""
        return Secret(
            place=source.child("place").permutation(self.p.length),
            mask=source.child("mask").integers(
                self.p.field, np.empty(self.p.length, dtype=np.uint32)
            ),
        )

    def check_secret(self, secret: Secret) -> str:
        """Places must be a permutation, and masks symbols."""
        if not np.array_equal(np.sort(secret.place), np.arange(self.rows)):
            return "its places are not a permutation"
        return "a mask is not below the field's size" if np.any(secret.mask >= self.p.field) else ""

    def selectors(self, secret: Secret) -> tuple[Integers, Integers, Symbols]:
        """Row i is e_{sigma_n(i)}: entry `place` of block `slot`; h scales it by r_{n,sigma_n(i)} (eq. partition)."""
        sigma = _inverse(secret.place)
        return sigma // self.width, sigma % self.width, secret.mask[sigma]

    def sharing(
        self, points: Points, secret: Secret
    ) -> Callable[[str, slice, Symbols, Symbols], None]:
        """f_{n,i}(alpha_m) and h_{n,i}(alpha_m) for all m.

        f_i(beta_d) = block d of selector i for d <= D and fresh noise z_i^(d) for D < d <= D+T; h_i is the
        same for mask_i times the selector with noise of its own (eq. polynomial:1 and polynomial:2).
        """
        q, matrix = (
            self.p.field,
            lagrange_matrix(points.beta[: self.share_quorum], points.alpha, self.p.field),
        )
        slot, place, mask = self.selectors(secret)
        scale = {"f": np.ones_like(mask), "h": mask}

        def share(name: str, rows: slice, z: Symbols, out: Symbols) -> None:
            encode(matrix, z, slot[rows], place[rows], scale[name][rows], q, out)

        return share

    def check_shares(
        self,
        points: Points,
        users: Sequence[int],
        first: int,
        shares: Mapping[str, Symbols],
        secret: Secret | None,
    ) -> Integers:
        """Rows of f determine one selector each, and those of h the same times a mask; their coordinates."""
        D, count = self.p.blocks, shares["f"].shape[1]
        beta, every = np.tile(np.arange(D), count), np.repeat(np.arange(count), D)
        flat = (
            self.interpolated(points, users, shares[name], beta, every) for name in self.share_names
        )
        f, h = (blocks.reshape(count, D, self.width) for blocks in flat)
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
            found = (slot, place, mask)
            if any(
                np.any(a != b[part]) for a, b in zip(found, self.selectors(secret), strict=True)
            ):
                raise BadData("the selectors or masks are not those of the sender's secret")
        return coordinate

    # masked-input phase

    def select(self, gradient: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The K largest magnitudes of all."""
        return top_k(gradient, self.p.top_k)

    def mask(self, secret: Secret, sparse: Sparse) -> Masked:
        """X_n = {(pi_n(k), w_k + r_k)} by permuted index: the order says nothing (eq. message:phase:1)."""
        index = secret.place[sparse.index]
        value = to_field(sparse.value.astype(np.int64) + secret.mask[sparse.index], self.p.field)
        order = np.argsort(index)
        return Masked(index[order], value[order])

    def unmask(self, secret: Secret, masked: Masked) -> Sparse:
        """k = sigma_n(i) and w = x - r_k."""
        index = _inverse(secret.place)[masked.index]
        return Sparse(
            index, to_field(masked.value.astype(np.int64) - secret.mask[index], self.p.field)
        )

    # mask-elimination phase

    def answer_shape(self, survivors: int, *, fallback: bool = False) -> AnswerShape:
        """One polynomial; D was fixed offline."""
        return AnswerShape(survivors, self.p.blocks, self.share_quorum, 1, self.width)

    def answer_blocks(
        self, points: Points, user: int, masked: Inputs, shares: Held, shape: AnswerShape
    ) -> Iterator[AnswerBlock]:
        """Y_n = sum over m in U1 and entries (i, x) of X_m of x f_{m,i} - h_{m,i} (eq. second:message).

        Only the rows that some X names are read.
        """
        total = np.zeros((1, shape.width), dtype=np.uint32)
        for m, x in masked.items():
            row = x.index.astype(np.int64)
            for start in range(0, row.size, self.block_rows):
                part = slice(start, start + self.block_rows)
                f, h = shares[m](row[part])
                eliminate(f, h, x.value[part], self.p.field, total[0])
        yield 0, total

    # decoding

    def decoded(self, matrix: Integers, shape: AnswerShape, first: int, y: Symbols) -> Sparse:
        """Y(beta_1)..Y(beta_D), one after the other: k = d * width + place."""
        p = self.p
        flat = combine(
            matrix, y, np.arange(p.blocks), np.zeros(p.blocks, dtype=np.int64), p.field
        ).reshape(-1)
        index = np.flatnonzero(flat)
        if index.size > shape.survivors * p.top_k:
            raise BadData("the aggregate is not sparse")
        if index.size and index[-1] >= p.length:
            raise BadData("the aggregate has values beyond the gradient's end")
        return Sparse(index.astype(np.int64), flat[index])

    def joined(self, parts: Sequence[Sparse]) -> Sparse:
        """There is one group."""
        return parts[0]


def _inverse(permutation: Symbols) -> Integers:
    """sigma_n from pi_n."""
    sigma = np.empty(permutation.size, dtype=np.int64)
    sigma[permutation] = np.arange(permutation.size)
    return sigma


def top_k(gradient: npt.NDArray[Any], k: int) -> npt.NDArray[Any]:
    """The k coordinates of largest magnitude, increasing; ties go to the lower one (eq. TopK:expression).

    A sample suggests a magnitude that somewhat more than k reach. Only those that do are compared with each other;
    if they are fewer than k, all of the gradient is.
    """
    sample = np.sort(np.abs(gradient[:: max(1, gradient.size // _SAMPLE)]))[::-1]
    wanted = 2 * k * sample.size // gradient.size + _MARGIN
    candidates = (
        _reaching(gradient, sample[wanted]) if wanted < sample.size else np.arange(gradient.size)
    )
    if candidates.size < k:
        candidates = np.arange(gradient.size)
    magnitude = np.abs(gradient[candidates])
    threshold = np.partition(magnitude, magnitude.size - k)[magnitude.size - k]
    above = candidates[magnitude > threshold]
    level = candidates[magnitude == threshold][: k - above.size]
    return np.sort(np.concatenate([above, level]))


def kept_energy(gradient: npt.NDArray[Any], index: Integers) -> float:
    """The energy of the selected values, divided by the energy of as many largest values."""
    values = gradient[index].astype(np.float64)
    best = gradient[top_k(gradient, index.size)].astype(np.float64)
    largest = np.abs(best).max()
    if not largest:
        return 1.0
    return float(np.square(values / largest).sum() / np.square(best / largest).sum())


def _reaching(gradient: npt.NDArray[Any], least: Any) -> npt.NDArray[Any]:
    """The coordinates with at least this magnitude, found a part of the gradient at a time."""
    starts = range(0, gradient.size, _PART)
    return np.concatenate(
        [np.flatnonzero(np.abs(gradient[at : at + _PART]) >= least) + at for at in starts]
    )
