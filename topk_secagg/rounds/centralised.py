"""Steps of a round whose files a server moves: it has every X, and the users have their own.

The paper's remark on centralised learning. The server is no user and signs nothing. It proposes
the survivors, one user signs them, and all confirm: the signature of survivors.json is the word of
one user in any case, and enough confirmations make it the only set (rounds/freeze.py).
"""

from __future__ import annotations

from typing import Unpack

from ..errors import Refused, UsageError
from ..protocol.constructions import construction
from ..storage import survivors as survivors_file
from ..storage.atomic import write_whole
from ..storage.documents import digest
from ..storage.ledger import Ledger
from .access import TakingPart, admitted, check_pins, taking_part
from .arguments import AnyRound, workspace
from .freeze import ConfirmReport, FreezeReport, chosen_masked, confirm_once


def propose(round: AnyRound, freezer: int) -> tuple[bytes, dict[int, str]]:
    """survivors.json of the X that are there, for `freezer` to sign; and why others are left out.

    Everything in X is checked here, its signature too: who signs and confirms does not see it.
    """
    space = workspace(round)
    files, left_out = chosen_masked(space)
    rows = survivors_file.rows_of(files)
    return survivors_file.content(space.session, rows, freezer=freezer, signer=None), left_out


def sign_proposal(
    round: AnyRound, user: int, proposal: bytes, **access: Unpack[TakingPart]
) -> FreezeReport:
    """`freeze` for a user that has no X but its own: sign what was proposed, once in a round.

    Only where users confirm: else this signature alone would fix the survivors.
    """
    space, how = taking_part(round, **access)
    signer = admitted(space, user, how)
    session = space.session
    if not session.confirm or signer is None:
        raise Refused(
            "one user fixes the survivors of this round alone, and must see every X",
            "freeze it where every X is",
        )
    _, body = survivors_file.parse(space.survivors_path, proposal)
    rows = body["survivors"]
    content = survivors_file.content(session, rows, freezer=user, signer=signer)
    survivors = survivors_file.checked(space, content)
    with space.step_of(user):
        ledger = Ledger.read(space.ledger_path(user), session.id, user)
        survivors_file.check_own_row(survivors, ledger)
        ledger.check_survivors(survivors.digest, "frozen", "confirmed", "answered")
        ledger.record(frozen=digest(content), survivors=rows)
        write_whole(space.survivors_path, content)
    return FreezeReport(
        freezer=user,
        survivors=survivors.users,
        survivors_sha256=survivors.digest,
        written=True,
    )


def confirm_unseen(round: AnyRound, user: int, **access: Unpack[TakingPart]) -> ConfirmReport:
    """`confirm` for a user that has no X but its own.

    Only where an answer depends on no X. That the set can be answered is then the word of whoever
    has every X. If it is not true the round fails, as it does when the server sends nothing; an
    honest user still confirms one set in a round, and only with its own X in it.
    """
    space, how = taking_part(round, **access)
    check_pins(space, how)
    if not construction(space.session.parameters).needs_masked_sum:
        raise UsageError(
            "answers of this round depend on every X", "fetch them, and confirm what is there"
        )
    return confirm_once(space, user, how, has_every_x=False)


def abandon(round: AnyRound, user: int, **access: Unpack[TakingPart]) -> None:
    """Erase the secret of a round that its user will never answer, because it is over.

    `forget` waits for the survivors, and a round that was skipped never has any. The ledger stays,
    and refuses every further step. The keys of this round go too: where a series goes on, its next
    round must have been prepared.
    """
    space, how = taking_part(round, **access)
    check_pins(space, how)
    space.check_user(user)
    with space.step_of(user):
        ledger = Ledger.read(space.ledger_path(user), space.session.id, user)
        ledger.record(forgotten=True, input=None)
        paths = [space.secret_path(user), space.held_path(user), space.residual_path(user)]
        paths += [space.share_path(user, m) for m in space.users()]
        for path in paths:
            path.unlink(missing_ok=True)
