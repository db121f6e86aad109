"""`sketch`: everything from a dealer's 32 bytes to the sum, compared with
plain integers bit for bit; and every pattern of drop-outs decodes to the plain sum."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_rounds import (
    SteppedRound,
    a_deal,
    a_secret,
    any_input,
    any_inputs,
    dense,
    in_small_blocks,
    pairs,
    plain_sum,
    round_of,
    source,
    written_out,
)

from topk_secagg.algebra.field import DEFAULT_FIELD, SMALL_FIELD
from topk_secagg.algebra.randomness import CipherRandomness
from topk_secagg.errors import BadData
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.deal import Deal, commitment, next_key
from topk_secagg.protocol.held import KeyShares
from topk_secagg.protocol.messages import Masked, Points, Secret, Sparse
from topk_secagg.protocol.parameters import DEALINGS as DEALINGS_OF
from topk_secagg.protocol.parameters import SKETCH, Parameters
from topk_secagg.protocol.round import answer, deal_shares, run_round
from topk_secagg.protocol.sketch import Sketch

DEALINGS = DEALINGS_OF[SKETCH]
FIELDS = [13, 97, SMALL_FIELD, DEFAULT_FIELD, 2**32 - 5]
Table = list[list[int]]


def sketch_of(N: int, U: int, T: int, q: int = DEFAULT_FIELD, **raw: object) -> Parameters:
    return round_of(N, U, T, q, construct="sketch", **raw)


# A second implementation


@dataclass(frozen=True)
class Plain:
    """A dealer of `sketch` in plain integers, from the name of its source."""

    p: Parameters
    points: Points
    family: tuple[tuple[int, ...], ...]
    dealer: int
    name: str

    @cached_property
    def key(self) -> bytes:
        return oracle.child(bytes(32), self.name)

    @property
    def picked_from(self) -> int:
        return self.p.length - self.p.whole

    @property
    def places(self) -> int:
        """M, of the buckets of which some entries are picked."""
        return oracle.place_count(self.picked_from, self.p.buckets)

    @property
    def is_direct(self) -> bool:
        """W = M: the entries are their sketch."""
        return self.p.buckets == 0 or self.width == self.places

    @property
    def gamma(self) -> int:
        return oracle.element_of_order(
            oracle.order_of_places(self.places, self.p.field), self.p.field
        )

    @property
    def whole_buckets(self) -> int:
        if self.p.buckets:
            return oracle.ceil_div(self.p.whole, self.width)
        return oracle.buckets_of_whole(self.p.whole, self.p.survivors - self.p.colluders)

    @property
    def width(self) -> int:
        if self.p.buckets:
            return oracle.sketch_width(self.p.users, self.p.picks, self.places)
        return oracle.ceil_div(self.p.whole, self.whole_buckets)

    def answer_width(self, survivors: int) -> int:
        """W1: no more than what is needed, but all that a bucket of whole coordinates has."""
        if self.is_direct:
            return self.width
        whole = oracle.ceil_div(self.p.whole, self.whole_buckets) if self.p.whole else 0
        return max(oracle.sketch_width(survivors, self.p.picks, self.places), whole)

    @property
    def buckets(self) -> int:
        return self.p.buckets + self.whole_buckets

    @property
    def groups(self) -> int:
        return oracle.ceil_div(self.buckets, self.p.survivors - self.p.colluders)

    def drawn(self, block: tuple[int, ...]) -> Table:
        """The symbols of a key."""
        key = oracle.drawn_key(self.key, "", self.dealer, block)
        sharing = oracle.drawn_sharing(self.key)
        stream = oracle.key_symbols(key, "", self.dealer, block, sharing, self.p.field)
        return oracle.table(stream, self.groups, self.width)

    @cached_property
    def values(self) -> dict[int, Table]:
        """f at D + T points, where shares are written out."""
        p = self.p
        alpha = self.points.alpha
        masks = oracle.symbols(oracle.child(self.key, "mask"), p.field)
        noise = oracle.symbols(oracle.child(self.key, "noise 0"), p.field)
        D = len(self.points.beta)
        tables: dict[int, Table] = {x: [] for x in (*self.points.beta, *alpha[: p.colluders])}
        for _ in range(self.groups):
            for x, row in zip(self.points.beta, oracle.table(masks, D, self.width), strict=True):
                tables[x].append(row)
            rows = oracle.table(noise, p.colluders, self.width)
            for x, row in zip(alpha[: p.colluders], rows, strict=True):
                tables[x].append(row)
        return tables

    @cached_property
    def blocks(self) -> dict[tuple[int, ...], Table]:
        return {block: self.drawn(block) for block in self.family}

    def f(self, x: int) -> Table:
        q = self.p.field
        if self.p.dealing == "keys":
            return oracle.f_of_keys(self.blocks, self.points.alpha, x, q)
        return oracle.f_of_values(self.values, x, q)

    @cached_property
    def masks(self) -> Table:
        """Of all buckets of all groups, the unused ones too."""
        at_betas = [self.f(x) for x in self.points.beta]
        return oracle.bucket_masks(at_betas, self.groups * len(self.points.beta))

    def sketch(self, vector: list[int], width: int) -> Table:
        """The first symbols of the sketches of all buckets."""
        p = self.p
        picked = vector[: self.picked_from]
        if self.is_direct:
            table = oracle.table_of(picked, p.buckets, width)
        else:
            sums = list(enumerate(picked))
            table = oracle.sketch_of(sums, p.buckets, width, self.gamma, p.field)
        return table + oracle.table_of(vector[self.picked_from :], self.whole_buckets, width)

    def masked(self, sparse: Sparse) -> Table:
        p = self.p
        sketch = self.sketch(plain_sum(p, [sparse]), self.width)
        return oracle.mask_sketch(sketch, self.masks[: self.buckets], p.field)


def plain_dealers(whole: SteppedRound, name: str) -> dict[int, Plain]:
    return {
        n: Plain(whole.p, whole.points, deal.family, n, f"{name} {n}")
        for n, deal in whole.deals.items()
    }


def check_bit_for_bit(
    whole: SteppedRound, name: str, u1: tuple[int, ...], u2: tuple[int, ...]
) -> None:
    """Masks, shares, X, Y and the sum."""
    p = whole.p
    q = p.field
    plain = plain_dealers(whole, name)
    masked = whole.masked(u1)
    answers = whole.answers(u1)
    width = plain[1].width
    W1 = plain[1].answer_width(len(u1))
    shares = {(n, m): plain[m].f(whole.points.alpha[n - 1]) for n in plain for m in plain}
    for m, dealer in plain.items():
        assert whole.secrets[m].mask.tolist() == list(chain(*dealer.masks))
        assert all(whole.shares[n][m].tables[0].tolist() == shares[n, m] for n in plain)
    x = {m: plain[m].masked(whole.inputs[m]) for m in u1}
    for m in u1:
        assert masked[m].index.size == 0
        assert masked[m].value.reshape(plain[1].buckets, width).tolist() == x[m]
    y = {n: oracle.answer_sketch([shares[n, m] for m in u1], W1, q) for n in u2}
    assert {n: answers[n].tolist() for n in u2} == y
    sketch = oracle.decode_sketch(y, list(x.values()), whole.points.alpha, whole.points.beta, q)
    assert sketch == plain[1].sketch(whole.plain_sum(u1), W1)
    found = whole.decode(u1, {n: answers[n] for n in u2})
    assert found == (whole.plain_sum(u1), [])


SIZES = {  # D = 2
    "W = M": {"L": 14, "K": 5, "P": 2},
    "W < M": {"L": 50, "K": 3, "P": 1},
    "the last group is not full": {"L": 60, "K": 5, "P": 1},
    "one bucket": {"L": 12, "K": 1, "P": 1},
    "everything is sent whole": {"L": 71, "whole": 71},
    "some is sent whole": {"L": 61, "K": 3, "P": 1, "whole": 26},
    "some is sent whole, and W = M": {"L": 28, "K": 5, "P": 2, "whole": 14},
}


@pytest.mark.parametrize("dealing", DEALINGS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("q", FIELDS)
def test_masks_shares_and_messages_are_those_of_plain_integers_bit_for_bit(q, sizes, dealing):
    if q == 13 and sizes == SIZES["W < M"]:
        sizes = {**sizes, "L": 36}  # there are no more places
    name = f"bit for bit {q} {sizes}"
    whole = SteppedRound.of(sketch_of(5, 3, 1, q, **sizes, dealing=dealing), name)
    check_bit_for_bit(whole, name, (1, 2, 3, 5), (5, 2, 3))


@pytest.mark.parametrize("dealing", DEALINGS)
@pytest.mark.parametrize(("N", "U", "T"), [(3, 3, 1), (4, 3, 2), (4, 2, 1), (5, 5, 4), (5, 4, 1)])
def test_the_same_for_other_numbers_of_users(N, U, T, dealing):
    name = f"users {N} {U} {T}"
    whole = SteppedRound.of(sketch_of(N, U, T, SMALL_FIELD, L=45, K=5, P=1, dealing=dealing), name)
    check_bit_for_bit(whole, name, tuple(range(1, U + 1)), tuple(range(U, 0, -1)))


def test_the_sizes_are_what_they_are_called():
    def c(name: str) -> Sketch:
        found = construction(sketch_of(5, 3, 1, **SIZES[name]))
        assert isinstance(found, Sketch)
        return found

    direct = c("W = M")
    assert direct.width == direct.sparse.places == direct.answer_shape(4).width
    searched = c("W < M")
    assert searched.answer_shape(4).width < searched.width < searched.sparse.places
    assert searched.order > searched.sparse.places
    last = c("the last group is not full")
    assert last.searched
    assert last.p.buckets % last.p.blocks == 1
    one = c("one bucket")
    assert one.searched == 1
    assert one.p.picks == one.p.top_k
    assert c("everything is sent whole").sparse.buckets == 0
    some = c("some is sent whole")
    assert some.searched < some.buckets
    assert some.whole.length % some.width
    assert some.answer_shape(3).width == some.whole.places == 9 < some.width
    assert not c("some is sent whole, and W = M").searched


# Every pattern of drop-outs


def admissible(most_users: int) -> list[tuple[int, int, int]]:
    """All (N, U, T) with 1 <= T < U <= N."""
    return [
        (N, U, T) for N in range(2, most_users + 1) for U in range(2, N + 1) for T in range(1, U)
    ]


@pytest.mark.parametrize("dealing", DEALINGS)
@pytest.mark.parametrize(("N", "U", "T"), admissible(5))
def test_every_pattern_of_drop_outs_decodes_to_the_plain_sum(N, U, T, dealing):
    for q, sizes in ((oracle.next_prime(2 * N + 1), {"L": 7, "K": 5, "P": 2}),
                     (DEFAULT_FIELD, {"L": 61, "K": 3, "P": 1})):  # fmt: skip
        p = sketch_of(N, U, T, q, **sizes, dealing=dealing)
        whole = SteppedRound.of(p, f"{N} {U} {T} {q}")
        tried = 0
        for u1 in oracle.subsets(range(1, N + 1), U):
            expected = whole.plain_sum(u1)
            answers = whole.answers(u1)
            for u2 in oracle.subsets(u1, U):
                assert whole.decode(u1, {n: answers[n] for n in u2}) == (expected, [])
                tried += 1
        assert tried == sum(
            math.comb(N, a) * math.comb(a, b) for a in range(U, N + 1) for b in range(U, a + 1)
        )


# Any round


@dataclass
class Case:
    p: Parameters
    inputs: dict[int, Sparse]
    u1: list[int]
    u2: list[int]


@st.composite
def sizes_of_picks(draw: st.DrawFn, q: int, whole: int) -> dict[str, int]:
    if q >= SMALL_FIELD and draw(st.sampled_from([False, False, True])):
        P, M, B = 64, 1200, draw(st.integers(1, 2))  # more places than symbols
    else:
        M = draw(st.integers(1, min(q - 1, 40)) | st.just(min(q - 1, 300)))
        P = draw(st.integers(1, min(M, 4)) | st.sampled_from([1, min(M, 64)]))
        B = draw(st.integers(1, 7))
    fewest = (B - 1) * P + 1  # with which K there are B buckets
    L = draw(st.integers(max((M - 1) * B + 1, fewest), M * B))
    return {"L": L + whole, "K": min(draw(st.integers(fewest, B * P)), L), "P": P}


@st.composite
def cases(draw: st.DrawFn, dealing: str) -> Case:
    N = draw(st.integers(2, 8))
    U = draw(st.just(N) | st.integers(2, N) | st.integers(2, N))
    T = draw(st.just(U - 1) | st.integers(1, U - 1))
    q = draw(st.sampled_from([q for q in (5, 17, 97, SMALL_FIELD, DEFAULT_FIELD) if q > 2 * N]))
    whole = draw(st.sampled_from([0, 0, 1, 5, 40]))
    sizes = {"L": whole} if whole and draw(st.booleans()) else draw(sizes_of_picks(q, whole))
    p = sketch_of(N, U, T, q, **sizes, whole=whole, dealing=dealing)
    u1 = draw(st.permutations(range(1, N + 1)))[: draw(st.just(U) | st.integers(U, N) | st.just(N))]
    u2 = draw(st.permutations(u1))[: draw(st.just(U) | st.integers(U, len(u1)))]
    chance = random.Random(draw(st.integers(0, 2**32)))
    inputs = {n: any_input(p, chance) for n in u1}
    for n in u1[1:]:
        kind = draw(st.sampled_from(["own", "own", "nothing", "zeros", "minus the first"]))
        first = inputs[u1[0]]
        if kind == "nothing":
            inputs[n] = nothing(p)
        elif kind == "zeros":
            inputs[n] = Sparse(first.index, np.zeros_like(first.value))
        elif kind.startswith("minus"):
            minus = (-first.value.astype(np.int64) % q).astype(np.uint32)
            inputs[n] = Sparse(first.index, minus)
    return Case(p, inputs, u1, u2)


def nothing(p: Parameters) -> Sparse:
    """No picks, and zeros of what is sent whole."""
    index = np.arange(p.length - p.whole, p.length)
    return Sparse(index, np.zeros(index.size, dtype=np.uint32))


def edges(case: Case) -> dict[str, bool]:
    """Which of the edge cases an example is."""
    p = case.p
    c = construction(p)
    assert isinstance(c, Sketch)
    W1 = c.answer_shape(len(case.u1)).width
    picked = [picks_of(p, x) for x in case.inputs.values()]
    total = plain_sum(p, case.inputs.values())
    return {
        "W = M": p.buckets > 0 == c.searched,
        "W < M": c.searched > 0,
        "W1 < W": c.width > W1,
        "everything is sent whole": p.whole == p.length,
        "some is sent whole": 0 < p.whole < p.length,
        "some is sent whole, and W = M": 0 < p.whole < p.length and c.searched == 0,
        "B = 1 and P = K": p.buckets == 1 and p.picks == p.top_k,
        "B > 1": p.buckets > 1,
        "P = 64": p.picks == 64,
        "P = 64, W < M": p.picks == 64 and c.searched > 0,
        "P > 4": p.picks > 4,
        "fewer than P picks": any(min(counts) < p.picks for counts in picked if counts),
        "as many picks as all users together can have": any(
            sum(counts) == p.buckets * p.picks > 0 for counts in picked
        ),
        "nothing of one user": any(x.index.size == 0 for x in case.inputs.values()),
        "zeros": any(x.value.size and not x.value.all() for x in case.inputs.values()),
        "the sum is zero": not any(total),
        "U = N": p.survivors == p.users,
        "U = T + 1": p.survivors == p.colluders + 1,
        "U > T + 1": p.survivors > p.colluders + 1,
        "the last group is not full": c.buckets % p.blocks != 0 and c.buckets > p.blocks,
        "fewer buckets than a group has": c.buckets < p.blocks,
        "the last place is missing in some buckets": any(
            part.places * part.buckets > part.length for part in (c.sparse, c.whole)
        ),
        "K = L": p.top_k == p.length,
        "users drop out before the freeze": len(case.u1) < p.users,
        "users drop out after it": len(case.u2) < len(case.u1),
        "only U answer": len(case.u2) == p.survivors < len(case.u1),
        "the default field": p.field == DEFAULT_FIELD,
        "the small field": p.field == SMALL_FIELD,
        "a tiny field": p.field < 100,
    }


def picks_of(p: Parameters, sparse: Sparse) -> list[int]:
    """How many there are of each bucket."""
    counts = Counter(k % p.buckets for k in sparse.index.tolist() if k < p.length - p.whole)
    return [counts[b] for b in range(p.buckets)]


@pytest.mark.parametrize("dealing", DEALINGS)
def test_any_admissible_round_gives_the_plain_sum(dealing):
    """And every edge case is among the rounds, for each way of dealing."""
    reached: Counter[str] = Counter()

    @settings(max_examples=120)
    @given(cases(dealing))
    def check(case):
        reached.update(edges(case))  # True counts as one
        total = run_round(case.p, case.inputs, case.u1, case.u2, source("any"))
        assert dense(case.p, total) == plain_sum(case.p, case.inputs.values())

    check()
    if settings().derandomize:  # by chance one may be missing among 120 others
        assert [edge for edge, count in reached.items() if not count] == []


@pytest.mark.parametrize("dealing", DEALINGS)
@pytest.mark.parametrize("q", [SMALL_FIELD, DEFAULT_FIELD])
def test_with_one_bucket_and_p_as_large_as_k_the_sum_is_that_of_the_global_top_k(q, dealing):
    p = sketch_of(4, 3, 1, q, L=300, K=9, P=9, dealing=dealing)
    assert p.buckets == 1
    chance = np.random.default_rng(3)
    inputs = {}
    for n in range(1, 5):
        gradient = chance.permutation(300) - 150.5
        index = construction(p).select(gradient)
        assert index.tolist() == oracle.top_k(gradient.tolist(), 9)
        inputs[n] = Sparse(index, (2 * gradient[index]).astype(np.int64).astype(np.uint32) % q)
    total = run_round(p, inputs, (1, 2, 4), (1, 2, 4), source("global"))
    assert dense(p, total) == plain_sum(p, [inputs[n] for n in (1, 2, 4)])


@pytest.mark.parametrize("dealing", DEALINGS)
def test_sixty_four_picks(dealing):
    p = sketch_of(5, 3, 1, L=2000, K=150, P=64, dealing=dealing)
    assert construction(p).width < p.sizes.sparse.places
    inputs = any_inputs(p, "sixty-four")
    total = run_round(p, inputs, (1, 2, 3, 5), (1, 3, 5), source("sixty-four"))
    assert dense(p, total) == plain_sum(p, [inputs[n] for n in (1, 2, 3, 5)])


@pytest.mark.parametrize("dealing", DEALINGS)
def test_everything_of_a_small_gradient_can_be_sent(dealing):
    """K = L, and buckets with fewer coordinates than P."""
    p = sketch_of(3, 2, 1, 97, L=11, K=11, P=4, dealing=dealing)
    assert p.length // p.buckets < p.picks
    index = construction(p).select(np.ones(11))
    assert sorted(index.tolist()) == list(range(11))
    values = np.arange(11, dtype=np.uint32)
    inputs = {n: Sparse(index, values * n) for n in (1, 2, 3)}
    total = run_round(p, inputs, (1, 2, 3), (1, 3), source("everything"))
    assert dense(p, total) == [6 * k for k in range(11)]


def test_a_sum_that_cancels_to_nothing_is_decoded_as_nothing():
    p = sketch_of(4, 3, 1, L=100, K=4, P=2, dealing="keys")
    inputs = any_inputs(p, "cancel")
    inputs[3], inputs[4] = inputs[2], inputs[1]
    whole = SteppedRound.of(p, "cancel", inputs)
    assert whole.decode(range(1, 5), whole.answers(range(1, 5))) == ([0] * 100, [])


# In pieces


@pytest.mark.parametrize("dealing", DEALINGS)
@pytest.mark.parametrize("symbols", [1, 100, 333])
def test_a_round_is_the_same_however_much_is_held_at_a_time(symbols, dealing, monkeypatch):
    p = sketch_of(4, 3, 1, L=90, K=20, P=1, dealing=dealing)
    name = f"pieces {dealing}"
    whole = SteppedRound.of(p, name)
    u1 = (1, 2, 4)
    answers = whole.answers(u1)
    masks = {n: secret.mask.tolist() for n, secret in whole.secrets.items()}
    if dealing == "shares":
        monkeypatch.setattr(Sketch, "chunk_rows", construction(p).rows)  # part of the format
    in_small_blocks(monkeypatch, p, symbols)
    again = SteppedRound.of(p, name)
    assert {n: secret.mask.tolist() for n, secret in again.secrets.items()} == masks
    for n, y in again.answers(u1).items():
        assert np.array_equal(y, answers[n])
    assert again.decode(u1, answers) == (whole.plain_sum(u1), [])
    total = run_round(p, whole.inputs, u1, u1, source(name))
    assert dense(p, total) == whole.plain_sum(u1)


def test_a_stream_is_not_read_twice_nor_with_gaps():
    p = sketch_of(4, 3, 1, L=90, K=20, P=1, dealing="keys")
    deal = a_deal(p, "twice")
    c = construction(p)
    secret = a_secret(p, "twice")
    keys = {b: k for b, k in zip(deal.family, secret.keys, strict=True) if 2 in b}
    held = KeyShares(c, deal, 2, keys)
    held(np.arange(2, 5))
    with pytest.raises(ValueError, match="was passed"):
        held(np.arange(4, 6))
    with pytest.raises(ValueError, match="row after row"):
        held(np.array([6, 8]))


def test_a_share_is_not_computed_with_a_key_missing_or_one_of_another_block():
    """tests/secrecy has what an answer without a key's term gives away."""
    p = sketch_of(4, 3, 1, L=40, K=8, P=2, dealing="keys")
    deal = a_deal(p, "missing")
    keys = dict(zip(deal.family, a_secret(p, "missing").keys, strict=True))
    own = {block: key for block, key in keys.items() if 2 in block}
    KeyShares(construction(p), deal, 2, own)
    for block in own:
        fewer = {other: key for other, key in own.items() if other != block}
        with pytest.raises(ValueError, match=f"{len(fewer)} keys of user 2, who is in {len(own)}"):
            KeyShares(construction(p), deal, 2, fewer)
    with pytest.raises(ValueError, match="keys of user 2"):
        KeyShares(construction(p), deal, 2, keys)


