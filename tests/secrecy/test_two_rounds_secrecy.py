"""Two rounds of low rank, by keys that advance and by shares: T users learn the two sums, and
nothing else. See the head of two_rounds.py."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from itertools import combinations, product

import numpy as np
import pytest
from cases import DEALINGS, SERIES
from fq import times
from lab import keyed
from two_rounds import (
    FIRST,
    FOUR,
    NAME,
    ROUNDS,
    SABOTAGES,
    SAME_LABELS,
    SQUARE,
    SeriesLab,
    Two,
    after_first_sum,
    everybody,
    no_next_key,
    sent,
    signed,
)

from topk_secagg.algebra.bases import digest
from topk_secagg.algebra.randomness import CipherRandomness
from topk_secagg.protocol.decoding import decode
from topk_secagg.protocol.messages import Masked
from topk_secagg.protocol.round import reader_of, sum_of_masked

lab_of = cache(SeriesLab)
each_dealing = pytest.mark.parametrize("dealing", DEALINGS)
# What T users learn


@each_dealing
@pytest.mark.parametrize("name", SERIES)
def test_at_most_t_users_learn_nothing_but_the_two_sums(name, dealing):
    """All coalitions, both U1, all answers, all inputs; and the views of other sums are others."""
    numbers, raw = SERIES[name]
    lab = lab_of(Two(*numbers, dealing, **raw))
    views = [view for size in range(lab.p.colluders + 1) for view in lab.views(size)]
    assert len(views) > 50
    for view in views:
        assert view.leak() is None, (view.coalition, view.sets)
        assert view.is_tight(), (view.coalition, view.sets)


@each_dealing
def test_t_plus_1_users_learn_more(dealing):
    lab = lab_of(Two(*FOUR, dealing))
    for coalition in combinations(lab.users, 2):
        assert lab.view(coalition, everybody(lab)).leak() is not None


# Gradients, and the basis


def matrices(count, seed=0):
    """Small fixed ones, of which some are the same and some are opposed."""
    found = list(np.random.default_rng(seed).integers(-1, 2, (count, 3, 2)).astype(float))
    return [*found, found[0], -found[0]]


def by_sums(lab, *, bases=None, few=3):
    """What users 2 and 3 send of pairs of matrices, by both sums; user 1 is the same in all."""
    some = matrices(few)
    mine = (np.ones((3, 2)), np.array([[1.0, 0], [0, 1], [1, 1]]))
    groups = defaultdict(list)
    for a, b, c, d in product(range(len(some)), repeat=4):
        gradients = {1: mine, 2: (some[a], some[c]), 3: (some[b], some[d])}
        found = sent(lab, gradients, everybody(lab), bases)
        groups[found.sums].append(found)
    return groups


def told_apart(view, ones, others):
    return [not view.hides_difference(one, other) for one, other in zip(ones, others, strict=True)]


def differ(one, other):
    return any(np.any(one.symbols[at] != other.symbols[at]) for at in one.symbols)


@pytest.fixture(params=DEALINGS)
def three(request):
    """N = 3, U = 2, T = 1, and what user 1 sees."""
    lab = lab_of(Two(3, 2, 1, 31, request.param))
    return lab, lab.view((1,), everybody(lab))


def test_gradients_with_equal_sums_have_equal_views_and_others_differ(three):
    lab, view = three
    groups = by_sums(lab)
    assert len({sums[FIRST] for sums in groups}) > 5
    assert len({group[0].basis for group in groups.values()}) > 5, "it follows from the sum"
    equal = [group for group in groups.values() if len(group) > 1]
    assert sum(differ(group[0], other) for group in equal for other in group[1:]) > 100
    for first, *others in equal:
        assert not any(told_apart(view, [first] * len(others), others))
    ones = [group[0] for group in groups.values()]
    assert all(told_apart(view, ones[1:], ones[:-1]))
    same_first = [
        (one, other) for one, other in combinations(ones, 2) if one.sums[FIRST] == other.sums[FIRST]
    ]
    assert len(same_first) > 10
    assert all(one.basis == other.basis for one, other in same_first)
    assert all(told_apart(view, *zip(*same_first, strict=True)))


def steep(*_):
    """It looks at one row alone, and is no basis by length."""
    return [np.array([[0], [3 << 20], [0]], dtype=np.int32)]


def nothing(*_):
    return [np.zeros((3, 1), dtype=np.int32)]


def of_the_coalition(lab, first, first_bases, u1):
    """It follows from what user 1 sent."""
    return after_first_sum(lab, {1: first[1]}, first_bases, (1,))


def of_user_2(lab, first, first_bases, u1):
    """It follows from what an honest user sent, which nobody should know."""
    return after_first_sum(lab, {2: first[2]}, first_bases, (2,))


@pytest.mark.parametrize("bases", [steep, nothing, of_the_coalition])
def test_it_does_not_matter_who_chose_the_basis(three, bases):
    lab, view = three
    groups = by_sums(lab, bases=bases)
    assert any(differ(group[0], other) for group in groups.values() for other in group[1:])
    for first, *others in groups.values():
        assert not any(told_apart(view, [first] * len(others), others))


def test_a_basis_that_follows_from_one_users_symbols_is_caught(three):
    """The twin."""
    lab, view = three
    groups = by_sums(lab, bases=of_user_2).values()
    pairs = [(group[0], other) for group in groups for other in group[1:]]
    assert any(told_apart(view, *zip(*pairs, strict=True)))


# The maps are those of whole rounds


@each_dealing
def test_two_whole_rounds_are_what_the_maps_say(dealing):
    """And decode to both sums, from which the basis follows."""
    lab = lab_of(Two(3, 2, 1, 31, dealing))
    rng = np.random.default_rng(1)
    gradients = {m: tuple(matrices(2, seed=m)[:2]) for m in lab.users}
    sets = lab.users, (1, 3)
    what = sent(lab, gradients, sets)
    dealers = {m: lab.dealer(m) for m in lab.users}
    drawn = {m: rng.integers(0, lab.q, dealer.count) for m, dealer in dealers.items()}
    with keyed(lab.q):
        played = {m: lab.play(m, lab.source(m, drawn[m])) for m in lab.users}
        x = {
            (i, m): lab.x(i, played[m][i].secret, what.symbols[i, m])
            for i, m in product(ROUNDS, lab.users)
        }
    for i, m in product(ROUNDS, lab.users):
        mask = times(dealers[m].masks[i], drawn[m], lab.q)
        moved = times(lab.labs[i].sketches, what.symbols[i, m], lab.q)
        assert np.array_equal(x[i, m], (mask + moved) % lab.q)
    for i, u1 in enumerate(sets):
        c = lab.labs[i].c
        shape = c.answer_shape(len(u1))
        answers = {}
        for n in u1:
            held = {m: played[m][i].shares[n - 1] for m in u1}
            chunks = c.answer_chunks(dict.fromkeys(u1), held, shape)
            answers[n] = np.concatenate([groups for _, groups in chunks])
            of_maps = sum(
                times(
                    lab.labs[i].reach(len(u1)),
                    times(dealers[m].shares[i][n - 1], drawn[m], lab.q),
                    lab.q,
                )
                for m in u1
            )
            assert np.array_equal(answers[n].reshape(-1), of_maps % lab.q)
        heard = [Masked(np.empty(0, np.uint32), x[i, m].astype(np.uint32)) for m in u1]
        total = decode(
            lab.labs[i].p,
            lab.labs[i].points,
            shape,
            {n: reader_of(y) for n, y in answers.items()},
            CipherRandomness(bytes(32)),
            masked_sum=sum_of_masked(lab.labs[i].p, heard, shape),
        ).total
        symbols = np.zeros(lab.reductions[i].length, dtype=np.int64)
        symbols[total.index] = total.value
        assert symbols.astype(np.uint8).tobytes() == what.sums[i]
    right, left = lab.reductions
    following = left.next_bases(right, signed(lab, what.sums[FIRST]), ["tensor 0"], NAME)
    assert digest(following) == what.basis


# Keys and masks that serve twice


@pytest.mark.rule(1)
@pytest.mark.parametrize("name", SABOTAGES)
def test_sabotage_is_caught(name):
    """The twins: without what is changed the same comparison finds nothing."""
    dealing, later, changes = SABOTAGES[name]
    for changed, expected in (({}, False), (changes, True)):
        lab = lab_of(Two(*FOUR, dealing, shapes=SQUARE, **changed))
        found = [lab.view((m,), everybody(lab), later=later).leak() for m in lab.users]
        assert [leak is not None for leak in found] == [expected] * 4


@each_dealing
def test_all_that_there_is_of_the_second_round_says_nothing_of_the_first(dealing):
    """Keys go forwards only: who gets those of all users later learns no earlier input."""
    lab = lab_of(Two(*FOUR, dealing))
    for coalition in [(), *combinations(lab.users, 1)]:
        view = lab.view(coalition, everybody(lab), later=True)
        assert view.leak() is None
        assert view.is_tight()


def test_between_honest_machines_either_is_enough():
    """Keys that advance, or labels that name the session and the sharing: masks differ."""
    for changes in (SAME_LABELS, {"patches": no_next_key}):
        lab = lab_of(Two(*FOUR, "keys", shapes=SQUARE, **changes))
        assert lab.view((1,), everybody(lab)).leak() is None
