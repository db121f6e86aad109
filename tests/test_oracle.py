"""The oracle itself: its numbers are right, and `moments` decodes exactly."""

import random
from collections import Counter
from fractions import Fraction
from itertools import combinations, product

import oracle
import pytest

PRIMES = (7, 11, 13, 31, 61, 97, 251)


@pytest.mark.parametrize("q", PRIMES)
def test_the_generator_is_the_smallest_and_gamma_has_the_order_of_the_places(q):
    def order(a):
        return next(e for e in range(1, q) if pow(a, e, q) == 1)

    assert oracle.smallest_generator(q) == min(a for a in range(1, q) if order(a) == q - 1)
    for M in range(1, q):
        n = oracle.order_of_places(M, q)
        assert n == min(d for d in range(M, q) if (q - 1) % d == 0)
        assert order(oracle.element_of_order(n, q)) == n


@pytest.mark.parametrize("rounding", [oracle.roundings, oracle.roundings_never_zero])
def test_roundings_are_unbiased_and_near(rounding):
    for eighths in range(-40, 41):
        chances = rounding(eighths / 8, 3)
        y = Fraction(3 * eighths, 8)
        assert sum(chances.values()) == 1
        assert sum(v * p for v, p in chances.items()) == y
        assert all(p > 0 and abs(v - y) < 2 for v, p in chances.items())
        if rounding is oracle.roundings_never_zero:
            assert 0 not in chances


def test_bucket_top_breaks_ties_to_the_lower_index():
    assert oracle.bucket_top([1, -2, 1, 2, -1, 2, 3], buckets=2, picks=2) == [0, 6, 1, 3]


@pytest.mark.parametrize(("n", "t", "W1"), [(3, 1, 2), (3, 2, 3), (6, 1, 2), (6, 2, 4)])
def test_recover_finds_the_sparse_vector_if_and_only_if_there_is_one(n, t, W1):
    q = 7
    gamma = oracle.element_of_order(n, q)
    known = {}
    for places in combinations(range(n), t):
        for values in product(range(q), repeat=t):
            vector = [0] * n
            for k, v in zip(places, values, strict=True):
                vector[k] = v
            moments = tuple(oracle.moments_of(vector, W1, gamma, q))
            assert known.setdefault(moments, vector) == vector, "no other sparse vector has these moments"
    for moments in product(range(q), repeat=W1):
        assert oracle.recover(list(moments), n, t, gamma, q) == known.get(moments)


def random_inputs(rng: random.Random, N: int, L: int, B: int, P: int, q: int) -> dict[int, oracle.Pairs]:
    """Picks of non-zero values; sometimes all users send the same places, and pairs of them cancel."""
    alike, cancel = rng.random() < 0.5, rng.random() < 0.3
    gradients = [[rng.random() for _ in range(L)] for _ in range(N)]
    inputs: dict[int, oracle.Pairs] = {}
    for m in range(1, N + 1):
        chosen = oracle.bucket_top(gradients[0 if alike or cancel else m - 1], B, P)
        if cancel and m % 2 == 0:
            inputs[m] = [(k, -w % q) for k, w in inputs[m - 1]]
        else:
            inputs[m] = [(k, rng.randrange(1, q)) for k in chosen]
    return inputs


def test_a_round_of_moments_gives_the_plain_sum_for_every_d():
    rng = random.Random("rounds of moments")
    seen = Counter()
    for number in range(500):
        q = PRIMES[number % len(PRIMES)]
        N = rng.randint(2, min(5, (q + 1) // 2))
        T = rng.randint(max(1, 2 * N - q), N - 1)
        P, B = rng.choice((1, 1, 2, 3)), rng.randint(1, 6)
        M = rng.randint(P, min(q - 1, rng.choice((6, 16, 40))))
        L = rng.randint(max((M - 1) * B + 1, P * B), M * B)
        K = rng.randint((B - 1) * P + 1, B * P)
        n = oracle.order_of_places(M, q)
        inputs = random_inputs(rng, N, L, B, P, q)
        everyone = range(1, N + 1)
        for D in range(1, N - T + 1):
            U1 = sorted(rng.sample(everyone, rng.randint(D + T, N)))
            U2 = rng.sample(U1, rng.randint(D + T, len(U1)))
            plain = oracle.plain_sum([inputs[m] for m in U1], L, q)
            assert oracle.moments_round(inputs, U1, U2, D, N=N, T=T, L=L, K=K, P=P, q=q, rng=rng) == plain
            seen["W1 = n" if oracle.moment_count(len(U1), P, n) == n else "W1 < n"] += 1
            seen["n = M" if n == M else "n > M"] += 1
            seen["last group not full"] += B % D > 0
            seen["fewer buckets than D"] += B < D
            seen["L not divisible by B"] += L % B > 0
            seen["dropped out"] += len(U1) < N
            seen["more answers than needed"] += len(U2) > D + T
            seen["sum of nothing but zeros"] += not any(plain)
    assert len(seen) == 10
    assert min(seen.values()) >= 20, seen


@pytest.mark.parametrize("q", [65521, 4281076801])
def test_a_round_of_moments_gives_the_plain_sum_in_the_fields_of_practice(q):
    rng = random.Random(q)
    N, T, L, K, P = 6, 2, 500, 10, 4
    inputs = random_inputs(rng, N, L, oracle.bucket_count(K, P), P, q)
    U1 = [1, 2, 4, 5, 6]
    summed = oracle.moments_round(inputs, U1, U1[1:], 2, N=N, T=T, L=L, K=K, P=P, q=q, rng=rng)
    assert summed == oracle.plain_sum([inputs[m] for m in U1], L, q)
