"""What leaves a user for good: X, survivors.json, a confirmation, Y. Nothing else writes these.

Whatever is written here is durable in this order, so that wherever a step is stopped, it can be run
again, and what has left is known:

1. the file, and what the user did not send, in the user's private folder (mode 0600);
2. the keyed digest of the input, in user-NN.sent;
3. that this session has taken the residual of an earlier one, in the ledger of that session;
4. the line in the user's ledger;
5. the file in its place, under a temporary name first;
6. and then the copy in the private folder is erased.

Stopped before 4, nothing was spent: the step may be run with something else. Stopped after it, the
same command finishes from the copy (`finish`). A file that is in its place already stays if it is
the same. One that this user may have written is never overwritten by another: a ledger that does
not know it is too old. In a sealed round its signature says that; what anybody could have put there
is replaced.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadData, InputMissing, Refused, SecAggError
from ..storage import answer as answer_file
from ..storage import inputs
from ..storage import masked as masked_file
from ..storage import survivors as survivors_file
from ..storage.artifacts import Content
from ..storage.atomic import (
    PRIVATE,
    erase,
    make_folder,
    mark_done,
    open_regular,
    whole_file,
    write_whole,
)
from ..storage.documents import digest
from ..storage.keys import Identity
from ..storage.ledger import Ledger
from ..storage.survivors import Row, Survivors
from ..storage.workspace import Workspace
from .outcome import Earlier

MASKED = "masked"
SURVIVORS = "survivors"
CONFIRMED = "confirmed"
ANSWERED = "elimination"
WHAT = (MASKED, SURVIVORS, CONFIRMED, ANSWERED)
_PART_BYTES = 1 << 20


@dataclass(frozen=True)
class Masking:
    """An X that was decided: the file, the line in the ledger, what is not sent (None without
    feedback), the digest of the input (None if it is zero everywhere), and the session whose
    residual it takes."""

    x: Content
    line: dict[str, Any]
    residual: Content | None
    input: str | None
    takes: Earlier | None


def masked(space: Workspace, ledger: Ledger, masking: Masking) -> Ledger:
    """Let X out."""
    user = ledger.user

    def stage(path: Path) -> None:
        masking.x.write(path, PRIVATE)
        if masking.residual is not None:
            masking.residual.write(space.residual_path(user))

    def first() -> None:
        if masking.input is not None:
            inputs.record_sent(space, user, space.session.id, masking.input)
        if masking.takes is not None:
            _take(masking.takes, space)

    line = {**masking.line, "masked": masking.x.digest}
    return _spent(
        space, ledger, what=MASKED, place=space.masked_path(user), stage=stage, first=first, **line
    )


def _take(takes: Earlier, space: Workspace) -> None:
    """Note in an earlier session that this one has taken its residual."""
    ledger = takes.ledger
    # where its folder is gone, nobody runs a step there
    lock = nullcontext() if takes.space is None else takes.space.step_of(ledger.user)
    with lock:
        Ledger.read(ledger.path, ledger.session, ledger.user).record(taken_by=space.session.id)


def frozen(space: Workspace, ledger: Ledger, rows: tuple[Row, ...], content: bytes) -> Ledger:
    """Let survivors.json out, of a round that one user freezes."""
    return _spent(
        space,
        ledger,
        what=SURVIVORS,
        place=space.survivors_path,
        stage=lambda path: write_whole(path, content, PRIVATE),
        frozen=digest(content),
        survivors=rows,
    )


def proposed(space: Workspace, content: bytes) -> None:
    """Let survivors.json out where users confirm it: it binds nobody, and is nobody's line."""
    if not _is_there(space.survivors_path, content):
        space.make_room(space.survivors_path)
        write_whole(space.survivors_path, content)


def confirmed(space: Workspace, ledger: Ledger, survivors: Survivors, signer: Identity) -> Ledger:
    """Let a confirmation out."""
    user = ledger.user
    content = survivors_file.confirmation(space.session, user, survivors.digest, signer)
    return _spent(
        space,
        ledger,
        what=CONFIRMED,
        place=space.confirmation_path(user),
        stage=lambda path: write_whole(path, content, PRIVATE),
        confirmed=survivors.digest,
    )


