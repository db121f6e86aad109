"""Lagrange matrices, held against the naive interpolation of the oracle."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topk_secagg.algebra.field import DEFAULT_FIELD
from topk_secagg.algebra.lagrange import (
    decoding_matrix,
    default_points,
    encoding_matrix,
    lagrange_matrix,
)

PRIMES = (11, 97, 65537, 2**31 - 1, 4294967279, DEFAULT_FIELD)
primes = st.sampled_from(PRIMES) | st.integers(11, DEFAULT_FIELD).map(oracle.next_prime)


def elements(q: int, least: int, most: int) -> st.SearchStrategy[list[int]]:
    """Distinct elements of the field, the extreme ones often."""
    return st.lists(
        st.sampled_from([0, 1, q - 1]) | st.integers(0, q - 1), min_size=least, max_size=most, unique=True
    )


@given(primes, st.data())
def test_the_matrix_is_the_oracles(q: int, data: st.DataObject) -> None:
    nodes = data.draw(elements(q, 2, 6))
    points = data.draw(elements(q, 0, 6))
    matrix = lagrange_matrix(nodes, points, q)
    assert matrix.dtype == np.uint64
    assert matrix.shape == (len(points), len(nodes))
    assert matrix.tolist() == oracle.lagrange_matrix(nodes, points, q)


@given(primes, st.data())
def test_it_carries_the_values_of_any_polynomial_of_low_degree(q: int, data: st.DataObject) -> None:
    nodes, points = data.draw(elements(q, 2, 6)), data.draw(elements(q, 1, 6))
    coefficients = data.draw(st.lists(st.integers(0, q - 1), min_size=len(nodes), max_size=len(nodes)))

    def polynomial(x: int) -> int:
        return sum(c * x**k for k, c in enumerate(coefficients)) % q

    matrix = lagrange_matrix(nodes, points, q).tolist()
    values = [polynomial(x) for x in nodes]
    carried = [sum(c * v for c, v in zip(row, values, strict=True)) % q for row in matrix]
    assert carried == [polynomial(x) for x in points]


@pytest.mark.parametrize("q", PRIMES)
def test_at_the_nodes_themselves_it_is_the_identity(q: int) -> None:
    nodes = [q - 1, 0, 5, 7]
    assert np.array_equal(lagrange_matrix(nodes, nodes, q), np.eye(4))


def test_no_points_give_no_rows() -> None:
    assert lagrange_matrix([1, 2, 3], [], 97).shape == (0, 3)


@pytest.mark.parametrize("q", PRIMES)
def test_encoding_and_decoding_undo_each_other_for_any_d_plus_t_users(q: int) -> None:
    N, U, T, D = 5, 4, 2, 2
    alpha, beta = default_points(N, U, q)
    encoding = encoding_matrix(alpha, beta, D, T, q)
    assert encoding.tolist() == oracle.lagrange_matrix(beta[:4], alpha, q)
    for users in oracle.subsets(range(N), D + T):
        decoding = decoding_matrix([alpha[m] for m in users[:4]], beta, D, q).tolist()
        chosen = [encoding[m].tolist() for m in users[:4]]
        back = [[sum(row[k] * chosen[k][c] for k in range(4)) % q for c in range(4)] for row in decoding]
        assert back == [[1, 0, 0, 0], [0, 1, 0, 0]]


@pytest.mark.parametrize(
    ("N", "U", "q"), [(2, 2, 5), (4, 3, 7), (6, 5, 11), (10, 5, DEFAULT_FIELD), (300, 200, 503)]
)
def test_default_points_are_distinct_elements_of_the_field(N: int, U: int, q: int) -> None:
    alpha, beta = default_points(N, U, q)
    assert (len(alpha), len(beta)) == (N, U)
    assert len({*alpha, *beta}) == N + U
    assert all(type(x) is int and 0 <= x < q for x in [*alpha, *beta])
    assert beta == list(range(U))
    assert alpha == list(range(U, U + N))
