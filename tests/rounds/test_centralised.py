"""Steps of a round whose files a server moves: users that have no X but their own."""

from dataclasses import replace

import numpy as np
import pytest

import topk_secagg as ts
from topk_secagg.rounds.centralised import abandon, confirm_unseen, propose, sign_proposal
from topk_secagg.storage import survivors as survivors_file
from topk_secagg.storage.keys import read_identity
from topk_secagg.storage.ledger import Ledger
from topk_secagg.storage.workspace import Workspace

USERS = range(1, 6)


class Served:
    """A sealed round of five users in one folder; the X of all may be moved away, to where only a
    server has them."""

    def __init__(self, folder, **options):
        self.folder = folder
        lines = [ts.keygen(user, folder / f"{user}.identity").line() for user in USERS]
        (folder / "recipients").write_text("\n".join(lines))
        options = {"construction": "sketch", "confirm": True} | options
        self.space = ts.init(
            folder / "round",
            users=5,
            survivors=4,
            colluders=1,
            length=64,
            top_k=8,
            recipients=folder / "recipients",
            **options,
        ).round
        for user in USERS:
            ts.offline(self.space, user, **self.access(user))
        self.gradients = np.random.default_rng(1).normal(scale=0.1, size=(5, 64))
        for user in USERS:
            ts.mask(self.space, user, self.gradients[user - 1], **self.access(user))

    def access(self, user):
        return {"identity": self.folder / f"{user}.identity"}

    def ledger(self, user):
        return Ledger.read(self.space.ledger_path(user), self.space.session.id, user)

    def hide(self):
        """Leave no X in the folder, until `show`."""
        (self.space.root / "masked").rename(self.folder / "hidden")

    def show(self):
        (self.folder / "hidden").rename(self.space.root / "masked")


@pytest.fixture
def served(tmp_path):
    return Served(tmp_path)


def test_a_round_in_which_users_see_no_x_but_their_own(served):
    proposal, left_out = propose(served.space, freezer=2)
    assert left_out == {}
    served.hide()
    report = sign_proposal(served.space, 2, proposal, **served.access(2))
    assert (report.freezer, report.survivors, report.written) == (2, [1, 2, 3, 4, 5], True)
    for user in USERS:
        confirm_unseen(served.space, user, **served.access(user))
    for user in (1, 2, 3, 4):
        ts.eliminate(served.space, user, **served.access(user))
    served.show()
    total = ts.decode(served.space).total
    expected = ts.aggregate(
        list(served.gradients), survivors=4, colluders=1, top_k=8, construction="sketch", clip=1.0
    ).total
    np.testing.assert_allclose(total, expected, atol=1e-5)
    assert ts.audit(served.space).failed == []


def test_an_x_that_is_not_sound_is_not_proposed(served):
    served.space.masked_path(3).write_bytes(served.space.masked_path(4).read_bytes())
    proposal, left_out = propose(served.space, freezer=1)
    assert list(left_out) == [3]
    survivors, _ = survivors_file.parse(served.space.survivors_path, proposal)
    assert survivors.users == [1, 2, 4, 5]


def test_too_few_are_not_proposed(served):
    for user in (3, 4):
        served.space.masked_path(user).unlink()
    with pytest.raises(ts.TooFewSurvivors, match="3 users have masked soundly, and 4 must"):
        propose(served.space, freezer=1)


def with_rows(served, change):
    """The proposal, with other rows."""
    proposal, _ = propose(served.space, freezer=2)
    _, body = survivors_file.parse(served.space.survivors_path, proposal)
    rows = change(body["survivors"])
    return survivors_file.content(served.space.session, rows, freezer=2, signer=None)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda rows: rows[:3], ts.TooFewSurvivors, "names 3 survivors, and 4 are needed"),
        (lambda rows: rows[::-1], ts.BadData, "users or weights that are not in this round"),
        (lambda rows: (rows[0], *rows), ts.BadData, "names a user twice"),
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
            lambda rows: (replace(rows[0], weight=2.0), *rows[1:]),
            ts.BadData,
            "users or weights that are not in this round",
        ),
    ],
    ids=["too few", "order", "twice", "own X", "own sharing", "weight"],
)
def test_a_proposal_that_is_no_survivor_set_is_not_signed(served, change, kind, words):
    proposal = with_rows(served, change)
    with pytest.raises(kind, match=words):
        sign_proposal(served.space, 2, proposal, **served.access(2))
    assert not served.space.survivors_path.exists()
    assert served.ledger(2).frozen is None


