"""Sketches of sparse vectors, compared with plain Python: added up, and turned back into the
vector."""

import tracemalloc
from itertools import product

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topk_secagg.algebra.field import DEFAULT_FIELD, LANES, SMALL_FIELD, divisors
from topk_secagg.algebra.parallel import cores
from topk_secagg.algebra.sketches import Entries, add_sketches, arranged, recover
from topk_secagg.errors import BadData

LARGEST = 2**32 - 5
PRIMES = (5, 7, 97, SMALL_FIELD, 65537, 2**31 - 1, DEFAULT_FIELD, LARGEST)
Vector = list[int]


def orders(q: int, most: int) -> Vector:
    """The orders of elements of F_q* that are small enough to try."""
    return [n for n in divisors(q - 1) if n <= most]


def of_order(n: int, q: int) -> int:
    return oracle.element_of_order(n, q)


def rows(values: object) -> np.ndarray:
    return np.array(values, np.uint32, ndmin=2)


def dense(entries: Entries, count: int, n: int) -> list[Vector]:
    vectors = np.zeros((count, n), np.uint32)
    vectors[np.repeat(np.arange(count), entries.counts), entries.place] = entries.value
    return vectors.tolist()


def symbols(draw: st.DrawFn, q: int, *shape: int) -> np.ndarray:
    """An array of symbols, the extreme ones often."""
    seed = draw(st.integers(0, 2**32))
    drawn = np.random.default_rng(seed).integers(q, size=shape)
    extreme = np.random.default_rng(seed + 1).choice([0, 1, q - 1], size=shape)
    return np.where(drawn % 3 == 0, extreme, drawn).astype(np.uint32)


# Adding up


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, int, int, int, int, np.ndarray]:
    """q, n, gamma, a width up to n, a count of rows, and places."""
    q = draw(st.sampled_from(PRIMES))
    n = draw(st.sampled_from(orders(q, 60)))
    count = draw(st.integers(0, 5))
    width = draw(st.just(n) | st.integers(1, n))
    place = symbols(draw, n, count) if n > 1 else np.zeros(count, np.uint32)
    return q, n, of_order(n, q), width, count, place


@given(tables(), st.integers(1, 3), st.data())
def test_the_sketches_of_entries_are_added_to_their_rows(table, count_of_rows, data):
    q, _, gamma, W, count, place = table
    value = symbols(data.draw, q, count)
    row = np.arange(count)[::-1] % count_of_rows
    total = symbols(data.draw, q, count_of_rows, W)
    expected = total.tolist()
    for i, j in product(range(count), range(W)):
        term = int(value[i]) * pow(gamma, int(place[i]) * j, q)
        expected[row[i]][j] = (expected[row[i]][j] + term) % q
    add_sketches(row, place, value, gamma=gamma, q=q, total=total)
    assert total.tolist() == expected


# Recovering


def sparse_vectors(draw: st.DrawFn, q: int, n: int, t: int) -> list[Vector]:
    """A few vectors of length n, each with 0 to t (often exactly t) non-zero entries."""
    vectors = []
    for _ in range(draw(st.integers(0, 4))):
        vector = [0] * n
        weight = draw(st.just(min(t, n)) | st.integers(0, min(t, n)))
        for place in draw(st.permutations(range(n)))[:weight]:
            vector[place] = draw(st.sampled_from([1, q - 1]) | st.integers(1, q - 1))
        vectors.append(vector)
    return vectors


@st.composite
def sparse_case(draw: st.DrawFn) -> tuple[int, int, int, int, list[Vector]]:
    """q, n, t, the width of a sketch, and vectors."""
    q = draw(st.sampled_from(PRIMES))
    n = draw(st.sampled_from(orders(q, 40)))
    t = draw(st.integers(1, n + 2))
    return q, n, t, min(2 * t, n), sparse_vectors(draw, q, n, t)


@settings(max_examples=150)
@given(sparse_case())
def test_recover_finds_every_sparse_vector(case):
    q, n, t, W1, vectors = case
    gamma = of_order(n, q)
    given_ = np.array([oracle.power_sums(v, W1, gamma, q) for v in vectors], np.uint32).reshape(
        -1, W1
    )
    entries = recover(given_, t, n, gamma, q)
    assert entries.place.dtype == entries.value.dtype == np.uint32
    assert np.all(entries.value > 0)
    assert dense(entries, len(vectors), n) == vectors
    for places in np.split(entries.place.astype(int), np.cumsum(entries.counts)):
        assert np.diff(places).min(initial=1) > 0


