"""One folder for several accounts belongs to their group: an account outside of it can do nothing,
and one in it cannot keep another user from masking."""

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from played import RECIPES, Result, Round, forked, in_child, waited

pytestmark = [pytest.mark.rule(16, 17), pytest.mark.needs_root]

GROUP = 2000
OUTSIDER = 1009
PLACE = "masked/user-01.h5"


def account(user: int) -> int:
    return 1000 + user


def become(uid: int) -> None:
    """Continue as an account, which is in the group unless it is the outsider."""
    os.setgroups([] if uid == OUTSIDER else [GROUP])
    os.setgid(uid)
    os.setuid(uid)


def as_account(uid: int, *args: object) -> Result:
    return in_child(*args, before=lambda: become(uid))


def can(uid: int, change: Callable[[], object]) -> bool:
    """Whether an account can do that to the folder, without the program."""

    def attempt() -> Result:
        become(uid)
        try:
            change()
        except OSError:
            return Result(1, "", "")
        return Result(0, "", "")

    return waited(forked(attempt, silent=True)) == 0


@pytest.fixture
def made(round_at):
    """r(0o2770): a round that was started in a folder of the group with this mode, and dealt."""
    round_at("decoded", "before", sealed=True)  # everything is loaded now
    base = Path(tempfile.mkdtemp(prefix="topk-secagg-group-"))
    base.chmod(0o755)

    def start(mode: int) -> Round:
        recipe = replace(RECIPES["permutation"], sealed=True, homes=True)
        r = Round(recipe, base / "round", base / "inputs").prepare()
        r.folder.mkdir()
        os.chown(r.folder, 0, GROUP)
        r.folder.chmod(mode)
        for user in recipe.everybody:
            for path in (r.home(user), *r.home(user).rglob("*")):
                os.chown(path, account(user), account(user))
        assert as_account(0, *r.init()).code == 0
        for user in recipe.everybody:
            assert as_account(account(user), *r.offline(user)).code == 0
        return r

    yield start
    shutil.rmtree(base)


def planted(r: Round) -> None:
    (r.folder / PLACE).write_bytes(b"x")


def test_a_round_works_and_outsiders_can_do_nothing(made):
    r = made(0o2770)
    assert not can(OUTSIDER, lambda: planted(r))
    assert not can(OUTSIDER, lambda: (r.folder / "session.json").read_bytes())
    for stage, command in (("masked", r.mask), ("frozen", None), ("answered", r.eliminate)):
        for user in r.recipe.masking if stage == "masked" else r.recipe.answering:
            step = r.freeze() if command is None else command(user)
            done = as_account(account(1 if command is None else user), *step)
            assert done.code == 0, done
    assert as_account(account(1), *r.decode()).code == 0
    r.check_sum()


def test_a_member_that_puts_a_file_first_keeps_nobody_from_masking(made):
    r = made(0o2770)
    assert as_account(account(2), *r.mask(2)).code == 0
    assert can(account(2), lambda: planted(r))
    done = as_account(account(1), *r.mask(1))
    assert done.code == 0, done
    assert (r.folder / PLACE).stat().st_uid == account(1)


def test_in_a_folder_that_everybody_can_write_to_any_account_does(made):
    """The twin."""
    r = made(0o1777)
    assert as_account(account(2), *r.mask(2)).code == 0
    assert can(OUTSIDER, lambda: planted(r))
    assert as_account(account(1), *r.mask(1)).code == 73
