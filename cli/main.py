"""The entry point: the commands, and what each way to fail exits with."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import NoReturn

import click

from topk_secagg import __version__
from topk_secagg.errors import BadData, CannotWrite, SecAggError

from .console import PROGRAM, answer, discard, fail, fail_with

BROKEN_PIPE = 141
BUG = 1
# how much alike two words are of which one may have been meant, from 0 to 1
_CLOSE_COMMAND = 0.6
_CLOSE_OPTION = 0.8


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
    "forget": "phases",
    "status": "review",
    "log": "review",
    "inspect": "review",
    "audit": "review",
    "plan": "plan",
    "keygen": "phases",
}


# what these have done stays done, and the same call does the rest
_GO_ON = {*("init", "offline", "mask", "freeze", "confirm", "eliminate", "decode", "run", "forget")}


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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that was typed; a name that no command has is refused with what is close."""
        typed = args[0]
        if typed not in HOMES and not typed.startswith("-") and not ctx.resilient_parsing:
            raise NoSuchCommand(typed, ctx)
        return super().resolve_command(ctx, args)


class NoSuchCommand(click.UsageError):
    """A word that is no command."""

    def __init__(self, typed: str, ctx: click.Context) -> None:
        super().__init__(f"no such command {typed!r}", ctx)
        self.typed = typed


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
        _fail_stopped(_signals[0])
        code = 128 + _signals[0]
    if code not in (0, BROKEN_PIPE):
        _answer_failure(code)
    sys.exit(code)


def _fail_stopped(number: int) -> None:
    """Say that a signal ended the command, and what to do."""
    hint = "run the same command again: it goes on" if _first_word() in _GO_ON else ""
    fail("interrupted" if number == signal.SIGINT else "terminated", hint)


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
    first = _first_word()
    return f"{PROGRAM} {first}" if first in HOMES else PROGRAM


def _first_word() -> str:
    """What was typed where a command is expected."""
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


def _fail_usage(error: click.UsageError) -> None:
    """Say what is wrong with a call; of a word that nobody knows, what may have been meant."""
    path = error.ctx.command_path if error.ctx else _command_typed()
    message = error.format_message()
    meant = ""
    if isinstance(error, NoSuchCommand):
        meant = _did_you_mean(error.typed, list(HOMES), _CLOSE_COMMAND)
    elif isinstance(error, click.NoSuchOption):
        message = f"no such option {error.option_name!r}"
        meant = _meant_by_option(error.option_name, command=path.removeprefix(PROGRAM).strip())
    fail((message[:1].lower() + message[1:]).rstrip("."), f"{meant}see `{path} --help`")


def _did_you_mean(typed: str, known: Sequence[str], cutoff: float) -> str:
    """The words that are close to what was typed, as the beginning of a hint."""
    from difflib import get_close_matches  # here: most calls have no wrong word

    close = get_close_matches(typed, known, cutoff=cutoff)
    return f"did you mean {' or '.join(close)}? " if close else ""


def _meant_by_option(typed: str, command: str) -> str:
    """The options of a command that are close to what was typed, and the commands that have such an
    option, as the beginning of a hint."""
    options = {name: _options_of(name) for name in HOMES}
    having = [name for name, own in options.items() if typed in own]
    whose = f"{typed} is an option of {', '.join(having)}; " if having else ""
    return _did_you_mean(typed, options.get(command, []), _CLOSE_OPTION) + whose


def _options_of(command: str) -> list[str]:
    """The options of a command, as they are typed."""
    its_parameters = getattr(cli.get_command(click.Context(cli), command), "params", [])
    return [option for parameter in its_parameters for option in parameter.opts]


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
        _fail_usage(error)
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
