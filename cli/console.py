"""Everything a person reads: messages in lower case without a period, a hint after each error.

Results go to standard output, as a table or (with --json) as one object; all else to standard error.
Only click is loaded here at first; rich comes when something is really drawn.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click

PROGRAM = "topk-secagg"
CALL = "topk_secagg.call"  # where the context of click keeps the call as it was typed
PUBLIC_SEED = "this round is drawn from a public seed: anyone can unmask it, use it for tests only"
_WIDTH = 100  # of a table that goes to a file or a pipe

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Console:
    """How this call wants to be answered."""

    as_json: bool
    quiet: bool
    verbose: bool

    def say(self, message: str) -> None:
        """A line about what was done, on standard error."""
        if not self.quiet:
            click.echo(printable(message), err=True)

    def detail(self, message: str) -> None:
        """A line that only -v shows."""
        if self.verbose:
            click.echo(printable(message), err=True)

    def warn(self, message: str) -> None:
        """A line that even -q shows."""
        click.echo(printable(f"{PROGRAM}: warning: {message}"), err=True)

    def line(self, text: str = "") -> None:
        """A line of the result, on standard output."""
        if not self.quiet:
            _print(printable(text))

    def result(self, name: str, facts: Mapping[str, Any], *lines: str) -> None:
        """The outcome of a command: one JSON object, or the same in a few lines. Whoever takes part in a
        round that hides nothing is told so, whatever was said when it was started."""
        if facts.get("insecure"):
            self.warn(PUBLIC_SEED)
        if self.as_json:
            _print(json.dumps({"schema": f"{PROGRAM}/{name}/1", **facts}, allow_nan=False))
            return
        for line in lines:
            self.line(line)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table on standard output; without column names, a list of facts."""
        if self.quiet:
            return
        from rich import box
        from rich.console import Console as Screen
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD if columns else None, show_header=bool(columns), pad_edge=False)
        for column in columns or [""] * len(rows[0]):
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        width = None if sys.stdout and sys.stdout.isatty() else _WIDTH
        screen = Screen(width=width, highlight=False, color_system=None)
        with screen.capture() as drawn:
            screen.print(table)
        for line in drawn.get().rstrip().splitlines():
            _print(line.rstrip())

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[float], None]]:
        """A bar on standard error while something long runs; nothing when that is no terminal."""
        if self.quiet or self.as_json or not (sys.stderr and sys.stderr.isatty()):
            yield lambda _: None
            return
        from rich.console import Console as Screen
        from rich.progress import Progress

        with Progress(console=Screen(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=1.0)
            yield lambda done: bar.update(task, completed=done)


class OutputGone(Exception):
    """Nobody reads standard output any more."""


def _print(text: str) -> None:
    try:
        click.echo(text)
    except BrokenPipeError:
        raise OutputGone from None


def printable(text: str) -> str:
    """Text in which nothing steers the terminal: names and attributes come from other people's files."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def fail(message: str, hint: str = "") -> None:
    """The one line of an error, and what to do about it."""
    click.echo(printable(f"{PROGRAM}: {message}"), err=True)
    if hint:
        click.echo(printable(f"hint: {hint}"), err=True)


def answered(command: Command) -> Command:
    """Add --json, -q and -v to a command, which receives a `console`."""

    def with_console(*args: Any, json: bool, quiet: bool, verbose: bool, **kwargs: Any) -> Any:
        return command(*args, console=Console(json, quiet, verbose), **kwargs)

    with_console.__name__, with_console.__doc__ = command.__name__, command.__doc__
    with_console.__click_params__ = list(getattr(command, "__click_params__", []))  # type: ignore[attr-defined]
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Say more."),
        click.option("-q", "--quiet", is_flag=True, help="Say nothing unless it goes wrong."),
        click.option("--json", is_flag=True, help="Print one JSON object on standard output."),
    ):
        with_console = option(with_console)
    return with_console  # type: ignore[return-value]


def size(count: float) -> str:
    """Bytes for people: 1234567 is 1.23 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.3g} TB"


def users(numbers: Sequence[int]) -> str:
    """1, 2, 5."""
    return ", ".join(map(str, numbers)) or "none"


def rates(payload: int, name: str, measured: float, theorem: float) -> str:
    """A payload with its rate beside the theorem's."""
    return f"payload {size(payload)}, {name} {measured:.6g} (theorem {theorem:.6g})"


def plain(value: Any) -> str:
    """A value in a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(map(plain, value)) or "none"
    return "none" if value is None else str(value)
