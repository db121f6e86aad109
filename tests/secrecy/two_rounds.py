"""What a coalition sees of two rounds of low rank, the second on a basis that follows from the
first sum.

As in `linear`, for both rounds at once. An honest user m draws unknowns that are uniform over F_q:
symbols of its keys in both rounds, or masks and noise of each. The view of a coalition C is
    of every honest user, what follows from the keys that users of C hold, in both rounds; or the
        shares of both rounds that are written out for them,
    X of every honest user in both rounds,
    Y of every user in the round's U1,
    what is public: both U1, and the basis of the second round.
The first basis follows from the nonce, the second from S_1 alone. So where S_1 is the same the
basis is; and for any fixed basis the inputs w_1, w_2 are vectors over F_q, projections or not. The
view is uniform on B (w_1, w_2) + im A. `leak` tries all changes of inputs with the same sums S_1
and S_2: if B times each lies in im A, the view can be simulated from S_1 and S_2 alone, for all
inputs, whatever the basis and whoever chose it; a second round may then also be chosen by what was
seen of the first. `is_tight` says that nothing else is hidden: other sums give other views.

Keys advance as chains do, by `put_through`. HMAC under a key is assumed to give an independent key,
so that later keys follow from earlier ones and not the other way round: `later` gives the coalition
all that there is of the second round, of all users, and asks for the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from cases import sketch_parameters
from fq import Array, Basis, Elimination, affine_map, times
from lab import Tape, Unforeseen, keyed, path_of
from linear import Leak, Setup, SketchLab, Users

from topk_secagg.algebra import bases
from topk_secagg.algebra.field import to_field, to_signed
from topk_secagg.algebra.randomness import CipherRandomness, Randomness
from topk_secagg.gradients.layout import Layout, Slot
from topk_secagg.gradients.low_rank import LEFT, RIGHT
from topk_secagg.gradients.reduce import Reduction
from topk_secagg.protocol.deal import Deal, drawn_key
from topk_secagg.protocol.held import WrittenShares
from topk_secagg.protocol.messages import Secret, Sparse
from topk_secagg.protocol.parameters import KEYS
from topk_secagg.protocol.round import deal_shares, new_deal
from topk_secagg.rounds.following import LastSum, after_sum
from topk_secagg.rounds.sending import Encoding, prepare
from topk_secagg.storage.chain import put_through

FIRST, SECOND = ROUNDS = (0, 1)
NONCE = bytes(range(32))
NAME = b"name of the first session"
CLIP = 2.0
SIDES = (RIGHT, LEFT)
Sets = tuple[Users, Users]  # U1 of both rounds
Gradients = Mapping[int, tuple[Array, Array]]  # of each user, in both rounds
Bases = list[bases.Basis]
Change = list[tuple[int, int, Array]]  # what is added: a round, a user, and a vector


@dataclass(frozen=True)
class Two:
    """How both rounds are played; the defaults are as it should be."""

    N: int
    U: int
    T: int
    q: int
    dealing: str
    shapes: tuple[tuple[int, ...], ...] = ((3, 2),)  # of the tensors
    rank: int = 1
    sessions: tuple[str, str] = ("first", "second")
    sharings: tuple[str, str] = ("once", "twice")
    sources: tuple[str, str] = ("first", "second")  # what is drawn afresh in each round
    steps: int = 1  # how often keys are put through before the second round
    patches: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True)
class Played:
    """One dealer's part of one round, in the package's own terms."""

    deal: Deal
    secret: Secret
    shares: list[WrittenShares]  # for users 1..N


@dataclass(frozen=True)
class Dealer:
    """The maps of one dealer from its unknowns; lists have one of each round."""

    streams: dict[str, slice]  # which of the unknowns each stream is
    bounds: dict[str, list[int]]
    count: int
    known: dict[int, Array]  # what each user holds, and what follows from it
    later: Array  # all that there is of the second round
    shares: list[Array]  # (N, symbols of a share, unknowns)
    masks: list[Array]  # (symbols of X, unknowns)


class Sent(NamedTuple):
    """What users send of their gradients, and what is public of it."""

    symbols: dict[tuple[int, int], Array]  # by round and user
    sums: tuple[bytes, bytes]
    basis: str  # the digest of the second one


class SeriesLab:
    """Two rounds, and the package's maps under them."""

    def __init__(self, setup: Two) -> None:
        s = self.setup = setup
        self.reductions = [Reduction.of(s.shapes, s.rank, side) for side in SIDES]
        self.labs = [
            SketchLab(
                Setup(
                    sketch_parameters(
                        s.N, s.U, s.T, K=0, P=None, L=n, whole=n, q=s.q, dealing=s.dealing
                    )
                )
            )
            for n in (reduction.length for reduction in self.reductions)
        ]
        self.p = self.labs[FIRST].p
        self.q = s.q
        self.users = self.labs[FIRST].users
        self.algebra = Elimination(s.q)
        self.dealer = cache(self.dealer)

    # driving the package

    def play(self, dealer: int, source: Randomness) -> list[Played]:
        """The offline phases of a dealer; within `keyed`."""
        played: list[Played] = []
        for i in ROUNDS:
            lab, own = self.labs[i], source.child(self.setup.sources[i])
            deal = replace(
                new_deal(lab.p, lab.points, dealer, own),
                session=self.setup.sessions[i],
                sharing=self.setup.sharings[i],
            )
            if played and self.p.dealing == KEYS:
                steps = self.setup.steps
                keys = tuple(put_through(key, steps) for key in played[FIRST].secret.keys)
                secret = lab.c.secret_of_keys(deal, keys)
            else:
                secret = lab.c.draw_secret(deal, own)
            rows = np.arange(lab.c.rows)
            held = deal_shares(lab.p, deal, secret, own)
            played.append(Played(deal, secret, [WrittenShares(share(rows)) for share in held]))
        return played

    def x(self, i: int, secret: Secret, symbols: Array) -> Array:
        """X of a reduced vector."""
        sparse = Sparse(np.arange(symbols.size), to_field(symbols, self.q))
        return self.labs[i].c.mask(secret, sparse).value.astype(np.int64)

    # the maps

    def dealer(self, n: int) -> Dealer:
        """The maps of dealer n."""
        bounds: dict[str, list[int]] = {}
        with keyed(self.q), self.setup.patches():
            source = Tape({}, bounds, learn=True)
            first, second = self.play(n, source)
            held = self._held(first.deal, source.child(self.setup.sources[FIRST]))
            later = {path_of(key) for key in second.secret.keys} or {f"/{self.setup.sources[1]}"}
        if any(set(asked) != {self.q} for asked in bounds.values()):
            raise Unforeseen("something is not uniform over the field")
        streams: dict[str, slice] = {}
        count = 0
        for path, asked in bounds.items():
            streams[path] = slice(count, count + len(asked))
            count += len(asked)

        def function(unknowns: Array) -> Array:
            """Shares of all users, and the X of zeros, in both rounds."""
            with keyed(self.q), self.setup.patches():
                played = self.play(n, _tape(streams, bounds, unknowns))
                parts = []
                for i, (lab, one) in enumerate(zip(self.labs, played, strict=True)):
                    parts += [share.tables[0] for share in one.shares]
                    parts.append(self.x(i, one.secret, np.zeros(lab.p.length, dtype=np.int64)))
            return np.concatenate([part.reshape(-1) for part in parts]).astype(np.int64)

        def following(paths: set[str]) -> Array:
            """The unknowns of all streams below these."""
            below = [
                np.arange(count)[part]
                for path, part in streams.items()
                if any(path.startswith(f"{start}/") for start in paths)
            ]
            return np.eye(count, dtype=np.int64)[np.concatenate([*below, np.arange(0)])]

        offset, matrix = affine_map(function, count, self.q, self._trials(count))
        assert not np.any(offset)
        shares, masks = [], []
        for lab in self.labs:
            size = lab.c.rows * lab.c.width
            end = len(self.users) * size
            shares.append(matrix[:end].reshape(len(self.users), size, count))
            masks.append(matrix[end : end + lab.c.entries])
            matrix = matrix[end + lab.c.entries :]
        assert not len(matrix)
        return Dealer(
            streams=streams,
            bounds=bounds,
            count=count,
            known={
                m: np.concatenate(
                    [
                        following(held[m]),
                        *(s[m - 1] for s in shares if self.p.dealing != KEYS),
                    ]
                )
                for m in self.users
            },
            later=following(later),
            shares=shares,
            masks=masks,
        )

    def source(self, n: int, unknowns: Array) -> Randomness:
        """The source of a dealer that draws this."""
        dealer = self.dealer(n)
        return _tape(dealer.streams, dealer.bounds, unknowns)

    def _trials(self, count: int) -> list[Array]:
        return [np.random.default_rng(count).integers(0, self.q, count)]

    def _held(self, deal: Deal, source: Randomness) -> dict[int, set[str]]:
        """From where the keys of the first round come that each user holds."""
        held: dict[int, set[str]] = {m: set() for m in self.users}
        for block in deal.family:
            for m in block:
                held[m].add(path_of(drawn_key(deal, source, block)))
        return held

    # the view

    def view(self, coalition: Users, sets: Sets, *, later: bool = False) -> View:
        """What these users see; with `later` all of the second round, of all users, besides."""
        return View(self, coalition, sets, later)

    def views(self, size: int, *, later: bool = False) -> Iterator[View]:
        """Of all coalitions of this size, with every U1 of both rounds."""
        u1 = [
            some
            for count in range(self.p.survivors, self.p.users + 1)
            for some in combinations(self.users, count)
        ]
        for coalition in combinations(self.users, size):
            for sets in product(u1, u1):
                yield self.view(coalition, sets, later=later)


