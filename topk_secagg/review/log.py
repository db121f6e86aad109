"""`log`: a line for every round, from its public files; where the users' ledgers lie here too, also
how much of their gradients left.

Sums over changing survivors give their differences away: who is left out again and again, and comes
back each time, is seen more closely than in any one sum. So that is warned of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from ..brief import Brief
from ..errors import InputMissing, SecAggError
from ..gradients.tensors import is_path
from ..protocol.constructions import construction
from ..rounds.access import check_pins, taking_part
from ..rounds.arguments import AnyPath, AnyRound
from ..rounds.costs import offline_bytes_in
from ..rounds.user_files import natural
from ..storage import aggregate as aggregate_file
from ..storage import survivors as survivors_file
from ..storage.answer import opened_answer
from ..storage.artifacts import opened
from ..storage.ledger import Ledger
from ..storage.session import FINGERPRINT_DIGITS, Session
from ..storage.survivors import Survivors
from ..storage.workspace import Workspace

_COMES_BACK = 2  # times that a user returns after an absence: from then on it is worth a warning


@dataclass(frozen=True, kw_only=True, repr=False)
class LogRow(Brief):
    """One round: what it sums, who took part, and what a user sent in bytes.

    `size` is K of top-K, the rank of low rank, or else how many entries there are, and `clip`
    the largest of all tensors. `survivors` are None before they are fixed, and `decoded` says that
    there is a sum. `offline_bytes` were sent
    before the gradient, and `plain_bytes` are those of a gradient as it is. `kept_energy` (the
    least), `rounding_error` (the most), `clipped` (of all) and `seconds`, from session.json to the
    sum, are known where ledgers of its users lie.
    """

    round: Path
    session: str
    series: str
    generation: int
    reduction: str
    size: int
    clip: float
    users: int
    survivors: list[int] | None
    answered: list[int]
    decoded: bool
    offline_bytes: int
    masked_bytes: int
    answer_bytes: int
    plain_bytes: int
    kept_energy: float | None = None
    rounding_error: float | None = None
    clipped: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Attendance:
    """Who was in the sum of a round: its series, how many users there are, and the survivors."""

    series: str
    users: int
    survivors: list[int]


@dataclass(frozen=True, repr=False)
class Log(Brief):
    """The rounds of each series by generation; `warnings` say who is absent again and again, and
    `problems` which files cannot be used."""

    rows: list[LogRow]
    warnings: list[str]
    problems: list[str]


def log(
    rounds: AnyRound | Sequence[AnyRound],
    *,
    secrets: AnyPath | None = None,
    series: str | None = None,
    recipients: AnyPath | None = None,
) -> Log:
    """A line for every round, from public files, and from the ledgers of users where they lie.

    Arguments:
    rounds: the folder of a round, or several. Folders without a session.json are left out.
    secrets: the folder of secrets and ledgers, instead of the rounds' own.
    series: refuse rounds of any other series; at least 16 digits of its name, which `init` and
        `inspect` say.
    recipients: refuse a session that has other keys than this file.

    Returns a Log: its `rows`, and `warnings` of users that are absent again and again.
    """
    is_one = is_path(rounds) or isinstance(rounds, Workspace)
    given = cast("Sequence[AnyRound]", [rounds] if is_one else rounds)
    problems: list[str] = []
    spaces = []
    missing = InputMissing("no round is named", "name the folders of rounds")
    for one in given:
        space, access = taking_part(one, secrets=secrets, series=series, recipients=recipients)
        try:
            check_pins(space, access)
            _ = space.session
        except InputMissing as error:
            missing = error
            problems.append(str(error))
            continue
        spaces.append(space)
    if not spaces:
        raise missing
    rows = [_row(space, problems) for space in _in_order(spaces)]
    attended = [
        Attendance(row.series, row.users, row.survivors)
        for row in rows
        if row.survivors is not None
    ]
    return Log(rows, [*absent_again(attended)], problems)


def _in_order(spaces: Sequence[Workspace]) -> list[Workspace]:
    """Series as their first rounds come, each by generation; round 2 comes before round 10."""
    by_name = sorted(spaces, key=lambda space: natural(space.root))
    place: dict[str, int] = {}
    for space in by_name:
        place.setdefault(space.session.series_name, len(place))
    return sorted(
        by_name, key=lambda space: (place[space.session.series_name], space.session.generation)
    )


def _row(space: Workspace, problems: list[str]) -> LogRow:
    """What the files of a round say."""
    session = space.session
    p = session.parameters
    survivors = None
    try:
        survivors = survivors_file.read(space)
    except InputMissing:
        pass
    except SecAggError as error:
        problems.append(str(error))
    decoded = _is_decoded(space, problems)
    c = construction(p)
    return LogRow(
        round=space.root,
        session=session.id,
        series=session.series_name,
        generation=session.generation,
        **_summed(session),
        clip=max(session.clips),
        users=p.users,
        survivors=None if survivors is None else survivors.users,
        answered=[] if survivors is None else _answered(space, survivors, problems),
        decoded=decoded,
        offline_bytes=offline_bytes_in(session),
        masked_bytes=c.masked_bytes,
        answer_bytes=c.answer_bytes(p.users if survivors is None else len(survivors.rows)),
        plain_bytes=session.layout.bytes,
        **_private(space, decoded=decoded),
    )


def _summed(session: Session) -> dict[str, Any]:
    """How a gradient is reduced to what is sent, and how much that is."""
    reduction = session.reduction
    size = session.parameters.top_k if reduction.is_top_k else reduction.rank or reduction.length
    return {"reduction": reduction.name, "size": size}


def _answered(space: Workspace, survivors: Survivors, problems: list[str]) -> list[int]:
    """The survivors that have answered, by what their files say they are."""
    there = []
    for n in survivors.users:
        try:
            with opened_answer(space, n, survivors, verify=False):
                there.append(n)
        except InputMissing:
            pass
        except SecAggError as error:
            problems.append(str(error))
    return there


def _is_decoded(space: Workspace, problems: list[str]) -> bool:
    """Whether there is a sum of this round, by what its file says it is."""
    try:
        with opened(space.aggregate_path, aggregate_file.KIND) as artifact:
            artifact.expect_attributes(space.session.header(0))
            return True
    except InputMissing:
        return False
    except SecAggError as error:
        problems.append(str(error))
        return False


def _private(space: Workspace, *, decoded: bool) -> dict[str, Any]:
    """What only the users know whose ledgers lie here."""
    ledgers = list(_ledgers(space))
    reports = [ledger.report for ledger in ledgers if ledger.report is not None]
    errors = [r.rounding_error for r in reports if r.rounding_error is not None]
    return {
        "kept_energy": min((r.kept_energy for r in reports), default=None),
        "rounding_error": max(errors, default=None),
        "clipped": sum(r.clipped for r in reports) if reports else None,
        "seconds": _seconds(space) if decoded and ledgers else None,
    }


def _ledgers(space: Workspace) -> Iterator[Ledger]:
    """Those of users that keep them here, and that this account may read."""
    for n in space.users():
        with suppress(SecAggError, OSError):
            yield Ledger.read(space.ledger_path(n), space.session.id, n)


def _seconds(space: Workspace) -> float | None:
    """From session.json to the sum, by the times of these files."""
    with suppress(OSError):
        start, end = (path.stat().st_mtime for path in (space.session_path, space.aggregate_path))
        return round(max(0.0, end - start), 1)
    return None


def absent_again(rounds: Sequence[Attendance]) -> Iterator[str]:
    """Who is left out of the sums of a series again and again, and comes back each time; the rounds
    of a series come one after the other."""
    for _, of_series in groupby(rounds, key=attrgetter("series")):
        series = list(of_series)
        for n in range(1, series[0].users + 1):
            present = [n in row.survivors for row in series]
            returns = sum(now and not before for before, now in pairwise(present))
            if returns >= _COMES_BACK:
                yield (
                    f"user {n} was absent in {present.count(False)} of {len(series)} rounds of "
                    f"series {series[0].series[:FINGERPRINT_DIGITS]}, and came back {returns} "
                    "times: the sums with and without it differ by what it sent"
                )
