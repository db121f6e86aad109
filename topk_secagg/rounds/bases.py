"""The basis on which a user projects: that of the round's basis.h5, or what follows from the last
sum. Where a user has both, they must agree."""

from __future__ import annotations

from contextlib import suppress

from ..algebra.bases import Basis, digest
from ..errors import BadData, SecAggError
from ..storage import basis as basis_file
from ..storage.ledger import Ledger
from ..storage.session import Session
from ..storage.workspace import Workspace
from .following import Following, after_no_sum, after_sum, first, last_sum
from .outcome import earlier


def of_user(space: Workspace, ledger: Ledger) -> list[Basis]:
    """The basis of a round, for a user with this ledger; empty ones where nothing is projected."""
    s = space.session
    if not s.reduction.has_basis:
        return basis_file.of_round(space)
    known = _known(space, ledger)
    if known is None:
        return basis_file.of_round(space)
    if digest(known) != s.basis:
        raise BadData(
            "the basis of this session is not the one that follows from the last sum",
            "ask who started the round; everybody projects on the same basis",
            subject=space.session_path,
        )
    return known


def _known(space: Workspace, ledger: Ledger) -> list[Basis] | None:
    """What the user computes itself; None if it has not all that this takes."""
    if space.session.before is None:
        s = space.session
        return first(s.reduction, s.layout, s.nonce).bases
    if ledger.previous is None:
        return None
    before = earlier(space, ledger.user, ledger.previous)
    if before is None or before.space is None:
        return None
    return following(space.session, before.space)


def following(s: Session, before: Workspace) -> list[Basis] | None:
    """The basis of a session that goes on from another one, if what it follows from is there; an
    empty list where the side is another one."""
    found: Following | None = None
    # a sum or a basis that cannot be read is as good as none: session.json has the digest
    with suppress(SecAggError):
        last = last_sum(before) if s.before == before.session.id else None
        if last is not None:
            found = after_sum(s.reduction, s.layout, s.nonce, last)
        elif s.before == before.session.before:
            found = after_no_sum(s.reduction, s.layout, s.nonce, before)
    if found is None:
        return None
    return found.bases if found.reduction == s.reduction else []
