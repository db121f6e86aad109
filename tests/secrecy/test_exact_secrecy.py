"""Coalitions of T users learn nothing but the sum: computed, not sampled. See the head of
affine.py."""

from fractions import Fraction
from functools import cache
from itertools import product

import check
import numpy as np
import pytest
from affine import (
    Heard,
    Joint,
    MaskedInputs,
    Undecided,
    View,
    coalitions_of,
    find_witness,
    survivor_sets,
    view_of,
)
from cases import FULL, MORE, QUICK, Case, same_sum
from certificate import NotCertified, certify
from fq import AffineSpace, Array, Elimination, Law, NotAffine, affine_map, probability, times
from lab import Broadcast, Input, Lab, Tape, Unforeseen, keyed
from sabotage import (
    HARMLESS,
    SABOTAGES,
    SMALL,
    TWINS,
    Sabotage,
    Spoilt,
    spoilt_lab,
    try_sabotage,
)

from topk_secagg.algebra.randomness import CipherRandomness, Randomness
from topk_secagg.protocol.messages import Sparse
from topk_secagg.protocol.round import run_round

ONE_OF_EACH = [
    Case(3, 2, 1, L=3, K=2),
    Case(4, 3, 1, L=4, K=2),
    Case(4, 3, 2, L=3, K=2),
    Case(5, 4, 2, L=4, K=2),
]
one_of_each = pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)
SMALLEST = Case(3, 2, 1, L=2, K=1)


@cache
def lab_of(case: Case) -> Lab:
    """A lab whose tables are kept from test to test."""
    return Lab(case.parameters())


# At most T users learn nothing


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_at_most_t_users_learn_nothing_but_the_sum(case):
    """All coalitions, all U2 within U1, all places, all inputs, all broadcasts."""
    outcome = check.certified(case)
    assert not outcome.failure
    assert outcome.spaces >= outcome.coalitions * outcome.places * outcome.supports


@pytest.mark.parametrize("cases", [[*QUICK, *MORE], FULL], ids=["quick", "full"])
def test_the_cases_cover_all_numbers_of_users(cases):
    assert {(c.N, c.U, c.T) for c in cases} >= {(3, 2, 1), (4, 3, 1), (4, 3, 2), (5, 4, 2)}
    assert max(c.K for c in cases) >= 3 <= max(c.L for c in cases) // 2


def test_going_through_every_x_finds_what_the_shear_says():
    lab = lab_of(SMALL[1])
    assert certify(lab, [(2,)], lab.every_x()) > 0


def test_all_joint_inputs_with_the_same_sum_give_the_same_view():
    """Not by parts: every pair of inputs of the two honest users, and of the X of each all indices
    and two x."""
    lab = lab_of(SMALLEST)
    each = [Input(support, values) for support in lab.supports for values in lab.every_x()]
    indices = {x.index for given in each for x in lab.places_by_x(given)}
    some = [Broadcast(index, x) for index in sorted(indices) for x in lab.every_x()[:2]]
    for u1 in ((1, 2, 3), (1, 2)):
        joint = Joint(lab, view_of(lab, [1], u1))
        everything = [{2: a, 3: b} for a, b in product(each, repeat=2)]
        for chosen in product(some, repeat=2):
            heard = dict(zip(joint.honest, chosen, strict=True))
            laws = {}
            for inputs in everything:
                law = joint.law(inputs, heard)
                assert law == laws.setdefault(joint.sum(inputs), law)
            assert len(laws) == len({joint.sum(inputs) for inputs in everything})
            assert len({frozenset(law.items()) for law in laws.values()}) == len(laws), (
                "the sum itself is seen"
            )


@one_of_each
def test_every_u1_and_every_u2_within_it(case):
    """Not by parts: inputs that differ as much as they can with the same sum; one or two coalitions
    of T."""
    lab = lab_of(case)
    first, *_, last = coalitions_of(lab.p, lab.p.colluders, lab.p.colluders)
    some = (first, last) if lab.p.users < 5 else (last,)
    for coalition, (u1, u2) in product(some, survivor_sets(lab.p)):
        joint = Joint(lab, view_of(lab, coalition, u1, u2))
        summed, dropped = [[m for m in joint.honest if (m in u1) is side] for side in (True, False)]
        for alike in same_sum(lab, summed):
            # a user that dropped out may have any input
            whole = [
                inputs
                | dict.fromkeys(
                    dropped, Input(lab.supports[i % len(lab.supports)], (1 + i,) * lab.c.entries)
                )
                for i, inputs in enumerate(alike)
            ]
            assert len(whole) > 1 or len(summed) == 1
            assert len({joint.sum(inputs) for inputs in whole}) == 1
            (heard,) = joint.played(whole[0], 1)
            one, *others = [joint.law(inputs, heard) for inputs in whole]
            assert sum(one.values()) > 0
            assert all(law == one for law in others)


