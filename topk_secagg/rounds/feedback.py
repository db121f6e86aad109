"""Error feedback: what a user did not send in the round of its last X that counted.

Nothing is committed after a round. The next one looks back, from the round that its ledger names as
`previous`, until it finds an X that counts as sent (rounds/outcome.py), and takes the residual of
that round, once: an X that took it is named there before it leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import BadData, InputMissing
from ..gradients.arrays import Vector
from ..storage import inputs
from ..storage import residual as residual_file
from ..storage.ledger import NOTHING, Ledger, Previous
from ..storage.workspace import Workspace
from .outcome import Earlier, counted, earlier

_FROM_ZERO = "mask without the feedback to start from zero"


@dataclass(frozen=True)
class Carried:
    """The residual that a round takes, and from which earlier one: none where there is nothing to
    take."""

    source: Earlier | None
    value: Vector | None

    @property
    def name(self) -> str:
        """What the ledger says about it."""
        return NOTHING if self.source is None else self.source.ledger.session

    def added_to(self, flat: Vector, weight: float, decay: float) -> Vector:
        """input + decay * residual / weight: times the weight, it is what is to be sent."""
        return flat if self.value is None else added(flat, self.value, decay / weight)


def added(flat: Vector, residual: Vector, share: float) -> Vector:
    """The gradient and a share of what was not sent before; two finite values can add up to one
    that is not."""
    with np.errstate(over="ignore"):
        total: Vector = flat + share * residual
    if not np.isfinite(total).all():
        raise BadData("gradient and residual add up to values that are not finite", _FROM_ZERO)
    return total


def carried(space: Workspace, ledger: Ledger, length: int) -> Carried:
    """The residual of the user's last X that counted, a vector of this length."""
    source, passed = _last_counted(space, ledger)
    if source is None or source.ledger.residual is None:
        return Carried(None, None)
    if source.ledger.taken_by not in (None, ledger.session, *passed):
        _check_free(space, source)
    value = residual_file.read(
        source.space or space,
        ledger.user,
        session=source.ledger.session,
        digest=source.ledger.residual,
        length=length,
    )
    return Carried(source, value)


def carried_from(before: Workspace, user: int, session: str, length: int) -> Carried:
    """The same for a round that will go on from another one, and has no ledger yet."""
    there = before.session
    ahead = Ledger(
        before.ledger_path(user),
        session=session,
        user=user,
        series=there.series_root,
        generation=there.generation,
        previous=Previous(there.id, "."),
    )
    return carried(before, ahead, length)


def _last_counted(space: Workspace, ledger: Ledger) -> tuple[Earlier | None, set[str]]:
    """The last round before in which the user sent an X that counts, if there is one; and the
    sessions after it, in which none does."""
    there, previous = space, ledger.previous
    passed: set[str] = set()
    while previous is not None:
        before = earlier(there, ledger.user, previous)
        if before is None or previous.session in passed:
            raise InputMissing(
                f"the ledger of user {ledger.user} of the round before is gone from "
                f"{there.root / previous.folder}",
                _FROM_ZERO,
            )
        if counted(*before.looked_at()):
            return before, passed
        passed.add(previous.session)
        there, previous = before.space or there, before.ledger.previous
    return None, passed


def _check_free(space: Workspace, source: Earlier) -> None:
    """Refuse a residual that an X of another session took, unless that is known to be in no sum."""
    ledger = source.ledger
    taker = None
    if space.secrets is not None and ledger.taken_by is not None:
        taker = earlier(space, ledger.user, Previous(ledger.taken_by, "."))
    if taker is not None:
        its_ledger, evidence = taker.looked_at()
        if not counted(its_ledger, evidence):
            return
    raise BadData(
        f"the residual of session {ledger.session[:16]} went into session "
        f"{str(ledger.taken_by)[:16]}, a later round than that one",
        f"go on from the later round; a training that goes back starts anew: {_FROM_ZERO}",
    )


def check_name(space: Workspace, ledger: Ledger, file_name: str) -> None:
    """Refuse a gradient whose file has the name that the round before knows as another user's: in
    another order of the files, residuals would go to the wrong users."""
    previous = ledger.previous
    before = None if previous is None else earlier(space, ledger.user, previous)
    if before is None:
        return
    there = before.space or space
    key = inputs.read_key(there)
    if key is None:
        return
    name = inputs.name_digest(key, file_name)
    if before.ledger.name in (None, name):
        return
    for path in before.ledger.path.parent.glob("user-*.ledger.json"):
        if path != before.ledger.path and name.encode() in path.read_bytes():
            raise BadData(
                f"{file_name} is the name that another user's gradient had in the round before",
                "give every user its own gradient: shells and programs sort numbers differently",
            )
