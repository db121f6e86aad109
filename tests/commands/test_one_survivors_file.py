"""In a round with confirmations any user can freeze: what one of them wrote decides nothing by
itself."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from played import CONFIRMING, Round, call, document, must

from topk_secagg.rounds import freeze, outcome
from topk_secagg.rounds.frozen import rows_of
from topk_secagg.storage import masked, survivors
from topk_secagg.storage.ledger import Ledger
from topk_secagg.storage.workspace import Workspace

QUORUM = (1, 2, 3, 4)


def frozen_by(r: Round, user: int, *more: object) -> tuple[object, ...]:
    return ("freeze", r.folder, "--user", user, "--secrets", r.secrets(user), *more)


def as_proposed(space: Workspace) -> survivors.Survivors | None:
    """survivors.json, whoever confirmed it."""
    return survivors.read(space) if space.survivors_path.exists() else None


def status_of_user_1(r: Round) -> tuple[object, ...]:
    return ("status", r.folder, "--user", 1, "--secrets", r.secrets(1), "--json")


@pytest.fixture
def r(round_at):
    """Everybody has masked, and nobody has confirmed anything."""
    return round_at("masked", **CONFIRMING)


@pytest.fixture
def keeping(new_round):
    """The same, where every user has its own folder of secrets, and keeps what it did not send."""
    return new_round(residual=True, homes=True, **CONFIRMING).play(upto="masked")


def next_of(r: Round, name: str = "later") -> Round:
    return r.next_of_series(r.folder.with_name(name))


def taken_by(r: Round, user: int) -> str:
    """The session whose residual the user's X of this round took."""
    return str(document(r.private(user) / f"user-{user:02}.ledger.json")["feedback"])


def another_gradient(r: Round, user: int) -> Path:
    path = r.folder.with_name("others") / r.gradient(user).name
    path.parent.mkdir(exist_ok=True)
    np.save(path, -np.load(r.gradient(user)))
    return path


class TestFeedback:
    def test_an_x_was_not_sent_only_when_enough_users_say_so(self, keeping, refuses):
        must(*frozen_by(keeping, 4, "--only", "2-5"))
        later = next_of(keeping)
        for confirming in (2, 3, 4, 5):
            refuses(75, *later.offline(1), says="it has not answered there")
            must(*keeping.confirm(confirming))
        must(*later.offline(1))
        must(*later.mask(1, "--without-them"))  # the same gradient, which is in no sum
        assert taken_by(later, 1) == "none"

    def test_until_then_it_counts(self, keeping, refuses):
        must(*frozen_by(keeping, 4, "--only", "2-5"))
        must(*keeping.forget(1, "--give-up"))
        later = next_of(keeping)
        must(*later.offline(1))
        refuses(77, *later.mask(1, "--without-them"), says="has sent this gradient already")
        must(*later.mask(1, "--without-them", gradient=another_gradient(keeping, 1)))
        assert taken_by(later, 1) == keeping.space().session.id

    def test_without_the_quorum_one_user_has_the_gradient_of_another_sent_twice(
        self, keeping, monkeypatch
    ):
        """The twin: what is frozen in the end has user 1 in it."""
        must(*frozen_by(keeping, 4, "--only", "2-5"))
        later = next_of(keeping)
        with monkeypatch.context() as patch:
            patch.setattr(outcome, "_binding", as_proposed)
            must(*later.offline(1))
            must(*later.mask(1, "--without-them"))
        (keeping.folder / "survivors.json").unlink()
        must(*frozen_by(keeping, 3))
        for step in (keeping.confirm, keeping.eliminate):
            for n in (2, 3, 4, 5):
                must(*step(n))
        must(*keeping.decode())
        keeping.check_sum(survivors=(1, 2, 3, 4, 5))

    def test_who_has_answered_is_not_left_out_by_a_set_that_is_shown_afterwards(self, keeping):
        must(*keeping.freeze())
        for n in QUORUM:
            must(*keeping.confirm(n))
        must(*keeping.eliminate(1))
        (keeping.folder / "survivors.json").unlink()
        must(*frozen_by(keeping, 5, "--only", "2-5"))
        later = next_of(keeping)
        must(*later.offline(1))
        must(*later.mask(1, "--without-them", gradient=another_gradient(keeping, 1)))
        assert taken_by(later, 1) == keeping.space().session.id


