"""From X and Y to the sum: a program for auditors that shares no code with the library.

recipe.py ROUND [SUM.npz]: plain integers, and h5py to open files. docs/recipe.md says the same in
words.
"""

import json
import sys
from hashlib import sha256
from itertools import product
from math import floor, prod
from pathlib import Path

import h5py
import numpy as np


def opened(path):
    """Attributes and arrays of a file, whose content must have the digest that it says."""
    with h5py.File(path) as file:
        arrays = {name: file[name][...] for name in sorted(file)}
        says = {k: v.decode() if isinstance(v, bytes) else int(v) for k, v in file.attrs.items()}
    content = sha256()
    for name in sorted(says.keys() - {"sha256", "signature"}):
        content.update(f"attribute {name} {says[name]}\n".encode())
    for name, a in arrays.items():
        sizes = ",".join(map(str, a.shape))
        content.update(f"dataset {name} {a.dtype.str} {sizes}\n".encode() + a.tobytes())
    assert content.hexdigest() == says["sha256"], f"{path} is damaged"
    return says, arrays


def lagrange(xs, x, q):
    """The value at x is the sum of these times the values at xs."""
    parts = [(prod(x - j for j in xs if j != i), prod(i - j for j in xs if j != i)) for i in xs]
    return [above * pow(below, -1, q) % q for above, below in parts]


def value(polynomial, x, q):
    """Horner; the lowest coefficient comes first."""
    result = 0
    for coefficient in reversed(polynomial):
        result = (result * x + coefficient) % q
    return result


def locator(s, q):
    """Berlekamp-Massey: the shortest c with c_0 = 1 and sum_i c_i s_(j-i) = 0 for all j."""
    now, before, length, gap, last = [1], [1], 0, 1, 1
    for j in range(len(s)):
        wrong = sum(c * s[j - i] for i, c in enumerate(now)) % q
        factor, kept = wrong * pow(last, -1, q), now
        if wrong:
            shifted = [0] * gap + [factor * c for c in before]
            now = [*now, *[0] * (len(shifted) - len(now))]
            now = [(c - d) % q for c, d in zip(now, shifted + [0] * len(now), strict=False)]
            if 2 * length <= j:
                length, before, last, gap = j + 1 - length, kept, wrong, 0
        gap += 1
    return now[: length + 1]


def entries(s, n, gamma, q):
    """{place p: w} with s_j = sum of w gamma^(p j): the roots of the locator, and Forney."""
    poly = locator(s, q)
    slope = [i * c for i, c in enumerate(poly)][1:]
    omega = [sum(poly[i] * s[j - i] for i in range(j + 1)) for j in range(len(poly) - 1)]
    inverse = {p: x for p in range(n) if not value(poly, x := pow(gamma, -p, q), q)}
    w = {
        p: -value(omega, x, q) * pow(x * value(slope, x, q), -1, q) % q for p, x in inverse.items()
    }
    assert len(w) == len(poly) - 1 <= len(s) // 2, "this is no sketch"
    assert all(sum(w[p] * pow(gamma, p * j, q) for p in w) % q == x for j, x in enumerate(s))
    return w


