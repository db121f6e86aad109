"""The shares: equal to the oracle's polynomials bit for bit, and uniform for any T users."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import combinations, product

import numpy as np
import numpy.typing as npt
import oracle
import pytest

from topk_secagg.algebra.field import DEFAULT_FIELD
from topk_secagg.algebra.lagrange import default_points
from topk_secagg.algebra.randomness import CipherRandomness, Randomness
from topk_secagg.protocol.messages import Points, Secret
from topk_secagg.protocol.offline import draw_secret, share_blocks
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.protocol.round import deal

BLOCK_SYMBOLS = "topk_secagg.protocol.parameters._BLOCK_SYMBOLS"
Symbols = npt.NDArray[np.uint32]


class Recorder(Randomness):
    """Passes another source on and keeps what `integers` gave, in order, under the child's label."""

    def __init__(self, inner: Randomness, label: str = "", log: dict[str, list[Symbols]] | None = None):
        self.inner, self.label = inner, label
        self.log = {} if log is None else log

    def fill(self, out: npt.NDArray[np.uint8]) -> None:
        self.inner.fill(out)

    def child(self, label: str) -> Recorder:
        return Recorder(self.inner.child(label), label, self.log)

    def integers(self, bound: int, out: Symbols) -> Symbols:
        self.inner.integers(bound, out)
        self.log.setdefault(self.label, []).append(out.copy())
        return out


class Given(Randomness):
    """Gives out chosen noise: rows first, first+1, ... of z and then of z_tilde, for `noise first`."""

    def __init__(self, z: Symbols, z_tilde: Symbols, first: int = 0):
        self.tables, self.first = [z, z_tilde], first

    def fill(self, _out: npt.NDArray[np.uint8]) -> None:
        raise AssertionError("only whole blocks of noise are drawn")

    def child(self, label: str) -> Given:
        return Given(*self.tables, int(label.removeprefix("noise ")))

    def integers(self, bound: int, out: Symbols) -> Symbols:
        out[:] = self.tables.pop(0)[self.first : self.first + len(out)]
        assert out.max() < bound
        return out


def source(name: str) -> CipherRandomness:
    return CipherRandomness(bytes(32)).child(name)


def points_of(p: Parameters) -> Points:
    alpha, beta = default_points(p.users, p.survivors, p.field)
    return Points(tuple(alpha), tuple(beta))


def round_of(
    N: int, U: int, T: int, D: int, q: int, *, L: int, K: int, P: int | None = None, clip: float = 2.0**-20
) -> Parameters:
    return Parameters.choose(
        users=N, survivors=U, colluders=T, blocks=D, field=q, length=L, top_k=K, clip=clip, picks=P,
        construction="rotation" if P else "permutation",
    )  # fmt: skip


def oracle_rows(p: Parameters, secret: Secret) -> list[tuple[list[list[int]], int]]:
    place, mask = secret.place.tolist(), secret.mask.tolist()
    if p.construction == "permutation":
        return oracle.permutation_rows(place, mask, p.blocks)
    return oracle.rotation_rows(place, mask, p.blocks, p.picks, p.width)


def recorded_noise(p: Parameters, log: dict[str, list[Symbols]]) -> tuple[list, list]:
    """z and z_tilde, row by row, from what was drawn for each block of rows."""
    draws = [log[f"noise {first}"] for first in range(0, p.rows, p.block_rows)]
    assert all(len(drawn) == 2 for drawn in draws)
    z, z_tilde = (np.concatenate([drawn[at] for drawn in draws]) for at in (0, 1))
    assert z.shape == z_tilde.shape == (p.rows, p.colluders, p.width)
    return z.tolist(), z_tilde.tolist()


