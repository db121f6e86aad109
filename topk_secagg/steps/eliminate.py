"""`eliminate`: Y_n for the frozen survivor set."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..errors import BadData, Refused, UsageError
from ..protocol.elimination import answer_blocks
from ..protocol.parameters import SYMBOL_BYTES
from ..storage.artifacts import Attributes, creating
from ..storage.atomic import allow_open_files, make_folder, whole_file
from ..storage.keys import Identity
from ..storage.ledger import Ledger
from ..storage.public import answered_before, read_frozen, read_survivors
from ..storage.residual import commit_residual
from ..storage.sealing import sealed_share_rows
from ..storage.shares import ShareFile, share_rows
from ..storage.workspace import Workspace
from .identity import own_identity
from .offline import Progress


@dataclass(frozen=True)
class EliminateReport:
    """What `eliminate` did."""

    user: int
    path: Path
    survivors: list[int]
    survivors_digest: str
    syndromes: bool
    payload: int


def eliminate(
    space: Workspace, user: int, progress: Progress = lambda _: None, identity: Path | None = None
) -> EliminateReport:
    """Read U1, its X and the shares of U1 for this user, and write Y_n; one survivor set per round."""
    space.check_user(user)
    session = space.session
    p = session.parameters
    survivors = read_survivors(space)
    count = len(survivors.digests)
    if user not in survivors.digests:
        raise UsageError(
            f"user {user} is not among the survivors",
            "it dropped out of this round and has nothing to answer",
        )
    opener = own_identity(space, user, identity)
    with space.step_of(user):
        ledger = Ledger.read(space.ledger_path(user), session.id, user)
        if survivors.digests[user] != ledger.masked:
            raise BadData(
                f"survivors.json names an X of user {user} that this user did not send",
                "somebody replaced masked/ or survivors.json; do not answer",
            )
        ledger.check_answer(survivors.digest)
        if answered_before(space, user) not in (None, survivors.digest):
            raise Refused(
                f"user {user} has answered another survivor set in this round already",
                "was secrets/ restored from a backup? do not answer; start a new round",
            )
        frozen = read_frozen(space, survivors)
        shape = (p.groups, p.answer_width(count))
        path = space.answer_path(user)
        make_folder(path.parent)
        allow_open_files(2 * count)
        with ExitStack() as files:
            shares = {}
            for m, x in frozen.items():
                expected = session.header(user, sender=m, sharing=x.sharing)
                shares[m] = files.enter_context(_share(space, user, m, expected, opener))
            attributes = session.header(user, survivors=survivors.digest)
            # durable before a byte of Y is anywhere that others can see
            ledger = ledger.answer(survivors.digest)
            temporary = files.enter_context(whole_file(path))
            sign = partial(opener.sign, "elimination") if opener else None
            with creating(temporary, "elimination", attributes, {"y": ("<u4", shape)}, sign) as writer:
                for start, answer in answer_blocks(p, {m: x.masked for m, x in frozen.items()}, shares):
                    writer.write("y", start, answer)
                    progress((start + len(answer)) / p.groups)
        if ledger.residual:
            staged = space.residual_path(user)
            if not ledger.residual.committed:
                commit_residual(staged, ledger.residual, user, p.length)
                ledger.settle_residual()
            staged.unlink(missing_ok=True)
    payload = shape[0] * shape[1] * SYMBOL_BYTES
    users = sorted(survivors.digests)
    return EliminateReport(user, path, users, survivors.digest, p.by_syndromes(count), payload)


def _share(
    space: Workspace, user: int, sender: int, expected: Attributes, opener: Identity | None
) -> AbstractContextManager[ShareFile]:
    """The share that user `user` holds of user `sender`, plain or sealed."""
    session = space.session
    path = space.share_path(user, sender)
    if session.recipients is None or opener is None:
        return share_rows(session.parameters, path, expected)
    scratch = space.secret_path(user).parent
    return sealed_share_rows(
        session.parameters, path, expected, session.recipients[sender - 1], opener, scratch
    )
