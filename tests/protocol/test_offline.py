"""The shares: equal to the oracle's polynomials bit for bit, uniform for any T users, checked by an auditor."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations, product

import numpy as np
import numpy.typing as npt
import oracle
import pytest
from small_rounds import round_of, source

from topk_secagg.algebra.field import DEFAULT_FIELD
from topk_secagg.algebra.randomness import Randomness
from topk_secagg.errors import BadData
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.messages import Points, Secret
from topk_secagg.protocol.offline import choose_points, draw_secret, share_blocks
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.protocol.round import deal

BLOCK_SYMBOLS = "topk_secagg.protocol.constructions.BLOCK_SYMBOLS"
CHECK_BYTES = "topk_secagg.protocol.moments._CHECK_BYTES"
Symbols = npt.NDArray[np.uint32]
Shares = dict[str, Symbols]  # (N, rows, width) by name


class Recorder(Randomness):
    """Passes another source on and keeps bounds and results of `integers`, in order, under the child's label."""

    def __init__(self, inner: Randomness, label: str = "", log: dict[str, list] | None = None):
        self.inner, self.label = inner, label
        self.log: dict[str, list[tuple[int, Symbols]]] = {} if log is None else log

    def fill(self, out: npt.NDArray[np.uint8]) -> None:
        self.inner.fill(out)

    def child(self, label: str) -> Recorder:
        return Recorder(self.inner.child(label), label, self.log)

    def integers(self, bound: int, out: Symbols) -> Symbols:
        self.inner.integers(bound, out)
        self.log.setdefault(self.label, []).append((bound, out.copy()))
        return out


class Given(Randomness):
    """Gives out chosen noise: rows first, first+1, ... of each table in turn, for `noise first`."""

    def __init__(self, tables: list[Symbols], first: int = 0):
        self.tables, self.first = list(tables), first

    def fill(self, _out: npt.NDArray[np.uint8]) -> None:
        raise AssertionError("only whole blocks of noise are drawn")

    def child(self, label: str) -> Given:
        return Given(self.tables, int(label.removeprefix("noise ")))

    def integers(self, bound: int, out: Symbols) -> Symbols:
        out[:] = self.tables.pop(0)[self.first : self.first + len(out)]
        assert out.max() < bound
        return out


def dealt(p: Parameters, points: Points, secret: Secret, noise: Randomness) -> Shares:
    held = [shares.tables for shares in deal(p, points, secret, noise)]
    names = construction(p).share_names
    return {name: np.stack([tables[i] for tables in held]) for i, name in enumerate(names)}


def recorded_noise(p: Parameters, log: dict[str, list[tuple[int, Symbols]]]) -> list[Symbols]:
    """z of f and of h, or of g, row by row, from what was drawn for each block of rows."""
    c = construction(p)
    draws = [log[f"noise {first}"] for first in range(0, c.rows, c.block_rows)]
    assert {bound for drawn in draws for bound, _ in drawn} == {p.field}
    tables = [np.concatenate(parts) for parts in zip(*([z for _, z in d] for d in draws), strict=True)]
    assert [z.shape for z in tables] == [(c.rows, p.colluders, c.width)] * len(c.share_names)
    return tables


def expected(p: Parameters, points: Points, secret: Secret, noise: list[Symbols]) -> dict[str, list]:
    """The oracle's shares."""
    place, mask, z = secret.place.tolist(), secret.mask.tolist(), [t.tolist() for t in noise]
    if p.construction == "permutation":
        rows = oracle.permutation_rows(place, mask, p.blocks)
        both = oracle.shares(rows, *z, points.alpha, points.beta, p.field)
        return {name: [[row[i] for row in user] for user in both] for i, name in enumerate("fh")}
    n = oracle.order_of_places(oracle.place_count(p.length, p.buckets), p.field)
    beta = oracle.bucket_points(p.buckets, points.beta, p.users, p.colluders)
    gamma, W = oracle.element_of_order(n, p.field), oracle.moment_count(p.users, p.picks, n)
    return {"g": oracle.moments_shares(place, mask, *z, points.alpha, beta, p.picks, gamma, W, p.field)}


def check_shares_of(p: Parameters, points: Points, name: str) -> None:
    recorder = Recorder(source(name))
    secret = draw_secret(p, recorder)
    shares = dealt(p, points, secret, recorder)
    noise = recorded_noise(p, recorder.log)
    assert {name: table.tolist() for name, table in shares.items()} == expected(p, points, secret, noise)


