"""`--feedback`: what is not sent stays with its user, and goes into the X of a later round, once.

And `forget`: what is erased stays spent, and of residuals those stay that a round may still take.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from played import (
    CONFIRMING,
    Round,
    attributes,
    contents,
    datasets,
    document,
    every,
    must,
    rewrite,
)

from topk_secagg.rounds import feedback, spend

U1 = (1, 2, 3)
GAVE_UP = ("--give-up",)


class Story:
    """Rounds of a series, one after the other; in each, every user has another gradient."""

    def __init__(self, first: Round) -> None:
        self.rounds = [first]
        self.given = np.zeros(first.recipe.length)  # what survivors gave
        self.sums = np.zeros(first.recipe.length)
        self.chance = np.random.default_rng(7)

    @property
    def last(self) -> Round:
        return self.rounds[-1]

    def gradient(self, user: int) -> Path:
        """That of the last round."""
        return self.last.folder.with_name(f"given-{len(self.rounds)}") / f"user-{user:02}.npy"

    def write_gradients(self) -> None:
        r = self.last.recipe
        for user in r.everybody:
            path = self.gradient(user)
            path.parent.mkdir(exist_ok=True)
            np.save(path, self.chance.uniform(-1, 1, r.length) * r.clip / 8)

    def mask(self, user: int, *more: object, plainly: bool = False) -> tuple[object, ...]:
        """The command."""
        how = [] if plainly else ["--feedback"]
        return self.last.mask(user, *how, *more, gradient=self.gradient(user))

    def begin(self, users: Iterable[int] = U1, *more: object) -> "Story":
        """The next round, or the first one, up to the X of these users."""
        if (self.last.folder / "session.json").exists():
            before = self.last
            folder = before.folder.with_name(f"round-{len(self.rounds) + 1}")
            self.rounds.append(before.next_of_series(folder, *more))
            start = ["--from", before.folder]
        else:
            must(*self.last.init(*more))
            start = []
        self.write_gradients()
        for n in self.last.recipe.everybody:
            must(*self.last.offline(n, *start))
        for n in users:
            must(*self.mask(n))
        return self

    def end(self, users: Iterable[int] = U1) -> "Story":
        """Freeze, answer and decode, with these survivors."""
        must(*self.last.freeze("--only", ",".join(map(str, users))))
        for n in users:
            must(*self.last.eliminate(n))
        must(*self.last.decode())
        self.sums += self.last.reals()
        self.given += sum(np.load(self.gradient(n)) for n in users)
        return self

    def unsent(self, user: int, at: int = -1) -> np.ndarray:
        return datasets(self.rounds[at].residual(user))["value"]

    def took(self, user: int) -> str:
        """The session whose residual the user's last X took."""
        return str(document(self.last.private(user) / f"user-{user:02}.ledger.json")["feedback"])

    def session(self, at: int) -> str:
        return self.rounds[at].space().session.id

    def lost(self, users: Iterable[int] = U1) -> float:
        """What is neither sent nor kept, beside what was given."""
        kept = sum(self.unsent(n) for n in users)
        return self.size_of(self.sums + kept - self.given)

    def size_of(self, vector: np.ndarray) -> float:
        """Its largest entry, as a share of the clip."""
        return float(np.abs(vector).max()) / self.last.recipe.clip


@pytest.fixture
def story(new_round):
    return Story(new_round("round-1", masking=U1, answering=U1))


