"""`freeze`: fix the survivor set U1, with the digest of each X in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import InputMissing, Refused, TooFewSurvivors
from ..storage.atomic import write_whole
from ..storage.documents import digest
from ..storage.public import read_masked, read_survivors, survivors_bytes
from ..storage.workspace import Workspace


@dataclass(frozen=True)
class FreezeReport:
    """U1, and whether this call made it so."""

    survivors: list[int]
    digest: str
    written: bool


def freeze(space: Workspace, only: Iterable[int] | None = None) -> FreezeReport:
    """Write survivors.json for the users that have masked, or for those in `only`."""
    p = space.session.parameters
    with space.step_of_all():
        present = list(space.present("masked"))
        chosen = present if only is None else sorted(set(only))
        for user in chosen:
            space.check_user(user)
            if user not in present:
                raise InputMissing(
                    f"{space.masked_path(user)} is not there", f"user {user} has not masked; leave it out"
                )
        if len(chosen) < p.survivors:
            raise TooFewSurvivors(
                f"{len(chosen)} users {'have masked' if only is None else 'are named'}, "
                f"and {p.survivors} must survive",
                "wait for more users to run `topk-secagg mask`",
            )
        files = {user: read_masked(space.session, space.masked_path(user), user) for user in chosen}
        content = survivors_bytes(
            space, {n: x.digest for n, x in files.items()}, {n: x.weight for n, x in files.items()}
        )
        if space.survivors_path.exists():
            before = read_survivors(space)
            if before.digest != digest(content):
                raise Refused(
                    f"the survivors of this round are fixed already: {_list(before.digests)}",
                    "whoever came late drops out of this round; use survivors.json as it is",
                )
            return FreezeReport(chosen, digest(content), written=False)
        write_whole(space.survivors_path, content)
    return FreezeReport(chosen, digest(content), written=True)


def _list(users: Iterable[int]) -> str:
    return ", ".join(map(str, users))
