"""Ways to spoil the scheme: between the source of randomness and the package, or in the package itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from affine import Joint, View, Witness, compare, view_of
from cases import Case
from lab import Input, Lab

from topk_secagg.algebra.field import Symbols, add
from topk_secagg.algebra.randomness import Randomness
from topk_secagg.protocol import parameters, permutation, rotation
from topk_secagg.protocol.messages import Masked, Secret, Sparse, Terms
from topk_secagg.protocol.parameters import Parameters

Spoil = Callable[[list[Symbols]], None]
BOTH = ("permutation", "rotation")


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


def of_f_left_out(drawn: list[Symbols]) -> None:
    if len(drawn) == 1:
        drawn[-1][:] = 0


def of_h_left_out(drawn: list[Symbols]) -> None:
    if len(drawn) == 2:
        drawn[-1][:] = 0


def of_f_again_in_h(drawn: list[Symbols]) -> None:
    if len(drawn) == 2:
        drawn[-1][:] = drawn[0]


def of_f_shared_by_two_rows(drawn: list[Symbols]) -> None:
    """One of the T noise vectors; the others stay fresh."""
    if len(drawn) == 1:
        drawn[-1][1, 0] = drawn[-1][0, 0]


def of_h_shared_by_two_rows(drawn: list[Symbols]) -> None:
    if len(drawn) == 2:
        drawn[-1][1, 0] = drawn[-1][0, 0]


def mask_used_twice(drawn: list[Symbols]) -> None:
    drawn[-1][1] = drawn[-1][0]


def biased_draw(p: Parameters, source: Randomness) -> Secret:
    """Places reduced from a range that M does not divide."""
    place = source.child("place").integers(p.width + 1, np.empty(p.rows, dtype=np.uint32))
    mask = source.child("mask").integers(p.field, np.empty(p.rows, dtype=np.uint32))
    return Secret(place % np.uint32(p.width), mask)


def unreduced_mask(p: Parameters, secret: Secret, sparse: Sparse) -> Masked:
    """Delta as k - s + M, not reduced modulo M."""
    delta = sparse.index // p.buckets - secret.place.astype(np.int64) + p.width
    return Masked(delta.astype(np.uint32), add(sparse.value, secret.mask, p.field))


def reducing_terms(p: Parameters, masked: Masked) -> Terms:
    """The receivers of such a delta reduce it."""
    row = np.arange(p.rows, dtype=np.int64)
    return Terms(row, masked.index.astype(np.int64) % p.width, row // (p.picks * p.blocks))


def in_order(key: Callable[[Sparse, Symbols], npt.NDArray[np.int64]]) -> Callable[..., Masked]:
    """permutation.mask with the entries in the order of a key of the input and the permuted indices."""

    def mask(p: Parameters, secret: Secret, sparse: Sparse) -> Masked:
        index = secret.place[sparse.index]
        value = add(sparse.value, secret.mask[sparse.index], p.field)
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


def replaced(module: object, **attributes: object) -> Callable[[], AbstractContextManager[object]]:
    """Patches that put these in place of what the module has."""
    return lambda: patch.multiple(module, **attributes)


@dataclass(frozen=True)
class Sabotage:
    name: str
    constructions: tuple[str, ...] = BOTH
    tamper: Callable[[Randomness], Randomness] = lambda source: source
    patches: Callable[[], AbstractContextManager[object]] = nullcontext
    answers: int = 1


def noise(spoil: Spoil) -> Callable[[Randomness], Randomness]:
    return lambda source: Spoiling(source, "noise", spoil)


def masks(spoil: Spoil) -> Callable[[Randomness], Randomness]:
    return lambda source: Spoiling(source, "mask", spoil)


ROTATION, PERMUTATION = ("rotation",), ("permutation",)
NONE = Sabotage("nothing spoilt")
SABOTAGES = [
    Sabotage("noise of f left out", tamper=noise(of_f_left_out)),
    Sabotage("noise of h left out", tamper=noise(of_h_left_out)),
    Sabotage("the same noise in f and h", tamper=noise(of_f_again_in_h)),
    Sabotage("a noise vector of f shared by two rows", tamper=noise(of_f_shared_by_two_rows)),
    Sabotage("a noise vector of h shared by two rows", tamper=noise(of_h_shared_by_two_rows)),
    Sabotage(
        "all blocks of noise from one stream",
        tamper=OneStream,
        patches=replaced(parameters, _BLOCK_SYMBOLS=1),
    ),
    Sabotage("a mask used for two picks", tamper=masks(mask_used_twice)),
    Sabotage("delta from places with modulo bias", ROTATION, patches=replaced(rotation, draw=biased_draw)),
    Sabotage(
        "delta not reduced modulo M",
        ROTATION,
        patches=replaced(rotation, mask=unreduced_mask, terms=reducing_terms),
    ),
    Sabotage("two answers for two survivor sets", answers=2),
    Sabotage(
        "an order of X that the input decides upon",
        PERMUTATION,
        patches=replaced(permutation, mask=in_order(up_or_down)),
    ),
]
# What gives nothing away; see test_the_order_of_x_gives_nothing_away
HARMLESS = [
    Sabotage("X in order of k", PERMUTATION, patches=replaced(permutation, mask=in_order(by_coordinate))),
    Sabotage(
        "X in order of magnitude", PERMUTATION, patches=replaced(permutation, mask=in_order(by_magnitude))
    ),
]

SMALL = {
    ("permutation", 1): Case(3, 2, 1, L=3, K=2),
    ("permutation", 2): Case(4, 3, 2, L=3, K=2),
    ("rotation", 1): Case(3, 2, 1, L=6, K=2, P=1),
    ("rotation", 2): Case(4, 3, 2, L=6, K=2, P=1),
}


def try_sabotage(
    sabotage: Sabotage, construction: str, elimination: str, T: int = 1, broadcasts: int = 6
) -> Witness | None:
    """Whether users 1..T tell two inputs of two honest users from the same two, exchanged."""
    with sabotage.patches():
        lab = Lab(SMALL[construction, T].parameters(elimination), sabotage.tamper)
        users = tuple(range(1, lab.p.users + 1))
        *coalition, a, b = users
        view = view_of(lab, coalition)
        if sabotage.answers == 2:
            fewer = users[:-1]
            view = View(view.coalition, (*view.answered, (fewer, fewer)), view.heard)
        supports = [(0, 1), (1, 2)] if construction == "permutation" else [(0, 1), (2, 5)]
        one = {a: Input(supports[0], (1, 2)), b: Input(supports[1], (5, 3))}
        other = {a: one[b], b: one[a]}
        joint = Joint(lab, view)
        heard = joint.played(one, broadcasts) + joint.played(other, broadcasts, seed=1)
        return compare(lab, view, one, other, heard)