SETS = [(3, 2, 1, 1), (4, 4, 2, 2), (5, 3, 1, 2), (5, 5, 2, 3), (5, 5, 4, 1)]
INPUTS = [
    {"L": 7, "K": 2},
    {"L": 6, "K": 6},
    {"L": 1, "K": 1},
    {"L": 9, "K": 3, "P": 1},
    {"L": 13, "K": 4, "P": 2},
]


@pytest.mark.parametrize("q", [11, 97, 65537, 2**31 - 1, DEFAULT_FIELD])
@pytest.mark.parametrize("sizes", INPUTS, ids=str)
@pytest.mark.parametrize("users", SETS, ids=str)
def test_shares_are_the_oracles_polynomials_bit_for_bit(
    users: tuple[int, int, int, int], sizes: dict[str, int], q: int
) -> None:
    p = round_of(*users, q, **sizes)
    points = points_of(p)
    recorder = Recorder(source(f"{users} {sizes} {q}"))
    secret = draw_secret(p, recorder)
    dealt = deal(p, points, secret, recorder)
    expected = oracle.shares(
        oracle_rows(p, secret), *recorded_noise(p, recorder.log), points.alpha, points.beta, q
    )
    for m, held in enumerate(dealt):
        assert held.f.tolist() == [f for f, _ in expected[m]]
        assert held.h.tolist() == [h for _, h in expected[m]]


def test_shares_follow_any_points_not_only_the_default_ones() -> None:
    p = round_of(4, 3, 1, 2, 97, L=5, K=2)
    points = Points(alpha=(96, 3, 50, 12), beta=(7, 0, 95))
    recorder = Recorder(source("other points"))
    secret = draw_secret(p, recorder)
    dealt = deal(p, points, secret, recorder)
    expected = oracle.shares(
        oracle_rows(p, secret), *recorded_noise(p, recorder.log), points.alpha, points.beta, 97
    )
    assert [list(zip(s.f.tolist(), s.h.tolist(), strict=True)) for s in dealt] == expected


@pytest.mark.parametrize("sizes", [{"L": 5, "K": 2}, {"L": 7, "K": 4, "P": 2}], ids=str)
@pytest.mark.parametrize("q", [11, DEFAULT_FIELD])
def test_any_d_plus_t_shares_interpolate_back_to_the_selector_and_its_multiple(
    q: int, sizes: dict[str, int]
) -> None:
    p = round_of(5, 4, 1, 2, q, **sizes)
    points = points_of(p)
    secret = draw_secret(p, source("back"))
    dealt = deal(p, points, secret, source("back"))
    for holders in combinations(range(p.users), p.quorum):
        nodes = [points.alpha[m] for m in holders]
        for i, (blocks, mask) in enumerate(oracle_rows(p, secret)):
            f = [dealt[m].f[i].tolist() for m in holders]
            h = [dealt[m].h[i].tolist() for m in holders]
            for d, block in enumerate(blocks):
                assert oracle.interpolated_vectors(nodes, f, points.beta[d], q) == block
                scaled = [mask * v % q for v in block]
                assert oracle.interpolated_vectors(nodes, h, points.beta[d], q) == scaled


def test_fewer_than_d_plus_t_shares_do_not_interpolate_back() -> None:
    p = round_of(5, 4, 1, 2, DEFAULT_FIELD, L=4, K=2)
    points, secret = points_of(p), draw_secret(p, source("few"))
    dealt = deal(p, points, secret, source("few"))
    wrong = 0
    for holders in combinations(range(p.users), p.quorum - 1):
        nodes = [points.alpha[m] for m in holders]
        for i, (blocks, _) in enumerate(oracle_rows(p, secret)):
            f = [dealt[m].f[i].tolist() for m in holders]
            wrong += oracle.interpolated_vectors(nodes, f, points.beta[0], p.field) != blocks[0]
    assert wrong == math.comb(5, 2) * p.rows


# The secret


