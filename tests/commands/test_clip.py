"""The clip: where it comes from, who is beyond it, what rounding adds; a second `run`."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from played import (
    EXAMPLE,
    call,
    contents,
    datasets,
    document,
    flip,
    must,
    rewrite,
    words,
    write_tensors,
)

import topk_secagg as ts
from topk_secagg.gradients.tensors import Tensor
from topk_secagg.rounds import play as play_step
from topk_secagg.rounds import run as run_step

SMALL = words("--survivors 3 --colluders 1 --top-k 2")


@pytest.fixture
def gradients(tmp_path):
    """gradients([0.5, 3.64, 1.0]): a folder with a vector of four coordinates for each user."""

    def make(sizes, folder="gradients"):
        (tmp_path / folder).mkdir(exist_ok=True)
        for n, size in enumerate(sizes, start=1):
            np.save(tmp_path / folder / f"user-{n}.npy", np.array([size, 0.125, -0.25, 0.0]))
        return tmp_path / folder

    return make


@pytest.fixture
def run(tmp_path):
    """The arguments of `run` for a folder of gradients."""

    def command(folder, *more, into="round"):
        return ("run", tmp_path / into, "--gradients", folder, *SMALL, *more)

    return command


class TestOfARun:
    def test_without_one_it_is_the_largest_magnitude_and_a_line_says_so(
        self, gradients, run, tmp_path
    ):
        said = must(*run(gradients([0.5, -3.64, 1.0]), "--json"))
        assert "the clip is 3.64, the largest magnitude of all gradients; one step" in said.err
        assert (said.json["clip"], said.json["clipped"]) == (3.64, 0)
        assert ts.Workspace(tmp_path / "round").session.clips == (3.64,)

    @pytest.mark.parametrize("how", ["permutation", "sketch"])
    def test_residuals_and_weights_are_included(self, tmp_path, how):
        """What is not sent in one round makes the next one's values larger: none is clipped."""
        more = ("--feedback", "--json", "--weights", tmp_path / "weights.csv")
        (tmp_path / "weights.csv").write_text("1,1\n2,5\n3,0.5\n")
        folder = tmp_path / "gradients"
        folder.mkdir()
        for user in (1, 2, 3):
            np.save(folder / f"user-{user}.npy", np.array([0.125, -0.25, *[0.0] * 98]))
        options = ("--survivors", 3, "--colluders", 1, "--top-k", 1, "--construction", how)
        clips = []
        for number in range(6):
            into = tmp_path / f"round-{number}"
            again = ("--from", tmp_path / f"round-{number - 1}", "--top-k", 1)
            said = must("run", into, "--gradients", folder, *(again if number else options), *more)
            assert said.json["clipped"] == 0
            clips.append(said.json["clip"])
        assert "gradients, residuals included" in said.err
        assert max(clips) > 0.25 == clips[0]

    def test_a_repeated_call_keeps_the_clip_of_the_session(self, gradients, run, tmp_path):
        folder = gradients([3.0, 2.0, 1.0])
        command = run(folder, "--feedback", "--json")
        first = must(*command)
        before = contents(tmp_path)
        again = must(*command)
        assert "the clip is 3, as session.json says" in again.err
        assert again.json["clip"] == first.json["clip"] == 3.0
        assert contents(tmp_path) == before

    def test_all_users_beyond_it_are_named_with_the_one_value_that_would_do(
        self, gradients, run, refuses
    ):
        folder = gradients([0.5, 3.64, 1.0, -2.0])
        said = refuses(65, *run(folder, "--clip", 1)).err
        beyond = "values of users 2 (user-2.npy), 4 (user-4.npy) are beyond the clip of 1"
        assert f"{beyond}: the largest is 3.64" in said
        assert "run with --saturate, or start a new round with --clip 3.7\n" in said
        must(*run(folder, "--clip", 3.7))  # in the same folder
        assert (
            must(*run(folder, "--clip", 1, "--saturate", "--json", into="b")).json["clipped"] == 2
        )

    def test_with_feedback_values_beyond_it_are_clamped_and_sent_later(
        self, gradients, run, tmp_path
    ):
        """Refusing would drop honest users whose residual has grown."""
        first = must(*run(gradients([5.0, 0.5, 0.5]), "--feedback", "--clip", 1, "--json"))
        assert first.json["clipped"] == 1
        small = ("--gradients", gradients([0.0, 0.0, 0.0], "small"))
        series = ("--from", tmp_path / "round", "--feedback", "--clip", 8)
        must("run", tmp_path / "next", *small, *series)
        sent = datasets(tmp_path / "next/aggregate.h5")
        assert sent["real"][sent["index"] == 0] == pytest.approx([4.0], abs=1e-6)