@every
class TestFeedback:
    def test_what_is_not_sent_is_kept_and_what_was_kept_is_sent(self, story):
        for _ in range(4):
            story.begin().end()
        assert story.lost() < 1e-12
        assert np.abs(story.unsent(1)).max() > 0
        assert story.took(1) == story.session(-2)

    def test_a_residual_is_a_private_file_of_its_round_that_never_changes(self, story):
        path = must(*story.begin().mask(1), "--json").json["residual"]
        assert Path(path) == story.last.residual(1)
        assert Path(path).stat().st_mode & 0o777 == 0o600
        found = must("inspect", path, "--json").json["files"][0]
        assert found["kind"] == "residual"
        before = Path(path).read_bytes()
        story.end().begin().end()
        assert Path(path).read_bytes() == before
        assert attributes(Path(path))["session"] == story.session(0)

    def test_without_feedback_nothing_is_kept_and_nothing_is_taken(self, story):
        story.begin(users=())
        for n in U1:
            said = must(*story.mask(n, plainly=True), "--json").json
            assert said["residual"] is None
            assert not story.last.residual(n).exists()
        story.end().begin()
        assert story.took(1) == "none"

    def test_the_round_of_the_last_x_may_be_long_ago(self, story):
        story.begin().end()
        story.begin(users=(2, 3, 4)).end((2, 3, 4))
        story.begin()
        assert story.took(1) == story.session(0)
        assert story.took(2) == story.session(1)

    @pytest.mark.rule(8)
    def test_an_x_that_did_not_count_was_not_given(self, story):
        story.begin().end()
        story.begin(users=(1, 2, 3, 4)).end((2, 3, 4))  # the first one is left out
        story.begin().end()
        assert story.took(1) == story.session(0)
        assert story.took(2) == story.session(1)
        kept = story.unsent(1) + story.unsent(2) + story.unsent(3) + story.unsent(4, at=1)
        assert story.size_of(story.sums + kept - story.given) < 1e-12

    def test_if_it_counted_what_was_taken_would_be_lost(self, story, monkeypatch):
        """The twin."""
        story.begin().end()
        story.begin(users=(1, 2, 3, 4)).end((2, 3, 4))
        monkeypatch.setattr(feedback, "counted", lambda *_: True)
        story.begin().end()
        kept = story.unsent(1) + story.unsent(2) + story.unsent(3) + story.unsent(4, at=1)
        assert story.size_of(story.sums + kept - story.given) > 1e-6

    def test_an_x_that_left_counts_whether_or_not_there_was_a_sum(self, story, refuses):
        """Rule 10 of the scheme: others may have its sum."""
        story.begin()
        following = story.last.next_of_series(story.last.folder.with_name("round-2"))
        for n in U1:
            late = following.offline(n, "--from", story.last.folder)
            refuses(75, *late, says="it has not answered there")
            must(*story.last.forget(n, *GAVE_UP))
            must(*late)
        story.rounds.append(following)
        story.write_gradients()
        must(*story.mask(1, "--without-them"))
        assert story.took(1) == story.session(0)

    def test_a_survivors_json_that_cannot_be_read_shows_nothing(self, story):
        story.begin()
        (story.last.folder / "survivors.json").write_bytes(b"")
        for n in story.last.recipe.everybody:
            must(*story.last.forget(n, *GAVE_UP))
        story.begin()
        assert story.took(1) == story.session(0)

    def test_a_new_series_takes_it_too(self, story):
        story.begin().end()
        before = story.last
        following = before.elsewhere(before.folder.with_name("round-2"))
        must("init", following.folder, "--from", before.folder, "--new-keys")
        story.rounds.append(following)
        story.write_gradients()
        for n in following.recipe.everybody:
            must(*following.offline(n, "--from", before.folder))
        for n in U1:
            must(*story.mask(n))
        story.end()
        assert story.took(1) == story.session(0)
        assert story.lost() < 1e-12

    def test_what_is_left_of_it_may_be_less(self, story):
        story.begin(U1, "--feedback-decay", 0.25)
        first = [story.unsent(n) for n in (1, 2, 3)]
        story.end().begin()
        for n, before in zip(U1, first, strict=True):
            total = np.load(story.gradient(n)) + 0.25 * before
            left = story.unsent(n)
            sent = left != total
            assert np.allclose(left[~sent], total[~sent])
            assert 0 < np.count_nonzero(sent) < total.size