def test_one_survivor_set_is_signed_in_a_round(served):
    proposal, _ = propose(served.space, freezer=2)
    first = sign_proposal(served.space, 2, proposal, **served.access(2))
    again = sign_proposal(served.space, 2, proposal, **served.access(2))
    assert again.survivors_sha256 == first.survivors_sha256
    other = with_rows(served, lambda rows: rows[:4])
    with pytest.raises(ts.Refused, match="user 2 has already frozen another survivor set"):
        sign_proposal(served.space, 2, other, **served.access(2))


def test_one_survivor_set_is_confirmed_in_a_round(served):
    proposal, _ = propose(served.space, freezer=2)
    sign_proposal(served.space, 2, proposal, **served.access(2))
    confirm_unseen(served.space, 3, **served.access(3))
    signer = read_identity(served.folder / "4.identity")
    _, body = survivors_file.parse(served.space.survivors_path, proposal)
    other = survivors_file.content(
        served.space.session, body["survivors"][1:], freezer=4, signer=signer
    )
    served.space.survivors_path.write_bytes(other)
    with pytest.raises(ts.Refused, match="user 3 has already confirmed another survivor set"):
        confirm_unseen(served.space, 3, **served.access(3))


def test_without_confirmations_nobody_signs_unseen(tmp_path):
    served = Served(tmp_path, confirm=False)
    proposal, _ = propose(served.space, freezer=1)
    with pytest.raises(ts.Refused, match="must see every X"):
        sign_proposal(served.space, 1, proposal, **served.access(1))


def test_where_answers_depend_on_every_x_all_are_read(tmp_path):
    served = Served(tmp_path, construction="moments")
    proposal, _ = propose(served.space, freezer=1)
    sign_proposal(served.space, 1, proposal, **served.access(1))
    with pytest.raises(ts.UsageError, match="answers of this round depend on every X"):
        confirm_unseen(served.space, 1, **served.access(1))
    served.hide()
    with pytest.raises(ts.InputMissing, match="no X has arrived from users 1, 2, 3, 4, 5"):
        ts.confirm(served.space, 1, **served.access(1))


def test_a_round_that_is_abandoned_has_no_secret_and_takes_no_step(served):
    with pytest.raises(ts.Refused, match="has not answered yet"):
        ts.forget(served.space, 2, **served.access(2))
    abandon(served.space, 2, **served.access(2))
    space = served.space
    assert not space.secret_path(2).exists()
    assert not any(space.share_path(2, m).exists() for m in USERS)
    assert served.ledger(2).forgotten
    proposal, _ = propose(space, freezer=1)
    sign_proposal(space, 1, proposal, **served.access(1))
    for user in (1, 3, 4, 5):
        confirm_unseen(space, user, **served.access(user))
    with pytest.raises(ts.Refused, match="user 2 has erased its secret of this round"):
        ts.eliminate(space, 2, **served.access(2))
    with pytest.raises(ts.Refused, match="user 2 has erased its secret of this round"):
        ts.mask(space, 2, served.gradients[1], **served.access(2))


def test_a_series_goes_on_after_a_round_was_abandoned(served):
    following = ts.init(served.folder / "next", from_=served.space).round
    ts.offline(following, 2, from_=served.space, **served.access(2))
    abandon(served.space, 2, **served.access(2))
    assert Workspace(following.root).secret_path(2).exists()
    ts.mask(following, 2, served.gradients[1], **served.access(2))