def root_of_unity(q, places):
    """n >= places, the smallest divisor of q - 1, and g^((q-1)/n) for the smallest generator g."""
    n = next(d for d in range(places, q) if (q - 1) % d == 0)
    ds = [d for d in range(2, min(q - 1, 1 << 16)) if (q - 1) % d == 0]
    orders = {(q - 1) // d for d in ds} | set(ds)  # of elements that generate less
    g = next(g for g in range(1, q) if all(pow(g, order, q) != 1 for order in orders | {1}))
    return n, pow(g, (q - 1) // n, q)


def total(root):
    """The sum in the field: {coordinate: value}, without zeros."""
    paths = root / "session.json", root / "survivors.json"
    names = [sha256(path.read_bytes()).hexdigest() for path in paths]
    session, survivors = [json.loads(path.read_bytes()) for path in paths]
    p, alpha, beta = session["parameters"], session["points"]["alpha"], session["points"]["beta"]
    q, U, P, B = p["field"], p["survivors"], p["picks"], p["buckets"]
    D, sparse = U - p["colluders"], p["length"] - p["whole"]
    rows = {row["user"]: row for row in survivors["survivors"]}

    y = {}  # the answers, by point
    for path in sorted((root / "elimination").glob("user-*.h5")):
        says, arrays = opened(path)
        assert [says["session"], says["survivors_sha256"]] == names, "another survivor set"
        y[alpha[says["user"] - 1]] = arrays["y"].tolist()
    used = list(y)[:U]
    factors = {x: lagrange(used, x, q) for x in [*y, *beta]}

    def answer(x, i, j):  # Y(x), for group i and symbol j
        return sum(f * y[one][i][j] for f, one in zip(factors[x], used, strict=True)) % q

    symbols = [(i, j) for i, row in enumerate(y[used[0]]) for j, _ in enumerate(row)]
    assert all(answer(x, i, j) == y[x][i][j] for x in y for i, j in symbols), "answers disagree"
    if p["construction"] == "permutation":
        flat = [answer(beta[d], i, j) for d in range(D) for i, j in symbols]
        return {k: v for k, v in enumerate(flat) if v}

    sums = 0  # of all X
    for user, row in rows.items():
        says, arrays = opened(root / "masked" / f"user-{user:02}.h5")
        assert [says["session"], says["sha256"]] == [names[0], row["sha256"]], "another X"
        sums = sums + arrays["value"].astype("u8")
    W1, M = symbols[-1][1] + 1, -(-sparse // max(1, B))
    searched = 2 * p["users"] * P < M
    W = 2 * p["users"] * P if searched else W1
    n, gamma = root_of_unity(q, M) if searched else (M, 1)
    result, count = {}, len(sums) // W - B  # buckets of what is sent whole
    for b in range(B + count):
        s = [(int(sums[b * W + j]) - answer(beta[b % D], b // D, j)) % q for j in range(W1)]
        if b < B and searched:
            found = entries(s[: 2 * len(rows) * P], n, gamma, q)
        else:
            found = {j: v for j, v in enumerate(s) if v}
        first, step, end = (b, B, sparse) if b < B else (sparse + b - B, count, p["length"])
        assert all(first + step * place < end for place in found), "a place without coordinate"
        result |= {first + step * place: w for place, w in found.items()}
    return dict(sorted(result.items()))


def matrix(shape):
    """(out, in, height, width): rows are (out, height), columns (in, width)."""
    return shape if len(shape) == 4 else [shape[0], prod(shape[1:]), 1, 1]


def reduced_shape(session, tensor):
    """Of a tensor as it is summed."""
    if tensor["reduction"] != "low-rank":
        return tensor["shape"]
    out, inputs, height, width = matrix(tensor["shape"])
    rank = session["rank"]
    return [out * height, rank] if session["side"] == "right" else [rank, inputs * width]


def steps(session, tensor):
    """Per unit, of a tensor."""
    p = session["parameters"]
    return float(floor((p["field"] - 1) // 2 / (p["users"] * (tensor["clip"] * p["max_weight"]))))


def in_order(session):
    """The tensors as the summed vector has them: those of which some entries are picked first."""
    return sorted(session["layout"], key=lambda tensor: tensor["reduction"] != "top-k")


def centred(v, q):
    """The symbol as a signed integer."""
    return v - q if v > (q - 1) // 2 else v


def check_reals(session, summed, index, reals):
    """Each is its symbol in the steps of its tensor."""
    sizes = [(t, prod(reduced_shape(session, t))) for t in in_order(session)]
    scale = [steps(session, tensor) for tensor, size in sizes for _ in range(size)]
    q = session["parameters"]["field"]
    right = [centred(summed.get(k, 0), q) / scale[k] for k in index]
    assert right == reals, "aggregate.h5 has other reals"


def bases(root, session):
    """The basis of every projected tensor by its name: rows of integers in steps of 2^-20."""
    if session["basis"] is None:
        return {}
    value = opened(root / "basis.h5")[1]["value"]
    assert sha256(value.tobytes()).hexdigest() == session["basis"], "another basis"
    numbers, found, rank = iter(value.tolist()), {}, session["rank"]
    for tensor in session["layout"]:
        if tensor["reduction"] == "low-rank":
            out, inputs, height, width = matrix(tensor["shape"])
            count = inputs * width if session["side"] == "right" else out * height
            found[tensor["name"]] = [[next(numbers) for _ in range(rank)] for _ in range(count)]
    return found


def product_of(left, right, shape):
    """left right' as a tensor, flat; both are lists of rows."""
    out, inputs, height, width = map(range, matrix(shape))
    return [
        sum(
            a * b for a, b in zip(left[o * len(height) + h], right[i * len(width) + w], strict=True)
        )
        for o, i, h, w in product(out, inputs, height, width)
    ]


def tensors(root, session, summed):
    """{name: array}: y B' (right) or B y (left) of what is projected, and all else as it is."""
    found, first, q = {}, 0, session["parameters"]["field"]
    basis_of = bases(root, session)
    for tensor in in_order(session):
        name, shape, scale = tensor["name"], reduced_shape(session, tensor), steps(session, tensor)
        flat = [centred(summed.get(first + k, 0), q) for k in range(prod(shape))]
        first += len(flat)
        if name in basis_of:
            count, size = shape
            y = [flat[i * size : (i + 1) * size] for i in range(count)]
            columns = list(zip(*y, strict=True))
            sides = {"right": (y, basis_of[name]), "left": (basis_of[name], columns)}
            flat = product_of(*sides[session["side"]], tensor["shape"])
            scale *= 2.0**20
        found[str(name) or "gradient"] = np.array([v / scale for v in flat]).reshape(
            tensor["shape"]
        )
    return found


def main(root, output=None):
    """Compare aggregate.h5 with the sum, and write the sum's tensors if asked to."""
    session = json.loads((root / "session.json").read_bytes())
    summed = total(root)
    _, arrays = opened(root / "aggregate.h5")
    index = arrays.get("index", np.arange(session["parameters"]["length"])).tolist()
    said = dict(zip(index, arrays["value"].tolist(), strict=True))
    assert summed == {k: v for k, v in said.items() if v}, "aggregate.h5 has another sum"
    check_reals(session, summed, index, arrays["real"].tolist())
    if output:
        np.savez(output, **tensors(root, session, summed))
    print(f"{len(summed)} coordinates are not zero, and aggregate.h5 has the same sum")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