class TestRefusals:
    @pytest.fixture
    def after(self, story):
        """The second round, of which all are prepared and nobody has masked."""
        return story.begin().end().begin(users=())

    def test_a_residual_is_taken_once(self, after, refuses):
        """A training that goes back to an earlier round starts with none."""
        must(*after.mask(1))
        first = after.rounds[0]
        again = first.elsewhere(first.folder.with_name("again"))
        must("init", again.folder, "--from", first.folder, "--new-keys")
        for n in again.recipe.everybody:
            must(*again.offline(n, "--from", first.folder))
        after.rounds.append(again)
        after.write_gradients()
        says = (after.session(1)[:16], "a later round than that one", "without the feedback")
        refuses(65, *after.mask(1), says=says)
        must(*after.mask(2))  # who has not masked there
        must(*after.mask(1, plainly=True))

    @pytest.mark.rule(8)
    def test_else_it_would_be_sent_twice(self, after, monkeypatch):
        """The twin: nothing is noted in the round before."""
        monkeypatch.setattr(spend, "_take", lambda *_: None)
        must(*after.mask(1))
        first = after.rounds[0]
        again = first.elsewhere(first.folder.with_name("again"))
        must("init", again.folder, "--from", first.folder, "--new-keys")
        for n in again.recipe.everybody:
            must(*again.offline(n, "--from", first.folder))
        after.rounds.append(again)
        after.write_gradients()
        must(*after.mask(1))
        assert after.took(1) == after.session(0)

    def test_masking_again_takes_nothing_more(self, after):
        must(*after.mask(1))
        before = contents(after.last.folder), contents(after.rounds[0].folder)
        must(*after.mask(1))
        assert (contents(after.last.folder), contents(after.rounds[0].folder)) == before

    def test_the_gradient_of_another_user_is_noticed_by_its_name(self, after, refuses):
        """A shell sorts 1, 10, 2."""
        swapped = after.last.mask(1, "--feedback", gradient=after.gradient(2))
        refuses(65, *swapped, says="is the name that another user's gradient had")
        must(*after.last.mask(1, gradient=after.gradient(2)))  # without residuals nothing is mixed

    def test_without_names_nothing_is_noticed(self, after, monkeypatch):
        """The twin."""
        monkeypatch.setattr("topk_secagg.rounds.mask.check_name", lambda *_: None)
        must(*after.last.mask(1, "--feedback", gradient=after.gradient(2)))

    @pytest.mark.parametrize(
        ("spoil", "code", "says"),
        [
            (lambda path: path.unlink(), 66, "user-01.residual.h5 is not there"),
            (lambda path: path.write_bytes(b""), 65, "user-01.residual.h5: it is damaged"),
            (
                lambda path: shutil.copy(path.with_name("user-02.residual.h5"), path),
                65,
                "user-01.residual.h5: its user is 2, not 1",
            ),
            (
                lambda path: rewrite(path, lambda _, found: found["value"].__imul__(2)),
                65,
                "it is not the residual that the ledger names",
            ),
        ],
    )
    def test_a_residual_that_is_not_the_one_that_was_kept(self, after, refuses, spoil, code, says):
        spoil(after.rounds[0].residual(1))
        refuses(code, *after.mask(1), says=says)
        must(*after.mask(1, plainly=True))  # its user's word: it starts from zero

    def test_a_ledger_that_is_gone_is_no_fresh_start(self, after, refuses):
        (after.rounds[0].private(1) / "user-01.ledger.json").unlink()
        says = ("the ledger of user 1 of the round before is gone", "mask without the feedback")
        refuses(66, *after.mask(1), says=says)

    def test_with_and_without_feedback_are_two_inputs(self, after, refuses):
        must(*after.mask(1))
        refuses(77, *after.mask(1, plainly=True), says="already masked another input")


