"""The X of the survivors: each must be the one that survivors.json names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from ..algebra.parallel import ahead
from ..errors import BadData, InputMissing, named_users
from ..protocol.constructions import construction
from ..storage import masked as masked_file
from ..storage.masked import MaskedFile
from ..storage.survivors import Row, Survivors
from ..storage.workspace import Workspace

_LARGE_BYTES = 1 << 20  # of an X that is worth a thread


def rows_of(files: Mapping[int, MaskedFile]) -> tuple[Row, ...]:
    """What survivors.json says about these X, in the order of their users."""
    return tuple(_row(n, x) for n, x in sorted(files.items()))


def _row(user: int, x: MaskedFile) -> Row:
    return Row(user=user, sha256=x.digest, weight=x.weight, sharing=x.sharing, dealt=x.dealt)


def check_arrived(what: str, files: Mapping[int, Path]) -> None:
    """Refuse to start while files of some users are missing; the message names them all."""
    missing = [n for n, path in files.items() if not path.exists()]
    if missing:
        folder = next(iter(files.values())).parent
        raise InputMissing(
            f"no {what} has arrived from {named_users(missing)} in {folder}",
            f"fetch what is missing from {named_users(missing)}",
        )


def read_frozen(space: Workspace, survivors: Survivors) -> dict[int, MaskedFile]:
    """Every X of U1, each the one that was frozen."""
    return dict(each_frozen(space, survivors))


def each_frozen(space: Workspace, survivors: Survivors) -> Iterator[tuple[int, MaskedFile]]:
    """The same one after the other, so that few are in memory; none if one has not arrived. While
    one is used, the next large one is read."""
    check_arrived("X", {n: space.masked_path(n) for n in survivors.users})
    large = construction(space.session.parameters).masked_bytes > _LARGE_BYTES
    calls = (partial(_frozen, space, row) for row in survivors.rows.values())
    yield from zip(survivors.users, ahead(calls, threads=1 if large else 0), strict=True)


def _frozen(space: Workspace, row: Row) -> MaskedFile:
    """One X of the survivors."""
    path = space.masked_path(row.user)
    x = masked_file.read(space.session, path, row.user)
    if _row(row.user, x) != row:
        raise BadData(
            f"{path} is not the file that was frozen",
            "fetch the X that survivors.json names by its digest",
        )
    return x
