"""Steps of a round whose files a server moves: it has every X, and the users have their own.

The paper's remark on centralised learning. The server is no user and signs nothing. It proposes the
survivors: their bytes follow from their rows, and enough confirmations of their digest make them
the only set (rounds/freeze.py).
"""

from __future__ import annotations

from typing import Unpack

from ..errors import UsageError
from ..protocol.constructions import construction
from ..storage import survivors as survivors_file
from . import spend
from .access import Step, admitted, taking_part
from .arguments import AnyRound, workspace
from .freeze import ConfirmReport, chosen_masked, confirm_once
from .frozen import rows_of


def propose(round: AnyRound) -> tuple[bytes, dict[int, str]]:
    """survivors.json of the X that are there, and why others are left out.

    Everything in X is checked here, its signature too: who confirms does not see it.
    """
    space = workspace(round)
    files, left_out = chosen_masked(space)
    return survivors_file.content(space.session, rows_of(files), None), left_out


def confirm(round: AnyRound, user: int, proposal: bytes, **access: Unpack[Step]) -> ConfirmReport:
    """Confirm what was proposed, for a user that has no X but its own.

    Only where an answer depends on no X. That the set can be answered is then the word of whoever
    has every X. If it is not true the round fails, as it does when the server sends nothing; an
    honest user still confirms one set in a round, and only with its own X in it.
    """
    space, how = taking_part(round, **access)
    admitted(space, user, how)
    if construction(space.session.parameters).answer_needs_inputs:
        raise UsageError(
            "answers of this round depend on every X", "fetch them, and confirm what is there"
        )
    survivors_file.checked(space, proposal)
    spend.proposed(space, proposal)
    return confirm_once(space, user, how, has_every_x=False)
