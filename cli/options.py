"""What a command is, and the options that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial, update_wrapper
from inspect import getdoc
from pathlib import Path
from typing import Any, NamedTuple

import click

import topk_secagg as ts
from topk_secagg.errors import UsageError
from topk_secagg.gradients.formats import any_of, suffixes_written
from topk_secagg.progress import unheard

from .console import PROGRAM, Console, answer, fail_with, hear_library


class _NamedPath(click.Path):
    """A path that is not empty: an empty one would be the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, which need not exist."""
        if not os.fspath(value):
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


PATH = _NamedPath(path_type=Path, readable=False)


def file(name: str, help: str, metavar: str = "FILE", **others: Any) -> click.Option:
    """An option that takes a path."""
    return click.Option([name], type=PATH, metavar=metavar, help=help, **others)


def value(name: str, metavar: str, help: str, kind: Any = int, **others: Any) -> click.Option:
    """An option that takes a number, or a text where `kind` is str; a default is shown unless it is
    empty."""
    shown = bool(others.get("default"))
    return click.Option([name], type=kind, metavar=metavar, help=help, show_default=shown, **others)


def choice(name: str, help: str, *choices: str) -> click.Option:
    """An option that takes one of these words; the first is the default."""
    return click.Option(
        [name], type=click.Choice(choices), default=choices[0], show_default=True, help=help
    )


def flag(name: str, help: str) -> click.Option:
    """An option without a value."""
    return click.Option([name], is_flag=True, help=help)


def word(name: str, help: str) -> click.Option:
    """A flag that is somebody's word for this one call: no environment variable can give it."""
    return click.Option([name], is_flag=True, allow_from_autoenv=False, help=help)


