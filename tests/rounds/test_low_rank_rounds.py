"""Rounds of low rank, by `aggregate` and by files: the sum is exact, the basis follows from the
last sum, and nothing that was given is lost."""

import math
import shutil
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import bases_oracle
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import topk_secagg as ts
from topk_secagg.algebra.bases import digest
from topk_secagg.gradients.low_rank import LEFT, RIGHT
from topk_secagg.rounds import bases as of_bases
from topk_secagg.rounds import following
from topk_secagg.storage import basis as basis_file
from topk_secagg.storage.ledger import Ledger
from topk_secagg.storage.residual import read as read_residual

USERS = range(1, 6)
SHAPES = {"conv": (4, 3, 2, 2), "dense": (6, 7), "bias": (5,), "tiny": (2, 9)}
LENGTH = sum(math.prod(shape) for shape in SHAPES.values())
SMALL = {"survivors": 3, "colluders": 1}


def gradients(seed, scale=1.0):
    """Of all users: the same matrix of rank one for each, and some noise."""
    rng = np.random.default_rng(seed)
    common = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    return [
        {
            name: (common[name] + 0.3 * rng.normal(size=shape)) * scale
            for name, shape in SHAPES.items()
        }
        for _ in USERS
    ]


def flat(gradient):
    return np.concatenate([np.asarray(gradient[name]).reshape(-1) for name in SHAPES])


def symbols_of(report, sparse):
    """The symbols of one user, or of the sum, as a list of n integers."""
    q = report.parameters.field
    assert sparse.index.tolist() == list(range(report.reduction.length))
    return [oracle.lifted(value, q) for value in sparse.value.tolist()]


def matrix_of(tensor):
    """G: of a convolution the rows are (out, h) and the columns (in, w)."""
    if tensor.ndim != 4:
        return tensor.reshape(len(tensor), -1)
    return tensor.transpose(0, 2, 1, 3).reshape(tensor.shape[0] * tensor.shape[2], -1)