SETS = [(3, 2, 1), (4, 4, 2), (5, 3, 1), (5, 5, 4), (5, 2, 1)]
INPUTS = [
    {"L": 7, "K": 2},
    {"L": 6, "K": 6, "D": 1},
    {"L": 1, "K": 1},
    {"L": 9, "K": 3, "P": 1},
    {"L": 13, "K": 7, "P": 2},
    {"L": 60, "K": 6, "P": 3, "spare": 1},
]


@pytest.mark.parametrize("q", [13, 97, 65521, DEFAULT_FIELD, 2**32 - 5])
@pytest.mark.parametrize("sizes", INPUTS, ids=str)
@pytest.mark.parametrize("users", SETS, ids=str)
def test_shares_are_the_oracles_polynomials_bit_for_bit(
    users: tuple[int, int, int], sizes: dict[str, int], q: int
) -> None:
    if q == 13 and sizes["L"] == 60:
        sizes = {**sizes, "L": 24}
    p = round_of(*users, q, **sizes)
    check_shares_of(p, choose_points(p), f"{users} {sizes} {q}")


@pytest.mark.parametrize("sizes", [{"L": 5, "K": 2}, {"L": 20, "K": 5, "P": 1}], ids=str)
def test_shares_follow_any_points_not_only_the_default_ones(sizes: dict[str, int]) -> None:
    check_shares_of(round_of(4, 3, 1, 97, **sizes), Points((96, 3, 50, 12), (7, 0, 95)), "other points")


# The secret


@pytest.mark.parametrize("q", [97, DEFAULT_FIELD])
def test_a_secret_is_a_permutation_with_a_mask_for_every_coordinate(q: int) -> None:
    p, recorder = round_of(3, 2, 1, q, L=50, K=5), Recorder(source("secret"))
    secret = draw_secret(p, recorder)
    assert sorted(secret.place.tolist()) == list(range(50))
    ((bound, drawn),) = recorder.log["mask"]
    assert (bound, drawn.tolist()) == (q, secret.mask.tolist())
    assert len(secret.mask) == 50


@pytest.mark.parametrize("q", [97, 65521, DEFAULT_FIELD])
def test_a_secret_is_a_place_and_a_factor_that_is_not_zero_for_every_pick(q: int) -> None:
    p, recorder = round_of(3, 2, 1, q, L=50, K=20, P=2), Recorder(source("secret"))
    secret = draw_secret(p, recorder)
    assert set(recorder.log) == {"mask", "place"}, "streams of their own"
    ((n, places),), ((bound, factors),) = recorder.log["place"], recorder.log["mask"]
    assert (n, bound) == (oracle.order_of_places(5, q), q - 1)
    assert secret.place.tolist() == places.tolist()
    assert secret.mask.tolist() == [v + 1 for v in factors.tolist()], "each of 1, ..., q - 1 as often"
    assert len(secret.place) == len(secret.mask) == 20


@pytest.mark.parametrize("sizes", [{"L": 30, "K": 4}, {"L": 30, "K": 4, "P": 2}], ids=str)
def test_a_secret_that_nobody_draws_is_told_from_one_that_is_drawn(sizes: dict[str, int]) -> None:
    p = round_of(3, 2, 1, 97, **sizes)
    c, secret = construction(p), draw_secret(p, source("check"))
    assert c.check_secret(secret) == ""
    for name, value in (("place", c.index_bound), ("mask", 97), ("mask", 0), ("place", secret.place[1])):
        bad = {"place": secret.place.copy(), "mask": secret.mask.copy()}
        bad[name][0] = value
        fine = (name, value) == ("mask", 0) and not p.picks or value == secret.place[1] and bool(p.picks)
        assert bool(c.check_secret(Secret(**bad))) != fine


# Noise


BLOCKED = [{"L": 20, "K": 3}, {"L": 50, "K": 28, "P": 2}]


def in_small_blocks(monkeypatch: pytest.MonkeyPatch, symbols: int = 240) -> None:
    monkeypatch.setattr(BLOCK_SYMBOLS, symbols)
    monkeypatch.setattr(CHECK_BYTES, 8)


