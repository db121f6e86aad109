"""Ways to spoil the scheme: between the source of randomness and the package, or in the package
itself."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from affine import Answered, Joint, View, Witness, compare, view_of
from cases import Case
from lab import Input, Lab, Tamper
from topk_secagg.protocol.moments import Moments

from topk_secagg.algebra.field import Symbols, multiply, to_field
from topk_secagg.algebra.randomness import Randomness
from topk_secagg.protocol.construction import Construction
from topk_secagg.protocol.deal import Deal, Rows
from topk_secagg.protocol.messages import Masked, Secret, Sparse
from topk_secagg.protocol.permutation import Permutation

Spoil = Callable[[list[Symbols]], None]
Patches = Callable[[], AbstractContextManager[object]]


class Spoilt(Randomness):
    """A source or stream that is spoilt: `spoil` gets all arrays drawn so far, and may change the
    last."""

    def __init__(self, inner: Randomness, purpose: str = "", spoil: Spoil | None = None) -> None:
        self._inner = inner
        self._purpose = purpose
        self._spoil = spoil
        self._drawn: list[Symbols] = []

    def fill(self, out: npt.NDArray[np.uint8]) -> None:
        self._inner.fill(out)

    def bytes(self, count: int) -> bytes:
        return self._inner.bytes(count)

    def child(self, label: str) -> Randomness:
        inner = self._inner.child(label)
        return (
            type(self)(inner, self._purpose, self._spoil)
            if label.startswith(self._purpose)
            else inner
        )

    def integers(self, bound: int, out: Symbols) -> Symbols:
        self._inner.integers(bound, out)
        self._drawn.append(out)
        if self._spoil:
            self._spoil(self._drawn)
        self._drawn[-1] = out.copy()
        return out


class OneStream(Spoilt):
    """A source that gives all blocks of noise from the stream of the first."""

    def child(self, label: str) -> Randomness:
        return self._inner.child("noise 0" if label.startswith("noise") else label)


def stream(
    purpose: str, at: object, value: Callable[..., Symbols] | None = None, turn: int = 1
) -> Tamper:
    """Replace a part of what the streams of a purpose draw at one turn: by zeros, or by what is
    given that and what they drew first."""

    def spoil(drawn: list[Symbols]) -> None:
        if len(drawn) == turn:
            drawn[-1][at] = value(drawn[-1], drawn[0]) if value else 0

    return lambda source: Spoilt(source, purpose, spoil)


def first_pick(new: Symbols, _: Symbols) -> Symbols:
    return new[0]


def first_row(new: Symbols, _: Symbols) -> Symbols:
    """One of its T noise vectors; the others stay fresh."""
    return new[0, 0]


def what_f_has(_: Symbols, first: Symbols) -> Symbols:
    return first


def draw_below(bound: Callable[[Moments], int]) -> Callable[[Moments, Deal, Randomness], Secret]:
    """Moments.draw_secret with places that are drawn below this, and then reduced modulo n."""

    def draw(self: Moments, _: Deal, source: Randomness) -> Secret:
        mask = source.child("mask").integers(self.p.field - 1, np.empty(self.rows, dtype=np.uint32))
        place = source.child("place").integers(bound(self), np.empty(self.rows, dtype=np.uint32))
        return Secret(place % np.uint32(self.order), mask + np.uint32(1))

    return draw


def reduced_modulo(times_n: int) -> Callable[[Moments, Secret, Sparse], Masked]:
    """Moments.mask that refuses no zeros, with delta = k - s + n reduced modulo a multiple of n."""

    def mask(self: Moments, secret: Secret, sparse: Sparse) -> Masked:
        delta = sparse.index // self.p.buckets - secret.place.astype(np.int64) + self.order
        value = multiply(sparse.value, secret.mask, self.p.field)
        return Masked((delta % (times_n * self.order)).astype(np.uint32), value)

    return mask


def replaced(owner: object, **attributes: object) -> Patches:
    """Patches that put these in place of what a class has."""
    return lambda: patch.multiple(owner, **attributes)


def in_order(key: Callable[[Sparse, Symbols], npt.NDArray[np.int64]]) -> Patches:
    """Permutation.mask with the entries in the order of a key of the input and the permuted
    indices."""

    def mask(self: Permutation, secret: Secret, sparse: Sparse) -> Masked:
        index = secret.place[sparse.index]
        value = to_field(sparse.value.astype(np.int64) + secret.mask[sparse.index], self.p.field)
        order = np.argsort(key(sparse, index), kind="stable")
        return Masked(index[order], value[order])

    return replaced(Permutation, mask=mask)


def up_or_down(sparse: Sparse, index: Symbols) -> npt.NDArray[np.int64]:
    """By permuted index, upwards if coordinate 0 was selected and downwards if not."""
    return index.astype(np.int64) * (1 if 0 in sparse.index else -1)


def first_row_again(self: Rows, _: int, out: Symbols) -> None:
    """Rows.read that gives the first row for all."""
    if self._row == 0:
        self._again = np.empty((1, self._width), dtype=np.uint32)
        self._stream.integers(self._field, self._again)
    self._row += len(out)
    out[:] = self._again


one_seed = replaced(
    Deal,
    key_label=lambda self, _: f"key {self.dealer}",
    symbols_label=lambda self, _: f"symbols {self.dealer}",
)
many_blocks = replaced(Construction, chunk_rows=1)


@dataclass(frozen=True)
class Sabotage:
    """What is spoilt. `setting` spoils nothing by itself; `values` are those of the first honest
    user. `fewer`: who of the users but the last answers for these alone, too."""

    name: str
    constructions: tuple[str, ...]
    tamper: Tamper = lambda source: source
    patches: Patches = nullcontext
    setting: Patches = nullcontext
    values: tuple[int, int] = (1, 2)
    fewer: str = "none"


PERMUTATION, MOMENTS = ("permutation",), ("moments",)
BOTH = PERMUTATION + MOMENTS
SEEDS = ("moments by seeds",)
SABOTAGES = [
    Sabotage("noise of f left out", PERMUTATION, stream("noise", ...)),
    Sabotage("noise of h left out", PERMUTATION, stream("noise", ..., turn=2)),
    Sabotage("the same noise in f and h", PERMUTATION, stream("noise", ..., what_f_has, turn=2)),
    Sabotage("a noise vector of f for two rows", PERMUTATION, stream("noise", (1, 0), first_row)),
    Sabotage(
        "a noise vector of h for two rows", PERMUTATION, stream("noise", (1, 0), first_row, turn=2)
    ),
    Sabotage("a mask used for two picks", PERMUTATION, stream("mask", 1, first_pick)),
    Sabotage("an order of X that the input decides", PERMUTATION, patches=in_order(up_or_down)),
    Sabotage("no noise", MOMENTS, stream("noise", ...)),
    Sabotage("one of the T noise vectors left out", MOMENTS, stream("noise", np.s_[:, -1])),
    Sabotage("a noise vector for two picks", MOMENTS, stream("noise", (1, 0), first_row)),
    Sabotage("the same rho for two picks", MOMENTS, stream("mask", 1, first_pick)),
    Sabotage("the same s for two picks", MOMENTS, stream("place", 1, first_pick)),
    Sabotage("rho = 1", MOMENTS, stream("mask", ...)),
    Sabotage(
        "a zero sent as zero",
        MOMENTS,
        patches=replaced(Moments, mask=reduced_modulo(1)),
        values=(0, 2),
    ),
    Sabotage(
        "s below M, not n",
        MOMENTS,
        patches=replaced(Moments, draw_secret=draw_below(lambda c: c.p.places)),
    ),
    Sabotage(
        "s with modulo bias",
        MOMENTS,
        patches=replaced(Moments, draw_secret=draw_below(lambda c: c.order + 1)),
    ),
    Sabotage(
        "delta not reduced modulo n", MOMENTS, patches=replaced(Moments, mask=reduced_modulo(2))
    ),
    Sabotage("all blocks of noise from one stream", BOTH, OneStream, setting=many_blocks),
    Sabotage("two answers for two survivor sets", BOTH + SEEDS, fewer="all"),
    Sabotage("one answer for another survivor set", BOTH + SEEDS, fewer="one"),
    Sabotage("the same symbols for two picks", SEEDS, patches=replaced(Rows, read=first_row_again)),
]
# With T = 1 only one user has a seed
OF_TWO_SEEDS = [Sabotage("one seed for two users", SEEDS, patches=one_seed)]
# The same without sabotage, one for each setting
TWINS = [
    Sabotage("nothing spoilt", BOTH + SEEDS),
    Sabotage("nothing spoilt, noise in many blocks", BOTH, setting=many_blocks),
]
# What gives nothing away; see test_the_order_of_x_reveals_nothing
HARMLESS = [
    Sabotage("X in order of k", PERMUTATION, patches=in_order(lambda given, _: given.index)),
    Sabotage(
        "X in order of magnitude",
        PERMUTATION,
        patches=in_order(lambda given, _: -given.value.astype(np.int64)),
    ),
]

SMALL = {
    ("permutation", 1): Case(3, 2, 1, L=3, K=2),
    ("permutation", 2): Case(4, 3, 2, L=3, K=2),
    ("moments", 1): Case(3, 2, 1, L=8, K=2, P=1, spare=0),  # M = 4 < n = 6
    ("moments", 2): Case(4, 3, 2, L=8, K=2, P=1, spare=0),  # M = 4 < n = 5
    ("moments by seeds", 1): Case(3, 2, 1, L=6, K=2, P=1, spare=0, dealing="seeds"),
    ("moments by seeds", 2): Case(4, 3, 2, L=6, K=2, P=1, spare=0, dealing="seeds"),
}


def spoilt_lab(sabotage: Sabotage, construction: str, T: int) -> Lab:
    """To be used within the setting and the patches."""
    return Lab(SMALL[construction, T].parameters(), sabotage.tamper)


def try_sabotage(
    sabotage: Sabotage, construction: str, T: int, broadcasts: int = 6
) -> Witness | None:
    """Whether users 1..T tell two inputs of two honest users from the same two, exchanged."""
    with sabotage.setting(), sabotage.patches():
        lab = spoilt_lab(sabotage, construction, T)
        *coalition, a, b = lab.users
        view = view_of(lab, coalition)
        fewer = lab.users[:-1]
        if sabotage.fewer != "none":
            more = Answered(fewer, fewer if sabotage.fewer == "all" else (a,))
            view = View(view.coalition, (*view.answered, more))
        supports = [(0, 1), (1, 2)] if construction == "permutation" else [(0, 1), (2, 5)]
        one = {a: Input(supports[0], sabotage.values), b: Input(supports[1], (5, 4))}
        other = {a: one[b], b: one[a]}
        joint = Joint(lab, view)
        heard = joint.played(one, broadcasts) + joint.played(other, broadcasts, seed=1)
        return compare(lab, view, one, other, heard)
