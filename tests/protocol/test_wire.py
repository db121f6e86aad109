"""X on the wire: every message has one code, every code at most one message, and codes are
short."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topk_secagg.errors import BadData
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.parameters import Parameters, rate_of_masked, theorem_r1, theorem_r2
from topk_secagg.protocol.wire import EliasFano, Packed


def symbols(values: object) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


def as_bytes(values: object) -> np.ndarray:
    return np.array(values, dtype=np.uint8)


def log2_choices(bound: int, count: int) -> float:
    """log2 C(bound, count)."""
    natural = math.lgamma(bound + 1) - math.lgamma(count + 1) - math.lgamma(bound - count + 1)
    return natural / math.log(2)


@pytest.mark.parametrize(
    ("bound", "bits"),
    [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (97, 7), (2**32 - 5, 32), (2**32, 32)],
)
def test_bits_that_hold_any_integer_below_a_bound(bound, bits):
    assert Packed(1, bound).bits == bits
    assert 2**bits >= bound
    assert bits == 0 or 2 ** (bits - 1) < bound


@given(st.integers(0, 32), st.data())
def test_packed_integers_come_back(bits, data):
    largest = 2**bits - 1
    values = data.draw(
        st.lists(st.sampled_from([0, largest]) | st.integers(0, largest), max_size=30)
    )
    code = Packed(len(values), 2**bits)
    packed = code.pack(symbols(values))
    assert packed.dtype == np.uint8
    assert packed.size == code.size == math.ceil(len(values) * bits / 8)
    back = code.unpack(packed)
    assert back.dtype == np.dtype("<u4")
    assert back.tolist() == values


@given(st.integers(0, 32), st.lists(st.integers(0, 2**32 - 1), max_size=20))
def test_bits_are_numbered_from_the_least_significant_one_of_the_first_byte(bits, values):
    whole = sum((value % 2**bits) << (i * bits) for i, value in enumerate(values))
    code = Packed(len(values), 2**bits)
    assert code.pack(symbols(values)).tobytes() == whole.to_bytes(code.size, "little")


@pytest.mark.parametrize(
    ("count", "bits"), [(0, 5), (1, 1), (1, 7), (2, 3), (3, 5), (5, 3), (1, 16), (16, 0)]
)
def test_every_byte_string_is_the_code_of_one_list_or_refused(count, bits):
    code = Packed(count, 2**bits)
    decoded = set()
    for content in product(range(256), repeat=code.size):
        try:
            values = code.unpack(as_bytes(content))
        except BadData:
            assert int.from_bytes(bytes(content), "little") >> (count * bits), "padding was set"
        else:
            assert code.pack(values).tolist() == list(content)
            decoded.add(tuple(values.tolist()))
    assert len(decoded) == 2 ** (count * bits)


@st.composite
def indices(draw: st.DrawFn) -> tuple[list[int], int]:
    bound = draw(st.integers(1, 60) | st.integers(1, 2**32 - 1))
    edges = [k for k in (0, 1, bound // 2, bound - 1) if k < bound]
    some = st.lists(st.sampled_from(edges) | st.integers(0, bound - 1), max_size=30, unique=True)
    return sorted(draw(some | st.just(list(range(min(bound, 60)))))), bound


@given(indices())
def test_indices_come_back(case):
    index, bound = case
    code = EliasFano(len(index), bound)
    packed = code.pack(symbols(index))
    assert packed.dtype == np.uint8
    assert packed.size == code.size
    back = code.unpack(packed)
    assert back.dtype == np.dtype("<u4")
    assert back.tolist() == index


ONE_BYTE = [(c, b) for b in range(1, 7) for c in range(1, b + 1) if EliasFano(c, b).size == 1]
TWO_BYTES = [(2, 12), (3, 11), (7, 9)]  # two low bits an index, one, none


@pytest.mark.parametrize(("count", "bound"), ONE_BYTE + TWO_BYTES)
def test_exactly_the_codes_of_increasing_sequences_are_read(count, bound):
    """All byte strings of the right size are tried: C(bound, count) decode, and each to its own
    code."""
    code = EliasFano(count, bound)
    assert 256**code.size > math.comb(bound, count), "there is something to refuse"
    decoded = []
    for content in product(range(256), repeat=code.size):
        try:
            index = code.unpack(as_bytes(content))
        except BadData:
            continue
        assert code.pack(index).tolist() == list(content)
        decoded.append(tuple(index.tolist()))
    assert sorted(decoded) == list(combinations(range(bound), count))


@pytest.mark.parametrize("change", [-1, 1, 2])
def test_codes_of_another_size_are_refused(change):
    codes = {"integers of 7 bits": Packed(3, 128), "indices below 100": EliasFano(3, 100)}
    for what, code in codes.items():
        packed = code.pack(symbols([3, 50, 77]))
        assert code.unpack(packed).tolist() == [3, 50, 77]
        with pytest.raises(BadData, match=f"cannot hold 3 {what}"):
            code.unpack(np.resize(packed, packed.size + change))


@pytest.mark.parametrize(
    ("count", "bound"),
    [
        (1000, 100_000),
        (2725, 272_474),
        (1000, 2**20),
        (1000, 2**32 - 1),
        (500, 10_000),
        (300, 2**31),
    ]
    + [(1000, 1000 * ratio) for ratio in (25, 33, 45, 64, 77, 90, 128, 181, 1000, 4321)],
)
def test_an_index_costs_at_most_six_tenths_of_a_bit_more_than_it_must(count, bound):
    least = log2_choices(bound, count) / count
    assert least < EliasFano(count, bound).size * 8 / count < least + 0.6


def test_the_split_of_elias_fano_is_the_first_of_the_shortest():
    """Part of the format: another split of the bits, as long or longer, is another code."""
    for count, bound in product(range(1, 10), range(1, 80)):
        lengths = [count * low + (bound - 1) // 2**low for low in range(32)]
        code = EliasFano(count, bound)
        assert code.low == lengths.index(min(lengths)), (count, bound)
        assert code.upper_bits == count + (bound - 1) // 2**code.low


def test_x_is_within_three_percent_of_the_theorem():
    p = Parameters.choose(users=10, survivors=5, colluders=3, top_k=1000, length=100_000)
    symbols_needed = 1000 + log2_choices(100_000, 1000) / math.log2(p.field)
    assert theorem_r1(p) * p.length == pytest.approx(symbols_needed)
    assert theorem_r2(p) == 1 / 2
    rate = rate_of_masked(p, construction(p).masked_bytes)
    assert (rate.name, rate.theorem) == ("R1", theorem_r1(p))
    assert 1 < rate.measured / rate.theorem < 1.03


@pytest.mark.parametrize("q", [1009, 65521, 4281076801, 2**32 - 5])
def test_all_indices_come_back_from_the_same_number_of_bytes(q):
    p = Parameters.choose(users=5, survivors=3, colluders=1, top_k=40, length=1000, field=q)
    c = construction(p)
    for index in (np.arange(40), np.arange(960, 1000)):
        packed = c.index_code.pack(symbols(index))
        assert packed.size == c.index_code.size == EliasFano(40, 1000).size
        assert c.index_code.unpack(packed).tolist() == index.tolist()
    assert c.masked_bytes == c.index_code.size + Packed(40, q).size
