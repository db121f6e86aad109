"""The oracle itself: `moments` decodes exactly, and what a coalition sees depends on the sum alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations, product

import oracle
import pytest

PRIMES = (7, 11, 13, 31, 61, 97, 251)


# Numbers


@pytest.mark.parametrize("q", PRIMES)
def test_the_generator_is_the_smallest_and_gamma_has_the_order_of_the_places(q: int) -> None:
    def order(a: int) -> int:
        return next(e for e in range(1, q) if pow(a, e, q) == 1)

    assert oracle.smallest_generator(q) == min(a for a in range(1, q) if order(a) == q - 1)
    for M in range(1, q):
        n = oracle.order_of_places(M, q)
        assert n == min(d for d in range(M, q) if (q - 1) % d == 0)
        assert order(oracle.element_of_order(n, q)) == n


@pytest.mark.parametrize("rounding", [oracle.roundings, oracle.roundings_never_zero])
def test_roundings_are_unbiased_and_near(rounding: Callable[[float, int], dict[int, Fraction]]) -> None:
    for eighths in range(-40, 41):
        chances = rounding(eighths / 8, 3)
        y = Fraction(3 * eighths, 8)
        assert sum(chances.values()) == 1
        assert sum(v * p for v, p in chances.items()) == y
        assert all(p > 0 and abs(v - y) < 2 for v, p in chances.items())
        if rounding is oracle.roundings_never_zero:
            assert 0 not in chances


def test_bucket_top_breaks_ties_to_the_lower_index() -> None:
    assert oracle.bucket_top([1, -2, 1, 2, -1, 2, 3], buckets=2, picks=2) == [0, 6, 1, 3]


# Exactness


@pytest.mark.parametrize(("n", "t", "W1"), [(3, 1, 2), (3, 2, 3), (6, 1, 2), (6, 2, 4)])
def test_recover_finds_the_sparse_vector_if_and_only_if_there_is_one(n: int, t: int, W1: int) -> None:
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


def test_a_round_of_moments_gives_the_plain_sum_for_every_d() -> None:
    rng = random.Random("rounds of moments")
    seen: Counter[str] = Counter()
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
def test_a_round_of_moments_gives_the_plain_sum_in_the_fields_of_practice(q: int) -> None:
    rng = random.Random(q)
    N, T, L, K, P = 6, 2, 500, 10, 4
    inputs = random_inputs(rng, N, L, oracle.bucket_count(K, P), P, q)
    U1 = [1, 2, 4, 5, 6]
    summed = oracle.moments_round(inputs, U1, U1[1:], 2, N=N, T=T, L=L, K=K, P=P, q=q, rng=rng)
    assert summed == oracle.plain_sum([inputs[m] for m in U1], L, q)


# Secrecy


@pytest.mark.parametrize(("N", "T", "q"), [(3, 1, 5), (3, 2, 5), (3, 2, 7)])
def test_any_t_shares_of_a_pick_take_every_value_equally_often(N: int, T: int, q: int) -> None:
    W = 4 // T if q == 5 else 1
    gamma = oracle.smallest_generator(q)
    alpha, beta = range(N), N
    for s, rho in product(range(q - 1), range(1, q)):
        seen: dict[tuple[int, ...], Counter[tuple[int, ...]]] = {
            coalition: Counter() for coalition in combinations(range(N), T)
        }
        for noise in product(range(q), repeat=T * W):
            z = [[list(noise[t * W : (t + 1) * W]) for t in range(T)]]
            shares = oracle.moments_shares([s], [rho], z, alpha, [beta], 1, gamma, W, q)
            for coalition, counts in seen.items():
                counts[tuple(v for m in coalition for v in shares[m][0])] += 1
        for counts in seen.values():
            assert len(counts) == q ** (T * W)
            assert set(counts.values()) == {1}


@pytest.mark.parametrize(("q", "n"), [(7, 3), (7, 6), (11, 5), (13, 12)])
def test_x_is_uniform_for_every_value_but_zero(q: int, n: int) -> None:
    secrets = list(product(range(n), range(1, q)))
    for k, w in product(range(n), range(1, q)):
        seen = {oracle.mask_moments([s], [rho], [(k, w)], 1, n, q)[0] for s, rho in secrets}
        assert seen == set(product(range(n), range(1, q)))
    assert {oracle.mask_moments([s], [rho], [(0, 0)], 1, n, q)[0][1] for s, rho in secrets} == {0}


class Coalition:
    """User 1 of three, T = 1, q = 7: what it sees of the honest users 2 and 3, by brute force over the noise.

    For each input there is exactly one (s, rho) behind each X (the test above), so two inputs have the same
    distribution of views if they have it for each X. Given X, the noise of different j is independent, and
    symbol j of all shares and answers depends on the noise of j alone: a view is counted for each j, and
    one run with the same noise for all j serves them all. User 1's own picks and noise are fixed.
    """

    q, N, T, P = 7, 3, 1, 1
    alpha, beta = (1, 2, 4), (3, 6)

    def __init__(self, n: int, B: int, noise: range = range(7)) -> None:
        self.n, self.B, self.noise = n, B, noise
        self.gamma = oracle.element_of_order(n, self.q)
        self.W = oracle.moment_count(self.N, self.P, n)
        self.points = oracle.bucket_points(B, self.beta, self.N, self.T)
        own = oracle.Pairs((b, 1 + b) for b in range(B))
        self.own_x = oracle.mask_moments([1] * B, [3] * B, own, B, n, self.q)
        self.own_shares = self.shares([1] * B, [3] * B, [5] * B)

    def shares(self, s: list[int], rho: list[int], noise: list[int]) -> list[list[oracle.Vector]]:
        z = [[[v] * self.W] for v in noise]
        return oracle.moments_shares(s, rho, z, self.alpha, self.points, self.P, self.gamma, self.W, self.q)

    def every_x(self) -> list[dict[int, oracle.Pairs]]:
        one = list(product(range(self.n), range(1, self.q)))
        return [{2: list(xs[: self.B]), 3: list(xs[self.B :])} for xs in product(one, repeat=2 * self.B)]

    def view(
        self,
        x: dict[int, oracle.Pairs],
        inputs: dict[int, oracle.Pairs],
        rounds: tuple[tuple[int, tuple[int, ...]], ...] = ((2, (1, 2, 3)), (1, (1, 2, 3))),
    ) -> list[Counter[tuple[int, ...]]]:
        """[j]: how often symbol j of user 1's shares and of all answers (for each D, U1) takes each value."""
        possible: dict[int, list[list[list[oracle.Vector]]]] = {}
        for m, pairs in inputs.items():
            s = [(k // self.B - delta) % self.n for (k, _), (delta, _) in zip(pairs, x[m], strict=True)]
            rho = [v * pow(w, -1, self.q) for (_, w), (_, v) in zip(pairs, x[m], strict=True)]
            assert oracle.mask_moments(s, rho, pairs, self.B, self.n, self.q) == x[m]
            possible[m] = [self.shares(s, rho, list(z)) for z in product(self.noise, repeat=self.B)]
        masked = {1: self.own_x, **x}
        counts: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(self.W)]
        for second, third in product(possible[2], possible[3]):
            dealt = {1: self.own_shares, 2: second, 3: third}
            seen = [*second[0], *third[0]]
            for D, U1 in rounds:
                for u, a in enumerate(self.alpha):
                    held = {m: dealt[m][u] for m in U1}
                    some = {m: masked[m] for m in U1}
                    seen += oracle.answer_moments(some, held, a, self.points, D, self.P, self.W, self.gamma, self.q)
            for j in range(self.W):
                counts[j][tuple(v[j] for v in seen)] += 1
        return counts


ONE_BUCKET = {2: [(0, 1)], 3: [(1, 2)]}
SAME_SUM = {2: [(1, 2)], 3: [(0, 1)]}
OTHER_SUM = {2: [(0, 1)], 3: [(1, 3)]}
NO_SUM = {2: [(0, 1)], 3: [(0, 6)]}
NO_SUM_EITHER = {2: [(1, 4)], 3: [(1, 3)]}


def test_all_views_are_equal_for_equal_sums_and_differ_for_others() -> None:
    # one bucket, so that one group of one bucket serves every D; places 0 and 1 of n = 3; every X
    lab = Coalition(n=3, B=1)
    for x in lab.every_x():
        view = {id(i): lab.view(x, i, ((2, (1, 2, 3)),)) for i in (ONE_BUCKET, SAME_SUM, OTHER_SUM)}
        assert view[id(ONE_BUCKET)] == view[id(SAME_SUM)]
        assert view[id(ONE_BUCKET)] != view[id(OTHER_SUM)]


@pytest.mark.parametrize("inputs", [(ONE_BUCKET, SAME_SUM), (NO_SUM, NO_SUM_EITHER)])
@pytest.mark.parametrize("n", [3, 6])
def test_views_are_equal_for_equal_sums(n: int, inputs: tuple[dict[int, oracle.Pairs], ...]) -> None:
    lab = Coalition(n, B=1)
    for x in random.Random(n).sample(lab.every_x(), 20):
        assert lab.view(x, inputs[0]) == lab.view(x, inputs[1])


def test_views_of_two_packed_buckets_are_equal_for_equal_sums_and_differ_for_others() -> None:
    # D = 2 and once more with D = 1 for the same survivors; a sample of X, all of the noise
    lab = Coalition(n=3, B=2)
    first = {2: [(0, 1), (3, 2)], 3: [(2, 3), (1, 4)]}
    same_sum = {2: [(2, 3), (3, 2)], 3: [(0, 1), (1, 4)]}
    other_sum = {2: [(0, 1), (3, 2)], 3: [(2, 3), (1, 5)]}
    for x in random.Random(2).sample(lab.every_x(), 4):
        assert lab.view(x, first) == lab.view(x, same_sum)
        assert lab.view(x, first) != lab.view(x, other_sum)


def test_without_noise_the_views_tell_the_inputs_apart() -> None:
    lab = Coalition(n=3, B=1, noise=range(1))
    x = lab.every_x()[0]
    assert lab.view(x, ONE_BUCKET) != lab.view(x, SAME_SUM)


def test_answers_for_two_survivor_sets_tell_the_inputs_apart() -> None:
    lab = Coalition(n=3, B=1)
    x = lab.every_x()[0]
    both = ((2, (1, 2, 3)), (2, (1, 2)))
    assert lab.view(x, ONE_BUCKET, both) != lab.view(x, SAME_SUM, both)