class TestForget:
    def test_a_user_has_dropped_out_only_when_enough_users_say_so(self, r, refuses):
        must(*frozen_by(r, 4, "--only", "2-5"))
        for confirming in (2, 3, 4, 5):
            refuses(77, *r.forget(1), says="user 1 has not answered yet")
            must(*r.confirm(confirming))
        must(*r.forget(1))
        assert not (r.private(1) / "user-01.h5").exists()

    def test_without_the_quorum_one_user_has_the_secret_of_another_erased(
        self, r, refuses, monkeypatch
    ):
        """The twin: user 1 is in the set that all confirm, and cannot answer it any more."""
        must(*frozen_by(r, 4, "--only", "2-5"))
        with monkeypatch.context() as patch:
            patch.setattr(outcome, "_binding", as_proposed)
            must(*r.forget(1))
        assert not (r.private(1) / "user-01.h5").exists()
        (r.folder / "survivors.json").unlink()
        must(*frozen_by(r, 3))
        for n in (2, 3, 4, 5):
            must(*r.confirm(n))
        assert "erased its secret" in refuses(77, *r.eliminate(1)).err


class TestConfirm:
    def planted(self, r: Round, named: int) -> None:
        """survivors.json of user 4, in due form, that names an X of user `named` which nobody
        has."""
        space = Workspace(r.folder)
        files = {n: masked.read(space.session, space.masked_path(n), n) for n in r.recipe.everybody}
        files[named] = replace(files[named], digest="0" * 64)
        space.survivors_path.write_bytes(survivors.content(space.session, rows_of(files), None))

    @pytest.mark.parametrize("named", [1, 3])
    def test_nobody_confirms_a_set_that_names_an_x_which_its_user_never_made(
        self, r, refuses, named
    ):
        self.planted(r, named)
        for n in (1, 2, 3, 5):
            said = refuses(65, *r.confirm(n)).err
            own = f"an X of user {n} that this user did not send"
            assert (own if n == named else "is not the file that was frozen") in said
        (r.folder / "survivors.json").unlink()
        r.play(after="masked").check_sum()

    def test_without_the_check_all_honest_users_are_locked_in(self, r, refuses, monkeypatch):
        """The twin: they have confirmed what nobody can answer, and can confirm nothing else."""
        self.planted(r, 3)
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "check_own_row", lambda *_, **__: None)
            patch.setattr(freeze, "read_frozen", lambda *_, **__: {})
            for n in (1, 2, 3, 5):
                must(*r.confirm(n))
        assert "sent another X in this round" in refuses(77, *r.eliminate(3)).err
        assert "not the file that was frozen" in refuses(65, *r.eliminate(1)).err
        (r.folder / "survivors.json").unlink()
        must(*frozen_by(r, 4))
        for n in (1, 2, 3, 5):
            assert "already confirmed another" in refuses(77, *r.confirm(n)).err

    def test_an_x_that_is_not_here_is_named(self, r, refuses):
        must(*r.freeze())
        elsewhere = r.folder.with_name("elsewhere")
        shutil.move(r.folder / "masked/user-03.h5", elsewhere)
        assert "no X has arrived from user 3" in refuses(66, *r.confirm(1)).err
        status = must(*status_of_user_1(r)).json["next"]
        assert (status["step"], status["ready"], status["waits_for"]) == (
            "confirm",
            False,
            "X of user 3",
        )
        shutil.move(elsewhere, r.folder / "masked/user-03.h5")
        must(*r.confirm(1))
        (r.folder / "masked/user-03.h5").unlink()
        must(*r.confirm(1))  # it has done so, and only signs the same again

    def test_a_user_that_was_left_out_confirms_and_waits_for_the_others(self, r):
        must(*frozen_by(r, 4, "--only", "2-5"))
        must(*r.confirm(1))
        status = must(*status_of_user_1(r)).json["next"]
        assert (status["step"], status["ready"]) == ("decode", False)
        assert status["waits_for"] == "3 more confirmations of users 2, 3, 4, 5"
        assert call(*r.forget(1)).code == 77
        for n in (2, 3, 4):
            must(*r.confirm(n))
        status = must(*status_of_user_1(r)).json["next"]
        assert status["waits_for"] == "answers of users 2, 3, 4, 5"
        must(*r.forget(1))