class TestForget:
    def held(self, user: int, files: Iterable[str]) -> list[str]:
        """Those of the files that are the user's secret, and shares that it holds."""
        own = (f"secrets/user-{user:02}.h5", f"shares/user-{user:02}/")
        return [name for name in files if name.startswith(own)]

    @every
    def test_the_newest_residual_stays_and_the_one_before_until_it_is_known_to_be_sent(self, story):
        story.begin().end().begin()
        first, second = (story.rounds[at].residual(1) for at in (0, 1))
        must(*story.rounds[0].forget(1))
        assert first.exists()  # the second X may be left out
        story.end()
        must(*story.last.forget(1))
        assert not first.exists()
        assert second.exists()
        story.begin().end()
        assert story.lost() < 1e-12

    @every
    def test_that_of_an_x_which_is_in_no_sum_goes(self, story):
        story.begin(users=(1, 2, 3, 4)).end((2, 3, 4))
        must(*story.last.forget(1))
        assert not story.last.residual(1).exists()
        assert story.last.residual(2).exists()
        story.begin()
        assert story.took(1) == "none"

    @every
    @pytest.mark.parametrize("sealed", [False, True])
    def test_after_its_answer_a_user_erases_secret_and_shares_but_not_its_ledger(
        self, round_at, refuses, sealed, construction
    ):
        r = round_at("answered", sealed=sealed)
        before = contents(r.folder)
        private = str(r.private(1).relative_to(r.folder))
        own = {name for name in before if name.startswith("shares/user-01/")}
        own.add(f"{private}/user-01.h5")
        said = must(*r.forget(1), "--json").json
        end = ".h5.age" if sealed else ".h5"
        copies = set()
        if construction == "sketch":  # who has not forgotten may go on with the series
            assert said["needed_by"] == [2, 3, 4, 5]
        else:  # whose steps run in this folder, and who have not answered
            assert said["needed_by"] == [4, 5]
            copies = {f"shares/user-{n:02}/from-01{end}" for n in (2, 3)}
        gone = {str(Path(path).relative_to(r.folder)) for path in said["erased"]}
        assert gone == copies | own
        assert document(r.private(1) / "user-01.ledger.json")["forgotten"] is True
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

    def test_there_is_no_such_user(self, round_at, refuses):
        refuses(2, *round_at("masked").forget(9), says="there is no user 9 in this round")

    @every
    @pytest.mark.parametrize("stage", ["offline", "masked", "frozen"])
    def test_a_round_that_is_given_up_can_be_forgotten_at_any_time(self, round_at, refuses, stage):
        r = round_at(stage)
        says = ("user 2 has not answered yet", "forget with --give-up")
        refuses(77, *r.forget(2), says=says, besides=("user-02.ledger.json",))
        must(*r.forget(2, "--give-up", "--end-series"))
        assert self.held(2, contents(r.folder)) == []
        ledger = document(r.folder / "secrets/user-02.ledger.json")
        assert (ledger["forgotten"], ledger["gave_up"]) == (True, stage != "offline")
        for command in (r.offline(2), r.mask(2), r.eliminate(2)):
            code = 66 if command[0] == "eliminate" and stage != "frozen" else 77
            says = "given this round up" if ledger["gave_up"] else "erased its secret"
            says = "survivors.json" if code == 66 else says
            refuses(code, *command, says=says)

    @pytest.mark.parametrize("user", [2, 5])
    def test_a_round_with_too_few_confirmations_can_be_given_up(self, round_at, refuses, user):
        """It never gets more; user 5 has no answer to give, and had masked."""
        r = round_at("masked", **CONFIRMING, residual=True)
        must(*r.freeze("--only", "1-4"))
        must(*r.confirm(1))
        refuses(77, *r.forget(user), says=f"user {user} has not answered yet")
        must(*r.forget(user, "--give-up"))
        assert not (r.private(user) / f"user-{user:02}.h5").exists()
        assert r.residual(user).exists()  # its X counts as sent

    @every
    def test_a_secret_that_is_left_when_forget_was_stopped_is_not_shared_again(
        self, round_at, refuses
    ):
        r = round_at("offline")
        path = r.folder / "secrets/user-02.h5"
        secret = path.read_bytes()
        must(*r.forget(2, "--give-up", "--end-series"))
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
            forget = r.forget(n, "--give-up", "--end-series", "--json")
            assert must(*forget).json["needed_by"] == later
        assert not list(r.folder.glob("shares/*/*"))
