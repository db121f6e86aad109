"""Wrong answers in a round: corrected and named within the limit, refused beyond it, never believed."""

from __future__ import annotations

import itertools

import numpy as np
import oracle
import pytest

from topk_secagg.algebra.lagrange import default_points
from topk_secagg.algebra.randomness import CipherRandomness
from topk_secagg.errors import BadData
from topk_secagg.gradients.sparsify import select_top
from topk_secagg.protocol import decoding
from topk_secagg.protocol.elimination import answer_blocks
from topk_secagg.protocol.masking import mask_input
from topk_secagg.protocol.messages import Points, Sparse
from topk_secagg.protocol.offline import draw_secret
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.protocol.round import InMemoryAnswer, deal

N = 8
KINDS = [
    ("permutation", "dense"),
    ("rotation", "dense"),
    ("rotation", "syndrome"),
    ("permutation", "syndrome"),
]


class Round:
    def __init__(self, construction, elimination, q=2**32 - 5):
        self.p = p = Parameters.choose(
            users=N, survivors=4, colluders=2, top_k=4, length=83, field=q, construction=construction,
            picks=2 if construction == "rotation" else None, elimination=elimination, clip=1.0,
        )  # fmt: skip
        self.points = Points(*map(tuple, default_points(N, 4, q)))
        rng = np.random.default_rng(1)
        source = {n: CipherRandomness(bytes([n] * 32)) for n in range(1, N + 1)}
        secrets = {n: draw_secret(p, source[n]) for n in source}
        dealt = {n: deal(p, self.points, secrets[n], source[n]) for n in source}
        inputs = {}
        for n in source:
            index = select_top(p, rng.uniform(-1, 1, p.length))
            value = np.where(index < p.length, rng.integers(q, size=index.size), 0).astype(np.uint32)
            inputs[n] = Sparse(index, value)
        masked = {n: mask_input(p, secrets[n], inputs[n]) for n in source}
        self.plain = oracle.plain_sum(
            [
                [(int(k), int(w)) for k, w in zip(x.index, x.value, strict=True) if k < p.length]
                for x in inputs.values()
            ],
            p.length,
            q,
        )
        self.answers = {
            n: np.concatenate(
                [b.answer for b in answer_blocks(p, masked, {m: dealt[m][n - 1] for m in source})]
            )
            for n in source
        }

    def decode(self, answers, **options):
        files = {n: InMemoryAnswer(y) for n, y in answers.items()}
        found = decoding.decode(self.p, self.points, N, files, CipherRandomness(bytes(32)), **options)
        total = [0] * self.p.length
        for k, w in zip(found.total.index, found.total.value, strict=True):
            total[int(k)] = int(w)
        return total, found.corrected

    def spoiled(self, wrong, how):
        rng = np.random.default_rng(2)
        answers = {n: y.copy() for n, y in self.answers.items()}
        for n in wrong:
            y = answers[n].reshape(-1)
            if how == "one symbol":
                y[n % y.size] = (int(y[n % y.size]) + 1) % self.p.field
            elif how == "all symbols":
                y[:] = rng.integers(self.p.field, size=y.size)
            else:  # the same lie for all: another polynomial
                y[:] = (y.astype(np.uint64) + 12345 + self.points.alpha[n - 1]) % self.p.field
        return answers


@pytest.fixture(scope="module", params=KINDS, ids=["-".join(kind) for kind in KINDS])
def round_(request):
    return Round(*request.param)


@pytest.mark.parametrize("how", ["one symbol", "all symbols", "a common lie"])
def test_every_one_or_two_wrong_users_of_eight_are_corrected_and_named(round_, how):
    for count in (1, 2):
        for wrong in itertools.combinations(range(1, N + 1), count):
            total, corrected = round_.decode(round_.spoiled(wrong, how))
            assert corrected == list(wrong)
            assert total == round_.plain


def test_without_errors_nobody_is_named(round_):
    assert round_.decode(round_.answers) == (round_.plain, [])


@pytest.mark.parametrize("how", ["one symbol", "all symbols"])
def test_beyond_the_limit_the_result_is_refused(round_, how):
    for wrong in itertools.combinations(range(1, N + 1), 3):
        with pytest.raises(BadData, match="at least 3 wrong"):
            round_.decode(round_.spoiled(wrong, how))


def test_errors_of_different_users_in_different_coordinates_count_together(round_):
    with pytest.raises(BadData, match="at least 3 wrong"):
        round_.decode(round_.spoiled((1, 4, 7), "one symbol"))


def test_strict_refuses_at_the_first_inconsistency(round_):
    assert round_.decode(round_.answers, strict=True) == (round_.plain, [])
    with pytest.raises(BadData, match="--strict"):
        round_.decode(round_.spoiled((3,), "one symbol"), strict=True)


def test_one_spare_answer_detects_but_cannot_name(round_):
    answers = {n: y for n, y in round_.spoiled((2,), "one symbol").items() if n <= 5}
    with pytest.raises(BadData, match="cannot be told"):
        round_.decode(answers)


def test_with_no_spare_answer_a_spoiled_one_still_shows_when_the_sum_is_not_sparse(round_):
    answers = {n: y for n, y in round_.spoiled((2,), "all symbols").items() if n <= 4}
    with pytest.raises(BadData, match="is wrong"):
        round_.decode(answers)


def test_small_fields_are_checked_as_surely():
    small = Round("permutation", "dense", q=97)
    for n in range(1, N + 1):
        total, corrected = small.decode(small.spoiled((n,), "one symbol"))
        assert (total, corrected) == (small.plain, [n])


def test_the_check_is_what_notices(round_, monkeypatch):
    """The twin: with the check taken out, a wrong answer goes through as a wrong sum or a late failure."""
    monkeypatch.setattr(decoding, "_wrong_users", lambda *_, **__: [])
    try:
        total, corrected = round_.decode(round_.spoiled((1,), "one symbol"))
    except BadData:
        return
    assert corrected == []
    assert total != round_.plain