@pytest.mark.parametrize(
    ("q", "n", "t"),
    [
        (DEFAULT_FIELD, 400, 40), (DEFAULT_FIELD, 400, 199), (DEFAULT_FIELD, 100, 100),
        (SMALL_FIELD, 420, 60), (SMALL_FIELD, 1, 3), (409, 408, 30),
        (LARGEST, 38, 5), (2**31 - 1, 126, 63), (257, 256, 20),
        # roots are marked in words of 64 bits
        *((DEFAULT_FIELD, n, 9) for n in (63, 64, 65, 130, 252, 260, 264)),
    ],
)  # fmt: skip
def test_every_weight_from_zero_to_t_is_recovered_at_the_sizes_of_a_round(q, n, t):
    rng = np.random.default_rng(n * t)
    gamma = of_order(n, q)
    W1 = min(2 * t, n)
    weights = range(min(t, n) + 1)
    vectors = np.zeros((len(weights), n), np.uint32)
    for weight, vector in zip(weights, vectors, strict=True):
        vector[rng.choice(n, weight, replace=False)] = rng.integers(1, q, weight)
    row, place = np.nonzero(vectors)
    sums = np.zeros((len(weights), W1), np.uint32)
    add_sketches(row, place, vectors[row, place], gamma=gamma, q=q, total=sums)
    assert dense(recover(sums, t, n, gamma, q), len(weights), n) == vectors.tolist()


@pytest.mark.parametrize("q", [97, DEFAULT_FIELD])
def test_values_that_cancel_in_the_first_symbols_are_found(q):
    n = 12
    gamma = of_order(n, q)
    powers = [pow(gamma, k, q) for k in range(3)]
    # the second divided differences of 1 and x vanish: S_0 = S_1 = 0
    vector = [
        pow((a - b) * (a - c), -1, q)
        for a, b, c in (powers, powers[1:] + powers[:1], powers[2:] + powers[:2])
    ]
    given_ = oracle.power_sums(vector, 6, gamma, q)
    assert given_[:3] == [0, 0, 1]
    assert dense(recover(rows(given_), 3, n, gamma, q), 1, n) == [vector + [0] * (n - 3)]


@pytest.mark.parametrize(
    ("q", "n", "t"),
    [
        (5, 4, 1),
        (5, 4, 2),
        (5, 2, 1),
        (5, 1, 1),
        (7, 6, 1),
        (7, 6, 2),
        (7, 3, 1),
        (7, 3, 2),
        (13, 12, 1),
    ],
)
def test_each_sketch_gives_its_only_sparse_vector_or_is_bad(q, n, t):
    gamma = of_order(n, q)
    W1 = min(2 * t, n)
    refused = 0
    for given_ in product(range(q), repeat=W1):
        expected = oracle.recover(list(given_), n, t, gamma, q)
        if expected is None:
            refused += 1
            with pytest.raises(BadData):
                recover(rows(given_), t, n, gamma, q)
        else:
            assert dense(recover(rows(given_), t, n, gamma, q), 1, n) == [expected]
    assert (refused > 0) == (t < n), (
        "some sketches belong to no sparse vector, unless every vector is sparse"
    )


@settings(max_examples=150)
@given(sparse_case(), st.data())
def test_a_changed_symbol_is_bad_or_belongs_to_another_sparse_vector(case, data):
    q, n, t, W1, vectors = case
    gamma = of_order(n, q)
    given_ = oracle.power_sums((vectors or [[0] * n])[0], W1, gamma, q)
    j = data.draw(st.integers(0, W1 - 1))
    given_[j] = (given_[j] + data.draw(st.integers(1, q - 1))) % q
    try:
        found = dense(recover(rows(given_), t, n, gamma, q), 1, n)[0]
    except BadData:
        return
    assert np.count_nonzero(found) <= t
    assert oracle.power_sums(found, W1, gamma, q) == given_


@pytest.mark.parametrize("q", [97, SMALL_FIELD, DEFAULT_FIELD, LARGEST])
def test_a_locator_longer_than_half_the_sketch_is_refused(q):
    n = next(n for n in divisors(q - 1) if n > 10)
    gamma = of_order(n, q)
    for t in range(1, 5):
        vector = [v + 1 if v <= t else 0 for v in range(n)]  # t + 1 entries
        exact = oracle.power_sums(vector, 2 * t + 2, gamma, q)
        assert dense(recover(rows(exact), t + 1, n, gamma, q), 1, n) == [vector]
        late = [0] * (2 * t - 1) + [1]  # the shortest recurrence has 2 t terms
        for given_ in (exact[: 2 * t], late):
            assert oracle.recover(given_, n, t, gamma, q) is None
            with pytest.raises(BadData):
                recover(rows(given_), t, n, gamma, q)