# Labels


def test_every_part_of_a_label_gives_another_stream():
    points = Points((), ())
    deals = [
        Deal(points, session=session, dealer=dealer, sharing=sharing)
        for session, dealer, sharing in product(("a", "b"), (1, 11), ("r", "s"))
    ]
    blocks = [(1, 2), (12,), (1, 2, 3), (1,), (2,)]
    labels = [deal.symbols_label(block) for deal in deals for block in blocks]
    assert len(set(labels)) == len(labels)
    keys = {deal.key_label(block) for deal in deals for block in blocks}
    assert len(keys) == len(labels) // 2, "a key is the same however often a session is prepared"
    assert not keys & set(labels)


def test_commitments_and_the_keys_of_the_next_generation_are_those_of_hmac():
    key = bytes(range(32))
    assert commitment(key, 3, (1, 22)) == oracle.child(key, "commitment 3 1,22")
    assert next_key(key) == oracle.child(key, "next")


# What must not pass


def a_sketch() -> Parameters:
    return sketch_of(3, 2, 1, 97, L=40, K=8, P=2, dealing="shares")


def test_the_secret_gives_back_the_input_behind_x():
    for dealing, q in product(DEALINGS, (97, SMALL_FIELD, DEFAULT_FIELD)):
        p = sketch_of(3, 2, 1, q, L=50, K=9, P=2, dealing=dealing)
        for n, sparse in any_inputs(p, "unmask").items():
            secret = a_secret(p, f"unmask {n}")
            x = construction(p).mask(secret, sparse)
            construction(p).check_masked(x)
            behind = [pair for pair in pairs(sparse) if pair[1]]
            assert pairs(construction(p).unmask(secret, x)) == sorted(behind)


