"""Syndromes of sparse vectors, and the one sparse vector behind given syndromes.

The points are gamma_i = i + 1 in F_q. Kernels hold symbols below q < 2^32 in 64-bit words, so that every
product fits; an `_m` at the end of a name marks a factor in Montgomery form, a * 2^32 mod q.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import BadData
from .compiled import kernel

Symbols = NDArray[np.uint32]
Words = NDArray[np.uint64]
Places = NDArray[np.int64]

HALF = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)
ONE = np.uint64(1)
GROUPS_AT_ONCE = 64  # so that the vectors in work stay in the cache while the powers go by
ROWS_NAMED = 5


class Entries(NamedTuple):
    """The non-zero entries of several vectors: vector `row` has `value` at `place`; in this order."""

    row: Places
    place: Places
    value: Symbols


def syndromes(vectors: Symbols, count: int, q: int) -> Symbols:
    """S[g, j] = sum_i vectors[g, i] * gamma_i^j mod q, for vectors [G, M] and 0 <= j < count."""
    vectors = _matrix(vectors)
    groups, width = vectors.shape
    q_word, q_inverse = _field(width, q)
    found = np.zeros((groups, count), np.uint32)
    for first in range(0, groups, GROUPS_AT_ONCE):
        part = slice(first, first + GROUPS_AT_ONCE)
        _power_sums(vectors[part], q_word, q_inverse, found[part])
    return found


def recover(syndromes: Symbols, M: int, q: int) -> Entries:
    """For each row of syndromes [R, 2t], the only vector of length M with at most t non-zero entries.

    A row that no such vector has is BadData, whatever the reason: what is found must give back all 2t
    syndromes, and two vectors that both do would differ in at most 2t places, hence nowhere.
    """
    syndromes = _matrix(syndromes)
    rows, count = syndromes.shape
    if count == 0 or count % 2:
        raise ValueError(f"syndromes come in pairs, 2t of them with t > 0, not {count}")
    q_word, q_inverse = _field(M, q)
    weight, places, values = _solve(syndromes, M, q_word, q_inverse)
    bad = np.flatnonzero(~_reproduces(syndromes, q_word, q_inverse, weight, places, values))
    if bad.size:
        named = ", ".join(map(str, bad[:ROWS_NAMED])) + (", ..." if bad.size > ROWS_NAMED else "")
        what = f"no vector with at most {count // 2} non-zero entries has these syndromes"
        raise BadData(f"{what}: {bad.size} of {rows} rows ({named})")
    filled = np.arange(places.shape[1]) < weight[:, None]
    row = np.repeat(np.arange(rows, dtype=np.int64), weight)
    return Entries(row, places[filled], values[filled].astype(np.uint32))


def _matrix(symbols: Symbols) -> Symbols:
    """The same symbols, contiguous and writable: the kernels are compiled for this kind of array only."""
    if symbols.ndim != 2 or symbols.dtype != np.uint32:
        raise ValueError(f"expected uint32 rows, not {symbols.dtype} of shape {symbols.shape}")
    return np.require(symbols, requirements=["C", "W"])


def _field(M: int, q: int) -> tuple[np.uint64, np.uint64]:
    """q and q^-1 mod 2^32, once it is sure that q is admissible and has M distinct non-zero points."""
    if not 5 <= q < 2**32 or q % 2 == 0:
        raise ValueError(f"q must be a prime with 5 <= q < 2^32, not {q}")
    if not 0 < M < q:
        raise ValueError(f"vectors of length {M} need 0 < M < q = {q}")
    return np.uint64(q), np.uint64(pow(q, -1, 2**32))


@kernel
def _lift(difference: np.uint64, q: np.uint64) -> np.uint64:
    """A difference in (-q, q), wrapped to 64 bits, as its residue: its high half is a mask of its sign."""
    return difference + (q & (difference >> HALF))


@kernel
def _times(a: np.uint64, b: np.uint64, q: np.uint64, q_inverse: np.uint64) -> np.uint64:
    """a * b / 2^32 mod q; the masks tell the compiler that 32 x 32 bit products will do."""
    product = (a & LOW) * (b & LOW)
    multiple = ((product & LOW) * (q_inverse & LOW)) & LOW
    return _lift((product >> HALF) - ((multiple * (q & LOW)) >> HALF), q)


@kernel
def _inverse_m(a: np.uint64, q: np.uint64, q_inverse: np.uint64) -> np.uint64:
    """a^-1 = a^(q-2), in Montgomery form."""
    square = (a << HALF) % q
    power = (ONE << HALF) % q
    exponent = q - np.uint64(2)
    while exponent:
        if exponent & ONE:
            power = _times(power, square, q, q_inverse)
        square = _times(square, square, q, q_inverse)
        exponent >>= ONE
    return power


@kernel
def _points_m(places: Places, q: np.uint64) -> Words:
    """gamma_i of every place i, in Montgomery form."""
    points_m = np.empty(len(places), np.uint64)
    for k in range(len(places)):
        points_m[k] = (np.uint64(places[k] + 1) << HALF) % q
    return points_m


@kernel
def _dot(left: Any, right: Words, q: np.uint64) -> np.uint64:
    """sum_i left_i * right_i mod q; the halves of the products are summed apart and cannot overflow."""
    low = high = np.uint64(0)
    for i in range(len(right)):
        product = (np.uint64(left[i]) & LOW) * (right[i] & LOW)
        low += product & LOW
        high += product >> HALF
    high = (high + (low >> HALF)) % q
    return ((high << HALF) | (low & LOW)) % q


@kernel
def _multiply(words: Words, factors_m: Words, q: np.uint64, q_inverse: np.uint64) -> None:
    """words_i *= factors_i."""
    for i in range(len(words)):
        words[i] = _times(words[i], factors_m[i], q, q_inverse)


@kernel
def _evaluate(coefficients: Words, points_m: Words, q: np.uint64, q_inverse: np.uint64) -> Words:
    """sum_k c_k * z^(n-1-k) at every point z, by Horner's rule: the highest of n coefficients is first."""
    values = np.zeros(len(points_m), np.uint64)
    for coefficient in coefficients:
        for i in range(len(points_m)):
            values[i] = _lift(_times(values[i], points_m[i], q, q_inverse) + coefficient - q, q)
    return values


