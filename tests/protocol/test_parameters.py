"""Every constraint of the scheme is refused in one place, with a message, a hint and exit code
2."""

import dataclasses
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import oracle
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from topk_secagg.algebra.field import DEFAULT_FIELD
from topk_secagg.errors import UsageError
from topk_secagg.gradients.quantise import FixedPoint, quantisation_scale
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.messages import AnswerShape
from topk_secagg.protocol.parameters import (
    CONSTRUCTIONS,
    DEALINGS,
    Parameters,
)
from topk_secagg.protocol.sketch import Sketch

GOOD: dict[str, Any] = {"users": 5, "survivors": 4, "colluders": 2, "top_k": 3, "length": 20}
SKETCH: dict[str, Any] = {**GOOD, "construction": "sketch", "picks": 2}
EACH = {name: {**GOOD, "construction": name} for name in CONSTRUCTIONS}
LARGEST = 2**32 - 5
fields = st.integers(11, LARGEST).map(oracle.next_prime)
clips = st.floats(1e-200, 1e9, exclude_min=True) | st.sampled_from([0.1, 0.3, 1.0, 2.0**-20, 1e-5])


def refused(match: str, **raw: Any) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        Parameters.choose(**raw)
    assert caught.value.exit_code == 2
    assert caught.value.hint


def sketch(**raw: Any) -> Sketch:
    c = construction(Parameters.choose(**raw, construction="sketch"))
    assert isinstance(c, Sketch)
    return c


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"colluders": 0}, "at least one must be tolerated"),
        ({"colluders": -1}, "at least one must be tolerated"),
        ({"colluders": 4}, "leave nobody to hide among"),
        ({"survivors": 2}, "leave nobody to hide among"),
        ({"survivors": 6}, "6 survivors of 5 users"),
        ({"users": 3}, "4 survivors of 3 users"),
        ({"users": 0}, "4 survivors of 0 users"),
        ({"field": 91}, "91 is not a prime"),
        ({"field": 2**32 + 15}, "is not a prime below"),
        ({"field": 2**61 - 1}, "is not a prime below"),
        ({"field": 1}, "is not a prime"),
        ({"field": -7}, "is not a prime"),
        ({"field": 7}, "a field of 7 elements has no 5 \\+ 4 distinct points"),
        ({"length": 0, "top_k": 0}, "0 coordinates"),
        ({"length": -1}, "-1 coordinates"),
        ({"length": 2**32}, "4294967296 coordinates"),
        ({"top_k": 0}, "cannot select 0 of 20"),
        ({"top_k": 21}, "cannot select 21 of 20"),
        ({"max_weight": 0.0}, "the largest weight is 0"),
        ({"max_weight": math.nan}, "the largest weight is nan"),
    ],
    ids=str,
)
def test_inadmissible_parameters_are_refused(change, match):
    for good in (*EACH.values(), SKETCH):
        Parameters.choose(**good)
        refused(match, **{**good, **change})


@pytest.mark.parametrize(
    ("good", "change", "match"),
    [
        (GOOD, {"construction": "shuffle"}, "unknown construction 'shuffle'"),
        (GOOD, {"construction": "rotation"}, "unknown construction 'rotation'"),
        (GOOD, {"picks": 2}, "picks do not belong to the construction permutation"),
        (GOOD, {"dealing": "keys"}, "the construction permutation does not deal 'keys'"),
        (SKETCH, {"dealing": "letters"}, "the construction sketch does not deal 'letters'"),
        (SKETCH, {"picks": 0}, "0 picks per bucket"),
        (SKETCH, {"picks": 21}, "cannot pick more than the 20 coordinates"),
        (SKETCH, {"field": 11, "length": 50}, "a field of 11 elements has no 25 places"),
        (SKETCH, {"whole": 21}, "21 of 20 coordinates cannot be sent whole"),
        (SKETCH, {"whole": -1}, "-1 of 20 coordinates cannot be sent whole"),
        (SKETCH, {"whole": 18}, "cannot select 3 of 2 coordinates"),
        (SKETCH, {"whole": 20}, "3 cannot be selected besides"),
        (SKETCH, {"whole": 20, "top_k": 0}, "nothing is picked where all is sent whole"),
        (GOOD, {"whole": 1}, "permutation sends no coordinates whole"),
    ],
    ids=str,
)
def test_inadmissible_parameters_of_a_construction_are_refused(good, change, match):
    refused(match, **{**good, **change})


RECORDED = {
    "permutation": [
        {"picks": 1},
        {"buckets": 2},
        {"dealing": "keys"},
    ],
    "sketch": [
        {"buckets": 0},
        {"buckets": 3},
        {"picks": 1},
        {"dealing": ""},
    ],
}