class TestStartingAgain:
    def test_a_run_that_stopped_before_a_secret_was_drawn_can_change_everything(
        self, gradients, run, tmp_path
    ):
        folder = gradients([0.5, 3.64, 1.0, 2.0])
        for bad, code in (
            (("--clip", 1), 65),
            (("--clip", 4, "--drop-masking", "1,2"), 69),
            (("--clip", 4, "--drop-elimination", "1,2"), 69),
        ):
            assert call(*run(folder, *bad)).code == code
            assert not (tmp_path / "round" / "session.json").exists()
        must(*run(folder, "--clip", 5))

    def test_identities_that_do_not_fit_leave_no_session(self, new_round):
        r = new_round(sealed=True)
        kept = {n: r.identity(n).read_bytes() for n in r.recipe.everybody}
        for n in kept:
            r.identity(n).write_bytes(kept[n % len(kept) + 1])
        result = call(*r.run())
        assert (result.code, "does not hold the keys" in result.err) == (65, True)
        assert not (r.folder / "session.json").exists()
        assert not list(r.folder.glob("secrets/*/*.h5"))
        for n, identity in kept.items():
            r.identity(n).write_bytes(identity)
        must(*r.run())

    def test_once_a_secret_is_drawn_the_session_stays(
        self, gradients, run, refuses, tmp_path, monkeypatch
    ):
        folder = gradients([0.5, 0.75, 1.0])

        def crash(*_, **__):
            raise RecursionError

        with monkeypatch.context() as patch:
            patch.setattr(play_step, "freeze", crash)
            assert call(*run(folder, "--clip", 1)).code == 1
        assert (tmp_path / "round" / "session.json").exists()
        assert "clip is 1 there and 2 here" in refuses(77, *run(folder, "--clip", 2)).err
        must(*run(folder, "--clip", 1))

    def test_the_twin_in_which_it_would_not_stay_strands_what_was_drawn(
        self, gradients, run, tmp_path, monkeypatch
    ):
        """Were a session taken back whose secrets exist, another one would find foreign secrets."""

        def crash(*_, **__):
            raise RecursionError

        with monkeypatch.context() as patch:
            patch.setattr(play_step, "freeze", crash)
            call(*run(gradients([0.5, 0.75, 1.0]), "--clip", 1))
        assert list((tmp_path / "round" / "secrets").glob("user-*"))
        (tmp_path / "round" / "session.json").unlink()
        result = call(*run(gradients([0.5, 0.75, 1.0]), "--clip", 2))
        assert (result.code, ": its series is " in result.err) == (65, True)

    def test_a_session_of_init_is_never_taken_back(self, gradients, run, refuses, tmp_path):
        """It may have been sent to others."""
        folder = gradients([0.5, 3.64, 1.0])
        must("init", tmp_path / "round", "--users", 3, "--like", folder / "user-1.npy", *SMALL)
        refuses(65, *run(folder), says="beyond the clip of 1")
        refuses(65, *run(folder, "--clip", 1), says="beyond the clip of 1")
        assert "clip is 1 there and 4 here" in refuses(77, *run(folder, "--clip", 4)).err

    def test_a_session_that_another_run_has_taken_back_is_not_used(
        self, gradients, run, tmp_path, monkeypatch
    ):
        """Between reading session.json and taking the lock."""
        folder = gradients([0.5, 0.75, 1.0])
        honest = play_step.check_clips

        def taken_back(*given):
            honest(*given)
            (tmp_path / "round" / "session.json").unlink()

        monkeypatch.setattr(play_step, "check_clips", taken_back)
        assert call(*run(folder)).code == 66
        assert list((tmp_path / "round" / "secrets").glob("user-*")) == []
        monkeypatch.setattr(run_step, "_check_unchanged", lambda _: None)
        assert call(*run(folder)).code == 0, "the twin: a round without its session.json"
        assert not (tmp_path / "round" / "session.json").exists()


