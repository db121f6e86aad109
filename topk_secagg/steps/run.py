"""`run`: all steps of all users in one go, through the same files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import Refused, TooFewSurvivors, UsageError
from ..protocol.elimination import answer_shape
from ..storage import survivors as survivors_file
from ..storage.workspace import Workspace
from .access import Access
from .decode import DecodeReport, decode
from .eliminate import EliminateReport, eliminate
from .freeze import freeze
from .mask import MaskReport, mask
from .offline import offline


@dataclass(frozen=True)
class RunReport:
    """Who did what, and what came out."""

    masked: list[MaskReport]
    answered: list[EliminateReport]
    decoded: DecodeReport


def run(
    space: Workspace,
    gradients: Sequence[Path],
    *,
    drop_masking: Collection[int] = (),
    drop_elimination: Collection[int] = (),
    randomness: str = "cipher",
    entry: str = "",
    select: str = "top",
    saturate: bool = False,
    output: Path | None = None,
    mean: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> RunReport:
    """Every user's steps, less those of the users that drop out; gradients[n-1] belongs to user n."""
    users, access = space.users(), Access(insecure=True)  # who runs it has said so
    if len(gradients) != len(users):
        raise UsageError(f"{len(gradients)} gradients for {len(users)} users", "one file per user is needed")
    masking = [user for user in users if user not in drop_masking]
    answering = [user for user in masking if user not in drop_elimination]
    _check_drops(space, masking, answering)
    _check_dropped(space, drop_masking, space.masked_path, "masked")
    _check_dropped(space, drop_elimination, space.answer_path, "answered")
    for user in users:
        note(f"user {user}: offline")
        offline(space, user, randomness=randomness, access=access)
    masked = []
    for user in masking:
        note(f"user {user}: mask")
        masked.append(
            mask(
                space,
                user,
                gradients[user - 1],
                entry=entry,
                select=select,
                saturate=saturate,
                access=access,
            )
        )
    survivors = freeze(space, access=access).survivors
    shape = answer_shape(space.session.parameters, len(survivors))
    answered: list[EliminateReport] = []
    for fallback in (False, True) if len(answering) < shape.quorum else (False,):
        answered = []
        for user in answering:
            note(f"user {user}: eliminate" + (" again, for fewer answers" if fallback else ""))
            answered.append(eliminate(space, user, fallback=fallback, access=access))
    note("decode")
    return RunReport(masked, answered, decode(space, output, mean=mean))


def _check_drops(space: Workspace, masking: list[int], answering: list[int]) -> None:
    """Refuse drop-outs that leave too few users, or that do not fit what has been done."""
    p = space.session.parameters
    least = answer_shape(p, len(masking), fallback=True).quorum
    for left, need, what in ((masking, p.survivors, "mask"), (answering, least, "answer")):
        if len(left) < need:
            raise TooFewSurvivors(
                f"{len(left)} users would {what}, and {need} are needed", "let fewer users drop out"
            )
    if space.survivors_path.exists() and survivors_file.read(space).users != masking:
        raise Refused("the survivors of this round are fixed already, and differ", "choose another folder")


def _check_dropped(space: Workspace, users: Collection[int], file: Callable[[int], Path], what: str) -> None:
    """Refuse to go on with a round in which a user that should drop out did not."""
    for user in users:
        space.check_user(user)
        if file(user).exists():
            raise Refused(f"user {user} has {what} in this round already", "choose another folder")
