"""The shares: the oracle's polynomials bit for bit, from fresh noise, and checked by an auditor.

That any T of them are uniform is in tests/secrecy.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import combinations, product

import numpy as np
import numpy.typing as npt
import oracle
import pytest
from small_rounds import a_deal, a_secret, in_small_blocks, round_of, source, written_out

from topk_secagg.algebra.field import DEFAULT_FIELD
from topk_secagg.algebra.randomness import Randomness
from topk_secagg.errors import BadData
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.deal import Deal
from topk_secagg.protocol.messages import Points, Secret
from topk_secagg.protocol.parameters import Parameters

Symbols = npt.NDArray[np.uint32]
Shares = dict[str, Symbols]  # (N, rows, width) by name


class Recorder(Randomness):
    """Passes another source on and keeps bounds and results of `integers` under the child's
    label."""

    def __init__(self, inner: Randomness, label: str = "", log: dict[str, list] | None = None):
        self.inner = inner
        self.label = label
        self.log: dict[str, list[tuple[int, Symbols]]] = {} if log is None else log

    def fill(self, out: npt.NDArray[np.uint8]) -> None:
        self.inner.fill(out)

    def child(self, label: str) -> Recorder:
        return Recorder(self.inner.child(label), label, self.log)

    def integers(self, bound: int, out: Symbols) -> Symbols:
        self.inner.integers(bound, out)
        self.log.setdefault(self.label, []).append((bound, out.copy()))
        return out


def dealt(p: Parameters, points: Points, secret: Secret, noise: Randomness) -> Shares:
    deal = Deal(points=points, session="", dealer=1, sharing="")
    held = [shares.tables for shares in written_out(p, deal, secret, noise)]
    names = construction(p).share_names
    return {name: np.stack([tables[i] for tables in held]) for i, name in enumerate(names)}


def recorded_noise(p: Parameters, log: dict[str, list[tuple[int, Symbols]]]) -> list[Symbols]:
    """z of f and of h, or of f alone, row by row, from what was drawn for each block of rows."""
    c = construction(p)
    draws = [log[f"noise {first}"] for first in range(0, c.rows, c.chunk_rows)]
    assert {bound for drawn in draws for bound, _ in drawn} == {p.field}
    tables = [
        np.concatenate(parts) for parts in zip(*([z for _, z in d] for d in draws), strict=True)
    ]
    assert [z.shape for z in tables] == [(c.rows, p.colluders, c.width)] * len(c.share_names)
    return tables


def expected(
    p: Parameters, points: Points, secret: Secret, noise: list[Symbols]
) -> dict[str, list]:
    """The oracle's shares."""
    place = secret.place.tolist()
    mask = secret.mask.tolist()
    z = [t.tolist() for t in noise]
    if p.construction == "permutation":
        rows = oracle.permutation_rows(place, mask, p.blocks)
        both = oracle.shares(rows, *z, points.alpha, points.beta, p.field)
        return {name: [[row[i] for row in user] for user in both] for i, name in enumerate("fh")}
    W = construction(p).width
    rows = [mask[start : start + W] for start in range(0, len(mask), W)]
    D = len(points.beta)
    values = {beta: rows[d::D] for d, beta in enumerate(points.beta)}
    values |= {
        alpha: [row[t] for row in z[0]] for t, alpha in enumerate(points.alpha[: len(z[0][0])])
    }
    return {"f": [oracle.f_of_values(values, alpha, p.field) for alpha in points.alpha]}


def check_shares_of(p: Parameters, points: Points, name: str) -> None:
    recorder = Recorder(source(name))
    secret = construction(p).draw_secret(a_deal(p, name), recorder)
    shares = dealt(p, points, secret, recorder)
    noise = recorded_noise(p, recorder.log)
    assert {name: table.tolist() for name, table in shares.items()} == expected(
        p, points, secret, noise
    )


SETS = [(3, 2, 1), (4, 4, 2), (5, 3, 1), (5, 5, 4), (5, 2, 1)]
INPUTS = [
    {"L": 7, "K": 2},
    {"L": 6, "K": 6},
    {"L": 1, "K": 1},
    {"L": 9, "K": 3, "P": 1},
    {"L": 13, "K": 7, "P": 2},
    {"L": 60, "K": 6, "P": 3},
    {"L": 38, "K": 2, "P": 1, "whole": 14},
    {"L": 23, "whole": 23},
]


@pytest.mark.parametrize("q", [13, 97, 65521, DEFAULT_FIELD, 2**32 - 5])
@pytest.mark.parametrize("sizes", INPUTS, ids=str)
@pytest.mark.parametrize("users", SETS, ids=str)
def test_shares_are_the_oracles_polynomials_bit_for_bit(users, sizes, q):
    if q == 13 and sizes["L"] == 60:
        sizes = {**sizes, "L": 24}
    p = round_of(*users, q, **sizes)
    check_shares_of(p, construction(p).points(), f"{users} {sizes} {q}")


