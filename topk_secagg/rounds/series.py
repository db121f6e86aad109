"""A series of rounds: a user's chain goes forwards, and only its user's own counting moves it.

Whether it may go to another session is decided by `check_may_go_on`, from what the user itself has:
its chain, and its ledger of the session that the chain is at. What another party says may make it
stop, never go back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import Advice, BadData, Busy, InputMissing, Refused, SecAggError, UsageError, about
from ..protocol.family import check_family
from ..storage import chain as chain_file
from ..storage import dealt as dealt_file
from ..storage.chain import Chain
from ..storage.keys import Identity
from ..storage.ledger import Ledger, Previous
from ..storage.session import Session
from ..storage.share import HeldKeys, SharesOfUser
from ..storage.workspace import Workspace
from . import barrier
from .outcome import Earlier, Evidence, earlier, is_over

MOST_AT_ONCE = 100  # generations; a longer way needs the user's word
_WORDS = {  # for what a series keeps
    "users": "number of users",
    "survivors": "number of survivors",
    "colluders": "number of colluders",
    "points": "set of points",
    "family": "family of blocks",
    "recipients": "list of recipients",
    "freezer": "freezer",
    "confirm": "rule of confirmation",
}


# where a chain is


def chain_path(space: Workspace, user: int, before: Workspace | None = None) -> Path:
    """The file of a user's chain. Without a folder of secrets, the ledger of this round or of an
    earlier one says where it is."""
    path = space.chain_path(user)
    if path is not None:
        return path
    with suppress(InputMissing):
        ledger = Ledger.read(space.ledger_path(user), space.session.id, user)
        if ledger.chain is not None:
            return Path(os.path.normpath(space.private / ledger.chain))
    if before is None:
        raise InputMissing(
            f"this round is generation {space.session.generation} of a series: it goes on from an"
            " earlier round",
            "name that round",
            Advice.FROM,
        )
    return chain_path(before, user)


def seen_from(space: Workspace, path: Path) -> str | None:
    """How the ledger of a round names the file of its chain, where no folder of secrets has it."""
    if space.chain_path(1) is not None:
        return None
    return os.path.relpath(path.resolve(), space.private.resolve())


@contextmanager
def step_of(space: Workspace, user: int) -> Iterator[None]:
    """The locks under which a user's step runs: of the round, and of the user's chain."""
    with space.step_of(user), space.chain_of(chain_path(space, user)):
        yield


def read_chain(space: Workspace, user: int) -> Chain:
    """The chain of a user, which must be at this session."""
    chain = stored(space, user, chain_path(space, user))
    if chain.session != space.session.id:
        where = f"generation {chain.generation}, in session {chain.session[:16]}"
        raise Refused(
            f"user {user} has gone on to {where}: what this round needs is erased",
            "its part in this round is over",
        )
    return chain


def stored(space: Workspace, user: int, path: Path) -> Chain:
    """The chain in a file, at whatever session it is."""
    if not os.path.lexists(path):
        raise lost(space, user, path)
    return chain_file.read(path, space.session, user)


def lost(space: Workspace, user: int, path: Path) -> InputMissing:
    """What it means that a user's chain is not where it belongs: no step can make it again."""
    session = space.session
    what = "the place" if session.family is None else "the keys"
    return InputMissing(
        f"{path} is not there, which has {what} of user {user} in this series",
        f"if that is lost, the others go on without user {user} while "
        f"{session.parameters.survivors} of them remain, and it takes part again once a series "
        "with new keys is started; else name the folder of its secrets",
        Advice.SECRETS_FOLDER,
    )


def store(space: Workspace, user: int, chain: Chain) -> None:
    """Replace the file of a user's chain."""
    chain_file.write(chain_path(space, user), space.session, chain)


# forwards


@dataclass(frozen=True)
class Standing:
    """How a user stands in the session that its chain is at: its ledger and what it can see, if
    they are here, and whether the folder of that round now has the session to which it goes on."""

    ledger: Ledger | None
    evidence: Evidence
    is_replaced: bool

    @property
    def may_be_out(self) -> bool:
        """Whether an X of the user may have left there."""
        return self.ledger is None or self.ledger.masked is not None

    @property
    def is_needed(self) -> bool:
        """Whether what the user holds there may still be needed."""
        if self.ledger is None or self.is_replaced:
            return False
        return not is_over(self.ledger, self.evidence)


def check_may_go_on(
    chain: Chain, session: Session, standing: Standing, *, skip_generations: bool
) -> None:
    """Refuse to move a chain backwards or sideways, very far, or away from where it is needed."""
    user = chain.user
    steps = session.generation - chain.generation
    if steps < 0:
        raise Refused(
            f"user {user} is at generation {chain.generation} of this series, and this round is "
            f"generation {session.generation}: keys never go back",
            "ask for a session of a later generation",
            Advice.GENERATION,
        )
    if steps == 0 and standing.may_be_out:
        raise Refused(
            f"user {user} has masked in another session of generation {session.generation}",
            "keys serve one session; ask for one of a later generation",
            Advice.GENERATION,
        )
    if steps > MOST_AT_ONCE and not skip_generations:
        raise Refused(
            f"this round is {steps} generations after the one that user {user} is at, and what is "
            "between would be lost",
            "ask who started it whether that is right",
            Advice.SKIP_GENERATIONS,
        )
    if standing.is_needed:
        assert standing.ledger is not None
        where = standing.ledger.folder or standing.ledger.path.parent.parent
        raise Busy(
            f"the X of user {user} is out in session {chain.session[:16]}, and it has not answered "
            "there",
            "answer that round first, or decode it; a user that is not among its survivors goes on "
            f"as soon as they are frozen ({where})",
            Advice.GIVE_UP,
        )


