"""The scheme a second time, in plain Python integers: slow, naive, and without a line of the package.

Users are numbered from 1 and arrays from 0, as in the package. Vectors are lists of integers in [0, q).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations

Vector = list[int]
Pairs = list[tuple[int, int]]  # a sparse vector, or an X: (index, value), in order


def is_prime(n: int) -> bool:
    """By trial division."""
    return n >= 2 and all(n % d for d in range(2, math.isqrt(n) + 1))


def next_prime(n: int) -> int:
    """The smallest prime >= n."""
    while not is_prime(n):
        n += 1
    return n


def subsets(users: Sequence[int], least: int) -> Iterator[tuple[int, ...]]:
    """All subsets with at least so many members."""
    for size in range(least, len(users) + 1):
        yield from combinations(users, size)


# Selection and quantisation


def top_k(gradient: Sequence[float], k: int) -> Vector:
    """The k coordinates of largest magnitude, ties to the lower one; increasing."""
    return sorted(sorted(range(len(gradient)), key=lambda i: (-abs(gradient[i]), i))[:k])


def bucket_top(gradient: Sequence[float], buckets: int, picks: int) -> Vector:
    """The same for each bucket {k : k mod B = b} in turn; padding (k >= L) comes after everything else."""
    chosen = []
    for b in range(buckets):
        inside = [k for k in range(len(gradient)) if k % buckets == b]
        best = sorted(inside, key=lambda k: (-abs(gradient[k]), k))
        padding = [k for k in range(len(gradient), len(gradient) + buckets) if k % buckets == b]
        chosen += sorted((best + padding)[:picks])
    return chosen


def roundings(value: float, scale: int) -> set[int]:
    """What stochastic rounding may make of a value: the integers next to value * scale, exactly."""
    steps = Fraction(value) * scale
    return {math.floor(steps), math.ceil(steps)}


def lifted(symbol: int, q: int) -> int:
    """The representative in [-(q-1)/2, (q-1)/2]."""
    return symbol if symbol <= (q - 1) // 2 else symbol - q


def plain_sum(inputs: Sequence[Pairs], length: int, q: int) -> Vector:
    """What the aggregate must be: the sum of the sparse inputs, coordinate by coordinate."""
    total = [0] * length
    for pairs in inputs:
        for k, w in pairs:
            if k < length:
                total[k] = (total[k] + w) % q
            else:
                assert w == 0, "padding is zero"
    return total


# Polynomials


def interpolated(nodes: Sequence[int], values: Sequence[int], x: int, q: int) -> int:
    """The value at x of the polynomial of degree < len(nodes) through (node, value)."""
    total = 0
    for i, node in enumerate(nodes):
        above = below = 1
        for j, other in enumerate(nodes):
            if j != i:
                above, below = above * (x - other), below * (node - other)
        total += values[i] * above * pow(below, -1, q)
    return total % q


def interpolated_vectors(nodes: Sequence[int], vectors: Sequence[Vector], x: int, q: int) -> Vector:
    """The same, entry by entry."""
    return [interpolated(nodes, column, x, q) for column in zip(*vectors, strict=True)]


def lagrange_matrix(nodes: Sequence[int], points: Sequence[int], q: int) -> list[Vector]:
    """Column i holds the values at the points of the polynomial that is 1 at node i and 0 at the others."""
    unit = [[int(i == j) for j in range(len(nodes))] for i in range(len(nodes))]
    return [[interpolated(nodes, row, x, q) for row in unit] for x in points]


# Offline phase


def cut(vector: Vector, blocks: int, width: int) -> list[Vector]:
    """A vector as D blocks, padded with zeros (eq. partition)."""
    padded = vector + [0] * (blocks * width - len(vector))
    return [padded[d * width : (d + 1) * width] for d in range(blocks)]


def permutation_rows(pi: Sequence[int], r: Sequence[int], blocks: int) -> list[tuple[list[Vector], int]]:
    """For each i: the blocks of p_{n,i}, row i of the matrix P_n, and r_{n, sigma_n(i)}."""
    length = len(pi)
    rows = []
    for i in range(length):
        sigma_i = next(k for k in range(length) if pi[k] == i)
        p_i = [int(j == sigma_i) for j in range(length)]
        rows.append((cut(p_i, blocks, math.ceil(length / blocks)), r[sigma_i]))
    return rows


def rotation_rows(
    s: Sequence[int], r: Sequence[int], blocks: int, picks: int, width: int
) -> list[tuple[list[Vector], int]]:
    """For each pick: e_s in the slot of its bucket and nothing in the other slots, and r."""
    rows = []
    for i in range(len(s)):
        slot = i // picks % blocks
        rows.append(([[int(d == slot and j == s[i]) for j in range(width)] for d in range(blocks)], r[i]))
    return rows


def shares(
    rows: list[tuple[list[Vector], int]],
    z: list[list[Vector]],
    z_tilde: list[list[Vector]],
    alpha: Sequence[int],
    beta: Sequence[int],
    q: int,
) -> list[list[tuple[Vector, Vector]]]:
    """[m][i]: f_i(alpha_m) and h_i(alpha_m), with z[i] and z_tilde[i] the T noise vectors of each."""
    nodes = beta[: len(rows[0][0]) + len(z[0])]
    return [
        [
            (
                interpolated_vectors(nodes, [*blocks, *z[i]], x, q),
                interpolated_vectors(
                    nodes, [*([mask * v % q for v in b] for b in blocks), *z_tilde[i]], x, q
                ),
            )
            for i, (blocks, mask) in enumerate(rows)
        ]
        for x in alpha
    ]


# Masked-input phase


def mask_permutation(pi: Sequence[int], r: Sequence[int], sparse: Pairs, q: int) -> Pairs:
    """X_n = {(pi_n(k), w_k + r_k)}, by permuted index."""
    return sorted((pi[k], (w + r[k]) % q) for k, w in sparse)


def mask_rotation(
    s: Sequence[int], r: Sequence[int], sparse: Pairs, buckets: int, width: int, q: int
) -> Pairs:
    """((k - s) mod M, w + r) pick by pick, where k is the place within the bucket."""
    return [((k // buckets - s[i]) % width, (w + r[i]) % q) for i, (k, w) in enumerate(sparse)]


# Mask-elimination phase

ShareRows = list[tuple[Vector, Vector]]


def answer_permutation(masked: Mapping[int, Pairs], held: Mapping[int, ShareRows], q: int) -> list[Vector]:
    """Y_n = sum over m and (i, x) in X_m of x f_{m,i} - h_{m,i}: one group."""
    width = len(next(iter(held.values()))[0][0])
    y = [0] * width
    for m, pairs in masked.items():
        for i, x in pairs:
            f, h = held[m][i]
            y = [(y[j] + x * f[j] - h[j]) % q for j in range(width)]
    return [y]


def answer_rotation(
    masked: Mapping[int, Pairs], held: Mapping[int, ShareRows], blocks: int, picks: int, q: int
) -> list[Vector]:
    """Y_n[g] = sum over m and the picks of group g of rotate(x f - h, delta)."""
    rows = len(next(iter(held.values())))
    width = len(next(iter(held.values()))[0][0])
    y = [[0] * width for _ in range(rows // (blocks * picks))]
    for m, pairs in masked.items():
        for i, (delta, x) in enumerate(pairs):
            f, h = held[m][i]
            group = y[i // (blocks * picks)]
            for j in range(width):
                to = (j + delta) % width
                group[to] = (group[to] + x * f[j] - h[j]) % q
    return y


def syndromes(vector: Vector, count: int, q: int) -> Vector:
    """S_j = sum_i v_i (i + 1)^j."""
    return [sum(v * pow(i + 1, j, q) for i, v in enumerate(vector)) % q for j in range(count)]


# Decoding


def decode(
    answers: Mapping[int, list[Vector]], alpha: Sequence[int], beta: Sequence[int], blocks: int, q: int
) -> list[list[Vector]]:
    """[g][d]: the value at beta_d of the polynomial through all the answers for group g."""
    nodes = [alpha[n - 1] for n in answers]
    groups = len(next(iter(answers.values())))
    return [
        [interpolated_vectors(nodes, [y[g] for y in answers.values()], beta[d], q) for d in range(blocks)]
        for g in range(groups)
    ]


def joined_permutation(decoded: list[list[Vector]], length: int) -> Vector:
    """The blocks one after the other, without the padding."""
    whole = [v for block in decoded[0] for v in block]
    assert not any(whole[length:]), "padding is zero"
    return whole[:length]


def joined_rotation(decoded: list[list[Vector]], length: int) -> Vector:
    """Block d of group g is bucket g D + d; place j of bucket b is coordinate j B + b."""
    buckets = [block for group in decoded for block in group]
    whole = [bucket[j] for j in range(len(buckets[0])) for bucket in buckets]
    assert not any(whole[length:]), "padding is zero"
    return whole[:length]