@pytest.mark.parametrize(
    ("name", "change"), [(n, c) for n in RECORDED for c in RECORDED[n]], ids=str
)
def test_recorded_parameters_must_fit_each_other(name, change):
    good = {"permutation": GOOD, "sketch": SKETCH}[name]
    p = Parameters.choose(**{**good, "top_k": 4})
    with pytest.raises(UsageError):
        replace(p, **change)


@pytest.mark.parametrize(
    "name", ["users", "survivors", "colluders", "top_k", "length", "field", "picks"]
)
def test_numbers_beyond_any_float_are_refused(name):
    for raw in (GOOD, SKETCH):
        refused(".", **{**raw, name: 10**400})


@pytest.mark.parametrize("good", EACH.values(), ids=EACH)
def test_the_field_is_any_prime_with_room_for_the_points_and_the_values(good):
    for q in range(9, 600):
        raw = {**good, "field": q}
        if oracle.is_prime(q):
            assert Parameters.choose(**raw).field == q
        else:
            refused("is not a prime", **raw)


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
@pytest.mark.parametrize(
    ("N", "U", "q"), [(4, 3, 7), (5, 2, 7), (9, 4, 13), (9, 8, 17), (9, 2, 13), (10, 2, 17)]
)
def test_a_field_without_room_for_one_step_of_every_user_is_refused(N, U, q, construction):
    """q > 2 N is needed: below, N values of one step wrap. So the points always fit."""
    assert N + U <= q <= 2 * N
    refused(
        "has no room",
        users=N,
        survivors=U,
        colluders=1,
        top_k=1,
        length=4,
        field=q,
        construction=construction,
    )


def test_all_constraints_hold_at_their_bounds():
    raw = {
        "users": 2,
        "survivors": 2,
        "colluders": 1,
        "top_k": 1,
        "length": 1,
        "field": 5,
    }
    p = Parameters.choose(**raw)
    s = sketch(**raw, picks=1)
    assert (p.blocks, p.largest, construction(p).width, construction(p).rows) == (1, 1, 1, 1)
    assert (s.order, s.gamma, s.width, s.rows, s.entries) == (1, 1, 1, 1, 1)
    assert sketch(**{**raw, "length": 4}, picks=1).order == 4
    refused("no 5 places", **{**raw, "length": 5}, construction="sketch", picks=1)
    assert Parameters.choose(**{**GOOD, "length": 2**32 - 1}).length == 2**32 - 1