@pytest.mark.parametrize(
    ("sizes", "count"), [({"L": 5, "K": 2}, 3), ({"L": 20, "K": 5, "P": 1}, 2)], ids=str
)
def test_the_default_points_are_the_smallest_elements_betas_first(sizes, count):
    points = construction(round_of(5, 3, 1, 97, **sizes)).points()
    assert points == Points(alpha=tuple(range(count, count + 5)), beta=tuple(range(count)))


@pytest.mark.parametrize(
    ("sizes", "beta"),
    [({"L": 5, "K": 2}, (7, 0, 95)), ({"L": 20, "K": 5, "P": 1}, (7, 0))],
    ids=str,
)
def test_shares_follow_any_points_not_only_the_default_ones(sizes, beta):
    check_shares_of(round_of(4, 3, 1, 97, **sizes), Points((96, 3, 50, 12), beta), "other points")


@pytest.mark.parametrize("q", [97, DEFAULT_FIELD])
def test_a_secret_is_a_permutation_with_a_mask_for_every_coordinate(q):
    p = round_of(3, 2, 1, q, L=50, K=5)
    recorder = Recorder(source("secret"))
    secret = construction(p).draw_secret(a_deal(p, "secret"), recorder)
    assert sorted(secret.place.tolist()) == list(range(50))
    ((bound, drawn),) = recorder.log["mask"]
    assert (bound, drawn.tolist()) == (q, secret.mask.tolist())
    assert len(secret.mask) == 50


@pytest.mark.parametrize("q", [97, 65521, DEFAULT_FIELD])
def test_a_secret_of_a_sketch_is_a_mask_for_every_symbol_of_every_group(q):
    p = round_of(4, 3, 1, q, L=50, K=18, P=2)
    recorder = Recorder(source("secret"))
    secret = construction(p).draw_secret(a_deal(p, "secret"), recorder)
    ((bound, drawn),) = recorder.log["mask"]
    assert (bound, drawn.tolist()) == (q, secret.mask.tolist())
    assert secret.place.size == 0
    assert (p.buckets, construction(p).width) == (9, 6)
    assert len(secret.mask) == 10 * construction(p).width, "nine buckets, in groups of two"


@pytest.mark.parametrize(("name", "value"), [("place", 5), ("place", 30), ("mask", 97)])
def test_an_impossible_secret_is_recognised(name, value):
    p = round_of(3, 2, 1, 97, L=30, K=4)
    secret = a_secret(p, "check")
    construction(p).check_secret(secret)
    getattr(secret, name)[secret.place != 5] = value
    with pytest.raises(BadData, match=name):
        construction(p).check_secret(secret)


BLOCKED = [{"L": 20, "K": 3}, {"L": 220, "K": 60, "P": 2}]


@pytest.mark.parametrize("sizes", BLOCKED, ids=str)
def test_every_table_of_every_block_has_its_own_noise(sizes, monkeypatch):
    p = round_of(4, 3, 2, **sizes)
    in_small_blocks(monkeypatch, p)
    c = construction(p)
    recorder = Recorder(source("own noise"))
    dealt(p, construction(p).points(), a_secret(p, "own noise"), recorder)
    assert len(recorder.log) == math.ceil(c.rows / c.chunk_rows) >= 3
    drawn = np.concatenate([z.reshape(-1) for z in recorded_noise(p, recorder.log)])
    assert len(set(drawn.tolist())) == drawn.size, "of 2^32 values: a repeated one was copied"


@pytest.mark.parametrize("symbols", [1, 200, 333, 500])
@pytest.mark.parametrize("sizes", BLOCKED, ids=str)
def test_shares_are_those_of_their_noise_wherever_blocks_end(sizes, symbols, monkeypatch):
    p = round_of(4, 3, 1, 97, **sizes)
    in_small_blocks(monkeypatch, p, symbols)
    check_shares_of(p, construction(p).points(), "blocks")


@pytest.mark.parametrize("sizes", BLOCKED, ids=str)
def test_blocks_cover_every_row_once_and_stay_valid_while_the_next_is_drawn(sizes, monkeypatch):
    p = round_of(4, 3, 1, **sizes)
    in_small_blocks(monkeypatch, p)
    c = construction(p)
    rows = []
    before = None
    for block in construction(p).share_chunks(
        a_deal(p, "cover"), a_secret(p, "cover"), source("cover")
    ):
        assert block.start % c.check_rows == 0
        assert tuple(block.shares) == c.share_names
        assert {t.shape for t in block.shares.values()} == {(4, block.stop - block.start, c.width)}
        rows += range(block.start, block.stop)
        if before:
            assert all(
                np.array_equal(before[0].shares[name], kept) for name, kept in before[1].items()
            )
        before = block, {name: table.copy() for name, table in block.shares.items()}
    assert rows == list(range(c.rows))
    assert c.rows > 2 * c.chunk_rows