@pytest.mark.parametrize(
    ("index", "says"), [([0, 4, 8], "more than 2 picks"), ([0, 0], "picked twice")]
)
def test_an_input_with_too_many_picks_or_one_twice_is_not_masked(index, says):
    sparse = Sparse(np.array(index), np.ones(len(index), dtype=np.uint32))
    with pytest.raises(ValueError, match=says):
        construction(a_sketch()).mask(a_secret(a_sketch(), "picks"), sparse)


@pytest.mark.parametrize("what", ["shorter", "longer", "an index", "q", "the largest word"])
def test_an_x_that_no_honest_user_sends_is_refused(what):
    p = a_sketch()
    c = construction(p)
    x = c.mask(a_secret(p, "bad"), any_input(p, random.Random(1)))
    c.check_masked(x)
    value = x.value.copy()
    value[3] = {"q": 97, "the largest word": 2**32 - 1}.get(what, value[3])
    index = np.zeros(int(what == "an index"), dtype=np.uint32)
    if what == "shorter":
        value = value[:-1]
    if what == "longer":
        value = np.append(value, value[:1])
    with pytest.raises(BadData):
        c.check_masked(Masked(index, value))


def test_a_mask_beyond_the_field_is_recognised():
    p = a_sketch()
    secret = a_secret(p, "beyond")
    construction(p).check_secret(secret)
    secret.mask[5] = 97
    with pytest.raises(BadData, match="a mask is not below"):
        construction(p).check_secret(secret)


