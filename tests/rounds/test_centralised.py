"""Steps of a round whose files a server moves: users that have no X but their own."""

from dataclasses import replace

import numpy as np
import pytest

import topk_secagg as ts
from topk_secagg.rounds import centralised
from topk_secagg.storage import survivors as survivors_file
from topk_secagg.storage.ledger import Ledger

USERS = range(1, 6)


class Served:
    """A sealed round of five users in one folder; the X of all may be moved away, to where only a
    server has them."""

    def __init__(self, folder, **options):
        self.folder = folder
        self.secrets = folder / "secrets"
        lines = [ts.keygen(user, self.secrets).line() for user in USERS]
        (folder / "recipients").write_text("\n".join(lines))
        options = {"construction": "sketch", "confirm": True} | options
        ts.init(
            folder / "round",
            users=5,
            survivors=4,
            colluders=1,
            length=64,
            top_k=8,
            recipients=folder / "recipients",
            **options,
        )
        self.space = ts.Workspace(folder / "round", self.secrets)
        self.gradients = np.random.default_rng(1).normal(scale=0.1, size=(5, 64))
        for user in USERS:
            ts.offline(self.space, user)
        for user in USERS:
            ts.mask(self.space, user, self.gradients[user - 1])

    def ledger(self, user):
        return Ledger.read(self.space.ledger_path(user), self.space.session.id, user)

    def proposal(self):
        proposal, left_out = centralised.propose(self.space)
        assert left_out == {}
        return proposal

    def confirm(self, user, proposal):
        return centralised.confirm(self.space, user, proposal)

    def hide(self):
        """Leave no X in the folder, until `show`."""
        (self.space.root / "masked").rename(self.folder / "hidden")

    def show(self):
        (self.folder / "hidden").rename(self.space.root / "masked")


@pytest.fixture
def served(tmp_path):
    return Served(tmp_path)


def test_a_round_in_which_users_see_no_x_but_their_own(served):
    proposal = served.proposal()
    served.hide()
    for user in USERS:
        report = served.confirm(user, proposal)
        assert report.survivors == list(USERS)
    for user in (1, 2, 3, 4):
        ts.eliminate(served.space, user)
    served.show()
    total = ts.decode(served.space).total
    expected = ts.aggregate(
        list(served.gradients), survivors=4, colluders=1, top_k=8, construction="sketch", clip=1.0
    ).total
    np.testing.assert_allclose(total, expected, atol=1e-5)
    assert ts.audit(served.space).failed == []


def test_an_x_that_is_not_sound_is_not_proposed(served):
    served.space.masked_path(3).write_bytes(served.space.masked_path(4).read_bytes())
    proposal, left_out = centralised.propose(served.space)
    assert list(left_out) == [3]
    assert survivors_file.checked(served.space, proposal).users == [1, 2, 4, 5]


def test_too_few_are_not_proposed(served):
    for user in (3, 4):
        served.space.masked_path(user).unlink()
    with pytest.raises(ts.TooFewSurvivors, match="3 users have masked soundly, and 4 must"):
        centralised.propose(served.space)


def with_rows(served, change):
    """The proposal, with other rows."""
    survivors = survivors_file.checked(served.space, served.proposal())
    rows = change(tuple(survivors.rows.values()))
    return survivors_file.content(served.space.session, rows, None)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda rows: rows[:3], ts.TooFewSurvivors, "names 3 survivors, and 4 are needed"),
        (lambda rows: rows[::-1], ts.BadData, "not name each user once, in order"),
        (lambda rows: (rows[0], *rows), ts.BadData, "not name each user once, in order"),
        (
            lambda rows: (rows[0], replace(rows[1], sha256="0" * 64), *rows[2:]),
            ts.BadData,
            "an X of user 2 that this user did not send",
        ),
        (
            lambda rows: (rows[0], replace(rows[1], sharing="0" * 64), *rows[2:]),
            ts.BadData,
            "an X of user 2 that this user did not send",
        ),
        (
            lambda rows: (rows[0], replace(rows[1], dealt="0" * 64), *rows[2:]),
            ts.BadData,
            "an X of user 2 that this user did not send",
        ),
        (
            lambda rows: (replace(rows[0], weight=2.0), *rows[1:]),
            ts.BadData,
            "users or weights that are not in this round",
        ),
    ],
    ids=["too few", "order", "twice", "own X", "own sharing", "own list", "weight"],
)
def test_a_proposal_that_is_no_survivor_set_is_not_confirmed(served, change, kind, words):
    proposal = with_rows(served, change)
    with pytest.raises(kind, match=words):
        served.confirm(2, proposal)
    assert served.ledger(2).confirmed is None
    assert not served.space.confirmation_path(2).exists()


def test_one_survivor_set_is_confirmed_in_a_round(served):
    proposal = served.proposal()
    first = served.confirm(3, proposal)
    again = served.confirm(3, proposal)
    assert (again.path, again.survivors) == (first.path, first.survivors)
    other = with_rows(served, lambda rows: rows[1:])
    with pytest.raises(ts.Refused, match="is there already, with other survivors"):
        served.confirm(3, other)
    served.space.survivors_path.unlink()
    with pytest.raises(ts.Refused, match="user 3 has already confirmed another survivor set"):
        served.confirm(3, other)


def test_without_confirmations_nothing_is_confirmed_unseen(tmp_path):
    served = Served(tmp_path, confirm=False)
    with pytest.raises(ts.BadData, match="user 1 did not sign it"):
        served.confirm(1, served.proposal())
    ts.freeze(served.space)
    with pytest.raises(ts.UsageError, match="users do not confirm in this round"):
        served.confirm(2, served.space.survivors_path.read_bytes())


def test_where_answers_depend_on_every_x_all_are_read(tmp_path):
    served = Served(tmp_path, construction="permutation")
    proposal = served.proposal()
    with pytest.raises(ts.UsageError, match="answers of this round depend on every X"):
        served.confirm(1, proposal)
    ts.freeze(served.space)
    served.hide()
    with pytest.raises(ts.InputMissing, match="no X has arrived from users 1, 2, 3, 4, 5"):
        ts.confirm(served.space, 1)