answer_options = (
    flag("--json", "Print one JSON object on standard output."),
    click.Option(["-q", "--quiet"], is_flag=True, help="Print only warnings and errors."),
    click.Option(["-v", "--verbose"], is_flag=True, help="Print more details."),
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
        params = [*options, *answer_options]
        help = f"{getdoc(function)}\n\n\b\nExample:\n  {PROGRAM} {name} {example}"
        return click.Command(name, callback=call, params=params, help=help, short_help=about)

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


def user_set(value: str) -> list[int]:
    """User numbers and ranges separated by commas: 1-4,7 as a list."""
    listed: dict[int, None] = {}  # in order, each once
    for part in filter(None, map(str.strip, value.split(","))):
        match = re.fullmatch(r"([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?", part)
        users = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not 1 <= len(users) <= _MOST_USERS:
            raise click.BadParameter(f"{value!r} is not a list of users such as 1-4,7")
        listed |= dict.fromkeys(users)
    return list(listed)


def one_user(value: str) -> int:
    """The number of a user; Python would take the digits of every script, and 1_0."""
    if not re.fullmatch(r"-?[0-9]{1,9}", value):
        raise click.BadParameter(f"{value!r} is not a valid integer.")
    return int(value)


def share(value: str) -> float | int:
    """A density. An integer stays one: 1 may mean 1 % or everything, and the library asks which."""
    try:
        return int(value) if re.fullmatch(r"\s*\d{1,9}\s*", value) else float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a share such as 0.01") from None


def users_or_all(value: str) -> list[int] | str:
    """The same, or the word `all`."""
    return value if value == "all" else user_set(value)


_MOST_USERS = 1 << 20  # that a range may name
_OF_ONE_USER = {  # options, and what to do for several
    "identity": "run the step for each user with its own",
    "gradient": "give --gradients DIR for several",
}
round_argument = click.Argument(["round_folder"], metavar="ROUND", type=PATH)
SECRETS_VARIABLE = "TOPK_SECAGG_SECRETS"
secrets_option = file(
    "--secrets",
    "Keep secrets and ledgers in DIR/SESSION/ instead of ROUND/secrets/, and chains in DIR; "
    "required in a sealed round.",
    "DIR",
    envvar=SECRETS_VARIABLE,
)
space_options = (round_argument, secrets_option)
user_option = value("--user", "n", "The user's number, from 1.", kind=one_user, required=True)
users_option = value(
    "--user", "n|1-4,7|all", "The users' numbers, from 1.", kind=users_or_all, required=True
)
jobs_option = value(
    "--jobs", "J", "Users to work on at a time.  [default: the cores]", kind=click.IntRange(min=1)
)
KEYS_VARIABLE = "TOPK_SECAGG_RECIPIENTS"
# on every command that reads a round
pin_options = (
    value(
        "--session",
        "HEX",
        "Refuse any other session; at least 16 of its digits.",
        kind=str,
        envvar="TOPK_SECAGG_SESSION",
    ),
    value(
        "--series",
        "HEX",
        "Refuse a session of any other series; at least 16 digits of its name.",
        str,
        envvar="TOPK_SECAGG_SERIES",
    ),
    file(
        "--recipients",
        "Refuse a session that has other keys than this file.",
        envvar=KEYS_VARIABLE,
    ),
)
access_options = (
    file(
        "--identity",
        "This user's keys, from `keygen`, in a sealed round.  [default: user-NN.identity in the "
        "folder of secrets]",
        envvar="TOPK_SECAGG_IDENTITY",
    ),
    *pin_options,
)
randomness_option = choice(
    "--randomness",
    "AES-256-CTR keyed by the operating system, or every byte from the operating system.",
    "cipher",
    "os",
)
select_option = choice(
    "--select", "Send the largest magnitudes, or random coordinates.", "top", "random"
)
entry_option = value(
    "--entry",
    "A.B",
    "The entry of a PyTorch checkpoint that holds the tensors.",
    kind=str,
    default="",
)
prefix_option = value(
    "--strip-prefix",
    "PREFIX",
    "Take this off tensor names that begin with it (module.).",
    kind=str,
    default="",
)
saturate_option = flag(
    "--saturate", "Clamp values beyond the clip, and count them, instead of refusing."
)
output_options = (
    file("--output", f"Write the sum as {any_of(suffixes_written())} too."),
    flag(
        "--mean",
        "Divide what --output gets by the sum of the survivors' weights (1 each by default).",
    ),
)
keys_options = (
    file(
        "--recipients",
        "The users' public keys, a line each as `keygen` prints it: seals and signs the files. "
        "Not from TOPK_SECAGG_RECIPIENTS.",
    ),
    value("--freezer", "n", "The user that freezes.  [default: 1]"),
    flag("--confirm", "More than (N+T)/2 users must confirm the survivors; anybody proposes them."),
    value(
        "--feedback-decay",
        "F",
        "What is left of a residual in the next round, from 0 to 1.  [default: 1]",
        kind=float,
    ),
)
feedback_option = flag(
    "--feedback",
    "Error feedback: add what the last X that counted did not send; keep what this one does not.",
)
clip_option = value(
    "--clip", "C", "The largest magnitude of a gradient's values.", kind=float, default=1.0
)
clip_option_of_run = value(
    "--clip",
    "C",
    "The largest magnitude of a gradient's values.  [default: that of all gradients and residuals]",
    kind=float,
)
REQUIRED = "[required]"
GRADIENT_REQUIRED = "[required: this, or the other of --gradient and --gradients]"
_SIZE_REQUIRED = "[required: this, or the other of --top-k and --density]"
_LAYOUT_REQUIRED = "[required: this, or the other of --like and --length]"
# `init` and `plan` cannot do without these, and `run` finds them in the gradients
users_and_layout = (
    value("--users", "N", f"Number of users.  {REQUIRED}"),
    file("--like", f"A gradient of the model.  {_LAYOUT_REQUIRED}"),
    value("--length", "L", f"One flat vector of L coordinates.  {_LAYOUT_REQUIRED}"),
)
users_and_layout_of_run = (
    value("--users", "N", "Number of users.  [default: the number of gradients]"),
    file("--like", "A gradient of the model.  [default: the first gradient]"),
    value("--length", "L", "One flat vector of L coordinates."),
)
round_options = (
    value("--survivors", "U", f"Minimum number of users that must remain.  {REQUIRED}"),
    value("--colluders", "T", f"Number of colluding users to protect against.  {REQUIRED}"),
    value("--top-k", "K", f"Number of coordinates that each user sends.  {_SIZE_REQUIRED}"),
    value(
        "--density",
        "SHARE",
        f"K as a share of L: 0.01 is 1 %, and 1.0 everything.  {_SIZE_REQUIRED}",
        kind=share,
    ),
    entry_option,
    prefix_option,
    value(
        "--only", "PATTERN", "Only tensors with such a name. Repeatable.", kind=str, multiple=True
    ),
    value(
        "--exclude",
        "PATTERN",
        "No tensors with such a name. Repeatable.  [default: *running_mean, *running_var, "
        "*num_batches_tracked]",
        kind=str,
        multiple=True,
    ),
    clip_option,
    value(
        "--max-weight",
        "W",
        "The largest weight that a user may give its gradient.",
        kind=float,
        default=1.0,
    ),
    value(
        "--field",
        "Q",
        "A prime below 2^32. 65521 halves every file, with values rounded to 1/3276 of the clip "
        "for ten users.  [default: 4281076801]",
    ),
    click.Option(
        ["--construction"],
        type=click.Choice(["permutation", "sketch"]),
        help="The paper's, or ours with small files.  [default: permutation while its files stay "
        "below 256 MiB]",
    ),
    click.Option(
        ["--dealing"],
        type=click.Choice(["keys", "shares"]),
        help="What users send before: keys (sketch) or shares.  [default: keys where that is "
        "possible]",
    ),
    value(
        "--picks",
        "P",
        "sketch: picks per bucket.  [default: the largest P up to 16 that sends hardly more than "
        "the best]",
    ),
)

run_options = tuple(
    clip_option_of_run if option is clip_option else option for option in round_options
)


from_options = (
    file(
        "--from",
        "Another round, which this one is like, but for the nonce: a later one of its series. "
        "Where shares are keys, nothing but session.json is exchanged. Its layout, K, P, clip, "
        "largest weight, field and decay may be given anew.",
        "OTHER_ROUND",
    ),
    flag("--new-keys", "With --from: start a new series, with new keys."),
    value(
        "--generation",
        "G",
        "With --from: how late in the series the round is.  [default: one more than is known here]",
    ),
    value(
        "--clip-from-sum",
        "F",
        "With --from: the clip is F times the largest magnitude of that round's sum, "
        "divided by the largest weight.",
        float,
    ),
)


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
    every = (*space_options, users_option, *options, jobs_option, *access_options)
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
