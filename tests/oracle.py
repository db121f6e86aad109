"""The scheme a second time, in plain Python integers: slow, naive, and without any code of the
package.

Users are numbered from 1 and arrays from 0, as in the package. Vectors are lists of integers in [0,
q).
"""

import hashlib
import hmac
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, islice

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Vector = list[int]
Ints = Sequence[int]
Row = tuple[list[Vector], int]  # the blocks of a row of P_n, and its mask
Pairs = list[tuple[int, int]]  # a sparse vector, or an X: (index, value), in order


def is_prime(n: int) -> bool:
    """By trial division."""
    return n >= 2 and all(n % d for d in range(2, math.isqrt(n) + 1))


def next_prime(n: int) -> int:
    """The smallest prime >= n."""
    while not is_prime(n):
        n += 1
    return n


def subsets(users: Ints, least: int) -> Iterator[tuple[int, ...]]:
    """All subsets with at least `least` members."""
    for size in range(least, len(users) + 1):
        yield from combinations(users, size)


# Selection and quantisation


def top_k(gradient: Sequence[float], k: int) -> Vector:
    """The k coordinates of largest magnitude, ties to the lower one; increasing."""
    return sorted(sorted(range(len(gradient)), key=lambda i: (-abs(gradient[i]), i))[:k])


def bucket_top(gradient: Sequence[float], buckets: int, picks: int) -> Vector:
    """The same for each bucket {k : k mod B = b} in turn: its P coordinates of largest
    magnitude."""
    chosen = []
    for b in range(buckets):
        inside = [k for k in range(len(gradient)) if k % buckets == b]
        assert len(inside) >= picks, "a pick is always a coordinate"
        chosen += sorted(sorted(inside, key=lambda k: (-abs(gradient[k]), k))[:picks])
    return chosen


def roundings(value: float, scale: int) -> dict[int, Fraction]:
    """What stochastic rounding makes of y = value * scale: the integers next to y, with
    probabilities."""
    y = Fraction(value) * scale
    below = math.floor(y)
    return {v: p for v, p in ((below, 1 - (y - below)), (below + 1, y - below)) if p > 0}


def lifted(symbol: int, q: int) -> int:
    """The representative in [-(q-1)/2, (q-1)/2]."""
    return symbol if symbol <= (q - 1) // 2 else symbol - q


def plain_sum(inputs: Sequence[Pairs], length: int, q: int) -> Vector:
    """What the aggregate must be: the sum of the sparse inputs, coordinate by coordinate."""
    total = [0] * length
    for pairs in inputs:
        for k, w in pairs:
            total[k] = (total[k] + w) % q
    return total


# Polynomials and linear systems


def interpolated(nodes: Ints, values: Ints, x: int, q: int) -> int:
    """The value at x of the polynomial of degree < len(nodes) through (node, value)."""
    total = 0
    for i, node in enumerate(nodes):
        above = below = 1
        for j, other in enumerate(nodes):
            if j != i:
                above, below = above * (x - other), below * (node - other)
        total += values[i] * above * pow(below, -1, q)
    return total % q


def interpolated_vectors(nodes: Ints, vectors: Sequence[Vector], x: int, q: int) -> Vector:
    """The same, entry by entry."""
    return [interpolated(nodes, column, x, q) for column in zip(*vectors, strict=True)]


def lagrange_matrix(nodes: Ints, points: Ints, q: int) -> list[Vector]:
    """Column i holds the values at the points of the polynomial that is 1 at node i and 0 at the
    others."""
    unit = [[int(i == j) for j in range(len(nodes))] for i in range(len(nodes))]
    return [[interpolated(nodes, row, x, q) for row in unit] for x in points]


def reduced(matrix: Sequence[Ints], q: int) -> tuple[list[Vector], Vector]:
    """The reduced row echelon form, and the columns of its pivots."""
    rows = [[v % q for v in row] for row in matrix]
    pivots: Vector = []
    for column in range(len(rows[0])):
        top = len(pivots)
        found = next((i for i in range(top, len(rows)) if rows[i][column]), None)
        if found is None:
            continue
        rows[top], rows[found] = rows[found], rows[top]
        inverse = pow(rows[top][column], -1, q)
        rows[top] = [v * inverse % q for v in rows[top]]
        for i, row in enumerate(rows):
            if i != top and row[column]:
                rows[i] = [(v - row[column] * u) % q for v, u in zip(row, rows[top], strict=True)]
        pivots.append(column)
    return rows, pivots