def test_default_parameters():
    p = Parameters.choose(**GOOD)
    assert (p.blocks, p.field, p.construction) == (4 - 2, 4281076801, "permutation")
    assert (p.picks, p.buckets, p.max_weight) == (0, 0, 1.0)
    s = sketch(**{**GOOD, "length": 400, "top_k": 30}).p
    assert (s.blocks, s.buckets, s.field) == (2, -(-30 // s.picks), 4281076801)
    assert (p.dealing, s.dealing) == ("shares", "keys")


def test_sizes_of_a_permutation_round():
    p = Parameters.choose(users=10, survivors=8, colluders=3, top_k=7, length=101)
    c = construction(p)
    assert (c.width, c.rows, c.entries, c.beta_count, c.index_bound, c.check_rows) == (
        21,
        101,
        7,
        8,
        101,
        1,
    )
    for survivors in (8, 10):
        assert c.answer_shape(survivors) == AnswerShape(survivors, 1, 21)
    assert (c.share_bytes, c.answer_bytes(9)) == (2 * 101 * 21 * 4, 21 * 4)
    assert c.offline_bytes() == 9 * c.share_bytes


@given(st.integers(1, 500), st.integers(1, 16), st.data())
def test_buckets_are_as_few_as_hold_k_and_order_and_gamma_are_those_of_the_oracle(L, P, data):
    K = data.draw(st.integers(1, L))
    q = data.draw(st.sampled_from([11, 97, 509, 65521, DEFAULT_FIELD, LARGEST]) | fields)
    B = next(b for b in range(1, L + 1) if b * P >= K)
    M = oracle.place_count(L, B)
    raw = {
        "users": 3,
        "survivors": 3,
        "colluders": 1,
        "top_k": K,
        "length": L,
        "field": q,
    }
    W = oracle.sketch_width(3, P, M)
    if q - 1 < M > W:
        refused(f"no {M} places", **raw, construction="sketch", picks=P)
        return
    if P > L:
        refused("cannot pick", **raw, construction="sketch", picks=P)
        return
    s = sketch(**raw, picks=P)
    assert (s.p.buckets, s.sparse.places, s.rows) == (B, M, oracle.ceil_div(B, 2))
    assert (s.entries, s.width) == (B * W, W)
    if W < M:
        n = oracle.order_of_places(M, q)
        assert (s.order, s.gamma) == (n, oracle.element_of_order(n, q))


@given(st.integers(1, 2000), st.integers(2, 6))
def test_what_is_sent_whole_lies_in_the_buckets_that_waste_least(L, U):
    s = sketch(users=6, survivors=U, colluders=1, length=L, whole=L)
    buckets = oracle.buckets_of_whole(L, U - 1)
    assert (s.buckets, s.width) == (buckets, oracle.ceil_div(L, buckets))
    assert s.coordinate_count == L


RESNET: dict[str, Any] = {"users": 10, "colluders": 3, "length": 272_474, "top_k": 2725}


def test_sizes_of_a_sketch_round():
    c = sketch(**RESNET, survivors=5, picks=16)
    assert (c.p.buckets, c.p.blocks, c.width, c.rows) == (171, 2, 320, 86)
    assert (c.entries, c.masked_bytes, c.index_code.size) == (171 * 320, 171 * 320 * 4, 0)
    assert c.answer_shape(10) == AnswerShape(10, 86, 320)
    assert c.answer_shape(7) == AnswerShape(7, 86, 224)
    assert c.answer_bytes(10) == 86 * 320 * 4
    assert c.beta_count == 2
    assert c.check_rows == 2**16 // 1280
    dense = sketch(**GOOD, picks=2)
    assert (dense.sparse.places, dense.width, dense.answer_shape(4).width) == (10, 10, 10)


@pytest.mark.parametrize("dealing", DEALINGS["sketch"])
@pytest.mark.parametrize(
    "raw",
    [{**RESNET, "survivors": U} for U in (5, 7, 9)] + [GOOD, {**GOOD, "length": 2000}],
    ids=str,
)
def test_the_default_p_of_a_sketch_sends_hardly_more_symbols_than_any_and_keeps_most(raw, dealing):
    def sent(P: int) -> int:
        c = sketch(**raw, picks=P, dealing=dealing)
        written = raw["users"] - 1 if dealing == "shares" else 0  # its own share never travels
        return c.entries + c.answer_shape(raw["users"]).groups * c.width * (1 + written)

    chosen = sketch(**raw, dealing=dealing).p.picks
    sizes = {P: sent(P) for P in range(1, 17)}
    assert chosen == max(P for P in sizes if 100 * sizes[P] <= 105 * min(sizes.values()))


def test_the_costs_of_the_papers_own_experiment():
    resnet = {"users": 10, "survivors": 5, "colluders": 3, "length": 272_474, "top_k": 2725}
    assert construction(Parameters.choose(**resnet)).share_bytes == pytest.approx(297e9, rel=0.01)
    for P in (1, 4, 16):
        c = sketch(**resnet, picks=P, dealing="shares")
        assert c.masked_bytes == pytest.approx(218_000, rel=0.01)  # 2 N K symbols for every P
        assert c.answer_bytes(7) == pytest.approx(76_300, rel=0.02)  # 2 |U1| K / D
        assert c.share_bytes == pytest.approx(109_000, rel=0.02)
        assert c.offline_bytes() == 9 * c.share_bytes  # its own share never travels


@given(st.integers(1, 10**6), st.integers(1, 8), st.integers(2, 40))
def test_blocks_of_rows_are_bounded_and_hold_whole_checks(L, D, extra):
    raw = {
        "users": D + extra,
        "survivors": D + 1,
        "colluders": 1,
        "top_k": max(1, L // 100),
        "length": L,
    }
    rounds = [Parameters.choose(**raw)]
    rounds += [
        Parameters.choose(**raw, construction="sketch", picks=P) for P in (1, 4) if L >= 100 * P
    ]
    for c in map(construction, rounds):
        assert c.chunk_rows % c.check_rows == 0
        assert 1 <= c.chunk_rows <= max(c.rows, c.check_rows)
        assert c.chunk_rows == c.check_rows or c.chunk_rows * c.p.users * c.width <= 2**20


@pytest.mark.parametrize("dealing", DEALINGS["sketch"])
@pytest.mark.parametrize("top_k", [0, -1, -20])
def test_a_sketch_of_nothing_is_refused_before_its_picks_are_chosen(top_k, dealing):
    raw = {**GOOD, "construction": "sketch", "top_k": top_k, "dealing": dealing}
    refused("coordinates", **raw)


@pytest.mark.parametrize("good", [GOOD, SKETCH], ids=["permutation", "sketch"])
def test_changed_parameters_are_those_that_would_have_been_chosen(good):
    before = Parameters.choose(**good, max_weight=2.0)
    assert before.changed() == before
    for change in ({"field": 65521}, {"max_weight": 3.0}):
        expected = {**good, "max_weight": 2.0, **change}
        assert before.changed(**change) == Parameters.choose(**expected)
    for change in ({"length": 4000}, {"top_k": 15, "length": 4000}, {"length": 20}):
        expected = {**good, "max_weight": 2.0, **change}
        if good is SKETCH and change["length"] != before.length:
            del expected["picks"]  # the best number may be another one
        assert before.changed(**change) == Parameters.choose(**expected)


def test_what_a_session_records_makes_the_same_parameters():
    for raw in (*EACH.values(), SKETCH):
        p = Parameters.choose(**raw)
        assert tuple(vars(p)) == tuple(field.name for field in dataclasses.fields(Parameters))
        assert Parameters(**vars(p)) == p


def test_a_line_names_the_parameters_by_the_letters_of_the_paper():
    assert (
        Parameters.choose(**GOOD).summary()
        == "N 5, U 4, T 2, D 2, K 3, L 20, q 4281076801, permutation"
    )
    assert Parameters.choose(**SKETCH).summary() == (
        "N 5, U 4, T 2, D 2, K 3, L 20, q 4281076801, sketch, P 2, B 2, M 10"
    )


# The scale: no sum may wrap


@pytest.mark.parametrize(
    ("q", "N", "clip", "scale"),
    [
        (DEFAULT_FIELD, 10, 1.0, 214053840),
        (65521, 10, 1.0, 3276),
        (LARGEST, 5, 0.5, 858993458),
        (83, 5, 1.0, 8),
        (97, 3, 0.25, 64),
        (97, 7, 7.0, 0),
        (11, 5, 1.0, 1),
        (2**31 - 1, 2, 2.0**-30, 2**29 * (2**30 - 1)),
    ],
)
def test_steps_per_unit(q, N, clip, scale):
    assert (
        quantisation_scale(q, N, clip)
        == scale
        == math.floor(Fraction((q - 1) // 2) / (N * Fraction(clip)))
    )


def test_weights_take_room_as_the_clip_does():
    heavy, wide = (
        FixedPoint.of(DEFAULT_FIELD, 5, 6.0, [(20, 0.5)]),
        FixedPoint.of(DEFAULT_FIELD, 5, 1.0, [(20, 3.0)]),
    )
    scale = quantisation_scale(DEFAULT_FIELD, 5, 0.5, 6.0)
    assert heavy.runs[0].scale == wide.runs[0].scale == scale


@given(fields, st.integers(2, 1000), clips)
def test_the_scale_is_the_formula_up_to_the_rounding_of_floats(q, N, clip):
    scale = quantisation_scale(q, N, clip)
    exact = Fraction((q - 1) // 2) / (N * Fraction(clip))
    assert abs(scale - math.floor(exact)) <= 1 + exact * Fraction(2) ** -51


@given(fields, st.integers(2, 1000), clips)
def test_n_of_the_largest_values_never_wrap(q, N, clip):
    assume(q > 2 * N and quantisation_scale(q, N, clip) >= 1)
    p = Parameters.choose(users=N, survivors=2, colluders=1, top_k=1, length=1, field=q)
    assert p.users * p.largest <= (q - 1) // 2 < p.users * (p.largest + 1)


@pytest.mark.parametrize(
    ("clip", "match"),
    [
        (0.0, "the clip is 0"),
        (-1.0, "the clip is -1"),
        (math.nan, "the clip is nan"),
        (math.inf, "the clip is inf"),
        (1.7e308, "the clip is 1.7e"),
        (1e10, "has no room for 5 values"),
        (5e-324, "has no room for 5 values"),
    ],
)
def test_a_clip_that_no_round_can_have_is_refused(clip, match):
    with pytest.raises(UsageError, match=match):
        FixedPoint.of(DEFAULT_FIELD, 5, 1.0, [(20, clip)])


@given(fields, st.integers(2, 1000), st.floats(1e-9, 1e4))
def test_a_clip_that_leaves_not_one_step_is_refused(q, N, factor):
    assume(q > 2 * N)
    clip = (q - 1) // 2 / N * (1 + factor)
    with pytest.raises(UsageError, match="has no room"):
        FixedPoint.of(q, N, 1.0, [(1, clip)])


def test_a_row_that_is_longer_than_a_checksum_covers_has_one_of_its_own():
    """Part of the format: 2 N P = 20,000 symbols of four bytes are more than 64 KiB."""
    p = Parameters.choose(
        users=100,
        survivors=50,
        colluders=10,
        top_k=200,
        length=60_000,
        construction="sketch",
        picks=100,
    )
    assert construction(p).width == 20_000
    assert construction(p).check_rows == 1
