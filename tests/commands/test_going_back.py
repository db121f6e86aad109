"""Keys go forwards only: a server that issues every round as the first after the root cannot keep
keys alive that were erased, and a folder that is taken in round 5 opens no round before."""

import numpy as np
import pytest
from played import Round, must

from topk_secagg.protocol.constructions import construction as construction_of
from topk_secagg.protocol.messages import Sparse
from topk_secagg.rounds import offline as offline_step
from topk_secagg.storage import chain as chain_file
from topk_secagg.storage.masked import read as read_masked

pytestmark = pytest.mark.rule(15)

ALL = (1, 2, 3, 4, 5)


@pytest.fixture
def construction():
    return "sketch"


@pytest.fixture
def root(new_round) -> Round:
    return new_round(homes=True, masking=ALL, answering=ALL).play(upto="offline")


def issued(before: Round, name: str, generation: int) -> Round:
    """A round of the series that its server gives this generation."""
    folder = before.folder.with_name(name)
    return before.next_of_series(folder, "--generation", generation)


def finished(before: Round, name: str, generation: int) -> Round:
    r = issued(before, name, generation).play(after="init")
    for n in ALL:
        must(*r.forget(n))
    return r


def opens(taken: Round, target: Round, user: int = 1) -> bool:
    """Whether the chain that a user has in one round, and what is public, give its input in
    another: X less the mask is the sketch of the input."""
    space = taken.space(user)
    chain = chain_file.read(space.chain_path(user), space.session, user)
    session = target.space(user).session
    x = read_masked(session, target.space(user).masked_path(user), user)
    c = construction_of(session.parameters)
    secret = c.secret_of_keys(session.deal(user, x.sharing), chain.own)
    index, value = zip(*sorted(target.sent(user)), strict=True)
    chosen = Sparse(np.array(index, dtype=np.int64), np.array(value, dtype=np.uint32))
    return np.array_equal(c.mask(secret, chosen).value, x.masked.value)


def test_a_second_session_of_a_generation_is_refused_once_x_is_out(root, refuses):
    finished(root, "first", 1)
    again = issued(root, "again", 1)
    refuses(77, *again.offline(1), says="has masked in another session of generation 1")


def test_a_generation_that_is_behind_is_refused(root, refuses):
    first = finished(root, "first", 1)
    third = issued(first, "third", 3)
    must(*third.offline(1))
    for generation in (1, 2):
        late = issued(root, f"late-{generation}", generation)
        refuses(77, *late.offline(1), says="keys never go back")
    assert not opens(third, first)


def test_before_x_is_out_another_session_of_the_generation_may_replace_it(root):
    """An `init` that was abandoned."""
    must(*issued(root, "abandoned", 1).offline(1))
    must(*issued(root, "real", 1).offline(1))


def test_far_ahead_takes_the_users_word(root, refuses):
    far = issued(root, "far", 200)
    said = refuses(77, *far.offline(1), says="200 generations after")
    assert "--skip-generations" in said.err
    must(*far.offline(1, "--skip-generations"))


def test_a_user_whose_answer_is_needed_does_not_erase_what_it_takes(root, refuses):
    waiting = issued(root, "waiting", 1).play(after="init", upto="frozen")
    following = issued(root, "following", 2)
    seen = {"user-01.ledger.json"}  # that it read survivors.json there
    refuses(75, *following.offline(1), says="and it has not answered", besides=seen)
    must(*waiting.eliminate(1))
    must(*following.offline(1))


def test_without_the_check_a_folder_that_is_taken_later_opens_what_was_erased(root, monkeypatch):
    """The twin: five rounds of generation 1, and the keys of the last are those of the first."""
    monkeypatch.setattr(offline_step.series, "check_may_go_on", lambda *_, **__: None)
    first = finished(root, "first", 1)
    later = issued(root, "later", 1)
    must(*later.offline(1))
    assert opens(later, first)
