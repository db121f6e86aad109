"""Every constraint of the scheme is refused in one place, with a message, a hint and exit code 2."""

from __future__ import annotations

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
from topk_secagg.protocol.parameters import PARAMETER_NAMES, Parameters, quantisation_scale

GOOD: dict[str, Any] = {"users": 5, "survivors": 4, "colluders": 2, "top_k": 3, "length": 20}
ROTATION: dict[str, Any] = {**GOOD, "construction": "rotation", "picks": 2}


def refused(match: str, **raw: Any) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        Parameters.choose(**raw)
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_the_good_parameters_are_good() -> None:
    Parameters.choose(**GOOD)
    Parameters.choose(**ROTATION)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"colluders": 0}, "at least one colluder"),
        ({"colluders": -1}, "at least one colluder"),
        ({"colluders": 4}, "leave nothing to hide in"),
        ({"colluders": 5}, "leave nothing to hide in"),
        ({"survivors": 2}, "leave nothing to hide in"),
        ({"survivors": 6}, "6 survivors of 5 users"),
        ({"users": 3}, "4 survivors of 3 users"),
        ({"users": 0}, "4 survivors of 0 users"),
        ({"users": -5}, "4 survivors of -5 users"),
        ({"blocks": 0}, "0 blocks do not fit"),
        ({"blocks": -1}, "-1 blocks do not fit"),
        ({"blocks": 3}, "3 blocks do not fit"),
        ({"field": 91}, "91 is not a prime"),
        ({"field": 2**31}, "is not a prime"),
        ({"field": 2**32 + 15}, "is not a prime below"),
        ({"field": 2**61 - 1}, "is not a prime below"),
        ({"field": 1}, "is not a prime"),
        ({"field": 0}, "is not a prime"),
        ({"field": -7}, "is not a prime"),
        ({"field": 7}, "the field has 7 elements, and 5 \\+ 4 points are needed"),
        ({"length": 0, "top_k": 0}, "a gradient of 0 coordinates"),
        ({"length": -1}, "a gradient of -1 coordinates"),
        ({"length": 2**32}, "a gradient of 4294967296 coordinates"),
        ({"top_k": 0}, "cannot select 0 of 20"),
        ({"top_k": -2}, "cannot select -2 of 20"),
        ({"top_k": 21}, "cannot select 21 of 20"),
        ({"clip": 0.0}, "the clip is 0"),
        ({"clip": -1.0}, "the clip is -1"),
        ({"clip": math.nan}, "the clip is nan"),
        ({"clip": math.inf}, "the clip is inf"),
        ({"clip": 1e9}, "has no room for 5 values"),
        ({"clip": 1.7e308}, "has no room for 5 values"),
        ({"clip": 5e-324}, "has no room for 5 values"),
        ({"field": 11, "clip": 1.01}, "has no room for 5 values"),
        ({"construction": "shuffle"}, "unknown construction 'shuffle'"),
        ({"elimination": "sparse"}, "unknown elimination 'sparse'"),
        ({"picks": 2}, "picks belong to the construction rotation"),
    ],
    ids=str,
)
def test_what_no_round_can_be_is_refused(change: dict[str, Any], match: str) -> None:
    refused(match, **{**GOOD, **change})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"picks": 0}, "0 picks per bucket"),
        ({"picks": -3}, "-3 picks per bucket"),
        ({"picks": 11}, "cannot pick 11 of the 10 places"),
        ({"top_k": 0}, "cannot select 0 of 20"),
        ({"blocks": 0}, "0 blocks do not fit"),
    ],
    ids=str,
)
def test_what_no_rotation_can_be_is_refused(change: dict[str, Any], match: str) -> None:
    refused(match, **{**ROTATION, **change})


def test_syndromes_need_a_point_for_every_place_of_a_block() -> None:
    raw = {**GOOD, "field": 11, "blocks": 1, "elimination": "syndrome"}
    assert Parameters.choose(**{**raw, "length": 10}).width == 10
    refused("syndromes need a field larger than a block of 11", **{**raw, "length": 11})
    assert Parameters.choose(**{**raw, "length": 11, "elimination": "dense"}).width == 11


@pytest.mark.parametrize(
    "change", [{"scale": 1}, {"scale": 0}, {"scale": 429496728}, {"picks": 1}, {"buckets": 2}], ids=str
)
def test_recorded_permutation_parameters_must_fit_each_other(change: dict[str, Any]) -> None:
    p = Parameters.choose(**GOOD)
    with pytest.raises(UsageError):
        replace(p, **change)