def solved(matrix: Sequence[Vector], right: Ints, q: int) -> Vector | None:
    """The one x with matrix * x = right; None if there is none, or more than one."""
    rows, pivots = reduced([[*row, v] for row, v in zip(matrix, right, strict=True)], q)
    unknowns = len(matrix[0])
    return [row[-1] for row in rows[:unknowns]] if pivots == list(range(unknowns)) else None


# `permutation`: offline phase


def cut(vector: Vector, blocks: int, width: int) -> list[Vector]:
    """A vector as D blocks, padded with zeros (eq. partition)."""
    padded = vector + [0] * (blocks * width - len(vector))
    return [padded[d * width : (d + 1) * width] for d in range(blocks)]


def permutation_rows(pi: Ints, r: Ints, blocks: int) -> list[Row]:
    """For each i: the blocks of p_{n,i}, row i of the matrix P_n, and r_{n, sigma_n(i)}."""
    length = len(pi)
    rows = []
    for i in range(length):
        sigma_i = next(k for k in range(length) if pi[k] == i)
        p_i = [int(j == sigma_i) for j in range(length)]
        rows.append((cut(p_i, blocks, math.ceil(length / blocks)), r[sigma_i]))
    return rows


def shares(
    rows: list[Row],
    z: list[list[Vector]],
    z_tilde: list[list[Vector]],
    alpha: Ints,
    beta: Ints,
    q: int,
) -> list[list[tuple[Vector, Vector]]]:
    """[m][i]: f_i(alpha_m) and h_i(alpha_m), with z[i] and z_tilde[i] the T noise vectors of
    each."""
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


# `permutation`: masked-input phase


def mask_permutation(pi: Ints, r: Ints, sparse: Pairs, q: int) -> Pairs:
    """X_n = {(pi_n(k), w_k + r_k)}, by permuted index."""
    return sorted((pi[k], (w + r[k]) % q) for k, w in sparse)


# `permutation`: mask-elimination phase

ShareRows = list[tuple[Vector, Vector]]


def answer_permutation(
    masked: Mapping[int, Pairs], held: Mapping[int, ShareRows], q: int
) -> list[Vector]:
    """Y_n = sum over m and (i, x) in X_m of x f_{m,i} - h_{m,i}: one group."""
    width = len(next(iter(held.values()))[0][0])
    y = [0] * width
    for m, pairs in masked.items():
        for i, x in pairs:
            f, h = held[m][i]
            y = [(y[j] + x * f[j] - h[j]) % q for j in range(width)]
    return [y]


# `permutation`: decoding


def decode(
    answers: Mapping[int, list[Vector]], alpha: Ints, beta: Ints, blocks: int, q: int
) -> list[list[Vector]]:
    """[g][d]: the value at beta_d of the polynomial through all the answers for group g."""
    nodes = [alpha[n - 1] for n in answers]
    groups = len(next(iter(answers.values())))
    return [
        [
            interpolated_vectors(nodes, [y[g] for y in answers.values()], beta[d], q)
            for d in range(blocks)
        ]
        for g in range(groups)
    ]


def joined_permutation(decoded: list[list[Vector]], length: int) -> Vector:
    """The blocks one after the other, without the padding."""
    whole = [v for block in decoded[0] for v in block]
    assert not any(whole[length:]), "padding is zero"
    return whole[:length]


# `sketch`: sizes


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def bucket_count(K: int, picks: int) -> int:
    """B = ceil(K/P)."""
    return ceil_div(K, picks)


def place_count(length: int, buckets: int) -> int:
    """M = ceil(L/B)."""
    return ceil_div(length, buckets)


