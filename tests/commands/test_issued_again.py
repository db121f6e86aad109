"""An old session.json in a new folder, with the X and shares of week 1: noticed wherever a ledger
is."""

import shutil
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from played import Round, must

ALL = (1, 2, 3, 4, 5)
WARNING = "an old session was issued again: do not take part"


def issued_again(r: Round, folder: str = "week-2") -> Round:
    """The session of a finished round in a new folder, with what everybody could keep of it."""
    new = r.elsewhere(r.folder.with_name(folder))
    new.folder.mkdir()
    shutil.copy(r.folder / "session.json", new.folder)
    for name in ("masked", "shares"):
        shutil.copytree(r.folder / name, new.folder / name)
    return new


@dataclass
class Forgetful(Round):
    """Users that have lost their ledgers: in their folders there is nothing but their keys, as in a
    backup of the first day."""

    def home(self, user: int) -> Path:
        return self.folder.with_name(f"first-day-{user}")


def forgetting(r: Round) -> Forgetful:
    """The same round, whose users are forgetful."""
    new = Forgetful(**{field.name: getattr(r, field.name) for field in fields(r)})
    for n in ALL:
        new.home(n).mkdir(mode=0o700)
        for path in (r.identity(n), r.identity(n).with_name("folder.json")):
            if r.recipe.sealed:
                shutil.copy(path, new.home(n))
    return new


def remove_shares_of(dealer: int, r: Round) -> None:
    """What shows its dealer that it has dealt in this session before; its X would show it too."""
    for path in r.folder.glob(f"shares/*/from-{dealer:02}.*"):
        path.unlink()


@pytest.fixture(params=[False, True])
def week_1(new_round, request):
    """A finished round, plain or sealed, in which user 5 never masked."""
    r = new_round(homes=True, sealed=request.param, masking=(1, 2, 3, 4), answering=(1, 2, 3, 4))
    return r.play()


@pytest.mark.rule(1, 12)
def test_who_masked_in_week_1_does_not_mask_again(week_1, refuses):
    week_2 = issued_again(week_1)
    for n in (1, 2, 3, 4):
        said = must(*week_2.offline(n))
        assert f"user {n} prepared this session in {week_1.folder}" in said.err
        assert WARNING in said.err
        said = refuses(77, *week_2.mask(n, gradient=week_1.gradient(5)))
        assert "already masked another input" in said.err


def test_who_did_not_is_warned_and_the_freezer_keeps_to_its_set(week_1, refuses):
    week_2 = issued_again(week_1)
    said = must(*week_2.mask(5))
    assert WARNING in said.err
    assert must(*week_1.mask(5), "--json").json["other_folder"] is None
    assert "fixed already: 1, 2, 3, 4" in refuses(77, *week_2.freeze("--only", "1-5")).err
    must(*week_2.freeze())
    frozen = "survivors.json"
    assert (week_2.folder / frozen).read_bytes() == (week_1.folder / frozen).read_bytes()


def test_an_answer_for_a_second_set_is_refused_in_the_new_folder(week_1, refuses):
    """As if a freezer without a ledger had frozen the X of week 1 once more, less one."""
    week_2 = issued_again(week_1)
    forgetful = forgetting(week_2)
    remove_shares_of(1, week_2)
    x = week_2.folder / "masked/user-01.h5"
    refuses(77, *forgetful.offline(1), says="user 1 has masked in this round already")
    kept = x.rename(week_2.folder / "kept.h5")
    must(*forgetful.offline(1))
    kept.rename(x)
    must(*forgetful.freeze("--only", "1-3"))
    for n in (2, 3):
        assert "another survivor set" in refuses(77, *week_2.eliminate(n)).err


def test_without_a_ledger_only_ones_own_files_tell(week_1, refuses):
    """The twin, and what the documents say: folders of secrets that are older than the session."""
    week_2 = issued_again(week_1)
    forgetful = forgetting(week_2)
    shutil.rmtree(week_2.folder / "masked")
    for n in ALL:
        refuses(77, *forgetful.offline(n), says=f"user {n} has dealt in this round already")
    for n in ALL:
        remove_shares_of(n, week_2)
    for n in ALL:
        said = must(*forgetful.offline(n))
        assert WARNING not in said.err
    for n in ALL:
        assert must(*forgetful.mask(n, gradient=week_1.gradient(n % 5 + 1))).err == ""


def test_a_moved_folder_is_only_warned_about(week_1):
    moved = week_1.elsewhere(week_1.folder.with_name("moved"))
    week_1.folder.rename(moved.folder)
    assert WARNING in must(*moved.offline(1)).err
    must(*moved.mask(1))
    must(*moved.eliminate(1))
    must(*moved.decode())
    moved.check_sum(survivors=(1, 2, 3, 4))
