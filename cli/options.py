"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

import topk_secagg as ts

from .console import Console, Decorator, bundled, fail_with, together

PATH = click.Path(path_type=Path, readable=False)


def file_option(name: str, help: str, metavar: str = "FILE", **others: Any) -> Decorator:
    """An option that takes a path."""
    return click.option(name, type=PATH, metavar=metavar, help=help, **others)


def value_option(name: str, metavar: str, help: str, kind: Any = int, **others: Any) -> Decorator:
    """An option that takes a number, or a text where `kind` is str; a default is shown unless it is empty."""
    shown = bool(others.get("default"))
    return click.option(name, type=kind, metavar=metavar, help=help, show_default=shown, **others)


def choice_option(name: str, help: str, *choices: str) -> Decorator:
    """An option that takes one of these words; the first is the default."""
    return click.option(name, type=click.Choice(choices), default=choices[0], show_default=True, help=help)


def flag_option(name: str, help: str) -> Decorator:
    """An option without a value."""
    return click.option(name, is_flag=True, help=help)


round_argument = click.argument("round_folder", metavar="ROUND", type=PATH)
randomness_option = choice_option(
    "--randomness",
    "AES-256-CTR keyed by the operating system, or every byte from the operating system.",
    "cipher",
    "os",
)
select_option = choice_option("--select", "Send the largest magnitudes, or random coordinates.", "top", "random")
entry_option = value_option(
    "--entry", "A.B", "The entry of a PyTorch checkpoint that holds the tensors.", str, default=""
)
prefix_option = value_option(
    "--strip-prefix", "PREFIX", "Take this off tensor names that begin with it (module.).", str, default=""
)
saturate_option = flag_option("--saturate", "Clamp values beyond the clip, and count them, instead of refusing.")
jobs_option = value_option("--jobs", "J", "Users to work on at a time.  [default: the cores]", click.IntRange(min=1))
output_option = file_option("--output", "Write the sum as .pt, .safetensors, .npz or .npy too.")
mean_option = flag_option(
    "--mean", "Divide what --output gets by the sum of the survivors' weights (1 each by default)."
)
keys_options = together(
    file_option(
        "--recipients", "The users' public keys, a line each as `keygen` prints it: seals and signs the files."
    ),
    value_option("--freezer", "n", "The user that freezes.", default=1),
    flag_option("--confirm", "More than (N+T)/2 users must confirm the survivors; any user may freeze."),
)
user_option = value_option("--user", "n", "The user's number, from 1.", required=True)

_MOST_USERS = 1 << 20  # that a range may name


class UserSet(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5 only
    """User numbers and ranges separated by commas, or one of the `words`."""

    name = "users"

    def __init__(self, *words: str) -> None:
        self.words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int] | str:
        """1-4,7 as a list; a word as it is."""
        if isinstance(value, list):
            return value
        if value in self.words:
            return str(value)
        try:
            found: list[int] = []
            for part in filter(None, map(str.strip, str(value).split(","))):
                first, dash, last = part.partition("-") if part[0] != "-" else (part, "", "")
                users = range(int(first), int(last if dash else first) + 1)
                if not 1 <= users.stop - users.start <= _MOST_USERS:
                    raise ValueError("nobody, or too many")
                found += users
        except ValueError:
            self.fail(f"{value!r} is not a list of users such as 1-4,7", param, ctx)
        return list(dict.fromkeys(found))


users_option = value_option("--user", "n|1-4,7|all", "The users' numbers, from 1.", UserSet("all"), required=True)
space_argument = bundled(
    "space",
    lambda given: ts.Workspace(given.pop("round_folder"), given.pop("secrets")),
    round_argument,
    file_option(
        "--secrets",
        "Keep secrets and ledgers in DIR/SESSION/ instead of ROUND/secrets/.",
        "DIR",
        envvar="TOPK_SECAGG_SECRETS",
    ),
)
access_options = bundled(
    "access",
    lambda given: ts.Access(*map(given.pop, ("identity", "session", "recipients", "insecure"))),
    file_option("--identity", "This user's keys, from `keygen`, in a sealed round."),
    value_option(
        "--session", "HEX", "Refuse any other session; at least 16 of its digits.", str, envvar="TOPK_SECAGG_SESSION"
    ),
    file_option("--recipients", "Refuse a session that has other keys than this file."),
    flag_option("--insecure", "Take part although the round is drawn from a public seed."),
)