@pytest.mark.parametrize("sizes", BLOCKED, ids=str)
def test_every_table_of_every_block_has_noise_of_its_own(
    sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_blocks(monkeypatch)
    p = round_of(4, 3, 2, **sizes)
    c, recorder = construction(p), Recorder(source("own noise"))
    dealt(p, choose_points(p), draw_secret(p, source("own noise")), recorder)
    assert len(recorder.log) == math.ceil(c.rows / c.block_rows) >= 3
    drawn = np.concatenate([z.reshape(-1) for z in recorded_noise(p, recorder.log)])
    assert len(set(drawn.tolist())) == drawn.size, "of 2^32 values: a repeated one was copied"


def all_noise(q: int, *shape: int) -> list[Symbols]:
    """Every value that noise of this shape can take."""
    return [np.array(v, dtype=np.uint32).reshape(shape) for v in product(range(q), repeat=math.prod(shape))]


def views(p: Parameters, secret: Secret, noises: list[list[Symbols]], row: int) -> Symbols:
    """What each user holds of one row under each noise of it, the other rows without any: (noises, N, symbols)."""
    c, points = construction(p), choose_points(p)
    seen = []
    for noise in noises:
        tables = [np.zeros((c.rows, p.colluders, c.width), dtype=np.uint32) for _ in noise]
        for table, z in zip(tables, noise, strict=True):
            table[row] = z
        seen.append(np.concatenate([s[:, row] for s in dealt(p, points, secret, Given(tables)).values()], axis=1))
    return np.array(seen)


def is_uniform(view: Symbols, holders: tuple[int, ...], values: int) -> bool:
    """Whether these holders see all of so many values, and each as often as any other."""
    counts = Counter(map(tuple, view[:, list(holders)].reshape(len(view), -1).tolist()))
    return len(counts) == values and len(set(counts.values())) == 1


TINY = [
    ((2, 2, 1), 5, {"L": 1, "K": 1}),
    ((2, 2, 1), 5, {"L": 2, "K": 1}),
    ((3, 3, 1), 7, {"L": 2, "K": 1}),
    ((3, 3, 2), 7, {"L": 1, "K": 1}),
    ((2, 2, 1), 5, {"L": 4, "K": 1, "P": 1}),
    ((3, 2, 1), 7, {"L": 3, "K": 1, "P": 1}),
    ((3, 3, 2), 7, {"L": 4, "K": 2, "P": 1}),
]


def tiny_cases(users: tuple[int, int, int], q: int, sizes: dict[str, int]):
    """The parameters, every noise of a row, and secrets."""
    p = round_of(*users, q, **sizes)
    c = construction(p)
    noises = [list(z) for z in product(all_noise(q, p.colluders, c.width), repeat=len(c.share_names))]
    place = [(0,), (0, 1), (1, 0)][1 if c.rows > 1 else 0 :]
    secrets = [
        Secret(np.array(at[: c.rows], np.uint32), np.full(c.rows, mask, np.uint32))
        for at in place[: 2 if c.rows > 1 else 1]
        for mask in (1, 3, q - 1)
    ]
    return p, noises, secrets


@pytest.mark.parametrize(("users", "q", "sizes"), TINY, ids=str)
def test_what_t_users_hold_of_a_row_is_uniform_whatever_the_secret_and_what_more_hold_is_not(
    users: tuple[int, int, int], q: int, sizes: dict[str, int]
) -> None:
    p, noises, secrets = tiny_cases(users, q, sizes)
    N, T = p.users, p.colluders
    for secret in secrets:
        view = views(p, secret, noises, len(secret.place) - 1)
        assert all(is_uniform(view, holders, len(noises)) for holders in combinations(range(N), T))
        more = len(noises) ** (T + 1) // len(noises) ** T * len(noises)
        assert not any(is_uniform(view, holders, more) for holders in combinations(range(N), T + 1))


def no_noise(noise: list[Symbols]) -> list[Symbols]:
    return [np.zeros_like(z) for z in noise]


def one_noise_for_all(noise: list[Symbols]) -> list[Symbols]:
    """The same for f and h, or for all symbols of g."""
    return [noise[0]] * 2 if len(noise) == 2 else [np.full_like(noise[0], noise[0].reshape(-1)[0])]


def never_the_largest(noise: list[Symbols]) -> list[Symbols]:
    """Noise from a range that is one too small: 0 stands in for 4 and more."""
    return [np.where(noise[0] >= 4, 0, noise[0]), *noise[1:]]


@pytest.mark.parametrize("sabotage", [no_noise, one_noise_for_all, never_the_largest])
@pytest.mark.parametrize(("users", "q", "sizes"), TINY, ids=str)
def test_shares_with_spoilt_noise_are_found_not_to_be_uniform(
    users: tuple[int, int, int], q: int, sizes: dict[str, int], sabotage
) -> None:
    p, noises, secrets = tiny_cases(users, q, sizes)
    view = views(p, secrets[-1], [sabotage(noise) for noise in noises], 0)
    for holders in combinations(range(p.users), p.colluders):
        assert not is_uniform(view, holders, len(noises))