def test_an_answer_is_for_the_survivors_and_nobody_else():
    whole = SteppedRound.of(a_sketch(), "nobody else")
    shape = construction(whole.p).answer_shape(2)
    for senders in ((1,), (1, 2, 3)):
        held = {m: whole.shares[1][m] for m in senders}
        with pytest.raises(ValueError, match="for 2 survivors"):
            answer(whole.p, whole.masked((1, 2)), held, shape)


def test_a_sum_with_too_many_entries_is_refused():
    """A user that sends more than P picks, or noise, spoils the round: nobody is named."""
    p = sketch_of(4, 3, 1, L=200, K=8, P=2, dealing="keys")
    whole = SteppedRound.of(p, "too many")
    masked = whole.masked(range(1, 5))
    chance = np.random.default_rng(1)
    noise = chance.integers(0, p.field, masked[1].value.size).astype(np.uint32)
    honest = construction(p).mask
    spoilt = {id(whole.secrets[1]): Masked(masked[1].index, noise)}
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(
            construction(p),
            "mask",
            lambda secret, sparse: spoilt.get(id(secret)) or honest(secret, sparse),
        )
        with pytest.raises(BadData, match=r"no vector with at most|no coordinates"):
            whole.decode(range(1, 5), whole.answers(range(1, 5)))


