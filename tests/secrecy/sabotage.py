"""Ways to spoil the scheme: between the source of randomness and the package, or in the package itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from affine import Answered, Joint, View, Witness, compare, view_of
from cases import Case
from lab import Input, Lab

from topk_secagg.algebra.field import Symbols, add, multiply
from topk_secagg.algebra.randomness import Randomness
from topk_secagg.protocol import constructions, moments
from topk_secagg.protocol.messages import Masked, Secret, Sparse
from topk_secagg.protocol.moments import Moments
from topk_secagg.protocol.permutation import Permutation

Spoil = Callable[[list[Symbols]], None]
Patches = Callable[[], AbstractContextManager[object]]


class Spoilt(Randomness):
    """A stream whose integers are spoilt: `spoil` gets all arrays drawn so far, and may change the last."""

    def __init__(self, inner: Randomness, spoil: Spoil) -> None:
        self._inner, self._spoil = inner, spoil
        self._drawn: list[Symbols] = []

    def fill(self, out: npt.NDArray[np.uint8]) -> None:
        self._inner.fill(out)

    def child(self, label: str) -> Randomness:
        return self._inner.child(label)

    def integers(self, bound: int, out: Symbols) -> Symbols:
        self._inner.integers(bound, out)
        self._drawn.append(out)
        self._spoil(self._drawn)
        self._drawn[-1] = out.copy()
        return out


class Spoiling(Randomness):
    """A source whose streams of one purpose are spoilt."""

    def __init__(self, inner: Randomness, purpose: str, spoil: Spoil) -> None:
        self._inner, self._purpose, self._spoil = inner, purpose, spoil

    def fill(self, out: npt.NDArray[np.uint8]) -> None:
        self._inner.fill(out)

    def child(self, label: str) -> Randomness:
        inner = self._inner.child(label)
        return Spoilt(inner, self._spoil) if label.startswith(self._purpose) else inner


class OneStream(Randomness):
    """A source that gives all blocks of noise from the stream of the first."""

    def __init__(self, inner: Randomness) -> None:
        self._inner = inner

    def fill(self, out: npt.NDArray[np.uint8]) -> None:
        self._inner.fill(out)

    def child(self, label: str) -> Randomness:
        return self._inner.child("noise 0" if label.startswith("noise") else label)


def first_left_out(drawn: list[Symbols]) -> None:
    if len(drawn) == 1:
        drawn[-1][:] = 0


def second_left_out(drawn: list[Symbols]) -> None:
    if len(drawn) == 2:
        drawn[-1][:] = 0


def first_again(drawn: list[Symbols]) -> None:
    if len(drawn) == 2:
        drawn[-1][:] = drawn[0]


def first_shared_by_two_rows(drawn: list[Symbols]) -> None:
    """One of the T noise vectors; the others stay fresh."""
    if len(drawn) == 1:
        drawn[-1][1, 0] = drawn[-1][0, 0]


def second_shared_by_two_rows(drawn: list[Symbols]) -> None:
    if len(drawn) == 2:
        drawn[-1][1, 0] = drawn[-1][0, 0]


def one_of_t_left_out(drawn: list[Symbols]) -> None:
    drawn[-1][:, -1] = 0


def used_twice(drawn: list[Symbols]) -> None:
    drawn[-1][1] = drawn[-1][0]


def always_zero(drawn: list[Symbols]) -> None:
    drawn[-1][:] = 0


def draw_below(bound: Callable[[Moments], int]) -> Callable[[Moments, Randomness], Secret]:
    """Moments.draw with places that are drawn below this, and then reduced modulo n."""

    def draw(self: Moments, source: Randomness) -> Secret:
        mask = source.child("mask").integers(self.p.field - 1, np.empty(self.rows, dtype=np.uint32))
        place = source.child("place").integers(bound(self), np.empty(self.rows, dtype=np.uint32))
        return Secret(place % np.uint32(self.order), mask + np.uint32(1))

    return draw


def zeros_too(self: Moments, secret: Secret, sparse: Sparse) -> Masked:
    """Moments.mask that does not refuse zeros."""
    delta = (sparse.index // self.p.buckets - secret.place.astype(np.int64)) % self.order
    return Masked(delta.astype(np.uint32), multiply(sparse.value, secret.mask, self.p.field))


def unreduced(self: Moments, secret: Secret, sparse: Sparse) -> Masked:
    """Moments.mask with delta = k - s + n, not reduced modulo n."""
    delta = sparse.index // self.p.buckets - secret.place.astype(np.int64) + self.order
    return Masked(delta.astype(np.uint32), multiply(sparse.value, secret.mask, self.p.field))


def in_order(key: Callable[[Sparse, Symbols], npt.NDArray[np.int64]]) -> Callable[..., Masked]:
    """Permutation.mask with the entries in the order of a key of the input and the permuted indices."""

    def mask(self: Permutation, secret: Secret, sparse: Sparse) -> Masked:
        index = secret.place[sparse.index]
        value = add(sparse.value, secret.mask[sparse.index], self.p.field)
        order = np.argsort(key(sparse, index), kind="stable")
        return Masked(index[order], value[order])

    return mask


def by_coordinate(sparse: Sparse, _: Symbols) -> npt.NDArray[np.int64]:
    return sparse.index


def by_magnitude(sparse: Sparse, _: Symbols) -> npt.NDArray[np.int64]:
    return -sparse.value.astype(np.int64)


def up_or_down(sparse: Sparse, index: Symbols) -> npt.NDArray[np.int64]:
    """By permuted index, upwards if coordinate 0 was selected and downwards if not."""
    return index.astype(np.int64) * (1 if 0 in sparse.index else -1)


def replaced(owner: object, **attributes: object) -> Patches:
    """Patches that put these in place of what a class has."""
    return lambda: patch.multiple(owner, **attributes)


@contextmanager
def many_blocks() -> Iterator[None]:
    """Blocks of one row."""
    with patch.object(constructions, "BLOCK_SYMBOLS", 1), patch.object(moments, "_CHECK_BYTES", 1):
        yield


@dataclass(frozen=True)
class Sabotage:
    """What is spoilt. `setting` spoils nothing by itself; `values` are those of the first honest user.
    `fewer`: who of the users but the last answers for these alone, too."""

    name: str
    constructions: tuple[str, ...]
    tamper: Callable[[Randomness], Randomness] | None = None
    patches: Patches = nullcontext
    setting: Patches = nullcontext
    values: tuple[int, int] = (1, 2)
    fewer: str = "nobody"


def stream(purpose: str, spoil: Spoil) -> Callable[[Randomness], Randomness]:
    return lambda source: Spoiling(source, purpose, spoil)


PERMUTATION, MOMENTS = ("permutation",), ("moments",)
BOTH = PERMUTATION + MOMENTS
SABOTAGES = [
    Sabotage("noise of f left out", PERMUTATION, stream("noise", first_left_out)),
    Sabotage("noise of h left out", PERMUTATION, stream("noise", second_left_out)),
    Sabotage("the same noise in f and h", PERMUTATION, stream("noise", first_again)),
    Sabotage(
        "a noise vector of f shared by two rows", PERMUTATION, stream("noise", first_shared_by_two_rows)
    ),
    Sabotage(
        "a noise vector of h shared by two rows", PERMUTATION, stream("noise", second_shared_by_two_rows)
    ),
    Sabotage("a mask used for two picks", PERMUTATION, stream("mask", used_twice)),
    Sabotage(
        "an order of X that the input decides upon",
        PERMUTATION,
        patches=replaced(Permutation, mask=in_order(up_or_down)),
    ),
    Sabotage("no noise", MOMENTS, stream("noise", first_left_out)),
    Sabotage("one of the T noise vectors left out", MOMENTS, stream("noise", one_of_t_left_out)),
    Sabotage("a noise vector shared by two picks", MOMENTS, stream("noise", first_shared_by_two_rows)),
    Sabotage("the same rho for two picks", MOMENTS, stream("mask", used_twice)),
    Sabotage("the same s for two picks", MOMENTS, stream("place", used_twice)),
    Sabotage("rho = 1", MOMENTS, stream("mask", always_zero)),
    Sabotage("a zero sent as zero", MOMENTS, patches=replaced(Moments, mask=zeros_too), values=(0, 2)),
    Sabotage("s below M, not n", MOMENTS, patches=replaced(Moments, draw=draw_below(lambda c: c.places))),
    Sabotage(
        "s with modulo bias", MOMENTS, patches=replaced(Moments, draw=draw_below(lambda c: c.order + 1))
    ),
    Sabotage("delta not reduced modulo n", MOMENTS, patches=replaced(Moments, mask=unreduced)),
    Sabotage("all blocks of noise from one stream", BOTH, OneStream, setting=many_blocks),
    Sabotage("two answers for two survivor sets", BOTH, fewer="all"),
    Sabotage("one answer for another survivor set", BOTH, fewer="one"),
]
# The same without sabotage, one for each setting
TWINS = [
    Sabotage("nothing spoilt", BOTH),
    Sabotage("nothing spoilt, noise in many blocks", BOTH, setting=many_blocks),
]
# What gives nothing away; see test_the_order_of_x_gives_nothing_away
HARMLESS = [
    Sabotage("X in order of k", PERMUTATION, patches=replaced(Permutation, mask=in_order(by_coordinate))),
    Sabotage(
        "X in order of magnitude", PERMUTATION, patches=replaced(Permutation, mask=in_order(by_magnitude))
    ),
]

SMALL = {
    ("permutation", 1): Case(3, 2, 1, L=3, K=2),
    ("permutation", 2): Case(4, 3, 2, L=3, K=2),
    ("moments", 1): Case(3, 2, 1, L=8, K=2, P=1, spare=0),  # M = 4 < n = 6
    ("moments", 2): Case(4, 3, 2, L=8, K=2, P=1, spare=0),  # M = 4 < n = 5
}


def spoilt_lab(sabotage: Sabotage, construction: str, T: int) -> Lab:
    """To be used within the setting and the patches."""
    return Lab(SMALL[construction, T].parameters(), sabotage.tamper or (lambda source: source))


def try_sabotage(sabotage: Sabotage, construction: str, T: int, broadcasts: int = 6) -> Witness | None:
    """Whether users 1..T tell two inputs of two honest users from the same two, exchanged."""
    with sabotage.setting(), sabotage.patches():
        lab = spoilt_lab(sabotage, construction, T)
        *coalition, a, b = lab.users
        view = view_of(lab, coalition)
        if sabotage.fewer != "nobody":
            u1 = lab.users[:-1]
            more = Answered(u1, u1 if sabotage.fewer == "all" else (a,))
            view = View(view.coalition, (*view.answered, more), view.heard)
        supports = [(0, 1), (1, 2)] if construction == "permutation" else [(0, 1), (2, 5)]
        one = {a: Input(supports[0], sabotage.values), b: Input(supports[1], (5, 4))}
        other = {a: one[b], b: one[a]}
        joint = Joint(lab, view)
        heard = joint.played(one, broadcasts) + joint.played(other, broadcasts, seed=1)
        return compare(lab, view, one, other, heard)
