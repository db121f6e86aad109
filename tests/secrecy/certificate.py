"""All inputs at once: every part is A_0(X) + (0, Lambda TopK(W)). The head of `affine` has the
argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
from fq import AffineSpace, Array, Basis, times
from lab import Broadcast, Input, Lab, PartView, Place, Support, Values, with_offset

Coalition = tuple[int, ...]


class NotCertified(AssertionError):
    """Some part is not A_0(X) + (0, Lambda TopK(W)), or X depends on W."""


class Reference:
    """What one coalition sees of a part, with A_0 and Lambda from the parts that came first.

    Images are in the coordinates of everybody's shares, then the answers of everybody to every
    question.
    """

    def __init__(self, lab: Lab, coalition: Coalition) -> None:
        self.lab = lab
        self.coalition = coalition
        self.view = PartView(coalition, lab.every_question)
        shares = len(lab.users) * lab.share
        answers = len(lab.users) * sum(lab.answer(size) for size, *_ in lab.every_question)
        held = [np.arange((c - 1) * lab.share, c * lab.share) for c in coalition]
        self.rows = np.concatenate([*held, np.arange(shares, shares + answers)])
        self._shares = len(self.rows) - answers
        self._spaces: dict[Broadcast, AffineSpace] = {}  # A_0
        self._columns: dict[int, Array] = {}  # of Lambda

    def check(self, heard: Broadcast, inputs: list[Input], images: Array, noise: Basis) -> None:
        """Compare the parts that inputs lead to, nothing and the units of one support, with each
        other and with those before. images: an offset for each input, and directions besides those
        of the noise."""
        q = self.lab.q
        count = len(inputs)
        seen = images[:, self.rows]
        basis, reduced = self.lab.canonical(noise, seen[count:], seen[:count])
        for given, row in zip(inputs, reduced, strict=True):
            for i in range(self.lab.c.entries):
                if given.support[i] not in self._columns:
                    more = (*given.values[:i], given.values[i] + 1, *given.values[i + 1 :])
                    shift = (reduced[inputs.index(Input(given.support, more))] - row) % q
                    if np.any(shift[: self._shares]):
                        raise NotCertified(f"{self.coalition} has shares that the input moves")
                    self._columns[given.support[i]] = shift
        summed = np.zeros_like(reduced)
        for i in range(self.lab.c.entries):
            values = np.array([given.values[i] for given in inputs])
            summed += values[:, None] * np.stack(
                [self._columns[given.support[i]] for given in inputs]
            )
        rest = basis.reduced((reduced - summed) % q)
        if np.any(rest != rest[0]):
            raise NotCertified(f"{self.coalition} sees more than the sum")
        space = AffineSpace.of(basis, rest[0])
        if self._spaces.setdefault(heard, space) != space:
            raise NotCertified(f"{self.coalition} can tell places apart")


def certify(
    lab: Lab,
    coalitions: Sequence[Coalition],
    xs: Sequence[Values] | None = None,
    supports: Sequence[Support] | None = None,
) -> int:
    """Check the claim, and return how many affine spaces were compared.

    It goes through all supports (or those given) and all places; all values of the input, since
    everything is affine in them; all x, by the shear, or those given; the coalitions; and the
    answers of all N users, among which are those of every U2.
    """
    q = lab.q
    before = lab.spaces
    entries = lab.c.entries
    everybody = PartView(lab.users, lab.every_question)
    references = [Reference(lab, coalition) for coalition in coalitions]
    shear = Shear(lab)
    values = np.eye(1 + entries, entries, k=-1, dtype=np.int64)  # nothing, and the units
    counts: set[frozenset[tuple[tuple[int, ...], int]]] = set()
    for support in lab.supports if supports is None else supports:
        inputs = [Input(support, tuple(row)) for row in values.tolist()]
        count: Counter[tuple[int, ...]] = Counter()
        for place in lab.places:
            index, (offset, matrix) = lab.masking(place, support)
            by_values, by_masks = matrix[:, :entries], matrix[:, entries:]
            count[index] += 1
            solver = lab.algebra.solver(by_masks)
            if len(solver.check):
                raise NotCertified(f"x is not uniform: {support} at {place}")
            if xs is None and not shear.holds(place, index, solver.particular):
                raise NotCertified(f"not the same for every x: {support} at {place}")
            columns, noise = lab.shares(place)
            for x in [(0,) * entries] if xs is None else xs:
                heard = Broadcast(index, x)
                wanted = (np.array(x) - offset - times(values, by_values.T, q)) % q
                starts = times(solver.particular, wanted.T, q)
                directions = with_offset(starts, solver.free)
                images = times(lab.part_map(everybody, columns, heard), directions, q).T
                for reference in references:
                    basis = lab.noise_basis(reference.view, noise, heard)
                    reference.check(heard, inputs, images, basis)
        counts.add(frozenset(count.items()))
    if len(counts) != 1:
        raise NotCertified("the indices of X depend on the support")
    return lab.spaces - before


class Shear:
    """Whether the parts for every x are those for x = 0 but for a shear (see the head of
    `affine`)."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.shape = (lab.p.users, *lab.share_shape)
        self._of_noise = cache(self._of_noise)
        self._of_terms = cache(self._of_terms)

    def holds(self, place: Place, rows: tuple[int, ...], masks: Array) -> bool:
        """At this place, entry i of X names row rows[i]; masks: what of r moves each x."""
        columns, noise = self.lab.shares(place)
        offset, by_drawn = columns[..., 0].reshape(self.shape), columns[..., 1:]
        # a unit more of r adds row i of f without noise to row i of h
        moved = times(by_drawn, masks, self.lab.q).reshape(*self.shape, len(rows))
        expected = np.zeros_like(moved)
        for i, row in enumerate(rows):
            expected[:, 1, row, :, i] = offset[:, 0, row]
        return (
            len(set(rows)) == len(rows)
            and np.array_equal(moved, expected)
            and not np.any(by_drawn.reshape(*self.shape, -1)[:, 0])
            and self._of_noise(noise)
            and self._of_terms(rows)
        )

    def _of_noise(self, noise: bytes) -> bool:
        """Every unknown of the noise moves one row of f, or it moves one row of h as its partner
        does f."""
        table = self.lab.noise_columns(noise).reshape(*self.shape, -1)
        moved = [
            (table[:, 0, ..., v].tobytes(), table[:, 1, ..., v].tobytes())
            for v in range(table.shape[-1])
        ]
        zero = bytes(table[:, 0, ..., 0].nbytes)
        of_f, of_h = (
            sorted(f for f, h in moved if h == zero),
            sorted(h for f, h in moved if f == zero),
        )
        one_row = np.count_nonzero(np.any(table, axis=(0, 1, 3)), axis=0) <= 1
        return len(of_f) + len(of_h) == len(moved) and of_f == of_h and bool(np.all(one_row))

    def _of_terms(self, rows: tuple[int, ...]) -> bool:
        """What x_i adds is what row i of h takes away, and it is row i of f that it multiplies."""
        for survivors, *_ in self.lab.every_question:
            table = self.lab.terms(rows, survivors)
            terms = table.reshape(*table.shape[:2], *self.shape[1:])
            expected = np.zeros_like(terms[1:])
            for i, row in enumerate(rows):
                expected[i, :, 0, row] = -terms[0, :, 1, row] % self.lab.q
            if not np.array_equal(terms[1:], expected):
                return False
        return True
