"""A secrets/ folder that comes back from a backup is noticed wherever the round still shows what
was sent."""

import shutil

import pytest
from played import CONFIRMING, every, must

from topk_secagg.rounds import mask as mask_step
from topk_secagg.storage import survivors as survivors_file
from topk_secagg.storage.keys import read_identity
from topk_secagg.storage.ledger import Ledger
from topk_secagg.storage.masked import read as read_masked
from topk_secagg.storage.workspace import Workspace


def restored(r, backup):
    """The round with the secrets/ of an earlier stage."""
    shutil.rmtree(r.folder / "secrets")
    shutil.copytree(backup.folder / "secrets", r.folder / "secrets")
    return r


@every
def test_another_gradient_is_refused_while_x_or_survivors_json_shows_the_first(round_at, refuses):
    r = restored(round_at("frozen"), round_at("offline", "backup"))
    for gone in ("masked/user-01.h5", "survivors.json"):
        kept = (r.folder / gone).read_bytes()
        (r.folder / gone).unlink()
        assert "does not know" in refuses(77, *r.mask(1, gradient=r.gradient(5))).err
        (r.folder / gone).write_bytes(kept)


@every
def test_the_same_gradient_gives_the_same_x_and_the_round_goes_on(round_at):
    r = restored(round_at("frozen"), round_at("offline", "backup"))
    before = (r.folder / "masked/user-02.h5").read_bytes()
    must(*r.mask(2))
    assert (r.folder / "masked/user-02.h5").read_bytes() == before
    must(*r.eliminate(2))


@pytest.mark.parametrize("answered", [True, False])
def test_another_survivor_set_is_refused_while_y_or_the_frozen_set_is_there(
    round_at, refuses, answered
):
    r = round_at("frozen")
    if answered:
        must(*r.eliminate(2))
    restored(r, round_at("masked", "backup"))
    if not answered:  # the freezer's ledger is older than the survivors.json that it finds
        assert "did not write it" in refuses(77, *r.freeze("--only", "1-3")).err
        return
    (r.folder / "survivors.json").unlink()
    must(*r.freeze("--only", "1-3"))
    assert "another survivor set" in refuses(77, *r.eliminate(2)).err


def test_without_the_check_two_x_would_reveal_how_many_places_they_share(round_at, monkeypatch):
    """The twin: this is what the backup could have given away."""
    sizes = {"length": 12, "top_k": 6}
    r = restored(round_at("frozen", **sizes), round_at("offline", "backup", **sizes))
    space = Workspace(r.folder)

    def places():
        return set(read_masked(space.session, space.masked_path(1), 1).masked.index.tolist())

    first = places()
    monkeypatch.setattr(mask_step, "_published_digests", lambda *_, **__: set())
    monkeypatch.setattr(Ledger, "check_masks", lambda *_, **__: None)
    must(*r.mask(1, gradient=r.gradient(5)))
    assert len(first & places()) == len(dict(r.sent(1)).keys() & dict(r.sent(5)).keys()) > 0


@pytest.fixture
def accused(round_at):
    """A round with confirmations in which user 2 names an X of user 5, which has not masked."""
    r = round_at("offline", **CONFIRMING)
    for n in (1, 2, 3, 4):
        must(*r.mask(n))
    space = Workspace(r.folder)
    real = {n: read_masked(space.session, space.masked_path(n), n) for n in (1, 2, 3, 4)}
    invented = survivors_file.Row(user=5, sha256="0" * 64, weight=1.0, sharing="0" * 64, dealt=None)
    rows = [*survivors_file.rows_of(real), invented]
    content = survivors_file.content(space.session, rows, 2, read_identity(r.identity(2)))
    space.survivors_path.write_bytes(content)
    return r


def confirm_unchecked(r, user):
    """A confirmation of a user that lies: the command would refuse a set with an X that is
    missing."""
    space = Workspace(r.folder)
    digest = survivors_file.read(space).digest
    survivors_file.confirm(space, user, digest, read_identity(r.identity(user)))


def test_a_set_that_too_few_confirmed_does_not_keep_a_user_from_masking(accused):
    confirm_unchecked(accused, 2)
    said = must(*accused.mask(5, "--json"))
    assert (said.json["late"], said.err) == (False, "")


def test_a_set_that_enough_confirmed_shows_what_was_sent(accused, refuses):
    for n in (1, 2, 3, 4):
        confirm_unchecked(accused, n)
    assert "does not know" in refuses(77, *accused.mask(5)).err


def test_if_confirmations_did_not_count_any_user_could_stop_another(accused, refuses, monkeypatch):
    """The twin."""
    monkeypatch.setattr(survivors_file, "fixed", survivors_file.read)
    assert "does not know" in refuses(77, *accused.mask(5)).err
