"""The aggregate is bit-equal to the plain sum of the quantised sparse inputs for every pattern of
drop-outs."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_rounds import (
    SteppedRound,
    a_secret,
    any_input,
    any_inputs,
    dense,
    fixed_of,
    in_small_blocks,
    pairs,
    plain_sum,
    round_of,
    source,
)

from topk_secagg.algebra.field import DEFAULT_FIELD
from topk_secagg.errors import BadData, TooFewSurvivors
from topk_secagg.gradients.quantise import dequantise, quantise, rounding_source
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.messages import Masked, Secret, Sparse
from topk_secagg.protocol.parameters import CONSTRUCTIONS, SKETCH, Parameters
from topk_secagg.protocol.round import run_round
from topk_secagg.protocol.sketch import Sketch

EXAMPLE = Path(__file__).parents[2] / "fixtures" / "example"
LARGEST = 2**32 - 5
FIELDS = ["smallest", 65521, DEFAULT_FIELD, LARGEST]


# Every pattern of drop-outs


def admissible(most_users: int) -> list[tuple[int, int, int]]:
    """All (N, U, T) with 1 <= T < U <= N."""
    return [
        (N, U, T) for N in range(2, most_users + 1) for U in range(2, N + 1) for T in range(1, U)
    ]


def field_of(name: str | int, N: int) -> int:
    return oracle.next_prime(2 * N + 1) if isinstance(name, str) else name


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(("N", "U", "T"), admissible(5))
def test_every_pattern_of_drop_outs_of_permutation_decodes_to_the_plain_sum(N, U, T, field):
    whole = SteppedRound.of(round_of(N, U, T, field_of(field, N), L=7, K=2), f"{field} {N} {U} {T}")
    tried = 0
    for u1 in oracle.subsets(range(1, N + 1), U):
        expected = whole.plain_sum(u1)
        answers = whole.answers(u1)
        for u2 in oracle.subsets(u1, U):
            assert whole.decode(u1, {n: answers[n] for n in u2}) == (expected, [])
            tried += 1
    assert tried == sum(
        math.comb(N, a) * math.comb(a, b) for a in range(U, N + 1) for b in range(U, a + 1)
    )


@pytest.mark.parametrize("q", [11, 97, 65521, DEFAULT_FIELD, LARGEST])
@pytest.mark.parametrize("D", [1, 2, 3])
def test_messages_of_permutation_are_those_of_the_oracle_bit_for_bit(D, q):
    whole = SteppedRound.of(round_of(5, D + 1, 1, q, L=7, K=2), f"oracle permutation {D} {q}")
    u1, u2 = (1, 2, 3, 5), (5, 2, 3, 1)
    masked = whole.masked(u1)
    expected = {
        n: oracle.mask_permutation(s.place.tolist(), s.mask.tolist(), pairs(whole.inputs[n]), q)
        for n, s in whole.secrets.items()
    }
    assert all(pairs(x) == expected[n] for n, x in masked.items())
    held = {n: {m: listed(whole, n, m) for m in u1} for n in u2}
    plain = {n: oracle.answer_permutation({m: expected[m] for m in u1}, held[n], q) for n in u2}
    answers = whole.answers(u1)
    assert {n: answers[n].tolist() for n in u2} == plain
    blocks = oracle.decode(plain, whole.points.alpha, whole.points.beta, D, q)
    assert oracle.joined_permutation(blocks, 7) == whole.plain_sum(u1)


def listed(whole: SteppedRound, holder: int, sender: int) -> oracle.ShareRows:
    f, h = whole.shares[holder][sender].tables
    return list(zip(f.tolist(), h.tolist(), strict=True))


@pytest.mark.parametrize("q", [97, 65521, DEFAULT_FIELD, LARGEST])
def test_the_secret_gives_back_the_input_behind_x(q):
    p = round_of(3, 2, 1, q, L=50, K=9)
    for n, sparse in any_inputs(p, "unmask").items():
        secret = a_secret(p, f"unmask {n}")
        x = construction(p).mask(secret, sparse)
        construction(p).check_masked(x)
        assert sorted(pairs(construction(p).unmask(secret, x))) == sorted(pairs(sparse))


# Any round, through selection and quantisation


@dataclass
class Case:
    p: Parameters
    gradients: dict[int, np.ndarray]
    u1: list[int]
    u2: list[int]
    seed: int
    clip: float = 1.0

    @property
    def scale(self) -> int:
        """Steps per unit."""
        return fixed_of(self.p, self.clip).runs[0].scale


def gradient(kind: str, length: int, clip: float, chance: np.random.Generator) -> np.ndarray:
    if kind == "zero":
        return np.zeros(length)
    if kind == "tied":  # few distinct magnitudes, both signs, the clip itself among them
        return chance.integers(-2, 3, length) / 2 * clip
    if kind == "lonely":  # one entry that is not zero, the same for all
        single = np.zeros(length)
        single[length // 2] = -clip
        return single
    if kind == "float32":
        return (chance.uniform(-1, 1, length) * clip * 0.999).astype(np.float32)
    return chance.uniform(-1, 1, length) * clip


@st.composite
def sizes(draw: st.DrawFn, q: int) -> dict[str, int]:
    """L, K and P of `sketch`: B buckets of M places, the last place missing in some."""
    P = draw(st.sampled_from([1, min(16, q - 1)]) | st.integers(1, min(16, q - 1)))
    B = draw(st.integers(1, 7))
    M = draw(st.integers(P, min(q - 1, P + 30)) | st.just(min(q - 1, 70)))
    least = max((M - 1) * B + 1, P * B)
    return {
        "L": draw(st.integers(least, M * B)),
        "K": draw(st.integers((B - 1) * P + 1, B * P)),
        "P": P,
    }


@st.composite
def cases(draw: st.DrawFn, name: str) -> Case:
    N = draw(st.integers(2, 9))
    U = draw(st.integers(2, N))
    T = draw(st.integers(1, U - 1))
    small = [q for q in (5, 7, 11, 13, 17, 19, 97, 257, 65521, DEFAULT_FIELD, LARGEST) if q > 2 * N]
    q = draw(st.sampled_from(small) | st.integers(2 * N + 1, LARGEST).map(oracle.next_prime))
    if name == SKETCH:
        raw = draw(sizes(q))
    else:
        L = draw(st.integers(1, 40))
        raw = {"L": L, "K": draw(st.sampled_from([1, L]) | st.integers(1, L))}
    clips = [c for c in (2.0**-40, 0.001, 0.3, 1.0, 17.5, 1e6) if (q - 1) // 2 / (N * c) >= 1]
    p = round_of(N, U, T, q, construct=name, **raw)
    clip = draw(st.sampled_from(clips))
    u1 = draw(st.permutations(range(1, N + 1)))[: draw(st.integers(U, N))]
    u2 = draw(st.permutations(u1))[: draw(st.just(len(u1)) | st.integers(U, len(u1)))]
    seed = draw(st.integers(0, 2**32))
    chance = np.random.default_rng(seed)
    kinds = st.sampled_from(["zero", "tied", "lonely", "float32", "dense", "minus the one before"])
    gradients: dict[int, np.ndarray] = {}
    for n, kind in ((n, draw(kinds)) for n in u1):
        before = next(reversed(gradients.values()), None)
        minus = kind.startswith("minus") and before is not None
        gradients[n] = -before if minus else gradient(kind, p.length, clip, chance)
    return Case(p, gradients, u1, u2, seed, clip)


def prepared(p: Parameters, values: np.ndarray, name: str, clip: float = 1.0) -> Sparse:
    """Select and quantise as `mask` does, and compare each step with the oracle."""
    index = construction(p).select(values)
    listed = values.tolist()
    picked_from = p.length - p.whole
    picked = (
        oracle.bucket_top(listed[:picked_from], p.buckets, p.picks)
        if p.construction == SKETCH
        else oracle.top_k(listed, p.top_k)
    )
    assert index.tolist() == [*picked, *range(picked_from, p.length)]
    chosen = values[index].astype(np.float64)
    fixed = fixed_of(p, clip)
    quantised, _ = quantise(fixed, index, chosen, rounding_source(source(name), index, chosen))
    for real, w in zip(chosen.tolist(), quantised.tolist(), strict=True):
        allowed = {
            max(-p.largest, min(p.largest, v)) for v in oracle.roundings(real, fixed.runs[0].scale)
        }
        assert oracle.lifted(w, p.field) in allowed
    return Sparse(index, quantised)


def check_round(case: Case) -> list[int]:
    p = case.p
    inputs = {
        n: prepared(p, values, f"{case.seed} {n}", case.clip)
        for n, values in case.gradients.items()
    }
    expected = plain_sum(p, inputs.values())
    total = run_round(p, inputs, case.u1, case.u2, source(f"round {case.seed}"))
    assert dense(p, total) == expected
    exact = [0] * p.length
    for sparse in inputs.values():
        for k, w in pairs(sparse):
            exact[k] += oracle.lifted(w, p.field)
    assert [oracle.lifted(w, p.field) for w in expected] == exact, "no sum wraps"
    return expected


@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_any_admissible_round_gives_the_plain_sum(name):
    @settings(max_examples=150)
    @given(cases(name))
    def check(case):
        check_round(case)

    check()


def edge(kind: str, N: int = 6, U: int = 4, T: int = 1, *, clip: float = 1.0, **raw: Any) -> Case:
    p = round_of(N, U, T, **raw)
    u1 = list(range(N, N - U - 1, -1)) if N > U else list(range(1, N + 1))
    chance = np.random.default_rng(7)
    gradients = {n: gradient(kind, p.length, clip, chance) for n in u1}
    return Case(p, gradients, u1, u1[1:] if N > U else u1, 7, clip)


SKETCHES: dict[str, tuple[dict[str, int], Callable[[Sketch], bool]]] = {
    "L is not divisible by B": ({"L": 23, "K": 9, "P": 2}, lambda c: c.p.length % c.p.buckets > 0),
    "the last group is not full": (
        {"L": 90, "K": 8, "P": 2},
        lambda c: (c.p.buckets, c.p.blocks) == (4, 3),
    ),
    "there are fewer buckets than D": (
        {"L": 90, "K": 2, "P": 1},
        lambda c: c.p.buckets < c.p.blocks,
    ),
    "more is sent than K": ({"L": 40, "K": 7, "P": 4}, lambda c: c.coordinate_count > c.p.top_k),
    "a bucket has one place": (
        {"L": 9, "K": 9, "P": 1},
        lambda c: c.sparse.places == c.width == 1,
    ),
    "all of a bucket is picked": (
        {"L": 14, "K": 14, "P": 2},
        lambda c: c.sparse.places == 2 == c.p.picks,
    ),
    "there are sixteen picks": ({"L": 150, "K": 30, "P": 16}, lambda c: c.coordinate_count == 32),
    "W = M": ({"L": 40, "K": 8, "P": 2}, lambda c: not c.searched),
    "W = M, where five users fill less": (
        {"L": 24, "K": 2, "P": 1},
        lambda c: c.width == c.sparse.places == c.answer_shape(5).width > 2 * 5,
    ),
    "W = M, and there are more places than the field has": (
        {"L": 60, "K": 5, "P": 2, "q": 17},
        lambda c: c.width == c.sparse.places > 16,
    ),
    "n = M": ({"L": 200, "K": 2, "P": 1}, lambda c: c.order == c.sparse.places == 100),
    "n > M": ({"L": 34, "K": 2, "P": 1}, lambda c: c.order > c.sparse.places > c.width),
    "n = M = q - 1": (
        {"L": 96, "K": 1, "P": 1, "q": 97},
        lambda c: c.order == c.sparse.places == 96,
    ),
    "n = q - 1 is much more than M": ({"L": 24, "K": 1, "P": 1, "q": 47}, lambda c: c.order == 46),
    "everything is sent whole": ({"L": 71, "whole": 71}, lambda c: not c.sparse.buckets),
    "some is sent whole": (
        {"L": 221, "K": 2, "P": 1, "whole": 21},
        lambda c: c.searched == 2 < c.buckets,
    ),
    "some is sent whole, in symbols of a byte": (
        {"L": 61, "K": 8, "P": 2, "whole": 21, "q": 251},
        lambda c: c.searched == 0 < c.sparse.buckets < c.buckets,
    ),
}


@pytest.mark.parametrize("kind", ["dense", "tied", "lonely", "zero"])
@pytest.mark.parametrize("name", SKETCHES)
def test_sketches_are_exact_where(name, kind):
    raw, holds = SKETCHES[name]
    case = edge(kind, **raw)
    c = construction(case.p)
    assert isinstance(c, Sketch)
    assert holds(c)
    check_round(case)


EACH = pytest.mark.parametrize("construct", CONSTRUCTIONS)


@EACH
def test_a_coordinate_that_all_users_choose_is_the_only_one_of_the_sum(construct):
    case = edge("lonely", L=13, K=1, construct=construct)
    assert check_round(case) == [-5 * case.scale % case.p.field if k == 6 else 0 for k in range(13)]


@EACH
def test_all_users_at_minus_clip_do_not_wrap(construct):
    case = edge("zero", L=5, K=5, N=4, U=4, T=2, construct=construct)
    case.gradients.update({n: np.full(5, -1.0) for n in case.u1})
    assert check_round(case) == [-4 * case.scale % case.p.field] * 5


@EACH
def test_gradients_of_zeros_sum_to_zero(construct):
    assert not any(check_round(edge("zero", L=30, K=6, construct=construct)))


@pytest.mark.parametrize("P", [None, 1, 4])
def test_a_sum_that_cancels_to_nothing_is_decoded_as_nothing(P):
    p = round_of(4, 3, 1, L=100, K=4, P=P)
    inputs = any_inputs(p, "cancel")
    inputs[3], inputs[4] = inputs[2], inputs[1]
    whole = SteppedRound.of(p, "cancel", inputs)
    assert whole.decode(range(1, 5), whole.answers(range(1, 5))) == ([0] * 100, [])


def test_many_groups_in_several_blocks_of_rows(monkeypatch):
    for raw in ({}, {"P": 1}):
        case = edge("dense", L=150, K=60, **raw)
        in_small_blocks(monkeypatch, case.p, 64)
        c = construction(case.p)
        assert c.rows > 3 * c.chunk_rows
        check_round(case)


@pytest.mark.parametrize("q", [83, DEFAULT_FIELD])
def test_the_illustrated_example_of_the_paper(q):
    p = Parameters.choose(users=5, survivors=3, colluders=1, top_k=2, length=4, field=q)
    assert (p.blocks, construction(p).width) == (2, 2)
    w = {}
    inputs = {}
    for n in range(1, 6):
        values = np.load(EXAMPLE / f"user-{n:02}.npy")
        inputs[n] = prepared(p, values, f"example {n}")
        w[n] = {k + 1: value for k, value in pairs(inputs[n])}
    assert [set(w[n]) for n in range(1, 6)] == [{2, 4}, {3, 4}, {1, 3}, {2, 3}, {1, 4}]

    u1, u2 = {1, 2, 3, 4}, {1, 2, 3}  # user 5 drops out after masking, user 4 after answering
    aggregate = run_round(p, inputs, u1, u2, source("example"))

    assert dense(p, aggregate) == [
        w[3][1] % q,
        (w[1][2] + w[4][2]) % q,
        (w[2][3] + w[3][3] + w[4][3]) % q,
        (w[1][4] + w[2][4]) % q,
    ]
    reals = [-0.875, 1.25, 0.75, -0.25]
    if q == 83:  # eight steps per unit: nothing is rounded
        assert dequantise(fixed_of(p), aggregate.index, aggregate.value).tolist() == reals
    assert (
        np.abs(dequantise(fixed_of(p), aggregate.index, aggregate.value) - reals).max()
        < 3 * fixed_of(p).step
    )


# What must not pass


def test_fewer_survivors_than_agreed_and_answers_of_others_are_refused():
    p = round_of(5, 3, 1, L=7, K=2)
    inputs = any_inputs(p, "few")
    with pytest.raises(TooFewSurvivors):
        run_round(p, inputs, (1, 2), (1, 2), source("few"))
    with pytest.raises(ValueError, match="not within"):
        run_round(p, inputs, (1, 2, 3), (2, 3, 4), source("few"))


def permutation_round() -> Parameters:
    return round_of(3, 2, 1, 97, L=40, K=8)


@pytest.mark.parametrize("count", [0, 1, 7, 9])
def test_an_input_of_another_count_is_not_masked(count):
    p = permutation_round()
    index = np.arange(count, dtype=np.int64)
    with pytest.raises(ValueError, match="exactly 8 entries"):
        construction(p).mask(a_secret(p, "count"), Sparse(index, index.astype(np.uint32) + 1))


@EACH
def test_a_value_of_zero_is_masked_like_any_other(construct):
    p = round_of(3, 2, 1, 97, L=40, K=8, construct=construct)
    sparse = any_input(p, random.Random(0))
    sparse.value[:] = 0
    construction(p).check_masked(construction(p).mask(a_secret(p, "zero"), sparse))


# X must not tell the order of the coordinates


def in_coordinate_order(p: Parameters, secret: Secret, sparse: Sparse) -> Masked:
    """Sabotage: X in order of k rather than of pi(k)."""
    value = (sparse.value.astype(np.uint64) + secret.mask[sparse.index]) % p.field
    return Masked(secret.place[sparse.index], value.astype(np.uint32))


def test_x_is_in_the_order_of_the_permuted_index_and_refused_in_that_of_the_coordinates():
    p = permutation_round()
    for seed in range(20):
        secret = a_secret(p, f"sorted {seed}")
        sparse = any_input(p, random.Random(seed))
        x, leaking = construction(p).mask(secret, sparse), in_coordinate_order(p, secret, sparse)
        assert x.index.tolist() == sorted(set(x.index.tolist()))
        construction(p).check_masked(x)
        assert sorted(pairs(leaking)) == pairs(x), "only the order differs"
        with pytest.raises(BadData, match="not increasing"):
            construction(p).check_masked(leaking)


def changed(values: np.ndarray, at: int, to: int) -> np.ndarray:
    return np.where(np.arange(values.size) == at, to, values).astype(np.uint32)


BAD_X: dict[str, Callable[[Parameters, Masked], Masked]] = {
    "an index beyond": lambda p, x: Masked(
        changed(x.index, 7, construction(p).index_bound), x.value
    ),
    "a value beyond": lambda p, x: Masked(x.index, changed(x.value, 4, p.field)),
    "the largest word": lambda _, x: Masked(x.index, changed(x.value, 4, 2**32 - 1)),
    "an entry too few": lambda _, x: Masked(x.index[:-1], x.value[:-1]),
    "an entry too many": lambda _, x: Masked(np.append(x.index, 39), np.append(x.value, 1)),
    "a value without an index": lambda _, x: Masked(x.index[:-1], x.value),
    "an index twice": lambda _, x: Masked(changed(x.index, 3, x.index[2]), x.value),
}


@pytest.mark.parametrize("change", BAD_X)
def test_an_x_that_no_honest_user_sends_is_refused_and_no_other(change):
    p = permutation_round()
    x = construction(p).mask(a_secret(p, "honest"), any_input(p, random.Random(1)))
    construction(p).check_masked(x)
    bad = BAD_X[change](p, x)
    with pytest.raises(BadData):
        construction(p).check_masked(bad)


@EACH
def test_every_user_of_a_round_in_memory_draws_its_own_secret(construct, monkeypatch):
    p = round_of(4, 3, 1, L=27, K=4, construct=construct)
    c = construction(p)
    draw = c.draw_secret
    secrets: list[Secret] = []

    def drawing(*given: object) -> Secret:
        secrets.append(draw(*given))
        return secrets[-1]

    monkeypatch.setattr(c, "draw_secret", drawing)
    users = range(1, 5)
    run_round(p, any_inputs(p, "own"), users, users, source("own"))
    assert len({secret.mask.tobytes() for secret in secrets}) == p.users
