"""Looking at a round: its status, its files, and whether everything in it is right."""

from __future__ import annotations

import csv as csv_format
import io
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import topk_secagg as ts
from topk_secagg.errors import BadData, Busy, amount

from . import options as o
from . import phases
from .commands import command
from .console import PROGRAM, Console, facts_of, plain
from .phases import series_facts, series_lines

if TYPE_CHECKING:
    from topk_secagg.review.evidence import Finding
    from topk_secagg.review.status import FileStatus, Next, Status, UserStatus
    from topk_secagg.rounds.inspect import Description

_NAMES_IN_WORDS = {"holds": "holds the shares of"}  # facts whose names alone say too little
_UNKNOWN_FILE = "FILE"  # a path that only the user knows
_UNKNOWN_ROUND = "OTHER_ROUND"
_UNKNOWN_SECRETS = "DIR"
# where nobody in particular asks, these are the steps of the users whose files the round waits for
_MAKING_WHAT_IS_MISSING = ("offline", "confirm")


def _number(_context: click.Context, _option: click.Parameter, value: float | None) -> float | None:
    """Refuse nan, which is within every range."""
    if value is not None and math.isnan(value):
        raise click.BadParameter(f"{value} is not a number of seconds")
    return value


@command(
    "Who has done what, and what to do next.",
    *o.space_options,
    o.value("--user", "n", "From the point of view of this user.", kind=o.one_user),
    o.value(
        "--wait",
        "SECONDS",
        "Wait until the next step can be run, or exit 75.",
        kind=click.FloatRange(min=0),
        callback=_number,
    ),
    *o.access_options,
    example="round --user 3 --wait 600",
)
def status(
    console: Console,
    space: ts.Workspace,
    user: int | None,
    wait: float | None,
    **access: Any,
) -> None:
    """Show who has done what in a round, which files of whom are missing, and the next command.

    With --user, also what this user should send to whom. The next command has the --secrets,
    --identity, --session, --series and --recipients that status was given, so that it can be
    pasted; FILE and DIR stand for what status does not know. --wait returns when the next step can
    be run (exit 0), or when the time is up (exit 75).
    """
    status = ts.status(
        space,
        user,
        wait=wait,
        waiting=lambda what: console.say(f"waiting for {what}"),
        **access,
    )
    following = _command(space, status.next, user=user, access=access)
    facts = {
        "users": [_user_facts(u) for u in status.users],
        **series_facts(space.session),
        "survivors": status.survivors.users if status.survivors else None,
        "survivors_sha256": status.survivors.digest if status.survivors else None,
        "next": {
            **facts_of(status.next, "user", "ready", "possible", "missing"),
            "step": status.next.step or None,
            "waits_for": status.next.waits_for or None,
            "command": following or None,
        },
        "send": [{"path": path, "to": whom} for path, whom in status.send],
        **facts_of(status, "foreign_secrets", "problems"),
    }
    console.warn_foreign_secrets(status.foreign_secrets)
    console.warn(*status.problems)
    console.result(facts, space=space)
    console.line(f"session {space.session.fingerprint}, {space.session.parameters.summary()}")
    console.line(*series_lines(space.session))
    _status_table(console, space, status)
    console.line(*(f"send {path} to {whom}" for path, whom in status.send))
    console.line(*_next_lines(status.next, following))
    if wait is not None and not status.next.ready:
        what = status.next.step or "everything"
        raise Busy(f"{what} still waits for {status.next.waits_for}", "run this again later")


def _user_facts(user: UserStatus) -> dict[str, Any]:
    """What there is of one user."""
    states = {"masked": _in_words(user.masked), "answered": _in_words(user.answered)}
    return facts_of(user) | states


def _in_words(file: FileStatus) -> str:
    """The state of a file: yes, nothing, or what is wrong with it."""
    return "yes" if file.sound else file.why


def _status_table(console: Console, space: ts.Workspace, status: Status) -> None:
    """A row for every user."""
    confirms = space.session.confirm
    rows = []
    for u in status.users:
        lacking = [m for m in space.users() if m not in (u.holds or [])]
        shares = "" if u.holds is None else f"lacks {plain(lacking)}"
        if not lacking:
            shares = f"all {len(status.users)}"
        if u.erased:
            shares = "erased"
        survivor = "" if u.survivor is None else "yes" if u.survivor else "dropped out"
        confirmed = ["yes" if u.confirmed else ""] if confirms else []
        x, y = _in_words(u.masked), _in_words(u.answered)
        rows.append([str(u.user), shares, x, survivor, *confirmed, y])
    confirmed_column = ["confirmed"] if confirms else []
    console.table(["user", "shares received", "X", "survivor", *confirmed_column, "Y"], rows)


