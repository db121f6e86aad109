"""Low rank: which matrix a tensor is, exact products, sizes, clips, and what a series converges to.

No protocol: the sums here are plain sums of integers.
"""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topk_secagg.algebra import bases as algebra_bases
from topk_secagg.algebra.bases import next_basis
from topk_secagg.gradients import low_rank
from topk_secagg.gradients.low_rank import (
    LEFT,
    OTHER_SIDE,
    RIGHT,
    Left,
    Right,
    is_projected,
    largest_rank,
    matrix_shape,
)
from topk_secagg.gradients.reduce import Reduction, energy_share, kept_share
from topk_secagg.gradients.reduced import Picked, Whole

NONCE = bytes(range(16))
SHAPES = [(6, 5), (4, 3, 2, 3), (8, 3, 1, 1), (3, 4, 5), (2, 3, 2, 2, 2), (7,), (), (1, 9), (0, 4)]


def resnet20():
    """Shapes of experiments/resnet20.py."""
    yield from [(16, 3, 3, 3), (16,), (16,)]
    inputs = 16
    for outputs in (16, 32, 64):
        for _ in range(3):
            yield from [(outputs, inputs, 3, 3), (outputs,), (outputs,)]
            yield from [(outputs, outputs, 3, 3), (outputs,), (outputs,)]
            if inputs != outputs:
                yield from [(outputs, inputs, 1, 1), (outputs,), (outputs,)]
            inputs = outputs
    yield from [(10, 64), (10,)]


def matrix_of(tensor):
    """G by its definition, entry by entry."""
    if tensor.ndim != 4:
        return tensor.reshape(len(tensor), -1)
    outputs, inputs, height, width = tensor.shape
    g = np.empty((outputs * height, inputs * width), tensor.dtype)
    for o, i, h, w in product(*map(range, tensor.shape)):
        g[o * height + h, i * width + w] = tensor[o, i, h, w]
    return g


def random_bases(reduction, nonce=NONCE):
    names = [str(n) for n in range(len(reduction.tensors))]
    return reduction.first_bases(names, nonce)


def random_flat(shapes, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=sum(map(math.prod, shapes))).astype(dtype)


# Which matrix, which tensors, how many symbols


@pytest.mark.parametrize(
    ("shape", "rows", "columns"),
    [
        ((10, 64), 10, 64),
        ((64, 32, 3, 3), 192, 96),
        ((64, 3, 7, 5), 448, 15),
        ((32, 16, 1, 1), 32, 16),
        ((16, 8, 3), 16, 24),
        ((4, 3, 2, 5, 7), 4, 210),
    ],
)
def test_a_tensor_is_a_matrix(shape, rows, columns):
    assert matrix_shape(shape) == (rows, columns)


def test_a_tensor_is_projected_where_the_rank_is_below_both_sides():
    assert is_projected((3, 9), 2)
    assert not is_projected((3, 9), 3)
    assert not is_projected((9, 3), 3)
    assert is_projected((16, 3, 3, 3), 8)  # 48 x 9
    assert not is_projected((16, 3, 3, 3), 9)
    for shape in [(), (100,), (0, 5), (5, 0), (1, 50), (2, 2**26)]:
        assert not is_projected(shape, 1)


@pytest.mark.parametrize(
    ("rank", "mean"), [(1, 3_660), (2, 5_741), (3, 7_823), (4, 9_904)], ids=lambda x: str(x)
)
def test_resnet_20_has_as_many_symbols_as_the_scheme_says(rank, mean):
    shapes = list(resnet20())
    assert sum(map(math.prod, shapes)) == 272_474
    right, left = (Reduction.of(shapes, rank, side).length for side in (RIGHT, LEFT))
    assert math.ceil((right + left) / 2) == mean
    if rank == 2:
        assert (right, left) == (5_918, 5_564)


