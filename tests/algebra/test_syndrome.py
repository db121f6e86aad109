from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topk_secagg.algebra import syndrome
from topk_secagg.algebra.syndrome import Entries, recover, syndromes
from topk_secagg.errors import BadData

LARGEST = 2**32 - 5
PRIMES = (5, 7, 97, 65537, 2**31 - 1, LARGEST)


def is_prime(n: int) -> bool:
    """Miller and Rabin; certain below 2^32 with these three bases."""
    if n in (2, 7, 61):
        return True
    twos = ((n - 1) & -(n - 1)).bit_length() - 1
    return n % 2 == 1 and all(
        pow(base, n >> twos, n) == 1 or any(pow(base, n >> k, n) == n - 1 for k in range(1, twos + 1))
        for base in (2, 7, 61)
    )


primes = st.sampled_from(PRIMES) | st.integers(5, LARGEST).map(
    lambda n: next(m for m in range(n, 4, -1) if is_prime(m))
)
no_deadline = settings(deadline=None, max_examples=150)  # the first example compiles


def by_definition(vector: list[int], count: int, q: int) -> list[int]:
    return [sum(v * pow(i + 1, j, q) for i, v in enumerate(vector)) % q for j in range(count)]


def rows(values: object) -> np.ndarray:
    return np.array(values, np.uint32, ndmin=2)


def dense(entries: Entries, R: int, M: int) -> list[list[int]]:
    vectors = np.zeros((R, M), np.uint32)
    vectors[entries.row, entries.place] = entries.value
    return vectors.tolist()


def vectors_with_at_most(t: int, M: int, q: int) -> list[tuple[int, ...]]:
    return [v for v in product(range(q), repeat=M) if np.count_nonzero(v) <= t]


@st.composite
def sparse_case(draw: st.DrawFn) -> tuple[int, int, int, list[list[int]]]:
    """q, M, t and a few vectors, each with 0 to t (often exactly t) non-zero entries."""
    q = draw(primes)
    M = draw(st.integers(1, min(q - 1, 40)))
    t = draw(st.integers(1, M + 2))
    most = min(t, M)
    vectors = []
    for _ in range(draw(st.integers(0, 4))):
        weight = draw(st.just(most) | st.integers(0, most))
        vector = [0] * M
        for place in draw(st.permutations(range(M)))[:weight]:
            vector[place] = draw(st.just(q - 1) | st.integers(1, q - 1))
        vectors.append(vector)
    return q, M, t, vectors


@no_deadline
@given(primes, st.integers(1, 70), st.integers(0, 20), st.integers(0, 3), st.data())
def test_syndromes_are_the_power_sums(q: int, M: int, count: int, G: int, data: st.DataObject) -> None:
    M = min(M, q - 1)
    symbol = st.integers(0, q - 1) | st.just(q - 1)
    vectors = data.draw(st.lists(st.lists(symbol, min_size=M, max_size=M), min_size=G, max_size=G))
    found = syndromes(np.array(vectors, np.uint32).reshape(G, M), count, q)
    assert found.dtype == np.uint32
    assert found.shape == (G, count)
    assert found.tolist() == [by_definition(vector, count, q) for vector in vectors]


@pytest.mark.parametrize("q", [LARGEST, 2**31 - 1, 7919])
def test_syndromes_do_not_overflow_in_long_vectors_of_large_symbols(q: int) -> None:
    assert syndromes(rows([q - 1] * 5000), 6, q).tolist() == [by_definition([q - 1] * 5000, 6, q)]


def test_syndromes_of_more_groups_than_are_taken_at_once() -> None:
    G = 2 * syndrome.GROUPS_AT_ONCE + 3
    vectors = np.arange(G * 4, dtype=np.uint32).reshape(G, 4)
    assert syndromes(vectors, 5, LARGEST).tolist() == [by_definition(v, 5, LARGEST) for v in vectors.tolist()]


def test_strided_and_read_only_arrays_are_taken_and_left_as_they_are() -> None:
    vectors = np.arange(48, dtype=np.uint32).reshape(4, 12)[::2, ::3]
    vectors.setflags(write=False)
    before = vectors.tolist()
    found = syndromes(vectors, 8, 97)
    assert found.tolist() == [by_definition(v, 8, 97) for v in before]
    found.setflags(write=False)
    assert dense(recover(found, 4, 97), 2, 4) == before
    assert vectors.tolist() == before


@no_deadline
@given(sparse_case())
def test_recover_finds_every_sparse_vector(case: tuple[int, int, int, list[list[int]]]) -> None:
    q, M, t, vectors = case
    given_ = np.array([by_definition(v, 2 * t, q) for v in vectors], np.uint32).reshape(-1, 2 * t)
    entries = recover(given_, M, q)
    assert [part.dtype for part in entries] == [np.int64, np.int64, np.uint32]
    assert np.all(entries.value > 0)
    assert dense(entries, len(vectors), M) == vectors
    assert sorted(zip(entries.row, entries.place, strict=True)) == list(zip(*entries[:2], strict=True))


@pytest.mark.parametrize("q", [401 + 8, 2**31 - 1, LARGEST])
@pytest.mark.parametrize(("M", "t"), [(401, 40), (401, 200), (101, 10), (30, 30), (30, 45)])
def test_recover_at_the_sizes_of_a_round(q: int, M: int, t: int) -> None:
    rng = np.random.default_rng(M * t)
    vectors = np.zeros((20, M), np.uint32)
    for weight, vector in zip(np.linspace(0, min(t, M), 20).astype(int), vectors, strict=True):
        vector[rng.choice(M, weight, replace=False)] = rng.integers(1, q, weight)
    assert dense(recover(syndromes(vectors, 2 * t, q), M, q), 20, M) == vectors.tolist()


