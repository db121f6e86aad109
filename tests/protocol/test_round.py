"""The aggregate is bit-equal to the plain sum of the quantised sparse inputs, whoever drops out."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topk_secagg.algebra.field import DEFAULT_FIELD
from topk_secagg.algebra.lagrange import default_points
from topk_secagg.algebra.randomness import CipherRandomness
from topk_secagg.errors import BadData, TooFewSurvivors
from topk_secagg.gradients.quantize import dequantise, quantise, rounding_source
from topk_secagg.gradients.sparsify import select_top, values_at
from topk_secagg.protocol.decoding import decode
from topk_secagg.protocol.elimination import answer_blocks
from topk_secagg.protocol.masking import check_masked, mask_input
from topk_secagg.protocol.messages import Masked, Points, Secret, Sparse
from topk_secagg.protocol.offline import draw_secret
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.protocol.round import InMemoryAnswer, InMemoryShares, deal, run_round

EXAMPLE = Path(__file__).parents[2] / "fixtures" / "example"
TINY_CLIP = 2.0**-20  # leaves room for a scale in the smallest fields


def admissible(most_users: int) -> list[tuple[int, int, int, int]]:
    """All (N, U, T, D) with 1 <= T < U <= N and 1 <= D <= U - T."""
    return [
        (N, U, T, D)
        for N in range(2, most_users + 1)
        for U in range(2, N + 1)
        for T in range(1, U)
        for D in range(1, U - T + 1)
    ]


def points_of(p: Parameters) -> Points:
    alpha, beta = default_points(p.users, p.survivors, p.field)
    return Points(tuple(alpha), tuple(beta))


def source(name: str) -> CipherRandomness:
    return CipherRandomness(bytes(32)).child(name)


def symbol(chance: random.Random, q: int) -> int:
    """Any symbol, the extreme ones often."""
    return chance.choice([0, 1, q - 1, (q - 1) // 2, (q + 1) // 2, *(chance.randrange(q) for _ in range(5))])


def any_input(p: Parameters, chance: random.Random) -> Sparse:
    """An input that the construction can mask, with any symbols as its values; padding is zero."""
    if p.buckets:
        places = [sorted(chance.sample(range(p.width), p.picks)) for _ in range(p.buckets)]
        index = [place * p.buckets + b for b in range(p.buckets) for place in places[b]]
    else:
        index = sorted(chance.sample(range(p.length), p.top_k))
    value = [symbol(chance, p.field) if k < p.length else 0 for k in index]
    return Sparse(np.array(index, dtype=np.int64), np.array(value, dtype=np.uint32))


def pairs(message: Sparse | Masked) -> oracle.Pairs:
    return list(zip(message.index.tolist(), message.value.tolist(), strict=True))


@dataclass
class Offline:
    """The offline phase of all users, and an input for each."""

    p: Parameters
    points: Points
    secrets: dict[int, Secret]
    shares: dict[int, dict[int, InMemoryShares]]  # [holder][sender]
    inputs: dict[int, Sparse]

    @staticmethod
    def of(p: Parameters, name: str) -> Offline:
        chance = random.Random(name)
        points = points_of(p)
        users = range(1, p.users + 1)
        sources = {n: source(f"{name} {n}") for n in users}
        secrets = {n: draw_secret(p, sources[n]) for n in users}
        dealt = {n: deal(p, points, secrets[n], sources[n]) for n in users}
        shares = {m: {n: dealt[n][m - 1] for n in users} for m in users}
        return Offline(p, points, secrets, shares, {n: any_input(p, chance) for n in users})

    def masked(self, u1: tuple[int, ...]) -> dict[int, Masked]:
        return {n: mask_input(self.p, self.secrets[n], self.inputs[n]) for n in u1}

    def answers(self, p: Parameters, u1: tuple[int, ...]) -> dict[int, InMemoryAnswer]:
        masked = self.masked(u1)
        return {
            n: InMemoryAnswer(np.concatenate([y.answer for y in answer_blocks(p, masked, self.shares[n])]))
            for n in u1
        }

    def plain_sum(self, u1: tuple[int, ...]) -> list[int]:
        return oracle.plain_sum([pairs(self.inputs[n]) for n in u1], self.p.length, self.p.field)


def decoded(p: Parameters, points: Points, survivors: int, answers: dict[int, InMemoryAnswer]) -> list[int]:
    found = decode(p, points, survivors, answers, CipherRandomness(bytes(32)))
    assert found.corrected == []
    assert np.all(np.diff(found.total.index) > 0), "the coordinates increase"
    assert np.all(found.total.value), "what is zero is left out"
    total = [0] * p.length
    for k, w in pairs(found.total):
        total[k] = w
    return total


def small_round(N: int, U: int, T: int, D: int, q: int, construction: str, elimination: str) -> Parameters:
    return Parameters.choose(
        users=N, survivors=U, colluders=T, blocks=D, field=q, clip=TINY_CLIP, elimination=elimination,
        length=7, top_k=3 if construction == "rotation" else 2, construction=construction,
        picks=2 if construction == "rotation" else None,
    )  # fmt: skip


@pytest.mark.parametrize("field", ["smallest", "default"])
@pytest.mark.parametrize("construction", ["permutation", "rotation"])
@pytest.mark.parametrize(("N", "U", "T", "D"), admissible(5))
def test_every_pattern_of_drop_outs_decodes_to_the_plain_sum(
    N: int, U: int, T: int, D: int, construction: str, field: str
) -> None:
    q = oracle.next_prime(2 * N + 1) if field == "smallest" else DEFAULT_FIELD
    dense = small_round(N, U, T, D, q, construction, "dense")
    assert dense.length % D or D in (1, dense.length)
    eliminations = [dense]
    if q > dense.width:
        eliminations.append(replace(dense, elimination="syndrome"))
    offline = Offline.of(dense, f"{construction} {field} {N} {U} {T} {D}")
    tried = 0
    for u1 in oracle.subsets(range(1, N + 1), U):
        expected = offline.plain_sum(u1)
        for p in eliminations:
            answers = offline.answers(p, u1)
            for u2 in oracle.subsets(u1, U):
                assert decoded(p, offline.points, len(u1), {n: answers[n] for n in u2}) == expected
                tried += 1
    patterns = sum(math.comb(N, a) * math.comb(a, b) for b in range(U, N + 1) for a in range(b, N + 1))
    assert tried == patterns * len(eliminations)


def test_the_smallest_fields_are_on_both_sides_of_what_syndromes_need() -> None:
    spare = set()
    for N, U, T, D in admissible(5):
        q = oracle.next_prime(2 * N + 1)
        spare.add(q > small_round(N, U, T, D, q, "permutation", "dense").width)
    assert spare == {False, True}


@pytest.mark.parametrize("q", [11, 97, 2**31 - 1, DEFAULT_FIELD])
@pytest.mark.parametrize("D", [1, 2, 3])
def test_permutation_messages_are_those_of_the_oracle_bit_for_bit(D: int, q: int) -> None:
    p = small_round(5, 4, 1, D, q, "permutation", "dense")
    offline = Offline.of(p, f"oracle permutation {D} {q}")
    u1, u2 = (1, 2, 3, 5), (5, 2, 3, 1)
    masked = offline.masked(u1)
    plain_masked = {
        n: oracle.mask_permutation(
            offline.secrets[n].place.tolist(), offline.secrets[n].mask.tolist(), pairs(offline.inputs[n]), q
        )
        for n in u1
    }
    assert {n: pairs(x) for n, x in masked.items()} == plain_masked
    answers = offline.answers(p, u1)
    plain_answers = {
        n: oracle.answer_permutation(plain_masked, {m: listed(offline.shares[n][m]) for m in u1}, q)
        for n in u2
    }
    assert {n: answers[n].y.tolist() for n in u2} == plain_answers
    blocks = oracle.decode(plain_answers, offline.points.alpha, offline.points.beta, D, q)
    assert oracle.joined_permutation(blocks, p.length) == offline.plain_sum(u1)
    check_syndromes(replace(p, elimination="syndrome"), offline, u1, plain_answers)


@pytest.mark.parametrize("q", [11, 97, 2**31 - 1, DEFAULT_FIELD])
@pytest.mark.parametrize("D", [1, 2, 3])
def test_rotation_messages_are_those_of_the_oracle_bit_for_bit(D: int, q: int) -> None:
    p = small_round(5, 4, 1, D, q, "rotation", "dense")
    offline = Offline.of(p, f"oracle rotation {D} {q}")
    u1, u2 = (1, 2, 3, 5), (5, 2, 3, 1)
    masked = offline.masked(u1)
    plain_masked = {
        n: oracle.mask_rotation(
            offline.secrets[n].place.tolist(),
            offline.secrets[n].mask.tolist(),
            pairs(offline.inputs[n]),
            p.buckets,
            p.width,
            q,
        )
        for n in u1
    }
    assert {n: pairs(x) for n, x in masked.items()} == plain_masked
    answers = offline.answers(p, u1)
    plain_answers = {
        n: oracle.answer_rotation(
            plain_masked, {m: listed(offline.shares[n][m]) for m in u1}, p.blocks, p.picks, q
        )
        for n in u2
    }
    assert {n: answers[n].y.tolist() for n in u2} == plain_answers
    blocks = oracle.decode(plain_answers, offline.points.alpha, offline.points.beta, D, q)
    assert oracle.joined_rotation(blocks, p.length) == offline.plain_sum(u1)
    check_syndromes(replace(p, elimination="syndrome"), offline, u1, plain_answers)


def listed(shares: InMemoryShares) -> oracle.ShareRows:
    return list(zip(shares.f.tolist(), shares.h.tolist(), strict=True))


def check_syndromes(
    p: Parameters, offline: Offline, u1: tuple[int, ...], dense: dict[int, list[list[int]]]
) -> None:
    """A syndrome answer is the fixed linear map of the dense answer."""
    count = p.answer_width(len(u1))
    assert count == 2 * len(u1) * (p.picks or p.top_k)
    for n, y in offline.answers(p, u1).items():
        assert y.y.tolist() == [oracle.syndromes(group, count, p.field) for group in dense[n]]


# Larger parameters, through selection and quantisation


@dataclass
class Case:
    p: Parameters
    gradients: dict[int, np.ndarray]
    u1: list[int]
    u2: list[int]
    seed: int


def admissible_picks(L: int, K: int, D: int) -> list[int]:
    """Every P for which a bucket has P places."""
    return [P for P in range(1, L + 1) if math.ceil(L / (math.ceil(math.ceil(K / P) / D) * D)) >= P]


def gradient(kind: str, length: int, clip: float, chance: np.random.Generator) -> np.ndarray:
    if kind == "zero":
        return np.zeros(length)
    if kind == "tied":  # few distinct magnitudes, both signs, the clip itself among them
        return chance.integers(-2, 3, length) / 2 * clip
    if kind == "lonely":  # one entry that is not zero: most buckets have fewer than P
        single = np.zeros(length)
        single[chance.integers(length)] = -clip
        return single
    if kind == "float32":
        return (chance.uniform(-1, 1, length) * clip * 0.999).astype(np.float32)
    return chance.uniform(-1, 1, length) * clip


@st.composite
def cases(draw: st.DrawFn) -> Case:
    N = draw(st.integers(2, 9))
    U = draw(st.integers(2, N))
    T = draw(st.integers(1, U - 1))
    D = draw(st.integers(1, U - T))
    small = [q for q in (5, 7, 11, 13, 17, 19, 97, 257, 65537, 2**31 - 1, DEFAULT_FIELD) if q > 2 * N]
    q = draw(st.sampled_from(small) | st.integers(2 * N + 1, DEFAULT_FIELD).map(oracle.next_prime))
    L = draw(st.integers(1, 40))
    K = draw(st.sampled_from([1, L]) | st.integers(1, L))
    construction = draw(st.sampled_from(["permutation", "rotation"]))
    picks = draw(st.sampled_from(admissible_picks(L, K, D))) if construction == "rotation" else None
    clips = [c for c in (2.0**-40, 0.001, 0.3, 1.0, 17.5, 1e6) if (q - 1) // 2 / (N * c) >= 1]
    p = Parameters.choose(
        users=N, survivors=U, colluders=T, blocks=D, field=q, length=L, top_k=K, construction=construction,
        picks=picks, elimination=draw(st.sampled_from(["dense", "auto"])), clip=draw(st.sampled_from(clips)),
    )  # fmt: skip
    if p.width < q and draw(st.booleans()):
        p = replace(p, elimination="syndrome")
    u1 = draw(st.permutations(range(1, N + 1)))[: draw(st.integers(U, N))]
    u2 = draw(st.permutations(u1))[: draw(st.integers(U, len(u1)))]
    seed = draw(st.integers(0, 2**32))
    chance = np.random.default_rng(seed)
    kinds = st.sampled_from(["zero", "tied", "lonely", "float32", "dense"])
    gradients = {n: gradient(draw(kinds), L, p.clip, chance) for n in u1}
    return Case(p, gradients, u1, u2, seed)


def selected_by_oracle(p: Parameters, values: np.ndarray) -> list[int]:
    if p.construction == "rotation":
        return oracle.bucket_top(values.tolist(), p.buckets, p.picks)
    return oracle.top_k(values.tolist(), p.top_k)


def prepared(p: Parameters, values: np.ndarray, name: str) -> Sparse:
    """Select and quantise as `mask` does, each step held against the oracle."""
    index = select_top(p, values)
    assert index.tolist() == selected_by_oracle(p, values)
    chosen = values_at(values, index)
    quantised = quantise(p, chosen, rounding_source(source(name), index, chosen))
    for real, w in zip(chosen.tolist(), quantised.value.tolist(), strict=True):
        allowed = {max(-p.largest, min(p.largest, v)) for v in oracle.roundings(real, p.scale)}
        assert oracle.lifted(w, p.field) in allowed
    return Sparse(index, quantised.value)


def check_round(case: Case) -> list[int]:
    p = case.p
    inputs = {n: prepared(p, values, f"{case.seed} {n}") for n, values in case.gradients.items()}
    total = run_round(p, points_of(p), inputs, case.u1, case.u2, source(f"round {case.seed}"))
    expected = oracle.plain_sum([pairs(inputs[n]) for n in case.u1], p.length, p.field)
    assert total.tolist() == expected
    lifted = [sum(oracle.lifted(w, p.field) for w in column) for column in columns(p, inputs, case.u1)]
    assert [oracle.lifted(w, p.field) for w in expected] == lifted, "no sum wraps"
    return expected


def columns(p: Parameters, inputs: dict[int, Sparse], u1: list[int]) -> list[list[int]]:
    """The quantised values that meet in each coordinate."""
    result: list[list[int]] = [[] for _ in range(p.length)]
    for n in u1:
        for k, w in pairs(inputs[n]):
            if k < p.length:
                result[k].append(w)
    return result


@settings(max_examples=250)
@given(cases())
def test_any_admissible_round_gives_the_plain_sum(case: Case) -> None:
    check_round(case)


def edge(
    kind: str, *, q: int = DEFAULT_FIELD, elimination: str = "auto", clip: float = 1.0, **raw: int
) -> Case:
    N, U, T = raw.get("N", 6), raw.get("U", 4), raw.get("T", 1)
    p = Parameters.choose(
        users=N, survivors=U, colluders=T, blocks=raw.get("D"), field=q, length=raw["L"], top_k=raw["K"],
        construction="rotation" if "P" in raw else "permutation", picks=raw.get("P"), clip=clip,
        elimination=elimination,
    )  # fmt: skip
    u1 = list(range(N, N - U - 1, -1)) if N > U else list(range(1, N + 1))
    chance = np.random.default_rng(7)
    return Case(p, {n: gradient(kind, p.length, p.clip, chance) for n in u1}, u1, u1[1:] if N > U else u1, 7)


def test_length_that_no_block_count_divides() -> None:
    case = edge("dense", L=11, K=4, D=3)
    assert case.p.length % case.p.blocks
    check_round(case)


def test_gradient_shorter_than_the_number_of_blocks() -> None:
    case = edge("dense", L=2, K=1, D=3)
    assert case.p.width == 1
    check_round(case)


@pytest.mark.parametrize("picks", [{}, {"P": 1}])
def test_one_coordinate_and_all_coordinates(picks: dict[str, int]) -> None:
    assert sum(w != 0 for w in check_round(edge("dense", L=13, K=1, D=1, N=2, U=2, **picks))) in (1, 2)
    assert all(check_round(edge("dense", L=13, K=13, **picks)))


def test_rotation_with_buckets_that_do_not_divide_the_length() -> None:
    case = edge("dense", L=23, K=9, P=2, D=3)
    assert case.p.length % case.p.buckets
    check_round(case)


@pytest.mark.parametrize("kind", ["lonely", "zero"])
def test_rotation_with_buckets_that_have_fewer_than_p_entries(kind: str) -> None:
    case = edge(kind, L=24, K=12, P=4, D=3)
    assert all(
        np.count_nonzero(g[b :: case.p.buckets]) < 4 for g in case.gradients.values() for b in range(3)
    )
    check_round(case)


def test_rotation_that_sends_more_than_k() -> None:
    case = edge("dense", L=40, K=7, P=4, D=3)
    assert case.p.entries > case.p.top_k
    check_round(case)


def test_rotation_with_buckets_of_one_place() -> None:
    case = edge("dense", L=9, K=9, P=1, D=3)
    assert case.p.width == 1
    assert all(check_round(case))


def test_rotation_with_more_buckets_than_coordinates() -> None:
    case = edge("dense", L=4, K=4, P=1, D=3)
    assert case.p.buckets > case.p.length
    assert all(check_round(case))


def test_rotation_that_picks_all_of_a_bucket_padding_too() -> None:
    case = edge("dense", L=14, K=15 - 1, P=5, D=3)
    assert case.p.width == case.p.picks
    assert case.p.length % case.p.buckets
    assert all(check_round(case))


@pytest.mark.parametrize("picks", [{}, {"P": 2}])
def test_one_block(picks: dict[str, int]) -> None:
    check_round(edge("tied", L=17, K=5, D=1, **picks))


@pytest.mark.parametrize("picks", [{}, {"P": 3}])
def test_gradients_of_zeros_sum_to_zero(picks: dict[str, int]) -> None:
    assert not any(check_round(edge("zero", L=30, K=6, **picks)))


@pytest.mark.parametrize("picks", [{}, {"P": 1}])
def test_everybody_at_minus_clip_does_not_wrap(picks: dict[str, int]) -> None:
    case = edge("zero", L=5, K=5, N=4, U=4, T=2, **picks)
    case.gradients.update({n: np.full(5, -1.0) for n in case.u1})
    assert check_round(case) == [(-4 * case.p.scale) % case.p.field] * 5


@pytest.mark.parametrize("kind", ["dense", "lonely"])
def test_auto_takes_syndromes_where_they_are_smaller(kind: str) -> None:
    case = edge(kind, L=200, K=4, P=1, D=2)
    assert case.p.by_syndromes(len(case.u1))
    assert case.p.answer_width(len(case.u1)) < case.p.width
    check_round(case)
    full = edge(kind, L=8, K=4, P=1, D=2)
    assert not full.p.by_syndromes(len(full.u1))
    check_round(full)


def test_syndromes_that_outnumber_the_places_of_a_block() -> None:
    case = edge("dense", L=6, K=4, P=2, D=2, elimination="syndrome")
    assert case.p.answer_width(len(case.u1)) > case.p.width
    check_round(case)


def test_many_groups_in_several_blocks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topk_secagg.protocol.parameters._BLOCK_SYMBOLS", 64)
    monkeypatch.setattr("topk_secagg.protocol.decoding._BUFFER_SYMBOLS", 64)
    for raw in ({}, {"P": 2}):
        case = edge("dense", L=50, K=20, D=2, **raw)
        assert case.p.rows > 3 * case.p.block_rows
        check_round(case)


# The worked example of the paper


@pytest.mark.parametrize("q", [83, DEFAULT_FIELD])
def test_the_illustrated_example_of_the_paper(q: int) -> None:
    p = Parameters.choose(users=5, survivors=3, colluders=1, top_k=2, length=4, field=q, elimination="dense")
    assert (p.blocks, p.width, p.quorum) == (2, 2, 3)
    w: dict[int, dict[int, int]] = {}
    inputs = {}
    for n in range(1, 6):
        values = np.load(EXAMPLE / f"user-{n:02}.npy")
        index = select_top(p, values)
        chosen = values_at(values, index)
        inputs[n] = Sparse(index, quantise(p, chosen, source(f"example {n}")).value)
        w[n] = {k + 1: value for k, value in pairs(inputs[n])}
    assert [set(w[n]) for n in range(1, 6)] == [{2, 4}, {3, 4}, {1, 3}, {2, 3}, {1, 4}]

    u1, u2 = {1, 2, 3, 4}, {1, 2, 3}  # user 5 drops out after masking, user 4 after answering
    aggregate = run_round(p, points_of(p), inputs, u1, u2, source("example"))

    assert aggregate.tolist() == [
        w[3][1] % q,
        (w[1][2] + w[4][2]) % q,
        (w[2][3] + w[3][3] + w[4][3]) % q,
        (w[1][4] + w[2][4]) % q,
    ]
    reals = [-0.875, 1.25, 0.75, -0.25]
    if q == 83:  # eight steps per unit: nothing is rounded
        assert dequantise(p, aggregate).tolist() == reals
    assert np.abs(dequantise(p, aggregate) - reals).max() < 3 / p.scale


# What must not pass


def tampered_round(construction: str) -> tuple[Offline, dict[int, InMemoryAnswer], tuple[int, ...]]:
    p = small_round(5, 3, 1, 2, DEFAULT_FIELD, construction, "dense")
    offline, u1 = Offline.of(p, "tampered"), (1, 2, 3, 4, 5)
    return offline, offline.answers(p, u1), u1


@pytest.mark.parametrize("construction", ["permutation", "rotation"])
@pytest.mark.parametrize("wrong", [1, 2, 3, 4])
def test_an_answer_off_the_polynomial_is_refused(construction: str, wrong: int) -> None:
    offline, answers, u1 = tampered_round(construction)
    four = {n: answers[n] for n in u1[:4]}
    assert decoded(offline.p, offline.points, 5, four) == offline.plain_sum(u1)
    four[wrong].y[0, 0] = (int(four[wrong].y[0, 0]) + 1) % offline.p.field
    with pytest.raises(BadData, match="do not agree"):
        decoded(offline.p, offline.points, 5, four)


@pytest.mark.parametrize("construction", ["permutation", "rotation"])
def test_fewer_answers_than_determine_the_polynomial_are_refused(construction: str) -> None:
    offline, answers, _ = tampered_round(construction)
    two = {n: answers[n] for n in (2, 4)}
    with pytest.raises(TooFewSurvivors, match="2 answers, and 3 are needed"):
        decoded(offline.p, offline.points, 5, two)


def test_fewer_survivors_than_agreed_are_refused() -> None:
    p = small_round(5, 3, 1, 1, DEFAULT_FIELD, "permutation", "dense")
    inputs = {n: any_input(p, random.Random(n)) for n in (1, 2)}
    with pytest.raises(TooFewSurvivors):
        run_round(p, points_of(p), inputs, (1, 2), (1, 2), source("few"))


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_an_input_without_exactly_k_entries_is_not_masked(missing: int) -> None:
    p = small_round(3, 2, 1, 1, DEFAULT_FIELD, "permutation", "dense")
    index = np.arange(missing, dtype=np.int64)
    with pytest.raises(ValueError, match="exactly 2 entries"):
        mask_input(p, draw_secret(p, source("count")), Sparse(index, index.astype(np.uint32)))


def test_picks_out_of_the_order_of_their_buckets_are_not_masked() -> None:
    p = small_round(3, 2, 1, 1, DEFAULT_FIELD, "rotation", "dense")
    good = any_input(p, random.Random(0))
    secret = draw_secret(p, source("order"))
    mask_input(p, secret, good)
    with pytest.raises(ValueError, match="bucket by bucket"):
        mask_input(p, secret, Sparse(good.index[::-1].copy(), good.value))


# X must not tell the order of the coordinates


def in_coordinate_order(p: Parameters, secret: Secret, sparse: Sparse) -> Masked:
    """Sabotage: X in order of k rather than of pi(k)."""
    value = (sparse.value.astype(np.uint64) + secret.mask[sparse.index]) % p.field
    return Masked(secret.place[sparse.index], value.astype(np.uint32))


def permutation_round() -> Parameters:
    return Parameters.choose(users=3, survivors=2, colluders=1, top_k=8, length=40)


def test_x_is_in_the_order_of_the_permuted_index_whatever_the_input() -> None:
    p = permutation_round()
    for seed in range(20):
        x = mask_input(p, draw_secret(p, source(f"sorted {seed}")), any_input(p, random.Random(seed)))
        assert x.index.tolist() == sorted(set(x.index.tolist()))
        check_masked(p, x)


def test_an_x_in_the_order_of_the_coordinates_is_refused() -> None:
    p = permutation_round()
    refused = 0
    for seed in range(20):
        secret, sparse = draw_secret(p, source(f"sorted {seed}")), any_input(p, random.Random(seed))
        leaking = in_coordinate_order(p, secret, sparse)
        assert sorted(pairs(leaking)) == pairs(mask_input(p, secret, sparse)), "only the order differs"
        with pytest.raises(BadData, match="not increasing"):
            check_masked(p, leaking)
        refused += 1
    assert refused == 20


@pytest.mark.parametrize("change", ["repeated", "beyond", "value", "short"])
def test_an_x_that_no_honest_user_sends_is_refused(change: str) -> None:
    p = replace(permutation_round(), field=97, scale=16)
    x = mask_input(p, draw_secret(p, source("honest")), any_input(p, random.Random(1)))
    check_masked(p, x)
    index, value = x.index.copy(), x.value.copy()
    if change == "repeated":
        index[3] = index[2]
    elif change == "beyond":
        index[-1] = p.length
    elif change == "value":
        value[4] = p.field
    else:
        index, value = index[:-1], value[:-1]
    with pytest.raises(BadData):
        check_masked(p, Masked(index, value))


def test_a_rotation_beyond_the_bucket_is_refused() -> None:
    p = small_round(3, 2, 1, 1, DEFAULT_FIELD, "rotation", "dense")
    x = mask_input(p, draw_secret(p, source("honest")), any_input(p, random.Random(1)))
    check_masked(p, x)
    x.index[0] = p.width
    with pytest.raises(BadData, match="rotation"):
        check_masked(p, x)