def _tape(streams: dict[str, slice], bounds: dict[str, list[int]], unknowns: Array) -> Tape:
    script = {path: unknowns[part].tolist() for path, part in streams.items()}
    return Tape(script, bounds)


class View:
    """The view of a coalition: which changes of inputs it hides."""

    def __init__(self, lab: SeriesLab, coalition: Users, sets: Sets, later: bool) -> None:
        self.lab = lab
        self.coalition = coalition
        self.sets = sets
        self.later = later
        self.honest = [m for m in lab.users if m not in coalition]
        self._dealers = {m: lab.dealer(m) for m in self.honest}
        rows: list[Array] = []
        self._x: dict[tuple[int, int], slice] = {}
        count = 0
        for m, dealer in self._dealers.items():
            parts = [*(dealer.known[c] for c in coalition), *([dealer.later] if later else [])]
            for part in parts:
                rows.append(self._placed({m: part}))
                count += len(part)
            for i in ROUNDS:
                rows.append(self._placed({m: dealer.masks[i]}))
                self._x[i, m] = slice(count, count + len(dealer.masks[i]))
                count += len(dealer.masks[i])
        for i, u1 in enumerate(sets):
            reach = lab.labs[i].reach(len(u1))
            for n in u1:
                parts = {
                    m: times(reach, dealer.shares[i][n - 1], lab.q)
                    for m, dealer in self._dealers.items()
                    if m in u1
                }
                if parts:
                    rows.append(self._placed(parts))
        self.A = np.concatenate(rows)
        self.space: Basis = lab.algebra.basis(self.A.T)

    def _placed(self, parts: Mapping[int, Array]) -> Array:
        """Rows over the unknowns of all honest users."""
        height = len(next(iter(parts.values())))
        return np.concatenate(
            [
                parts.get(m, np.zeros((height, dealer.count), dtype=np.int64))
                for m, dealer in self._dealers.items()
            ],
            axis=1,
        )

    def moved(self, change: Change) -> Array:
        """B times a change of inputs."""
        shift = np.zeros(len(self.A), dtype=np.int64)
        for i, m, vector in change:
            shift[self._x[i, m]] += times(
                self.lab.labs[i].sketches, vector % self.lab.q, self.lab.q
            )
        return shift % self.lab.q

    def hides(self, change: Change) -> bool:
        """Whether the view is the same after it."""
        return not np.any(self.space.reduced(self.moved(change)))

    def hides_difference(self, one: Sent, other: Sent) -> bool:
        """Whether the views of two inputs of the honest users are equal, with what is public."""
        change = [
            (i, m, one.symbols[i, m] - other.symbols[i, m]) for i in ROUNDS for m in self.honest
        ]
        return one.basis == other.basis and self.hides(change)

    def leak(self) -> Leak | None:
        """A change of inputs, with the same sums, that is seen."""
        for text, change in self._changes():
            if not self.hides(change):
                return Leak(self.coalition, self.sets[FIRST], text)
        return None

    def is_tight(self) -> bool:
        """Whether inputs with other sums have other views, all of them: what one survivor adds is
        independent of all that is hidden."""
        added = [
            self.moved([(i, self._summed(i)[0], unit)])
            for i in self._asked()
            for unit in self._units(i)
        ]
        spanned = self.lab.algebra.basis(np.concatenate([self.space.rows, np.array(added)]))
        return spanned.dimension == self.space.dimension + len(added)

    def _asked(self) -> Sequence[int]:
        return (FIRST,) if self.later else ROUNDS

    def _summed(self, i: int) -> list[int]:
        return [m for m in self.honest if m in self.sets[i]]

    def _units(self, i: int) -> Array:
        return np.eye(self.lab.labs[i].p.length, dtype=np.int64)

    def _changes(self) -> Iterator[tuple[str, Change]]:
        """They span all that leave both sums as they are."""
        for i in self._asked():
            summed = self._summed(i)
            for k, unit in enumerate(self._units(i)):
                where = f"symbol {k} of round {i + 1}"
                for m in summed[1:]:
                    yield f"{where} moves to user {m}", [(i, summed[0], unit), (i, m, -unit)]
                for m in set(self.honest) - set(summed):
                    yield f"{where}, of user {m}", [(i, m, unit)]


