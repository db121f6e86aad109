"""The next basis: bit-equal to plain integers and in any order of summation, and orthonormal."""

from fractions import Fraction
from functools import reduce

import bases_oracle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topk_secagg.algebra import bases
from topk_secagg.algebra.bases import (
    LONGEST_COLUMN,
    digest,
    drawn_integers,
    drawn_units,
    next_basis,
    unit,
)

NONCE = bytes(range(16))
LARGEST = 2**31 - 1
# of test_drawn_integers..., and of test_a_basis_has_a_digest...: for other implementations
DRAWN = [-18675, 20101, 16089, -31185, -11827, 21227]
DIGEST = "586f865cb73db27d3b40ef11a2de1bc7bfdfd06fba185e0476be2afeafe7834c"
KINDS = ("random", "dependent", "nearly parallel", "graded", "zero", "spiky", "small", "level")


def matrix_of(kind, k, r, rng):
    """Summed symbols (k, r) of this kind."""
    y = rng.integers(-LARGEST, LARGEST, (k, r))
    if kind == "dependent":
        y = (y[:, :1] // 8) * rng.integers(-3, 4, r)
    elif kind == "nearly parallel":
        y = y[:, :1] // 2 + np.rint(y * 2.0 ** -rng.uniform(1, 9, r)).astype(np.int64)
    elif kind == "graded":
        y >>= np.arange(r) * 3
    elif kind == "zero":
        y[:, ::2] = 0
    elif kind == "spiky":
        y = np.where(rng.random((k, r)) < 1 / k, y, 0)
    elif kind == "small":
        y = rng.integers(-1, 2, (k, r))
    elif kind == "level":
        y = np.full((k, r), 3)
    return np.clip(y, -LARGEST, LARGEST)


def defect(basis):
    """max |Q'Q - I|."""
    q = basis / 2.0**20
    return np.abs(q.T @ q - np.eye(q.shape[1])).max()


# The same as plain integers


@given(
    kind=st.sampled_from(KINDS),
    k=st.integers(1, 30),
    columns=st.integers(0, 5),
    rank=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_a_basis_is_the_oracles(kind, k, columns, rank, seed):
    rank = min(rank, k)
    y = matrix_of(kind, k, columns, np.random.default_rng(seed))
    expected = bases_oracle.next_basis(y.T.tolist(), k, rank, NONCE, "a.weight")
    basis = next_basis(y, rank, NONCE, "a.weight")
    assert basis.dtype == np.int32
    assert basis.T.tolist() == expected


entries = st.integers(-LARGEST, LARGEST) | st.integers(-2, 2) | st.sampled_from([2**20, -(2**30)])


@given(st.lists(st.lists(entries, min_size=3, max_size=3), min_size=1, max_size=12))
def test_a_basis_of_chosen_entries_is_the_oracles(rows):
    y = np.array(rows)
    rank = min(3, len(rows))
    expected = bases_oracle.next_basis(y.T.tolist(), len(rows), rank, NONCE, "")
    assert next_basis(y, rank, NONCE, "").T.tolist() == expected


def test_the_type_of_the_integers_does_not_matter():
    y = matrix_of("random", 50, 3, np.random.default_rng(0)) >> 17  # they fit 16 bits
    wide, narrow = (next_basis(y.astype(t), 3, NONCE, "x") for t in (np.int64, np.int16))
    assert np.array_equal(wide, narrow)
    assert np.array_equal(wide, next_basis(np.asfortranarray(y), 3, NONCE, "x"))


# Any order of summation


def sequential(v, b):
    return reduce(lambda total, pair: total + pair[0] * pair[1], zip(v, b, strict=True), 0.0)


def fused(v, b):
    """Each step rounded once, as `math.fma` does."""
    total = 0.0
    for x, y in zip(v.tolist(), b.tolist(), strict=True):
        total = float(Fraction(x) * Fraction(y) + Fraction(total))
    return total


ORDERS = {
    "BLAS": lambda v, b: float(v @ b),
    "reversed": lambda v, b: sequential(v[::-1].tolist(), b[::-1].tolist()),
    "sequential": lambda v, b: sequential(v.tolist(), b.tolist()),
    "increasing": lambda v, b: float(np.sort(v * b).cumsum()[-1]),
    "fused": fused,
}


def fused_without(v, b):
    """R(v - c b) in one operation an entry."""
    c = Fraction(bases._rounded_number(bases._dot(v, b)))
    exact = [Fraction(x) - c * Fraction(y) for x, y in zip(v.tolist(), b.tolist(), strict=True)]
    return bases._rounded(np.array([float(x) for x in exact]))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_order_of_summation_changes_a_bit(kind, order, monkeypatch):
    rng = np.random.default_rng(1)
    cases = [matrix_of(kind, k, 4, rng) for k in (5, 64, 257)]
    expected = [next_basis(y, 4, NONCE, kind) for y in cases]
    monkeypatch.setattr(bases, "_dot", ORDERS[order])
    if order == "fused":
        monkeypatch.setattr(bases, "_without", fused_without)
    for y, basis in zip(cases, expected, strict=True):
        assert np.array_equal(next_basis(y, 4, NONCE, kind), basis)


@pytest.mark.parametrize("order", ["BLAS", "increasing"])
def test_no_order_changes_a_bit_of_a_large_basis(order, monkeypatch):
    y = matrix_of("nearly parallel", 4608, 16, np.random.default_rng(2))
    expected = next_basis(y, 16, NONCE, "large")
    monkeypatch.setattr(bases, "_dot", ORDERS[order])
    assert np.array_equal(next_basis(y, 16, NONCE, "large"), expected)


def test_without_the_grid_the_order_changes_bits(monkeypatch):
    """The twin of the two tests before."""
    monkeypatch.setattr(bases, "_rounded", lambda v: v)
    y = matrix_of("random", 257, 1, np.random.default_rng(3))[:, 0]
    columns = []
    for order in ("BLAS", "sequential", "reversed"):
        monkeypatch.setattr(bases, "_dot", ORDERS[order])
        earlier = next(drawn_units(NONCE, "", 0, y.size))
        columns.append(bases._orthonormal(unit(y), [earlier]))
    assert not np.array_equal(columns[0], columns[1]) or not np.array_equal(columns[1], columns[2])


def gram_schmidt(y, dot):
    """Modified Gram-Schmidt in two passes, rounded at the end, and that alone."""
    basis = []
    for v in y.T.astype(np.float64):
        for _ in range(2):
            for b in basis:
                v = v - dot(v, b) * b
        basis.append(v / np.sqrt(dot(v, v)))
    return np.rint(np.array(basis) * 2**20)


def test_rounding_the_result_of_gram_schmidt_is_not_enough():
    """The twin: as one would write it. Where columns are all but equal, the order shows."""
    rng = np.random.default_rng(4)
    level = rng.integers(-LARGEST // 2, LARGEST // 2, (20, 64, 1))
    cases = level + rng.integers(-2, 3, (20, 64, 3))
    in_order = [gram_schmidt(y, ORDERS["sequential"]) for y in cases]
    by_blas = [gram_schmidt(y, ORDERS["BLAS"]) for y in cases]
    assert not np.array_equal(in_order, by_blas)


# Orthonormal


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [17, 300, 4608])
def test_a_basis_is_orthonormal(kind, k):
    rng = np.random.default_rng(k)
    for r in (1, 2, 4, 8, 16):
        assert defect(next_basis(matrix_of(kind, k, r, rng), r, NONCE, kind)) <= 4e-6


def test_without_its_norm_between_the_passes_a_basis_is_less_orthogonal(monkeypatch):
    """The twin: a column that shrank to 2^-7 of its norm has 2^7 times the rounding."""

    def at_the_end(v, basis):
        for _ in range(2):
            for b in basis:
                v = bases._without(v, b)
            if bases._dot(v, v) < bases._LACKING:
                return None
        return bases._rounded(v / bases._norm(v))

    monkeypatch.setattr(bases, "_orthonormal", at_the_end)
    rng = np.random.default_rng(5)
    cases = [matrix_of("nearly parallel", 300, 8, rng) for _ in range(20)]
    assert max(defect(next_basis(y, 8, NONCE, "x")) for y in cases) > 4e-6


@pytest.mark.parametrize("kind", ["random", "spiky", "level"])
def test_a_basis_spans_what_it_is_made_of(kind):
    y = matrix_of(kind, 200, 3, np.random.default_rng(6))[:, : 1 if kind == "level" else 3]
    q = next_basis(y, 3, NONCE, kind) / 2.0**20
    left = np.linalg.norm(y - q @ (q.T @ y), axis=0)
    assert (left <= 2.0**-9 * np.linalg.norm(y, axis=0)).all()


@pytest.mark.parametrize("k", [1, 2, 1000, 1 << 20])
def test_a_unit_vector_has_norm_1_also_beside_a_spike(k):
    """The spike leaves the other entries half a step of the grid, and all are rounded away."""
    h = -(-k.bit_length() // 2)
    y = np.full(k, 2 ** (h + 6))
    y[k // 2] = 2**30
    for v in (unit(y), unit(-y), unit(np.sign(y))):
        assert abs(v @ v - 1) <= 2.0**-24 * np.sqrt(k) + 2.0**-24
    scaled = y * 2.0 ** -(31 + h)
    rough = bases._rounded(scaled)
    second = bases._rounded(scaled / np.sqrt(rough @ rough))
    assert second @ second < 2**5, "partial sums are exact"


# Rank, nonce, name


def test_a_smaller_rank_keeps_the_first_columns_and_a_larger_one_adds_to_them():
    y = matrix_of("random", 40, 4, np.random.default_rng(7))
    whole = next_basis(y, 6, NONCE, "t")
    for rank in range(1, 6):
        assert np.array_equal(next_basis(y, rank, NONCE, "t"), whole[:, :rank])
    first = next_basis(y[:, :0], 6, NONCE, "t")
    assert not np.array_equal(first[:, 4:], whole[:, 4:]), "they are made orthogonal to the others"
    assert defect(whole) <= 4e-6


def test_other_nonces_names_and_tensors_give_other_bases():
    nothing = np.zeros((20, 0), np.int32)
    cases = [(NONCE, "a"), (bytes(16), "a"), (NONCE, "b"), (NONCE, "0 a"), (NONCE, "ä")]
    assert len({next_basis(nothing, 2, *case).tobytes() for case in cases}) == len(cases)


def test_every_column_and_attempt_draws_other_integers():
    labels = [(name, c, a) for name in ("", "0", "1 0") for c in (0, 1, 10) for a in (0, 1, 10)]
    drawn = {
        drawn_integers(NONCE, name, column=c, attempt=a, length=8).tobytes()
        for name, c, a in labels
    }
    assert len(drawn) == len(labels)


def test_drawn_integers_are_odd_and_follow_from_the_nonce():
    drawn = drawn_integers(NONCE, "layer.weight", column=1, attempt=0, length=20_000)
    assert drawn[:6].tolist() == DRAWN
    assert (drawn % 2 == 1).all()
    assert -32767 <= drawn.min() < -32700
    assert 32700 < drawn.max() <= 32767


def test_a_basis_has_a_digest_that_others_can_compute():
    first = next_basis(np.zeros((12, 0), np.int32), 2, NONCE, "layer.weight")
    next_ = next_basis(np.arange(24).reshape(12, 2) - 11, 2, NONCE, "layer.weight")
    assert digest([first, next_]) == DIGEST
    assert digest([first, next_]) != digest([next_, first])
    assert digest([first.T]) != digest([first])


@pytest.mark.parametrize(
    ("y", "rank"),
    [
        (np.zeros((3, 4), int), 4),
        (np.zeros((3, 4), int), 0),
        (np.full((3, 1), 2**53 + 1), 1),
        (np.broadcast_to(np.int8(0), (LONGEST_COLUMN + 1, 1)), 1),
    ],
)
def test_what_has_no_exact_basis_is_refused(y, rank):
    with pytest.raises(ValueError, match=r"no basis|beyond 2"):
        next_basis(y, rank, NONCE, "")
