"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .console import Console, fail_with

if TYPE_CHECKING:
    from topk_secagg.steps.access import Access
    from topk_secagg.steps.each import Outcome
    from topk_secagg.storage.workspace import Workspace

Command = TypeVar("Command", bound=Callable[..., Any])
Report = TypeVar("Report")


def file_option(name: str, help: str, metavar: str = "FILE", **others: Any) -> Callable[[Command], Command]:
    """An option that takes a path."""
    kind = click.Path(path_type=Path, readable=False)
    return click.option(name, type=kind, metavar=metavar, help=help, **others)


round_argument = click.argument("round_folder", metavar="ROUND", type=click.Path(path_type=Path, readable=False))
randomness_option = click.option(
    "--randomness",
    type=click.Choice(["cipher", "os"]),
    default="cipher",
    show_default=True,
    help="AES-256-CTR keyed by the operating system, or every byte from the operating system.",
)
entry_option = click.option(
    "--entry", default="", metavar="A.B", help="The entry of a PyTorch checkpoint that holds the tensors."
)
prefix_option = click.option(
    "--strip-prefix", default="", metavar="PREFIX", help="Take this off tensor names that begin with it (module.)."
)
select_option = click.option(
    "--select",
    type=click.Choice(["top", "random"]),
    default="top",
    show_default=True,
    help="Send the largest magnitudes, or random coordinates.",
)
saturate_option = click.option(
    "--saturate", is_flag=True, help="Clamp values beyond the clip, and count them, instead of refusing."
)
jobs_option = click.option(
    "--jobs", type=click.IntRange(min=1), metavar="J", help="Users to work on at a time.  [default: the cores]"
)
secrets_option = file_option(
    "--secrets",
    "Keep secrets and ledgers in DIR/SESSION/ instead of ROUND/secrets/.",
    "DIR",
    envvar="TOPK_SECAGG_SECRETS",
)
freezer_option = click.option(
    "--freezer", type=int, default=1, show_default=True, metavar="n", help="The user that freezes."
)
confirm_option = click.option(
    "--confirm", is_flag=True, help="More than (N+T)/2 users must confirm the survivors; any user may freeze."
)
recipients_option = file_option(
    "--recipients", "The users' public keys, a line each as `keygen` prints it: seals and signs the files."
)


_MOST_USERS = 1 << 20  # that a range may name


class UserSet(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5 only
    """User numbers and ranges separated by commas."""

    name = "users"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int] | str:
        """1-4,7 as a list."""
        if isinstance(value, list):
            return value
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


