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

from topk_secagg.algebra.field import Symbols, to_field
from topk_secagg.algebra.randomness import Randomness
from topk_secagg.protocol.construction import Construction
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


many_blocks = replaced(Construction, chunk_rows=1)


@dataclass(frozen=True)
class Sabotage:
    """What is spoilt. `setting` spoils nothing by itself. `fewer`: who of the users but the last
    answers for these alone, too."""

    name: str
    tamper: Tamper = lambda source: source
    patches: Patches = nullcontext
    setting: Patches = nullcontext
    fewer: str = "none"


SABOTAGES = [
    Sabotage("noise of f left out", stream("noise", ...)),
    Sabotage("noise of h left out", stream("noise", ..., turn=2)),
    Sabotage("the same noise in f and h", stream("noise", ..., what_f_has, turn=2)),
    Sabotage("a noise vector of f for two rows", stream("noise", (1, 0), first_row)),
    Sabotage("a noise vector of h for two rows", stream("noise", (1, 0), first_row, turn=2)),
    Sabotage("a mask used for two picks", stream("mask", 1, first_pick)),
    Sabotage("an order of X that the input decides", patches=in_order(up_or_down)),
    Sabotage("all blocks of noise from one stream", OneStream, setting=many_blocks),
    Sabotage("two answers for two survivor sets", fewer="all"),
    Sabotage("one answer for another survivor set", fewer="one"),
]
# The same without sabotage, one for each setting
TWINS = [
    Sabotage("nothing spoilt"),
    Sabotage("nothing spoilt, noise in many blocks", setting=many_blocks),
]
# What gives nothing away; see test_the_order_of_x_reveals_nothing
HARMLESS = [
    Sabotage("X in order of k", patches=in_order(lambda given, _: given.index)),
    Sabotage(
        "X in order of magnitude",
        patches=in_order(lambda given, _: -given.value.astype(np.int64)),
    ),
]

SMALL = {  # by T
    1: Case(3, 2, 1, L=3, K=2),
    2: Case(4, 3, 2, L=3, K=2),
}


def spoilt_lab(sabotage: Sabotage, T: int) -> Lab:
    """To be used within the setting and the patches."""
    return Lab(SMALL[T].parameters(), sabotage.tamper)


def try_sabotage(sabotage: Sabotage, T: int, broadcasts: int = 6) -> Witness | None:
    """Whether users 1..T tell two inputs of two honest users from the same two, exchanged."""
    with sabotage.setting(), sabotage.patches():
        lab = spoilt_lab(sabotage, T)
        *coalition, a, b = lab.users
        view = view_of(lab, coalition)
        fewer = lab.users[:-1]
        if sabotage.fewer != "none":
            more = Answered(fewer, fewer if sabotage.fewer == "all" else (a,))
            view = View(view.coalition, (*view.answered, more))
        one = {a: Input((0, 1), (1, 2)), b: Input((1, 2), (5, 4))}
        other = {a: one[b], b: one[a]}
        joint = Joint(lab, view)
        heard = joint.played(one, broadcasts) + joint.played(other, broadcasts, seed=1)
        return compare(lab, view, one, other, heard)