# What an auditor finds in shares


class Audited:
    """Honest shares of a sender of `permutation`, to be changed; test_sketch.py has the others."""

    def __init__(self, survivors: int = 4):
        self.p = p = round_of(5, survivors, 2, 4281076801, L=7, K=3)
        self.c = construction(p)
        self.points = construction(p).points()
        self.secret = a_secret(p, "audit")
        self.quorum = survivors
        self.shares = dealt(p, self.points, self.secret, source("audit"))

    def check(
        self,
        users: Sequence[int] = range(1, 6),
        rows: slice = slice(None),
        secret: Secret | None = None,
    ) -> list[int]:
        some = {name: table[[m - 1 for m in users]][:, rows] for name, table in self.shares.items()}
        first = rows.start or 0
        return self.c.shared_places(self.points, users, first, some, secret).tolist()

    def add(self, name: str, row: int, by: dict[int, int], block: int = 0) -> Audited:
        """Share something else: add these values to entries of a row at the point of the block."""
        other = copy.deepcopy(self)
        p = other.p
        table = other.shares[name]
        matrix = oracle.lagrange_matrix(self.points.beta, self.points.alpha, p.field)
        basis = [row[block] for row in matrix]
        for (m, l_m), (entry, v) in product(enumerate(basis), by.items()):
            table[m, row, entry] = (int(table[m, row, entry]) + v * l_m) % p.field
        return other


@pytest.fixture(scope="module", params=[4, 3], ids=["D = 2", "D = 1"])
def audited(request):
    return Audited(request.param)


def test_honest_shares_of_as_many_users_as_determine_them_are_accepted(audited):
    rows = audited.c.rows
    place = [audited.secret.place.tolist().index(i) for i in range(rows)]
    for users in oracle.subsets([3, 1, 5, 2, 4], audited.quorum):
        assert audited.check(users) == audited.check(users, secret=audited.secret) == place
    for first in range(rows):
        part = slice(first, min(first + 3, rows))
        assert audited.check(rows=part, secret=audited.secret) == place[part]
    for few in combinations(range(1, 6), audited.quorum - 1):
        with pytest.raises(BadData, match="do not determine"):
            audited.check(few)


def test_one_changed_symbol_is_found(audited):
    quorum = range(1, audited.quorum + 1)
    for name, table in audited.shares.items():
        _, rows, width = table.shape
        for m, i, j in product(range(5), range(min(rows, 3)), range(width)):
            kept = int(table[m, i, j])
            table[m, i, j] = (kept + 1 + 7 * j) % audited.p.field
            with pytest.raises(BadData, match="one polynomial"):
                audited.check()
            if (
                m < audited.quorum
            ):  # without an answer beyond the quorum the secret is needed for some
                with pytest.raises(BadData):
                    audited.check(quorum, secret=audited.secret)
            if m < audited.quorum and name == "f":
                with pytest.raises(BadData):
                    audited.check(quorum)
            table[m, i, j] = kept


def test_another_secret_is_found(audited):
    place = audited.secret.place
    mask = audited.secret.mask
    q = audited.p.field
    swapped = place.copy()
    swapped[[0, 1]] = place[[1, 0]]
    more = mask.copy()
    more[-1] = more[-1] % (q - 1) + 1
    others = (
        Secret(swapped, mask),
        Secret(place, more),
        a_secret(audited.p, "another user"),
    )
    for other in others:
        audited.c.check_secret(other)
        with pytest.raises(BadData, match="sender's secret"):
            audited.check(secret=other)


def test_a_selector_with_anything_but_one_1_is_found():
    audited = Audited()
    k = audited.check()[2]
    block, entry = divmod(k, 4)
    for by in ({entry: 1}, {entry: -1}, {(entry + 1) % 4: 1}, {(entry + 1) % 4: 5}):
        with pytest.raises(BadData, match="exactly one 1"):
            audited.add("f", 2, by, block).check()
    with pytest.raises(BadData, match="the selector times a mask"):
        audited.add("h", 2, {(entry + 1) % 4: 1}, block).check()
    moved = audited.add("f", 2, {entry: -1}, block).add("f", 2, {3: 1}, 1)
    with pytest.raises(BadData, match="the gradient's end"):
        moved.add("h", 2, {entry: -int(audited.secret.mask[k])}, block).check()
