"""All inputs at once: every part is A_0(X) + (0, Lambda TopK(W)). The head of `affine` says why that is enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from fq import AffineSpace, Array, Basis, times
from lab import Broadcast, Input, Lab, PartView, Place, Support, Values, with_offset

Coalition = tuple[int, ...]
Unit = tuple[int, ...]  # picks that are gone through together


class NotCertified(AssertionError):
    """Some part is not A_0(X) + (0, Lambda TopK(W)), or X depends on W."""


class Reference:
    """What one coalition sees of a part, with A_0 and Lambda from the parts that came first.

    Images are in the coordinates of everybody's shares, then the answers of everybody to every question.
    """

    def __init__(self, lab: Lab, coalition: Coalition) -> None:
        self.lab, self.coalition = lab, coalition
        self.view = PartView(coalition, lab.every_question)
        shares = len(lab.users) * lab.share
        answers = sum(
            lab.answer(q.survivors, fallback=q.fallback) * len(q.answering) for q in lab.every_question
        )
        held = [np.arange((c - 1) * lab.share, c * lab.share) for c in coalition]
        self.rows = np.concatenate([*held, np.arange(shares, shares + answers)])
        self._shares = len(self.rows) - answers
        self._spaces: dict[Broadcast, AffineSpace] = {}
        self._columns: dict[int, Array] = {}  # of Lambda

    def check_masks(self, heard: Broadcast, noise: bytes, support: Support, images: Array) -> None:
        """Compare a part with those before. images: the offset, what a unit of each value of the input adds
        to it, and further directions."""
        seen, entries = images[:, self.rows], len(support)
        basis, (offset, *shifts) = self.lab.canonical(
            self.lab.noise_basis(self.view, noise, heard), seen[1 + entries :], seen[: 1 + entries]
        )
        space = AffineSpace.of(basis, offset)
        if self._spaces.setdefault(heard, space) != space:
            raise NotCertified(f"{self.coalition} can tell places apart")
        for k, shift in zip(support, shifts, strict=True):
            self._settle(k, shift)
            if np.any(self._columns[k] != shift):
                raise NotCertified(f"{self.coalition} sees more than the sum")

    def check_inputs(self, basis: Basis, unit: Unit, inputs: list[Input], images: Array) -> None:
        """Compare the parts of some picks that inputs lead to, for one X. images: an offset for each input."""
        q, seen = self.lab.q, images[:, self.rows]
        self.lab.spaces += len(inputs)
        reduced = basis.reduced(seen)
        found = dict(zip(inputs, reduced, strict=True))
        for given in inputs:
            for i in unit:
                k, value = given.support[i], given.values[i]
                if k not in self._columns and value + 1 < q:  # a unit more at k, and nothing else
                    more = (*given.values[:i], value + 1, *given.values[i + 1 :])
                    self._settle(k, (found[Input(given.support, more)] - found[given]) % q)
        summed = np.zeros_like(seen)
        for i in unit:
            values = np.array([given.values[i] for given in inputs])
            summed += values[:, None] * np.stack([self._columns[given.support[i]] for given in inputs])
        rest = basis.reduced((seen - summed) % q)
        if np.any(rest != rest[0]):
            raise NotCertified(f"{self.coalition} sees more than the sum")

    def _settle(self, k: int, shift: Array) -> None:
        """Let this be what a unit at coordinate k adds, if nothing is known of k yet."""
        if np.any(shift[: self._shares]):
            raise NotCertified(f"{self.coalition} has shares that the input moves")
        self._columns.setdefault(k, shift)


def certify(lab: Lab, coalitions: Sequence[Coalition]) -> int:
    """Check the claim for all inputs, places and X, and return how many affine spaces were compared."""
    return certify_picks(lab, coalitions) if lab.moments else certify_masks(lab, coalitions)


# permutation


def certify_masks(
    lab: Lab,
    coalitions: Sequence[Coalition],
    xs: Sequence[Values] | None = None,
    supports: Sequence[Support] | None = None,
) -> int:
    """Check the claim for `permutation`.

    It goes through all supports (or those given) and all places; all values of the input, since everything
    is affine in them; all x, by the shear, or those given; the coalitions; and the answers of all N users,
    among which are those of every U2.
    """
    q, before = lab.q, lab.spaces
    everybody = PartView(lab.users, lab.every_question)
    references = [Reference(lab, coalition) for coalition in coalitions]
    shear = Shear(lab)
    counts: set[frozenset[tuple[tuple[int, ...], int]]] = set()
    for support in lab.supports if supports is None else supports:
        count: Counter[tuple[int, ...]] = Counter()
        for place in lab.places:
            (index, (offset, by_masks)), by_values = lab.masking_of_support(place, support)
            count[index] += 1
            solver = lab.algebra.solver(by_masks)
            if len(solver.check):
                raise NotCertified(f"x is not uniform: {support} at {place}")
            if xs is None and not shear.holds(place, support):
                raise NotCertified(f"not the same for every x: {support} at {place}")
            # with x fixed, a unit more of w is a unit less of r
            slopes = times(solver.particular, -by_values % q, q)
            columns, noise = lab.shares(place)
            for x in [(0,) * lab.c.entries] if xs is None else xs:
                heard = Broadcast(index, x)
                start = times(solver.particular, (np.array(x) - offset) % q, q)
                directions = with_offset(start, slopes, solver.free)
                images = times(lab.part_map(everybody, columns, heard), directions, q).T
                for reference in references:
                    reference.check_masks(heard, noise, support, images)
        counts.add(frozenset(count.items()))
    if len(counts) != 1:
        raise NotCertified("the indices of X depend on the support")
    return lab.spaces - before


class Shear:
    """Whether the parts for every x are those for x = 0 but for a shear (see the head of `affine`)."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.shape = (lab.p.users, *lab.share_shape)
        self._noises: dict[bytes, bool] = {}
        self._terms: dict[tuple[int, ...], bool] = {}

    def holds(self, place: Place, support: Support) -> bool:
        lab = self.lab
        (rows, (_, by_masks)), _ = lab.masking_of_support(place, support)  # entry i of X names row index_i
        columns, noise = lab.shares(place)
        offset, by_drawn = columns[..., 0].reshape(self.shape), columns[..., 1:]
        # a unit more of r adds row i of f without noise to row i of h
        moved = times(by_drawn, lab.algebra.solver(by_masks).particular, lab.q).reshape(
            *self.shape, len(rows)
        )
        expected = np.zeros_like(moved)
        for i, row in enumerate(rows):
            expected[:, 1, row, :, i] = offset[:, 0, row]
        if noise not in self._noises:
            self._noises[noise] = self._of_noise(noise)
        if rows not in self._terms:
            self._terms[rows] = self._of_terms(rows)
        return (
            len(set(rows)) == len(rows)
            and np.array_equal(moved, expected)
            and not np.any(by_drawn.reshape(*self.shape, -1)[:, 0])
            and self._noises[noise]
            and self._terms[rows]
        )

    def _of_noise(self, noise: bytes) -> bool:
        """Every unknown of the noise moves one row of f, or it moves one row of h as its partner does f."""
        table = self.lab.noise_columns(noise).reshape(*self.shape, -1)
        moved = [
            (table[:, 0, ..., v].tobytes(), table[:, 1, ..., v].tobytes()) for v in range(table.shape[-1])
        ]
        zero = bytes(table[:, 0, ..., 0].nbytes)
        of_f, of_h = sorted(f for f, h in moved if h == zero), sorted(h for f, h in moved if f == zero)
        one_row = np.count_nonzero(np.any(table, axis=(0, 1, 3)), axis=0) <= 1
        return len(of_f) + len(of_h) == len(moved) and of_f == of_h and bool(np.all(one_row))

    def _of_terms(self, rows: tuple[int, ...]) -> bool:
        """What x_i adds is what row i of h takes away, and it is row i of f that it multiplies."""
        for table in tables_of(self.lab, rows):
            terms = table.reshape(*table.shape[:2], *self.shape[1:])
            expected = np.zeros_like(terms[1:])
            for i, row in enumerate(rows):
                expected[i, :, 0, row] = -terms[0, :, 1, row] % self.lab.q
            if not np.array_equal(terms[1:], expected):
                return False
        return True