def _next_lines(following: Next, command: str) -> Iterator[str]:
    """The one next command, if it can be run now; or else what it waits for, and what comes
    then."""
    if not command:
        yield (
            f"waiting for {following.waits_for}" if following.waits_for else "nothing is left to do"
        )
        return
    makes_what_is_missing = following.step in _MAKING_WHAT_IS_MISSING and following.possible
    if not following.ready:
        without = ""
        if following.possible and not makes_what_is_missing:
            them = "it" if len(following.missing) == 1 else "them"
            without = f"; {following.step} can be run without {them}"
        yield f"waiting for {following.waits_for}{without}"
    yield f"{'next' if following.possible else 'then'}: {command}"


def _command(space: ts.Workspace, following: Next, user: int | None, access: dict[str, Any]) -> str:
    """The command for a step, to be pasted; "" if there is none.

    It has those of the options of this call that its step takes.
    """
    step = following.step
    if not step:
        return ""
    names = {option.name for option in getattr(phases, step).params}
    words = [PROGRAM, step, str(space.root)]
    if "user" in names and step != "freeze":
        words += ["--user", _users(space, following, user)]
    if step == "offline" and space.session.series is not None and space.secrets is None:
        words += ["--from", _UNKNOWN_ROUND]
    if step == "mask":
        words += ["--gradient", _UNKNOWN_FILE]
    secrets = space.secrets
    if secrets is None and space.session.recipients:
        secrets = Path(_UNKNOWN_SECRETS)
    given = {
        "secrets": secrets,
        "identity": access["identity"],
        "session": access["session"],
        "series": access["series"],
        "recipients": access["recipients"],
    }
    for name, value in given.items():
        if name in names and value is not None:
            words += [f"--{name}", str(value)]
    return shlex.join(words)


def _users(space: ts.Workspace, following: Next, user: int | None) -> str:
    """Whose step it is: that of the user who asks, or of the users that the round waits for, of
    whom each runs it with its own keys in a sealed round."""
    asked = following.user or user
    if asked:
        return str(asked)
    waited_for = following.users[:1] if space.session.recipients else following.users
    return ",".join(map(str, waited_for))


@command(
    "A line for every round: who, how much, how good.",
    click.Argument(["rounds"], metavar="ROUND...", nargs=-1, required=True, type=o.PATH),
    o.secrets_option,
    o.flag("--csv", "Print a table of comma-separated values, with all columns."),
    *o.pin_options_of_rounds,
    example="work/*",
)
def log(console: Console, rounds: tuple[Path, ...], csv: bool, **pins: Any) -> None:
    """Show a line for every round: what it sums, who took part, and what a user sent.

    Public files are enough. Where ledgers of users lie too, it also shows the least energy that a
    user kept, the most that rounding is expected to add, how many values were clipped, and the
    seconds from session.json to the sum. It warns of users that are absent again and again: sums
    over changing survivors give their differences away. Folders without a session.json are left
    out.
    """
    if csv and console.as_json:
        raise click.UsageError("give either --csv or --json")
    read = ts.log(rounds, **pins)
    rows = [facts_of(row) for row in read.rows]
    console.warn(*read.problems, *read.warnings)
    console.result({"rounds": rows, **facts_of(read, "warnings", "problems")})
    if csv:
        console.line(*_comma_separated(rows))
        return
    shown = {
        title: column
        for title, column in _LOG_COLUMNS.items()
        if title not in _PRIVATE or any(row[column[0]] is not None for row in rows)
    }
    cells = [
        ["" if row[name] is None else show(row[name]) for name, show in shown.values()]
        for row in (row | {"sends": f"{row['reduction']} {row['size']}"} for row in rows)
    ]
    console.table(list(shown), cells, narrow=True)


def _count(users: list[int]) -> str:
    return str(len(users))


