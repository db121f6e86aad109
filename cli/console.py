"""Everything a person reads: messages in lower case without a period, a hint after each error.

Results go to standard output, as a table or (with --json) as one object; all else to standard
error. Only click is loaded here at first; rich comes when something is really drawn.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import topk_secagg as ts
from topk_secagg.errors import Advice, amount, named_users
from topk_secagg.progress import UserProgress

if TYPE_CHECKING:
    from rich.progress import Progress

    from topk_secagg.protocol.parameters import Rate

PROGRAM = "topk-secagg"
_WIDTH = 120  # of a table that goes to a file or a pipe, where COLUMNS is not set

# what to do about an error, in the words of the command line
HINTS: dict[Advice, str] = {
    Advice.AGAIN: "{hint}; --again is your word that it may be sent in this round too",
    Advice.CHOOSE_CLIP: "{hint}: --clip C",
    Advice.CLIP: "{hint}: mask with --saturate, or init with --clip",
    Advice.CLIP_TWICE: "give either --clip C or --clip-from-sum F",
    Advice.CLIPS: "{hint}: run with --saturate, or start a new round with --clip {clip}",
    Advice.CONTEXT: "{hint}: --context FILE",
    Advice.DENSITY: "{hint}: --density 0.01, --density 1.0 or --top-k K",
    Advice.DEALING: "{hint}: --dealing {dealing}",
    Advice.DISK: "compare the constructions with `topk-secagg plan`",
    Advice.ENTRY: "choose one with --entry; {hint}",
    Advice.FOLDER: "{hint}; mask --user all --gradients DIR takes a folder with one for every user",
    Advice.FROM: "{hint}: --from OTHER_ROUND",
    Advice.GENERATION: "{hint}: init --generation G",
    Advice.GIVE_UP: "{hint}; in a round that will have no sum: forget with --give-up",
    Advice.LIKE: "give either --like FILE or --length L; --entry, --strip-prefix, --only and "
    "--exclude go with --like",
    Advice.MAX_DISK: "{hint}: --max-disk SIZE",
    Advice.MAX_MEMORY: "{hint}: --max-memory SIZE",
    Advice.NAMES: "check the file, --only and --exclude",
    Advice.NO_ENTRY: "leave out --entry; {hint}",
    Advice.OF_OTHER_ROUND: "{hint}: --from takes --{option} from that round",
    Advice.OWN_SECRETS: "{hint}: leave out --secrets, and unset TOPK_SECAGG_SECRETS",
    Advice.PIN_SESSION: "{hint}; --session or TOPK_SECAGG_SESSION holds for one round, and "
    "--series or TOPK_SECAGG_SERIES for all rounds of a series",
    Advice.PREFIX: "{hint}: add --strip-prefix {prefix}",
    Advice.RECIPIENTS: "{hint}: --recipients FILE",
    Advice.SECRETS: "{hint}: add --secrets DIR",
    Advice.SEALED: "with its receiver's identity, `topk-secagg audit ROUND --identity FILE` checks "
    "it, and `(umask 077; age -d -i FILE -o share.h5 {path})` opens it; erase share.h5 afterwards",
    Advice.SECRETS_FOLDER: "{hint}: --secrets DIR",
    Advice.SESSION_PREFIX: "{hint}: init with --strip-prefix {prefix}",
    Advice.SKIP_GENERATIONS: "{hint}; offline --skip-generations goes on all the same",
    Advice.STRICT: "{hint}; without --strict, the sum comes with how many liars its answers "
    "exclude",
    Advice.TOP_K: "give one of --top-k K, --density SHARE, --rank R and --whole",
    Advice.WEIGHT: "{hint}: init --max-weight",
    Advice.WHOLE: "{hint}: --whole, or another --rank R",
    Advice.WITHOUT_THEM: "{hint}; --without-them masks all the same",
}


@dataclass
class Answer:
    """The one object that --json prints when the command has ended, and what went wrong first."""

    wanted: bool = False
    command: str = "error"
    facts: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    hint: str = ""

    def begin(self, command: str, *, wanted: bool) -> None:
        """Forget the command before."""
        self.wanted = wanted
        self.command = command
        self.facts = {}
        self.error = ""
        self.hint = ""

    def print(self, exit_code: int = 0) -> None:
        """Print the object, once; after a failure it says what `fail` said."""
        if not self.wanted or not (self.facts or exit_code):
            return
        self.wanted = False
        facts = {"schema": f"{PROGRAM}/{self.command}/1", **self.facts}
        if exit_code:
            facts |= {"error": self.error, "hint": self.hint or None, "exit_code": exit_code}
        click.echo(json.dumps(facts, allow_nan=False, default=os.fspath))


# of the command that runs in this process
answer = Answer()


@dataclass(frozen=True)
class Console:
    """How this call of a command wants to be answered."""

    command: str
    as_json: bool
    quiet: bool
    verbose: bool
    bars: list[Progress] = field(default_factory=list)  # that are on the screen now

    def say(self, *messages: str) -> None:
        """Lines about what was done, on standard error."""
        if not self.quiet:
            self._report(*messages)

    def warn(self, *messages: str) -> None:
        """Lines that even -q shows."""
        self._report(*(f"{PROGRAM}: warning: {message}" for message in messages))

    def _report(self, *messages: str) -> None:
        """Lines on standard error: above the bars, if there are any, and never through them."""
        for message in messages:
            text = fitted(printable(message), sys.stderr)
            if self.bars:
                self.bars[-1].console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                click.echo(text, err=True)

    def warn_foreign_secrets(self, paths: Sequence[Path]) -> None:
        """Secrets of other users in the folder of a round."""
        advice = (
            "is the secret of another user, and must not leave that user's machine; tell that user"
        )
        self.warn(*(f"{path} {advice}" for path in paths))

    def notes(self, notes: Mapping[int, Sequence[str]]) -> None:
        """Lines about the users' gradients, one for all users with the same note."""
        users_by_note: dict[str, list[int]] = {}
        for user, own in notes.items():
            for note in own:
                users_by_note.setdefault(note, []).append(user)
        self.say(*(f"{named_users(users)}: {note}" for note, users in users_by_note.items()))

    def line(self, *texts: str) -> None:
        """Lines of the result, on standard output; with --json, only `result` prints there."""
        for text in texts if not self.quiet and not self.as_json else ():
            click.echo(printable(text))

    def prose(self, *texts: str) -> None:
        """Sentences of the result; on a terminal no line breaks within a word."""
        self.line(*(part for text in texts for part in fitted(text, sys.stdout).splitlines()))

    def pasted(self, before: str, words: Sequence[str]) -> None:
        """A command to paste; on a terminal its lines end where the shell allows it."""
        quoted = [*before.split(), *map(shlex.quote, words)]
        width = screen_width(sys.stdout)
        lines = [quoted[0]]
        for word in quoted[1:]:
            if width is None or len(lines[-1]) + len(word) + len("  \\") < width:
                lines[-1] += f" {word}"
            else:
                lines[-1] += " \\"
                lines.append(f"    {word}")
        self.line(*lines)

    def result(
        self, facts: Mapping[str, Any], *lines: str, space: ts.Workspace | None = None
    ) -> None:
        """The outcome of a command: with --json one object, kept in `answer` and printed when the
        command has ended; else the same in a few lines. The facts name the session of `space`."""
        if space:
            facts = {"session": space.session.id, **facts}
        if self.as_json:
            answer.facts = dict(facts)
        else:
            self.line(*lines)

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, narrow: bool = False
    ) -> None:
        """A table on standard output; without column names, a list of facts. A narrow one has less
        space between its columns."""
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
            show_edge=not narrow,
            padding=(0, 1, 0, 0) if narrow else (0, 1),
        )
        for row in rows:
            table.add_row(*(Text(printable(cell), overflow="fold") for cell in row))
        screen = Screen(width=table_width(sys.stdout), highlight=False, color_system=None)
        with screen.capture() as drawn:
            screen.print(table)
        self.line(*map(str.rstrip, drawn.get().rstrip().splitlines()))

    @property
    def draws(self) -> bool:
        """Whether somebody watches."""
        return not self.quiet and not self.as_json and bool(sys.stderr and sys.stderr.isatty())

    @contextmanager
    def progress(self, *, stays: bool = False) -> Iterator[UserProgress]:
        """Bars on a terminal while something long runs, which may stay; elsewhere, with -v, a line
        for each user."""
        if not self.draws:

            def in_lines(phase: str, user: int, *_: object) -> None:
                if user and self.verbose:
                    self.say(f"user {user}: {phase}")

            yield in_lines
            return
        from rich.console import Console as Screen
        from rich.progress import Progress, TaskID, TimeElapsedColumn

        tasks: dict[str, TaskID] = {}
        columns = *Progress.get_default_columns()[:-1], TimeElapsedColumn()
        with Progress(*columns, console=Screen(stderr=True), transient=not stays) as bars:
            self.bars.append(bars)

            def in_bars(phase: str, user: int, count: int, done: float | None = None) -> None:
                if phase not in tasks:
                    tasks[phase] = bars.add_task(phase, total=count)
                bars.update(tasks[phase], advance=bool(user), completed=done)

            try:
                yield in_bars
            finally:
                self.bars.remove(bars)


