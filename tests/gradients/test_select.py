"""Which coordinates are sent: the largest magnitudes, ties to the lower index."""

import math

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topk_secagg.algebra.randomness import CipherRandomness
from topk_secagg.gradients import select
from topk_secagg.gradients.reduce import Reduction
from topk_secagg.gradients.select import bucket_top, top_k
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.rounds.sending import Encoding, prepare

numbers = (
    st.integers(-3, 3).map(float)
    | st.floats(-(2.0**99), 2.0**99, width=32)
    | st.sampled_from([-0.0, 1 + 2**-23])
)
gradients = st.lists(numbers, min_size=1, max_size=40)  # ties are frequent
dtypes = st.sampled_from([np.float32, np.float64])


@given(gradients, dtypes, st.data())
def test_top_k_is_the_oracles(gradient, dtype, data):
    k = data.draw(st.sampled_from([1, len(gradient)]) | st.integers(1, len(gradient)))
    assert top_k(np.array(gradient, dtype), k).tolist() == oracle.top_k(gradient, k)


@pytest.mark.parametrize("by_kernel", [False, True])
@given(gradients, dtypes, st.data())
def test_the_top_of_each_bucket_is_the_oracles(by_kernel, gradient, dtype, data):
    buckets = data.draw(st.integers(1, len(gradient)))
    picks = data.draw(st.integers(1, len(gradient) // buckets))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(select, "_PICKS_WORTH_A_KERNEL", 0 if by_kernel else math.inf)
        patch.setattr(select, "_COMPARISONS_WORTH_A_KERNEL", 0)
        chosen = bucket_top(np.array(gradient, dtype), buckets, picks)
    assert chosen.dtype == np.int64
    assert chosen.tolist() == oracle.bucket_top(gradient, buckets, picks)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", ["normal", "ties", "one large bucket", "mostly zero"])
def test_a_kernel_finds_the_top_of_large_buckets_as_numpy_does(kind, dtype, monkeypatch):
    """With a limit by a sample, and where that limit is too high for some buckets."""
    rng = np.random.default_rng(5)
    gradient = rng.normal(size=40_001)
    if kind == "ties":
        gradient = np.round(gradient)
    if kind == "one large bucket":
        gradient[3::50] *= 1000
    if kind == "mostly zero":
        gradient *= rng.random(gradient.size) < 0.001
    gradient = gradient.astype(dtype)
    monkeypatch.setattr(select, "_COMPARISONS_WORTH_A_KERNEL", 0)
    monkeypatch.setattr(select, "_SAMPLE_SIZE", 1000)
    monkeypatch.setattr(select, "_SAMPLE_MARGIN", 4)
    for buckets, picks in ((50, 16), (51, 16), (400, 7)):
        monkeypatch.setattr(select, "_PICKS_WORTH_A_KERNEL", math.inf)
        expected = bucket_top(gradient, buckets, picks)
        monkeypatch.setattr(select, "_PICKS_WORTH_A_KERNEL", 0)
        assert np.array_equal(bucket_top(gradient, buckets, picks), expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_top_of_a_gradient_of_a_million_is_that_of_a_sort(dtype):
    rng = np.random.default_rng(3)
    gradient = (rng.normal(size=2**20 + 1000) * 10.0 ** rng.integers(-6, 3, 2**20 + 1000)).astype(
        dtype
    )
    gradient[rng.choice(gradient.size, 3000)] = gradient.max()  # ties, on both sides of a million
    order = np.lexsort((np.arange(gradient.size), -np.abs(gradient)))
    for k in (1, 1000, 2999, 10_000, gradient.size - 1, gradient.size):
        assert np.array_equal(top_k(gradient, k), np.sort(order[:k]))


def test_selecting_leaves_the_gradient_as_it_was():
    gradient = np.array([3.0, -1.0, 2.0, 0.5])
    kept = gradient.copy()
    top_k(gradient, 2)
    bucket_top(gradient, 2, 2)
    assert np.array_equal(gradient, kept)


def random_selections(p: Parameters, count: int) -> np.ndarray:
    source = CipherRandomness(bytes(32))
    gradient = np.ones(p.length)
    sources = (source.child(str(i)) for i in range(count))
    encoding = Encoding(p, Reduction.top_k([(p.length,)]), [], [1.0])
    each_prepared = (
        prepare(encoding, each, gradient, 1.0, "random", saturate=False) for each in sources
    )
    return np.array([prepared.chosen.sparse.index for prepared in each_prepared])


def test_random_selection_takes_every_coordinate_equally_often():
    p = Parameters.choose(users=3, survivors=2, colluders=1, top_k=3, length=10)
    chosen = random_selections(p, 2000)
    assert np.all(np.diff(chosen, axis=1) > 0), "three different coordinates, increasing"
    counts = np.bincount(chosen.reshape(-1), minlength=10)
    deviation = math.sqrt(2000 * 0.3 * 0.7)
    assert np.abs(counts - 600).max() < 5 * deviation


def test_random_selection_has_its_picks_in_every_bucket():
    p = Parameters.choose(
        users=3, survivors=3, colluders=1, top_k=8, length=19, construction="sketch", picks=2
    )
    chosen = random_selections(p, 500)
    assert p.length % p.buckets, "one bucket has a place less"
    assert np.array_equal(chosen % p.buckets, np.tile(np.arange(8) // 2, (500, 1)))
    assert set(np.unique(chosen)) == set(range(19))
