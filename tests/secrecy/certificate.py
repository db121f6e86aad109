"""All inputs at once: every part is A_0(X) + (0, Lambda TopK(W)). The head of `affine` has the
argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

import numpy as np
from fq import AffineSpace, Array, Basis, times
from lab import Broadcast, Input, Lab, PartView, Place, Support, Values, with_offset

Coalition = tuple[int, ...]
Unit = tuple[int, ...]  # entries of X, or picks, that are checked together


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
        answers = len(lab.users) * sum(
            lab.answer(size, kind) for size, _, kind, _ in lab.every_question
        )
        held = [np.arange((c - 1) * lab.share, c * lab.share) for c in coalition]
        self.rows = np.concatenate([*held, np.arange(shares, shares + answers)])
        self._shares = len(self.rows) - answers
        self._spaces: dict[tuple[int, Unit, Broadcast], AffineSpace] = {}  # A_0 of a dealer
        self._columns: dict[int, Array] = {}  # of Lambda

    def check(
        self, heard: Broadcast, unit: Unit, inputs: list[Input], images: Array, noise: Basis
    ) -> None:
        """Compare the parts that inputs lead to, which differ in some entries, with each other and
        with those before. images: an offset for each input, and directions besides those of the
        noise."""
        q = self.lab.q
        count = len(inputs)
        seen = images[:, self.rows]
        basis, reduced = self.lab.canonical(noise, seen[count:], seen[:count])
        for given, row in zip(inputs, reduced, strict=True):
            for i in unit:
                if given.support[i] not in self._columns:
                    more = (*given.values[:i], given.values[i] + 1, *given.values[i + 1 :])
                    shift = (reduced[inputs.index(Input(given.support, more))] - row) % q
                    if np.any(shift[: self._shares]):
                        raise NotCertified(f"{self.coalition} has shares that the input moves")
                    self._columns[given.support[i]] = shift
        summed = np.zeros_like(reduced)
        for i in unit:
            values = np.array([given.values[i] for given in inputs])
            summed += values[:, None] * np.stack(
                [self._columns[given.support[i]] for given in inputs]
            )
        rest = basis.reduced((reduced - summed) % q)
        if np.any(rest != rest[0]):
            raise NotCertified(f"{self.coalition} sees more than the sum")
        space = AffineSpace.of(basis, rest[0])
        if self._spaces.setdefault((self.lab.dealer, unit, heard), space) != space:
            raise NotCertified(f"{self.coalition} can tell places apart")


def certify(lab: Lab, coalitions: Sequence[Coalition]) -> int:
    """Check the claim for all inputs, places and X, and return how many affine spaces were
    compared."""
    return certify_picks(lab, coalitions) if lab.moments else certify_masks(lab, coalitions)


# permutation


def certify_masks(
    lab: Lab,
    coalitions: Sequence[Coalition],
    xs: Sequence[Values] | None = None,
    supports: Sequence[Support] | None = None,
) -> int:
    """Check the claim for `permutation`.

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
                    reference.check(heard, tuple(range(entries)), inputs, images, basis)
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
        for (survivors, _, fallback, _), user in product(self.lab.every_question, self.lab.users):
            table = self.lab.terms(rows, survivors, fallback, user)
            terms = table.reshape(*table.shape[:2], *self.shape[1:])
            expected = np.zeros_like(terms[1:])
            for i, row in enumerate(rows):
                expected[i, :, 0, row] = -terms[0, :, 1, row] % self.lab.q
            if not np.array_equal(terms[1:], expected):
                return False
        return True


# moments


def certify_picks(lab: Lab, coalitions: Sequence[Coalition], *, together: bool = False) -> int:
    """Check the claim for `moments`.

    It goes through all s and rho, all coordinates and values, so all X; the coalitions; and the
    answers of all N users, for every |U1|, with both D. It does so pick by pick, which is enough if
    picks do not depend on each other: that is tried. Or together, through everything that all picks
    of a user can be at once.
    """
    references = [Reference(lab, coalition) for coalition in coalitions]
    picks = tuple(range(lab.c.rows))
    compared = 0
    for dealer in lab.dealers:
        own = lab.of(dealer)
        before = own.spaces
        if not together:
            try_picks(own)
        # what users deal to themselves they know anyway
        seen = [r for r in references if len(lab.dealers) == 1 or dealer not in r.coalition]
        for reference in seen:
            reference.lab = own
        for unit in [picks] if together else [(i,) for i in picks]:
            _certify_unit(own, seen, unit)
        compared += own.spaces - before
    return compared


