"""topk-secagg plan."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import topk_secagg as ts
from topk_secagg.errors import UsageError

from .console import PROGRAM, Console, answered, picked, size
from .init import chosen, clip_line
from .options import file_option, round_options

if TYPE_CHECKING:
    from topk_secagg.review.plan import Plan, Row


@click.command("plan", short_help="What a round would cost, before it is run.")
@round_options
@file_option("--plot", "Draw the trade-off (needs matplotlib).", "FILE.png")
@answered
def command(console: Console, insecure_seed: int | None, plot: Path | None, **options: Any) -> None:
    """Show what each construction would cost for the options of `init`, and which one `init` would choose.

    The table has both constructions, several numbers of picks, and two fields; the last rows are what the
    paper's theorem and dense LightSecAgg need. With --like, also how much of the energy of the K largest
    entries of that gradient each choice keeps.

    \b
    Example:
      topk-secagg plan --users 10 --survivors 5 --colluders 3 --density 0.01 --like gradient.pt
    """
    from topk_secagg.review import plan

    if plot and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("drawing needs matplotlib", "pip install 'topk-secagg[plot]'")
    layout, (p, reason), gradient = chosen(**options)
    for note in layout.notes:
        console.say(note)
    found = plan.plan(p, gradient, plan.measure_speed(p, Path.cwd()))
    paste = _init_call(p, **options, insecure_seed=insecure_seed)
    if plot:
        _plot(plot, found)
    rows = [_facts(row, recommended=row is found.best) for row in found.rows]
    console.result("plan", {"choices": rows, "remarks": found.remarks, "command": paste})
    console.table(
        list(_COLUMNS),
        [["" if row[name] is None else show(row[name]) for name, show in _COLUMNS.values()] for row in rows],
    )
    if reason:
        console.line(f"init chooses (*) {reason}")
    for line in (
        *found.remarks,
        "X and Y are what one user broadcasts when nobody drops out; step is the resolution, as a share of the clip",
        "LightSecAgg aggregates dense gradients; Theorem 1 has the paper's rates",
        "time is an estimate for `run` with all users on this machine, from a quick measurement in this folder",
    ):
        console.line(line)
    if gradient is not None:
        console.line("energy is what the selected entries keep of the global top-K's")
        console.line(clip_line(options["like"].name, gradient, p))
    console.line(f"to start: {paste}")


def _init_call(p: ts.Parameters, **options: Any) -> str:
    """The call of `init` that chooses exactly these parameters, and the layout and seed of the options."""
    from topk_secagg.algebra.field import DEFAULT_FIELD
    from topk_secagg.protocol.constructions import construction

    given = [(name, options[name]) for name in ("like", "length", "entry", "strip_prefix", "insecure_seed")]
    given += [(name, pattern) for name in ("only", "exclude") for pattern in options[name]]
    numbers = picked(p, "users", "survivors", "colluders", "top_k", "construction") | construction(p).choices()
    defaults = {"field": DEFAULT_FIELD, "clip": 1, "max_weight": 1}
    numbers |= {name: value for name, value in picked(p, *defaults).items() if value != defaults[name]}
    given += numbers.items()
    words = [(f"--{name.replace('_', '-')}", str(value)) for name, value in given if value not in (None, "")]
    return shlex.join([PROGRAM, "init", "ROUND", *chain(*words)])


def _facts(row: Row, *, recommended: bool) -> dict[str, Any]:
    p = row.parameters
    return {
        "construction": row.name,
        "picks": p.picks if p else None,
        "field": p.field if p else None,
        **picked(row, "pair_bytes", "all_bytes", "masked_bytes", "answer_bytes", "online_bytes"),
        **picked(row, "step", "seconds", "energy"),
        "memory_bytes": row.memory,
        "recommended": recommended,
    }


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} s"


# what the columns of the table show: a fact, and in which form
_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "": ("recommended", lambda recommended: "*" if recommended else ""),
    "construction": ("construction", str),
    "P": ("picks", lambda picks: str(picks or "")),
    "field": ("field", str),
    "a pair": ("pair_bytes", size),
    "in all": ("all_bytes", size),
    "X": ("masked_bytes", size),
    "Y": ("answer_bytes", size),
    "step": ("step", "{:.1e}".format),
    "memory": ("memory_bytes", size),
    "time": ("seconds", _duration),
    "energy": ("energy", "{:.4f}".format),
}


def _plot(path: Path, found: Plan) -> None:
    """Bars for each choice: offline bytes, online bytes, and the energy kept where it is known."""
    from matplotlib.figure import Figure

    from topk_secagg.storage.atomic import OWN, whole_file

    names = []
    for row in found.rows:
        p = row.parameters
        name = f"{row.name}\nP = {p.picks}" if p and p.picks else row.name
        names.append(name + (f"\nq = {p.field}" if p else "") + (" *" if row is found.best else ""))
    energies = [row.energy for row in found.rows if row.energy is not None]
    figure = Figure(figsize=(18 if energies else 14, 5), layout="constrained")
    panels = figure.subplots(1, 3 if energies else 2)
    panels[0].barh(names, [row.all_bytes for row in found.rows], color="tab:blue")
    panels[0].set(xscale="log", title="offline files of all users, bytes")
    left = [row.masked_bytes for row in found.rows]
    panels[1].barh(names, left, label="X", color="tab:orange")
    panels[1].barh(names, [row.answer_bytes for row in found.rows], left=left, label="Y", color="tab:green")
    panels[1].set(xscale="log", title="what a user broadcasts, bytes")
    panels[1].legend()
    if energies:
        panels[2].barh(names[: len(energies)], energies, color="tab:purple")
        panels[2].set(title="share of the top-K energy that is kept", xlim=(min(energies) - 0.02, 1.005))
    for panel in panels:
        panel.grid(visible=True, axis="x", alpha=0.3)
        panel.invert_yaxis()
    figure.supxlabel("* what init chooses")
    with whole_file(path, OWN) as stream:
        figure.savefig(stream, format="png", dpi=110)