@pytest.mark.parametrize(
    "beyond",
    [2 * 13 + 1, 2 * 14, 2 * 14 + 1],
    ids=["the last place of a short bucket", "a place that no bucket has", "and in a short one"],
)
def test_a_sum_with_a_value_at_no_coordinate_is_refused(beyond, monkeypatch):
    p = sketch_of(3, 2, 1, q=97, L=2 * 13 + 1, K=2, P=1)
    assert (p.buckets, p.sizes.sparse.places, p.sizes.width, p.order) == (2, 14, 6, 16)

    def entry(k: int) -> Sparse:
        return Sparse(np.array([k]), np.array([5], dtype=np.uint32))

    whole = SteppedRound.of(p, "beyond", {1: entry(0), 2: entry(26), 3: entry(2 * 12 + 1)})
    everybody = (1, 2, 3)
    assert whole.decode(everybody, whole.answers(everybody)) == (whole.plain_sum(everybody), [])
    spoilt = SteppedRound.of(p, "beyond", {**whole.inputs, 3: entry(beyond)})
    with pytest.raises(ValueError, match="in a bucket"):
        spoilt.masked(everybody)
    monkeypatch.setattr(Sketch, "_check_picks", lambda *_: None)  # a cheat's program
    with pytest.raises(BadData, match=r"no coordinates|no vector with at most"):
        spoilt.decode(everybody, spoilt.answers(everybody))


