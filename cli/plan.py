"""What a round would cost, before it is run."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import topk_secagg as ts
from topk_secagg.errors import UsageError, amount, no_coalition

from . import options as o
from .commands import check_required, command
from .console import PROGRAM, Console, facts_of
from .sending import sending_line


@command(
    "What a round would cost, before it is run.",
    *o.users_and_layout,
    *o.round_options,
    o.file("--plot", "Draw the trade-off (needs matplotlib).", "FILE.png"),
    example="--users 10 --survivors 5 --colluders 3 --density 0.01 --like gradient.pt",
)
def plan(console: Console, plot: Path | None, **options: Any) -> None:
    """Show what each construction would cost for the options of `init`, and which one `init` would
    choose.

    The table has both constructions and two fields; the last rows are
    what the paper's theorem, dense LightSecAgg and Flower's SecAgg+ need. With --like, also how
    much of the energy of the K largest entries of that gradient each choice keeps.
    """
    if plot and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("drawing needs matplotlib", "pip install 'topk-secagg[plot]'")
    check_required(options)
    comparison = ts.plan(measure_in=Path.cwd(), **options)
    p = comparison.parameters
    console.say(*comparison.notes)
    paste = _init_words(p, **options)
    # peers have none
    rows = [
        {
            "construction": row.name,
            **{name: getattr(row.parameters, name, None) for name in ("picks", "field", "dealing")},
            **facts_of(row, *_SIZES),
            **facts_of(row, "step", "seconds", "energy", "memory_bytes"),
            "recommended": row is comparison.best,
        }
        for row in comparison.rows
    ]
    if plot:
        _plot(plot, rows)
    facts = facts_of(comparison, "remarks", "certain_answers", "liars_excluded")
    console.result({"choices": rows, **facts, "command": shlex.join(paste)})
    columns = {
        title: column
        for title, column in _COLUMNS.items()
        if title != "energy" or options["like"] is not None
    }
    cells = [
        ["" if row[name] is None else show(row[name]) for name, show in columns.values()]
        for row in rows
    ]
    for row, texts in zip(rows, cells, strict=True):
        if _writes_shares_out(row):
            texts[0] = "  shares"  # of the construction above
        texts[0] += " *" if row["recommended"] else ""
    console.table(list(columns), cells, narrow=True)
    memory = amount(comparison.best.memory_bytes or 0)
    console.prose(
        *([f"init chooses (*) {comparison.reason}"] if comparison.reason else []),
        *comparison.remarks,
        *_COLUMN_LINES,
        *([_SERIES] if p.dealing == "keys" else []),
        *_file_lines(p, comparison.best),
        *([_SHARES] if any(map(_writes_shares_out, rows)) else []),
        f"one step of the quantiser, the resolution, is {_steps(rows)}",
        *([_ENERGY] if options["like"] is not None else []),
        *_PEER_LINES,
        _strict_line(p, comparison),
        "time is an estimate for `run` with all users on this machine, from a quick measurement in "
        "this folder",
        f"the largest step of the choice takes {memory} of memory",
        sending_line(p),
        "docs/training.md says which K, field, P and clip did well in trainings",
    )
    console.pasted("to start:", paste)


_SIZES = (
    "pair_bytes",
    "all_bytes",
    "offline_bytes",
    "masked_bytes",
    "answer_bytes",
    "online_bytes",
    "total_bytes",
    "file_bytes",
)
_COLUMN_LINES = (
    "what one user sends when nobody drops out: before there are gradients, X with its gradient, "
    "Y as its answer, and in all",
    "a broadcast (X, Y, the list of commitments to keys) counts once: where a user sends it to "
    "each of the others, it counts N - 1 times",
)
_SERIES = "with keys, what is sent before is sent once for a series of rounds (init --from)"
_SHARES = (
    "shares: with --dealing shares; with --randomness os the secrecy is then "
    "information-theoretic, "
    "and by default it rests on AES and HMAC"
)
_PEER_LINES = (
    "Theorem 1 has the paper's rates; LightSecAgg and Flower's SecAgg+ aggregate dense gradients",
    "SecAgg+ rests on key agreement besides, has a server, and its users agree on keys anew in "
    "every round",
)


def _writes_shares_out(row: dict[str, Any]) -> bool:
    """Whether a row deals written-out shares where its construction could deal keys."""
    return bool(row["dealing"] == "shares" and row["construction"] != "permutation")


def _file_lines(p: ts.Parameters, best: Any) -> list[str]:
    """What the files of the choice have besides."""
    headers = best.file_bytes - best.total_bytes
    files = p.users + 1  # shares for all others, X and Y
    return [
        f"the {files} files of a user have headers besides, in all about {amount(headers)}; the "
        f"files of all users take about {amount(best.all_bytes)}"
    ]


def _strict_line(p: ts.Parameters, comparison: ts.PlanReport) -> str:
    """What it takes to exclude T users that lie together."""
    line = f"decode --strict takes {comparison.certain_answers} answers that agree (D + 2T)"
    if comparison.certain_answers <= p.users:
        return f"{line}, which {no_coalition(p.colluders)} can falsify (T = {p.colluders})"
    excluded = comparison.liars_excluded
    most = (
        f"{no_coalition(excluded)} can falsify their agreement, but T = {p.colluders} could"
        if excluded
        else "no liar is excluded"
    )
    return f"{line}, and there are {p.users} users: {most}; it needs U + T <= N"


_ENERGY = (
    "energy is the sum of the squares of the entries that are sent, as a share of that of the K "
    "largest"
)


def _steps(rows: list[dict[str, Any]]) -> str:
    """The resolution in each field of the table, as a share of the clip."""
    steps = {row["field"]: row["step"] for row in rows if row["field"]}
    return ", ".join(f"{step:.2g} of the clip in field {field}" for field, step in steps.items())


def _init_words(p: ts.Parameters, **options: Any) -> list[str]:
    """The call of `init` that chooses exactly these parameters, and the layout of the options."""
    from topk_secagg.algebra.field import DEFAULT_FIELD
    from topk_secagg.protocol.parameters import DEALINGS

    given = [(name, options[name]) for name in ("like", "length", "entry", "strip_prefix")]
    given += [(name, pattern) for name in ("only", "exclude") for pattern in options[name]]
    given += facts_of(p, "users", "survivors", "colluders", "top_k", "construction").items()
    # those of the other construction too
    defaults = {
        "picks": 0,
        "dealing": DEALINGS[p.construction][0],
        "field": DEFAULT_FIELD,
        "clip": 1,
        "max_weight": 1,
    }
    given += [
        (name, value) for name, value in facts_of(p, *defaults).items() if value != defaults[name]
    ]
    words = [
        (f"--{name.replace('_', '-')}", str(value))
        for name, value in given
        if value not in (None, "")
    ]
    return [PROGRAM, "init", "ROUND", *chain(*words)]


# units of time, and from how many seconds on each is used: none takes more than six letters
_UNITS = {
    "s": (1, 0),
    "min": (60, 120),
    "h": (3600, 5970),
    "d": (86_400, 2 * 86_400),
    "y": (365.25 * 86_400, 2 * 365.25 * 86_400),
}
_LONGEST = 999  # years that are worth telling apart
_SHORTEST = 0.1  # seconds


def _duration(seconds: float) -> str:
    """A time of one to three digits and at most six letters, such as 1.6 s, 90 min or 31 h."""
    if seconds < _SHORTEST:
        return f"<{_SHORTEST} s"
    unit = [name for name, (_, least) in _UNITS.items() if seconds >= least][-1]
    length, _ = _UNITS[unit]
    count = seconds / length
    if unit == "y" and count > _LONGEST:
        return f">{_LONGEST} y"
    return f"{count:.2g} {unit}" if count < 10 and unit != "min" else f"{count:.0f} {unit}"


# what the columns of the table show: a fact, and in which form
_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "construction": ("construction", str),
    "P": ("picks", lambda picks: str(picks or "")),
    "field": ("field", str),
    "before": ("offline_bytes", amount),
    "X": ("masked_bytes", amount),
    "Y": ("answer_bytes", amount),
    "in all": ("total_bytes", amount),
    "time": ("seconds", _duration),
    "energy": ("energy", "{:.4f}".format),
}


def _plot(path: Path, rows: list[dict[str, Any]]) -> None:
    """Bars for each choice: what a user sends before, with its gradient and in all, and the energy
    kept where it is known."""
    from matplotlib.figure import Figure

    from topk_secagg.storage.atomic import OWN, whole_file

    facts = {"construction": "{}", "picks": "P = {}", "field": "q = {}", "dealing": "{}"}
    named = (
        ", ".join(text.format(row[fact]) for fact, text in facts.items() if row[fact])
        for row in rows
    )
    names = [name + " *" * row["recommended"] for name, row in zip(named, rows, strict=True)]
    panels = [
        ("offline_bytes", "before there are gradients, bytes a user"),
        ("online_bytes", "with the gradient, bytes a user"),
        ("total_bytes", "in all, bytes a user"),
    ]
    if any(row["energy"] for row in rows):
        panels.append(("energy", "share of the top-K energy that is kept"))
    figure = Figure(figsize=(7 * len(panels), 5), layout="constrained")
    for panel, (fact, title) in zip(
        figure.subplots(1, len(panels), sharey=True), panels, strict=True
    ):
        panel.barh(names, [row[fact] or 0 for row in rows])
        panel.set(xscale="log", title=title)
        panel.grid(visible=True, axis="x", alpha=0.3)
        if fact == "energy":  # all are close to 1
            panel.set(xscale="linear", xlim=(min(row[fact] or 1 for row in rows) - 0.02, 1.005))
    figure.axes[0].invert_yaxis()
    figure.supxlabel("* what init chooses")
    with whole_file(path, OWN) as stream:
        figure.savefig(stream, format="png", dpi=110)