@pytest.mark.parametrize(
    "change", [{"buckets": 0}, {"buckets": 1}, {"buckets": 3}, {"buckets": 4}, {"picks": 1}], ids=str
)
def test_recorded_rotation_parameters_must_fit_each_other(change: dict[str, Any]) -> None:
    p = Parameters.choose(**{**ROTATION, "top_k": 4})
    assert (p.buckets, p.picks, p.blocks) == (2, 2, 2)
    with pytest.raises(UsageError):
        replace(p, **change)


def test_the_field_is_any_prime_with_room_for_the_points() -> None:
    for q in range(9, 600):
        raw = {**GOOD, "field": q, "clip": 0.25}
        if oracle.is_prime(q):
            assert Parameters.choose(**raw).field == q
        else:
            refused("is not a prime", **raw)


@pytest.mark.parametrize(("N", "U", "q"), [(4, 3, 7), (5, 2, 7), (9, 4, 13), (9, 8, 17)])
def test_a_field_without_room_for_one_step_of_every_user_is_refused(N: int, U: int, q: int) -> None:
    """q > 2 N is needed: below, N values of one step wrap, whatever the clip."""
    assert N + U <= q <= 2 * N
    for clip in (0.1, 0.5):
        refused("has no room", users=N, survivors=U, colluders=1, top_k=1, length=4, field=q, clip=clip)


@pytest.mark.parametrize("name", ["users", "survivors", "colluders", "top_k", "length", "blocks", "field"])
@pytest.mark.parametrize("raw", [GOOD, ROTATION], ids=["permutation", "rotation"])
def test_numbers_beyond_any_float_are_refused(raw: dict[str, Any], name: str) -> None:
    refused(".", **{**raw, name: 10**400})


def test_all_constraints_hold_at_their_bounds() -> None:
    p = Parameters.choose(users=2, survivors=2, colluders=1, top_k=1, length=1, field=5, clip=1.0)
    assert (p.blocks, p.scale, p.width, p.rows, p.entries, p.quorum) == (1, 1, 1, 1, 1, 2)
    assert Parameters.choose(**{**GOOD, "length": 2**32 - 1}).length == 2**32 - 1


# Defaults and derived sizes


def test_defaults() -> None:
    p = Parameters.choose(**GOOD)
    assert (p.blocks, p.field, p.construction) == (4 - 2, DEFAULT_FIELD, "permutation")
    assert (p.picks, p.buckets, p.elimination, p.clip) == (0, 0, "auto", 1.0)
    assert DEFAULT_FIELD == 2**32 - 5
    q = Parameters.choose(**{**ROTATION, "length": 400, "top_k": 30, "picks": None})
    assert (q.picks, q.buckets) == (4, 8)


def test_sizes_of_a_permutation_round() -> None:
    p = Parameters.choose(users=10, survivors=8, colluders=3, top_k=7, length=101)
    assert (p.width, p.rows, p.groups, p.entries, p.quorum) == (21, 101, 1, 7, 8)
    assert p.share_bytes == 2 * 101 * 21 * 4
    assert p.offline_bytes == 100 * p.share_bytes
    assert p.check_rows == 1


def test_sizes_of_a_rotation_round() -> None:
    p = Parameters.choose(
        users=10, survivors=8, colluders=3, top_k=21, length=101, construction="rotation", picks=2
    )
    assert p.buckets == 15  # the smallest multiple of 5 with 2 B >= 21
    assert (p.width, p.rows, p.groups, p.entries, p.quorum) == (7, 30, 3, 30, 8)
    assert p.share_bytes == 2 * 30 * 7 * 4
    assert p.check_rows == p.block_rows == 30


def test_the_papers_own_experiment() -> None:
    resnet = {"users": 10, "survivors": 5, "colluders": 3, "length": 272_474, "top_k": 2725}
    p = Parameters.choose(**resnet)
    assert p.share_bytes == pytest.approx(297e9, rel=0.01)
    r = Parameters.choose(**resnet, construction="rotation", picks=4)
    assert r.share_bytes == pytest.approx(8.7e6, rel=0.01)


@given(st.integers(1, 500), st.integers(1, 12), st.integers(1, 8), st.data())
def test_buckets_are_the_smallest_multiple_of_d_with_room_for_k(
    L: int, P: int, D: int, data: st.DataObject
) -> None:
    K = data.draw(st.integers(1, L))
    B = next(b for b in range(D, L * D + D, D) if b * P >= K)
    raw = {"users": D + 1, "survivors": D + 1, "colluders": 1, "top_k": K, "length": L}
    if math.ceil(L / B) < P:
        refused("cannot pick", **raw, construction="rotation", picks=P)
        return
    p = Parameters.choose(**raw, construction="rotation", picks=P)
    assert p.buckets == B
    assert p.width == math.ceil(L / B)
    assert p.groups * p.blocks == p.buckets
    assert p.entries == p.rows == B * P >= K
    assert p.width * p.buckets >= p.length > (p.width - 1) * p.buckets