def standing_of(space: Workspace, user: int, chain: Chain, path: Path) -> tuple[Standing, Previous]:
    """How a user stands where its chain is, and how this round names that round."""
    folder = Path(os.path.normpath(path.parent.resolve() / chain.folder))
    previous = Previous(chain.session, os.path.relpath(folder, space.root.resolve()))
    before = earlier(space, user, previous)
    if before is None:
        return Standing(None, Evidence(), is_replaced=False), previous
    ledger, evidence = before.looked_at()
    is_replaced = before.space is None and _folder(before, folder) == space.root.resolve()
    return Standing(ledger, evidence, is_replaced=is_replaced), previous


def _folder(before: Earlier, folder: Path) -> Path:
    return folder if before.ledger.folder is None else Path(before.ledger.folder)


def advanced(space: Workspace, chain: Chain, path: Path) -> Chain:
    """The chain at this session, with its family checked for this field."""
    return with_family_checked(
        space, chain.at(space.session, chain_file.relative(space.root, path))
    )


def with_family_checked(space: Workspace, chain: Chain) -> Chain:
    """Refuse a family with which T users would learn more than the sum. A series keeps points and
    family, so that each is checked once for every field."""
    session = space.session
    field = session.parameters.field
    if session.family is None or chain.checked == field:
        return chain
    with about(space.session_path):
        check_family(session.parameters, session.points, session.family)
    return replace(chain, checked=field)


def check_same_series(session: Session, before: Session) -> None:
    """Refuse a round that this one cannot go on from: of another series, not an earlier one, or
    that kept not what it must keep."""
    if before.id == session.id:
        raise UsageError("a round does not go on from itself", "name an earlier round")
    if before.series_root != session.series_root:
        raise BadData(
            "the earlier round does not belong to the series of this one",
            "name a round of the same series",
        )
    for name, value in session.kept_in_series().items():
        if before.kept_in_series()[name] != value:
            raise BadData(
                f"this round has another {_WORDS[name]} than its series",
                "do not use it: ask who started it",
            )
    if before.generation >= session.generation:
        raise BadData(
            f"the round that is named is generation {before.generation}, and this one is "
            f"generation {session.generation}: it is not an earlier one",
            "name a round before this one",
        )


def latest_generation(before: Workspace) -> int:
    """The latest generation of a round's series that is known here: its own, and those of the
    chains in the folder of secrets, or beside the root round's."""
    session = before.session
    known = [session.generation]
    for path in _chains_near(before):
        with suppress(SecAggError):  # that of another account, or of another program
            known.append(chain_file.generation_in(path, session.series_root))
    return max(known)


def _chains_near(before: Workspace) -> Iterator[Path]:
    """The files of the users' chains, as far as they can be found from a round."""
    if before.secrets is not None:
        yield from before.secrets.glob(f"user-*.chain-{before.session.series_root[:16]}.h5")
        return
    for user in before.users():
        with suppress(SecAggError):
            path = chain_path(before, user)
            if path.exists():
                yield path


# what a user holds


@dataclass(frozen=True)
class Holding:
    """A user's chain with every dealer entered whose keys are here, who is missing, and what is
    wrong with the keys of others."""

    chain: Chain
    missing: list[int]
    bad: dict[int, str]


def enter(
    space: Workspace,
    chain: Chain,
    identity: Identity | None,
    only: Iterator[int] | None = None,
) -> Holding:
    """Enter the dealers whose keys of the root round have arrived, each compared with its list.

    `only` are those that may still be entered, once the user's X has left.
    """
    user = chain.user
    wanted = set(space.users() if only is None else only) - set(chain.lists)
    lacking = [m for m in space.users() if m not in chain.lists]
    root = _root_space(space, chain) if lacking else space
    missing = []
    bad = {}
    for m in lacking:
        if root is None or (m not in wanted and not SharesOfUser(root, user).is_there(m)):
            missing.append(m)
        elif m in wanted:
            try:
                with barrier.around(root.share_path(user, m)):
                    chain = chain.entered(m, *_compared(root, user, dealer=m, identity=identity))
            except InputMissing:
                missing.append(m)
            except BadData as error:
                bad[m] = error.said_of(root.share_path(user, m))
    return Holding(chain, missing, bad)


def _compared(
    root: Workspace, user: int, dealer: int, identity: Identity | None
) -> tuple[dict[tuple[int, ...], bytes], str]:
    """The keys that a dealer gave a user, and the digest of the dealer's list, which they fit."""
    with SharesOfUser(root, user, identity).opened(dealer) as share:
        assert isinstance(share, HeldKeys)
        listed = dealt_file.read(root, dealer)
        listed.check(share.keys)
        return dict(share.keys), listed.digest


def _root_space(space: Workspace, chain: Chain) -> Workspace | None:
    """The root round of the series, if its folder is known and still has it."""
    session = space.session
    if session.series is None:
        return space
    path = chain_path(space, chain.user)
    folder = path.parent.parent
    if space.secrets is not None:
        with suppress(SecAggError):
            ledger = Ledger.read(
                space.private_of(chain.series) / space.ledger_name(chain.user),
                chain.series,
                chain.user,
            )
            folder = Path(ledger.folder or folder)
    root = Workspace(folder, space.secrets)
    with suppress(SecAggError):
        if root.session.id == chain.series:
            return root
    return None
