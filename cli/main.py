"""The entry point: the commands, and what each way to fail exits with."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import NoReturn

import click

from topk_secagg import __version__
from topk_secagg.errors import BadData, CannotWrite, SecAggError

from .console import PROGRAM, answer, discard, fail, fail_with

BROKEN_PIPE = 141
BUG = 1


# the modules of the commands, in the order in which --help lists them
HOMES = {
    "init": "rounds",
    "offline": "phases",
    "mask": "phases",
    "freeze": "phases",
    "confirm": "phases",
    "eliminate": "phases",
    "decode": "phases",
    "run": "rounds",
    # around a round
    "settle": "phases",
    "forget": "phases",
    "status": "review",
    "inspect": "review",
    "audit": "review",
    "plan": "plan",
    "keygen": "phases",
}


class Commands(click.Group):
    """Lists the commands in the order of a round, and loads only the one that is called."""

    def list_commands(self, ctx: click.Context | None = None) -> list[str]:  # noqa: ARG002 - click's
        """The names of all."""
        return list(HOMES)

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """A command, if there is one of that name."""
        if cmd_name not in HOMES:
            return None
        module = import_module(f".{HOMES[cmd_name]}", __package__)
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "TOPK_SECAGG"},
)
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """Secure aggregation of top-K sparsified gradients, one file-based step at a time.

    \b
    A round:  init -> offline (each user) -> mask (each user) -> freeze
              -> eliminate (each user) -> decode
    On one machine:  run

    \b
    Exit codes: 0 done, 1 a bug, 2 usage, 65 bad data, 66 input missing,
    69 too few survivors, 73 output cannot be written, 75 busy, 77 refused for
    safety, 130 interrupted. Options can come from the environment:
    TOPK_SECAGG_MASK_SATURATE=1 stands for mask --saturate.
    """


class Stopped(BaseException):
    """A signal, raised so that temporary files are removed on the way out."""


_signals: list[int] = []


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    _signals.append(number)
    raise Stopped


def _unraisable(unraisable: object) -> None:
    """A signal can strike in a callback of a library, which swallows the exception; `main` still
    knows."""
    if not isinstance(getattr(unraisable, "exc_value", None), Stopped):
        sys.__unraisablehook__(unraisable)  # type: ignore[arg-type]


def main() -> NoReturn:
    """Run a command; an error is one line and a hint, never a traceback."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    sys.unraisablehook = _unraisable
    try:
        code = _run()
    except BaseException:
        # by a signal, which decides the code below: Stopped, or what a library made of it, such as
        # the panic of a Rust module that is being loaded
        if not _signals:
            raise
        code = BUG
    for number in (signal.SIGTERM, signal.SIGINT):  # nothing is left to be stopped
        signal.signal(number, signal.SIG_IGN)
    if _signals:
        fail("interrupted" if _signals[0] == signal.SIGINT else "terminated")
        code = 128 + _signals[0]
    if code not in (0, BROKEN_PIPE):
        _answer_failure(code)
    sys.exit(code)


def _answer_failure(code: int) -> None:
    """The object of --json for a command that failed; nothing more can be done where it cannot be
    printed."""
    try:
        answer.print(code)
        if sys.stdout:
            sys.stdout.flush()
    except OSError:
        discard(sys.stdout)


def _begin() -> None:
    """What --json asks for, as far as it is known before click has understood the call."""
    words = sys.argv[1:]
    command = words[0] if words and words[0] in HOMES else "error"
    variable = os.environ.get(f"TOPK_SECAGG_{command.upper()}_JSON", "")
    wanted = "--json" in words or variable.lower() in ("1", "true", "t", "yes", "y", "on")
    answer.begin(command, wanted=wanted)


def _command_typed() -> str:
    """The command whose help fits, where click does not say in which one an option was wrong."""
    first = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    return f"{PROGRAM} {first}" if first in HOMES else PROGRAM


def _run() -> int:
    """The exit code of the call."""
    _begin()
    try:
        code = cli.main(prog_name=PROGRAM, standalone_mode=False)  # that of click's Exit, or None
        if sys.stdout:
            sys.stdout.flush()
        return code or 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        return error.exit_code
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else _command_typed()
        message = error.format_message()
        fail((message[:1].lower() + message[1:]).rstrip("."), f"see `{path} --help`")
        return error.exit_code
    except SecAggError as error:
        fail_with(error)
        return error.exit_code
    except MemoryError:
        fail("not enough memory", "the session or a file asks for more than this machine has")
        return BadData.exit_code
    except (
        SystemExit
    ) as end:  # click's: after a completion, or because nobody reads the output any more
        return BROKEN_PIPE if end.code else 0
    except OSError as error:
        discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            return BROKEN_PIPE
        place = f" {error.filename}" if error.filename else ""
        fail(
            f"cannot use{place}: {(error.strerror or str(error)).lower()}",
            "check permissions and free space",
        )
        return CannotWrite.exit_code
    except Exception as error:
        if _signals:  # it struck within a library, which made another exception of it
            return BUG
        if "-v" in sys.argv or "--verbose" in sys.argv:
            raise
        fail(f"a bug: {type(error).__name__}: {error}", "please report it, with what -v prints")
        return BUG