def chosen_users(space: ts.Workspace, chosen: list[int] | str, access: ts.Access) -> list[int]:
    """The users that --user names."""
    users = list(space.users()) if isinstance(chosen, str) else chosen
    for user in users:
        space.check_user(user)
    if len(users) > 1 and access.identity is not None:
        raise click.UsageError("--identity belongs to one user; run the step for each user with its own")
    if not users:
        raise click.UsageError("--user names nobody")
    return users


class Told(NamedTuple):
    """What there is to say about the step of one user: facts, the same in lines, and what else it should know."""

    facts: dict[str, Any]
    lines: list[str]
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()


def for_users(
    console: Console,
    name: str,
    space: ts.Workspace,
    users: Sequence[int],
    jobs: int | None,
    step: Callable[[int, Callable[[float], None]], Told],
) -> None:
    """Run the step of each user, and show what there is to say; failures last, each with its exit code.

    The step of a single user hears of a bar that it can move.
    """
    from topk_secagg.steps.each import for_each

    if len(users) == 1:
        with console.progress(f"user {users[0]}: {name}") as bar:
            outcome = for_each(users, lambda user: step(user, bar))
    else:
        with console.phases() as note:
            outcome = for_each(users, lambda n: step(n, lambda _: None), jobs, lambda n: note(name, n, len(users)))
    told = list(outcome.reports.values())
    console.notes({user: report.notes for user, report in outcome.reports.items()})
    for warning in (warning for report in told for warning in report.warnings):
        console.warn(warning)
    if len(users) == 1:
        only = outcome.check()[users[0]]
        console.result(name, only.facts, *only.lines, space=space)
        return
    failures = {user: outcome.failures[user] for user in users if user in outcome.failures}
    failed = [{"user": n, "message": error.message, "exit_code": error.exit_code} for n, error in failures.items()]
    lines = [*(report.lines[0] for report in told), *(told[0].lines[1:2] if told else [])]
    facts = [{"session": space.session.id, **report.facts} for report in told]
    console.result(name, {"users": facts, "failed": failed}, *lines, space=space)
    for user, error in failures.items():
        fail_with(error, f"user {user} (exit {error.exit_code}): ")
    if failures:
        raise click.exceptions.Exit(next(iter(failures.values())).exit_code)


round_options = together(
    value_option("--users", "N", "Number of users."),
    value_option("--survivors", "U", "Minimum number of users that must remain."),
    value_option("--colluders", "T", "Number of colluding users to protect against."),
    value_option("--top-k", "K", "Number of coordinates that each user sends."),
    value_option("--density", "SHARE", "K as a share of L, such as 0.01.", float),
    file_option("--like", "A gradient of the model."),
    entry_option,
    prefix_option,
    value_option("--only", "PATTERN", "Only tensors with such a name. Repeatable.", str, multiple=True),
    value_option(
        "--exclude",
        "PATTERN",
        "No tensors with such a name. Repeatable.  [default: *running_mean, *running_var, *num_batches_tracked]",
        str,
        multiple=True,
    ),
    value_option("--length", "L", "One flat vector of L coordinates."),
    value_option("--clip", "C", "The largest magnitude of a gradient's values.", float, default=1.0),
    value_option("--max-weight", "W", "The largest weight that a user may give its gradient.", float, default=1.0),
    value_option(
        "--field",
        "Q",
        "A prime below 2^32. 65521 halves every file, with values rounded to 1/3276 of the clip for ten "
        "users.  [default: 4281076801]",
    ),
    click.option(
        "--construction",
        type=click.Choice(["permutation", "moments"]),
        help="The paper's, or ours with small files.  [default: permutation while its files stay below 1 GiB]",
    ),
    value_option("--blocks", "D", "permutation: blocks per polynomial.  [default: U - T]"),
    value_option("--picks", "P", "moments: picks per bucket.  [default: 4]"),
    value_option("--spare", "r", "moments: pack answers more tightly, so that at most r of them may be missing."),
    value_option("--insecure-seed", "SEED", "Draw everything from a public seed: reproducible, and not secret at all."),
)