class TestFromTheSum:
    def test_it_is_f_times_the_largest_magnitude_of_the_sum_by_the_largest_weight(
        self, gradients, run, tmp_path
    ):
        (tmp_path / "weights.csv").write_text("1,1\n2,4\n3,1\n")
        must(*run(gradients([0.5, -1.5, 0.5]), "--weights", tmp_path / "weights.csv"))
        command = ("init", tmp_path / "next", "--from", tmp_path / "round")
        said = must(*command, "--clip-from-sum", 2, "--json")
        assert said.json["clip"] == pytest.approx(2 * 5.0 / 4, abs=1e-6)
        assert "the clip is 2.5, 2 times what the sum" in said.err
        old, new = (document(tmp_path / name / "session.json") for name in ("round", "next"))
        others = {name for name in new if new[name] != old[name]}
        assert others == {"nonce", "before", "series", "layout"}
        (tensor,) = old["layout"]
        assert new["layout"] == [{**tensor, "clip": said.json["clip"]}]
        must(*command, "--clip-from-sum", 2)  # again
        must("offline", tmp_path / "next", "--user", "all", "--from", tmp_path / "round")

    def test_a_clip_can_be_given_anew(self, gradients, run, refuses, tmp_path):
        must(*run(gradients([0.5, -1.5, 0.5])))
        command = ("init", tmp_path / "next", "--from", tmp_path / "round")
        assert must(*command, "--clip", 7, "--json").json["clip"] == 7
        assert "clip is 7 there and 8 here" in refuses(77, *command, "--clip", 8).err

    def test_where_there_is_no_sum_nothing_is_started(self, gradients, run, refuses, tmp_path):
        must(*run(gradients([0.5, -1.5, 0.5])))
        done = tmp_path / "round"
        command = ("init", tmp_path / "next", "--from", done)
        for more in ("0", "-1", "nan", "inf", "x"):
            refuses(2, *command, "--clip-from-sum", more, says="clip")
        both_given = refuses(2, *command, "--clip-from-sum", 2, "--clip", 1).err
        assert "either --clip C or --clip-from-sum F" in both_given
        alone = refuses(2, "init", tmp_path / "next", *SMALL, "--length", 4, "--clip-from-sum", 2)
        assert "give --from too" in alone.err
        shutil.copy(done / "aggregate.h5", tmp_path / "whole.h5")
        flip(done / "aggregate.h5", -1)
        refuses(65, *command, "--clip-from-sum", 2, says="aggregate.h5")
        (done / "aggregate.h5").unlink()
        said = refuses(66, *command, "--clip-from-sum", 2).err
        assert "aggregate.h5 is not there" in said
        assert "decode that round first; if it has no sum, choose a clip: --clip C" in said

        def empty(_, content):
            for name in ("index", "value", "real"):
                content[name] = content[name][:0]

        shutil.copy(tmp_path / "whole.h5", done / "aggregate.h5")
        rewrite(done / "aggregate.h5", empty)
        kept = must(*command, "--clip-from-sum", 2, "--json").json["clip"]
        assert kept == 1.5 / 16  # a sum of zeros lowers the clip by no more

    def test_the_sum_of_another_round_is_refused(self, gradients, run, refuses, tmp_path):
        for name in ("round", "other"):
            must(*run(gradients([0.5, -1.5, 0.5]), into=name))
        shutil.copy(tmp_path / "other/aggregate.h5", tmp_path / "round/aggregate.h5")
        command = ("init", tmp_path / "n", "--from", tmp_path / "round", "--clip-from-sum", 2)
        refuses(65, *command, says="belongs to another session")