def order_of_places(M: int, q: int) -> int:
    """n, the smallest divisor of q-1 that is >= M."""
    low = [d for d in range(1, math.isqrt(q - 1) + 1) if (q - 1) % d == 0]
    return min(d for e in low for d in (e, (q - 1) // e) if d >= M)


def smallest_generator(q: int) -> int:
    """The smallest g whose powers are all of F_q*: g^((q-1)/p) is not 1 for any prime p that
    divides q-1."""
    low = [d for d in range(1, math.isqrt(q - 1) + 1) if (q - 1) % d == 0]
    primes = [d for e in low for d in (e, (q - 1) // e) if is_prime(d)]
    return next(g for g in range(1, q) if all(pow(g, (q - 1) // p, q) != 1 for p in primes))


def element_of_order(n: int, q: int) -> int:
    """gamma = g^((q-1)/n)."""
    return pow(smallest_generator(q), (q - 1) // n, q)


def sketch_width(users: int, picks: int, M: int) -> int:
    """W = min(2 N P, M): with W = M a bucket's entries are its sketch."""
    return min(2 * users * picks, M)


def buckets_of_whole(length: int, blocks: int) -> int:
    """B = ceil(L/M) with the M <= 16 that wastes least in the last group, if all of L coordinates
    are sent whole; the fewest buckets if several do."""

    def symbols(count: int) -> int:
        return ceil_div(count, blocks) * blocks * ceil_div(length, count)

    counts = sorted(ceil_div(length, M) for M in range(1, 17))
    return min(counts, key=symbols)


# Sparse vectors and their sketches


def power_sums(vector: Ints, W: int, gamma: int, q: int) -> Vector:
    """S_j = sum_k v_k gamma^(k j), j < W."""
    return [sum(v * pow(gamma, k * j, q) for k, v in enumerate(vector)) % q for j in range(W)]


def recover(sums: Vector, n: int, t: int, gamma: int, q: int) -> Vector | None:
    """The vector of length n and weight <= t that has these power sums, at least min(2t, n) of
    them, or None.

    With all n of them: v_k = (1/n) sum_j S_j gamma^(-k j). Else by Prony's method: the Hankel
    matrix (S_(i+j)) of size t has the rank v of the vector's weight; S_(i+v) = sum_j c_j S_(i+j);
    the places k are those where x^v - sum_j c_j x^j is zero at gamma^k; the values solve the
    Vandermonde system.
    """
    if len(sums) == n:
        whole = [v * pow(n, -1, q) % q for v in power_sums(sums, n, pow(gamma, -1, q), q)]
        return whole if sum(v != 0 for v in whole) <= t else None
    assert len(sums) >= 2 * t > 0
    hankel = [[sums[i + j] for j in range(t)] for i in range(t)]
    v = len(reduced(hankel, q)[1])
    c = solved([row[:v] for row in hankel[:v]], sums[v : 2 * v], q) if v else []
    if c is None:
        return None
    roots = [pow(gamma, k, q) for k in range(n)]
    places = [
        k
        for k, x in enumerate(roots)
        if (pow(x, v, q) - sum(c[j] * pow(x, j, q) for j in range(v))) % q == 0
    ]
    values = solved([[pow(roots[k], j, q) for k in places] for j in range(len(sums))], sums, q)
    if values is None:
        return None
    found = dict(zip(places, values, strict=True))
    return [found.get(k, 0) for k in range(n)]


# Streams of symbols, and keys


def child(key: bytes, label: str) -> bytes:
    """The key that belongs to a purpose."""
    return hmac.new(key, label.encode(), hashlib.sha256).digest()


def words(key: bytes, size: int) -> Iterator[int]:
    """The words of the AES-256-CTR key stream, the least significant byte first."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    while True:
        yield int.from_bytes(stream.update(bytes(size)), "little")


def symbols(key: bytes, bound: int) -> Iterator[int]:
    """Uniform integers below the bound: words from its largest multiple on are skipped."""
    size = 1 if bound < 2**8 else 2 if bound < 2**16 else 4
    limit = 256**size // bound * bound
    return (word % bound for word in words(key, size) if word < limit)


def table(stream: Iterator[int], rows: int, width: int) -> list[Vector]:
    """The next symbols, row by row."""
    return [list(islice(stream, width)) for _ in range(rows)]


def listed(users: Ints) -> str:
    return ",".join(str(m) for m in users)


def drawn_key(dealer_key: bytes, session: str, dealer: int, block: Ints) -> bytes:
    """The key of a block: the first 32 bytes of a child's stream."""
    stream = words(child(dealer_key, f"key {session} {dealer} {listed(block)}"), 1)
    return bytes(islice(stream, 32))


def drawn_sharing(dealer_key: bytes) -> str:
    """The random name of a dealing, where there are no files."""
    return bytes(islice(words(child(dealer_key, "sharing"), 1), 32)).hex()


def key_symbols(
    key: bytes, session: str, dealer: int, block: Ints, sharing: str, q: int
) -> Iterator[int]:
    """G(key)."""
    label = f"symbols {session} {dealer} {listed(block)} {sharing}"
    return symbols(child(key, label), q)


# `sketch`. Tables have a row of W symbols for every group of D buckets, or for every bucket.


def sketch_of(sparse: Pairs, buckets: int, W: int, gamma: int, q: int) -> list[Vector]:
    """[b][j]: sum over the picks (k, w) of bucket b of w gamma^(k // B j)."""
    total = [[0] * W for _ in range(buckets)]
    for k, w in sparse:
        place, b = divmod(k, buckets)
        total[b] = [(v + w * pow(gamma, place * j, q)) % q for j, v in enumerate(total[b])]
    return total


def table_of(vector: Vector, buckets: int, W: int) -> list[Vector]:
    """[b][j]: the entry of bucket b at place j, which is coordinate j B + b, or 0."""
    padded = vector + [0] * (W * buckets)
    return [[padded[j * buckets + b] for j in range(W)] for b in range(buckets)]


def block_polynomial(block: Ints, alpha: Ints, x: int, q: int) -> int:
    """g_R(x), the product over m not in R of x - alpha_m."""
    outside = [a for m, a in enumerate(alpha, start=1) if m not in block]
    return math.prod(x - a for a in outside) % q


def f_of_keys(
    drawn: Mapping[tuple[int, ...], list[Vector]], alpha: Ints, x: int, q: int
) -> list[Vector]:
    """f(x) = sum over R of G(key_R) g_R(x), group by group: drawn[R] is the table of G(key_R)."""
    factors = {block: block_polynomial(block, alpha, x, q) for block in drawn}
    groups = len(next(iter(drawn.values())))
    width = len(next(iter(drawn.values()))[0])
    return [
        [sum(factors[R] * drawn[R][g][j] for R in drawn) % q for j in range(width)]
        for g in range(groups)
    ]


def f_of_values(values: Mapping[int, list[Vector]], x: int, q: int) -> list[Vector]:
    """f(x) from its values at D + T points, group by group."""
    groups = len(next(iter(values.values())))
    return [
        interpolated_vectors(list(values), [rows[g] for rows in values.values()], x, q)
        for g in range(groups)
    ]


def bucket_masks(at_betas: Sequence[list[Vector]], buckets: int) -> list[Vector]:
    """u of each bucket: bucket i of a group has f(beta_i)."""
    D = len(at_betas)
    return [at_betas[b % D][b // D] for b in range(buckets)]


def mask_sketch(sketch: list[Vector], masks: list[Vector], q: int) -> list[Vector]:
    """X = S(w) + u."""
    return [
        [(s + u) % q for s, u in zip(*rows, strict=True)]
        for rows in zip(sketch, masks, strict=True)
    ]


def answer_sketch(held: Sequence[list[Vector]], W1: int, q: int) -> list[Vector]:
    """Y_n = sum over m in U1 of f_m(alpha_n), for j < W1."""
    return [
        [sum(symbols) % q for symbols in zip(*rows, strict=True)][:W1]
        for rows in zip(*held, strict=True)
    ]


def decode_sketch(
    answers: Mapping[int, list[Vector]],
    masked: Sequence[list[Vector]],
    alpha: Ints,
    beta: Ints,
    q: int,
) -> list[Vector]:
    """The sketch of the sum, for j < W1: the sum of all X less Y at the betas of the buckets."""
    nodes = [alpha[n - 1] for n in answers]
    D = len(beta)
    sketch = []
    for b in range(len(masked[0])):
        rows = [y[b // D] for y in answers.values()]
        masks = interpolated_vectors(nodes, rows, beta[b % D], q)
        sums = [sum(x[b][j] for x in masked) for j in range(len(masks))]
        sketch.append([(s - u) % q for s, u in zip(sums, masks, strict=True)])
    return sketch


def rank(matrix: Sequence[Ints], q: int) -> int:
    return len(reduced(matrix, q)[1]) if matrix else 0


def lacks(
    family: Sequence[tuple[int, ...]], coalition: Ints, alpha: Ints, beta: Ints, q: int
) -> bool:
    """Whether the blocks that a coalition does not meet leave something of the masks open."""
    missed = [block for block in family if not set(block) & set(coalition)]
    values = [[block_polynomial(block, alpha, x, q) for x in beta] for block in missed]
    return rank(values, q) < len(beta)
