"""What a command is: how it is called, what it is given, and the steps of several users."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial, update_wrapper
from inspect import getdoc
from typing import Any, NamedTuple

import click

import topk_secagg as ts
from topk_secagg.errors import UsageError
from topk_secagg.progress import unheard

from . import options as o
from .console import PROGRAM, Console, answer, fail_with, hear_library

answer_options = (
    o.flag("--json", "Print one JSON object on standard output."),
    click.Option(["-q", "--quiet"], is_flag=True, help="Print only warnings and errors."),
    click.Option(["-v", "--verbose"], is_flag=True, help="Print more details."),
)

# what --help shows besides what is required: the options of a first round
_OF_A_FIRST_ROUND = {
    *("--users", "--survivors", "--colluders", "--top-k", "--density", "--rank", "--whole"),
    *("--like", "--length", "--clip", "--construction", "--gradients", "--gradient"),
    *("--saturate", "--drop-masking", "--drop-elimination", "--output", "--mean", "--user"),
    *("--wait", "--csv", "--reveal", "--report", "--plot"),
    *("--json", "--quiet", "--verbose", "--help", "--help-all"),
}


class Command(click.Command):
    """A command whose --help shows the options of a first round, and --help-all every one; an
    option that is given twice is refused."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options that this call for help asks for."""
        everything = ctx.meta.get(_HELP_ALL, False)
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        shown = [option for option in options if everything or _is_first(option)]
        records = [record for option in shown if (record := option.get_help_record(ctx))]
        with formatter.section("Options"):
            formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments, once it is seen that no option replaces an earlier one."""
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(list(args))
            _check_given_once(ctx, order)
        return super().parse_args(ctx, args)


def _is_first(option: click.Option) -> bool:
    return option.required or not _OF_A_FIRST_ROUND.isdisjoint(option.opts)


def _check_given_once(ctx: click.Context, order: Sequence[click.Parameter]) -> None:
    """Refuse an option that appears twice: the second would silently count."""
    for option in order:
        if isinstance(option, click.Option) and not option.multiple and order.count(option) > 1:
            raise click.UsageError(f"option {max(option.opts, key=len)!r} is given twice", ctx)


_HELP_ALL = f"{__name__}.help_all"


def _show_all(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_HELP_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_help_all_option = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    allow_from_autoenv=False,
    callback=_show_all,
    help="Show all options, not only those of a first round.",
)


def command(
    about: str, *options: click.Parameter, example: str
) -> Callable[[Callable[..., None]], click.Command]:
    """A command with the name and the docstring of its function, these options, and an example of a
    call.

    The function receives the console that --json, -q and -v ask for, and a Workspace instead of the
    options that it is made of.
    """

    def decorate(function: Callable[..., None]) -> click.Command:
        def call(**given: Any) -> None:
            as_json = given.pop("json")
            quiet = given.pop("quiet")
            verbose = given.pop("verbose")
            console = Console(function.__name__, as_json, quiet, verbose)
            answer.begin(console.command, wanted=console.as_json)
            hear_library(console)
            _check_variables(click.get_current_context())
            _check_mean(given)
            if "round_folder" in given:
                given["space"] = ts.Workspace(given.pop("round_folder"), given.pop("secrets", None))
            if given.get("session") is not None:
                _check_session(given["space"], given["session"])
            function(console, **given)
            answer.print()

        name = function.__name__
        params = [*options, *answer_options, _help_all_option]
        help = f"{getdoc(function)}\n\n\b\nExample:\n  {PROGRAM} {name} {example}"
        return Command(name, callback=call, params=params, help=help, short_help=about)

    return decorate


def _check_mean(given: Mapping[str, Any]) -> None:
    """Refuse --mean without --output, in the commands that have both."""
    if given.get("mean") and given["output"] is None:
        raise click.UsageError("--mean is about what --output gets; give --output FILE")


def _check_variables(context: click.Context) -> None:
    """Refuse a variable of a pin or a path that is set but empty.

    click takes it for unset, so that a pin would be gone without a word where
    `export TOPK_SECAGG_SESSION=$(cat FILE)` found no file.
    """
    for option in context.command.params:
        if not isinstance(option, click.Option) or option.name is None:
            continue
        typed = context.get_parameter_source(option.name) is click.core.ParameterSource.COMMANDLINE
        if typed or not (option.envvar or isinstance(option.type, click.Path)):
            continue
        for name in (option.envvar, f"{context.auto_envvar_prefix}_{option.name.upper()}"):
            if isinstance(name, str) and os.environ.get(name) == "":
                raise UsageError(
                    f"{name} is set but empty",
                    f"unset it, or set it to what {option.opts[0]} takes",
                )


def _check_session(space: ts.Workspace, pin: str) -> None:
    """Compare the session with its pin now, before a command looks at anything in it."""
    from topk_secagg.rounds.access import Access, check_session

    check_session(space, Access(session=pin))


def check_from(options: dict[str, Any]) -> None:
    """Refuse options that are about another round, where none is given."""
    if options["clip_from_sum"] is not None:
        raise click.UsageError("--clip-from-sum takes the sum of another round; give --from too")
    if options["new_keys"]:
        raise click.UsageError("--new-keys replaces those of another round; give --from too")
    if options["generation"] is not None:
        raise click.UsageError("--generation is one of a series; give --from too")


def typed_options() -> dict[str, Any]:
    """The options of a call that were typed, without those of the call itself."""
    context = click.get_current_context()
    of_the_call = {
        "round_folder", "secrets", "from", "json", "quiet", "verbose", "gradients", "more"
    }  # fmt: skip
    return {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        and value not in ((), None)
        and name not in of_the_call
    }


def check_required(options: dict[str, Any], *names: str) -> None:
    """Refuse a call without the options that a round cannot do without; --from needs none of them,
    so that click cannot require them."""
    for name in names or ("users", "survivors", "colluders"):
        if options[name] is None:
            raise click.UsageError(f"Missing option '--{name}'.")


_OF_ONE_USER = {  # options, and what to do for several
    "identity": "run the step for each user with its own",
    "gradient": "give --gradients DIR for several",
}


class StepResult(NamedTuple):
    """What there is to say about the step of one user: facts, the same in lines, and what else it
    should know."""

    facts: dict[str, Any]
    lines: list[str]
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()


def step(
    about: str, *options: click.Parameter, example: str
) -> Callable[[Callable[..., StepResult]], click.Command]:
    """A command that is a step of one user, or of several in one process; the function does it for
    one."""
    every = (
        *o.space_options,
        o.users_option,
        *options,
        o.jobs_option,
        *o.access_options,
        *o.limit_options,
    )
    made = command(about, *every, example=example)
    return lambda function: made(update_wrapper(partial(_for_users, function), function))


def _for_users(
    function: Callable[..., StepResult], console: Console, space: ts.Workspace, **given: Any
) -> None:
    """Run the step of each user, and show what there is to say; failures last, each with its exit
    code."""
    from topk_secagg.rounds.each import for_each
    from topk_secagg.storage import survivors

    users = given.pop("user")
    jobs = given.pop("jobs")
    if users == "all":  # only survivors have something to answer
        users = (
            survivors.read(space).users if console.command == "eliminate" else list(space.users())
        )
    for n in users:
        space.check_user(n)
    if not users:
        raise click.UsageError("--user names nobody")
    for name, value in given.items():
        if len(users) > 1 and name in _OF_ONE_USER and value is not None:
            raise click.UsageError(f"--{name} belongs to one user; {_OF_ONE_USER[name]}")
    with console.progress() as progress:

        def of_only_user(done: float) -> None:
            progress(console.command, 0, 1, done)

        heard = of_only_user if len(users) == 1 else unheard
        work = partial(function, space, progress=heard, **given)
        outcome = for_each(
            users, work, jobs=jobs, done=lambda n: progress(console.command, n, len(users))
        )
    results = list(outcome.reports.values())
    failures = outcome.failures
    console.notes({user: result.notes for user, result in outcome.reports.items()})
    console.warn(*(warning for result in results for warning in result.warnings))
    if len(users) == 1:
        outcome.every_report()
        console.result(results[0].facts, *results[0].lines, space=space)
        return
    failed = [
        {"user": n, "message": str(error), "exit_code": error.exit_code}
        for n, error in failures.items()
    ]
    lines = [result.lines[0] for result in results]
    lines += results[0].lines[1:2] if results else []
    facts = [{"session": space.session.id, **result.facts} for result in results]
    console.result({"users": facts, "failed": failed}, *lines, space=space)
    for n, error in failures.items():
        fail_with(error, f"user {n} (exit {error.exit_code}): ")
    if failures:
        raise click.exceptions.Exit(next(iter(failures.values())).exit_code)