class TestRounding:
    def test_run_and_mask_warn_when_it_adds_much_and_tell_the_number(
        self, gradients, run, tmp_path
    ):
        folder = gradients([0.001, 0.002, -0.001])
        said = must(*run(folder, "--field", 65521, "--clip", 1000, "--json"))
        assert said.json["rounding_error"] > 0.05
        assert "topk-secagg: warning: rounding is expected to add " in said.err
        assert "(rms) to the values that a user sends: the clip of 1000 is too large" in said.err
        earlier = ("--from", tmp_path / "round")
        must("init", tmp_path / "b", *earlier)
        must("offline", tmp_path / "b", "--user", "all", *earlier)
        masked = must(
            "mask", tmp_path / "b", "--user", 1, "--gradient", folder / "user-1.npy", "--json"
        )
        assert masked.json["rounding_error"] > 0.05
        assert "(rms) to the values that user 1 sends" in masked.err

    def test_they_say_nothing_where_it_adds_little(self, gradients, run):
        said = must(*run(gradients([0.51, 3.1, 1.0]), "--field", 65521, "--json"))
        assert 0 < said.json["rounding_error"] < 0.05
        assert "rounding is expected" not in said.err


class TestNumbersAgree:
    def test_init_has_one_figure_for_the_same_files(self, tmp_path):
        options = words("--users 5 --survivors 3 --colluders 1 --top-k 2 --length 400")
        said = must("init", tmp_path / "round", *options)
        (reason,) = [line for line in said.err.splitlines() if "offline files take " in line]
        figure = reason.rpartition("offline files take ")[2]
        assert f"all files of all users take about {figure}\n" in said.out
        facts = must("init", tmp_path / "round", *options, "--json").json
        planned = must("plan", *options, "--json").json["best"]
        assert facts["all_bytes"] == planned["all_bytes"]
        assert facts["pair_bytes"] == planned["pair_bytes"]

    @pytest.mark.parametrize(("dtype", "each"), [("bfloat16", 2), ("float16", 2), ("float64", 8)])
    def test_a_plain_gradient_has_the_bytes_of_its_type(self, tmp_path, dtype, each):
        kind = "float32" if dtype == "bfloat16" else dtype
        values = np.linspace(-1, 1, 500).astype(kind)
        files = [
            write_tensors(tmp_path / f"{n}.pt", [Tensor("w", dtype, values)]) for n in range(3)
        ]
        said = must("run", tmp_path / "round", "--gradients", *files, *SMALL)
        unit = f"{500 * each / 1000:.3g} kB"
        assert f"a plain gradient has {unit}" in said.out
        again = must("run", tmp_path / "round", "--gradients", *files, *SMALL, "--json")
        assert again.json["plain_bytes"] == 500 * each


class TestDensity:
    def test_one_is_asked_about_and_one_point_zero_is_everything(self, refuses, tmp_path):
        options = ("--users", 5, *words("--survivors 3 --colluders 1 --length 8"))
        said = refuses(2, "init", tmp_path / "round", *options, "--density", "1").err
        assert "a density of 1 may mean 1 % of the entries, or all of them" in said
        assert "--density 0.01, --density 1.0 or --top-k K" in said
        for bad in ("2", "0", "1.5", "nan", "x", "-1"):
            refuses(2, "init", tmp_path / "round", *options, "--density", bad, says="density")
        found = must("init", tmp_path / "round", *options, "--density", "1.0", "--json").json
        assert found["reduction"] == "whole"

    def test_both_k_and_a_density_are_too_much(self, refuses, tmp_path):
        options = ("--users", 5, *SMALL, "--length", 8)
        said = refuses(2, "init", tmp_path / "round", *options, "--density", "0.5").err
        assert "both K and a density are given" in said
        neither = ("--users", 5, *words("--survivors 3 --colluders 1 --length 8"))
        refuses(2, "init", tmp_path / "r", *neither, says="either K, a density or a rank is needed")


def test_the_worked_example_needs_no_clip(tmp_path):
    found = must("run", tmp_path / "round", "--gradients", EXAMPLE, *SMALL, "--json").json
    largest = max(float(np.abs(np.load(path)).max()) for path in EXAMPLE.glob("*.npy"))
    assert found["clip"] == largest
