"""How options are spelled, and those that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from topk_secagg.gradients.formats import any_of, suffixes_written


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


def size(value: str) -> int:
    """Bytes: 500MB, 2GB, or their number."""
    match = re.fullmatch(r"(\d{1,18})\s*(B|kB|MB|GB|TB|)", value.strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is not a size such as 500MB or 2GB")
    return int(match[1]) * _UNITS[match[2]]


def several(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Values with commas between them."""

    def parsed(value: str) -> list[Any]:
        return [kind(part) for part in value.split(",")]

    return parsed


def rank_number(value: str) -> int:
    """One of several ranks."""
    if not re.fullmatch(r"\s*[0-9]{1,6}\s*", value):
        raise click.BadParameter(f"{value!r} is not a rank such as 2")
    return int(value)


def users_or_all(value: str) -> list[int] | str:
    """The same, or the word `all`."""
    return value if value == "all" else user_set(value)


_UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_MOST_USERS = 1 << 20  # that a range may name
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
# of a command that reads several rounds
pin_options_of_rounds = tuple(option for option in pin_options if option.name != "session")
access_options = (
    file(
        "--identity",
        "This user's keys, from `keygen`, in a sealed round.  [default: user-NN.identity in the "
        "folder of secrets]",
        envvar="TOPK_SECAGG_IDENTITY",
    ),
    *pin_options,
)
# on every step, and on decode
limit_options = tuple(
    value(
        f"--max-{what}",
        "SIZE",
        f"Refuse a round that takes more {words}, such as 500MB or 2GB.",
        kind=size,
        envvar=f"TOPK_SECAGG_MAX_{what.upper()}",
    )
    for what, words in (
        ("memory", "memory  [default: that of the machine]"),
        ("disk", "for a user's files"),
    )
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
context_option = file(
    "--context", "What all users train from; mask takes no other file where a session has one."
)
agreement_options = (
    context_option,
    value("--weight-name", "NAME", "What weights are, such as examples.", kind=str),
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
_SIZE_REQUIRED = "[required: this, or another of --top-k, --density, --rank and --whole]"
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
    value("--rank", "R", f"Low rank: project matrices on R columns; for series.  {_SIZE_REQUIRED}"),
    flag("--whole", f"Send everything.  {_SIZE_REQUIRED}"),
    value(
        "--whole-tensors",
        "PATTERN",
        "Send tensors with such a name whole. Repeatable.",
        kind=str,
        multiple=True,
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
        "for ten users.  [default: 4281076801; with --rank 65521]",
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

# `plan` compares several of them
_several_options = {
    "density": value(
        "--density",
        "SHARE,...",
        f"K as a share of L: 0.01 is 1 %. One or several.  {_SIZE_REQUIRED}",
        kind=several(share),
    ),
    "rank": value(
        "--rank",
        "R,...",
        f"Low rank: project matrices on R columns. One or several.  {_SIZE_REQUIRED}",
        kind=several(rank_number),
    ),
}
plan_options = tuple(_several_options.get(option.name or "", option) for option in round_options)

from_options = (
    file(
        "--from",
        "Another round, which this one is like, but for the nonce: a later one of its series. "
        "Where shares are keys, nothing but session.json is exchanged. Its layout, K, rank, P, "
        "clip, largest weight, field and decay may be given anew.",
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
        "With --from: the clip of each tensor is F times the largest magnitude of that round's "
        "sum, divided by the largest weight.  [default with --rank: 2, or 1/4 with one byte]",
        float,
    ),
)