def decoded(report, total):
    """The sum from its symbols, as fractions: y B' or B y, entry by entry."""
    found = []
    clips = report.ended.encoding.clips
    p = report.parameters
    for tensor, basis, clip, place in zip(
        report.reduction.tensors,
        report.ended.encoding.bases,
        clips,
        report.reduction.symbol_slices,
        strict=True,
    ):
        scale = math.floor((p.field - 1) // 2 / (p.users * (clip * p.max_weight)))
        y = np.array(total[place], dtype=object).reshape(tensor.symbols_shape)
        if tensor.kind == "whole":
            found += [Fraction(value, scale) for value in y.reshape(-1).tolist()]
            continue
        b = basis.astype(object)
        product = y @ b.T if report.reduction.side == RIGHT else b @ y
        shape = tensor.shape
        if len(shape) == 4:
            folded = product.reshape(shape[0], shape[2], shape[1], shape[3])
            product = folded.transpose(0, 2, 1, 3)
        found += [Fraction(int(v), scale << 20) for v in product.reshape(-1)]
    return found


class TestExact:
    @settings(max_examples=15, deadline=None)
    @given(
        st.integers(0, 99),
        st.integers(1, 3),
        st.sampled_from([251, 65521, 4281076801]),
        st.sampled_from([(), (2,)]),
        st.sampled_from([(), (5,)]),
    )
    def test_the_sum_is_that_of_the_quantised_projections(self, seed, rank, field, late, silent):
        """In three rounds of a series, whoever drops out."""
        last = None
        for number in range(3):
            how = {"after": last} if last else {**SMALL, "rank": rank, "field": field}
            report = ts.aggregate(
                gradients(seed + number),
                **how,
                drop_masking=late,
                drop_elimination=silent,
            )
            sums = [symbols_of(report, sparse) for sparse in report.sent.values()]
            total = symbols_of(report, report.ended.total)
            assert total == [sum(column) for column in zip(*sums, strict=True)]
            exact = np.array([float(value) for value in decoded(report, total)])
            assert np.array_equal(flat(report.total), exact)
            last = report

    def test_the_two_sides_take_turns_and_a_rank_may_change(self):
        first = ts.aggregate(gradients(0), **SMALL, rank=2)
        second = ts.aggregate(gradients(1), after=first)
        third = ts.aggregate(gradients(2), after=second, rank=3)
        assert [r.reduction.side for r in (first, second, third)] == [RIGHT, LEFT, RIGHT]
        assert [r.reduction.rank for r in (first, second, third)] == [2, 2, 3]
        fourth = ts.aggregate(gradients(3), after=third, density=0.5)
        assert (fourth.reduction.name, fourth.reduction.rank) == ("top-k", None)
        assert fourth.parameters.field == third.parameters.field


class TestBasis:
    @pytest.mark.parametrize("rank", [1, 3])
    def test_it_is_the_one_that_plain_integers_give(self, rank):
        """The next basis of every tensor by a program that shares no code."""
        first = ts.aggregate(gradients(0), **SMALL, rank=rank)
        second = ts.aggregate(gradients(1), after=first)
        total = np.array(symbols_of(first, first.ended.total), dtype=object)
        for name, before, place, basis in zip(
            SHAPES,
            first.reduction.tensors,
            first.reduction.symbol_slices,
            second.ended.encoding.bases,
            strict=True,
        ):
            if before.kind == "whole":
                assert basis.size == 0
                continue
            columns = total[place].reshape(before.symbols_shape).T.tolist()
            length = len(basis)
            expected = bases_oracle.next_basis(columns, length, rank, first.ended.name, name)
            assert basis.T.tolist() == expected

    def test_by_files_it_follows_from_the_last_sum_or_the_nonce(self, tmp_path):
        rounds = series(tmp_path, 3)
        sessions = [r.session for r in rounds]
        assert [s.reduction.side for s in sessions] == [RIGHT, LEFT, RIGHT]
        for before, there in pairwise(rounds):
            assert there.session.before == before.session.id
            known = of_bases.following(there.session, before)
            assert digest(known) == there.session.basis
        s = sessions[0]
        assert digest(following.first(s.reduction, s.layout, s.nonce).bases) == s.basis

    def test_after_a_round_without_a_sum_side_and_basis_stay(self, tmp_path):
        first, second = series(tmp_path, 2)
        second.aggregate_path.unlink()
        third = ts.init(tmp_path / "third", from_=second).round
        assert third.session.before == first.session.id
        assert third.session.reduction == second.session.reduction
        assert third.session.basis == second.session.basis
        smaller = ts.init(tmp_path / "smaller", from_=second, rank=1).round
        for kept, whole in zip(basis_file.read(smaller), basis_file.read(second), strict=True):
            if whole.size:
                assert np.abs(kept - whole[:, :1]).max() <= 2**20 * 2**-9  # it is perturbed

    def test_a_round_that_is_started_again_stays_as_it_is_when_a_sum_comes_late(self, tmp_path):
        first, second = series(tmp_path, 2)
        kept = second.aggregate_path.read_bytes()
        second.aggregate_path.unlink()
        third = ts.init(tmp_path / "third", from_=second)
        second.aggregate_path.write_bytes(kept)
        again = ts.init(tmp_path / "third", from_=second)
        assert (third.written, again.written) == (True, False)
        assert again.round.session.before == first.session.id

    def test_a_user_without_the_file_computes_it(self, tmp_path):
        first, second = series(tmp_path, 2)
        ledger = Ledger.read(second.ledger_path(1), second.session.id, 1)
        expected = of_bases.of_user(second, ledger)
        second.basis_path.unlink()
        assert all(map(np.array_equal, of_bases.of_user(second, ledger), expected))
        first.aggregate_path.unlink()
        with pytest.raises(ts.InputMissing) as caught:
            of_bases.of_user(second, ledger)
        assert "fetch it" in caught.value.hint

    @pytest.mark.parametrize("damage", ["bit", "other session", "missing"])
    def test_a_basis_that_cannot_be_used_is_refused(self, tmp_path, damage):
        first, second = series(tmp_path, 2)
        if damage == "bit":
            content = bytearray(second.basis_path.read_bytes())
            content[-5] ^= 1
            second.basis_path.write_bytes(content)
        elif damage == "missing":
            second.basis_path.unlink()
        else:
            shutil.copy(first.basis_path, second.basis_path)
        kind = ts.InputMissing if damage == "missing" else ts.BadData
        with pytest.raises(kind, match=r"basis\.h5"):
            basis_file.read(second)


def series(folder, count, **options):
    """Rounds of low rank by `run`, each after the one before."""
    rounds = []
    for number in range(count):
        how = {"from_": rounds[-1]} if rounds else {**SMALL, "rank": 2, **options}
        report = ts.run(folder / f"round-{number}", gradients(number), feedback=True, **how)
        rounds.append(report.round)
    return rounds


class TestConservation:
    """given = sent + kept + decayed, to 1e-12 of the magnitude."""

    @pytest.mark.parametrize("decay", [1.0, 0.9])
    def test_of_aggregate_over_twenty_rounds(self, decay):
        rng = np.random.default_rng(1)
        last, kept = None, dict.fromkeys(USERS, 0.0)
        given = np.zeros(LENGTH)
        sent = np.zeros(LENGTH)
        decayed = np.zeros(LENGTH)
        for number in range(20):
            weights = rng.uniform(0.5, 2, len(USERS)).tolist()
            own = gradients(number)
            late = [int(rng.integers(1, 6))] if number % 3 else []
            silent = [n for n in (1 + number % 5,) if n not in late]
            how = {"after": last} if last else {**SMALL, "rank": 2, "residuals": {}}
            report = ts.aggregate(
                own,
                **how,
                **({"rank": 1 + number % 3} if last else {}),
                weights=weights,
                feedback_decay=decay,
                drop_masking=late,
                drop_elimination=silent,
            )
            for n in report.survivors:
                given += weights[n - 1] * flat(own[n - 1])
                decayed += (1 - decay) * kept[n]
                kept[n] = flat(report.residuals[n])
            sent += flat(report.total)
            # the sum of one round is lost: it was sent all the same
            last = report if number != 7 else replace(report, ended=last.ended)
        magnitude = max(np.abs(given).max(), *(np.abs(k).max() for k in kept.values()))
        assert np.abs(sent + sum(kept.values()) + decayed - given).max() < 1e-12 * magnitude

    def test_of_run_with_a_failed_round_in_between(self, tmp_path):
        given = np.zeros(LENGTH)
        sent = np.zeros(LENGTH)
        before = None
        for number in range(6):
            own = gradients(number)
            how = {"from_": before} if before else {**SMALL, "rank": 2}
            report = ts.run(
                tmp_path / str(number),
                own,
                feedback=True,
                drop_masking=[5] if number == 2 else [],
                drop_elimination=[4] if number % 2 else [],
                **how,
            )
            before = report.round
            given += sum(flat(own[n - 1]) for n in report.decoded.survivors)
            sent += flat(report.total)
            if number == 3:  # whoever lost the sum goes on without it: it was sent all the same
                before.aggregate_path.unlink()
        kept = sum(
            read_residual(
                before,
                n,
                session=before.session.id,
                digest=Ledger.read(before.ledger_path(n), before.session.id, n).residual,
                length=LENGTH,
            )
            for n in USERS
        )
        assert np.abs(sent + kept - given).max() < 1e-12 * np.abs(given).max()

    def test_the_twin_that_keeps_the_projection_of_the_sum_loses_something(self, monkeypatch):
        """Were a residual what the rounding alone leaves, given would not be sent plus kept."""
        from topk_secagg.rounds.sending import Prepared

        own = gradients(0)
        honest = ts.aggregate(own, **SMALL, rank=1, residuals={})
        whole = sum(map(flat, own))
        kept = sum(flat(honest.residuals[n]) for n in USERS)
        assert np.abs(flat(honest.total) + kept - whole).max() < 1e-9
        monkeypatch.setattr(Prepared, "unsent", property(lambda self: 0.0 * self.flat))
        lossy = ts.aggregate(own, **SMALL, rank=1, residuals={})
        assert np.abs(flat(lossy.total) - whole).max() > 0.1


class TestConvergence:
    def test_a_matrix_of_rank_three_is_found_as_by_the_power_method(self):
        """The same gradient again and again: the sum of what is sent converges, and by the fifth
        round a round sends nearly all of it."""
        rng = np.random.default_rng(0)
        g = rng.normal(size=(40, 3)) @ rng.normal(size=(3, 30))
        g += 1e-3 * rng.normal(size=g.shape)
        last, errors = None, []
        for _ in range(5):
            how = {"after": last} if last else {**SMALL, "rank": 4}
            last = ts.aggregate([{"w": g}] * 5, **how)
            errors.append(np.linalg.norm(last.total["w"] - 5 * g) / np.linalg.norm(5 * g))
        assert errors[0] > 0.5
        assert errors[-1] < 5e-3
        best = np.linalg.norm(np.linalg.svd(g)[1][4:]) / np.linalg.norm(g)
        assert errors[-1] < 3 * best

    def test_on_a_flat_spectrum_the_residual_stays_within_two_m_over_r_gradients(self):
        m, rank = 24, 2
        g = np.linalg.qr(np.random.default_rng(0).normal(size=(m, m)))[0]
        last = None
        for _ in range(80):
            how = {"after": last} if last else {**SMALL, "rank": rank, "residuals": {}}
            last = ts.aggregate([{"w": g}] * 5, **how)
        most = max(np.linalg.norm(last.residuals[n]["w"]) for n in USERS)
        assert most < 2 * m / rank * np.linalg.norm(g)

    def test_opposing_users_keep_what_cancels_and_decay_bounds_it(self):
        """What two users send in opposite directions is in no sum, so that no basis ever finds
        it."""
        rng = np.random.default_rng(0)
        opposed = rng.normal(size=(12, 10))
        common = [np.outer(rng.normal(size=12), rng.normal(size=10)) for _ in range(2)]
        own = [{"w": common[0] + sign * opposed} for sign in (1, -1, 1, -1, 0)]

        def largest(decay):
            last = None
            for _ in range(60):
                how = {"after": last} if last else {**SMALL, "rank": 1, "residuals": {}}
                last = ts.aggregate(own, **how, feedback_decay=decay)
            return np.linalg.norm(last.residuals[1]["w"]) / np.linalg.norm(own[0]["w"])

        without, with_decay = largest(1.0), largest(0.95)
        assert without > 30
        assert with_decay < 20


class TestClips:
    def test_each_tensor_has_that_of_the_last_sum_on_the_new_basis(self, tmp_path):
        first = ts.run(tmp_path / "first", gradients(0), **SMALL, rank=2).round
        second = ts.init(tmp_path / "second", from_=first).round
        last = following.last_sum(first)
        reduction = second.session.reduction
        reduced = reduction.reduce(last.flat, basis_file.read(second))
        for place, clip, before in zip(
            reduction.symbol_slices, second.session.clips, first.session.clips, strict=True
        ):
            largest = max(abs(value) for value in reduced[place].tolist())
            assert clip == max(2 * largest, before / 16)
        byte = ts.init(tmp_path / "byte", from_=first, field=251).round
        assert byte.session.clips == tuple(
            max(0.25 * max(map(abs, reduced[place].tolist())), before / 16)
            for place, before in zip(reduction.symbol_slices, first.session.clips, strict=True)
        )

    def test_a_sum_of_zeros_makes_no_clip_of_zero(self, tmp_path):
        zeros = [{name: np.zeros(shape) for name, shape in SHAPES.items()}] * 5
        first = ts.run(tmp_path / "first", zeros, **SMALL, rank=2, clip=1.0).round
        second = ts.init(tmp_path / "second", from_=first).round
        assert set(second.session.clips) == {1 / 16}

    def test_feedback_clamps_and_counts(self):
        first = ts.aggregate(gradients(0), **SMALL, rank=2, residuals={})
        second = ts.aggregate(gradients(1, scale=50), after=first, clip_from_sum=0.5)
        assert second.clipped > 0
        with pytest.raises(ts.BadData, match="beyond the clip"):
            ts.aggregate(gradients(1, scale=50), **SMALL, rank=2, clip=1.0)


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"rank": 2, "construction": "permutation"}, "neither low rank nor whole tensors"),
            ({"whole": True, "construction": "permutation"}, "neither low rank nor whole tensors"),
            ({"rank": 2, "density": 0.1}, "both a density and a rank are given"),
            ({"rank": 0}, "a rank of 0"),
            ({"rank": 6}, "no matrix that a rank of 6"),
            ({"rank": 2, "whole_tensors": "*none*"}, "no tensor of the gradient has a name"),
            ({"rank": 2, "field": 251, "weights": [9.0, 1, 1, 1, 1]}, "steps for a clip"),
        ],
        ids=str,
    )
    def test_what_does_not_go_together_is_refused(self, options, said):
        with pytest.raises(ts.UsageError, match=said):
            ts.aggregate(gradients(0), **SMALL, **options)

    def test_a_rank_for_which_decoding_is_not_exact_is_refused(self):
        wide = [{"w": np.ones((40, 40))}] * 5
        with pytest.raises(ts.UsageError, match="a rank of 17 in a field"):
            ts.aggregate(wide, **SMALL, rank=17, field=4281076801)
        ts.aggregate(wide, **SMALL, rank=17)  # two-byte symbols

    def test_a_density_of_one_and_all_of_k_are_whole(self):
        for how in ({"density": 1.0}, {"top_k": LENGTH}, {"whole": True}):
            report = ts.aggregate(gradients(0), **SMALL, **how)
            assert report.reduction.name == "whole"
            assert np.allclose(flat(report.total), sum(map(flat, gradients(0))), atol=1e-6)

    def test_tensors_can_be_sent_whole_beside_either(self):
        for how in ({"density": 0.1}, {"rank": 2}):
            report = ts.aggregate(gradients(0), **SMALL, **how, whole_tensors=["bias", "den*"])
            kinds = dict(zip(SHAPES, report.reduction.kinds, strict=True))
            assert (kinds["dense"], kinds["bias"]) == ("whole", "whole")
            expected = sum(np.asarray(g["dense"]) for g in gradients(0))
            assert np.allclose(report.total["dense"], expected, atol=1e-2)

    def test_a_first_round_says_that_it_only_finds_the_basis(self, tmp_path):
        first = ts.aggregate(gradients(0), **SMALL, rank=2)
        assert any("only finds the basis" in note for note in first.notes)
        again = ts.aggregate(gradients(0), after=first)
        assert not any("only finds the basis" in note for note in again.notes)
        begun = ts.init(tmp_path / "r", users=5, **SMALL, rank=2, like=gradients(0)[0])
        assert any("only finds the basis" in note for note in begun.notes)
        assert any("65521" in note for note in begun.notes)
        top_k = ts.run(tmp_path / "k", gradients(0), **SMALL, top_k=3, construction="sketch").round
        begun = ts.init(tmp_path / "l", from_=top_k, rank=2)
        assert any("only finds the basis" in note for note in begun.notes)
