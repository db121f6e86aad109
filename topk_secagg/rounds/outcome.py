"""What became of a user's X in a round, as far as the user itself can tell.

An X that left counts as sent, whether or not there was a sum: a user that dealt bad shares, or sent
noise, knows its own part of the answers, subtracts it, and has the sum of the honest users alone.
Only survivors.json without it shows the contrary, and only where that binds: signed by the freezer;
in a round with confirmations, confirmed by U users; in a plain round, the first that the user saw.
What others could have written loosens nothing: an aggregate.h5 of unknown origin least of all.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import SecAggError
from ..storage import decoded as decoded_file
from ..storage import survivors as survivors_file
from ..storage.ledger import Ledger, Previous
from ..storage.survivors import Survivors
from ..storage.workspace import Workspace

PUBLISHED = (
    "a round that failed counts as published: "
    "do not send the same gradient again with other survivors"
)


@dataclass(frozen=True)
class Evidence:
    """What a user has in its hands about a round: survivors.json, if there is one that binds, and
    whether its own decoding gave the sum."""

    survivors: Survivors | None = None
    saw_sum: bool = False


def counted(ledger: Ledger, evidence: Evidence) -> bool:
    """Whether the user's X of this round counts as sent: the one place where that is decided."""
    return ledger.masked is not None and not left_out(ledger, evidence)


def left_out(ledger: Ledger, evidence: Evidence) -> bool:
    """Whether the survivors are fixed without the user's X. Who answered has seen itself there."""
    u1 = evidence.survivors
    if u1 is None or ledger.answered is not None:
        return False
    row = u1.rows.get(ledger.user)
    return row is None or row.sha256 != ledger.masked


def not_proposed(space: Workspace, ledger: Ledger) -> bool:
    """Whether somebody proposes survivors without the user's X. That binds nobody yet, and loosens
    nothing."""
    if not space.session.confirm:
        return False
    with suppress(SecAggError):
        return left_out(ledger, Evidence(survivors=survivors_file.read(space)))
    return False


def is_in(ledger: Ledger, evidence: Evidence) -> bool:
    """Whether the user knows that its X is among those of the survivors."""
    if ledger.answered is not None:
        return True
    return counted(ledger, evidence) and evidence.survivors is not None


def is_over(ledger: Ledger, evidence: Evidence) -> bool:
    """Whether nothing that the user holds is needed in the round any more: it sent no X, or
    answered, or was left out, or saw the sum, or gave up."""
    done = ledger.masked is None or ledger.answered is not None or ledger.gave_up
    return done or evidence.saw_sum or left_out(ledger, evidence)


def look(space: Workspace, ledger: Ledger) -> tuple[Ledger, Evidence]:
    """The evidence in the folder of a round. In a plain round the ledger then names the first
    survivors.json that its user saw; the caller holds the user's lock."""
    survivors = _binding(space)
    if survivors is not None and space.session.recipients is None:
        if ledger.seen is None and is_own(space.survivors_path):
            ledger = ledger.record(seen=survivors.digest)
        if survivors.digest != ledger.seen:
            survivors = None
    return ledger, Evidence(survivors=survivors, saw_sum=_saw_sum(space, ledger.session))


def _saw_sum(space: Workspace, session: str) -> bool:
    """Whether this account has decoded a session itself."""
    decoded = decoded_file.read(space, session)
    return decoded is not None and decoded.outcome == decoded_file.DECODED


def _binding(space: Workspace) -> Survivors | None:
    """survivors.json, if it is sound, and signed or confirmed where the round has keys."""
    survivors = survivors_file.fixed(space)
    if survivors is None or not space.session.confirm:
        return survivors
    there = survivors_file.confirmed_by(space, survivors.digest, space.users())
    return survivors if len(there) >= space.session.parameters.survivors else None


def is_own(path: Path) -> bool:
    """Whether only this account can have written a file. (Where each account has a group of its
    own, with its own number, that group is the account.)"""
    with suppress(OSError):
        return all(_is_own(each.stat()) for each in (path, path.parent))
    return False


def _is_own(status: os.stat_result) -> bool:
    if status.st_uid != os.geteuid():
        return False
    others = stat.S_IWOTH if status.st_gid == status.st_uid else stat.S_IWOTH | stat.S_IWGRP
    return not status.st_mode & others


@dataclass(frozen=True)
class Earlier:
    """A round before, as far as it is still here: the ledger of a user, whether its own decoding
    gave the sum, and the round's folder if that still has this session."""

    ledger: Ledger
    saw_sum: bool
    space: Workspace | None

    def looked_at(self) -> tuple[Ledger, Evidence]:
        """What became of the user's X there. The lock of that round is held meanwhile."""
        if self.space is None:
            return self.ledger, Evidence(saw_sum=self.saw_sum)
        with self.space.step_of(self.ledger.user):
            return look(self.space, self.ledger)


def earlier(space: Workspace, user: int, previous: Previous) -> Earlier | None:
    """The round that was before this one; None if the user's ledger of it is gone."""
    root = Path(os.path.normpath(space.root.resolve() / previous.folder))
    there = Workspace(root, space.secrets)
    folder = there.private_of(previous.session)
    path = folder / there.ledger_name(user)
    if not os.path.lexists(path):
        return None
    ledger = Ledger.read(path, previous.session, user)
    if space.secrets is not None and ledger.folder is not None:
        there = Workspace(Path(ledger.folder), space.secrets)
    found = Earlier(ledger, _saw_sum(there, previous.session), None)
    with suppress(SecAggError):
        if there.session.id == previous.session:
            return replace(found, space=there)
    return found