@given(st.integers(1, 10**6), st.integers(1, 8), st.integers(2, 40))
def test_blocks_of_rows_are_bounded_and_hold_whole_groups(L: int, D: int, extra: int) -> None:
    raw = {"users": D + extra, "survivors": D + 1, "colluders": 1, "top_k": max(1, L // 100), "length": L}
    p = Parameters.choose(**raw)
    assert 1 <= p.block_rows <= p.rows
    assert p.block_rows == 1 or p.block_rows * p.users * p.width <= 2**20
    for picks in (1, 4):
        if picks <= L // (2 * D * picks):
            r = Parameters.choose(**raw, construction="rotation", picks=picks)
            unit = r.blocks * r.picks
            assert r.block_rows % unit == 0
            assert unit <= r.block_rows <= max(r.rows, unit)
            assert r.block_rows == unit or r.block_rows * r.users * r.width <= 2**20


def test_auto_takes_syndromes_only_when_they_are_fewer_and_there_are_points_for_them() -> None:
    p = Parameters.choose(**{**GOOD, "length": 1000, "top_k": 10, "blocks": 2, "field": 499, "clip": 0.1})
    assert p.width == 500
    assert not p.by_syndromes(4), "a block has more places than the field has points"
    p = Parameters.choose(**{**GOOD, "length": 1000, "top_k": 62, "blocks": 2})
    assert [p.sparsity(n) for n in (4, 5)] == [248, 310]
    assert p.by_syndromes(4)
    assert p.answer_width(4) == 496
    assert not p.by_syndromes(5)
    assert p.answer_width(5) == 500
    r = Parameters.choose(**{**ROTATION, "length": 1000, "top_k": 40})
    assert (r.width, r.sparsity(4), r.answer_width(4)) == (50, 8, 16)


@pytest.mark.parametrize("elimination", ["dense", "syndrome"])
def test_a_chosen_elimination_is_taken_whatever_its_size(elimination: str) -> None:
    for top_k in (1, 20):
        p = Parameters.choose(**{**GOOD, "top_k": top_k, "elimination": elimination})
        assert p.by_syndromes(4) == (elimination == "syndrome")
        assert p.answer_width(4) == (8 * top_k if elimination == "syndrome" else p.width)


def test_what_a_session_records_makes_the_same_parameters() -> None:
    for raw in (GOOD, ROTATION):
        p = Parameters.choose(**raw)
        assert tuple(p.as_dict()) == PARAMETER_NAMES
        assert Parameters(**p.as_dict()) == p


# The scale: no sum may wrap

fields = st.integers(11, DEFAULT_FIELD).map(oracle.next_prime)
clips = st.floats(1e-200, 1e9, exclude_min=True) | st.sampled_from([0.1, 0.3, 1.0, 2.0**-20, 1e-5])


@pytest.mark.parametrize(
    ("q", "N", "clip", "scale"),
    [
        (DEFAULT_FIELD, 10, 1.0, 214748364),
        (DEFAULT_FIELD, 5, 0.5, 858993458),
        (83, 5, 1.0, 8),
        (97, 3, 0.25, 64),
        (97, 7, 7.0, 0),
        (11, 5, 1.0, 1),
        (2**31 - 1, 2, 2.0**-30, 2**29 * (2**30 - 1)),
    ],
)
def test_steps_per_unit(q: int, N: int, clip: float, scale: int) -> None:
    assert (
        quantisation_scale(q, N, clip) == scale == math.floor(Fraction((q - 1) // 2) / (N * Fraction(clip)))
    )


@given(fields, st.integers(2, 1000), clips)
def test_the_scale_is_the_formula_up_to_the_rounding_of_floats(q: int, N: int, clip: float) -> None:
    scale = quantisation_scale(q, N, clip)
    exact = Fraction((q - 1) // 2) / (N * Fraction(clip))
    assert abs(scale - math.floor(exact)) <= 1 + exact * Fraction(2) ** -51


@given(fields, st.integers(2, 1000), clips)
def test_n_of_the_largest_values_never_wrap(q: int, N: int, clip: float) -> None:
    assume(q > 2 * N and quantisation_scale(q, N, clip) >= 1)
    p = Parameters.choose(users=N, survivors=2, colluders=1, top_k=1, length=1, field=q, clip=clip)
    assert p.users * p.largest <= (q - 1) // 2 < p.users * (p.largest + 1)


@given(fields, st.integers(2, 1000), st.floats(1e-9, 1e9))
def test_a_clip_that_leaves_not_one_step_is_refused(q: int, N: int, factor: float) -> None:
    assume(q > 2 * N)
    clip = (q - 1) // 2 / N * (1 + factor)
    refused("has no room", users=N, survivors=2, colluders=1, top_k=1, length=1, field=q, clip=clip)
