"""`sketch` by keys and shares: T users learn nothing but the sum. See the head of linear.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from cases import DEALINGS, SKETCHES, sketch_parameters
from linear import Leak, Setup, SketchLab
from sabotage import stream

from topk_secagg.algebra.streams import StreamSums
from topk_secagg.protocol import family as families
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.deal import Block, Deal
from topk_secagg.protocol.held import KeyShares
from topk_secagg.protocol.messages import Masked, Secret
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.protocol.sketch import Sketch


@cache
def lab_of(p: Parameters) -> SketchLab:
    return SketchLab(Setup(p))


@pytest.mark.parametrize("dealing", DEALINGS)
@pytest.mark.parametrize("name", SKETCHES)
def test_at_most_t_users_learn_nothing_but_the_sum(name, dealing):
    """All coalitions, all U1, all answers, all inputs."""
    *users, raw = SKETCHES[name]
    lab = lab_of(sketch_parameters(*users, **raw, dealing=dealing))
    found = [leak for size in range(lab.p.colluders + 1) for leak in lab.leaks(size)]
    assert len(found) > 1
    assert not any(found)


@pytest.mark.parametrize("dealing", DEALINGS)
@pytest.mark.parametrize(
    "name",
    ["D = 1", "five users", "W < M", "everything is sent whole", "some is sent whole, and W < M"],
)
def test_t_plus_1_users_learn_something(name, dealing):
    """So T is all that can be had."""
    *users, raw = SKETCHES[name]
    lab = lab_of(sketch_parameters(*users, **raw, dealing=dealing))
    for coalition in combinations(lab.users, lab.p.colluders + 1):
        honest = [m for m in lab.users if m not in coalition]
        u1 = lab.users if len(honest) > 1 else coalition
        assert isinstance(lab.leak(coalition, u1), Leak)


def test_the_cases_are_what_they_are_called():
    def c(name: str) -> Sketch:
        *users, raw = SKETCHES[name]
        return lab_of(sketch_parameters(*users, **raw)).c

    last = c("a last group that is not full")
    assert last.p.buckets % last.p.blocks > 0
    few = c("fewer buckets than D")
    assert few.p.buckets < few.p.blocks
    padded = c("L not divisible by B")
    assert padded.p.length % padded.p.buckets > 0
    assert c("D = 1").width == c("D = 1").sparse.places
    assert c("D = 1").searched == 0
    some = c("W < M")
    assert some.answer_shape(2).width < some.width < some.sparse.places
    two = c("W < M, two buckets")
    assert two.searched == two.p.blocks == 2
    everything = c("everything is sent whole")
    assert everything.sparse.buckets == 0
    assert everything.whole.buckets * everything.width > everything.p.length, "there is padding"
    assert c("some is sent whole").searched == 0 < c("some is sent whole").sparse.buckets
    some = c("some is sent whole, and W < M")
    assert 2 * 2 * some.p.picks < some.answer_shape(2).width == some.whole.places < some.width


def test_by_brute_force_the_views_of_equal_sums_are_equal_and_of_others_differ():
    """All that two honest users can draw: the criterion itself."""
    lab = lab_of(sketch_parameters(3, 2, 1, L=1, K=1))
    first, second = lab.dealer(2), lab.dealer(3)
    used = np.any(first.shares, axis=(0, 1, 2))  # and not only read ahead
    assert np.array_equal(used, np.any(second.shares, axis=(0, 1, 2)))
    count = np.count_nonzero(used)
    assert count == 3
    drawn = np.array(list(product(range(7), repeat=count)))
    parts = {}
    for m, dealer in ((2, first), (3, second)):
        fixed = np.concatenate([dealer.known[1], dealer.masks[0]])[:, used]
        answers = np.concatenate([dealer.shares[0, n] for n in range(3)])[:, used]
        parts[m] = drawn @ fixed.T % 7, drawn @ answers.T % 7

    def view(w: tuple[int, int]) -> Counter[bytes]:
        sides = []
        for (fixed, answers), value in zip(parts.values(), w, strict=True):
            moved = fixed.copy()
            moved[:, -1] = (moved[:, -1] + value * lab.sketches[0, 0]) % 7
            sides.append((moved, answers))
        (one, y1), (two, y2) = sides
        views = Counter()
        for i in range(len(drawn)):
            whole = np.hstack([np.broadcast_to(one[i], one.shape), two, (y1[i] + y2) % 7])
            views.update(map(bytes, whole.astype(np.uint8)))
        return views

    some = view((1, 4))
    assert view((3, 2)) == some
    assert view((5, 0)) == some
    assert not set(view((3, 3))) & set(some), "the sum itself is seen"


# Sabotage


def unmasked_in_bucket_0(self: Sketch, secret: Any, sparse: Any) -> Masked:
    x = MASK(self, secret, sparse)
    value = x.value.copy()
    value[: self.width] = self.sketch(sparse)[0]
    return Masked(x.index, value)


MASK = Sketch.mask


def key_of_the_first_block(self: Deal, block: Block) -> str:
    """Deal.key_label that has one label for the first two blocks."""
    return f"key {self.dealer} {self.family[0] if block in self.family[:2] else block}"


def without_the_first_key(self: KeyShares, c: Any, deal: Deal, user: int, keys: Any) -> None:
    """KeyShares of user 4 that takes a missing key as zero: one of dealer 2."""
    INIT(self, c, deal, user, keys)
    if (user, deal.dealer) == (4, 2):
        self._sums._matrix_mm[0, 0] = 0


INIT = KeyShares.__init__


def labelled(text: str) -> Callable[[], AbstractContextManager[object]]:
    """Deal.symbols_label that leaves something out."""

    def label(self: Deal, block: Block) -> str:
        return text.format(deal=self, block=block)

    return lambda: patch.object(Deal, "symbols_label", label)


READ = StreamSums.read
DRAW = Sketch.draw_secret
NOISE = Sketch._noise


def first_group_of_sums(self: StreamSums, count: int) -> Any:
    """StreamSums.read that gives the symbols of the first group for all."""
    rows = READ(self, count).reshape(len(self._matrix_mm), -1, width_of_three())
    return np.repeat(rows[:, :1], rows.shape[1], axis=1).reshape(len(rows), -1)


def first_group_of_masks(self: Sketch, deal: Deal, source: Any) -> Secret:
    """Sketch.draw_secret with the masks of the first group for all."""
    secret = DRAW(self, deal, source)
    masks = secret.mask.reshape(self.rows, -1)
    return replace(secret, mask=np.repeat(masks[:1], self.rows, axis=0).reshape(-1))


def first_group_of_noise(self: Sketch, rows: slice, source: Any) -> Any:
    """Sketch._noise with that of the first row for all."""
    for z in NOISE(self, rows, source):
        z[:] = z[:1]
        yield z


def width_of_three() -> int:
    return construction(sketch_parameters(*THREE, dealing="keys")).width


def one_polynomial() -> AbstractContextManager[object]:
    """All groups have the polynomials of the first, whatever they are drawn from."""
    patches = ExitStack()
    patches.enter_context(patch.object(StreamSums, "read", first_group_of_sums))
    patches.enter_context(patch.object(Sketch, "draw_secret", first_group_of_masks))
    patches.enter_context(patch.object(Sketch, "_noise", first_group_of_noise))
    return patches


THREE = (4, 3, 1)  # D = 2
WRONG_SIZE = tuple(combinations(range(1, 5), 3))  # and N - U + 1 = 2
SABOTAGES: dict[str, tuple[tuple[str, ...], dict[str, Any], Any]] = {
    "no noise": (("shares",), {"tamper": stream("noise", ...)}, nullcontext),
    "one polynomial for two groups": (DEALINGS, {}, one_polynomial),
    "the mask used for two gradients": (DEALINGS, {"gradients": 2}, nullcontext),
    "X without mask in one bucket": (
        DEALINGS,
        {},
        lambda: patch.object(Sketch, "mask", unmasked_in_bucket_0),
    ),
    "one key for two blocks": (
        ("keys",),
        {},
        lambda: patch.object(Deal, "key_label", key_of_the_first_block),
    ),
    "a label without session": (
        ("keys",),
        {"sessions": ("one", "two")},
        labelled("symbols {deal.dealer} {block} {deal.sharing}"),
    ),
    "a label without the sharing": (
        ("keys",),
        {"sharings": ("once", "twice")},
        labelled("symbols {deal.session} {deal.dealer} {block}"),
    ),
    "a missing key taken as zero": (
        ("keys",),
        {},
        lambda: patch.object(KeyShares, "__init__", without_the_first_key),
    ),
    "blocks of the wrong size": (("keys",), {"family": WRONG_SIZE}, nullcontext),
}
cases_of_sabotage = pytest.mark.parametrize(
    ("name", "dealing"), [(name, d) for name, (some, *_) in SABOTAGES.items() for d in some]
)


def any_leak(lab: SketchLab, *more: tuple[int, ...]) -> Leak | None:
    """Of the coalitions of T users, when all survive."""
    found = (
        lab.leak(coalition, lab.users, *more)
        for coalition in combinations(lab.users, lab.p.colluders)
    )
    return next((leak for leak in found if leak), None)


@cases_of_sabotage
def test_sabotage_is_caught(name, dealing):
    _, changes, patches = SABOTAGES[name]
    setup = replace(Setup(sketch_parameters(*THREE, dealing=dealing)), **changes)
    with patches():
        assert any_leak(SketchLab(setup)) is not None


@pytest.mark.parametrize("dealing", DEALINGS)
def test_without_sabotage_the_same_comparison_finds_nothing(dealing):
    """With two sessions of the same keys, and a session that is prepared twice, too."""
    plain = Setup(sketch_parameters(*THREE, dealing=dealing))
    assert any_leak(SketchLab(plain)) is None
    if dealing == "keys":
        assert any_leak(SketchLab(replace(plain, sessions=("one", "two")))) is None
        assert any_leak(SketchLab(replace(plain, sharings=("once", "twice")))) is None


@pytest.mark.parametrize("dealing", DEALINGS)
@pytest.mark.parametrize("users", [THREE, (4, 3, 2), (5, 4, 2)])
def test_answers_to_two_survivor_sets_are_caught(users, dealing):
    lab = lab_of(sketch_parameters(*users, L=4, K=2, dealing=dealing))
    assert any_leak(lab) is None
    assert any_leak(lab, lab.users) is None, "the same set again tells nothing"
    assert any_leak(lab, lab.users[:-1]) is not None


@pytest.mark.parametrize("users", [THREE, (4, 3, 2), (5, 4, 2)])
def test_a_family_with_any_block_removed_is_caught(users):
    p = sketch_parameters(*users, L=4, K=2)
    lab = lab_of(p)
    family = families.find_family(p, lab.points)
    assert family
    for at in range(len(family)):
        lacking = families.lacking_coalition(p, lab.points, family[:at] + family[at + 1 :])
        assert lacking is not None
        assert any_leak(SketchLab(Setup(p, without=at))) is not None


def test_a_key_given_to_one_user_too_many_is_caught():
    p = sketch_parameters(*THREE, L=4, K=2)
    family = families.find_family(p, lab_of(p).points)
    assert family
    for block in family:
        outside = [m for m in range(1, 5) if m not in block]
        found = [any_leak(SketchLab(Setup(p, extra=((block, m),)))) for m in outside]
        assert any(found)