def answered(
    space: Workspace, ledger: Ledger, survivors: Survivors, write: Callable[[Path], None]
) -> Ledger:
    """Let Y out, which `write` computes into a file."""
    return _spent(
        space,
        ledger,
        what=ANSWERED,
        place=space.answer_path(ledger.user),
        stage=write,
        answered=survivors.digest,
    )


def _spent(
    space: Workspace,
    ledger: Ledger,
    *,
    what: str,
    place: Path,
    stage: Callable[[Path], None],
    first: Callable[[], None] = lambda: None,
    **line: Any,
) -> Ledger:
    """The one order in which things leave; see the module."""
    staged = space.staged_path(ledger.user, what)
    make_folder(staged.parent, private=True)
    space.make_room(place)
    stage(staged)
    try:
        check_place(space, staged, place, what, ledger.user)
    except Refused:
        erase(staged)
        raise
    first()
    ledger = ledger.record(**line)
    _put(staged, place)
    erase(staged)
    return ledger


def check_place(space: Workspace, staged: Path, place: Path, what: str, user: int) -> None:
    """Refuse to overwrite a file of another content that may be this user's: then its ledger is too
    old."""
    if not os.path.lexists(place) or _same(staged, place):
        return
    if space.session.recipients is None or _is_signed(space, what, user):
        raise Refused(
            f"{place} is there already, and is not what user {user} would write",
            "was the folder of secrets restored from a backup? then it must not be used: start a "
            "new round; if somebody else put that file there, move it away",
        )


def _is_signed(space: Workspace, what: str, user: int) -> bool:
    """Whether the file in a place is sound, of this session, and signed by this user."""
    try:
        if what == MASKED:
            masked_file.read(space.session, space.masked_path(user), user)
        elif what == SURVIVORS:
            survivors_file.read(space)
        elif what == CONFIRMED:
            return survivors_file.confirmed_before(space, user) is not None
        else:
            return answer_file.answered_before(space, user) is not None
    except BadData:
        return False
    return True


def _put(staged: Path, place: Path) -> None:
    """The copy of a file in its place, where it appears as a whole."""
    if os.path.lexists(place) and _same(staged, place):
        mark_done(place)
        return
    with open_regular(staged, "run the step again") as source, whole_file(place) as target:
        while part := source.read(_PART_BYTES):
            target.write(part)


def _same(one: Path, other: Path) -> bool:
    """Whether two files have the same bytes."""
    with suppress(SecAggError), open_regular(one, "") as a, open_regular(other, "") as b:
        while part := a.read(_PART_BYTES):
            if b.read(_PART_BYTES) != part:
                return False
        return not b.read(1)
    return False


def _is_there(path: Path, content: bytes) -> bool:
    """Whether a file is there with this content; another content is refused."""
    if not os.path.lexists(path):
        return False
    with suppress(SecAggError), open_regular(path, "") as stream:
        if stream.read(len(content) + 1) == content:
            return True
    raise Refused(
        f"{path} is there already, with other survivors", "move it away to propose others"
    )


# what was stopped


def finish_masked(space: Workspace, ledger: Ledger) -> bool:
    """Put the X that the ledger names into its place, if its copy is still here; whether X is
    there."""
    session = space.session
    return _finished(
        space,
        ledger.user,
        what=MASKED,
        place=space.masked_path(ledger.user),
        is_it=lambda path: masked_file.read(session, path, ledger.user).digest == ledger.masked,
    )


def finish_answered(space: Workspace, ledger: Ledger, survivors: Survivors) -> bool:
    """The same for the Y that the ledger names."""

    def is_it(path: Path) -> bool:
        with answer_file.opened_answer(space, ledger.user, survivors, path=path):
            return True

    return _finished(
        space, ledger.user, what=ANSWERED, place=space.answer_path(ledger.user), is_it=is_it
    )


def _finished(
    space: Workspace, user: int, *, what: str, place: Path, is_it: Callable[[Path], bool]
) -> bool:
    staged = space.staged_path(user, what)
    with suppress(BadData, InputMissing):
        if is_it(place):
            erase(staged)
            mark_done(place)
            return True
    with suppress(InputMissing):
        if is_it(staged):
            check_place(space, staged, place, what, user)
            space.make_room(place)
            _put(staged, place)
            erase(staged)
            return True
    return False
