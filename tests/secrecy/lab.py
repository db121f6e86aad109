"""The package, driven for one user: a source of chosen values, and the maps of the package as
tables."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import combinations, permutations, product
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from fq import Affine, AffineSpace, Array, Basis, Elimination, Law, NotAffine, affine_map, times

from topk_secagg.algebra.field import stored_type
from topk_secagg.algebra.randomness import Randomness
from topk_secagg.protocol import deal as dealing
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.deal import Deal
from topk_secagg.protocol.held import WrittenShares
from topk_secagg.protocol.messages import Masked, Secret, Sparse
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.protocol.round import deal_shares, new_deal

Place = tuple[int, ...]
Support = tuple[int, ...]
Values = tuple[int, ...]


class Input(NamedTuple):
    """W_m as mask_input takes it: coordinates, and their values in F_q."""

    support: Support
    values: Values


class Broadcast(NamedTuple):
    """X_m as everybody hears it."""

    index: tuple[int, ...]
    values: Values

    @staticmethod
    def of(x: Masked) -> Broadcast:
        return Broadcast(tuple(x.index.tolist()), tuple(x.value.tolist()))


class Unforeseen(AssertionError):
    """The code asks its source for something that this check does not account for."""


# The injected source


class Tape(Randomness):
    """Gives chosen values, stream by stream, and refuses what was not foreseen.

    It chooses the bytes and leaves what becomes of them to the real integers() and permutation(): a
    value below the bound is a word that integers() neither rejects nor reduces; a permutation is
    asked for by the rank of the order of its keys. Raw bytes are words of symbols of F_q, if
    `field` says which q; words that are read ahead, and never used, are values like others.
    """

    field: int | None = None

    def __init__(
        self,
        script: Mapping[str, Sequence[int]],
        bounds: dict[str, list[int]],
        *,
        learn: bool = False,
    ) -> None:
        """Values and bounds by stream. To learn the bounds, give zeros and write down what is asked
        for."""
        self._script = script
        self._bounds = bounds
        self._learn = learn
        self._path = ""
        self._position = 0
        self._bytes: npt.NDArray[np.uint8] | None = None

    def child(self, label: str) -> Tape:
        tape = Tape(self._script, self._bounds, learn=self._learn)
        tape._path = f"{self._path}/{label}"
        return tape

    def fill(self, out: npt.NDArray[np.uint8]) -> None:
        if self._bytes is None and self.field is not None:
            word = stored_type(self.field)
            self._bytes = self._next(self.field, out.size // word.itemsize).astype(word)
            self._bytes = self._bytes.view(np.uint8)
        if self._bytes is None or self._bytes.size != out.size:
            raise Unforeseen(f"raw bytes from the stream {self._path!r}")
        out[:] = self._bytes
        self._bytes = None

    def integers(self, bound: int, out: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        word = stored_type(bound)
        self._bytes = self._next(bound, out.size).astype(word).view(np.uint8)
        return super().integers(bound, out)

    def bytes(self, count: int) -> bytes:
        """A key: whoever holds it can ask for the streams below this one. See `keyed`."""
        key = hashlib.sha256(self.path.encode()).digest()
        assert count == len(key)
        _tapes[key] = self
        return key

    @property
    def path(self) -> str:
        return self._path

    def permutation(self, n: int) -> npt.NDArray[np.uint32]:
        rank = int(self._next(math.factorial(n), 1)[0])
        self._bytes = np.array(_orders(n)[rank], dtype="<u8").view(np.uint8)
        return super().permutation(n)

    def _next(self, bound: int, count: int) -> Array:
        part = slice(self._position, self._position + count)
        self._position = part.stop
        if self._learn:
            known = self._bounds.setdefault(self._path, [])
            known += [bound] * (part.stop - len(known))
        if self._bounds.get(self._path, [])[part] != [bound] * count:
            raise Unforeseen(f"{count} values below {bound} from the stream {self._path!r}")
        return np.array(
            [0] * count if self._learn else self._script[self._path][part], dtype=np.int64
        )


_tapes: dict[bytes, Tape] = {}  # by the keys that were drawn from them


class _HashOfTapes:
    """HMAC under a key that came from a tape: under each label a tape of its own below that one.

    So whoever has a key has those that follow from it, and not the ones from which it follows.
    """

    @staticmethod
    def digest(key: bytes, label: bytes, _: str) -> bytes:
        return _tapes[key].child(label.decode()).bytes(len(key))


@contextmanager
def keyed(field: int | None = None) -> Iterator[None]:
    """Within, the package's streams of symbols come from the tapes that their keys came from, and
    are read as words of symbols of F_field.

    A generator's output under a key and a label is then fresh uniform values, the same for the same
    key and label, and independent for others: what HMAC and AES are assumed to be.
    """
    with (
        patch.object(dealing, "CipherRandomness", _tapes.__getitem__),
        patch.object(dealing, "hmac", _HashOfTapes),
        patch.object(Tape, "field", field),
    ):
        try:
            yield
        finally:
            _tapes.clear()


def path_of(key: bytes) -> str:
    """From where a key was drawn; within `keyed`."""
    return _tapes[key].path


@cache
def _orders(n: int) -> list[tuple[int, ...]]:
    return list(permutations(range(n)))


# One user's tables


class Shares(NamedTuple):
    """What all users receive of one user at a fixed place, as an affine map of its masks and noise.

    columns (N, share, 1 + drawn): the offset, and how it moves with the masks. noise: how it moves
    with the noise, as bytes; mostly the same object for all places.
    """

    columns: Array
    noise: bytes


class Masking(NamedTuple):
    """X of one user at a fixed place: its indices, and its values as an affine map."""

    index: tuple[int, ...]
    x: Affine


class Question(NamedTuple):
    """What users answer, as one user's part has it: for how many survivors, whether it is among
    them, and who answers. Where the user is not among the survivors, it adds nothing."""

    survivors: int
    member: bool
    answering: tuple[int, ...]


@dataclass(frozen=True)
class PartView:
    """What a part is seen through: the shares of whom, and answers."""

    coalition: tuple[int, ...]
    questions: tuple[Question, ...]


Tamper = Callable[[Randomness], Randomness]


class Lab:
    """One set of parameters of `permutation`, and the package's maps under it: every user's, since
    none knows whose it is.

    A *place* is everything a user draws that is not uniform over the field: its permutation. The
    *unknowns* are uniform over the field: masks and noise.
    """

    _REMEMBERED = (
        "_trials",
        "shares",
        "masking",
        "_secret_of",
        "terms",
        "noise_basis",
        "places_by_x",
        "part_law",
    )

    def __init__(
        self,
        p: Parameters,
        tamper: Tamper = lambda source: source,
        tries: int = 2,
    ) -> None:
        """Tamper: what is put between the tape and the package, to spoil it."""
        assert p.field < 256
        for name in self._REMEMBERED:
            setattr(self, name, cache(getattr(self, name)))
        self.p = p
        self.q = p.field
        self.tamper = tamper
        self.tries = tries
        self.c = construction(p)
        self.points = construction(p).points()
        self.users = tuple(range(1, p.users + 1))
        # what one user holds of another: f and h
        self.share_shape = (len(self.c.share_names), self.c.rows, self.c.width)
        self.share = math.prod(self.share_shape)
        self.algebra = Elimination(p.field)
        self.spaces = 0
        self._noises: dict[bytes, bytes] = {}
        self._bounds: dict[str, list[int]] = {}
        source = tamper(Tape({}, self._bounds, learn=True))
        with keyed():
            deal = self._deal(source)
            secret = construction(p).draw_secret(deal, source)
            drawn = list(self._bounds)
            self._written_out(deal, secret, source)
        self._discrete = [
            path for path in drawn if path.endswith("/place") or set(self._bounds[path]) != {self.q}
        ]
        # the unknowns: what draw_secret asks for comes first, and is counted in `drawn`
        self._streams: dict[str, slice] = {}
        self.unknowns = self.drawn = 0
        streams = [path for path in self._bounds if path not in self._discrete]
        for path in sorted(streams, key=lambda path: path not in drawn):
            if set(self._bounds[path]) != {self.q}:
                raise Unforeseen(f"the stream {path!r} is not uniform over the field")
            first = self.unknowns
            self.unknowns += len(self._bounds[path])
            self._streams[path] = slice(first, self.unknowns)
            if path in drawn:
                self.drawn = self.unknowns

    # what there is

    def answer(self, survivors: int) -> int:
        """Symbols of one Y."""
        shape = self.c.answer_shape(survivors)
        return shape.groups * shape.width

    @property
    def every_question(self) -> tuple[Question, ...]:
        """All users answer for every number of survivors."""
        sizes = range(self.p.survivors, self.p.users + 1)
        return tuple(Question(size, True, self.users) for size in sizes)

    @cached_property
    def place_bounds(self) -> list[range]:
        return [range(bound) for path in self._discrete for bound in self._bounds[path]]

    @cached_property
    def places(self) -> list[Place]:
        """Everything that the place of a user can be, each as likely as any other."""
        return list(product(*self.place_bounds))

    @cached_property
    def supports(self) -> list[Support]:
        """All supports: K of L coordinates."""
        return list(combinations(range(self.p.length), self.p.top_k))

    def top_k(self, given: Input) -> Array:
        """TopK(W): the values at their coordinates."""
        vector = np.zeros(self.p.length, dtype=np.int64)
        np.add.at(vector, list(given.support), given.values)
        return vector % self.q

    def every_x(self) -> list[Values]:
        """All values that an input, or X, can have."""
        return list(product(range(self.q), repeat=self.c.entries))

    # driving the package

    def source(self, place: Place, unknowns: Array) -> Randomness:
        """The source of a user that draws this, as the package gets it."""
        script: dict[str, Sequence[int]] = {}
        for path in self._discrete:
            count = len(self._bounds[path])
            script[path], place = place[:count], place[count:]
        for path, part in self._streams.items():
            script[path] = unknowns[part].tolist()
        return self.tamper(Tape(script, self._bounds))

    def secret(self, place: Place, unknowns: Array) -> Secret:
        """What draw_secret draws."""
        source = self.source(place, unknowns)
        with keyed():
            return construction(self.p).draw_secret(self._deal(source), source)

    def dealt(self, place: Place, unknowns: Array) -> list[WrittenShares]:
        """What users 1..N receive of a user that draws this."""
        source = self.source(place, unknowns)
        with keyed():
            deal = self._deal(source)
            secret = construction(self.p).draw_secret(deal, source)
            return self._written_out(deal, secret, source)

    def _deal(self, source: Randomness) -> Deal:
        return new_deal(self.p, self.points, 1, source)

    def _written_out(self, deal: Deal, secret: Secret, source: Randomness) -> list[WrittenShares]:
        rows = np.arange(self.c.rows)
        return [WrittenShares(held(rows)) for held in deal_shares(self.p, deal, secret, source)]

    def masked(self, secret: Secret, given: Input) -> Masked:
        index = np.array(given.support, dtype=np.int64)
        return construction(self.p).mask(
            secret, Sparse(index, np.array(given.values, dtype=np.uint32))
        )

    def answered(self, x: Mapping[int, Masked], held: Mapping[int, WrittenShares]) -> Array:
        """Y of a user that holds these shares."""
        blocks = self.c.answer_chunks(x, held, self.c.answer_shape(len(x)))
        return np.concatenate([groups for _, groups in blocks]).astype(np.int64).reshape(-1)

    def flat(self, shares: WrittenShares) -> Array:
        return np.concatenate(shares.tables).astype(np.int64).reshape(-1)

    def shaped(self, flat: Array) -> WrittenShares:
        return WrittenShares(tuple(flat.astype(np.uint32).reshape(self.share_shape)))

    # reading off the maps

    def _trials(self, size: int) -> list[Array]:
        rng = np.random.default_rng(size)
        return [rng.integers(0, self.q, size) for _ in range(self.tries if size else 0)]

    def shares(self, place: Place) -> Shares:
        """From masks and noise to what every user receives."""

        def function(unknowns: Array) -> Array:
            return np.stack([self.flat(held) for held in self.dealt(place, unknowns)])

        offset, matrix = affine_map(function, self.unknowns, self.q, self._trials(self.unknowns))
        noise = matrix[..., self.drawn :].astype(np.uint8).tobytes()
        columns = np.concatenate([offset[..., None], matrix[..., : self.drawn]], axis=2)
        return Shares(columns, self._noises.setdefault(noise, noise))

    def noise_columns(self, noise: bytes) -> Array:
        """(N, share, unknowns of the noise)."""
        table = np.frombuffer(noise, dtype=np.uint8).astype(np.int64)
        return table.reshape(self.p.users, self.share, self.unknowns - self.drawn)

    def _secret_of(self, place: Place, masks: bytes) -> Secret:
        unknowns = np.zeros(self.unknowns, dtype=np.int64)
        unknowns[: self.drawn] = np.frombuffer(masks, dtype=np.int64)
        return self.secret(place, unknowns)

    def masking(self, place: Place, support: Support, values: Values | None = None) -> Masking:
        """X of an input, its values as an affine map of the masks; or of the input's values and the
        masks."""
        count = len(support) if values is None else 0
        seen: set[tuple[int, ...]] = set()

        def function(v: Array) -> Array:
            given = Input(support, tuple(v[:count].tolist()) if values is None else values)
            x = self.masked(self._secret_of(place, v[count:].tobytes()), given)
            seen.add(tuple(x.index.tolist()))
            return x.value.astype(np.int64)

        x = affine_map(function, count + self.drawn, self.q, self._trials(count + self.drawn))
        if len(seen) != 1:
            raise NotAffine("the indices of X depend on masks or values")
        return Masking(seen.pop(), x)

    def terms(self, index: tuple[int, ...], survivors: int) -> Array:
        """From the shares that a user holds of one survivor to their part of Y, (1 + entries,
        answer, share): the first for x = 0, then what each x adds. Y is linear in the shares for
        fixed X, and affine in x."""
        entries = len(index)
        nothing = self.shaped(np.zeros(self.share, dtype=np.int64))

        def part(x: Array, held: Array, survivor: int = 1) -> Array:
            masked = Masked(np.array(index, dtype=np.uint32), x.astype(np.uint32))
            shares = dict.fromkeys(range(1, survivors + 1), nothing) | {survivor: self.shaped(held)}
            everybodys = dict.fromkeys(range(1, survivors + 1), masked)
            return self.answered(everybodys, shares)

        result = np.stack(
            [
                np.stack([part(x, unit) for unit in np.eye(self.share, dtype=np.int64)], axis=-1)
                for x in np.eye(1 + entries, entries, k=-1, dtype=np.int64)
            ]
        )
        result[1:] = (result[1:] - result[0]) % self.q
        for i, point in enumerate(self._trials(entries + self.share)):
            x, held = point[:entries], point[entries:]
            expected = times(self._at(result, tuple(x)), held, self.q)
            if not np.array_equal(part(x, held, survivor=survivors - i % survivors), expected):
                raise NotAffine
        return result

    def _at(self, terms: Array, x: Sequence[int]) -> Array:
        return np.tensordot(np.array([1, *x]), terms, axes=1) % self.q

    # parts

    def part_map(self, view: PartView, shares: Array, heard: Broadcast) -> Array:
        """(S, G) as the view has them, for a given X, of columns of shares (N, share, columns)."""
        parts = [shares[[c - 1 for c in view.coalition]].reshape(-1, shares.shape[-1])]
        for survivors, member, answering in view.questions:
            if not member:
                size = self.answer(survivors) * len(answering)
                parts.append(np.zeros((size, shares.shape[-1]), dtype=np.int64))
                continue
            terms = self._at(self.terms(heard.index, survivors), heard.values)
            parts += [times(terms, shares[n - 1], self.q) for n in answering]
        return np.concatenate(parts)

    def noise_basis(self, view: PartView, noise: bytes, heard: Broadcast) -> Basis:
        """The directions in which the noise moves a part."""
        return self.algebra.basis(self.part_map(view, self.noise_columns(noise), heard).T)

    def canonical(self, noise: Basis, directions: Array, vectors: Array) -> tuple[Basis, Array]:
        """The space of the noise with further directions, which mostly lie in it; and vectors
        modulo it."""
        self.spaces += len(vectors)
        reduced = noise.reduced(np.concatenate([directions, vectors]))
        rest = reduced[: len(directions)]
        if not np.any(rest):
            return noise, reduced[len(directions) :]
        basis = self.algebra.basis(np.concatenate([noise.rows, rest]))
        return basis, basis.reduced(vectors)

    def places_by_x(self, given: Input) -> dict[Broadcast, list[Place]]:
        """The places that lead from an input to the indices of each possible X."""
        found: dict[Broadcast, list[Place]] = {}
        for place in self.places:
            heard = Broadcast(self.masking(place, *given).index, ())
            found.setdefault(heard, []).append(place)
        return found

    def places_to(self, given: Input, heard: Broadcast) -> list[Place]:
        """The places at which an input can lead to an X."""
        return self.places_by_x(given).get(heard._replace(values=()), [])

    def part_law(self, view: PartView, given: Input, heard: Broadcast) -> Law:
        """The law of (S, G) and X = heard."""
        law: Law = {}
        for place in self.places_to(given, heard):
            offset, by_masks = self.masking(place, *given).x
            particular, check, free = self.algebra.solver(by_masks)
            wanted = (np.array(heard.values) - offset) % self.q
            if np.any(times(check, wanted, self.q)):
                continue
            directions = with_offset(times(particular, wanted, self.q), free)
            columns, noise = self.shares(place)
            images = times(self.part_map(view, columns, heard), directions, self.q).T
            basis, reduced = self.canonical(
                self.noise_basis(view, noise, heard), images[1:], images[:1]
            )
            space = AffineSpace.of(basis, reduced[0])
            weight = Fraction(1, len(self.places) * self.q ** (self.drawn - free.shape[1]))
            law[space] = law.get(space, Fraction(0)) + weight
        return law


def with_offset(starts: Array, directions: Array) -> Array:
    """What to multiply with (offset, matrix) to get the images of starts, and those of
    directions."""
    columns = np.column_stack([starts, directions])
    count = columns.shape[1] - directions.shape[1]
    return np.concatenate([np.arange(columns.shape[1])[None] < count, columns])
