"""State that is lost means refusal, never a fresh start: an identity takes part with the folder of
secrets in which it was made, and with no other."""

import shutil

import pytest
from played import CONFIRMING, Round, call, forked, must, waited

from topk_secagg.rounds import access
from topk_secagg.rounds.access import folder_file
from topk_secagg.storage.workspace import Workspace

pytestmark = pytest.mark.rule(12)

ALL = (1, 2, 3, 4, 5)
STEPS = ("offline", "mask", "freeze", "confirm", "eliminate")


@pytest.fixture
def finished(new_round):
    """A round whose users have each its own folder of secrets, all of which are in the sum."""
    return new_round(homes=True, **CONFIRMING).play()


def without_state(r: Round) -> Round:
    """What a container that lost its volumes is given: the session, the mounted identities, and
    nothing of what was done before."""
    new = r.elsewhere(r.folder.parent / "restarted" / "round")
    new.folder.mkdir(parents=True)
    shutil.copy(r.folder / "session.json", new.folder)
    for n in ALL:
        new.home(n).mkdir(mode=0o700)
        shutil.copy2(r.identity(n), new.identity(n))
    return new


def command(r: Round, step: str) -> tuple[object, ...]:
    return r.freeze("--user", 1) if step == "freeze" else r.step(step)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_with_a_new_folder_and_the_old_identity_is_refused(finished, refuses, step):
    new = without_state(finished)
    said = refuses(77, *command(new, step), says="another folder of secrets than")
    assert f"{new.home(1)}, which is new" in said.err
    assert "make new keys, and ask for a new session" in said.err


@pytest.mark.parametrize("step", STEPS)
def test_nor_is_one_whose_identity_is_mounted_elsewhere(finished, refuses, step):
    new = without_state(finished)
    new.identity(1).unlink()
    mounted = ("--identity", finished.identity(1))
    refuses(77, *command(new, step), *mounted, says="another folder of secrets than")


@pytest.mark.parametrize("step", STEPS)
def test_nor_is_one_with_the_folder_of_other_keys(finished, refuses, tmp_path, step):
    """That of another user, or one in which `keygen` made new keys: the number differs."""
    new = without_state(finished)
    must("keygen", "--user", 9, "--secrets", tmp_path / "fresh")
    shutil.copy2(tmp_path / "fresh/folder.json", new.home(1))
    refuses(77, *command(new, step), says="another folder of secrets than")


def test_keygen_does_not_tie_old_keys_to_a_new_folder(finished, refuses):
    new = without_state(finished)
    keygen = ("keygen", "--user", 1, "--secrets", new.home(1))
    refuses(77, *keygen, says="folder.json is gone")
    new.identity(1).unlink()
    other = must(*keygen, "--json").json
    line = f"1 {other['age']} ed25519:{other['ed25519']}\n"
    assert line not in finished.recipients.read_text()
    assert call(*new.offline(1)).code == 65  # which the session does not have


def test_several_users_of_one_folder_have_one_number(tmp_path):
    numbers = {
        access.read_identity(Workspace(tmp_path, tmp_path).identity_path(n)).folder
        for n in (1, 2)
        if must("keygen", "--user", n, "--secrets", tmp_path)
    }
    assert numbers == {folder_file.read(Workspace(tmp_path, tmp_path))}


def test_users_that_make_their_keys_at_the_same_time_have_one_number_too(tmp_path):
    keygens = [("keygen", "--user", n, "--secrets", tmp_path / "home") for n in ALL]
    children = [forked(lambda args=args: call(*args), silent=True) for args in keygens]
    assert [waited(child) for child in children] == [0] * len(ALL)
    for keygen in keygens:
        must(*keygen)  # which compares the numbers


def test_without_the_check_two_sums_of_one_session_differ_by_one_users_update(
    finished, monkeypatch
):
    """The twin: apps that train in the same way give the same gradients once more, and no ledger
    knows them. The server leaves user 5 out."""
    monkeypatch.setattr(folder_file, "check", lambda *_: None)
    monkeypatch.setattr(folder_file, "ensure", lambda *_: None)
    new = without_state(finished)
    for step in (new.offline, new.mask):
        for n in ALL:
            must(*step(n))
    must(*new.freeze("--user", 1, "--only", "1-4"))
    for step in (new.confirm, new.eliminate):
        for n in (1, 2, 3, 4):
            must(*step(n))
    must(*new.decode())
    update = dict(finished.sent(5))
    difference = finished.reals() - new.reals()
    assert {k for k, value in enumerate(difference) if abs(value) > 1e-9} == update.keys()