# What is wrong where the entries are their sketch

DIRECT = [name for name in SIZES if "whole" in name or name == "W = M"]


def changed_by(whole: SteppedRound, symbol: int, by: int) -> list[int]:
    """The sum, where a symbol of user 2's X is another one."""
    honest = construction(whole.p).mask

    def masked(secret: Secret, sparse: Sparse) -> Masked:
        x = honest(secret, sparse)
        if secret is whole.secrets[2]:
            x.value[symbol] = (int(x.value[symbol]) + by) % whole.p.field
        return x

    u1 = (1, 2, 3, 5)
    whole.sums.clear()
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(construction(whole.p), "mask", masked)
        return whole.decode(u1, whole.answers(u1))[0]


@pytest.mark.parametrize("name", DIRECT)
def test_a_symbol_that_no_coordinate_has_must_be_zero_in_the_sum(name):
    """And every other symbol moves one coordinate: nobody sees that an input is wrong."""
    p = sketch_of(5, 3, 1, **SIZES[name], dealing="shares")
    c = construction(p)
    assert isinstance(c, Sketch)
    whole = SteppedRound.of(p, name, {n: nothing(p) for n in range(1, 6)})
    read = c.answer_shape(4).width
    moved = []
    padding = 0
    for symbol in range(c.searched * c.width, c.entries):
        try:
            total = changed_by(whole, symbol, by=1)
        except BadData as error:
            assert "at places that are no coordinates" in str(error)  # noqa: PT017
            padding += 1
        else:
            assert any(total) == (symbol % c.width < read)
            moved += [total.index(1)] if any(total) else []
    first = p.length - p.whole if c.searched else 0
    assert sorted(moved) == list(range(first, p.length))
    assert padding > 0