def tables_of(lab: Lab, index: tuple[int, ...]) -> Iterator[Array]:
    """The tables of all answers to an X with these indices."""
    for survivors, _, fallback, answering in lab.every_question:
        for user in answering:
            yield lab.terms(index, survivors, fallback, user)


# moments


def certify_picks(lab: Lab, coalitions: Sequence[Coalition], *, together: bool = False) -> int:
    """Check the claim for `moments`.

    It goes through all s and rho, all coordinates and values, so all X; the coalitions; and the answers of all
    N users, for every |U1|, with both D. Pick by pick, which is enough if picks do not depend on each other: that
    is tried. Together, it goes through everything that all picks of a user can be at once.
    """
    before, picks = lab.spaces, range(lab.c.rows)
    units: list[Unit] = [tuple(picks)] if together else [(i,) for i in picks]
    references = [Reference(lab, coalition) for coalition in coalitions]
    if not together:
        try_picks(lab)
    for unit in units:
        _certify_unit(lab, references, unit)
    return lab.spaces - before


def _certify_unit(lab: Lab, references: list[Reference], unit: Unit) -> None:
    """Check the claim for these picks of a user; the others have a first place and a first input."""
    everybody = PartView(lab.users, lab.every_question)
    leads: dict[Broadcast, tuple[list[Input], list[Place]]] = {}
    counts: set[frozenset[tuple[Broadcast, int]]] = set()
    places = list(places_of(lab, unit))
    for given in inputs_of(lab, unit):
        count: Counter[Broadcast] = Counter()
        for place in places:
            heard = lab.heard(place, given)
            count[heard] += 1
            inputs, origins = leads.setdefault(heard, ([], []))
            inputs.append(given)
            origins.append(place)
        counts.add(frozenset(count.items()))
    if len(counts) != 1:
        raise NotCertified("X depends on the input")
    offsets = {place: only(lab, lab.shares(place).columns, unit)[..., 0] for place in places}
    noises = {lab.shares(place).noise for place in places}
    if len(noises) != 1:
        raise NotCertified("the noise depends on the place")
    noise = only(lab, lab.noise_columns(noises.pop()), unit)
    noise = noise[..., np.any(noise, axis=(0, 1))]
    for heard, (inputs, origins) in leads.items():
        offset = np.stack([offsets[place] for place in origins], axis=-1)
        images = lab.part_map(everybody, np.concatenate([offset, noise], axis=-1), heard).T
        for reference in references:
            basis = lab.algebra.basis(images[len(inputs) :, reference.rows])
            reference.check_inputs(basis, unit, inputs, images[: len(inputs)])


