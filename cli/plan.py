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
    *o.plan_options,
    o.file("--plot", "Draw bytes against energy kept (needs matplotlib).", "FILE.png"),
    example="--users 10 --survivors 7 --colluders 3 --density 0.01 --like gradient.pt",
)
def plan(console: Console, plot: Path | None, **options: Any) -> None:
    """Show what each way to reduce a gradient would cost, beside plain averaging and others.

    --density and --rank take several values: --density 0.001,0.01 --rank 1,2,4. With one, other
    usual sizes are shown too; * is what `init` chooses for it. The last rows are what the paper's
    theorem, dense LightSecAgg and Flower's SecAgg+ need. With --like, also what share of the energy
    of that gradient leaves. -v shows other ways to run the choice, and what the columns mean.
    """
    if plot and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("drawing needs matplotlib", "pip install 'topk-secagg[plot]'")
    check_required(options)
    comparison = ts.plan(measure_in=Path.cwd(), **options)
    p = comparison.parameters
    console.say(*comparison.notes)
    paste = _init_words(comparison, **options)
    rows = [_facts(row) for row in comparison.rows]
    ways = [_facts(row) for row in comparison.ways]
    best = _facts(comparison.best)
    if plot:
        _plot(plot, rows, best)
    facts = facts_of(comparison, "remarks", "certain_answers", "liars_excluded", "plain_users")
    console.result(
        {"rows": rows, "ways": ways, "best": best, **facts, "command": shlex.join(paste)}
    )
    is_example_given = options["like"] is not None
    no_energy = () if is_example_given else ("energy",)
    _show(console, rows, best, "time", *no_energy)
    console.prose(
        sending_line(p),
        *([f"init chooses (*) {comparison.reason}"] if comparison.reason else []),
        *comparison.remarks,
        *_visible_lines(rows, best),
    )
    if console.verbose:
        _show_more(console, comparison, ways, best, with_energy=is_example_given)
    console.pasted("to start:", paste)


def _facts(row: Any) -> dict[str, Any]:
    """A row for JSON; peers have no parameters."""
    return {
        **facts_of(row, "name", "reduction", "size"),
        **{name: getattr(row.parameters, name, None) for name in ("picks", "field", "dealing")},
        "before": row.offline_bytes,
        "with": row.online_bytes,
        "in_all": row.total_bytes,
        "later": row.later_bytes,
        "plain": row.plain_bytes,
        **facts_of(row, "masked_bytes", "answer_bytes", "pair_bytes", "all_bytes", "file_bytes"),
        **facts_of(row, "step", "seconds", "energy", "memory_bytes", "visible"),
    }


def _show(console: Console, rows: list[dict[str, Any]], best: dict[str, Any], *hidden: str) -> None:
    """A table of rows, without some of its columns."""
    columns = {title: column for title, column in _COLUMNS.items() if title not in hidden}
    cells = [
        [_title(row) + " *" * (row == best)]
        + ["" if row[name] is None else show(row[name]) for name, show in columns.values()]
        for row in rows
    ]
    console.table(["", *columns], cells, narrow=True)


def _title(row: dict[str, Any]) -> str:
    """Which reduction a row is about, or which peer."""
    if row["field"] is None:
        return str(row["name"])
    return " ".join(map(str, filter(None, (row["reduction"], row["size"]))))


def _visible_lines(rows: list[dict[str, Any]], best: dict[str, Any]) -> list[str]:
    """What others see of a user: for the choice, and for the other reductions in the table."""
    seen = {row["reduction"]: row["visible"] for row in rows if row["field"] is not None}
    lines = [f"visible with {best['reduction']}: {best['visible']}"]
    return lines + [
        f"visible with {name}: {what}" for name, what in seen.items() if name != best["reduction"]
    ]


def _show_more(
    console: Console,
    comparison: ts.PlanReport,
    ways: list[dict[str, Any]],
    best: dict[str, Any],
    *,
    with_energy: bool,
) -> None:
    """Other ways to run the choice, and what there is to know about the figures."""
    p = comparison.parameters
    console.line("", "other ways to run the choice:")
    named = [{**way, "size": None, "reduction": f"{way['name']} {way['dealing']}"} for way in ways]
    chosen = next((n for n, way in zip(named, ways, strict=True) if _is_choice(way, best)), {})
    _show(console, named, chosen, "later", *([] if with_energy else ["energy"]))
    memory = amount(comparison.best.memory_bytes or 0)
    console.prose(
        *_COLUMN_LINES,
        *([_SERIES] if p.dealing == "keys" else []),
        *([_plain_users_line(comparison)] if comparison.plain_users else []),
        *_file_lines(p, comparison.best),
        _SHARES,
        f"one step of the quantiser, the resolution, is {_steps([*ways, best])}",
        *([_ENERGY] if with_energy else []),
        *_PEER_LINES,
        _strict_line(p, comparison),
        "time is an estimate for `run` with all users on this machine, from a quick measurement in "
        "this folder",
        f"the largest step of the choice takes {memory} of memory",
        "docs/training.md says which K, rank, field and clip did well in trainings",
    )


