"""A folder of secrets that comes back from a backup is noticed wherever the round still shows what
was sent; and what a store has is fetched before anything is sent."""

import os
import shutil
import subprocess
from dataclasses import replace

import pytest
from played import CONFIRMING, ROOT, Round, every, must

from topk_secagg.rounds import mask as mask_step
from topk_secagg.rounds import spend
from topk_secagg.rounds.frozen import rows_of
from topk_secagg.storage import survivors as survivors_file
from topk_secagg.storage.keys import read_identity
from topk_secagg.storage.masked import read as read_masked
from topk_secagg.storage.workspace import Workspace

KNOWS_NOT = "than its ledger knows"
plain_and_sealed = pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
pytestmark = pytest.mark.rule(1, 12)


def restored(r: Round, backup: Round) -> Round:
    """The round with the secrets of an earlier stage."""
    shutil.rmtree(r.folder / "secrets")
    shutil.copytree(backup.folder / "secrets", r.folder / "secrets")
    return r.at_home()


@every
@plain_and_sealed
def test_nothing_is_masked_while_x_or_survivors_json_shows_what_was(round_at, refuses, sealed):
    """Not the same gradient either: which one it was, the restored folder does not know."""
    r = restored(round_at("frozen", sealed=sealed), round_at("offline", "backup", sealed=sealed))
    for gone in ("masked/user-01.h5", "survivors.json"):
        kept = (r.folder / gone).read_bytes()
        (r.folder / gone).unlink()
        for gradient in (1, 5):
            said = refuses(77, *r.mask(1, gradient=r.gradient(gradient)), says=KNOWS_NOT)
            assert "restored from a backup?" in said.err
        (r.folder / gone).write_bytes(kept)


@plain_and_sealed
@pytest.mark.parametrize("answered", [True, False])
def test_another_survivor_set_is_refused_while_y_or_the_frozen_set_is_there(
    round_at, refuses, answered, sealed
):
    r = round_at("frozen", sealed=sealed)
    if answered:
        must(*r.eliminate(2))
    restored(r, round_at("masked", "backup", sealed=sealed))
    if not answered:  # the freezer's ledger is older than the survivors.json that it finds
        said = (
            "fixed already: 1, 2, 3, 4" if sealed else "did not write it"
        )  # signed, it is its own
        refuses(77, *r.freeze("--only", "1-3"), says=said)
        return
    (r.folder / "survivors.json").unlink()
    must(*r.freeze("--only", "1-3"))
    refuses(77, *r.eliminate(2), says="another survivor set")


def test_without_the_check_two_x_would_reveal_how_many_places_they_share(round_at, monkeypatch):
    """The twin: this is what the backup could have given away."""
    sizes = {"length": 12, "top_k": 6}
    r = restored(round_at("frozen", **sizes), round_at("offline", "backup", **sizes))
    space = Workspace(r.folder)

    def places():
        return set(read_masked(space.session, space.masked_path(1), 1).masked.index.tolist())

    first = places()
    monkeypatch.setattr(mask_step, "check_knows", lambda *_: None)
    monkeypatch.setattr(spend, "check_place", lambda *_: None)
    must(*r.mask(1, gradient=r.gradient(5)))
    assert len(first & places()) == len(dict(r.sent(1)).keys() & dict(r.sent(5)).keys()) > 0


