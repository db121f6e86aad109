"""What a coalition sees of a round of `sketch`: everything is linear, and one rank decides.

An honest user m draws unknowns r_m that are uniform over F_q: the symbols of its keys, or masks
and noise. The view of a coalition C is
    of every honest user m, dropped out or not: what follows from the keys that users of C hold,
        *all* that can be drawn from them, not only their shares; or the shares that are written out
        for them,
    X_m of every honest user m, dropped out or not,
    Y_n of every user n in U1, so of all that may answer, early or late.
All of that is A r + B w, with w the inputs of the honest users. What C deals itself it knows, and
is left out.

Take two inputs w and w' with the same sum over U1. The view is uniform on B w + im A under the one,
and on B w' + im A under the other: two cosets, which are the same if B (w - w') lies in im A, and
else have nothing in common: every view that the one makes possible is impossible under the other.
The differences w - w' are spanned by those where one user of U1 has a coordinate more and another
one less, and those where a user that dropped out has a coordinate more; each of them is a
difference of two inputs that users can have. So if all these B (w - w') lie in im A the paper's
constraint holds for all inputs, and if one does not, it fails: `leak` finds it.

What is measured. As in `lab`: draw_secret, share_chunks, KeyShares, mask and answer_chunks run with
a source of chosen values, and A and B are read off at the unit vectors; that the maps are linear is
tried at further points.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations

import numpy as np
from fq import Array, Elimination, affine_map, times
from lab import Tamper, Tape, Unforeseen, keyed, path_of

from topk_secagg.algebra.randomness import Randomness
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.deal import Block, Deal, drawn_key
from topk_secagg.protocol.held import WrittenShares
from topk_secagg.protocol.messages import Masked, Secret, Sparse
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.protocol.round import deal_shares, new_deal

Users = tuple[int, ...]


@dataclass(frozen=True)
class Setup:
    """How rounds are played; the defaults are as it should be."""

    p: Parameters
    tamper: Tamper = lambda source: source
    without: int | None = None  # the block that is removed from the family, by its number
    family: tuple[Block, ...] | None = None  # another one
    extra: tuple[tuple[Block, int], ...] = ()  # who else holds a key
    gradients: int = 1  # that are masked with the same secret
    sessions: tuple[str, ...] = ("session",)  # in which the same keys are used
    sharings: tuple[str, ...] = ("sharing",)  # by which the same session is prepared


@dataclass(frozen=True)
class Dealer:
    """The maps of one dealer, from its unknowns."""

    known: dict[int, Array]  # what each user holds, and what follows from it
    shares: Array  # (rounds, N, symbols of a share, unknowns)
    masks: Array  # (rounds, symbols of X, unknowns)


@dataclass(frozen=True)
class Leak:
    """A change of the inputs, with the same sum, that the coalition can see."""

    coalition: Users
    u1: Users
    change: str


class SketchLab:
    """One setup, and the package's maps under it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.p = setup.p
        self.q = self.p.field
        assert self.q < 256
        self.c = construction(self.p)
        self.points = self.c.points()
        self.users = tuple(range(1, self.p.users + 1))
        self.algebra = Elimination(self.q)
        self.dealer = cache(self.dealer)
        self.reach = cache(self.reach)
        self.sent_whole = np.arange(self.p.length - self.p.whole, self.p.length)

    # driving the package

    def _deals(self, dealer: int, source: Randomness) -> list[Deal]:
        """A dealing for every session and every time that it is prepared."""
        deal = new_deal(self.p, self.points, dealer, source)
        family = deal.family if self.setup.family is None else self.setup.family
        if self.setup.without is not None:
            left_out = family[self.setup.without % len(family)]
            family = tuple(block for block in family if block != left_out)
        return [
            replace(deal, session=session, sharing=sharing, family=family)
            for session in self.setup.sessions
            for sharing in self.setup.sharings
        ]

    def _secrets(self, deals: list[Deal], source: Randomness) -> list[Secret]:
        first = self.c.draw_secret(deals[0], source)
        if self.p.dealing == "keys":
            return [self.c.secret_of_keys(deal, first.keys) for deal in deals]
        return [self.c.draw_secret(deal, source) for deal in deals]

    def _shares(self, deal: Deal, secret: Secret, source: Randomness) -> list[WrittenShares]:
        rows = np.arange(self.c.rows)
        return [WrittenShares(held(rows)) for held in deal_shares(self.p, deal, secret, source)]

    def _x(self, secret: Secret, coordinate: int | None = None, value: int = 0) -> Array:
        """X of zeros but for one coordinate."""
        index = self.sent_whole
        if coordinate is not None and coordinate not in index:
            index = np.insert(index, 0, coordinate)
        values = np.where(index == coordinate, value, 0).astype(np.uint32)
        return self.c.mask(secret, Sparse(index, values)).value.astype(np.int64)

    def _answer(self, shares: dict[int, WrittenShares]) -> Array:
        shape = self.c.answer_shape(len(shares))
        nothing = Masked(np.empty(0, dtype=np.uint32), np.zeros(self.c.entries, dtype=np.uint32))
        masked = dict.fromkeys(shares, nothing)
        chunks = self.c.answer_chunks(masked, shares, shape)
        return np.concatenate([groups for _, groups in chunks]).astype(np.int64).reshape(-1)

    # the maps

    def dealer(self, n: int) -> Dealer:
        """The maps of dealer n."""
        bounds: dict[str, list[int]] = {}
        with keyed(self.q):
            source = self.setup.tamper(Tape({}, bounds, learn=True))
            deals = self._deals(n, source)
            for deal, secret in zip(deals, self._secrets(deals, source), strict=True):
                self._shares(deal, secret, source)
        if any(set(asked) != {self.q} for asked in bounds.values()):
            raise Unforeseen("something is not uniform over the field")
        streams: dict[str, slice] = {}
        count = 0
        for path, asked in bounds.items():
            streams[path] = slice(count, count + len(asked))
            count += len(asked)

        def played(unknowns: Array) -> Array:
            """Shares of all users, and the X of an empty input, for every dealing."""
            script = {path: unknowns[part].tolist() for path, part in streams.items()}
            parts = []
            with keyed(self.q):
                source = self.setup.tamper(Tape(script, bounds))
                deals = self._deals(n, source)
                for deal, secret in zip(deals, self._secrets(deals, source), strict=True):
                    parts += [s.tables[0] for s in self._shares(deal, secret, source)]
                    parts.append(self._x(secret))
            return np.concatenate([part.reshape(-1) for part in parts]).astype(np.int64)

        matrix = self.linear(played, count)
        rounds = matrix.reshape(len(deals), -1, count)
        N = len(self.users)
        symbols = self.c.rows * self.c.width
        shares = rounds[:, : N * symbols].reshape(len(deals), N, symbols, count)
        known = {}
        for user, held in self._held(n).items():
            of_keys = [
                np.arange(count)[part]
                for path, part in streams.items()
                if any(path.startswith(f"{key}/") for key in held)
            ]
            follows = np.eye(count, dtype=np.int64)[np.concatenate([*of_keys, np.arange(0)])]
            written = shares[:, user - 1] if self.p.dealing == "shares" else []
            known[user] = np.concatenate([follows, *written])
        return Dealer(known=known, shares=shares, masks=rounds[:, N * symbols :])

    def _held(self, n: int) -> dict[int, set[str]]:
        """From where the keys come that each user holds of dealer n."""
        held: dict[int, set[str]] = {m: set() for m in self.users}
        if self.p.dealing == "shares":
            return held
        with keyed(self.q):
            source = self.setup.tamper(Tape({}, {}, learn=True))
            deal = self._deals(n, source)[0]
            for block in deal.family:
                path = path_of(drawn_key(deal, source, block))
                others = [m for given, m in self.setup.extra if given == block]
                for m in (*block, *others):
                    held[m].add(path)
        return held

    @cached_property
    def sketches(self) -> Array:
        """From an input, coordinate by coordinate, to its part of X."""
        mask = np.zeros(self.c.rows * self.p.blocks * self.c.width, dtype=np.uint32)
        secret = Secret(place=mask[:0], mask=mask)

        def function(w: Array) -> Array:
            """Coordinate by coordinate: there may be more than P in a bucket."""
            total = np.zeros(self.c.entries, dtype=np.int64)
            for k in np.flatnonzero(w):
                total += self._x(secret, k, w[k])
            return total % self.q

        return self.linear(function, self.p.length)

    def reach(self, survivors: int) -> Array:
        """From what a user holds of one survivor to its part of Y."""
        shape = (self.c.rows, self.c.width)

        def function(share: Array, position: int = 1) -> Array:
            tables = {m: np.zeros(shape, dtype=np.uint32) for m in range(1, survivors + 1)}
            tables[position] = share.reshape(shape).astype(np.uint32)
            return self._answer({m: WrittenShares((t,)) for m, t in tables.items()})

        matrix = self.linear(function, self.c.rows * self.c.width)
        trial = np.arange(matrix.shape[1]) % self.q
        last = function(trial, survivors)
        assert np.array_equal(last, times(matrix, trial, self.q)), "the same for every survivor"
        return matrix

    def linear(self, function, size: int) -> Array:
        trials = [np.random.default_rng(size).integers(0, self.q, size)]
        offset, matrix = affine_map(function, size, self.q, trials)
        assert not np.any(offset)
        return matrix

    # the view

    def leak(self, coalition: Users, *survivor_sets: Users) -> Leak | None:
        """What the coalition sees besides the sum over the first of these sets, which all
        answer."""
        u1 = survivor_sets[0]
        honest = [m for m in self.users if m not in coalition]
        dealers = [self.dealer(m) for m in honest]
        by_unknowns = []  # rows of A, a column of blocks for each honest user
        by_inputs = []
        rounds = range(len(dealers[0].masks))
        inputs = len(rounds) * self.setup.gradients  # of a user
        for i, dealer in enumerate(dealers):
            for c in coalition:
                by_unknowns.append(self._placed(dealer.known[c], i, dealers))
                by_inputs.append(
                    np.zeros((len(dealer.known[c]), len(honest) * inputs), dtype=object)
                )
            for r in rounds:
                for g in range(self.setup.gradients):
                    by_unknowns.append(self._placed(dealer.masks[r], i, dealers))
                    row = np.zeros((len(dealer.masks[r]), len(honest) * inputs), dtype=object)
                    row[:, i * inputs + r * self.setup.gradients + g] = 1  # S(w) of this input
                    by_inputs.append(row)
        for answered in survivor_sets:
            reach = self.reach(len(answered))
            for r in rounds:
                for n in answered:
                    parts = [
                        times(reach, dealer.shares[r, n - 1], self.q)
                        if m in answered
                        else np.zeros((len(reach), dealer.shares.shape[-1]), dtype=np.int64)
                        for m, dealer in zip(honest, dealers, strict=True)
                    ]
                    by_unknowns.append(np.concatenate(parts, axis=1))
        A = np.concatenate(by_unknowns)
        basis = self.algebra.basis(A.T)
        heard = np.concatenate(by_inputs)
        for change, moved in self._changes(honest, u1, inputs):
            # the change of every row of X, and of nothing else
            shift = np.zeros(len(A), dtype=np.int64)
            for column, sign, k in moved:
                rows = np.flatnonzero(heard[:, column])
                shift[rows] += sign * self.sketches[:, k]
            if np.any(basis.reduced(shift % self.q)):
                return Leak(coalition, u1, change)
        return None

    def _placed(self, block: Array, i: int, dealers: list[Dealer]) -> Array:
        sizes = [dealer.shares.shape[-1] for dealer in dealers]
        before, after = sum(sizes[:i]), sum(sizes[i + 1 :])
        return np.pad(block, ((0, 0), (before, after)))

    def _changes(
        self, honest: list[int], u1: Users, inputs: int
    ) -> Iterator[tuple[str, list[tuple[int, int, int]]]]:
        """Changes of inputs that leave the sum of every round and gradient as it is: columns,
        signs, coordinates."""
        summed = [i for i, m in enumerate(honest) if m in u1]
        dropped = [i for i, m in enumerate(honest) if m not in u1]
        for k in range(self.p.length):
            for one in range(inputs):
                for other in summed[1:]:
                    moved = [(summed[0] * inputs + one, 1, k), (other * inputs + one, -1, k)]
                    yield f"coordinate {k} moves to user {honest[other]}", moved
                for i in dropped:
                    yield f"coordinate {k} of user {honest[i]}", [(i * inputs + one, 1, k)]

    def leaks(self, size: int) -> Iterator[Leak | None]:
        """Of all coalitions of this size, with every U1."""
        for coalition in combinations(self.users, size):
            for count in range(self.p.survivors, self.p.users + 1):
                for u1 in combinations(self.users, count):
                    yield self.leak(coalition, u1)
