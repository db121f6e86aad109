"""Wrong answers are found, named and survived, up to the limit of the code and not beyond."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topk_secagg.algebra.reed_solomon import agree, wrong_positions

PRIMES = (97, 65521, 4281076801, 2**32 - 5)


def codewords(rng, alpha, dimension, columns, q):
    coefficients = [[int(rng.integers(q)) for _ in range(dimension)] for _ in range(columns)]
    return np.array(
        [[sum(c * pow(a, j, q) for j, c in enumerate(f)) % q for f in coefficients] for a in alpha],
        dtype=np.uint32,
    )


@st.composite
def cases(draw):
    q = draw(st.sampled_from(PRIMES))
    users = draw(st.integers(2, 14))
    dimension = draw(st.integers(2, users))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    alpha = [int(a) for a in rng.choice(min(q, 10_000), users, replace=False)]
    return q, users, dimension, rng, alpha, draw(st.integers(1, 3))


@given(cases(), st.data())
def test_up_to_half_the_spare_answers_wrong_are_named_exactly(case, data):
    q, users, dimension, rng, alpha, columns = case
    words = codewords(rng, alpha, dimension, columns, q)
    most = (users - dimension) // 2
    wrong = data.draw(st.sets(st.integers(0, users - 1), max_size=most))
    for i in wrong:
        words[i, int(rng.integers(columns))] += np.uint32(1)
        words[i] %= np.uint32(q)
    assert agree(alpha, words, dimension, q) == (not wrong)
    assert wrong_positions(alpha, words, dimension, q) == sorted(wrong)


@pytest.mark.parametrize("spare", [1, 2, 3])
def test_beyond_the_limit_nothing_is_named_or_the_others_really_agree(spare):
    rng = np.random.default_rng(5)
    q = 2**32 - 5
    alpha = list(range(3, 3 + 4 + spare))
    dimension = 4
    for _ in range(20):
        words = codewords(rng, alpha, dimension, 2, q)
        wrong = rng.choice(len(alpha), spare // 2 + 1, replace=False)
        words[wrong] = rng.integers(q, size=(len(wrong), 2), dtype=np.uint32)
        assert not agree(alpha, words, dimension, q)
        assert wrong_positions(alpha, words, dimension, q) is None


@pytest.mark.parametrize("q", PRIMES)
def test_users_that_are_wrong_in_different_columns_count_together(q):
    alpha = list(range(3, 11))
    for wrong, named in (
        ({0: [0], 1: [5]}, [0, 5]),
        ({0: [0, 1], 1: [5]}, None),
        ({0: [0, 1], 1: [4, 5]}, None),
    ):
        words = codewords(np.random.default_rng(7), alpha, 4, 2, q)
        for column, users in wrong.items():
            words[users, column] = (words[users, column].astype(np.uint64) + 1) % q
        assert wrong_positions(alpha, words, 4, q) == named


def test_fifteen_wrong_of_a_hundred_users_are_named():
    rng = np.random.default_rng(6)
    q = 2**32 - 5
    alpha = list(range(70, 170))
    words = codewords(rng, alpha, 70, 2, q)
    wrong = sorted(int(i) for i in rng.choice(100, 15, replace=False))
    words[wrong] ^= np.uint32(1)
    assert wrong_positions(alpha, words, 70, q) == wrong
