"""In a round with confirmations any user can freeze: what one of them wrote decides nothing by
itself."""

import shutil
from dataclasses import replace

import pytest
from played import CONFIRMING, Round, call, must

from topk_secagg.storage import masked, survivors
from topk_secagg.storage.keys import read_identity
from topk_secagg.storage.workspace import Workspace

QUORUM = (1, 2, 3, 4)


def frozen_by(r: Round, user: int, *more: object) -> tuple[object, ...]:
    return ("freeze", r.folder, "--user", user, "--identity", r.identity(user), *more)


@pytest.fixture
def r(round_at):
    """Everybody has masked, and nobody has confirmed anything."""
    return round_at("masked", **CONFIRMING)


class TestSettle:
    def test_it_wants_the_quorum(self, new_round, refuses):
        r = new_round(residual=True, **CONFIRMING).play(upto="masked")
        must(*frozen_by(r, 4))
        for confirming in QUORUM:
            assert "4 must; missing: " in refuses(66, *r.settle(1)).err
            must(*r.confirm(confirming))
        staged = (r.folder / "secrets/user-01.residual.h5").read_bytes()
        assert must(*r.settle(1), "--json").json["committed"] is True
        assert r.residual(1).read_bytes() == staged

    def test_without_it_one_user_has_the_residual_of_another_overwritten(
        self, new_round, monkeypatch
    ):
        """The twin: what is frozen in the end leaves user 1 out, and its old residual is gone."""
        r = new_round(residual=True, **CONFIRMING).play(upto="masked")
        must(*frozen_by(r, 4))
        with monkeypatch.context() as patch:
            patch.setattr(survivors, "check_confirmed", lambda *_, **__: None)
            must(*r.settle(1))
        assert r.residual(1).exists()
        (r.folder / "survivors.json").unlink()
        must(*frozen_by(r, 3, "--only", "2-5"))
        for step in (r.confirm, r.eliminate):
            for n in (2, 3, 4, 5):
                must(*step(n))
        must(*r.decode())
        r.check_sum(survivors=(2, 3, 4, 5))


class TestForget:
    def test_a_user_has_dropped_out_only_when_enough_users_say_so(self, r, refuses):
        must(*frozen_by(r, 4, "--only", "2-5"))
        for confirming in (2, 3, 4, 5):
            assert "4 must; missing: user" in refuses(66, *r.forget(1)).err
            must(*r.confirm(confirming))
        must(*r.forget(1))
        assert not (r.folder / "secrets/user-01.h5").exists()

    def test_without_the_quorum_one_user_has_the_secret_of_another_erased(
        self, r, refuses, monkeypatch
    ):
        """The twin: user 1 is in the set that all confirm, and cannot answer it any more."""
        must(*frozen_by(r, 4, "--only", "2-5"))
        with monkeypatch.context() as patch:
            patch.setattr(survivors, "check_confirmed", lambda *_, **__: None)
            must(*r.forget(1))
        assert not (r.folder / "secrets/user-01.h5").exists()
        (r.folder / "survivors.json").unlink()
        must(*frozen_by(r, 3))
        for n in (2, 3, 4, 5):
            must(*r.confirm(n))
        assert "erased its secret" in refuses(77, *r.eliminate(1)).err

    def test_who_has_answered_is_not_left_out_by_a_set_that_is_shown_afterwards(
        self, new_round, refuses
    ):
        """Its answer counts, and so its new residual does: that must be committed first."""
        r = new_round(residual=True, **CONFIRMING).play(upto="masked")
        must(*r.freeze())
        for n in QUORUM:
            must(*r.confirm(n))
        r.residual(1).mkdir()  # in the way
        assert call(*r.eliminate(1)).code == 65
        (r.folder / "survivors.json").unlink()
        must(*frozen_by(r, 5, "--only", "2-5"))
        assert "settle it first" in refuses(77, *r.forget(1)).err


class TestConfirm:
    def planted(self, r: Round, named: int) -> None:
        """survivors.json of user 4, in due form, that names an X of user `named` which nobody
        has."""
        space = Workspace(r.folder)
        files = {n: masked.read(space.session, space.masked_path(n), n) for n in r.recipe.everybody}
        files[named] = replace(files[named], digest="0" * 64)
        signer = read_identity(r.identity(4))
        space.survivors_path.write_bytes(
            survivors.content(space.session, survivors.rows_of(files), 4, signer)
        )

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
            patch.setattr(survivors, "check_own_row", lambda *_, **__: None)
            patch.setattr(survivors, "read_frozen", lambda *_, **__: {})
            for n in (1, 2, 3, 5):
                must(*r.confirm(n))
        assert "did not send" in refuses(65, *r.eliminate(3)).err
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
        status = must("status", r.folder, "--user", 1, "--json").json["next"]
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
        status = must("status", r.folder, "--user", 1, "--json").json["next"]
        assert (status["step"], status["ready"]) == ("forget", False)
        assert status["waits_for"] == "3 more confirmations of users 2, 3, 4, 5"
        assert call(*r.forget(1)).code == 66
        for n in (2, 3, 4):
            must(*r.confirm(n))
        assert must("status", r.folder, "--user", 1, "--json").json["next"]["ready"] is True
        must(*r.forget(1))