def test_a_secret_is_a_permutation_with_a_mask_for_every_coordinate() -> None:
    p = round_of(3, 2, 1, 1, 97, L=50, K=5)
    secret = draw_secret(p, source("secret"))
    assert sorted(secret.place.tolist()) == list(range(50))
    assert secret.mask.shape == (50,)
    assert secret.mask.max() < 97


def test_a_secret_is_a_place_and_a_mask_for_every_pick() -> None:
    p = round_of(3, 2, 1, 1, 97, L=50, K=20, P=2)
    secret = draw_secret(p, source("secret"))
    assert secret.place.shape == secret.mask.shape == (p.buckets * 2,)
    assert secret.place.max() < p.width
    assert secret.mask.max() < 97


def test_places_and_masks_come_from_streams_of_their_own() -> None:
    p = round_of(3, 2, 1, 1, DEFAULT_FIELD, L=50, K=20, P=2)
    recorder = Recorder(source("secret"))
    draw_secret(p, recorder)
    assert sorted(recorder.log) == ["mask", "place"]


# Noise


@pytest.mark.parametrize("sizes", [{"L": 6, "K": 2}, {"L": 12, "K": 6, "P": 2}], ids=str)
def test_noise_of_f_and_of_h_are_two_draws_for_every_block(
    sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BLOCK_SYMBOLS, 24)
    p = round_of(4, 3, 2, 1, DEFAULT_FIELD, **sizes)
    recorder = Recorder(source("two draws"))
    deal(p, points_of(p), draw_secret(p, source("two draws")), recorder)
    z, z_tilde = map(np.array, recorded_noise(p, recorder.log))
    assert len(recorder.log) == math.ceil(p.rows / p.block_rows) >= 3
    everything = [*z.reshape(-1).tolist(), *z_tilde.reshape(-1).tolist()]
    assert len(set(everything)) == len(everything), "2^32 - 5 values: a repeated one was copied"


def all_noise(q: int, T: int, width: int) -> Symbols:
    """Every value that the noise of one row can take: (q^(T width), T, width)."""
    values = list(product(range(q), repeat=T * width))
    return np.array(values, dtype=np.uint32).reshape(len(values), T, width)


Enumeration = tuple[Symbols, Symbols]


def separate(q: int, T: int, width: int) -> Enumeration:
    """z and z_tilde each over all their values, the one beside every value of the other."""
    noise = all_noise(q, T, width)
    pairs = np.array(list(product(range(len(noise)), repeat=2)))
    return noise[pairs[:, 0]], noise[pairs[:, 1]]


def shares_over(
    N: int, U: int, T: int, D: int, q: int, enumeration: Enumeration, slot: int, place: int, mask: int
) -> tuple[Symbols, Symbols, Parameters]:
    """f and h, (N, noises, width), of one secret selector under every noise of the enumeration.

    Each noise becomes a row of its own: D buckets, of which the one in `slot` is looked at.
    """
    z, z_tilde = (np.repeat(noise, D, axis=0) for noise in enumeration)
    rows, width = len(z), z.shape[2]
    p = round_of(N, U, T, D, q, L=rows * width, K=rows, P=1)
    assert (p.rows, p.width) == (rows, width)
    secret = Secret(np.full(rows, place, dtype=np.uint32), np.full(rows, mask, dtype=np.uint32))
    dealt = deal(p, points_of(p), secret, Given(z, z_tilde))
    f, h = (np.stack([getattr(held, name)[slot::D] for held in dealt]) for name in "fh")
    return f, h, p


def views(shares: list[Symbols], holders: tuple[int, ...]) -> Counter[tuple[int, ...]]:
    """How often these holders see what: one tuple of symbols for every noise."""
    seen = np.concatenate([s[m] for s in shares for m in holders], axis=1)
    return Counter(map(tuple, seen.tolist()))


def is_uniform(counts: Counter[tuple[int, ...]], values: int) -> bool:
    """Whether all of so many values are seen, and each as often as any other."""
    return len(counts) == values and len(set(counts.values())) == 1