@kernel
def _power_sums(vectors: Symbols, q: np.uint64, q_inverse: np.uint64, sums: Symbols) -> None:
    """sums[g, j] = sum_i vectors[g, i] * gamma_i^j, with the j-th powers of all points kept for all g."""
    points_m = _points_m(np.arange(vectors.shape[1]), q)
    powers = np.ones(vectors.shape[1], np.uint64)
    for j in range(sums.shape[1]):
        for g in range(vectors.shape[0]):
            sums[g, j] = _dot(vectors[g], powers, q)
        _multiply(powers, points_m, q, q_inverse)


@kernel
def _locator(backwards: Words, q: np.uint64, q_inverse: np.uint64) -> Words:
    """Berlekamp and Massey: the shortest C = (1, c_1, ..., c_w) with sum_k c_k S_(n-k) = 0 for all n >= w.

    The sequence comes last term first. A w above t is given up on: the empty C says so.
    """
    count = len(backwards)
    now = np.zeros(count + 1, np.uint64)
    now[0] = ONE
    before = now.copy()
    width, width_before, shift = 0, 0, 1
    inverse_m = (ONE << HALF) % q
    for n in range(count):
        discrepancy = _dot(backwards[count - 1 - n : count - n + width], now[: width + 1], q)
        if discrepancy == 0:
            shift += 1
            continue
        saved = now.copy()
        factor_m = _times((discrepancy << HALF) % q, inverse_m, q, q_inverse)
        shifted = now[shift : shift + width_before + 1]
        for k in range(len(shifted)):
            shifted[k] = _lift(shifted[k] - _times(before[k], factor_m, q, q_inverse), q)
        shift += 1
        if 2 * width <= n:
            before, width_before, width, shift = saved, width, n + 1 - width, 1
            inverse_m = _inverse_m(discrepancy, q, q_inverse)
        if 2 * width > count:
            return now[:0]
    return now[: width + 1]


@kernel
def _solve(syndromes: Symbols, M: int, q: np.uint64, q_inverse: np.uint64) -> tuple[Places, Places, Words]:
    """The candidate for each row, not yet checked: (weight, places, values), `weight` of the latter two.

    With z^w C(1/z) = prod_k (z - gamma_k) = C~(z) over the places k, and O the polynomial part of
    C~(z) * sum_j S_j z^(-j-1), the value at place i is O(gamma_i) / C~'(gamma_i).
    """
    points_m = _points_m(np.arange(M), q)
    rows, count = syndromes.shape
    most = min(count // 2, M)
    weight = np.zeros(rows, np.int64)
    places = np.zeros((rows, most), np.int64)
    values = np.zeros((rows, most), np.uint64)
    for r in range(rows):
        backwards = syndromes[r, ::-1].astype(np.uint64)
        locator = _locator(backwards, q, q_inverse)
        degree = len(locator) - 1
        if degree <= 0:
            continue
        # there are never more roots than `most`, unless q is not the prime it should be
        roots = np.flatnonzero(_evaluate(locator, points_m, q, q_inverse) == 0)[:most]
        numerator = np.empty(degree, np.uint64)
        derivative = np.empty(degree, np.uint64)
        for j in range(degree):
            numerator[j] = _dot(backwards[count - 1 - j :], locator[: j + 1], q)
            derivative[j] = np.uint64(degree - j) * locator[j] % q
        above = _evaluate(numerator, points_m[roots], q, q_inverse)
        below = _evaluate(derivative, points_m[roots], q, q_inverse)
        weight[r] = len(roots)
        for k in range(len(roots)):
            places[r, k] = roots[k]
            values[r, k] = _times(above[k], _inverse_m(below[k], q, q_inverse), q, q_inverse)
    return weight, places, values


@kernel
def _reproduces(
    syndromes: Symbols, q: np.uint64, q_inverse: np.uint64, weight: Places, places: Places, values: Words
) -> NDArray[np.bool_]:
    """For each row, whether sum_k value_k * gamma_k^j is S_j for every j."""
    good = np.ones(syndromes.shape[0], np.bool_)
    for r in range(syndromes.shape[0]):
        terms = values[r, : weight[r]].copy()
        points_m = _points_m(places[r, : weight[r]], q)
        for j in range(syndromes.shape[1]):
            good[r] &= terms.sum() % q == syndromes[r, j]
            _multiply(terms, points_m, q, q_inverse)
    return good
