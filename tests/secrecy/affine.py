"""What a coalition sees, as affine spaces over F_q, computed with the real code of the package.

The claim. User n has an input W_n: a support and values; TopK(W_n) is the vector with the values at
the support. A coalition C of at most T users must learn nothing but the sum: the law of its view,
given all inputs, depends only on the inputs of C and on the sum over U1 of TopK(W_n). This is the
paper's security constraint, I(inputs; view | sum, inputs of C) = 0, for all laws of the inputs at
once.

The view of C, for U2 within U1, is
    what the users of C drew themselves,
    S_m, the shares f and h of every honest user m, dropped out or not, at alpha_c for c in C,
    X_m of every user,
    Y_n, n in U2, the sum over m in U1 of G_m(alpha_n), where G_m are the terms of the entries of
        X_m.
It is a little more than the paper's, which has X_m for m in U1 only: here, the X of a user that
dropped out may have been heard. The paper's view, and that of a smaller U2, is a function of it.
What C drew itself is fixed; its own terms in Y are then a known constant, and left out.

Parts. Users draw independently, and S_m, X_m, G_m are functions of what m alone drew and of W_m. So
the view is put together from independent *parts* (S_m, X_m, G_m): the S side by side, the G added
up.

Affine. An honest user draws a *place*, its permutation pi, and unknowns that are uniform over F_q:
masks r, noise z for f and z~ for h. Fix the place. Then the shares are affine in the unknowns; the
indices of X are constant, and its values x affine in r; and G is linear in the shares, and affine
in x. Fix x, too. This confines r to an affine space (used masks are x - w), leaves the unknowns
uniform on it, and makes (S, G) an affine function: given W_m, the place and X_m, the pair (S_m,
G_m) is *uniform on an affine space* A(place, W_m, X_m). Given W_m and X_m alone, it is a mixture of
these, one for every place that leads from W_m to X_m, with the weight q^-(rank of r -> x) / #places
each.

Comparing (`compare`). Take two assignments of honest inputs with the same sum, and a broadcast
(X_m)_m. Under each, the view is a mixture of sums of parts: a multiset of affine spaces, each in
canonical form (reduced row echelon form of the directions, and the offset that is zero at the
pivots). Equal multisets are equal laws. If they differ, the laws might yet agree, as different
mixtures can make one law; so a difference counts only with a *witness*, a view that has different
probabilities under the two assignments, as exact fractions. None found is an error (`Undecided`),
not a verdict.

All inputs at once (`certify`). Fix C. Let there be a linear map Lambda into the coordinates of Y,
and a space A_0(X) for every X, such that for every W_m, every place and every X_m that they can
lead to

    A(place, W_m, X_m) = A_0(X_m) + (0, Lambda TopK(W_m)),
    and P(X_m | W_m) does not depend on W_m.

Then the view, given X, is uniform on the sum of the A_0(X_m), shifted by (0, Lambda times the sum
of the TopK(W_m)): the constraint holds, for all joint inputs, all joint broadcasts, and all U2
within U1. So it is enough to go through the parts one by one. (This is sufficient; it is not
necessary. `certify` shows that the constraint holds, `compare` that it fails.) Y stands here for
the answers of all N users, for every |U1|, side by side: what holds of all of them
holds of those for one U1.

All x at once (`Shear`). Let entry i of X name row i, and H_i add x_i times row i
of f to row i of h. If
    deal(r + x_i, z, z~ + x_i z, in row i) = H_i deal(r, z, z~),         and         terms_x H =
        terms_0,
then for x in place of 0 the unknowns and the shares S are sheared, both by invertible maps that
depend on x alone, and G is not changed: what holds of the parts for x = 0 holds for every x. Both
identities are affine in each x_i, and compared as tables.

What is measured. Nothing is computed from the formulas of the scheme: draw_secret, deal (so
share_chunks), mask and answer_chunks run with a source of randomness that gives chosen values
(`Tape`), and their affine maps are read off at zero and the unit vectors. That they are affine, and
that parts add up, is then tried at further points at random: the one thing here that is sampled.
Places are enumerated as the code asks for them: all values below the bound it names, all orders of
the keys that make a permutation. That streams with different labels are independent and integers()
uniform is the contract of `Randomness`, and tested there. A label asked for twice gives the same
values twice, as with the cipher.

A user that deals or masks does not know who it is, so one table serves for all; what differs is the
points alpha_n, and the table has them all.

`sketch` has no places and is linear in everything: see `linear`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from typing import NamedTuple

import numpy as np
from fq import AffineSpace, Array, Basis, Law, probability, times
from lab import Broadcast, Input, Lab, PartView, Question

from topk_secagg.protocol.messages import Secret
from topk_secagg.protocol.parameters import Parameters


class Undecided(AssertionError):
    """Two multisets of affine spaces differ, but no view was found whose probabilities do."""


# The view of a coalition


class Answered(NamedTuple):
    """Y of `u2` for the survivors `u1`."""

    u1: tuple[int, ...]
    u2: tuple[int, ...]


@dataclass(frozen=True)
class View:
    """What a coalition sees: shares, the X of all users, and what was answered."""

    coalition: tuple[int, ...]
    answered: tuple[Answered, ...]

    def honest(self, lab: Lab) -> list[int]:
        return [m for m in lab.users if m not in self.coalition]

    def part(self, m: int) -> PartView:
        questions = [Question(len(u1), m in u1, u2) for u1, u2 in self.answered]
        return PartView(self.coalition, tuple(questions))


def view_of(
    lab: Lab,
    coalition: Iterable[int],
    u1: Iterable[int] | None = None,
    u2: Iterable[int] | None = None,
) -> View:
    """The view of one round, in which U2 answers."""
    u1 = tuple(lab.users if u1 is None else u1)
    u2 = tuple(u1 if u2 is None else u2)
    return View(tuple(coalition), (Answered(u1, u2),))


MaskedInputs = Mapping[int, Input]  # of honest users
Heard = Mapping[int, Broadcast]  # of honest users


class Joint:
    """The laws of the view of a coalition, put together from the parts."""

    def __init__(self, lab: Lab, view: View) -> None:
        self.lab = lab
        self.view = view
        self.honest = view.honest(lab)
        self._shares = lab.share * len(view.coalition)
        self._bases: dict[tuple[Basis, ...], Basis] = {}

    def law(self, inputs: MaskedInputs, heard: Heard) -> Law:
        """The law of the view and this broadcast, given the inputs."""
        laws = [self.lab.part_law(self.view.part(m), inputs[m], heard[m]) for m in self.honest]
        law: Law = {}
        for chosen in product(*(part.items() for part in laws)):
            space = self._sum([space for space, _ in chosen])
            weight = math.prod((weight for _, weight in chosen), start=Fraction(1))
            law[space] = law.get(space, Fraction(0)) + weight
        return law

    def _sum(self, spaces: list[AffineSpace]) -> AffineSpace:
        """Shares side by side, answers added up."""
        self.lab.spaces += 1
        bases = tuple(space.basis for space in spaces)
        if bases not in self._bases:
            rows = [self._embedded(i, basis.rows) for i, basis in enumerate(bases)]
            self._bases[bases] = self.lab.algebra.basis(np.vstack(rows))
        offset = sum(self._embedded(i, space.origin) for i, space in enumerate(spaces)) % self.lab.q
        return AffineSpace.of(self._bases[bases], self._bases[bases].reduced(offset))

    def _embedded(self, i: int, vectors: Array) -> Array:
        shares, answers = vectors[..., : self._shares], vectors[..., self._shares :]
        before = np.zeros((*vectors.shape[:-1], i * self._shares), dtype=np.int64)
        after = np.zeros(
            (*vectors.shape[:-1], (len(self.honest) - 1 - i) * self._shares), dtype=np.int64
        )
        return np.concatenate([before, shares, after, answers], axis=-1)

    def sum(self, inputs: MaskedInputs) -> bytes:
        """What the coalition may know of the honest inputs: the sum over the (first) U1 that is
        answered."""
        total = np.zeros(self.lab.p.length, dtype=np.int64)
        for m in self.honest:
            if m in self.view.answered[0].u1:
                total += self.lab.top_k(inputs[m])
        return (total % self.lab.q).astype(np.uint8).tobytes()

    def played(self, inputs: MaskedInputs, count: int, seed: int = 0) -> list[Heard]:
        """Broadcasts that these inputs lead to, with places and masks at random (always the
        same)."""
        rng = np.random.default_rng(seed)
        lab = self.lab

        def secret() -> Secret:
            return lab.secret(
                lab.places[rng.integers(len(lab.places))], rng.integers(0, lab.q, lab.unknowns)
            )

        return [
            {m: Broadcast.of(lab.masked(secret(), inputs[m])) for m in self.honest}
            for _ in range(count)
        ]


@dataclass(frozen=True)
class Witness:
    """A view whose probability depends on honest inputs that have the same sum. Without a point,
    the broadcast alone is such a view."""

    heard: Heard
    point: Array | None
    one: Fraction
    other: Fraction

    def __str__(self) -> str:
        what = "a broadcast" if self.point is None else "a view"
        one, other = (
            str(x) if x.denominator < 10**9 else f"{float(x):.3g}" for x in (self.one, self.other)
        )
        return f"{what} of probability {one} under one input and {other} under another"


def compare(
    lab: Lab,
    view: View,
    one: MaskedInputs,
    other: MaskedInputs,
    heard: Iterable[Heard],
    seed: int = 0,
) -> Witness | None:
    """Whether the view tells two assignments of honest inputs apart: a witness, or None if on all
    these broadcasts the laws are equal. The assignments must have the same sum over U1."""
    joint = Joint(lab, view)
    assert joint.sum(one) == joint.sum(other), "inputs with different sums may be told apart"
    for broadcast in heard:
        laws = joint.law(one, broadcast), joint.law(other, broadcast)
        if laws[0] != laws[1]:
            return find_witness(broadcast, *laws, seed)
    return None


def find_witness(heard: Heard, one: Law, other: Law, seed: int = 0, tries: int = 400) -> Witness:
    """A view that is not as likely under the one law as under the other."""
    totals = [sum(law.values(), Fraction(0)) for law in (one, other)]
    if totals[0] != totals[1]:
        return Witness(heard, None, *totals)
    rng = np.random.default_rng(seed)
    different = [space for space in {**one, **other} if one.get(space) != other.get(space)]
    different.sort(key=lambda space: space.basis.dimension)
    for attempt in range(tries):
        space = different[attempt % len(different)]
        basis = space.basis
        steps = rng.integers(0, basis.q, basis.dimension)
        point = (space.origin + times(steps, basis.rows, basis.q)) % basis.q
        chances = probability(one, point), probability(other, point)
        if chances[0] != chances[1]:
            return Witness(heard, point, *chances)
    raise Undecided(
        f"{len(one)} and {len(other)} different spaces, but no view that tells them apart"
    )


def coalitions_of(p: Parameters, least: int, most: int) -> list[tuple[int, ...]]:
    """All sets of at least `least` and at most `most` users."""
    users = range(1, p.users + 1)
    return [c for size in range(least, most + 1) for c in combinations(users, size)]


def survivor_sets(p: Parameters) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every (U1, U2) with U <= |U2|, U2 within U1 within all users."""
    for u1 in coalitions_of(p, p.survivors, p.users):
        for size in range(p.survivors, len(u1) + 1):
            yield from ((u1, u2) for u2 in combinations(u1, size))