TINY = [
    ((2, 2, 1, 1), 5, 1),
    ((2, 2, 1, 1), 5, 2),
    ((3, 3, 1, 2), 7, 1),
    ((3, 3, 1, 2), 7, 2),
    ((3, 3, 2, 1), 7, 1),
    ((3, 3, 2, 1), 7, 2),
]


@pytest.mark.parametrize(("users", "q", "width"), TINY, ids=str)
def test_what_t_users_hold_of_f_or_of_h_is_uniform_whatever_the_secret(
    users: tuple[int, int, int, int], q: int, width: int
) -> None:
    N, _, T, D = users
    noise = all_noise(q, T, width)
    for slot, place, mask in product(range(D), range(width), (0, 1, q - 1)):
        f, h, _ = shares_over(*users, q, (noise, noise[::-1]), slot, place, mask)
        for holders in combinations(range(N), T):
            assert is_uniform(views([f], holders), q ** (T * width))
            assert is_uniform(views([h], holders), q ** (T * width))


JOINT = [((2, 2, 1, 1), 5, 1), ((2, 2, 1, 1), 5, 2), ((3, 3, 1, 2), 7, 1), ((3, 3, 2, 1), 7, 1)]


@pytest.mark.parametrize(("users", "q", "width"), JOINT, ids=str)
def test_what_t_users_hold_of_f_and_h_together_is_uniform_whatever_the_secret(
    users: tuple[int, int, int, int], q: int, width: int
) -> None:
    N, _, T, D = users
    for slot, place, mask in product(range(D), range(width), (0, 3)):
        f, h, _ = shares_over(*users, q, separate(q, T, width), slot, place, mask)
        for holders in combinations(range(N), T):
            assert is_uniform(views([f, h], holders), q ** (2 * T * width))


@pytest.mark.parametrize(("users", "q", "width"), TINY, ids=str)
def test_what_more_than_t_users_hold_is_not_uniform(
    users: tuple[int, int, int, int], q: int, width: int
) -> None:
    N, _, T, _ = users
    noise = all_noise(q, T, width)
    f, _, _ = shares_over(*users, q, (noise, noise), 0, 0, 1)
    for holders in combinations(range(N), T + 1):
        assert not is_uniform(views([f], holders), q ** ((T + 1) * width))


# Sabotage: the checks above catch noise that is missing, short or shared


def no_noise(z: Symbols, z_tilde: Symbols) -> Enumeration:
    return np.zeros_like(z), np.zeros_like(z_tilde)


def one_noise_for_both(z: Symbols, z_tilde: Symbols) -> Enumeration:
    return z, z


def never_the_largest(z: Symbols, z_tilde: Symbols) -> Enumeration:
    """Noise from a range that is one too small: 0 stands in for q - 1."""
    return np.where(z == z.max(), 0, z).astype(np.uint32), z_tilde


@pytest.mark.parametrize("sabotage", [no_noise, one_noise_for_both, never_the_largest])
@pytest.mark.parametrize(("users", "q", "width"), JOINT, ids=str)
def test_shares_with_spoilt_noise_are_found_not_to_be_uniform(
    users: tuple[int, int, int, int],
    q: int,
    width: int,
    sabotage: Callable[[Symbols, Symbols], Enumeration],
) -> None:
    N, _, T, _ = users
    spoilt = sabotage(*separate(q, T, width))
    f, h, _ = shares_over(*users, q, spoilt, 0, 0, 3)
    for holders in combinations(range(N), T):
        assert not is_uniform(views([f, h], holders), q ** (2 * T * width))


def test_without_noise_a_single_share_shows_the_secret_place() -> None:
    nothing = np.zeros((1, 1, 4), dtype=np.uint32)
    for place in range(4):
        f, _, _ = shares_over(3, 2, 1, 1, 97, (nothing, nothing), 0, place, 5)
        assert all(np.flatnonzero(f[m, 0]).tolist() == [place] for m in range(3))


