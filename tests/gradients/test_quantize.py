"""Quantising: exact where it can be, right in the mean where it cannot, and never so large that sums wrap."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import oracle
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from topk_secagg.algebra.field import DEFAULT_FIELD, add, to_signed
from topk_secagg.algebra.randomness import CipherRandomness, Randomness
from topk_secagg.errors import BadData
from topk_secagg.gradients.quantize import dequantise, quantise, rounding_source
from topk_secagg.protocol.parameters import Parameters, quantisation_scale

KEY = bytes(range(32))


def source(name: str = "") -> CipherRandomness:
    return CipherRandomness(KEY).child(name)


def round_of(q: int = DEFAULT_FIELD, N: int = 5, clip: float = 1.0) -> Parameters:
    return Parameters.choose(users=N, survivors=2, colluders=1, top_k=1, length=1, field=q, clip=clip)


def signed(p: Parameters, values: list[float], name: str = "", *, saturate: bool = False) -> list[int]:
    quantised = quantise(p, np.array(values, dtype=np.float64), source(name), saturate=saturate)
    assert quantised.value.dtype == np.uint32
    assert all(v < p.field for v in quantised.value.tolist())
    return [oracle.lifted(v, p.field) for v in quantised.value.tolist()]


class Fixed(Randomness):
    """The same 64-bit word over and over."""

    def __init__(self, word: int) -> None:
        self.word = np.uint64(word)

    def fill(self, out: np.ndarray) -> None:
        out.view(np.uint64)[:] = self.word

    def child(self, _label: str) -> Fixed:
        return self


fields = st.integers(11, DEFAULT_FIELD).map(oracle.next_prime) | st.just(DEFAULT_FIELD)
clips = st.floats(1e-100, 1e9) | st.sampled_from([0.1, 0.04, 0.3, 1.0, 1.7, 2.0**-20])


@given(fields, st.integers(2, 200), clips, st.sampled_from([-1, 1]), st.integers(0, 99))
def test_n_values_at_the_clip_add_up_without_wrapping(
    q: int, N: int, clip: float, sign: int, seed: int
) -> None:
    assume(q > 2 * N and quantisation_scale(q, N, clip) >= 1)
    p = round_of(q, N, clip)
    values = signed(p, [sign * clip] * N, str(seed))
    total = np.zeros(1, dtype=np.uint32)
    for v in values:
        total = add(total, np.array([v % q], dtype=np.uint32), q)
    assert int(to_signed(total, q)[0]) == sum(values)
    assert abs(sum(values)) <= (q - 1) // 2


@given(fields, st.integers(2, 50), clips, st.lists(st.floats(-1, 1), min_size=1, max_size=10))
def test_a_value_becomes_one_of_its_two_neighbours_within_the_largest(
    q: int, N: int, clip: float, parts: list[float]
) -> None:
    assume(q > 2 * N and quantisation_scale(q, N, clip) >= 1)
    p = round_of(q, N, clip)
    values = [part * clip for part in parts]
    for value, v in zip(values, signed(p, values), strict=True):
        assert v in {max(-p.largest, min(p.largest, near)) for near in oracle.roundings(value, p.scale)}


@given(st.integers(1, 30), st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=10), st.integers(0, 9))
def test_a_multiple_of_a_step_is_exact_whatever_the_noise(bits: int, steps: list[int], seed: int) -> None:
    q, N = DEFAULT_FIELD, 2
    clip = 2.0 ** (29 - bits)  # the scale is then 2^bits or a little more
    p = round_of(q, N, clip)
    exact = [n for n in steps if Fraction(n / p.scale) * p.scale == n and abs(n / p.scale) <= clip]
    assert signed(p, [n / p.scale for n in exact], str(seed)) == exact


@pytest.mark.parametrize("word", [0, 1, 2**63, 2**64 - 1])
def test_eight_steps_per_unit_are_exact_whatever_the_noise(word: int) -> None:
    p = round_of(83, 5, 1.0)
    assert p.scale == 8
    values = np.arange(-8, 9) / 8
    quantised = quantise(p, values, Fixed(word))
    assert to_signed(quantised.value, 83).tolist() == list(range(-8, 9))
    assert dequantise(p, quantised.value).tolist() == values.tolist()


def test_the_noise_alone_decides_between_up_and_down() -> None:
    p = round_of(83, 5, 1.0)
    values = np.array([0.3, -0.3])  # 2.4 and -2.4 steps
    for word, expected in [
        (0, [3, -2]),
        (math.floor(0.3999 * 2**64), [3, -2]),
        (math.ceil(0.4001 * 2**64), [2, -2]),
        (math.floor(0.5999 * 2**64), [2, -2]),
        (math.ceil(0.6001 * 2**64), [2, -3]),
        (2**64 - 1, [2, -3]),
    ]:
        assert to_signed(quantise(p, values, Fixed(word)).value, 83).tolist() == expected


def is_unbiased(rounded: np.ndarray, steps: float) -> bool:
    """Whether the mean of so many roundings is within five standard deviations of the exact one."""
    fraction = steps - math.floor(steps)
    deviation = math.sqrt(fraction * (1 - fraction) / rounded.size)
    return abs(float(np.mean(rounded)) - steps) <= 5 * deviation


@pytest.mark.parametrize("value", [0.3, -0.3, 0.01, -0.99, 0.0625, 0.9])
def test_rounding_is_right_in_the_mean(value: float) -> None:
    p = round_of(83, 5, 1.0)
    many = np.full(100_000, value)
    rounded = to_signed(quantise(p, many, source("mean")).value, 83)
    assert set(rounded.tolist()) == oracle.roundings(value, 8)
    assert is_unbiased(rounded, value * 8)
    nearest = np.round(many * 8)
    assert value == -0.0625 or not is_unbiased(nearest, value * 8), "rounding to the nearest would be found"


def test_rounding_is_right_in_the_mean_with_the_default_field() -> None:
    p = round_of(clip=1.0)
    value = 1 / 3
    many = np.full(100_000, value)
    rounded = to_signed(quantise(p, many, source("mean")).value, p.field) - math.floor(value * p.scale)
    assert is_unbiased(rounded, value * p.scale - math.floor(value * p.scale))


# The clip


@pytest.mark.parametrize(
    "beyond", [[1.5], [-1.5], [math.nextafter(1, 2)], [math.nextafter(-1, -2)], [1e300, -7.0]]
)
def test_values_beyond_the_clip_are_refused_and_counted(beyond: list[float]) -> None:
    p = round_of()
    with pytest.raises(BadData, match=f"{len(beyond)} of {len(beyond) + 3} selected values") as caught:
        signed(p, [0.0, 1.0, *beyond, -1.0])
    assert "--saturate" in caught.value.hint
    assert caught.value.exit_code == 65


def test_with_saturate_values_beyond_the_clip_move_to_it_and_are_counted() -> None:
    p = round_of(83, 5, 1.0)
    values = np.array([0.5, 1.5, -1e300, -1.0, 1.0, math.nextafter(1, 2)])
    value, clipped = quantise(p, values, source(), saturate=True)
    assert clipped == 3
    assert to_signed(value, 83).tolist() == [4, 8, -8, -8, 8, 8]


def test_saturate_changes_nothing_within_the_clip() -> None:
    p = round_of()
    values = np.linspace(-1, 1, 101)
    plain, saturated = (quantise(p, values, source("same"), saturate=flag) for flag in (False, True))
    assert saturated.clipped == plain.clipped == 0
    assert np.array_equal(plain.value, saturated.value)


def test_nothing_to_quantise() -> None:
    value, clipped = quantise(round_of(), np.empty(0), source())
    assert (value.size, clipped) == (0, 0)


# Back to reals


@given(fields, st.integers(2, 50), clips, st.data())
def test_dequantise_gives_the_real_of_a_step(q: int, N: int, clip: float, data: st.DataObject) -> None:
    assume(q > 2 * N and quantisation_scale(q, N, clip) >= 1)
    p = round_of(q, N, clip)
    half = (q - 1) // 2
    steps = data.draw(st.lists(st.sampled_from([-half, 0, half]) | st.integers(-half, half), max_size=6))
    symbols = np.array([n % q for n in steps], dtype=np.uint32)
    assert dequantise(p, symbols).tolist() == [n / float(p.scale) for n in steps]


# The same input is rounded in the same way


def test_the_same_selection_is_rounded_in_the_same_way_again() -> None:
    p = round_of(83, 5, 1.0)
    index, values = np.arange(200, dtype=np.int64), np.linspace(-1, 1, 200)
    first, again = (quantise(p, values, rounding_source(source("key"), index, values)) for _ in range(2))
    assert np.array_equal(first.value, again.value)


def test_another_selection_or_key_is_rounded_with_other_noise() -> None:
    index, values = np.arange(200, dtype=np.int64), np.linspace(-1, 1, 200)
    other_values = values.copy()
    other_values[7] = np.nextafter(other_values[7], 1)
    noises = set()
    for key, i, v in [
        ("key", index, values),
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
