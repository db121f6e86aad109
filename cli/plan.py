"""topk-secagg plan."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import PROGRAM, Console, answered, size
from .options import chosen_layout, chosen_parameters, round_options

if TYPE_CHECKING:
    from topk_secagg.gradients.layout import Layout
    from topk_secagg.review.plan import Choice


@click.command("plan", short_help="What a round would cost, before it is run.")
@round_options
@click.option(
    "--plot",
    type=click.Path(path_type=Path, readable=False),
    metavar="FILE.png",
    help="Draw the trade-off (matplotlib).",
)
@answered
def command(
    console: Console,
    users: int | None,
    like: Path | None,
    length: int | None,
    entry: str,
    only: tuple[str, ...],
    exclude: tuple[str, ...],
    insecure_seed: int | None,
    construction: str | None,
    plot: Path | None,
    **options: Any,
) -> None:
    """Show what each construction would cost for the options of `init`, and recommend one.

    With --like, also how much of the energy of that gradient's K largest entries each choice keeps.
    Times come from a quick measurement on this machine, in the current folder.

    \b
    Example:
      topk-secagg plan --users 10 --survivors 5 --colluders 3 --density 0.01 --like gradient.pt
    """
    from topk_secagg.review import plan

    if users is None:
        raise click.UsageError("give --users N")
    layout = chosen_layout(like, length, entry, only, exclude)
    base = chosen_parameters(layout, users=users, construction=construction or "permutation", **options)
    here = Path.cwd()
    gradient = _gradient(layout, like, entry) if like else None
    found = plan.choices(base, gradient, plan.measure_speed(base, here))
    best = plan.recommended(found, plan.free_bytes(here))
    shape = ["--like", str(like)] if like else ["--length", str(length)]
    shape += ["--entry", entry] if entry else []
    shape += [word for pattern in only for word in ("--only", pattern)]
    shape += [word for pattern in exclude for word in ("--exclude", pattern)]
    shape += [] if insecure_seed is None else ["--insecure-seed", str(insecure_seed)]
    call = f"{PROGRAM} init ROUND {shlex.join(shape)}"
    paste = f"{call} {plan.arguments(best.parameters)}" if best else ""
    if plot:
        _plot(plot, found, best)
    if console.as_json:
        facts = {
            "free_bytes": plan.free_bytes(here),
            "paper_online_bytes": plan.paper_online_bytes(base),
            "choices": [_facts(c, recommended=c is best) for c in found],
            "command": paste or None,
        }
        console.result("plan", facts)
        return
    console.table(_COLUMNS, [_row(c, recommended=c is best) for c in found])
    theorem = size(plan.paper_online_bytes(base))
    console.line(
        f"X and Y are what one user broadcasts when nobody drops out; Theorem 1 has {theorem} for both"
    )
    console.line(
        "rotation picks the largest of every bucket, which is not the global top-K; energy says how close"
    )
    console.line(
        f"recommended (*): {paste}" if best else f"nothing fits the {size(plan.free_bytes(here))} free here"
    )


_COLUMNS = ("", "construction", "P", "a pair", "a user", "in all", "X", "Y", "memory", "time", "energy")


def _row(c: Choice, *, recommended: bool) -> list[str]:
    return [
        "*" if recommended else "",
        c.parameters.construction,
        str(c.parameters.picks or ""),
        size(c.pair_bytes),
        size(c.user_bytes),
        size(c.all_bytes),
        size(c.masked_bytes),
        size(c.answer_bytes),
        size(c.memory),
        _duration(c.seconds or 0),
        f"{c.energy:.4f}" if c.energy is not None else "",
    ]


def _facts(c: Choice, *, recommended: bool) -> dict[str, Any]:
    return {
        "construction": c.parameters.construction,
        "picks": c.parameters.picks,
        "pair_bytes": c.pair_bytes,
        "user_bytes": c.user_bytes,
        "all_bytes": c.all_bytes,
        "masked_bytes": c.masked_bytes,
        "answer_bytes": c.answer_bytes,
        "memory_bytes": c.memory,
        "seconds": c.seconds,
        "energy": c.energy,
        "recommended": recommended,
    }


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} s"


def _gradient(layout: Layout, like: Path, entry: str) -> Any:
    from topk_secagg.gradients.files import read_gradient

    return layout.flatten(read_gradient(like, entry))


def _plot(path: Path, found: list[Choice], best: Choice | None) -> None:
    """Bars for each choice: offline bytes, online bytes, and the energy kept where it is known."""
    from topk_secagg.errors import UsageError
    from topk_secagg.storage.atomic import whole_file

    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("--plot needs matplotlib", "pip install 'topk-secagg[plot]'") from None
    names = [f"P = {c.parameters.picks}" if c.parameters.buckets else "permutation" for c in found]
    names = [f"{name} *" if c is best else name for name, c in zip(names, found, strict=True)]
    energies = [c.energy for c in found if c.energy is not None]
    figure = Figure(figsize=(12 if energies else 8, 4), layout="constrained")
    panels = figure.subplots(1, 3 if energies else 2)
    panels[0].bar(names, [c.all_bytes for c in found], color="tab:blue")
    panels[0].set(yscale="log", title="offline files of all users, bytes")
    bottoms = [c.masked_bytes for c in found]
    panels[1].bar(names, bottoms, label="X", color="tab:orange")
    panels[1].bar(names, [c.answer_bytes for c in found], bottom=bottoms, label="Y", color="tab:green")
    panels[1].set(title="what a user broadcasts, bytes")
    panels[1].legend()
    if energies:
        panels[2].bar(names, energies, color="tab:purple")
        panels[2].set(title="share of the top-K energy that is kept", ylim=(min(energies) - 0.02, 1.005))
    for panel in panels:
        panel.tick_params(axis="x", rotation=30)
        panel.grid(visible=True, axis="y", alpha=0.3)
    figure.supxlabel("* recommended")
    with whole_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