def screen_width(stream: Any) -> int | None:
    """The columns of the terminal that a stream writes to; None where it is a file or a pipe."""
    if not stream or not stream.isatty():
        return None
    import shutil  # here and below: most output goes to no terminal, and start-up is short

    return shutil.get_terminal_size().columns  # those of COLUMNS, where that is set


def table_width(stream: Any) -> int:
    """The same, for a table: in a file or a pipe COLUMNS counts. Sentences stay whole there."""
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isdecimal() and int(wanted):
        return int(wanted)
    return screen_width(stream) or _WIDTH


def fitted(text: str, stream: Any) -> str:
    """Text in lines that fit the terminal and break between words; elsewhere it stays one line."""
    width = screen_width(stream)
    if width is None:
        return text
    import textwrap

    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def printable(text: str) -> str:
    """Text in which nothing steers the terminal: names and attributes come from other people's
    files."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def fail(message: str, hint: str = "") -> None:
    """The one line of an error, and what to do about it. Where it cannot be printed, the exit code
    still says it.

    The object of --json has the first one.
    """
    if not answer.error:
        answer.error = message
        answer.hint = hint
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
    fail(before + str(error), _hint(error))


def _hint(error: ts.SecAggError) -> str:
    """What to do about an error, in the words of the command line."""
    words = "{hint}" if error.advice is None else HINTS.get(error.advice, "{hint}")
    values = {name: shlex.quote(_spelled(name, value)) for name, value in error.values.items()}
    return words.format(hint=error.hint, **values)


def _spelled(name: str, value: object) -> str:
    """A value as it is typed; options have dashes."""
    return str(value).replace("_", "-") if name == "option" else str(value)


def hear_library(console: Console) -> None:
    """Say what the library logs, such as that a first run compiles: each message once."""
    import logging

    say = cache(console.say)

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(record.getMessage())

    log = logging.getLogger("topk_secagg")
    log.setLevel(logging.INFO)
    log.handlers[:] = [Handler()]


def payload_line(rate: Rate, payload: int) -> str:
    """The bytes of an X or a Y, and R1 or R2 beside the theorem's."""
    rates = f"{rate.name} {rate.measured:.6g} (theorem {rate.theorem:.6g})"
    return f"payload {amount(payload)}, {rates}"


def facts_of(report: Any, *names: str) -> dict[str, Any]:
    """These fields of a report, as facts; without names, all that its repr shows."""
    shown = names or [field.name for field in fields(report) if field.repr]
    return {name: getattr(report, name) for name in shown}


def plain(value: Any) -> str:
    """A value for people: a list of users is 1, 2, 5."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(map(plain, value)) or "none"
    return "none" if value is None else str(value)
