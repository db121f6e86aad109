"""One call for several users, and `run` for all of them: the same files for any number of jobs."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from deterministic import drawn_from
from played import (
    EXAMPLE,
    attributes,
    call,
    changed,
    contents,
    datasets,
    document,
    every,
    must,
    words,
)

from topk_secagg.storage.workspace import Workspace

SMALL = words("--survivors 3 --colluders 1 --top-k 2")


@every
class TestSeveralUsers:
    @pytest.mark.parametrize("jobs", [1, 3])
    def test_one_call_writes_the_same_files_as_one_a_user(self, round_at, new_round, jobs):
        with drawn_from(7):
            one_by_one = round_at("decoded", name="drawn", answering=(1, 2, 3, 4))
        r = new_round("together", masking=(1, 2, 3, 4))
        with drawn_from(7):
            self.play_together(r, "--jobs", jobs)
        assert contents(r.folder) == contents(one_by_one.folder)

    def play_together(self, r, *at_once):
        must(*r.init())
        must("offline", r.folder, "--user", "4,1-2", *at_once)
        must("offline", r.folder, "--user", "all", *at_once)
        gradients = ("--gradients", r.inputs / "gradients")
        must("mask", r.folder, "--user", "1-2", *gradients, *at_once)
        must("mask", r.folder, "--user", "3,4,3", *gradients, *at_once)
        must(*r.freeze())
        must("eliminate", r.folder, "--user", "all", *at_once)  # all survivors
        must(*r.decode())

    def test_users_that_fail_are_named_at_the_end_and_the_others_are_done(self, round_at, tmp_path):
        r = round_at("offline")
        shutil.copytree(r.inputs / "gradients", tmp_path / "gradients")
        (r.folder / "secrets/user-02.h5").unlink()
        np.save(tmp_path / "gradients/user-04.npy", np.full(r.recipe.length, np.nan))
        call_all = ("mask", r.folder, "--user", "all", "--gradients", tmp_path / "gradients")
        for flags in ((), ("--json",), ("-q",)):
            result = call(*call_all, *flags)
            assert result.code == 66
            lines = result.err.splitlines()
            assert [line[:31] for line in lines[::2]] == [
                "topk-secagg: user 2 (exit 66): ", "topk-secagg: user 4 (exit 65): "
            ]  # fmt: skip
            assert all(line.startswith("hint: ") for line in lines[1::2])
            if flags == ("--json",):
                assert result.json["schema"] == "topk-secagg/mask/1"
                assert [user["user"] for user in result.json["users"]] == [1, 3, 5]
                assert [(f["user"], f["exit_code"]) for f in result.json["failed"]] == [
                    (2, 66),
                    (4, 65),
                ]
        assert [path.name for path in sorted(r.folder.glob("masked/*"))] == [
            f"user-{n:02}.h5" for n in (1, 3, 5)
        ]


NOT_A_LIST = "invalid value for '--drop-{phase}': '{users}' is not a list of users"


class TestInvalidUsers:
    @pytest.mark.parametrize("step", ["offline", "mask", "eliminate"])
    @pytest.mark.parametrize(
        ("users", "says"),
        [
            ("9", "there is no user 9 in this round"),
            ("6", "there is no user 6 in this round"),
            ("0", "there is no user 0 in this round"),
            ("1-9", "there is no user 6 in this round"),
            ("", "--user names nobody"),
            (",", "--user names nobody"),
            *(
                (users, f"invalid value for '--user': '{users}' is not a list of users")
                for users in (
                    *("-1", "1.5", "one", "1-", "-", "3-1", "1;2"),
                    *("9" * 20, "1-" + "9" * 20),
                    *("\u0661", "1-\u0663", "1,\uff12"),  # digits of other scripts
                )
            ),
        ],
    )
    def test_users_that_do_not_exist(self, refuses, round_at, step, users, says):
        r = round_at("frozen")
        more = ("--gradients", r.inputs / "gradients") if step == "mask" else ()
        refuses(2, step, r.folder, "--user", users, *more, says=says)

    @pytest.mark.parametrize("user", ["\u0661", "0_1", "1.0", "1" * 10])
    @pytest.mark.parametrize("command", ["forget", "status", "freeze"])
    def test_what_only_python_takes_for_a_number_names_no_user(
        self, refuses, round_at, command, user
    ):
        says = f"invalid value for '--user': '{user}' is not a valid integer"
        refuses(2, command, round_at("masked").folder, "--user", user, says=says)

    def test_what_belongs_to_one_user_is_not_given_to_several(self, round_at, refuses):
        r = round_at("offline")
        gradients = ("--gradients", r.inputs / "gradients")
        mask_both = ("mask", r.folder, "--user", "1,2")
        one = ("--gradient", r.gradient(1))
        refuses(2, *mask_both, *one, says="--gradient belongs to one user")
        either = "give either --gradient FILE or --gradients DIR"
        refuses(2, *r.mask(1), *gradients, says=either)
        refuses(2, "mask", r.folder, "--user", 1, says=either)
        no_jobs = ("offline", r.folder, "--user", "all", "--jobs", 0)
        refuses(2, *no_jobs, says="invalid value for '--jobs': 0")

    def test_a_folder_without_a_gradient_for_every_user(self, round_at, refuses, tmp_path):
        r = round_at("offline")
        (tmp_path / "few").mkdir()
        for n in (1, 2, 3):
            shutil.copy(r.gradient(n), tmp_path / "few")
        mask_all = ("mask", r.folder, "--user", "all", "--gradients")
        refuses(2, *mask_all, tmp_path / "few", says="3 gradients in /few for 5 users")
        refuses(66, *mask_all, tmp_path / "nowhere", says="/nowhere does not exist")


def save(folder: Path, names: list[str], values: list[float] | None = None) -> Path:
    """Gradients of four coordinates, all alike, under these names."""
    folder.mkdir()
    for i, name in enumerate(names):
        np.save(folder / name, np.full(4, values[i] if values else 0.125 * (i + 1)))
    return folder


class TestGradientsOfARun:
    def test_files_of_a_folder_go_in_natural_order_of_their_names(self, tmp_path):
        names = ["user_10.npy", "user_2.npy", "user_1.npy"]
        folder = save(tmp_path / "gradients", names)
        (folder / ".hidden.npy").write_bytes(b"")
        (folder / "notes.txt").write_text("not a gradient")
        said = must(
            "run",
            tmp_path / "round",
            "--gradients",
            folder,
            *words("--survivors 3 --colluders 1 --top-k 2"),
        )
        assert "users: 1 user_1.npy, 2 user_2.npy, 3 user_10.npy" in said.out
        found = must("run", tmp_path / "round", "--gradients", folder, *SMALL, "--json").json
        assert found["gradients"] == {
            str(n): str(folder / name)
            for n, name in enumerate(("user_1.npy", "user_2.npy", "user_10.npy"), start=1)
        }

    def test_files_that_are_listed_go_in_their_order(self, tmp_path):
        listed = [EXAMPLE / f"user-{n:02}.npy" for n in (3, 1, 5, 2, 4)]
        found = must("run", tmp_path / "round", "--gradients", *listed, *SMALL, "--json").json
        assert list(found["gradients"].values()) == list(map(str, listed))

    def test_a_stray_file_among_the_gradients_is_refused_by_name(self, refuses, tmp_path):
        folder = save(
            tmp_path / "gradients",
            ["user_1.npy", "user_2.npy", "user_3.npy", "sum.npy", "old_2.npz.npy"],
        )
        said = refuses(65, "run", tmp_path / "round", "--gradients", folder, *SMALL).err
        assert "user_#.npy" in said
        assert "old_2.npz.npy, sum.npy" in said

    def test_the_sum_is_not_written_among_the_gradients(self, refuses, tmp_path):
        folder = save(tmp_path / "gradients", ["user_1.npy", "user_2.npy", "user_3.npy"])
        refuses(
            2,
            "run",
            tmp_path / "round",
            "--gradients",
            folder,
            *SMALL,
            "--output",
            folder / "sum.npy",
            says="/gradients/sum.npy would lie among the gradients",
        )
        assert not (tmp_path / "round").exists()

    def test_all_gradients_are_checked_before_anything_is_shared(self, refuses, tmp_path):
        folder = save(tmp_path / "gradients", ["1.npy", "2.npy", "3.npy"], [0.5, 0.25, 3.7])
        must("init", tmp_path / "round", "--users", 3, "--length", 4, *SMALL)
        said = refuses(
            65, "run", tmp_path / "round", "--gradients", folder, "--length", 4, *SMALL
        ).err
        assert "3.npy" in said
        assert "the largest is 3.7" in said
        advice = "a clip of 3.7: run with --saturate, or start a new round with --clip 3.7"
        assert advice in said
        must("run", tmp_path / "round", "--gradients", folder, "--length", 4, *SMALL, "--saturate")

    @pytest.mark.parametrize(
        ("bad", "says"),
        [
            ("--output sum.txt", "no writer for '.txt' files"),
            ("--users 4", "5 gradients for 4 users"),
            ("--top-k 9", "cannot select 9 of 4 coordinates"),
            ("--mean", "give --output FILE"),
            *(
                (f"--drop-{phase} {users}", says.format(phase=phase, users=users))
                for phase in ("masking", "elimination")
                for users, says in (
                    ("9", "there is no user 9 to drop out"),
                    ("0", "there is no user 0 to drop out"),
                    ("all", NOT_A_LIST),
                    ("1-99999999999", NOT_A_LIST),
                    ("x", NOT_A_LIST),
                )
            ),
        ],
    )
    def test_run_refuses_before_any_work(self, refuses, tmp_path, bad, says):
        options = changed(SMALL, words(bad))
        command = ("run", tmp_path / "round", "--gradients", EXAMPLE, *options)
        refuses(2, *command, says=says)
        assert not (tmp_path / "round").exists()

    def test_missing_gradients_and_weights(self, refuses, tmp_path):
        (tmp_path / "empty").mkdir()
        for where, says in (
            ("empty", "there are no gradients in /empty"),
            ("nowhere", "/nowhere does not exist"),
            ("nowhere.npy", "/nowhere.npy does not exist"),
        ):
            command = ("run", tmp_path / "round", "--gradients", tmp_path / where, *SMALL)
            refuses(66, *command, says=says)
        refuses(
            66,
            "run",
            tmp_path / "round",
            "--gradients",
            EXAMPLE,
            *SMALL,
            "--weights",
            tmp_path / "w.csv",
            says="/w.csv does not exist",
        )

    def test_run_says_what_was_clamped_and_how_much_is_kept(self, tmp_path):
        options = words("--survivors 3 --colluders 1 --top-k 2 --picks 1 --clip 0.05 --saturate")
        said = must("run", tmp_path / "round", "--gradients", EXAMPLE, *options).out
        assert "values were clamped to the clip of 0.05" in said
        assert "every user sends at least " in said
        assert "% of the energy of its gradient" in said


class TestWeights:
    @pytest.fixture
    def gradients(self, tmp_path):
        return save(tmp_path / "gradients", ["a_1.npy", "a_2.npy", "a_3.npy"], [0.5, -0.25, 0.75])

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("w.csv", "1,2\n2,4\n3,10\n"),
            ("w.csv", "user,samples\n3, 10\n 1 ,2\n\n2,4\n"),
            ("w.csv", "a_1.npy,2\na_2,4\n3,10.0\n"),
            ("w.json", '{"1": 2, "a_2": 4, "a_3.npy": 10}'),
        ],
    )
    def test_a_weighted_mean(self, gradients, tmp_path, name, content):
        (tmp_path / name).write_text(content)
        output = tmp_path / "mean.npy"
        options = words("--survivors 3 --colluders 1 --top-k 4 --mean")
        more = ("--weights", tmp_path / name, "--output", output)
        must("run", tmp_path / "round", "--gradients", gradients, *options, *more)
        session = Workspace(tmp_path / "round").session
        assert session.parameters.max_weight == 10
        wanted = (2 * 0.5 - 4 * 0.25 + 10 * 0.75) / 16
        assert np.allclose(np.load(output), wanted, atol=3 / session.scales[0])
        weights = [
            attributes(tmp_path / f"round/masked/user-{n:02}.h5")["weight"] for n in (1, 2, 3)
        ]
        assert weights == ["2.0", "4.0", "10.0"]

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            ("1,2\n2,4\n", "has no weight for user 3"),
            ("", "has no weight for users 1, 2, 3"),
            ("1,2\n2,4\n3,1\n4,1\n", "'4' names no user or gradient"),
            ("1,2\n2,4\n2,1\n3,1\n", "'2' appears twice"),
            ("1\n2\n3\n", "is not a table of users and weights"),
            ("1,2\n2,x\n3,1\n", "is not a table of users and weights"),
            ("\x00\xff", "is not a table of users and weights"),
            ("1,2\n2,4\n3,0\n", "the weight of '3' is 0"),
            ("1,-1\n2,4\n3,1\n", "the weight of '1' is -1"),
            ("1,nan\n2,4\n3,1\n", "the weight of '1' is nan"),
            ("1,2\n2,inf\n3,1\n", "the weight of '2' is inf"),
        ],
    )
    def test_invalid_weights_are_refused_before_any_work(
        self, gradients, tmp_path, refuses, content, says
    ):
        (tmp_path / "w.csv").write_text(content)
        refuses(
            65,
            "run",
            tmp_path / "round",
            "--gradients",
            gradients,
            *SMALL,
            "--weights",
            tmp_path / "w.csv",
            says=("/w.csv", says),
        )

    def test_a_weight_beyond_the_sessions_largest_is_refused(self, new_round, refuses, tmp_path):
        r = new_round()
        must(*r.init("--max-weight", "2.5"))
        assert document(r.folder / "session.json")["parameters"]["max_weight"] == 2.5
        r.play(after="init", upto="offline")
        gradient = tmp_path / "g.npy"
        np.save(gradient, np.full(4, 0.5))
        for weight in ("2.51", "0", "-1", "nan", "inf", "heavy"):
            said = refuses(2, *r.mask(1, "--weight", weight, gradient=gradient)).err
            assert "2.5" in said or weight == "heavy"
        for user, weight in ((1, 2.5), (2, 1), (3, 0.5)):
            must(*r.mask(user, "--weight", weight, gradient=gradient))
        must(*r.freeze())
        must("eliminate", r.folder, "--user", "all")
        must(*r.decode("--output", tmp_path / "mean.npy", "--mean"))
        found = datasets(r.folder / "aggregate.h5")
        scale = Workspace(r.folder).session.scales[0]
        assert np.allclose(found["real"], 4 * 0.5, atol=3 / scale)
        assert np.allclose(np.load(tmp_path / "mean.npy")[found["index"]], 0.5, atol=3 / scale)


class TestFeedbackOfARun:
    @every
    def test_what_was_not_sent_is_sent_in_the_next_run_of_a_series(self, new_round, tmp_path):
        """Without drop-outs: after two runs, what was sent and what is left are twice the
        gradients."""
        everybody = (1, 2, 3, 4, 5)
        first = new_round("first", masking=everybody, answering=everybody)
        must(*first.run("--feedback"))
        following = first.elsewhere(tmp_path / "next")
        gradients = ("--gradients", first.inputs / "gradients")
        must("run", following.folder, *gradients, "--from", first.folder, "--feedback")
        left = sum(datasets(following.residual(n))["value"] for n in everybody)
        given = 2 * np.sum([np.load(first.gradient(n)) for n in everybody], axis=0)
        assert np.abs(first.reals() + following.reals() + left - given).max() < 1e-6