def everybody(lab: SeriesLab) -> Sets:
    """All users survive in both rounds."""
    return lab.users, lab.users


# Sabotage


def no_next_key() -> AbstractContextManager[object]:
    """Chains that stay where they are."""
    return patch("topk_secagg.storage.chain.next_key", lambda key: key)


FOUR = (4, 3, 1, 11)  # N, U, T, q; D = 2
SQUARE = ((2, 2),)  # both rounds have the same size
SAME_LABELS = {"sessions": ("first", "first"), "sharings": ("once", "once")}
# how users deal, whether all that there is of the second round is seen, and what is changed
SABOTAGES: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "the same keys and labels in both rounds": (
        "keys",
        False,
        {**SAME_LABELS, "patches": no_next_key},
    ),
    "the same masks in both rounds": ("shares", False, {"sources": ("first", "first")}),
    "keys that do not advance, all stolen later": ("keys", True, {"patches": no_next_key}),
}


# Gradients


def sent(
    lab: SeriesLab,
    gradients: Gradients,
    sets: Sets,
    second_bases: Callable[[SeriesLab, dict[int, Sparse], Bases, Users], Bases] | None = None,
) -> Sent:
    """What users send of these gradients, the second ones on the basis that follows from the sum of
    the first; or on another one."""
    chosen = second_bases or after_first_sum
    first_bases = lab.reductions[FIRST].first_bases(_names(lab), NONCE)
    first = _encoded(lab, FIRST, gradients, first_bases)
    basis = chosen(lab, first, first_bases, sets[FIRST])
    second = _encoded(lab, SECOND, gradients, basis)
    symbols = {
        (i, m): sparse.value.astype(np.int64)
        for i, of_users in ((FIRST, first), (SECOND, second))
        for m, sparse in of_users.items()
    }
    sums = (sum(symbols[i, m] for m in u1) % lab.q for i, u1 in enumerate(sets))
    return Sent(symbols, tuple(s.astype(np.uint8).tobytes() for s in sums), bases.digest(basis))