def _certify_unit(lab: Lab, references: list[Reference], unit: Unit) -> None:
    """Check the claim for these picks of a user; the others have a first place and a first
    input."""
    leads: dict[Broadcast, tuple[list[Input], list[Place]]] = {}
    counts: set[frozenset[tuple[Broadcast, int]]] = set()
    slots = enumerate(lab.place_bounds)  # of every pick in turn: all rho, then all s
    places = list(
        product(*(bounds if j % lab.c.rows in unit else bounds[:1] for j, bounds in slots))
    )
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
    columns = {place: columns_of(lab, place, unit) for place in places}
    noise = columns[places[0]][..., 1:]
    if any(not np.array_equal(table[..., 1:], noise) for table in columns.values()):
        raise NotCertified("the noise depends on the place")
    everybody = PartView(lab.users, lab.every_question)
    for heard, (inputs, origins) in leads.items():
        offsets = np.stack([columns[place][..., 0] for place in origins], axis=-1)
        images = lab.part_map(everybody, np.concatenate([offsets, noise], axis=-1), heard).T
        for reference in references:
            basis = lab.algebra.basis(images[len(inputs) :, reference.rows])
            reference.check(heard, unit, inputs, images[: len(inputs)], basis)


def inputs_of(lab: Lab, unit: Unit) -> Iterator[Input]:
    """All inputs that differ in these picks: any coordinate of the bucket, and any value."""
    coordinates = [lab.coordinates_of(i) for i in range(lab.c.rows)]
    supports = product(*(each if i in unit else each[:1] for i, each in enumerate(coordinates)))
    values = [lab.values if i in unit else lab.values[:1] for i in range(lab.c.rows)]
    return (Input(support, chosen) for support in supports for chosen in product(*values))


def columns_of(lab: Lab, place: Place, unit: Unit) -> Array:
    """Offset and noise of the rows of these picks, (N, share, 1 + noise); the other rows are
    zero."""
    offset, noise = lab.shares(place)
    columns = np.concatenate([offset, lab.noise_columns(noise)], axis=-1)
    table = columns.reshape(lab.p.users, *lab.share_shape, -1)
    table[:, :, [i for i in range(lab.c.rows) if i not in unit]] = 0
    return columns


def try_picks(lab: Lab, tries: int = 20, images: int = 2) -> None:
    """Try at random places and inputs that nothing of a pick depends on the others: not its entry
    of X, nor its row of the shares, nor what that adds to Y; and that every unknown of the noise
    moves one row."""
    rng = np.random.default_rng(lab.share)
    everybody = PartView(lab.users, lab.every_question)
    picks = range(lab.c.rows)
    ranges = [lab.place_bounds, [lab.coordinates_of(i) for i in picks], [lab.values] * lab.c.rows]

    def image(place: Place, heard: Broadcast, unit: Unit) -> Array:
        return lab.part_map(everybody, columns_of(lab, place, unit), heard)

    for attempt in range(tries):
        drawn = [[int(rng.choice(bounds)) for bounds in each] for each in ranges]
        place, support, values = map(tuple, drawn)
        heard = lab.heard(place, Input(support, values))
        parts = []
        for i in picks:
            # everything that belongs to another pick is the first of its range
            alone = [
                [
                    v if j % lab.c.rows == i else bounds[0]
                    for j, (v, bounds) in enumerate(zip(each, of, strict=True))
                ]
                for each, of in zip(drawn, ranges, strict=True)
            ]
            place_i, support_i, values_i = map(tuple, alone)
            x = lab.heard(place_i, Input(support_i, values_i))
            if (x.index[i], x.values[i]) != (heard.index[i], heard.values[i]):
                raise NotCertified("an entry of X depends on another pick")
            parts += [image(place_i, x, (i,))] if attempt < images else []
        if parts and np.any((image(place, heard, tuple(picks)) - sum(parts)) % lab.q):
            raise NotCertified("a row of the shares, or of Y, depends on another pick")
        if parts and np.any(
            np.count_nonzero([np.any(part[:, 1:], axis=0) for part in parts], axis=0) > 1
        ):
            raise NotCertified("picks share their noise")