def places_of(lab: Lab, unit: Unit) -> Iterator[Place]:
    """All places that differ in these picks."""
    moving = {slot for i in unit for slot in lab.slots(i)}
    return product(*(bound if j in moving else bound[:1] for j, bound in enumerate(lab.place_bounds)))


def inputs_of(lab: Lab, unit: Unit) -> Iterator[Input]:
    """All inputs that differ in these picks: any coordinate of the bucket, and any value."""
    coordinates = [lab.coordinates_of(i) for i in range(lab.c.rows)]
    supports = product(*(each if i in unit else each[:1] for i, each in enumerate(coordinates)))
    values = [lab.values if i in unit else lab.values[:1] for i in range(lab.c.rows)]
    return (Input(support, chosen) for support in supports for chosen in product(*values))


def only(lab: Lab, columns: Array, unit: Unit) -> Array:
    """Columns of shares (N, share, columns), without the rows of other picks."""
    table = columns.reshape(lab.p.users, *lab.share_shape, -1).copy()
    table[:, :, [i for i in range(lab.c.rows) if i not in unit]] = 0
    return table.reshape(columns.shape)


def try_picks(lab: Lab, tries: int = 12, answers: int = 3) -> None:
    """Try at random places and inputs that nothing of a pick depends on the others: not its entry of X, nor its
    row of the shares, nor what that adds to Y. Every unknown of the noise moves one row."""
    rng = np.random.default_rng(lab.share)
    first = tuple(bound[0] for bound in lab.place_bounds)
    shape = (lab.p.users, *lab.share_shape)
    for attempt in range(tries):
        place = tuple(int(rng.integers(len(bound))) for bound in lab.place_bounds)
        support = tuple(rng.choice(lab.coordinates_of(i)).item() for i in range(lab.c.rows))
        values = tuple(rng.choice(lab.values).item() for _ in range(lab.c.rows))
        heard, (columns, noise) = lab.heard(place, Input(support, values)), lab.shares(place)
        moved = lab.noise_columns(noise).reshape(*shape, -1)
        if np.any(np.count_nonzero(np.any(moved, axis=(0, 1, 3)), axis=0) > 1):
            raise NotCertified("picks share their noise")
        for i in range(lab.c.rows):
            slots = lab.slots(i)
            alone = tuple(place[j] if j in slots else first[j] for j in range(len(place)))
            given = Input(
                tuple(support[j] if j == i else lab.coordinates_of(j)[0] for j in range(lab.c.rows)),
                tuple(values[j] if j == i else lab.values[0] for j in range(lab.c.rows)),
            )
            x, shares = lab.heard(alone, given), lab.shares(alone)
            if (x.index[i], x.values[i]) != (heard.index[i], heard.values[i]):
                raise NotCertified("an entry of X depends on another pick")
            rows = [table.reshape(shape)[:, :, i] for table in (columns, shares.columns)]
            if not np.array_equal(*rows) or shares.noise is not noise:
                raise NotCertified("a row of shares depends on another pick")
            if attempt >= answers:
                continue
            for whole, part in zip(tables_of(lab, heard.index), tables_of(lab, x.index), strict=True):
                tables = [t.reshape(*t.shape[:2], *lab.share_shape)[..., i, :].copy() for t in (whole, part)]
                if not np.array_equal(*tables) or np.any(np.delete(tables[0], 1 + i, axis=0)):
                    raise NotCertified("what a pick adds to Y depends on another pick")
