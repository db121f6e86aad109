"""Quantising: exact where it can be, right in the mean where it cannot, and never so large that
sums wrap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from topk_secagg.algebra.field import DEFAULT_FIELD, SMALL_FIELD, to_field, to_signed
from topk_secagg.algebra.randomness import CipherRandomness, Randomness
from topk_secagg.errors import BadData
from topk_secagg.gradients.quantise import (
    FixedPoint,
    beyond_clip,
    check_clips,
    clip_of,
    dequantise,
    largest_sum,
    quantisation_scale,
    quantise,
    rounding_error,
    rounding_source,
    sufficient_clip,
    uniform,
)

KEY = bytes(range(32))


def source(name: str = "") -> CipherRandomness:
    return CipherRandomness(KEY).child(name)


LENGTH = 1000  # of the reduced vector, at the least


def fixed(q: int = DEFAULT_FIELD, N: int = 5, clip: float = 1.0, weight: float = 1.0) -> FixedPoint:
    """One clip for all."""
    return FixedPoint.of(q, N, weight, [(LENGTH, clip)])


def scale_of(p: FixedPoint) -> int:
    (run,) = p.runs
    return run.scale


def at_first(values: Sequence[Any]) -> np.ndarray:
    """The first places of the reduced vector."""
    return np.arange(len(values))


def signed(
    p: FixedPoint, values: list[float], name: str = "", *, saturate: bool = False
) -> list[int]:
    reals = np.array(values, dtype=np.float64)
    value, _ = quantise(p, at_first(values), reals, source(name), saturate=saturate)
    assert value.dtype == np.uint32
    assert all(v < p.field for v in value.tolist())
    return [oracle.lifted(v, p.field) for v in value.tolist()]


class Fixed(Randomness):
    """The same 64-bit word over and over."""

    def __init__(self, word: int) -> None:
        self.word = np.uint64(word)

    def fill(self, out: np.ndarray) -> None:
        out.view(np.uint64)[:] = self.word

    def child(self, _label: str) -> Fixed:
        return self


fields = st.integers(11, 2**32 - 5).map(oracle.next_prime) | st.sampled_from(
    [DEFAULT_FIELD, SMALL_FIELD]
)
clips = st.floats(1e-100, 1e9) | st.sampled_from([0.1, 0.04, 0.3, 1.0, 1.7, 2.0**-20])


@given(fields, st.integers(2, 200), clips, st.sampled_from([-1, 1]), st.integers(0, 99))
def test_n_values_at_the_clip_add_up_without_wrapping(q, N, clip, sign, seed):
    assume(q > 2 * N and quantisation_scale(q, N, clip) >= 1)
    p = fixed(q, N, clip)
    values = signed(p, [sign * clip] * N, str(seed))
    total = to_field(np.array([sum(v % q for v in values)]), q)
    assert int(to_signed(total, q)[0]) == sum(values)
    assert abs(sum(values)) <= (q - 1) // 2


parts = st.floats(-1, 1) | st.floats(-1e-8, 1e-8) | st.sampled_from([0.0, -0.0, 5e-324, 1.0, -1.0])


@given(fields, st.integers(2, 50), clips, st.lists(parts, min_size=1, max_size=10))
def test_a_value_becomes_one_of_its_possible_roundings_up_to_the_largest(q, N, clip, values):
    assume(q > 2 * N and quantisation_scale(q, N, clip) >= 1)
    p = fixed(q, N, clip)
    for value, v in zip(values, signed(p, [part * clip for part in values]), strict=True):
        possible = oracle.roundings(value * clip, scale_of(p))
        assert v in {max(-p.largest, min(p.largest, near)) for near in possible}


@given(
    st.integers(1, 30),
    st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=10),
)
def test_a_multiple_of_a_step_is_exact_with_any_noise(bits, steps):
    clip = 2.0 ** (29 - bits)  # the scale is then 2^bits or a little less
    p = fixed(DEFAULT_FIELD, 2, clip)
    exact = [
        n
        for n in steps
        if Fraction(n / scale_of(p)) * scale_of(p) == n and 0 < abs(n / scale_of(p)) <= clip
    ]
    for name in "ab":
        assert signed(p, [n / scale_of(p) for n in exact], name) == exact


# The probabilities: 2^53 equally likely chances decide


def words_around(count: int) -> dict[int, bool]:
    """Words of noise, and whether each is one of the first `count` chances."""
    chances = [c for c in (0, 1, count - 1, count, 2**52, 2**53 - 1) if 0 <= c < 2**53]
    return {chance << 11 | low: chance < count for chance in chances for low in (0, 2**11 - 1)}


def check_probabilities(p: FixedPoint, value: float, weight: float = 1.0) -> None:
    """The upper of the two possible results comes for exactly its part of the 2^53 chances, the
    first ones."""
    possible = oracle.roundings(value * weight, scale_of(p))
    assert sum(v * chance for v, chance in possible.items()) == Fraction(value) * Fraction(
        weight
    ) * scale_of(p)
    upper, lower = max(possible), min(possible)
    count = possible[upper] * 2**53
    assert count.denominator == 1
    for word, up in words_around(int(count)).items():
        found, _ = quantise(p, np.arange(1), np.array([value]), Fixed(word), weight=weight)
        assert oracle.lifted(int(found[0]), p.field) == (upper if up else lower), (value, word)


def test_rounding_is_right_in_the_mean_exactly():
    p = fixed(83, 5, 1.0)  # eight steps per unit
    assert (scale_of(p), p.largest) == (8, 8)
    fine = [
        0.3,
        -0.3,
        0.01,
        -0.99,
        0.9,
        0.1,
        -0.1,
        1 / 3,
        0.125,
        -0.125,
        0.12,
        -0.12,
        1e-3,
        math.pi / 4,
    ]
    for value in [k / 128 for k in range(-128, 129)] + [round(v * 2**48) / 2**48 for v in fine]:
        check_probabilities(p, value)
    large = fixed(2**31 - 1, 2, (2**29 - 1) / 2.0**12)
    assert scale_of(large) == 2**12
    for k in (0, 1, -1, 2**30, -(2**30), 2**30 + 1, 2**31 - 1, 3 * 2**29, 12345678901):
        check_probabilities(large, k / 2.0**42)


def test_a_weighted_value_is_right_in_the_mean_exactly():
    p = fixed(83, 5, 0.25, weight=4.0)
    assert scale_of(p) == 8
    for value, weight in product([k / 64 for k in range(-16, 17)], (0.25, 0.5, 1.0, 1.5, 4.0)):
        check_probabilities(p, value, weight)


def test_a_rounding_that_is_not_right_in_the_mean_is_found(monkeypatch):
    p = fixed(83, 5, 1.0)
    check_probabilities(p, 0.0625)
    for biased in (lambda *_: np.zeros(1), lambda *chance: uniform(*chance) ** 2):
        monkeypatch.setattr("topk_secagg.gradients.quantise.uniform", biased)
        with pytest.raises(AssertionError):
            check_probabilities(p, 0.0625)


@pytest.mark.parametrize(
    "beyond", [[1.5], [-1.5], [math.nextafter(1, 2)], [math.nextafter(-1, -2)], [1e300, -7.0]]
)
def test_values_beyond_the_clip_are_refused_and_counted(beyond):
    p = fixed()
    with pytest.raises(
        BadData, match=f"{len(beyond)} of {len(beyond) + 3} selected values"
    ) as caught:
        signed(p, [0.0, 1.0, *beyond, -1.0])
    assert f"the largest is {max(map(abs, beyond)):.6g}" in caught.value.message
    assert caught.value.exit_code == 65


def test_with_saturate_values_beyond_the_clip_move_to_it_and_are_counted():
    p = fixed(83, 5, 1.0)
    values = np.array([0.5, 1.5, -1e300, -1.0, 1.0, math.nextafter(1, 2)])
    value, clipped = quantise(p, at_first(values), values, source(), saturate=True)
    assert clipped == 3
    assert to_signed(value, 83).tolist() == [4, 8, -8, -8, 8, 8]


def test_saturate_changes_nothing_within_the_clip():
    p = fixed()
    values = np.linspace(-1, 1, 101)
    plain, saturated = (
        quantise(p, at_first(values), values, source("same"), saturate=flag)
        for flag in (False, True)
    )
    assert saturated[1] == plain[1] == 0
    assert np.array_equal(plain[0], saturated[0])
    value, clipped = quantise(p, at_first([]), np.empty(0), source())
    assert (value.size, clipped) == (0, 0)


@given(fields, st.integers(2, 50), clips, st.data())
def test_dequantise_gives_the_real_of_a_step(q, N, clip, data):
    assume(q > 2 * N and quantisation_scale(q, N, clip) >= 1)
    p = fixed(q, N, clip)
    half = (q - 1) // 2
    steps = data.draw(
        st.lists(st.sampled_from([-half, 0, half]) | st.integers(-half, half), max_size=6)
    )
    symbols = np.array([n % q for n in steps], dtype=np.uint32)
    assert dequantise(p, at_first(steps), symbols).tolist() == [
        n / float(scale_of(p)) for n in steps
    ]


def test_the_same_selection_and_key_give_the_same_noise_and_others_other_noise():
    index, values = np.arange(200, dtype=np.int64), np.linspace(-1, 1, 200)
    other_values = values.copy()
    other_values[7] = np.nextafter(other_values[7], 1)
    noises = set()
    for key, i, v in [
        ("key", index, values),
        ("key", index.copy(), values.copy()),  # the same again
        ("other key", index, values),
        ("key", index + 1, values),
        ("key", index, other_values),
        ("key", index[::-1], values),
        ("key", index[:-1], values[:-1]),
    ]:
        noise = np.empty(32, dtype=np.uint8)
        rounding_source(source(key), i, v).fill(noise)
        noises.add(noise.tobytes())
    assert len(noises) == 6


@given(st.floats(1e-290, 1e290) | st.integers(1, 10**6).map(lambda n: n / 100))
def test_the_clip_that_is_suggested_is_enough_short_and_hardly_larger(largest):
    shown = f"{sufficient_clip(largest):g}"
    assert largest <= float(shown) <= 1.1001 * largest
    digits = shown.partition("e")[0].replace(".", "").strip("0")
    assert len(digits) <= 2 or float(digits) % 10 == 0


@given(st.lists(st.floats(0, 2.0**53), max_size=5))
def test_the_clip_of_gradients_cuts_none_of_them_and_is_admissible(largest):
    clip = clip_of(largest)
    assert all(value <= clip for value in largest)
    assert clip in (max(largest, default=0.0), 1.0, 2.0**-900)
    if clip < 1e6:
        fixed(clip=clip)


def test_magnitudes_that_no_clip_can_have_are_refused():
    with pytest.raises(BadData, match="the largest magnitude is 1e"):
        clip_of([1.0, 1e20])


@pytest.mark.parametrize("clip", [1.0, 10.0, 1000.0])
def test_what_rounding_is_expected_to_add_is_what_it_adds(clip):
    """Against the measured rms of many roundings; with a clip of 1000, almost every value is below
    one step."""
    p = fixed(65521, 10, clip)
    values = np.random.default_rng(0).normal(size=400) * 0.1
    values = np.clip(values, -clip, clip)
    errors = []
    for turn in range(50):
        value, _ = quantise(p, at_first(values), values, source(str(turn)))
        errors.append(dequantise(p, at_first(values), value) - values)
    measured = np.sqrt(np.mean(np.square(errors)) / np.mean(np.square(values)))
    expected = rounding_error(p, at_first(values), values)
    assert expected == pytest.approx(measured, rel=0.05)
    assert (expected > 0.05) == (clip == 1000.0)


def test_what_rounding_adds_to_nothing_has_no_share():
    assert rounding_error(fixed(), np.arange(4), np.zeros(4)) is None
    assert rounding_error(fixed(83, 5, 1.0), np.arange(2), np.array([0.5, 0.25])) == 0.0


# Several clips


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0.25, 1.0, 3.0])), min_size=1))
def test_every_symbol_has_the_clip_and_the_steps_of_its_tensor(tensors):
    """Against a list with one entry for each symbol."""
    several = FixedPoint.of(65521, 10, 1.0, tensors)
    clips = [clip for length, clip in tensors for _ in range(length)]
    index = np.arange(len(clips))
    assert several.length == len(clips)
    assert np.broadcast_to(several.clips_at(index), index.shape).tolist() == clips
    half = np.array(clips) / 2
    value, _ = quantise(several, index, half, source())
    for symbol, real, clip in zip(value.tolist(), half.tolist(), clips, strict=True):
        scale = quantisation_scale(65521, 10, clip)
        assert oracle.lifted(symbol, 65521) in oracle.roundings(real, scale)
    reals = dequantise(several, index, value)
    steps = [1 / quantisation_scale(65521, 10, clip) for clip in clips]
    assert np.all(np.abs(reals - half) <= steps)


def test_a_sum_is_beyond_the_clip_of_its_own_tensor():
    several = FixedPoint.of(65521, 10, 1.0, [(1, 0.5), (1, 2.0)])
    fine, _ = quantise(several, np.arange(2), np.array([0.5, 2.0]), source())
    assert beyond_clip(several, np.arange(2), fine, [1.0]) == 0
    # as many steps as ten users have together: no single user can send it
    ten = np.full(2, 10 * several.largest, dtype=np.uint32)
    assert beyond_clip(several, np.arange(2), ten, [1.0]) == 2
    assert beyond_clip(several, np.arange(2), ten, [1.0] * 10) == 0
    assert largest_sum(several, [1.0]) == pytest.approx(2.0, rel=1e-2)


def test_users_beyond_the_clip_of_a_tensor_are_named_with_a_clip_for_all():
    with pytest.raises(BadData, match=r"user 2 are beyond the clip of 0\.5") as caught:
        check_clips([0.5, 2.0], {"1": [0.5, 2.0], "2": [0.71, 1.0]})
    assert "0.71" in caught.value.hint
    check_clips([0.5, 2.0], {"1": [0.5, 2.0]})
