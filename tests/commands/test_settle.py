"""`settle` and `forget`: a residual is committed once, and what is erased stays spent."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from played import CONFIRMING, call, contents, datasets, document, every, must


@pytest.fixture
def kept(round_at, tmp_path):
    """A frozen round of users 1 to 4 in which users 1, 2 and 4 keep residuals; user 4 came too
    late."""
    r = round_at("offline")
    for n in (1, 2, 3):
        must(*r.mask(n, *(["--residual", tmp_path / f"r{n}.h5"] if n != 3 else [])))
    must(*r.freeze())
    must(*r.mask(4, "--residual", tmp_path / "r4.h5"))
    return r


class TestSettle:
    @every
    def test_settle_commits_the_residual_of_a_survivor_that_did_not_answer(self, kept, tmp_path):
        staged = kept.folder / "secrets/user-01.residual.h5"
        expected = staged.read_bytes()
        assert not (tmp_path / "r1.h5").exists()
        assert must(*kept.settle(1), "--json").json["committed"] is True
        assert (tmp_path / "r1.h5").read_bytes() == expected
        assert (tmp_path / "r1.h5").stat().st_mode & 0o777 == 0o600
        assert not staged.exists()
        sent = dict(kept.sent(1))
        left = datasets(tmp_path / "r1.h5")["value"]
        plain = np.load(kept.gradient(1))
        assert [k for k in range(len(plain)) if left[k] != plain[k]] == sorted(sent)
        before = contents(tmp_path)
        said = must(*kept.settle(1))
        assert "was committed already" in said.out
        must(*kept.eliminate(1))  # which does not commit it again
        after = contents(tmp_path)
        assert all(after[name] == before[name] for name in before if "ledger" not in name)

    def test_nothing_to_settle(self, kept, round_at, refuses):
        assert "no residual" in refuses(2, *kept.settle(3)).err
        assert "not in the sum" in refuses(77, *kept.settle(4)).err
        refuses(2, *kept.settle(9), says="there is no user 9 in this round")
        new = round_at("init", "new")
        refuses(66, *new.settle(1), says="user-01.ledger.json is not there")

    def test_without_survivors_json_an_x_that_left_counts_as_sent(self, kept, tmp_path, refuses):
        """Rule 10 of the scheme; but nothing is lost if survivors.json comes without it."""
        survivors = (kept.folder / "survivors.json").read_bytes()
        (kept.folder / "survivors.json").unlink()
        staged = (kept.folder / "secrets/user-01.residual.h5").read_bytes()
        x = kept.folder / "masked/user-01.h5"
        x.rename(tmp_path / "x.h5")  # as if `mask` had been stopped before it wrote X
        said = refuses(66, *kept.settle(1), says="which may not have left").err
        assert "mask the same gradient again" in said
        assert not (tmp_path / "r1.h5").exists()
        (tmp_path / "x.h5").rename(x)
        said = must(*kept.settle(1), "--json")
        assert (said.json["committed"], said.json["survivors_known"]) == (True, False)
        assert "counts as sent" in said.err
        assert (tmp_path / "r1.h5").read_bytes() == staged
        assert said.json["before"] is None  # there was none
        (kept.folder / "survivors.json").write_bytes(survivors)
        again = must(*kept.settle(1), "--json").json
        assert (again["committed"], again["survivors_known"]) == (False, True)

    def test_without_survivors_json_the_old_residual_is_kept(
        self, kept, new_round, tmp_path, refuses
    ):
        must(*kept.settle(1))
        old = (tmp_path / "r1.h5").read_bytes()
        later = new_round("later").play(upto="offline")
        for n in (1, 2, 3, 4):
            must(*later.mask(n, "--residual", tmp_path / f"r{n}.h5", "--saturate"))
        said = must(*later.settle(1), "--json")
        before = tmp_path / "r1.before.h5"
        assert said.json["before"] == str(before)
        assert f"a copy of the old one is {before}" in said.err
        assert before.read_bytes() == old != (tmp_path / "r1.h5").read_bytes()
        assert before.stat().st_mode & 0o777 == 0o600
        must(*later.settle(1))  # changes nothing: the copy is still the old one
        assert before.read_bytes() == old
        must(*later.freeze("--only", "2-4"))
        said = refuses(77, *later.settle(1), says="is not in the sum").err
        assert f"{before} is a copy of it" in said
        assert before.read_bytes() == old

    def test_a_survivors_json_that_cannot_be_read_is_not_one_that_is_missing(
        self, kept, tmp_path, refuses
    ):
        (kept.folder / "survivors.json").write_bytes(b"")
        refuses(65, *kept.settle(1), says="survivors.json")
        assert not (tmp_path / "r1.h5").exists()

    def test_a_residual_that_was_changed_is_not_overwritten(self, kept, tmp_path, refuses):
        shutil.copy(kept.folder / "secrets/user-01.residual.h5", tmp_path / "mine.h5")
        staged = kept.folder / "secrets/user-02.residual.h5"
        shutil.copy(staged, tmp_path / "r1.h5")  # that of another user
        refuses(65, *kept.settle(1), says="/r1.h5: its user is 2, not 1")
        (tmp_path / "r1.h5").write_bytes(b"")
        refuses(65, *kept.settle(1), says="/r1.h5: it is damaged")
        (tmp_path / "r1.h5").unlink()
        must(*kept.settle(1))

    def test_the_next_round_says_that_a_residual_was_never_settled(self, kept, new_round, tmp_path):
        later = new_round("later").play(upto="offline")
        masked = later.mask(1, "--residual", tmp_path / "r1.h5", "--saturate")
        said = must(*masked, "--json")
        assert said.json["unsettled_round"] == str(kept.folder)
        assert f"topk-secagg settle {kept.folder} --user 1" in said.err
        again = new_round("again").play(upto="offline")
        must(*kept.settle(2))
        said = must(*again.mask(2, "--residual", tmp_path / "r2.h5", "--saturate", "--json"))
        assert said.json["unsettled_round"] is None


class TestForget:
    def held(self, user: int, files: Iterable[str]) -> list[str]:
        """Those of the files that are secrets of this user, and shares that it holds."""
        own = (
            f"secrets/user-{user:02}.h5",
            f"secrets/user-{user:02}.residual.h5",
            f"shares/user-{user:02}/",
        )
        return [name for name in files if name.startswith(own)]

    @every
    @pytest.mark.parametrize("sealed", [False, True])
    def test_after_its_answer_a_user_erases_secret_and_shares_but_not_its_ledger(
        self, round_at, refuses, sealed, construction
    ):
        r = round_at("answered", sealed=sealed)
        before = contents(r.folder)
        said = must(*r.forget(1), "--json").json
        end = ".h5.age" if sealed else ".h5"
        if construction == "sketch":  # who has not forgotten may go on with the series
            assert said["needed_by"] == [2, 3, 4, 5]
            copies = set()
        else:  # whose steps run in this folder, and who have not answered
            assert said["needed_by"] == [4, 5]
            copies = {f"shares/user-{n:02}/from-01{end}" for n in (2, 3)}
        gone = {str(Path(path).relative_to(r.folder)) for path in said["erased"]}
        assert gone == copies | set(self.held(1, before))
        assert self.held(1, contents(r.folder)) == []
        assert document(r.folder / "secrets/user-01.ledger.json")["forgotten"] is True
        assert set(before) - set(contents(r.folder)) == gone
        for command in (r.offline(1), r.mask(1), r.mask(1, gradient=r.gradient(2)), r.eliminate(1)):
            assert "erased its secret" in refuses(77, *command).err
        assert must(*r.forget(1), "--json").json["erased"] == []
        must(*r.decode())
        r.check_sum()

    @pytest.mark.parametrize("user", [4, 5])
    def test_a_user_that_dropped_out_can_forget_once_the_survivors_are_frozen(
        self, round_at, refuses, user
    ):
        """User 4 masked and was not frozen, user 5 never masked."""
        r = round_at("masked")
        refuses(77, *r.forget(user), says=f"user {user} has not answered yet")
        must(*r.freeze("--only", "1-3"))
        must(*r.forget(user))
        assert self.held(user, contents(r.folder)) == []

    def test_what_is_still_needed_is_not_erased(self, kept, refuses, tmp_path):
        for n in (1, 2, 3):
            assert "has not answered yet" in refuses(77, *kept.forget(n)).err
        must(*kept.settle(1))
        refuses(77, *kept.forget(1), says="user 1 has not answered yet")
        must(*kept.eliminate(1))
        must(*kept.forget(1))
        must(*kept.forget(4))  # the X of which came too late
        assert not (tmp_path / "r4.h5").exists()
        assert self.held(4, contents(kept.folder)) == []
        refuses(2, *kept.forget(9), says="there is no user 9 in this round")

    @every
    @pytest.mark.parametrize("stage", ["offline", "masked", "frozen"])
    def test_a_round_that_is_given_up_can_be_forgotten_at_any_time(self, round_at, refuses, stage):
        r = round_at(stage)
        says = ("user 2 has not answered yet", "forget with --give-up")
        refuses(77, *r.forget(2), says=says)
        must(*r.forget(2, "--give-up"))
        assert self.held(2, contents(r.folder)) == []
        assert document(r.folder / "secrets/user-02.ledger.json")["forgotten"] is True
        for command in (r.offline(2), r.mask(2), r.eliminate(2)):
            code = 66 if command[0] == "eliminate" and stage != "frozen" else 77
            says = "survivors.json" if code == 66 else "erased its secret"
            refuses(code, *command, says=says)

    def test_a_round_that_is_given_up_is_settled_first(self, kept, refuses):
        refuses(77, *kept.forget(1, "--give-up"), says=("is not committed yet", "settle it first"))
        must(*kept.settle(1))
        must(*kept.forget(1, "--give-up"))
        must(*kept.forget(4, "--give-up"))  # the X of which came too late

    @pytest.mark.parametrize("user", [2, 5])
    def test_a_round_with_too_few_confirmations_can_be_given_up(self, round_at, refuses, user):
        """It never gets more; user 5 has no answer to give, and had masked."""
        r = round_at("masked", **CONFIRMING, residual=True)
        must(*r.freeze("--only", "1-4"))
        must(*r.confirm(1))
        refuses(77, *r.forget(user, "--give-up"), says="settle it first")
        says = ("1 user has confirmed these survivors", "survivors.json away and run this again")
        refuses(66, *r.settle(user), says=says)
        (r.folder / "survivors.json").rename(r.folder / "unconfirmed.json")
        must(*r.settle(user))
        (r.folder / "unconfirmed.json").rename(r.folder / "survivors.json")
        must(*r.forget(user, "--give-up"))
        assert self.held(user, contents(r.folder)) == []

    @every
    def test_a_secret_that_is_left_when_forget_was_stopped_is_not_shared_again(
        self, round_at, refuses
    ):
        r = round_at("offline")
        path = r.folder / "secrets/user-02.h5"
        secret = path.read_bytes()
        must(*r.forget(2, "--give-up"))
        path.write_bytes(secret)
        path.chmod(0o600)
        refuses(77, *r.offline(2), says="has erased its secret")
        must(*r.forget(2, "--give-up"))
        assert self.held(2, contents(r.folder)) == []

    @every
    def test_users_that_have_forgotten_need_no_shares(self, round_at):
        r = round_at("offline")
        for n in r.recipe.everybody:
            later = [m for m in r.recipe.everybody if m > n]
            assert must(*r.forget(n, "--give-up", "--json")).json["needed_by"] == later
        assert not list(r.folder.glob("shares/*/*"))

    def test_a_residual_that_could_not_be_committed_is_not_erased(self, kept, refuses, tmp_path):
        (tmp_path / "r1.h5").mkdir()  # in the way
        assert call(*kept.eliminate(1)).code == 65
        assert (kept.folder / "elimination/user-01.h5").exists()
        assert "settle it first" in refuses(77, *kept.forget(1)).err
        (tmp_path / "r1.h5").rmdir()
        must(*kept.settle(1))
        must(*kept.forget(1))