class TestTheStore:
    """User 1's machine comes back as it was before it masked, and its X is in the store alone."""

    @pytest.fixture(params=["rsync", "rclone"])
    def sync(self, request):
        if shutil.which(request.param) is None:
            pytest.skip(f"{request.param} is not installed")
        return ROOT / "workflows" / f"sync-{request.param}.sh"

    @pytest.fixture
    def r(self, round_at, sync):
        """The machine after it sent X, and then restored."""
        sent = round_at("offline", sealed=True)
        backup = sent.elsewhere(sent.folder.with_name("backup"))
        shutil.copytree(sent.folder, backup.folder)
        must(*sent.mask(1))
        assert self.run(sync, sent, "push").returncode == 0
        shutil.rmtree(sent.folder)
        backup.folder.rename(sent.folder)
        return sent

    def run(self, sync, r: Round, how: str) -> subprocess.CompletedProcess[str]:
        store = r.folder.with_name("store")
        store.mkdir(exist_ok=True)
        environment = os.environ | {"ROUND": str(r.folder), "STORE": str(store), "NUMBER": "1"}
        names = "session.json\nmasked/user-01.h5\n"
        return subprocess.run(
            [sync, how], input=names, env=environment, text=True, capture_output=True, check=False
        )

    def test_what_the_user_sent_is_fetched_and_then_mask_refuses(self, r, sync, refuses):
        assert self.run(sync, r, "pull").returncode == 0
        for gradient in (1, 5):
            refuses(77, *r.mask(1, gradient=r.gradient(gradient)), says=KNOWS_NOT)

    def test_what_was_not_fetched_in_time_does_not_replace_the_first_x(self, r, sync):
        """Nor is X here replaced by that of the store."""
        must(*r.mask(1, gradient=r.gradient(5)))
        store, own = (r.folder.with_name("store"), r.folder)
        first, second = ((place / "masked/user-01.h5").read_bytes() for place in (store, own))
        assert first != second
        said = self.run(sync, r, "push")
        assert said.returncode == 77
        assert "restored from a backup?" in said.stderr
        assert self.run(sync, r, "pull").returncode == 0
        assert (store / "masked/user-01.h5").read_bytes() == first
        assert (own / "masked/user-01.h5").read_bytes() == second

    def test_if_own_files_were_not_fetched_one_secret_would_mask_two_gradients(
        self, r, sync, tmp_path
    ):
        """The twin: a script that leaves out what the user made itself."""
        text = sync.read_text()
        text = text.replace("--ignore-existing", "--max-size=0 --ignore-existing")
        old = tmp_path / sync.name
        old.write_text(text)
        old.chmod(0o755)
        assert self.run(old, r, "pull").returncode == 0
        must(*r.mask(1, gradient=r.gradient(5)))


@pytest.fixture
def accused(round_at):
    """A round with confirmations in which user 2 names an X of user 5, which has not masked."""
    r = round_at("offline", **CONFIRMING)
    for n in (1, 2, 3, 4):
        must(*r.mask(n))
    space = Workspace(r.folder)
    real = {n: read_masked(space.session, space.masked_path(n), n) for n in (1, 2, 3, 4)}
    rows = rows_of(real)
    invented = replace(rows[0], user=5, sha256="0" * 64, sharing="0" * 64)
    content = survivors_file.content(space.session, (*rows, invented), None)
    space.survivors_path.write_bytes(content)
    return r


def confirm_unchecked(r: Round, user: int) -> None:
    """A confirmation of a user that lies: the command would refuse a set with an X that is
    missing."""
    space = Workspace(r.folder)
    digest = survivors_file.read(space).digest
    signer = read_identity(r.identity(user))
    path = space.confirmation_path(user)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(survivors_file.confirmation(space.session, user, digest, signer))


def test_a_set_that_too_few_confirmed_does_not_keep_a_user_from_masking(accused):
    confirm_unchecked(accused, 2)
    said = must(*accused.mask(5, "--json"))
    assert not said.json["late"]
    assert "unless users confirm another one" in said.err


def test_a_set_that_enough_confirmed_shows_what_was_sent(accused, refuses):
    for n in (1, 2, 3, 4):
        confirm_unchecked(accused, n)
    refuses(77, *accused.mask(5), says=KNOWS_NOT)


def test_if_confirmations_did_not_count_any_user_could_stop_another(accused, refuses, monkeypatch):
    """The twin."""
    monkeypatch.setattr(survivors_file, "fixed", survivors_file.read)
    refuses(77, *accused.mask(5), says=KNOWS_NOT)