# Blocks of rows


BLOCKED = [{"L": 20, "K": 3}, {"L": 50, "K": 28, "P": 2}]


def collected(p: Parameters, points: Points, secret: Secret, noise: Randomness) -> tuple[Symbols, Symbols]:
    dealt = deal(p, points, secret, noise)
    return np.stack([s.f for s in dealt]), np.stack([s.h for s in dealt])


@pytest.mark.parametrize("sizes", BLOCKED, ids=str)
def test_shares_do_not_depend_on_where_blocks_end_given_the_noise(
    sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    p = round_of(4, 4, 1, 2, DEFAULT_FIELD, **sizes)
    points, secret = points_of(p), draw_secret(p, source("blocks"))
    shape = (p.rows, p.colluders, p.width)
    z, z_tilde = (source(n).integers(p.field, np.empty(shape, dtype=np.uint32)) for n in ("z", "z~"))
    results, sizes_seen = [], set()
    for symbols in (1, 200, 333, 500, 1 << 20):
        monkeypatch.setattr(BLOCK_SYMBOLS, symbols)
        sizes_seen.add(p.block_rows)
        results.append(collected(p, points, secret, Given(z, z_tilde)))
    assert len(sizes_seen) >= 4
    for f, h in results[1:]:
        assert np.array_equal(f, results[0][0])
        assert np.array_equal(h, results[0][1])


@pytest.mark.parametrize("sizes", BLOCKED, ids=str)
def test_sharing_goes_on_at_any_block_with_the_same_shares(
    sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BLOCK_SYMBOLS, 240)
    p = round_of(4, 4, 1, 2, DEFAULT_FIELD, **sizes)
    points, secret = points_of(p), draw_secret(p, source("resume"))
    whole = [(first, f.copy(), h.copy()) for first, f, h in share_blocks(p, points, secret, source("resume"))]
    assert len(whole) >= 3
    assert whole[-1][1].shape[1] < p.block_rows, "the last block is a short one"
    for at, (start, _, _) in enumerate(whole):
        rest = share_blocks(p, points, secret, source("resume"), start=start)
        for (first, f, h), again in zip(whole[at:], rest, strict=True):
            assert again.start == first
            assert np.array_equal(again.f, f)
            assert np.array_equal(again.h, h)


@pytest.mark.parametrize("sizes", BLOCKED, ids=str)
def test_blocks_cover_every_row_once_and_rotation_keeps_groups_whole(
    sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BLOCK_SYMBOLS, 240)
    p = round_of(4, 4, 1, 2, 97, **sizes)
    rows = []
    for block in share_blocks(p, points_of(p), draw_secret(p, source("cover")), source("cover")):
        assert block.f.shape == block.h.shape == (p.users, block.f.shape[1], p.width)
        assert block.start % (p.picks * p.blocks or 1) == 0
        rows += range(block.start, block.start + block.f.shape[1])
    assert rows == list(range(p.rows))


def test_a_block_stays_valid_while_the_next_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BLOCK_SYMBOLS, 240)
    p = round_of(4, 4, 1, 2, DEFAULT_FIELD, L=20, K=3)
    blocks = share_blocks(p, points_of(p), draw_secret(p, source("turns")), source("turns"))
    before = next(blocks)
    kept = before.f.copy(), before.h.copy()
    for block in blocks:
        assert np.array_equal(before.f, kept[0])
        assert np.array_equal(before.h, kept[1])
        before, kept = block, (block.f.copy(), block.h.copy())


def test_every_block_has_noise_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BLOCK_SYMBOLS, 1)
    p = round_of(3, 2, 1, 1, DEFAULT_FIELD, L=6, K=2)
    recorder = Recorder(source("own"))
    deal(p, points_of(p), draw_secret(p, source("own")), recorder)
    assert list(recorder.log) == [f"noise {row}" for row in range(6)]
