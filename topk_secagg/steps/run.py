"""`run`: all steps of all users in one go, through the same files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import Refused, TooFewSurvivors, UsageError
from ..storage.public import read_survivors
from ..storage.workspace import Workspace
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


def _check_dropped(space: Workspace, users: Collection[int], file: Callable[[int], Path], what: str) -> None:
    """Refuse to go on with a round in which a user that should drop out did not."""
    for user in users:
        space.check_user(user)
        if file(user).exists():
            raise Refused(f"user {user} has {what} in this round already", "take another folder")


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
    users = space.users()
    if len(gradients) != len(users):
        raise UsageError(f"{len(gradients)} gradients for {len(users)} users", "one file per user is needed")
    masking = [user for user in users if user not in drop_masking]
    if len(masking) < space.session.parameters.survivors:
        raise TooFewSurvivors(
            f"{len(masking)} users would mask, and {space.session.parameters.survivors} must survive",
            "let fewer users drop out",
        )
    answering = [user for user in masking if user not in drop_elimination]
    if len(answering) < space.session.parameters.quorum:
        raise TooFewSurvivors(
            f"{len(answering)} users would answer, and {space.session.parameters.quorum} answers are needed",
            "let fewer users drop out",
        )
    if space.survivors_path.exists() and list(read_survivors(space).digests) != masking:
        raise Refused("the survivors of this round are fixed already, and others", "take another folder")
    _check_dropped(space, drop_masking, space.masked_path, "masked")
    _check_dropped(space, drop_elimination, space.answer_path, "answered")
    for user in users:
        note(f"user {user}: offline")
        offline(space, user, randomness)
    masked = []
    for user in masking:
        note(f"user {user}: mask")
        masked.append(mask(space, user, gradients[user - 1], entry=entry, select=select, saturate=saturate))
    survivors = freeze(space).survivors
    answered = []
    for user in survivors:
        if user not in drop_elimination:
            note(f"user {user}: eliminate")
            answered.append(eliminate(space, user))
    note("decode")
    return RunReport(masked, answered, decode(space, output, mean=mean))