def test_values_that_cancel_in_the_first_syndromes_are_found() -> None:
    vector = [LARGEST - 1, 3, LARGEST - 3, 1]  # S_0 = S_1 = S_2 = 0
    found = syndromes(rows(vector), 8, LARGEST)
    assert found[0, :4].tolist() == [0, 0, 0, 6]
    assert dense(recover(found, 4, LARGEST), 1, 4) == [vector]


@pytest.mark.parametrize(
    ("q", "M", "t"), [(5, 4, 1), (5, 4, 2), (5, 3, 2), (5, 1, 2), (5, 2, 2), (5, 2, 3), (7, 6, 1), (7, 4, 2)]
)
def test_each_tuple_of_syndromes_gives_its_only_sparse_vector_or_is_bad(q: int, M: int, t: int) -> None:
    sparse = vectors_with_at_most(t, M, q)
    owner = {tuple(by_definition(list(v), 2 * t, q)): list(v) for v in sparse}
    assert len(owner) == len(sparse), "two sparse vectors with the same syndromes"
    for given_ in product(range(q), repeat=2 * t):
        if given_ in owner:
            assert dense(recover(rows(given_), M, q), 1, M) == [owner[given_]]
        else:
            with pytest.raises(BadData):
                recover(rows(given_), M, q)


@pytest.mark.parametrize(("q", "M", "t"), [(5, 4, 1), (7, 6, 2), (LARGEST, 12, 3)])
def test_more_than_t_entries_are_never_taken_for_other_ones(q: int, M: int, t: int) -> None:
    """With M > 2t such a vector may share its syndromes with a sparse one, which is then the right answer."""
    for support in combinations(range(M), t + 1):
        vector = [(i + 1) % (q - 1) + 1 if i in support else 0 for i in range(M)]
        given_ = by_definition(vector, 2 * t, q)
        try:
            found = dense(recover(rows(given_), M, q), 1, M)[0]
        except BadData:
            continue
        assert np.count_nonzero(found) <= t
        assert by_definition(found, 2 * t, q) == given_


@no_deadline
@given(sparse_case(), st.data())
def test_a_changed_syndrome_is_bad_or_has_a_sparse_vector_of_its_own(
    case: tuple[int, int, int, list[list[int]]], data: st.DataObject
) -> None:
    q, M, t, vectors = case
    given_ = by_definition((vectors or [[0] * M])[0], 2 * t, q)
    j = data.draw(st.integers(0, 2 * t - 1))
    given_[j] = (given_[j] + data.draw(st.integers(1, q - 1))) % q
    try:
        found = dense(recover(rows(given_), M, q), 1, M)[0]
    except BadData:
        return
    assert np.count_nonzero(found) <= t
    assert by_definition(found, 2 * t, q) == given_


def test_a_symbol_that_is_not_reduced_is_bad() -> None:
    assert recover(rows([1, 1]), 4, 97).value.tolist() == [1]
    with pytest.raises(BadData):
        recover(rows([1 + 97, 1]), 4, 97)


def test_the_bad_rows_are_named_and_nothing_is_returned() -> None:
    given_ = np.zeros((9, 4), np.uint32)
    given_[[2, 5], 3] = 1
    with pytest.raises(BadData, match=r"^no vector with at most 2 .* syndromes: 2 of 9 rows \(2, 5\)$"):
        recover(given_, 10, LARGEST)
    given_[:, 3] = 1
    with pytest.raises(BadData, match=r"9 of 9 rows \(0, 1, 2, 3, 4, \.\.\.\)$"):
        recover(given_, 10, LARGEST)


# Syndromes of the entries (0: 1, 4: 2), of which place 4 lies beyond M; a sequence of no short recurrence;
# the double root 2; and S = (1, 0, 0, 0), whose locator has the root 0, which is no point.
BAD_ROWS = ([3, 11, 51, 251], [0, 0, 0, 1], [0, 1, 4, 12], [1, 0, 0, 0])


@pytest.mark.parametrize("given_", BAD_ROWS)
def test_the_final_check_is_what_catches_a_bad_row(
    monkeypatch: pytest.MonkeyPatch, given_: list[int]
) -> None:
    with pytest.raises(BadData):
        recover(rows(given_), 4, LARGEST)
    monkeypatch.setattr(syndrome, "_reproduces", lambda given_, *_: np.ones(len(given_), np.bool_))
    found = dense(recover(rows(given_), 4, LARGEST), 1, 4)[0]
    assert by_definition(found, 4, LARGEST) != given_


@pytest.mark.parametrize("M", [5, 6, 2**32])
def test_as_many_places_as_field_elements_are_refused(M: int) -> None:
    with pytest.raises(ValueError, match="M < q"):
        recover(rows([0, 0]), M, 5)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="M < q"):
        syndromes(rows([1] * 5), 2, 5)
    for q in (3, 4, 10, 2**32, 2**32 + 15):
        with pytest.raises(ValueError, match="q must be a prime"):
            syndromes(rows([1, 1]), 2, q)
    for count in (0, 3):
        with pytest.raises(ValueError, match="in pairs"):
            recover(np.zeros((1, count), np.uint32), 4, 97)
    for shape, dtype in (((4,), "<u4"), ((1, 4), "<i8"), ((1, 4), ">u4")):
        with pytest.raises(ValueError, match="expected uint32 rows"):
            recover(np.zeros(shape, dtype), 4, 97)