@pytest.mark.parametrize("q", [97, DEFAULT_FIELD, LARGEST])
def test_a_row_does_not_depend_on_those_beside_it(q):
    """More rows than are recovered side by side, sparse and arbitrary ones: each is as the oracle
    finds it alone."""
    n = {97: 48, DEFAULT_FIELD: 40, LARGEST: 38}[q]
    t = 3
    rng = np.random.default_rng(q)
    gamma = of_order(n, q)
    given_ = rng.integers(q, size=(2 * LANES + 7, 2 * t)).astype(np.uint32)
    for row in rng.choice(len(given_), LANES, replace=False):
        vector = np.zeros(n, np.int64)
        vector[rng.choice(n, row % (t + 1), replace=False)] = rng.integers(1, q, row % (t + 1))
        given_[row] = oracle.power_sums(vector.tolist(), 2 * t, gamma, q)
    alone = [oracle.recover(row, n, t, gamma, q) for row in given_.tolist()]
    bad = [i for i, vector in enumerate(alone) if vector is None]
    with pytest.raises(
        BadData, match=rf"{len(bad)} of {len(given_)} rows \({', '.join(map(str, bad[:5]))}"
    ):
        recover(given_, t, n, gamma, q)
    good = [i for i, vector in enumerate(alone) if vector is not None]
    assert dense(recover(given_[good], t, n, gamma, q), len(good), n) == [alone[i] for i in good]


def test_a_symbol_that_is_not_reduced_is_bad():
    assert recover(rows([1, 1]), 1, 48, of_order(48, 97), 97).value.tolist() == [1]
    with pytest.raises(BadData):
        recover(rows([1 + 97, 1]), 1, 48, of_order(48, 97), 97)


def test_the_bad_rows_are_named_and_nothing_is_returned():
    given_ = np.zeros((9, 4), np.uint32)
    gamma = of_order(10, DEFAULT_FIELD)
    given_[[2, 5], 3] = 1
    with pytest.raises(
        BadData, match=r"^no vector with at most 2 .* sketch: 2 of 9 rows \(2, 5\)$"
    ):
        recover(given_, 2, 10, gamma, DEFAULT_FIELD)
    given_[:, 3] = 1
    with pytest.raises(BadData, match=r"9 of 9 rows \(0, 1, 2, 3, 4, \.\.\.\)$"):
        recover(given_, 2, 10, gamma, DEFAULT_FIELD)


@pytest.mark.parametrize(
    ("count", "t", "n"), [(3, 2, 8), (5, 2, 8), (16, 8, 8), (0, 1, 8), (10, 5, 8)]
)
def test_sketches_that_determine_nothing_are_refused(count, t, n):
    with pytest.raises(ValueError, match="do not determine"):
        recover(np.zeros((1, count), np.uint32), t, n, of_order(n, 97), 97)


@pytest.mark.parametrize(
    "n", [11, 12, 20, 22, 66, 264]
)  # where 4 divides n, powers that are no places are tried too
def test_a_place_beyond_those_there_are_is_refused(n):
    gamma = of_order(n, DEFAULT_FIELD)
    q = DEFAULT_FIELD
    for last in range(n):
        given_ = rows(
            oracle.power_sums(
                [5] + [0] * (last - 1) + [7] * (last > 0) + [0] * (n - 1 - last), 4, gamma, q
            )
        )
        for places in (n // 2 + 1, n - 1, n):
            if last < places:
                assert recover(given_, 2, n, gamma, q, places).place.tolist() == sorted({0, last})
            else:
                with pytest.raises(BadData):
                    recover(given_, 2, n, gamma, q, places)


# Putting results in order


@given(st.integers(1, 9), st.lists(st.integers(0, 30), max_size=6), st.integers(0, 999))
def test_entries_are_arranged_by_index(places, sizes, seed):
    rng = np.random.default_rng(seed)
    buckets = sum(sizes)
    table = rng.integers(0, 3, (buckets, places), np.uint32) * rng.integers(
        1, 99, (buckets, places), np.uint32
    )
    parts = []
    for some in np.split(table, np.cumsum(sizes)[:-1]) if sizes else ():
        row, place = np.nonzero(some)
        parts.append(
            Entries(
                np.bincount(row, minlength=len(some)), place.astype(np.uint32), some[row, place]
            )
        )
    index, value = arranged(parts, places)
    flat = table.T.reshape(-1)
    assert index.tolist() == np.flatnonzero(flat).tolist()
    assert value.tolist() == flat[flat > 0].tolist()


def test_many_parts_take_no_memory_for_every_place():
    places = 40_000
    one = np.ones(1, np.uint32)
    tracemalloc.start()
    try:
        arranged([Entries(np.ones(1, np.int64), one, one)] * 500, places)
        assert tracemalloc.get_traced_memory()[1] < 50 * places * cores()
    finally:
        tracemalloc.stop()