@pytest.mark.parametrize("name", DIRECT)
def test_a_sum_larger_than_so_many_values_can_be_is_refused(name):
    p = sketch_of(5, 3, 1, **SIZES[name], dealing="shares")
    c = construction(p)
    assert isinstance(c, Sketch)
    whole = SteppedRound.of(p, name, {n: nothing(p) for n in range(1, 6)})
    symbol = c.searched * c.width  # of the first bucket whose entries are its sketch
    largest = 4 * p.largest  # of the sum of four users
    for value in (largest, -largest):
        assert changed_by(whole, symbol, by=value).count(value % p.field) == 1
    for value in (largest + 1, -largest - 1):
        with pytest.raises(BadData, match="larger than so many values can be"):
            changed_by(whole, symbol, by=value)


def test_without_these_checks_such_a_sum_would_be_believed(monkeypatch):
    """The twin."""
    p = sketch_of(5, 3, 1, **SIZES["everything is sent whole"], dealing="shares")
    c = construction(p)
    whole = SteppedRound.of(p, "twin", {n: nothing(p) for n in range(1, 6)})
    monkeypatch.setattr("topk_secagg.protocol.sketch.is_beyond", lambda *_: False)
    assert changed_by(whole, 0, by=4 * p.largest + 1).count(4 * p.largest + 1) == 1
    last = c.entries - 1
    with pytest.raises(BadData, match="no coordinates"):
        changed_by(whole, last, by=1)
    monkeypatch.setattr("topk_secagg.protocol.buckets.np.any", lambda _: False)
    assert not any(changed_by(whole, last, by=1))


