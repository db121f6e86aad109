"""Which users drop out of a round that one process runs, and whether enough remain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import TooFewSurvivors, UsageError, counted
from ..protocol.parameters import Parameters
from .arguments import user_list


@dataclass(frozen=True)
class Remaining:
    """Who sends an X (U1), and who of these answers (U2)."""

    masking: list[int]
    answering: list[int]

    @property
    def silent(self) -> list[int]:
        """The survivors that do not answer."""
        return [user for user in self.masking if user not in self.answering]

    def check_enough(self, p: Parameters) -> None:
        """Refuse drop-outs after which the round could not be decoded."""
        needs = (
            (self.masking, p.survivors, "mask"),
            (self.answering, p.survivors, "answer"),
        )
        for left, need, what in needs:
            if len(left) < need:
                raise TooFewSurvivors(
                    f"{counted(len(left), 'user')} would {what}, and {need} are needed",
                    "let fewer users drop out",
                )


def remaining(users: Iterable[int], drop_masking: Any, drop_elimination: Any) -> Remaining:
    """Who is left when these users drop out, each of whom must be a user of the round."""
    known = list(users)
    never_mask = _some_of(known, "drop_masking", drop_masking)
    never_answer = _some_of(known, "drop_elimination", drop_elimination)
    masking = [user for user in known if user not in never_mask]
    answering = [user for user in masking if user not in never_answer]
    return Remaining(masking, answering)


def _some_of(known: list[int], name: str, given: Any) -> list[int]:
    users = user_list(name, given)
    for user in users:
        if user not in known:
            raise UsageError(f"there is no user {user} to drop out", f"users are 1 to {len(known)}")
    return users