def _is_choice(way: dict[str, Any], best: dict[str, Any]) -> bool:
    return all(way[name] == best[name] for name in ("name", "field", "dealing", "picks"))


def _plain_users_line(comparison: ts.PlanReport) -> str:
    """Where top-K stops to pay."""
    p = comparison.parameters
    return (
        f"with K = {p.top_k}, what a user sends grows with N: from about "
        f"{comparison.plain_users} users on it is more than its plain gradient; low rank does not "
        "grow"
    )


_COLUMN_LINES = (
    "what one user sends when nobody drops out: before there are gradients, X with its gradient, "
    "Y as its answer, in all, and in all in a later round of a series",
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
    "energy is the share of that gradient's sum of squares that leaves: of low rank once the basis "
    "is found, which takes a first round"
)


def _steps(rows: list[dict[str, Any]]) -> str:
    """The resolution in each field of the table, as a share of the clip."""
    steps = {row["field"]: row["step"] for row in rows if row["field"]}
    return ", ".join(f"{step:.2g} of the clip in field {field}" for field, step in steps.items())


def _init_words(comparison: ts.PlanReport, **options: Any) -> list[str]:
    """The call of `init` that chooses exactly these parameters, and the layout of the options."""
    from topk_secagg.algebra.field import DEFAULT_FIELD, SMALL_FIELD
    from topk_secagg.protocol.parameters import DEALINGS

    p = comparison.parameters
    best = comparison.best
    given = [(name, options[name]) for name in ("like", "length", "entry", "strip_prefix")]
    given += [
        (name, pattern)
        for name in ("only", "exclude", "whole_tensors")
        for pattern in options[name]
    ]
    given += facts_of(p, "users", "survivors", "colluders").items()
    size = {"low-rank": ("rank", best.size), "top-k": ("top_k", best.size)}
    given.append(size.get(best.reduction, ("whole", True)))
    given.append(("construction", p.construction))
    # those of the other construction too
    defaults = {
        "picks": 0,
        "dealing": DEALINGS[p.construction][0],
        "field": SMALL_FIELD if best.reduction == "low-rank" else DEFAULT_FIELD,
        "max_weight": 1,
    }
    given += [
        (name, value) for name, value in facts_of(p, *defaults).items() if value != defaults[name]
    ]
    if options["clip"] != 1:
        given.append(("clip", options["clip"]))
    words = [
        (f"--{name.replace('_', '-')}", *([] if value is True else [str(value)]))
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
    "field": ("field", str),
    "before": ("before", amount),
    "X": ("masked_bytes", amount),
    "Y": ("answer_bytes", amount),
    "in all": ("in_all", amount),
    "later": ("later", amount),
    "time": ("seconds", _duration),
    "energy": ("energy", "{:.1%}".format),
}


_MOST_TIMES = 1000  # what the largest point sends; a line farther away would push all points aside


def _plot(path: Path, rows: list[dict[str, Any]], best: dict[str, Any]) -> None:
    """What a user sends in a later round, against the energy that leaves; a line for each system
    that sends everything. Without an example gradient, bars."""
    from matplotlib.figure import Figure

    from topk_secagg.storage.atomic import OWN, whole_file

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    points = [row for row in rows if row["energy"] is not None]
    if points:
        _scatter(axes, points, [row for row in rows if row["energy"] is None], best)
    else:
        names = [_title(row) + " *" * (row == best) for row in rows]
        axes.barh(names, [row["later"] for row in rows])
        axes.invert_yaxis()
    axes.set(xscale="log", xlabel="bytes that a user sends in a later round (* init's choice)")
    axes.grid(visible=True, axis="x", alpha=0.3)
    with whole_file(path, OWN) as stream:
        figure.savefig(stream, format="png", dpi=130)


def _scatter(
    axes: Any, points: list[dict[str, Any]], others: list[dict[str, Any]], best: dict[str, Any]
) -> None:
    """Points with their names beside them."""
    for reduction in dict.fromkeys(row["reduction"] for row in points):
        line = [row for row in points if row["reduction"] == reduction]
        axes.plot(
            [row["later"] for row in line], [row["energy"] for row in line], "o-", label=reduction
        )
        for row in line:
            name = str(row["size"] or "") + " *" * (row == best)
            axes.annotate(
                name,
                (row["later"], row["energy"]),
                xytext=(0, 6),
                textcoords="offset points",
                ha="center",
                bbox={"boxstyle": "square,pad=0", "color": "white", "alpha": 0.7},
                zorder=3,
            )
    farthest = _MOST_TIMES * max(row["later"] for row in points)
    near = [row for row in others if row["later"] <= farthest]
    for row, style in zip(near, ("-", "--", ":", "-."), strict=False):
        axes.axvline(row["later"], color="gray", linestyle=style, label=row["name"])
    axes.set(ylabel="share of the gradient's energy that leaves", ylim=(0, 1.08))
    axes.figure.legend(loc="outside upper center", ncols=3)
