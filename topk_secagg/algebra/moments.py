"""Moments of sparse vectors: shared, summed, and turned back into the one sparse vector behind them.

The moments of place p are v_p = (gamma^(p j)) for j = 0, 1, ..., with gamma of order n in F_q*. The moments of
a vector w of length n are sum_p w_p v_p; moving a place by delta multiplies entry j by gamma^(delta j).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import BadData
from .field import Integers, Symbols, montgomery_constants, to_montgomery
from .native import run

Places = NDArray[np.int64]
_ROWS_NAMED = 5


class Entries(NamedTuple):
    """The non-zero entries of several vectors: vector `row` has `value` at `place`; in this order."""

    row: Places
    place: Places
    value: Symbols


def share(
    place: Symbols,
    factor: Symbols,
    point: Integers,
    matrix: Integers,
    noise: Symbols,
    gamma: int,
    q: int,
    shares: Symbols,
) -> None:
    """Shamir sharings of factor^-1 v_place, evaluated for every user: shares (N, rows, W).

    shares[m, i, j] = factor_i^-1 gamma^(place_i j) + sum_t matrix[point_i, m, t] noise[i, t, j],
    with matrix (points, N, T) and noise (rows, T, W).
    """
    constants = (gamma_m(gamma, q), *montgomery_constants(q))
    run(
        "share",
        place,
        factor,
        point,
        to_montgomery(matrix, q),
        noise,
        *constants,
        out=(shares, _words(shares.shape[2])),
    )


def answer(g: Symbols, shift: Symbols, scale: Symbols, group: Integers, gamma: int, q: int, total: Symbols) -> None:
    """Add the rows of g, moved and scaled, to their groups: total (groups, W1), g (rows, at least W1).

    total[group_i, j] += scale_i gamma^(shift_i j) g[i, j].
    """
    constants = (gamma_m(gamma, q), *montgomery_constants(q))
    run("answer", g, shift, scale, group, *constants, out=(total, _words(total.shape[1])))


def recover(moments: Symbols, weight: int, order: int, gamma: int, q: int, places: int | None = None) -> Entries:
    """For each row of moments, the only vector with at most `weight` non-zero entries, all within the first `places`.

    moments (rows, W1) with W1 = order, or W1 = 2 weight. A row that no such vector has is BadData, whatever
    the reason: what is found must give back all W1 moments, and two vectors that both do would differ
    in at most W1 of the `order` places, hence nowhere. Time and memory go with `places`, which may be far fewer.
    """
    rows, count = moments.shape
    if count not in (order, 2 * weight) or count > order:
        raise ValueError(f"{count} moments do not determine {weight} of {order} places")
    powers = _words(order if count == order or places is None else places)
    run("geometric", gamma_m(1, q), gamma_m(gamma, q), *montgomery_constants(q), out=(powers,))
    most = min(weight, order)
    found, place, value = np.empty(rows, np.int64), np.zeros((rows, most), np.int64), np.zeros((rows, most), np.uint64)
    scratch = _words(6, max(powers.size, count + 1))
    kernel = "transform" if count == order else "solve"
    run(kernel, moments, powers, *montgomery_constants(q), out=(found, place, value, scratch))
    bad = np.flatnonzero(found < 0)
    if bad.size:
        named = ", ".join(map(str, bad[:_ROWS_NAMED])) + (", ..." if bad.size > _ROWS_NAMED else "")
        what = f"no vector with at most {weight} non-zero entries has these moments"
        raise BadData(f"{what}: {bad.size} of {rows} rows ({named})")
    filled = np.arange(most) < found[:, None]
    row = np.repeat(np.arange(rows, dtype=np.int64), found)
    return Entries(row, place[filled], value[filled].astype(np.uint32))


def gamma_m(gamma: int, q: int) -> int:
    """A factor in Montgomery form."""
    return (gamma << 32) % q


def _words(*shape: int) -> NDArray[np.uint64]:
    """Scratch space of a kernel."""
    return np.empty(shape, np.uint64)
