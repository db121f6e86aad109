"""Lagrange matrices, compared with the naive interpolation of the oracle."""

import numpy as np
import oracle
from hypothesis import given
from hypothesis import strategies as st

from topk_secagg.algebra.field import DEFAULT_FIELD, SMALL_FIELD
from topk_secagg.algebra.lagrange import lagrange_matrix

PRIMES = (11, 97, SMALL_FIELD, 2**31 - 1, DEFAULT_FIELD, 2**32 - 5)
primes = st.sampled_from(PRIMES) | st.integers(11, 2**32 - 5).map(oracle.next_prime)


def elements(q: int, least: int, most: int) -> st.SearchStrategy[list[int]]:
    """Distinct elements of the field, the extreme ones often."""
    return st.lists(
        st.sampled_from([0, 1, q - 1]) | st.integers(0, q - 1),
        min_size=least,
        max_size=most,
        unique=True,
    )


@given(primes, st.data())
def test_the_matrix_is_the_oracles(q, data):
    nodes = data.draw(elements(q, 1, 6))
    points = data.draw(elements(q, 0, 6) | st.permutations(nodes))  # nodes among them
    matrix = lagrange_matrix(nodes, points, q)
    assert matrix.dtype == np.uint64
    assert matrix.shape == (len(points), len(nodes))
    assert matrix.tolist() == oracle.lagrange_matrix(nodes, points, q)
