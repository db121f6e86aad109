"""The figures and tables of the curves in cifar10/results and text/results.

Usage: draw.py [--all]

Draws the finished curves, or all with --all, into FOLDER/figures, and prints Markdown tables. Needs
matplotlib. Every figure has numbered curves, and colours for a bright and for a dark page.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

HERE = Path(__file__).parent
FOLDERS = (HERE / "cifar10", HERE / "text")
LENGTHS = {"16x16": 272_474, "32x32": 272_474, "text": 1_018_624}
SYMBOL_BITS = {4281076801: 32, 65521: 16, 251: 8}
USUAL_STEPS = 5
USUAL_USERS = 10
# in a round for 272,474 entries, counted with Flower's own code: docs/benchmarks.md
SECAGG_PLUS = 1_097_000 / (4 * 272_474)
REACHED = {"accuracy": (0.50, 0.55, 0.59), "test_loss": (2.0, 1.8, 1.6)}
AXES = {"accuracy": "test accuracy, %", "test_loss": "test loss, nats a character"}
METHODS = {
    "plain": "no secure aggregation",
    "rank": "rank",
    "topk-ef": "top-K",
    "topk": "top-K without feedback:",
    "random-ef": "random-K with feedback:",
    "random": "random-K",
}

INK = "#1f2328"
PAPER = "#fefefe"
GRID = "#d8dadd"
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#b0609b", "#c08a00", "#2f9fd6", "#8c510a", "#7f6cb8"
)  # fmt: skip
DARK = {
    INK: "#e6e8eb",
    PAPER: "#15191e",
    GRID: "#3a4047",
    "#0072b2": "#4aa8e0",
    "#8c510a": "#c98a45",
}


class Training(NamedTuple):
    """What all curves of one figure have in common."""

    task: str
    drop: float
    steps: int
    users: int
    rounds: int

    @property
    def name(self) -> str:
        """Of a figure."""
        parts = [self.task, f"drop{100 * self.drop:02.0f}"]
        parts += [] if self.steps == USUAL_STEPS else [f"{self.steps}steps"]
        parts += [] if self.users == USUAL_USERS else [f"{self.users}users"]
        return "-".join([*parts, f"{self.rounds}rounds"])


class Kind(NamedTuple):
    """What distinguishes two curves of one figure, but for their seed: `amount` is a rank, or a
    density in percent; `follows` is how many times the largest of the last sum the clip is."""

    method: str
    amount: float = 0.0
    bits: int = 32
    follows: float = 0.0
    decay: float = 1.0

    @property
    def label(self) -> str:
        """In words."""
        if self.method == "plain":
            return METHODS["plain"]
        percent = "" if self.method == "rank" else " %"
        parts = [f"{METHODS[self.method]} {self.amount:g}{percent}", f"{self.bits} bits"]
        parts += [f"clip {self.follows:g}"] if self.follows not in (0.0, usual_clip(self)) else []
        parts += [f"decay {self.decay:g}"] if self.decay != 1 else []
        return ", ".join(parts)

    @property
    def order(self) -> tuple[object, ...]:
        """Of the legend and the table."""
        by_amount = self.amount if self.method == "rank" else -self.amount
        return (list(METHODS).index(self.method), by_amount, -self.bits, -self.decay, self.follows)


def usual_clip(kind: Kind) -> float:
    """What need not be said: twice the last sum, a quarter with one byte."""
    return 0.25 if kind.bits == 8 else 2.0


@dataclass(frozen=True)
class Curve:
    """The rows of a result file. Columns that older files lack have their usual value."""

    rows: list[dict[str, str]]

    def text(self, column: str, usual: str = "") -> str:
        """A setting."""
        return self.rows[0].get(column) or usual

    def column(self, name: str) -> list[float]:
        """A measured column."""
        return [float(row[name]) for row in self.rows]

    @cached_property
    def training(self) -> Training:
        """Task, drop-outs, local steps, users and rounds."""
        size = self.text("size")
        return Training(
            task=self.text("task", f"{size}x{size}"),
            drop=float(self.text("drop")),
            steps=int(self.text("steps", str(USUAL_STEPS))),
            users=int(self.text("users", str(USUAL_USERS))),
            rounds=int(self.text("rounds")),
        )

    @cached_property
    def kind(self) -> Kind:
        """Method, rank or density, bits of a symbol, clip and decay."""
        method = self.text("method")
        if method == "plain":
            return Kind("plain")
        rank = method == "rank"
        clip = {"": "0", "False": "0", "True": "2"}
        follows = self.text("clip_from_sum")
        return Kind(
            method=method,
            amount=float(self.text("rank"))
            if rank
            else round(100 * float(self.text("density")), 6),
            bits=SYMBOL_BITS[int(self.text("field", "4281076801"))],
            follows=float(clip.get(follows, follows)),
            decay=float(self.text("decay", "1")),
        )

    @property
    def seed(self) -> int:
        """Of data, model, batches and drop-outs."""
        return int(self.text("seed"))

    @property
    def measure(self) -> str:
        """The column that says how good the model is."""
        return "accuracy" if "accuracy" in self.rows[0] else "test_loss"

    @property
    def measured(self) -> list[float]:
        """That column."""
        return self.column(self.measure)

    @property
    def finished(self) -> bool:
        """Whether the last round is there."""
        return int(self.rows[-1]["round"]) == self.training.rounds

    @property
    def sent(self) -> list[float]:
        """All bytes that a user has sent: before it had gradients, and with them."""
        pairs = zip(self.column("offline_bytes"), self.column("online_bytes"), strict=True)
        return [before + online for before, online in pairs]

    def bytes_at(self, level: float) -> float | None:
        """What a user has sent when the model is as good as that for the first time."""
        better = (lambda v: v >= level) if self.measure == "accuracy" else (lambda v: v <= level)
        pairs = zip(self.measured, self.sent, strict=True)
        return next((sent for value, sent in pairs if better(value)), None)


def light_secagg(first: Curve) -> float:
    """What dense LightSecAgg sends in a round, of what plain averaging sends: the vector, N-1
    shares of a D-th of it before, and such an answer."""
    N, U, T = (int(first.text(name)) for name in ("users", "survivors", "colluders"))
    return 1 + N / (U - T)


def by_training(curves: Iterable[Curve]) -> dict[Training, dict[Kind, list[Curve]]]:
    """The curves of each training, by kind, with their seeds."""
    found: dict[Training, dict[Kind, list[Curve]]] = {}
    for curve in sorted(curves, key=lambda c: (c.training, c.kind.order, c.seed)):
        found.setdefault(curve.training, {}).setdefault(curve.kind, []).append(curve)
    return found


class Line(NamedTuple):
    """What one numbered curve of a figure shows: the mean of the seeds, and their range."""

    label: str
    x: list[float]
    seeds: list[list[float]]
    style: object = "-"


def lines_by_round(kinds: dict[Kind, list[Curve]]) -> list[Line]:
    """A line for each kind."""
    return [
        Line(label_of(kind, same), same[0].column("round"), [shown(curve) for curve in same])
        for kind, same in kinds.items()
    ]


def lines_by_bytes(kinds: dict[Kind, list[Curve]]) -> list[Line]:
    """A line for each kind, and the plain training with the bytes of a dense secure sum."""
    lines = [
        Line(
            f"{label_of(kind, same)}: {kilobytes(same)} a round",
            same[0].sent,
            [shown(curve) for curve in same],
        )
        for kind, same in kinds.items()
    ]
    plain = kinds.get(Kind("plain"))
    if plain:
        label = lines[0].label.replace(METHODS["plain"], "all entries, in the clear or by SecAgg+")
        lines[0] = lines[0]._replace(label=label)
        times = light_secagg(plain[0])
        lines.append(
            Line(
                f"all entries, by LightSecAgg: {kilobytes(plain, times)} a round",
                [times * sent for sent in plain[0].sent],
                lines[0].seeds,
                style=(0, (5, 2)),
            )
        )
    return lines


def label_of(kind: Kind, same: Sequence[Curve]) -> str:
    """With the number of seeds, if there are more than one."""
    return kind.label if len(same) == 1 else f"{kind.label} ({len(same)} seeds)"


def kilobytes(same: Sequence[Curve], times: float = 1.0) -> str:
    """What a user sends in a round, on average over all rounds."""
    amount = times * same[0].sent[-1] / same[0].training.rounds / 1e3
    return f"{amount:,.0f} kB" if amount >= 100 else f"{amount:.1f} kB"


def shown(curve: Curve) -> list[float]:
    """Percent, or nats."""
    return [100 * v for v in curve.measured] if curve.measure == "accuracy" else curve.measured


def picture(lines: list[Line], path: Path, xlabel: str, ylabel: str, *, log: bool) -> None:
    """Numbered curves, and a legend of numbers below them."""
    figure, panel = plt.subplots(figsize=(6.4, 4.1 + 0.26 * len(lines)), layout="constrained")
    colours = (INK, *COLOURS)
    for number, line in enumerate(lines, 1):
        # each number has its own place along the curves, so that none covers another
        place = (number + 2) / (len(lines) + 3)
        draw_line(panel, line, number, colours[(number - 1) % len(colours)], place)
    if log:
        panel.set_xscale("log")
    panel.set(xlabel=xlabel, ylabel=ylabel)
    panel.margins(x=0.03)
    panel.grid(visible=True, color=GRID, linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower left", frameon=False, handlelength=2, labelspacing=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})  # the same curves give the same bytes
    plt.close(figure)
    path.write_text(for_both_pages(path.read_text()))
    print(path.name, file=sys.stderr)


def draw_line(panel: Axes, line: Line, number: int, colour: str, place: float) -> None:
    """The mean, the range, and the number in a disc: at the end of a curve that stops early, and
    of others at this place between 0 and 1."""
    columns = list(zip(*line.seeds, strict=True))
    if len(line.seeds) > 1:
        low, high = [min(c) for c in columns], [max(c) for c in columns]
        panel.fill_between(line.x, low, high, color=colour, alpha=0.18, lw=0)
    mean = [sum(column) / len(column) for column in columns]
    panel.plot(
        line.x, mean, label=f"{number}  {line.label}", color=colour, ls=line.style, linewidth=1.8
    )
    at = round(len(line.x) * place) - 1 if line.x[-1] == panel.dataLim.x1 else -1
    panel.plot(line.x[at], mean[at], "o", color=colour, ms=11, zorder=3)
    panel.annotate(
        str(number), (line.x[at], mean[at]), color=PAPER, ha="center", va="center", fontsize=9,
        weight="bold", zorder=4,
    )  # fmt: skip


def for_both_pages(svg: str) -> str:
    """Colours that a dark page changes."""
    rules = " ".join(
        f'[style*="{part}: {bright}"] {{ {part}: {dark} !important }}'
        for bright, dark in DARK.items()
        for part in ("fill", "stroke")
    )
    style = f"<style>@media (prefers-color-scheme: dark) {{ {rules} }}</style>"
    return re.sub(r"(<svg [^>]*>)", lambda m: f"{m[1]}\n {style}", svg, count=1)


def draw(curves: list[Curve], figures: Path) -> None:
    """Two figures for each training in which something was summed in secret."""
    for training, kinds in by_training(curves).items():
        if list(kinds) == [Kind("plain")]:
            continue
        first = next(iter(kinds.values()))[0]
        ylabel = AXES[first.measure]
        rounds = figures / f"rounds-{training.name}.svg"
        picture(lines_by_round(kinds), rounds, "round", ylabel, log=False)
        xlabel = "bytes that a user has sent in all, before and with its gradients"
        picture(
            lines_by_bytes(kinds), figures / f"bytes-{training.name}.svg", xlabel, ylabel, log=True
        )


def markdown(columns: Sequence[str], left: int, lines: Iterable[Sequence[str]]) -> str:
    """A table whose first `left` columns are words."""
    marks = "".join("|--" if at < left else "|--:" for at in range(len(columns)))
    rows = [f"| {' | '.join(line)} |" for line in (columns, *lines)]
    return "\n".join([rows[0], f"{marks}|", *rows[1:]])


def table(curves: list[Curve]) -> str:
    """What came out, as Markdown: over the seeds the mean, and the range."""
    columns = (
        "training", "drop-outs", "method", "seeds", "at the end", "last 100 rounds",
        "kB before", "kB a round", "MB in all", "protocol's time",
    )  # fmt: skip
    lines = []
    for training, kinds in by_training(curves).items():
        for kind, same in kinds.items():
            last = [curve.rows[-1] for curve in same]
            ends = [curve.measured[-1] for curve in same]
            late = [mean(curve.measured[-10:]) for curve in same]
            before, online = (
                mean([float(row[f"{what}_bytes"]) for row in last])
                for what in ("offline", "online")
            )
            protocol, local = (
                sum(float(row[f"{what}_seconds"]) for row in last)
                for what in ("protocol", "training")
            )
            lines.append(
                (
                    words(training),
                    f"{training.drop:.0%}",
                    kind.label + scaled(last[0]),
                    ", ".join(str(curve.seed) for curve in same),
                    over_seeds(ends, same[0].measure),
                    over_seeds(late, same[0].measure),
                    f"{before / 1e3:,.0f}",
                    f"{online / training.rounds / 1e3:,.1f}",
                    f"{(before + online) / 1e6:,.1f}",
                    f"{protocol / (protocol + local):.0%}",
                )
            )
    return markdown(columns, 1, lines)


def words(training: Training) -> str:
    """What is trained, and how much."""
    parts = [training.task.replace("x", " × "), f"{training.rounds} rounds"]
    parts += [] if training.steps == USUAL_STEPS else [f"{training.steps} local steps"]
    parts += [] if training.users == USUAL_USERS else [f"{training.users} users"]
    return ", ".join(parts)


def scaled(row: dict[str, str]) -> str:
    """The scale of random-K."""
    scale = float(row["scale"])
    return "" if scale == 1 else f", scaled by {scale:g}"


def mean(values: Sequence[float]) -> float:
    """Their mean."""
    return sum(values) / len(values)


def over_seeds(values: Sequence[float], measure: str) -> str:
    """The mean, and the range in brackets if there are several."""

    def one(value: float) -> str:
        return f"{value:.1%}" if measure == "accuracy" else f"{value:.3f}"

    spread = f" ({one(min(values))}..{one(max(values))})" if len(values) > 1 else ""
    return one(mean(values)) + spread


def bytes_to_reach(curves: list[Curve]) -> str:
    """All bytes that a user sends until the model is that good for the first time, as Markdown: the
    mean of the seeds, and their range. Peers take the same training."""
    (kinds,) = by_training(curves).values()
    first = curves[0]
    levels = REACHED[first.measure]
    times_of = {"": 1.0}
    lines = []
    for kind, same in kinds.items():
        times_of = {kind.label: 1.0}
        if kind.method == "plain":
            times_of |= {
                "the same, by Flower's SecAgg+": SECAGG_PLUS,
                "the same, by dense LightSecAgg": light_secagg(first),
            }
        for label, times in times_of.items():
            cells = [reached([curve.bytes_at(level) for curve in same], times) for level in levels]
            lines.append((label, str(len(same)), *cells))
    shown_levels = [f"{v:.0%}" if first.measure == "accuracy" else f"{v:g}" for v in levels]
    return markdown(("method", "seeds", *shown_levels), 1, lines)


def reached(every: Sequence[float | None], times: float) -> str:
    """The mean and the range, if all seeds came so far."""
    sent = [times * value for value in every if value is not None]
    if len(sent) < len(every):
        return "not reached" if len(every) == 1 else "not by all seeds"
    spread = "" if len(sent) == 1 else f" ({megabytes(min(sent))}..{megabytes(max(sent))})"
    return megabytes(mean(sent)) + spread


def megabytes(sent: float) -> str:
    """With a digit behind the point where it is little."""
    return f"{sent / 1e6:,.1f} MB" if sent < 1e8 else f"{sent / 1e6:,.0f} MB"


def read(folder: Path, *, unfinished: bool = False) -> list[Curve]:
    """The curves of a folder."""
    files = sorted(path for path in folder.glob("*.csv") if not path.name.endswith(".scales.csv"))
    every = [Curve(list(csv.DictReader(path.read_text().splitlines()))) for path in files]
    return [curve for curve in every if unfinished or curve.finished]


def of(curves: list[Curve], task: str, drop: float, rounds: int) -> list[Curve]:
    """The curves of one training with the usual steps and users."""
    wanted = Training(task, drop, steps=USUAL_STEPS, users=USUAL_USERS, rounds=rounds)
    return [curve for curve in curves if curve.training == wanted]


def main() -> None:
    """Read all curves, draw them, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="*", default=FOLDERS, metavar="FOLDER")
    parser.add_argument("--all", action="store_true", help="unfinished curves too")
    args = parser.parse_args()

    plt.rcParams |= {
        "svg.hashsalt": "curves",
        "svg.fonttype": "none",
        "font.size": 11.5,
        "text.color": INK,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.facecolor": PAPER,
        "figure.facecolor": PAPER,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    for folder in args.folders:
        curves = read(folder / "results", unfinished=args.all)
        draw(curves, folder / "figures")
        print(table(curves))


if __name__ == "__main__":
    main()