# what the columns of the log show: a fact, and in which form
_LOG_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "round": ("round", str),
    "gen": ("generation", str),
    "sends": ("sends", str),
    "clip": ("clip", "{:.3g}".format),
    "N": ("users", str),
    "U1": ("survivors", _count),
    "U2": ("answered", _count),
    "sum": ("decoded", plain),
    "before": ("offline_bytes", amount),
    "with": ("masked_bytes", amount),
    "after": ("answer_bytes", amount),
    "plain": ("plain_bytes", amount),
    "energy": ("kept_energy", "{:.4f}".format),
    "rounding": ("rounding_error", "{:.1e}".format),
    "clipped": ("clipped", str),
    "s": ("seconds", "{:.0f}".format),
}
_PRIVATE = ("energy", "rounding", "clipped", "s")  # which are left out where nobody knows them


def _comma_separated(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A header and a line for each row; the users of a list are separated by spaces."""
    text = io.StringIO()
    writer = csv_format.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        lists = {k: " ".join(map(str, v)) for k, v in row.items() if isinstance(v, list)}
        writer.writerow(row | lists)
    return text.getvalue().splitlines()


@command(
    "Show what a file of a round holds, or which files a round has.",
    click.Argument(["files"], metavar="FILE...|ROUND", nargs=-1, required=True, type=o.PATH),
    o.flag("--reveal", "Show the values in secret files too."),
    example="round/session.json round/masked/user-03.h5",
)
def inspect(console: Console, files: tuple[Path, ...], reveal: bool) -> None:
    """Show what files of a round hold: kind, session, user, shapes, ranges, and whether they are
    intact.

    Of the folder of a round it lists all files, and -v shows what they hold. The values in secrets/
    and shares/ are shown only with --reveal.
    """
    if len(files) == 1 and files[0].is_dir():
        _inspect_round(console, files[0], reveal=reveal)
        return
    found = _described(files, reveal=reveal)
    if found.descriptions:
        console.result({"files": list(map(_description_facts, found.descriptions))})
    found.show(console)
    found.check()


def _inspect_round(console: Console, root: Path, *, reveal: bool) -> None:
    """A row for each file of a round."""
    from topk_secagg.rounds.inspect import files_of_round

    listed = files_of_round(root)
    found = _described(listed.open, reveal=reveal)
    console.result(
        {"files": list(map(_description_facts, found.descriptions)), "sealed": listed.sealed}
    )
    if console.verbose:
        found.show(console)
    else:
        console.warn(*found.warnings)
        rows = [
            (
                d.path,
                d.kind,
                plain(d.facts.get("user", "")),
                "intact" if d.intact else d.problems[0],
            )
            for d in found.descriptions
        ]
        rows += [(path, "", "", error.said_of(path)) for path, error in found.failures.items()]
        rows += [(path, "share", "", "sealed") for path in listed.sealed]
        console.table(
            ("file", "kind", "user", "bytes", "state"),
            [
                (str(path.relative_to(root)), kind, user, f"{path.stat().st_size:,}", state)
                for path, kind, user, state in rows
            ],
            narrow=True,
        )
    found.check()


@dataclass(frozen=True)
class _Described:
    """What files hold, and why others could not be read."""

    descriptions: list[Description]
    failures: dict[Path, ts.SecAggError]

    @property
    def warnings(self) -> list[str]:
        """About names that contradict what is in the file."""
        return [warning for d in self.descriptions for warning in d.warnings]

    def show(self, console: Console) -> None:
        """All that is known about each file."""
        console.warn(*self.warnings)
        for d in self.descriptions:
            state = "intact" if d.intact else "NOT INTACT"
            console.line(f"{d.path}: {d.kind}, {state}")
            console.table((), [*_fact_rows(d), *(("problem", problem) for problem in d.problems)])
            rows = []
            for name, info in d.datasets.items():
                shape = f"{info['type']} {'x'.join(map(str, info['shape']))}"
                extent = f"{plain(info['low'])} to {plain(info['high'])}" if "low" in info else ""
                rows.append((name, shape, extent, plain(info.get("values", ""))))
            if rows:
                console.table(("dataset", "type and shape", "range", "first values"), rows)
            console.line("")

    def check(self) -> None:
        """Fail if a file could not be read, or is not intact."""
        for error in self.failures.values():
            raise error
        for d in self.descriptions:
            if d.problems:
                raise BadData(f"{d.path}: {d.problems[0]}", "fetch or make the file again")


def _described(files: Sequence[Path], *, reveal: bool) -> _Described:
    descriptions = []
    failures = {}
    for path in files:
        try:
            descriptions.append(ts.inspect(path, reveal=reveal))
        except ts.SecAggError as error:
            failures[path] = error
    return _Described(descriptions, failures)


def _description_facts(d: Description) -> dict[str, Any]:
    """What is known about a file, for JSON; nothing in it takes the place of its path."""
    return d.facts | facts_of(d, "path", "kind", "intact", "datasets", "problems")


def _fact_rows(d: Description) -> Iterator[tuple[str, str]]:
    """What is known about a file, in words."""
    for name, value in d.facts.items():
        if name == "fingerprints":
            yield from (
                (f"keys of user {user}", fingerprint) for user, fingerprint in value.items()
            )
        else:
            yield _NAMES_IN_WORDS.get(name, name.replace("_", " ")), plain(value)


@command(
    "Check a round, point by point.",
    *o.space_options,
    o.file(
        "--identity",
        "A user's keys, to open the sealed shares for that user. Repeatable.",
        multiple=True,
    ),
    o.file("--report", "Write the findings as a page too.", "FILE.html"),
    *o.pin_options,
    example="round --report audit.html",
)
def audit(
    console: Console,
    space: ts.Workspace,
    report: Path | None,
    **how: Any,
) -> None:
    """Check a round point by point: pass, fail, or not checkable and why. Exits with 65 if anything
    fails.

    Public files are enough for much of it. Where secrets and shares are available too, it also
    checks that the shares of each user fit together, that masks and places fit X, and that Y can be
    recomputed. It changes nothing in the round, and shows no secret value. It follows no links and
    opens no folder that a round does not have, but names them. It warns of users that are absent
    again and again, as far as rounds of this series before it lie in folders beside this one.
    """
    from topk_secagg.review.evidence import Verdict
    from topk_secagg.review.report import checked, summary, unchecked, unpinned

    with console.progress() as progress:
        audited = ts.audit(
            space,
            report=report,
            program=f"{PROGRAM} {ts.__version__}",
            progress=lambda done: progress("auditing", 0, 1, done),
            **how,
        )
    findings = audited.findings
    failed = audited.failed
    evidence = audited.evidence
    session = evidence.session
    if session:  # else it is too damaged to say whose secrets should not be here
        console.warn_foreign_secrets(space.foreign_secrets())
    keys = session.recipients or () if session else ()
    facts = {
        "session": session and session.id,
        **(series_facts(session) if session else {}),
        "fingerprints": {key.user: key.fingerprint for key in keys},
        **facts_of(evidence, "session_pinned", "series_pinned", "keys_pinned", "warnings"),
        "verdict": "fail" if failed else "pass",
        "counts": {
            verdict.name.lower(): sum(f.verdict is verdict for f in findings) for verdict in Verdict
        },
        "findings": [vars(f) for f in findings],
        "liars_excluded": evidence.liars_excluded,
        "report": report,
    }
    console.result(facts)
    rows = _audit_rows(console, checked(findings))
    console.table(("point", "verdict", "on what, and why"), rows)
    for what, lacking in unchecked(findings).items():
        console.line(f"could not be checked without {what}:")
        without = [(point, text) for point, _, text in _audit_rows(console, lacking)]
        console.table(("point", "on what, and why"), without)
    if session:
        console.line(f"session {session.fingerprint}", *series_lines(session))
    console.line(summary(findings) + (f"; report: {report}" if report else ""))
    if remark := unpinned(evidence):
        console.warn(remark)
    console.warn(*evidence.warnings)
    if failed:
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise BadData(
            f"{space.root} failed the audit: {failed[0].subject}: {failed[0].why}{more}",
            "do not rely on this round before that is explained",
        )


def _audit_rows(console: Console, findings: Sequence[Finding]) -> list[tuple[str, str, str]]:
    """Findings as rows of a table, each point named once."""
    from topk_secagg.review.evidence import Verdict
    from topk_secagg.review.report import condensed

    rows: list[tuple[str, str, str]] = []
    before = ""
    for point, verdict, about, why in condensed(findings, everything=console.verbose):
        text = f"{about}: {why}" if why else about
        shown = "FAIL" if verdict is Verdict.FAIL else verdict
        rows.append(("" if point == before else point, shown, text))
        before = point
    return rows