@pytest.mark.parametrize("side", [RIGHT, LEFT])
def test_slices_cover_both_vectors_in_the_order_of_the_layout(side):
    reduction = Reduction.of(SHAPES, 2, side)
    for slices, length in (
        (reduction.entry_slices, sum(map(math.prod, SHAPES))),
        (reduction.symbol_slices, reduction.length),
    ):
        covered = [n for place in slices for n in range(length)[place]]
        assert covered == list(range(length))
    kinds = [type(tensor) for tensor in reduction.tensors]
    projected = {RIGHT: Right, LEFT: Left}[side]
    assert kinds == [*[projected] * 4, Whole, Whole, Whole, Whole, Whole]


def test_listed_tensors_are_whole():
    reduction = Reduction.of(SHAPES, 2, RIGHT, whole={1})
    assert [type(tensor) for tensor in reduction.tensors[:3]] == [Right, Whole, Right]


# Products


def integers_of(g, length):
    """G rounded half-even to at most 2^bits steps, as fractions; and the step."""
    largest = max((abs(Fraction(x)) for x in g.reshape(-1).tolist()), default=0)
    bits = 32 - -(-length.bit_length() // 2)
    exponent = 0
    while largest and not Fraction(1, 2) <= largest / Fraction(2) ** exponent < 1:
        exponent += 1 if largest >= Fraction(2) ** exponent else -1
    step = Fraction(2) ** max(exponent - bits, -900)
    return [[round(Fraction(x) / step) for x in row] for row in g.tolist()], step


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("side", [RIGHT, LEFT])
@pytest.mark.parametrize("shape", [(6, 5), (4, 3, 2, 3), (3, 4, 5), (5, 4, 3, 1)])
def test_symbols_are_the_product_of_integers(shape, side, dtype):
    reduction = Reduction.of([shape], 2, side)
    (basis,) = bases = random_bases(reduction)
    flat = random_flat([shape], dtype=dtype)
    g = matrix_of(flat.reshape(shape))
    rows, step = integers_of(g, g.shape[1] if side == RIGHT else g.shape[0])
    G, B = np.array(rows, dtype=object), basis.astype(object)
    y = G @ B if side == RIGHT else B.T @ G
    expected = [float(x * step / 2**20) for x in y.reshape(-1)]
    assert reduction.reduce(flat, bases).tolist() == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("side", [RIGHT, LEFT])
def test_symbols_are_close_to_the_product_in_reals(side, dtype):
    reduction = Reduction.of(SHAPES, 2, side)
    bases = random_bases(reduction)
    flat = random_flat(SHAPES, dtype=dtype)
    reduced = reduction.reduce(flat, bases)
    for tensor, basis, entries, symbols in zip(
        reduction.tensors, bases, reduction.entry_slices, reduction.symbol_slices, strict=True
    ):
        whole = flat[entries].reshape(tensor.shape)
        expected = whole
        if basis.size:
            B, G = basis / 2.0**20, matrix_of(whole).astype(float)
            expected = G @ B if side == RIGHT else B.T @ G
        np.testing.assert_allclose(
            reduced[symbols].reshape(expected.shape), expected, rtol=0, atol=2.0**-24
        )


@pytest.mark.parametrize("side", [RIGHT, LEFT])
@pytest.mark.parametrize("shape", [(6, 5), (4, 3, 2, 3), (3, 4, 5)])
def test_decoding_is_the_exact_product(shape, side):
    rng = np.random.default_rng(1)
    reduction = Reduction.of([shape], 2, side)
    (basis,) = bases = random_bases(reduction)
    symbols = rng.integers(-(2**31), 2**31, reduction.length)
    scale = 12345.0
    B = basis.astype(object)
    y = symbols.astype(object).reshape(reduction.tensors[0].symbols_shape)
    g = y @ B.T if side == RIGHT else B @ y
    expected = [[float(Fraction(x, 2**20) / 12345) for x in row] for row in g]
    decoded = reduction.decode(symbols, bases, [scale])
    assert matrix_of(decoded.reshape(shape)).tolist() == expected


def large_matrix(dtype=np.float32):
    rng = np.random.default_rng(2)
    return (rng.normal(size=(300, 700)) * np.exp2(rng.integers(-20, 20, (300, 1)))).astype(dtype)


def reordered(shape, side, g):
    """The symbols of the same matrix, its summands in four orders."""
    reduction = Reduction.of([shape], 3, side)
    ((basis,),) = [random_bases(reduction)]
    rng = np.random.default_rng(3)
    n = len(basis)
    for order in (np.arange(n), np.arange(n)[::-1], rng.permutation(n), np.argsort(basis[:, 0])):
        there = g[:, order] if side == RIGHT else g[order]
        yield reduction.reduce(np.ascontiguousarray(there).reshape(-1), [basis[order]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("side", [RIGHT, LEFT])
def test_no_order_of_summation_changes_a_symbol(side, dtype):
    g = large_matrix(dtype)
    first, *others = reordered(g.shape, side, g)
    assert all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize("side", [RIGHT, LEFT])
def test_with_finer_steps_the_order_changes_symbols(side, monkeypatch):
    """The twin: with the bits of a double products are not exact."""
    monkeypatch.setattr(low_rank, "_SPARE_BITS", -20)
    g = large_matrix(np.float64)
    first, *others = reordered(g.shape, side, g)
    assert not all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize("side", [RIGHT, LEFT])
def test_blocks_do_not_change_a_bit(side, monkeypatch):
    shape = (40, 6, 3, 3)
    reduction = Reduction.of([shape], 4, side)
    bases, flat = random_bases(reduction), random_flat([shape])
    symbols = np.random.default_rng(4).integers(-99, 99, reduction.length)

    def both():
        return reduction.reduce(flat, bases), reduction.decode(symbols, bases, [7.0])

    expected = both()
    for size in (1, 10_000, 1 << 24):
        monkeypatch.setattr(low_rank, "_PRODUCTS_AT_ONCE", size)
        for one, other in zip(both(), expected, strict=True):
            assert np.array_equal(one, other)


def test_the_sum_of_symbols_decodes_to_the_sum_of_gradients():
    for side, rank in product((RIGHT, LEFT), (1, 2)):
        reduction = Reduction.of(SHAPES, rank, side)
        bases, scales = random_bases(reduction), [2.0**9] * len(SHAPES)
        users = np.random.default_rng(5).integers(-(2**20), 2**20, (10, reduction.length))
        each = [reduction.decode(user, bases, scales) for user in users]
        assert np.array_equal(reduction.decode(users.sum(axis=0), bases, scales), sum(each))


@pytest.mark.parametrize("size", [0.0, 5e-324, 1e-310, 1e-250, 1e30, 1e250])
@pytest.mark.parametrize("side", [RIGHT, LEFT])
def test_values_of_any_size_are_projected(side, size):
    reduction = Reduction.of([(9, 7)], 2, side)
    bases = random_bases(reduction)
    flat = random_flat([(9, 7)])
    reduced = reduction.reduce(flat * size, bases)
    expected = reduction.reduce(flat, bases) * size if size > 1e-270 else np.zeros(reduced.size)
    np.testing.assert_allclose(reduced, expected, rtol=1e-6, atol=1e-7 * size)


def test_the_largest_rank_is_16_with_symbols_of_four_bytes():
    assert largest_rank(4281076801) == 16
    assert largest_rank(65521) > 10**6
    assert largest_rank(251) > 10**9


def test_a_basis_of_another_shape_is_refused():
    right, left = (Reduction.of([(6, 5)], 2, side) for side in (RIGHT, LEFT))
    with pytest.raises(ValueError, match="a basis has shape"):
        left.reduce(np.zeros(30), random_bases(right))
    with pytest.raises(ValueError, match="a basis of 5"):
        right.next_bases(right, np.ones(right.length, int), ["a"], NONCE)


# The next bases, clips


@pytest.mark.parametrize("side", [RIGHT, LEFT])
def test_the_next_bases_are_those_of_the_symbols_of_each_tensor(side):
    last = Reduction.of(SHAPES, 2, side)
    following = Reduction.of(SHAPES, 3, OTHER_SIDE[side])
    names = [f"t{n}" for n in range(len(SHAPES))]
    symbols = np.random.default_rng(6).integers(-999, 999, last.length)
    found = following.next_bases(last, symbols, names, NONCE)
    for n, (before, after, place) in enumerate(
        zip(last.tensors, following.tensors, last.symbol_slices, strict=True)
    ):
        expected = np.empty((0, 0), np.int32)
        if after.basis_shape[1]:
            y = symbols[place].reshape(before.symbols_shape)
            expected = next_basis(y if side == RIGHT else y.T, 3, NONCE, names[n])
        assert np.array_equal(found[n], expected)


def test_a_tensor_that_was_whole_gets_a_basis_from_the_nonce():
    shapes = [(4, 9)]
    whole, following = Reduction.of(shapes, 4, RIGHT), Reduction.of(shapes, 2, LEFT)
    found = following.next_bases(whole, np.ones(whole.length, int), ["a"], NONCE)
    assert np.array_equal(found[0], following.first_bases(["a"], NONCE)[0])


def test_clips_follow_the_last_sum_on_the_new_basis():
    shapes = [(6, 5), (3,), (4, 4)]
    reduction = Reduction.of(shapes, 1, LEFT)
    bases = random_bases(reduction)
    last_sum = random_flat(shapes)
    last_sum[-16:] = 0
    clips = reduction.clips(last_sum, bases, last_clips=[1e-9, 1e-9, 8.0], factor=0.25)
    projected = bases[0].T @ last_sum[:30].reshape(6, 5) / 2.0**20
    largest = [np.abs(projected).max(), np.abs(last_sum[30:33]).max()]
    np.testing.assert_allclose(clips, [0.25 * largest[0], 0.25 * largest[1], 0.5], rtol=1e-6)
    twice = reduction.clips(last_sum, bases, last_clips=[1e9, 1.0, 1.0])
    np.testing.assert_allclose(twice, [1e9 / 16, 2 * largest[1], 1 / 16])


# What a series does


class Users:
    """Users with error feedback, whose reduced gradients of one matrix are added up."""

    def __init__(self, shape, count, rank, decay=1.0, feedback=True):
        self.shape = shape
        self.rank = rank
        self.decay = decay if feedback else 0.0
        self.kept = {user: np.zeros(math.prod(shape)) for user in range(count)}
        self.reduction = Reduction.of([shape], rank, RIGHT)
        self.bases = self.reduction.first_bases(["g"], NONCE)
        self.rounds = 0

    def round(self, gradients):
        """The decoded sum for {user: gradient}."""
        given = {u: self.decay * self.kept[u] + g.reshape(-1) for u, g in gradients.items()}
        reals = {u: self.reduction.reduce(g, self.bases) for u, g in given.items()}
        scale = 2.0**26 / max(np.abs(y).max() for y in reals.values())
        sent = {u: np.rint(y * scale).astype(np.int64) for u, y in reals.items()}
        for u, g in given.items():
            self.kept[u] = g - self.reduction.decode(sent[u], self.bases, [scale])
        total = sum(sent.values())
        decoded = self.reduction.decode(total, self.bases, [scale])
        self._follow(total)
        return decoded.reshape(self.shape)

    def _follow(self, total):
        self.rounds += 1
        side = {Right: LEFT, Left: RIGHT}[type(self.reduction.tensors[0])]
        following = Reduction.of([self.shape], self.rank, side)
        nonce = self.rounds.to_bytes(16, "big")
        self.bases = following.next_bases(self.reduction, total, ["g"], nonce)
        self.reduction = following


def power_method(g, rank, steps, start):
    """What alternating projection leaves of g after each half step, in reals."""
    basis = start
    for step in range(steps):
        image = g @ basis if step % 2 == 0 else g.T @ basis
        yield np.linalg.norm(g) ** 2 - np.linalg.norm(image) ** 2
        basis = np.linalg.qr(image)[0]


def test_alternating_projection_converges_as_the_power_method_does():
    rng = np.random.default_rng(7)
    left, right = (np.linalg.qr(rng.normal(size=(n, 3)))[0] for n in (60, 40))
    g = left @ np.diag([3.0, 2.0, 1.0]) @ right.T + 1e-3 * rng.normal(size=(60, 40))
    users = Users(g.shape, count=1, rank=4, feedback=False)
    expected = list(power_method(g, 4, 12, users.bases[0] / 2.0**20))
    energy = np.linalg.norm(g) ** 2
    left_out = [np.linalg.norm(g - users.round({0: g})) ** 2 for _ in range(12)]
    assert left_out[0] > 0.5 * energy, "a first round finds the basis and little else"
    for ours, theirs in zip(left_out, expected, strict=True):
        assert ours <= 1.05 * theirs + 2.0**-19 * energy  # the perturbation's 2^-10, squared, twice
    assert left_out[-1] <= 1.1 * np.square(np.linalg.svd(g)[1][4:]).sum() + 2.0**-19 * energy


def residuals(g, rank, rounds):
    """What one user keeps after each round, in gradients, if it is given g in each."""
    users = Users(g.shape, count=1, rank=rank)
    for _ in range(rounds):
        users.round({0: g})
        yield np.linalg.norm(users.kept[0]) / np.linalg.norm(g)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_what_a_user_keeps_of_a_random_matrix_stays_within_2_m_over_r_gradients(rank):
    g = np.random.default_rng(8).normal(size=(48, 32))
    assert max(residuals(g, rank, rounds=400 // rank)) <= 2 * 32 / rank


def test_of_equal_singular_values_as_much_is_kept_in_the_end(monkeypatch):
    """And up to 2.8 m/r before; without the perturbation 3.6 (the twin)."""
    g = np.linalg.qr(np.random.default_rng(9).normal(size=(32, 32)))[0]
    kept = np.array(list(residuals(g, 2, rounds=192))) / (32 / 2)
    assert kept.max() <= 2.8
    assert kept[128:].max() <= 2
    monkeypatch.setattr(algebra_bases, "_PERTURBATION", 0.0)
    assert max(residuals(g, 2, rounds=160)) / (32 / 2) > 3.5


@pytest.mark.parametrize(("decay", "most", "kick"), [(1.0, 400, 100), (0.95, 20, 10)])
def test_what_users_have_against_each_other_is_kept_until_it_decays(decay, most, kick):
    """The sum's basis never sees it. Without decay it grows with every round, and all of it comes
    when one of the two leaves."""
    rng = np.random.default_rng(10)
    common = rng.normal(size=(32, 2)) @ rng.normal(size=(2, 24))
    common /= np.linalg.norm(common)
    against = rng.normal(size=(32, 24))
    against /= np.linalg.norm(against)
    users = Users(common.shape, count=2, rank=2, decay=decay)
    sizes = []
    for _ in range(400):
        total = users.round({0: common + against, 1: common - against})
        sizes.append(np.linalg.norm(users.kept[0]))
    alone = max(np.linalg.norm(users.round({0: common + against})) for _ in range(10))
    assert np.linalg.norm(total) < 2.1
    assert most / 2 < sizes[-1] < most
    assert (sizes[-1] > 3 * sizes[99]) == (decay == 1)
    assert (alone > kick) == (decay == 1)


@given(st.integers(1, 3), st.sampled_from([1.0, 0.9]), st.integers(0, 2**32))
def test_given_is_sent_and_kept_and_decayed(rank, decay, seed):
    rng = np.random.default_rng(seed)
    users = Users((7, 6), count=3, rank=rank, decay=decay)
    given_in_all, sent, decayed = np.zeros((3, 7, 6))
    for _ in range(8):
        present = rng.permutation(3)[: rng.integers(1, 4)]
        gradients = {u: rng.normal(size=(7, 6)) for u in present}
        given_in_all += sum(gradients.values())
        decayed += (1 - decay) * sum(users.kept[u].reshape(7, 6) for u in present)
        sent += users.round(gradients)
    kept = sum(users.kept.values()).reshape(7, 6)
    np.testing.assert_allclose(given_in_all, sent + kept + decayed, rtol=0, atol=1e-11)


# What a rank holds


def test_the_energy_that_a_rank_holds():
    rng = np.random.default_rng(11)
    low = rng.normal(size=(30, 2)) @ rng.normal(size=(2, 20))
    assert energy_share(low.reshape(-1), [(30, 20)], 2) == pytest.approx(1, abs=1e-5)
    g = low + rng.normal(size=(30, 20)) / 3
    values = np.square(np.linalg.svd(g)[1])
    shares = [energy_share(g.reshape(-1), [(30, 20)], rank) for rank in (1, 2, 4, 8)]
    assert shares == sorted(shares)
    for rank, share in zip((1, 2, 4, 8), shares, strict=True):
        best = values[:rank].sum() / values.sum()
        assert 0.7 * best < share <= best + 1e-6


def test_whole_tensors_hold_all_and_zeros_lack_nothing():
    assert energy_share(random_flat([(8,), (2, 2)]), [(8,), (2, 2)], 2) == pytest.approx(1)
    assert energy_share(np.zeros(30), [(6, 5)], 2) == 1
    tiny = random_flat([(6, 5)]) * 1e-200
    assert 0 < energy_share(tiny, [(6, 5)], 2) < 1


# The other reductions


def test_tensors_that_are_whole_follow_those_of_which_some_entries_are_picked():
    """The reduced vector: what is picked from first, then what is sent whole."""
    shapes = [(2,), (3,), (1, 2)]
    reduction = Reduction.top_k(shapes, whole={0})
    assert [type(tensor) for tensor in reduction.tensors] == [Whole, Picked, Picked]
    assert (reduction.name, reduction.length, reduction.sent_whole) == ("top-k", 7, 2)
    flat = np.arange(7.0)
    nothing = [np.empty((0, 0), np.int32)] * 3
    reduced = reduction.reduce(flat, nothing)
    assert reduced.tolist() == [2, 3, 4, 5, 6, 0, 1]
    assert reduction.decode(reduced.astype(int), nothing, [1, 1, 1]).tolist() == flat.tolist()
    assert reduction.largest(reduced) == [1, 6, 6]
    assert list(reduction.clip_runs([0.5, 2.0, 2.0])) == [(3, 2.0), (2, 2.0), (2, 0.5)]


def test_the_flat_vector_is_its_own_reduction_where_nothing_is_moved():
    flat = np.arange(5.0)
    for reduction in (Reduction.top_k([(2,), (3,)]), Reduction.whole([(2,), (3,)])):
        assert reduction.is_identity
        assert reduction.reduce(flat, []) is flat
    assert Reduction.top_k([(2,), (3,)], whole={1}).is_identity
    assert not Reduction.top_k([(2,), (3,)], whole={0}).is_identity


def test_the_share_of_the_energy_is_that_of_the_squares():
    gradient = np.array([3.0, -4.0, 0.0, 1.0], dtype=np.float32)
    assert kept_share(gradient, gradient[:2]) == pytest.approx(25 / 26)
    assert kept_share(gradient * np.float32(1e-38), gradient[:1] * np.float32(1e-38)) == (
        pytest.approx(9 / 26)
    )
    assert kept_share(np.zeros(4), np.zeros(1)) == 1.0