class UserSetOrAll(UserSet):
    """The same, or all."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int] | str:
        """1-4,7 as a list; `all` as it is."""
        return "all" if value == "all" else super().convert(value, param, ctx)


def space_argument(command: Command) -> Command:
    """ROUND and --secrets; the command receives `space`."""

    def with_space(*args: Any, round_folder: Path, secrets: Path | None, **kwargs: Any) -> Any:
        from topk_secagg.storage.workspace import Workspace

        return command(*args, space=Workspace(round_folder, secrets), **kwargs)

    with_space.__name__, with_space.__doc__ = command.__name__, command.__doc__
    with_space.__click_params__ = list(getattr(command, "__click_params__", []))  # type: ignore[attr-defined]
    return round_argument(secrets_option(with_space))  # type: ignore[return-value]


user_option = click.option("--user", type=int, required=True, metavar="n", help="The user's number, from 1.")
users_option = click.option(
    "--user", type=UserSetOrAll(), required=True, metavar="n|1-4,7|all", help="The users' numbers, from 1."
)

_ACCESS_OPTIONS = (
    file_option("--identity", "This user's keys, from `keygen`, in a sealed round."),
    click.option(
        "--session",
        metavar="HEX",
        envvar="TOPK_SECAGG_SESSION",
        help="Refuse any other session; at least 16 of its digits.",
    ),
    file_option("--recipients", "Refuse a session that has other keys than this file."),
    click.option("--insecure", is_flag=True, help="Take part although the round is drawn from a public seed."),
)


def access_options(command: Command) -> Command:
    """How a user takes part in a round; the command receives `access`."""

    def with_access(
        *args: Any, identity: Path | None, session: str | None, recipients: Path | None, insecure: bool, **kwargs: Any
    ) -> Any:
        from topk_secagg.steps.access import Access

        return command(*args, access=Access(identity, session, recipients, insecure), **kwargs)

    with_access.__name__, with_access.__doc__ = command.__name__, command.__doc__
    with_access.__click_params__ = list(getattr(command, "__click_params__", []))  # type: ignore[attr-defined]
    for option in reversed(_ACCESS_OPTIONS):
        with_access = option(with_access)
    return with_access  # type: ignore[return-value]


def chosen_users(space: Workspace, chosen: list[int] | str, access: Access) -> list[int]:
    """The users that --user names."""
    users = list(space.users()) if isinstance(chosen, str) else chosen
    for user in users:
        space.check_user(user)
    if len(users) > 1 and access.identity is not None:
        raise click.UsageError("--identity belongs to one user; run the step for each user with its own")
    if not users:
        raise click.UsageError("--user names nobody")
    return users


def show_outcome(
    console: Console,
    name: str,
    users: Sequence[int],
    outcome: Outcome[Report],
    facts: Callable[[Report], dict[str, Any]],
    lines: Callable[[Report], Sequence[str]],
    insecure: bool,
) -> None:
    """The reports of one user, or of several; failures at the end, each with its exit code."""
    failures = {user: outcome.failures[user] for user in users if user in outcome.failures}
    if len(users) == 1:
        report = outcome.check()[users[0]]
        console.result(name, {**facts(report), "insecure": insecure}, *lines(report))
        return
    failed = [
        {"user": user, "message": error.message, "exit_code": error.exit_code} for user, error in failures.items()
    ]
    all_facts = {
        "users": [facts(report) for report in outcome.reports.values()],
        "failed": failed,
        "insecure": insecure,
    }
    told = [lines(report) for report in outcome.reports.values()]
    console.result(name, all_facts, *(first for first, *_ in told), *(told[0][1:2] if told else []))
    for user, error in failures.items():
        fail_with(error, f"user {user} (exit {error.exit_code}): ")
    if failures:
        raise click.exceptions.Exit(next(iter(failures.values())).exit_code)


_ROUND_OPTIONS = (
    click.option("--users", type=int, metavar="N", help="Number of users."),
    click.option("--survivors", type=int, metavar="U", help="Minimum number of users that must remain."),
    click.option("--colluders", type=int, metavar="T", help="Number of colluding users to protect against."),
    click.option("--top-k", type=int, metavar="K", help="Number of coordinates that each user sends."),
    click.option("--density", type=float, metavar="SHARE", help="K as a share of L, such as 0.01."),
    file_option("--like", "A gradient of the model."),
    entry_option,
    prefix_option,
    click.option("--only", multiple=True, metavar="PATTERN", help="Only tensors with such a name. Repeatable."),
    click.option(
        "--exclude",
        multiple=True,
        metavar="PATTERN",
        help="No tensors with such a name. Repeatable.  [default: *running_mean, *running_var, *num_batches_tracked]",
    ),
    click.option("--length", type=int, metavar="L", help="One flat vector of L coordinates."),
    click.option(
        "--clip",
        type=float,
        metavar="C",
        default=1.0,
        show_default=True,
        help="The largest magnitude of a gradient's values.",
    ),
    click.option(
        "--max-weight",
        type=float,
        metavar="W",
        default=1.0,
        show_default=True,
        help="The largest weight that a user may give its gradient.",
    ),
    click.option(
        "--field",
        type=int,
        metavar="Q",
        help="A prime below 2^32. 65521 halves every file, with values rounded to 1/3276 of the clip for ten "
        "users.  [default: 4281076801]",
    ),
    click.option(
        "--construction",
        type=click.Choice(["permutation", "moments"]),
        help="The paper's, or ours with small files.  [default: permutation while its files stay below 1 GiB]",
    ),
    click.option("--blocks", type=int, metavar="D", help="permutation: blocks per polynomial.  [default: U - T]"),
    click.option("--picks", type=int, metavar="P", help="moments: picks per bucket.  [default: 4]"),
    click.option(
        "--spare",
        type=int,
        metavar="r",
        help="moments: pack answers more tightly, so that at most r of them may be missing.",
    ),
    click.option(
        "--insecure-seed",
        type=int,
        metavar="SEED",
        help="Draw everything from a public seed: reproducible, and not secret at all.",
    ),
)


def round_options(command: Command) -> Command:
    """The options of `init` that choose parameters and layout."""
    for option in reversed(_ROUND_OPTIONS):
        command = option(command)
    return command


def required(**options: Any) -> None:
    """Refuse a call in which one of these options is missing."""
    for name, value in options.items():
        if value is None:
            raise click.UsageError(f"Missing option '--{name.replace('_', '-')}'.")
