"""What others could have written may stop a step, and never permits one: a gradient that was
refused is not sent again, and no secret erased, because of a file without a signature."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from played import CONFIRMING, Round, document, judged, must, rewrite

from topk_secagg.rounds import outcome
from topk_secagg.rounds.frozen import rows_of
from topk_secagg.storage import survivors as survivors_file
from topk_secagg.storage.masked import read as read_masked
from topk_secagg.storage.workspace import Workspace

pytestmark = pytest.mark.rule(10, 16)

VICTIM = 3
OTHERS = (1, 2, 4)
REFUSED = f"user {VICTIM} has sent this gradient already"
TRUST = {
    "plain": {"masking": (*OTHERS, VICTIM)},
    "sealed": {"sealed": True},
    "confirmed": CONFIRMING | {"survivors": 4, "masking": (1, 2, 3, 4, 5)},
}


@pytest.fixture(params=TRUST)
def trust(request) -> str:
    return request.param


@pytest.fixture
def unknown(new_round, trust) -> Round:
    """A round in which the victim has masked, and of which nobody has said how it ended."""
    return new_round(homes=True, **TRUST[trust]).play(upto="masked")


def retried(r: Round) -> Round:
    """Another session of the same users, in which they would send the same gradients."""
    again = r.elsewhere(r.folder.with_name("retry"))
    return again if again.folder.exists() else again.play(upto="offline")


def forged_sum(r: Round) -> None:
    """A well-formed aggregate.h5 of this session, such as anybody can write: without the victim."""
    users = tuple(n for n in r.recipe.masking if n != VICTIM)
    recipe = replace(r.recipe, homes=False, masking=users, answering=users)
    other = Round(recipe, r.folder.with_name("other"), r.folder.with_name("other-inputs"))
    other.prepare().play()
    forged = other.folder / "aggregate.h5"
    session = r.space().session_id
    rewrite(forged, lambda attributes, _: attributes.update(session=session))
    shutil.copy(forged, r.folder)
    assert inspected(r.folder / "aggregate.h5")["session"] == session


def inspected(path: Path) -> dict[str, Any]:
    return must("inspect", path, "--json").json["files"][0]


def without_the_victim(r: Round) -> None:
    """survivors.json without the victim, which nobody signed, or confirmed."""
    space = Workspace(r.folder)
    users = [n for n in r.recipe.masking if n != VICTIM]
    x = {n: read_masked(space.session, space.masked_path(n), n) for n in users}
    space.survivors_path.write_bytes(survivors_file.content(space.session, rows_of(x), None))


def open_to_all(r: Round) -> None:
    """A folder of a plain round in which any account could have put the file."""
    r.folder.chmod(0o777)


def no_check(name: str, patch: pytest.MonkeyPatch) -> None:
    """Take the rule away, for rounds with this trust."""
    if name == "plain":
        patch.setattr(outcome, "is_own", lambda _: True)
    patch.setattr(survivors_file, "check_signature", lambda *_, **__: None)
    patch.setattr(outcome, "_binding", survivors_file.fixed if name == "sealed" else _read)


def _read(space: Workspace) -> survivors_file.Survivors | None:
    return survivors_file.read(space) if space.survivors_path.exists() else None


def both(r: Round) -> None:
    forged_sum(r)
    without_the_victim(r)


PLANTED = {"a sum": forged_sum, "survivors without it": without_the_victim, "both": both}


@pytest.mark.parametrize("what", PLANTED)
def test_a_gradient_that_was_sent_is_not_sent_again(unknown, refuses, trust, what):
    again = retried(unknown)
    refuses(77, *again.mask(VICTIM), says=REFUSED)
    if trust == "plain":
        open_to_all(unknown)
    PLANTED[what](unknown)
    refuses(77, *again.mask(VICTIM), says=REFUSED)


@pytest.mark.parametrize("what", PLANTED)
def test_nor_is_a_secret_erased_that_an_answer_needs(unknown, trust, what):
    if trust == "plain":
        open_to_all(unknown)
    PLANTED[what](unknown)
    assert judged(*unknown.forget(VICTIM)).code in (66, 77)
    assert unknown.space(VICTIM).secret_path(VICTIM).exists()


def test_without_the_rule_two_sums_differ_by_the_victims_update(unknown, trust, monkeypatch):
    """The twin: the first round gives a sum with the victim after all, and so does the retry."""
    again = retried(unknown)
    without_the_victim(unknown)
    with monkeypatch.context() as patch:
        no_check(trust, patch)
        must(*again.mask(VICTIM))
    first, second = (r.space(VICTIM).ledger_path(VICTIM) for r in (unknown, again))
    assert document(first)["input"] == document(second)["input"]


def test_in_a_folder_of_ones_own_the_first_survivors_of_a_plain_round_count(new_round):
    """What the rule leaves: there nobody else can have written it."""
    r = new_round(homes=True, masking=(*OTHERS, VICTIM)).play(upto="masked")
    without_the_victim(r)
    must(*retried(r).mask(VICTIM))


def test_without_the_rule_the_victims_secret_is_erased(unknown, trust, monkeypatch):
    """The twin: what it holds is missing when the round is frozen with it."""
    without_the_victim(unknown)
    no_check(trust, monkeypatch)
    must(*unknown.forget(VICTIM))
    assert not unknown.space(VICTIM).secret_path(VICTIM).exists()