# T+1 users learn something


@one_of_each
def test_every_coalition_of_t_plus_1_learns_something(case):
    """So T is all that can be had. Of (3,2,1) and (4,3,2), T+1 users leave one honest user: if it
    is in U1, they know its input from the sum, and there is nothing else to learn; if not, its X
    gives it away."""
    lab = lab_of(case)
    for coalition in coalitions_of(lab.p, lab.p.colluders + 1, lab.p.colluders + 1):
        found = check.learn_something(lab, coalition)
        assert found is not None
        assert found.one != found.other
        with pytest.raises(NotCertified):
            certify(lab, [coalition])


# Sabotage is caught


def settings(sabotages: list[Sabotage], sizes: tuple[int, ...] = (1, 2)) -> pytest.MarkDecorator:
    chosen = [
        pytest.param(sabotage, T, id=f"{sabotage.name}-T{T}")
        for sabotage, T in product(sabotages, sizes)
    ]
    return pytest.mark.parametrize(("sabotage", "T"), chosen)


@settings(SABOTAGES)
@pytest.mark.rule(1, 2, 4, 5, 11)
def test_sabotage_is_caught(sabotage, T):
    witness = try_sabotage(sabotage, T)
    assert witness is not None
    assert witness.one != witness.other


@settings(TWINS)
def test_without_sabotage_the_same_comparison_finds_nothing(sabotage, T):
    assert try_sabotage(sabotage, T) is None
    assert {spoilt.setting for spoilt in SABOTAGES} == {twin.setting for twin in TWINS}


@settings([s for s in SABOTAGES if s.fewer == "none"], sizes=(1,))  # what `certify` can see
def test_sabotage_is_not_certified(sabotage, T):
    with sabotage.setting(), sabotage.patches(), pytest.raises((NotCertified, NotAffine)):
        certify(spoilt_lab(sabotage, T), [(1,)])


@pytest.mark.parametrize("sabotage", TWINS, ids=lambda twin: twin.name)
def test_without_sabotage_it_is_certified(sabotage):
    with sabotage.setting():
        assert certify(spoilt_lab(sabotage, 1), [(1,)])


@settings(HARMLESS)
def test_the_order_of_x_reveals_nothing(sabotage, T):
    """X in order of k, or of magnitude, is not sabotage, and no exact check can find that it is.

    Let k_1..k_K be the selected coordinates in an order that the input alone decides. X is then the
    list of (pi(k_j), w_j + r_j). pi is uniform, so that (pi(k_1)..pi(k_K)) is a uniform list of
    distinct indices, for any k_j; the shares of T users are independent of pi; and Y is a function
    of those shares, of the set of the entries of X, and of the sum. So the list is independent of
    the input, given the rest of the view. Sorting saves log2 K! bits, and makes X independent of
    how the caller lists the entries. An order that depends on the input *and* on the permuted
    indices can tell: see `up_or_down`.
    """
    assert try_sabotage(sabotage, T, broadcasts=10) is None


@pytest.mark.parametrize("T", [1, 2])
def test_the_order_of_k_reveals_nothing_for_any_inputs(T):
    with HARMLESS[0].patches():
        lab = spoilt_lab(HARMLESS[0], T)
        assert certify(lab, coalitions_of(lab.p, 0, T)) > 0
        assert len({lab.masking(place, (0, 1)).index for place in lab.places}) == 6


def test_noise_that_is_not_uniform_is_refused():
    class Short(Spoilt):
        def integers(self, bound, out):
            return self._inner.integers(bound - 1, out)

    with pytest.raises(Unforeseen, match="not uniform"):
        Lab(SMALL[1].parameters(), lambda source: Short(source, "noise"))


# The parts are those of a whole round


