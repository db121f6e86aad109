"""Everything a person reads: messages in lower case without a period, a hint after each error.

Results go to standard output, as a table or (with --json) as one object; all else to standard error.
Only click is loaded here at first; rich comes when something is really drawn.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click

import topk_secagg as ts
from topk_secagg.errors import amount

PROGRAM = "topk-secagg"
_WIDTH = 120  # of a table that goes to a file or a pipe

# what to do about an error, in the words of the command line
HINTS = {
    "again": "{hint}; --again sends it all the same",
    "clip": "{hint}: mask with --saturate, or init with --clip",
    "clip-twice": "give either --clip C or --clip-from-sum F",
    "clips": "{hint}: run with --saturate, or start a new round with --clip {value}",
    "density": "{hint}: --density 0.01, --density 1.0 or --top-k K",
    "decode-first": "{hint}: topk-secagg decode {value} --secrets DIR; mask --again does not ask",
    "disk": "compare the constructions with `topk-secagg plan`",
    "entry": "choose one with --entry; {hint}",
    "fallback": "{hint}: topk-secagg eliminate {value} --user n --fallback",
    "identity": "add --identity FILE (see `topk-secagg keygen`)",
    "insecure": "{hint}: add --insecure",
    "like": "give either --like FILE or --length L; --entry, --strip-prefix, --only and --exclude go with --like",
    "names": "check the file, --only and --exclude",
    "no-entry": "leave out --entry; {hint}",
    "prefix": "{hint}: add --strip-prefix {value}",
    "secrets": "{hint}: add --secrets DIR",
    "seed": "leave out --randomness os",
    "session-prefix": "{hint}: init with --strip-prefix {value}",
    "strict": "{hint}; without --strict, the sum comes with how many liars its answers exclude",
    "top-k": "give either --top-k K or --density SHARE",
    "weight": "{hint}: init --max-weight",
    "without-them": "{hint}; --without-them masks all the same",
}

# what is under way, the user that has finished it (0 for none yet), of how many; or how much of it is done
Note = Callable[..., None]


@dataclass(frozen=True)
class Console:
    """How this call of a command wants to be answered."""

    command: str
    as_json: bool
    quiet: bool
    verbose: bool

    def say(self, *messages: str) -> None:
        """Lines about what was done, on standard error."""
        for message in messages if not self.quiet else ():
            click.echo(printable(message), err=True)

    def warn(self, *messages: str) -> None:
        """Lines that even -q shows."""
        for message in messages:
            click.echo(printable(f"{PROGRAM}: warning: {message}"), err=True)

    def warn_foreign_secrets(self, paths: Sequence[Path]) -> None:
        """Secrets of other users in the folder of a round."""
        advice = (
            "is the secret of another user, and must not leave that user's machine; tell that user"
        )
        self.warn(*(f"{path} {advice}" for path in paths))

    def notes(self, notes: Mapping[int, Sequence[str]]) -> None:
        """Lines about the users' gradients, one for all users with the same note."""
        told: dict[str, list[int]] = {}
        for user, own in notes.items():
            for note in own:
                told.setdefault(note, []).append(user)
        self.say(*(f"user {plain(users)}: {note}" for note, users in told.items()))

    def line(self, *texts: str) -> None:
        """Lines of the result, on standard output; with --json, only `result` prints there."""
        for text in texts if not self.quiet and not self.as_json else ():
            click.echo(printable(text))

    def result(
        self, facts: Mapping[str, Any], *lines: str, space: ts.Workspace | None = None
    ) -> None:
        """The outcome of a command: one JSON object, or the same in a few lines. The facts name the session of
        `space`. Everybody who takes part in a round of a public seed is warned."""
        if space:
            facts = {"session": space.session.id, **facts, "insecure": bool(space.session.insecure)}
        if facts.get("insecure"):
            self.warn(
                "this round is drawn from a public seed: anyone can unmask it, use it for tests only"
            )
        if self.as_json:
            facts = {"schema": f"{PROGRAM}/{self.command}/1", **facts}
            click.echo(json.dumps(facts, allow_nan=False, default=os.fspath))
        self.line(*lines)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table on standard output; without column names, a list of facts."""
        if self.quiet or self.as_json:
            return
        from rich import box
        from rich.console import Console as Screen
        from rich.table import Column, Table
        from rich.text import Text

        named = (Column(name, overflow="fold") for name in columns)
        table = Table(
            *named,
            box=box.SIMPLE_HEAD if columns else None,
            show_header=bool(columns),
            pad_edge=False,
        )
        for row in rows:
            table.add_row(*(Text(printable(cell), overflow="fold") for cell in row))
        width = None if sys.stdout and sys.stdout.isatty() else _WIDTH
        screen = Screen(width=width, highlight=False, color_system=None)
        with screen.capture() as drawn:
            screen.print(table)
        self.line(*map(str.rstrip, drawn.get().rstrip().splitlines()))

    @property
    def draws(self) -> bool:
        """Whether somebody watches."""
        return not self.quiet and not self.as_json and bool(sys.stderr and sys.stderr.isatty())

    @contextmanager
    def progress(self, *, stays: bool = False) -> Iterator[Note]:
        """Bars on a terminal while something long runs, which may stay; elsewhere, with -v, a line for each user."""
        if not self.draws:
            yield (
                lambda what, user, *_: (
                    self.say(f"user {user}: {what}") if user and self.verbose else None
                )
            )
            return
        from rich.console import Console as Screen
        from rich.progress import Progress, TaskID, TimeElapsedColumn

        tasks: dict[str, TaskID] = {}
        columns = *Progress.get_default_columns()[:-1], TimeElapsedColumn()
        with Progress(*columns, console=Screen(stderr=True), transient=not stays) as bars:

            def note(what: str, user: int, count: int, done: float | None = None) -> None:
                if what not in tasks:
                    tasks[what] = bars.add_task(what, total=count)
                bars.update(tasks[what], advance=bool(user), completed=done)

            yield note


def printable(text: str) -> str:
    """Text in which nothing steers the terminal: names and attributes come from other people's files."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def fail(message: str, hint: str = "") -> None:
    """The one line of an error, and what to do about it. Where it cannot be printed, the exit code still says it."""
    try:
        click.echo(printable(f"{PROGRAM}: {message}"), err=True)
        if hint:
            click.echo(printable(f"hint: {hint}"), err=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: Any) -> None:
    """Drop what could not be printed: Python would try again at its end."""
    with suppress(AttributeError, OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def fail_with(error: ts.SecAggError, before: str = "") -> None:
    """An error of the library, with a hint that names the options that help."""
    topic, _, value = error.topic.partition(" ")
    hint = HINTS.get(topic, "{hint}").format(hint=error.hint, value=shlex.quote(value))
    fail(before + error.message, hint)


def hear_library(console: Console) -> None:
    """On a terminal, say what the library logs: each message once."""
    import logging

    say = cache(console.say)

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(record.getMessage())

    log = logging.getLogger("topk_secagg")
    log.setLevel(logging.INFO)
    log.handlers[:] = [Handler()] if console.draws else []


def rated(p: ts.Parameters, name: str, payload: int) -> tuple[dict[str, float], str]:
    """R1 of an X or R2 of a Y beside the theorem's, as facts and in a line."""
    from topk_secagg.protocol.parameters import rate_of_answer, rate_of_masked

    rate = (rate_of_masked if name == "R1" else rate_of_answer)(p, payload)
    line = f"payload {amount(payload)}, {name} {rate.measured:.6g} (theorem {rate.theorem:.6g})"
    return rate.facts(), line


def picked(report: object, *names: str) -> dict[str, Any]:
    """These fields of a report, as facts."""
    return {name: getattr(report, name) for name in names}


def plain(value: Any) -> str:
    """A value for people: a list of users is 1, 2, 5."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(map(plain, value)) or "none"
    return "none" if value is None else str(value)