@pytest.mark.parametrize("dealing", DEALINGS)
def test_an_auditor_finds_shares_off_the_polynomial_and_masks_that_are_not_the_senders(dealing):
    p = sketch_of(5, 3, 1, L=60, K=10, P=2, dealing=dealing)
    c = construction(p)
    deal = a_deal(p, "audit")
    secret = a_secret(p, "audit")
    held = written_out(p, deal, secret, source("audit"))
    tables = {"f": np.stack([shares.tables[0] for shares in held])}

    def check(users: list[int], secret: Secret | None) -> int:
        some = {"f": tables["f"][[m - 1 for m in users]]}
        return c.shared_places(deal.points, users, 0, some, secret).size

    for users in oracle.subsets([4, 1, 5, 2, 3], 3):
        assert check(users, secret) == check(users, None) == 0
    with pytest.raises(BadData, match="do not determine"):
        check([1, 2], None)
    for m in range(5):
        tables["f"][m, 1, 2] = (int(tables["f"][m, 1, 2]) + 1) % p.field
        with pytest.raises(BadData, match="one polynomial"):
            check([1, 2, 3, 4, 5], None)
        if m < 3:
            with pytest.raises(BadData, match="sender's secret"):
                check([1, 2, 3], secret)
        tables["f"][m, 1, 2] = (int(tables["f"][m, 1, 2]) - 1) % p.field
    with pytest.raises(BadData, match="sender's secret"):
        check([1, 2, 3], a_secret(p, "another"))


def test_a_key_is_drawn_from_the_dealers_own_stream_and_nothing_else():
    p = sketch_of(4, 3, 1, L=40, K=8, P=2, dealing="keys")
    deal = a_deal(p, "own", dealer=2)
    secret = construction(p).draw_secret(deal, source("own"))
    dealer_key = oracle.child(bytes(32), "own")
    assert list(secret.keys) == [
        oracle.drawn_key(dealer_key, "", 2, block) for block in deal.family
    ]
    assert len(set(secret.keys)) == len(deal.family)
    again = construction(p).draw_secret(deal, CipherRandomness(bytes(32)))
    assert not set(again.keys) & set(secret.keys)


def test_an_x_with_a_wrong_symbol_that_recovery_does_not_read_has_no_input():
    p = sketch_of(4, 3, 1, L=400, K=4, P=2)
    c = construction(p)
    assert c.width > c.answer_shape(1).width
    secret = a_secret(p, "later symbol")
    masked = c.mask(secret, any_input(p, random.Random(1)))
    masked.value[c.width - 1] = (int(masked.value[c.width - 1]) + 1) % p.field
    with pytest.raises(BadData, match="no sketch of at most 2 coordinates in every bucket"):
        c.unmask(secret, masked)


@pytest.mark.parametrize("dealing", DEALINGS)
def test_rows_of_a_share_may_be_passed_over(dealing):
    p = sketch_of(4, 3, 1, L=200, K=24, P=2, dealing=dealing)
    rows = construction(p).rows
    assert rows > 3
    deal = a_deal(p, "passed over")
    secret = a_secret(p, "passed over")
    whole = [held(np.arange(rows)) for held in deal_shares(p, deal, secret, source("passed over"))]
    for held, expected in zip(
        deal_shares(p, deal, secret, source("passed over")), whole, strict=True
    ):
        held(np.array([0]))
        for read, table in zip(held(np.arange(2, rows)), expected, strict=True):
            assert np.array_equal(read, table[2:])


@pytest.mark.parametrize("dealing", DEALINGS)
def test_an_auditor_compares_later_rows_with_the_masks_of_those_rows(dealing):
    p = sketch_of(4, 3, 1, L=200, K=24, P=2, dealing=dealing)
    c = construction(p)
    deal = a_deal(p, "later rows")
    secret = a_secret(p, "later rows")
    users = range(1, p.users + 1)
    written = written_out(p, deal, secret, source("later rows"))
    f = np.stack([share.tables[0] for share in written])
    c.shared_places(deal.points, users, first=1, shares={"f": f[:, 1:]}, secret=secret)
    with pytest.raises(BadData, match="not those of the sender's secret"):
        c.shared_places(deal.points, users, first=1, shares={"f": f[:, :-1]}, secret=secret)