class DrawnRound:
    """A whole round of the package, with everything that everybody draws at random."""

    def __init__(self, lab: Lab, view: View, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.lab = lab
        self.view = view
        self.inputs = {
            m: Input(
                lab.supports[rng.integers(len(lab.supports))],
                tuple(rng.integers(0, lab.q, lab.c.entries).tolist()),
            )
            for m in lab.users
        }
        self.places = {m: lab.places[rng.integers(len(lab.places))] for m in lab.users}
        self.unknowns = {m: rng.integers(0, lab.q, lab.unknowns) for m in lab.users}

    def play(self) -> None:
        lab = self.lab
        self.dealt = {m: lab.dealt(self.places[m], self.unknowns[m]) for m in lab.users}
        self.masked = {
            m: lab.masked(lab.secret(self.places[m], self.unknowns[m]), self.inputs[m])
            for m in lab.users
        }

    def seen(self) -> Array:
        """The view, without the coalition's own terms in Y."""
        lab = self.lab
        nothing = self.lab.shaped(np.zeros(self.lab.share, dtype=np.int64))
        shares = [
            lab.flat(self.dealt[m][c - 1])
            for m in self.view.honest(lab)
            for c in self.view.coalition
        ]
        answers = []
        for u1, u2 in self.view.answered:
            x = {m: self.masked[m] for m in u1}
            for n in u2:
                held = {m: self.dealt[m][n - 1] for m in u1}
                own = {m: held[m] if m in self.view.coalition else nothing for m in u1}
                whole, known = (lab.answered(x, some) for some in (held, own))
                answers.append((whole - known) % lab.q)
        return np.concatenate([*shares, *answers])


class Everybody(CipherRandomness):
    """What run_round needs: the sources of all users."""

    played: DrawnRound

    def child(self, label: str) -> Randomness:
        if not label.startswith("user "):
            return super().child(label)
        m = int(label.removeprefix("user "))
        return self.played.lab.source(self.played.places[m], self.played.unknowns[m])


@one_of_each
def test_a_whole_round_is_what_its_parts_say(case):
    lab = lab_of(case)
    for seed, u1 in enumerate([lab.users, lab.users[: case.U], lab.users[-case.U :]]):
        view = view_of(lab, lab.users[-case.T :], u1)
        played = DrawnRound(lab, view, seed)
        played.play()
        joint = Joint(lab, view)
        heard = {m: Broadcast.of(played.masked[m]) for m in joint.honest}
        chance = probability(joint.law(played.inputs, heard), played.seen())
        assert chance > 0
        first, *_, last = [m for m in joint.honest if m in u1] * 2
        exchanged = played.inputs | {first: played.inputs[last], last: played.inputs[first]}
        assert probability(joint.law(exchanged, heard), played.seen()) == chance

        given = {
            m: Sparse(np.array(w.support), np.array(w.values, dtype=np.uint32))
            for m, w in played.inputs.items()
        }
        everybody = Everybody(bytes(32))
        everybody.played = played
        with keyed():
            total = run_round(lab.p, given, u1, u1, everybody)
        found = lab.top_k(Input(tuple(total.index.tolist()), tuple(total.value.tolist())))
        expected = sum(lab.top_k(played.inputs[m]) for m in u1) % lab.q
        assert np.array_equal(found, expected), "and the round decodes to the sum"


def whole_space(played: DrawnRound, heard: Heard) -> AffineSpace:
    """Where the view is, at fixed places: the masks and noise of all honest users are unknowns of
    one map."""
    lab = played.lab
    honest = played.view.honest(played.lab)
    solvers = {}
    wanted = {}
    for m in honest:
        offset, by_masks = lab.masking(played.places[m], *played.inputs[m]).x
        solvers[m] = lab.algebra.solver(by_masks)
        wanted[m] = (np.array(heard[m].values) - offset) % lab.q
    sizes = [solvers[m].free.shape[1] + lab.unknowns - lab.drawn for m in honest]

    def function(unknowns: Array) -> Array:
        for m, mine in zip(honest, np.split(unknowns, np.cumsum(sizes)[:-1]), strict=True):
            particular, _, free = solvers[m]
            masks, noise = np.split(mine, [free.shape[1]])
            drawn = times(particular, wanted[m], lab.q) + times(free, masks, lab.q)
            played.unknowns[m] = np.concatenate([drawn % lab.q, noise])
        played.play()
        assert all(Broadcast.of(played.masked[m]) == heard[m] for m in honest)
        return played.seen()

    rng = np.random.default_rng(1)
    offset, matrix = affine_map(function, sum(sizes), lab.q, [rng.integers(0, lab.q, sum(sizes))])
    basis = lab.algebra.basis(matrix.T)
    return AffineSpace.of(basis, basis.reduced(offset))


def whole_law(lab: Lab, view: View, inputs: MaskedInputs, heard: Heard) -> Law:
    """The law of the view, not by parts."""
    played = DrawnRound(lab, view, 0)
    honest = view.honest(lab)
    played.inputs |= inputs
    law: Law = {}
    for places in product(*(lab.places_to(inputs[m], heard[m]) for m in honest)):
        played.places |= dict(zip(honest, places, strict=True))
        space = whole_space(played, heard)
        of_one = Fraction(1, len(lab.places) * lab.q**lab.c.entries)
        law[space] = law.get(space, Fraction(0)) + of_one ** len(honest)
    return law


def test_the_law_of_the_whole_is_the_law_of_the_parts():
    lab = lab_of(SMALLEST)
    inputs = {1: Input((0,), (3,)), 3: Input((1,), (5,))}
    joint = Joint(lab, view_of(lab, [2]))
    for heard in joint.played(inputs, 2):
        assert whole_law(lab, joint.view, inputs, heard) == joint.law(inputs, heard)


# The tools


@pytest.mark.parametrize("q", [7, 11])
def test_elimination_is_that_of_galois(q):
    rng = np.random.default_rng(q)
    algebra = Elimination(q)
    for rows, columns, rank in product((1, 3, 6), (1, 4, 7), (1, 2, 6)):
        matrix = times(rng.integers(0, q, (rows, rank)), rng.integers(0, q, (rank, columns)), q)
        reduced, pivots, _ = algebra.echelon(matrix)
        assert np.array_equal(algebra.field(matrix).row_reduce(), algebra.field(reduced))
        assert np.linalg.matrix_rank(algebra.field(matrix)) == len(pivots)
        solver = algebra.solver(matrix)
        solution = rng.integers(0, q, columns)
        y = times(matrix, solution, q)
        assert not np.any(times(solver.check, y, q))
        assert np.array_equal(times(matrix, times(solver.particular, y, q), q), y)
        assert not np.any(times(matrix, solver.free, q))
        assert solver.free.shape[1] == columns - len(pivots)


def test_equal_affine_spaces_are_equal_objects_and_others_are_not():
    algebra = Elimination(7)

    def space(offset, *directions):
        basis = algebra.basis(np.array(directions))
        return AffineSpace.of(basis, basis.reduced(np.array(offset)))

    plane = space([1, 2, 3], [1, 0, 1], [0, 1, 1])
    assert plane == space([2, 3, 5], [1, 1, 2], [1, 6, 0])
    assert plane != space([1, 2, 4], [1, 0, 1], [0, 1, 1])
    assert plane != space([1, 2, 3], [1, 0, 1])
    assert plane.density(np.array([2, 3, 5])) == Fraction(1, 49)
    assert plane.density(np.array([2, 3, 4])) == 0


def test_different_mixtures_of_one_law_are_no_witness():
    """Seven parallel lines make a plane: the multisets differ, and the laws do not."""
    algebra = Elimination(7)
    line, plane = algebra.basis(np.array([[1, 0]])), algebra.basis(np.eye(2, dtype=np.int64))
    lines = {AffineSpace.of(line, np.array([0, i])): Fraction(1, 7) for i in range(7)}
    whole = {AffineSpace.of(plane, np.zeros(2, dtype=np.int64)): Fraction(1)}
    with pytest.raises(Undecided):
        find_witness({}, lines, whole)
    six = {space: Fraction(1, 6) for space in list(lines)[:6]}
    witness = find_witness({}, six, whole)
    assert {witness.one, witness.other} <= {Fraction(1, 42), Fraction(1, 49), Fraction(0)}


def test_a_map_that_is_not_affine_is_refused():
    with pytest.raises(NotAffine):
        affine_map(lambda v: v * v % 7, 2, 7, [np.array([3, 4])])


def test_the_tape_gives_what_was_chosen_through_the_real_integers_and_permutation():
    bounds = {"/a": [5, 5, 5], "/b": [6]}
    tape = Tape({"/a": [4, 0, 3], "/b": [5]}, bounds)
    a = tape.child("a")
    assert a.integers(5, np.empty(2, dtype=np.uint32)).tolist() == [4, 0]
    assert a.integers(5, np.empty(1, dtype=np.uint32)).tolist() == [3]
    assert tape.child("a").integers(5, np.empty(3, dtype=np.uint32)).tolist() == [4, 0, 3], (
        "the same label again"
    )
    orders = {tuple(Tape({"/b": [i]}, bounds).child("b").permutation(3).tolist()) for i in range(6)}
    assert len(orders) == 6


def test_the_tape_refuses_unexpected_requests():
    tape = Tape({"/a": [4]}, {"/a": [5]})
    for label, bound, count in (("a", 6, 1), ("a", 5, 2), ("b", 5, 1)):
        with pytest.raises(Unforeseen):
            tape.child(label).integers(bound, np.empty(count, dtype=np.uint32))
    with pytest.raises(Unforeseen):
        tape.child("a").fill(np.empty(4, dtype=np.uint8))


def test_the_command_prints_what_was_checked(capsys):
    case = [Case(3, 2, 1, L=3, K=2)]
    assert check.secrecy(case) == check.tightness(case) == 0
    printed = capsys.readouterr().out
    assert printed.count("secret") == 1
    assert "3 coalitions" in printed
