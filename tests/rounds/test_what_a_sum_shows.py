"""What docs/security.md says of a sum: how many of its symbols one user alone contributed to."""

import numpy as np
import pytest

import topk_secagg as ts

USERS, VOCABULARY, TOKENS, WIDTH = 10, 30_000, 3_000, 8
ROUND = {"survivors": 7, "colluders": 3}


def alone(result):
    """The share of one-user symbols among those that are not zero for somebody."""
    contributors = np.zeros(result.parameters.length, int)
    for sent in result.sent.values():
        contributors[sent.index[sent.value != 0]] += 1
    return (contributors == 1).sum() / (contributors > 0).sum()


@pytest.fixture(scope="module")
def embeddings():
    """Each user's gradient of an embedding: rows of the words in its text, by Zipf's law."""
    rng = np.random.default_rng(0)
    frequency = 1 / np.arange(1, VOCABULARY + 1)
    gradients = []
    for _ in range(USERS):
        words = np.unique(rng.choice(VOCABULARY, TOKENS, p=frequency / frequency.sum()))
        gradient = np.zeros((VOCABULARY, WIDTH))
        gradient[words] = rng.normal(size=(words.size, WIDTH))
        gradients.append({"embedding": gradient})
    return gradients


def test_rows_that_one_user_touches_are_seen_in_a_sum_of_low_rank(embeddings):
    """Of the symbols of the first round, whose basis is on the right, as many as of the rows (and
    a few more, since small values are rounded to zero)."""
    touching = np.sum([gradient["embedding"].any(axis=1) for gradient in embeddings], axis=0)
    assert (touching == 1).sum() / (touching > 0).sum() == pytest.approx(0.67, abs=0.015)
    first = ts.aggregate(embeddings, rank=2, **ROUND)
    assert alone(first) == pytest.approx(0.67, abs=0.02)
    # on the other side every symbol is a sum over all rows
    second = ts.aggregate(embeddings, after=first)
    assert second.reduction.side == "left"
    assert alone(second) == 0


def test_of_dense_gradients_no_symbol_of_low_rank_is_of_one_user_and_most_of_top_k_are():
    rng = np.random.default_rng(0)
    gradients = [{"matrix": rng.normal(size=(200, 100))} for _ in range(USERS)]
    assert alone(ts.aggregate(gradients, rank=2, **ROUND)) == 0
    assert alone(ts.aggregate(gradients, density=0.01, **ROUND)) > 0.9
