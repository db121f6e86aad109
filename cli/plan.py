"""topk-secagg plan."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import PROGRAM, Console, answered, size
from .init import clip_lines
from .options import file_option, required, round_options

if TYPE_CHECKING:
    from topk_secagg.protocol.parameters import Parameters
    from topk_secagg.review.plan import Plan, Row


@click.command("plan", short_help="What a round would cost, before it is run.")
@round_options
@file_option("--plot", "Draw the trade-off (needs matplotlib).", "FILE.png")
@answered
def command(
    console: Console,
    like: Path | None,
    length: int | None,
    entry: str,
    strip_prefix: str,
    only: tuple[str, ...],
    exclude: tuple[str, ...],
    insecure_seed: int | None,
    plot: Path | None,
    **options: Any,
) -> None:
    """Show what each construction would cost for the options of `init`, and which one `init` would choose.

    The table has both constructions, several numbers of picks, and two fields; the last rows are what the
    paper's theorem and dense LightSecAgg need. With --like, also how much of the energy of the K largest
    entries of that gradient each choice keeps.

    \b
    Example:
      topk-secagg plan --users 10 --survivors 5 --colluders 3 --density 0.01 --like gradient.pt
    """
    from topk_secagg.gradients.files import read_gradient
    from topk_secagg.review import plan
    from topk_secagg.steps.init import choose_layout, choose_parameters

    required(users=options["users"], survivors=options["survivors"], colluders=options["colluders"])
    if plot:
        _check_plot()
    layout = choose_layout(like, length, entry=entry, strip_prefix=strip_prefix, only=only, exclude=exclude)
    chosen = choose_parameters(layout.length, **options)
    p = chosen.parameters
    gradient = layout.flatten(read_gradient(like, entry, strip_prefix)) if like else None
    for note in layout.notes:
        console.say(note)
    found = plan.plan(p, gradient, plan.measure_speed(p, Path.cwd()))
    shape = ["--like", str(like)] if like else ["--length", str(length)]
    shape += ["--entry", entry] if entry else []
    shape += ["--strip-prefix", strip_prefix] if strip_prefix else []
    shape += [word for pattern in only for word in ("--only", pattern)]
    shape += [word for pattern in exclude for word in ("--exclude", pattern)]
    shape += [] if insecure_seed is None else ["--insecure-seed", str(insecure_seed)]
    paste = f"{PROGRAM} init ROUND {shlex.join([*shape, *arguments(p)])}"
    if plot:
        _plot(plot, found)
    if console.as_json:
        rows = [_facts(row, recommended=row is found.best) for row in found.rows]
        console.result("plan", {"choices": rows, "remarks": found.remarks, "command": paste})
        return
    console.table(_COLUMNS, [_row(row, recommended=row is found.best) for row in found.rows])
    if chosen.reason:
        console.line(f"init chooses (*) {chosen.reason}")
    for line in (
        *found.remarks,
        "X and Y are what one user broadcasts when nobody drops out; step is the resolution, as a share of the clip",
        "LightSecAgg aggregates dense gradients; Theorem 1 has the paper's rates",
        "time is an estimate for `run` with all users on this machine, from a quick measurement in this folder",
        *(["energy is what the selected entries keep of the global top-K's"] if like else []),
        *(clip_lines(like.name, gradient, p) if like and gradient is not None else []),
        f"to start: {paste}",
    ):
        console.line(line)


def arguments(p: Parameters) -> list[str]:
    """The options of `init` that choose exactly these parameters, apart from --like or --length."""
    from topk_secagg.algebra.field import DEFAULT_FIELD
    from topk_secagg.protocol.constructions import construction

    given: dict[str, Any] = {"users": p.users, "survivors": p.survivors, "colluders": p.colluders, "top-k": p.top_k}
    given |= {"construction": p.construction, **construction(p).choices()}
    if p.field != DEFAULT_FIELD:
        given["field"] = p.field
    given |= {name: repr(v) for name, v in (("clip", p.clip), ("max-weight", p.max_weight)) if v != 1}
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


_COLUMNS = ("", "construction", "P", "field", "a pair", "in all", "X", "Y", "step", "memory", "time", "energy")


def _row(row: Row, *, recommended: bool) -> list[str]:
    p = row.parameters
    return [
        "*" if recommended else "",
        row.name,
        str(p.picks or "") if p else "",
        str(p.field) if p else "",
        size(row.pair_bytes),
        size(row.all_bytes),
        size(row.masked_bytes),
        size(row.answer_bytes),
        f"{row.step:.1e}" if row.step else "",
        size(row.memory) if row.memory else "",
        _duration(row.seconds) if row.seconds else "",
        f"{row.energy:.4f}" if row.energy is not None else "",
    ]


def _facts(row: Row, *, recommended: bool) -> dict[str, Any]:
    p = row.parameters
    return {
        "construction": row.name,
        "picks": p.picks if p else None,
        "field": p.field if p else None,
        "pair_bytes": row.pair_bytes,
        "all_bytes": row.all_bytes,
        "masked_bytes": row.masked_bytes,
        "answer_bytes": row.answer_bytes,
        "online_bytes": row.online_bytes,
        "step": row.step,
        "memory_bytes": row.memory,
        "seconds": row.seconds,
        "energy": row.energy,
        "recommended": recommended,
    }


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} s"


def _check_plot() -> None:
    """Notice a missing matplotlib before any work."""
    from importlib.util import find_spec

    from topk_secagg.errors import UsageError

    if find_spec("matplotlib") is None:
        raise UsageError("drawing needs matplotlib", "pip install 'topk-secagg[plot]'")


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