def after_first_sum(
    lab: SeriesLab, first: dict[int, Sparse], first_bases: Bases, u1: Users
) -> Bases:
    """As every user computes it, from the sum over U1 alone."""
    total = sum(first[m].value.astype(np.int64) for m in u1)
    sparse = Sparse(np.arange(lab.reductions[FIRST].length), to_field(total, lab.q))
    layout = _layout(lab)
    last = LastSum(
        name=NAME,
        layout=layout,
        encoding=_encoding(lab, FIRST, first_bases),
        total=sparse,
    )
    following = after_sum(lab.reductions[FIRST], layout, NONCE.hex(), last)
    assert following.reduction == lab.reductions[SECOND]
    return following.bases


def signed(lab: SeriesLab, total: bytes) -> Array:
    """A sum as signed integers."""
    return to_signed(np.frombuffer(total, dtype=np.uint8).astype(np.uint32), lab.q)


def _encoding(lab: SeriesLab, i: int, basis: Bases) -> Encoding:
    """One clip for all tensors."""
    clips = [CLIP] * len(lab.setup.shapes)
    return Encoding(lab.labs[i].p, lab.reductions[i], basis, clips)


def _encoded(lab: SeriesLab, i: int, gradients: Gradients, basis: Bases) -> dict[int, Sparse]:
    """The symbols of every user, by the package; each rounds with a source of its own."""
    encoding = _encoding(lab, i, basis)
    source: Any = CipherRandomness(bytes(32))
    return {
        m: prepare(encoding, source, flat[i].reshape(-1), 1.0, "top", saturate=True).chosen.sparse
        for m, flat in gradients.items()
    }


def _names(lab: SeriesLab) -> list[str]:
    return [slot.name for slot in _layout(lab).slots]


def _layout(lab: SeriesLab) -> Layout:
    return Layout(
        tuple(Slot(f"tensor {i}", shape, "float64") for i, shape in enumerate(lab.setup.shapes))
    )
