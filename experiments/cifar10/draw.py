"""The figures and the table of the curves in RESULTS.

Usage: draw.py [--all] [--results RESULTS] [--figures FIGURES]

Draws the finished curves, or all with --all, and prints Markdown tables. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from topk_secagg.protocol.parameters import Parameters, theorem_r1, theorem_r2

HERE = Path(__file__).parent
LENGTH = 272_474
SYMBOL = 4  # bytes
DEFAULT_FIELD = "4281076801"
SECAGG_PLUS_BYTES = 1_097_000  # in a round, counted with Flower's own code: docs/benchmarks.md


class Kind(NamedTuple):
    """What distinguishes two curves of one figure, but for their seed."""

    method: str
    density: float
    construction: str
    field: str = DEFAULT_FIELD


PLAIN = Kind("plain", 0.01, "")
MOMENTS = Kind("topk-ef", 0.01, "moments")
SKETCH = Kind("topk-ef", 0.01, "sketch")
KINDS = {
    PLAIN: ("no secure aggregation", "black"),
    MOMENTS: ("top-K 1 %, moments", "#0072b2"),
    SKETCH: ("top-K 1 %, sketch", "#cc79a7"),
    Kind("topk-ef", 0.01, "sketch", field="65521"): ("top-K 1 %, sketch, 16 bits", "#e69f00"),
    Kind("topk-ef", 0.003, "sketch"): ("top-K 0.3 %, sketch", "#7f6cb8"),
    Kind("topk-ef", 0.001, "sketch"): ("top-K 0.1 %, sketch", "#8c510a"),
    Kind("topk-ef", 0.001, "sketch", field="65521"): ("top-K 0.1 %, sketch, 16 bits", "#d8b365"),
    Kind("topk-ef", 0.02, "moments"): ("top-K 2 %, moments", "#56b4e9"),
    Kind("topk", 0.01, "moments"): ("top-K 1 %, moments, no error feedback", "#009e73"),
    Kind("random", 0.01, "moments"): ("random-K 1 %, moments", "#d55e00"),
    Kind("random", 0.01, "sketch"): ("random-K 1 %, sketch", "#f4a582"),
}
# not in the picture of all bytes: they cost as much or more, and reach no more
WITHOUT_BYTES = [kind for kind in KINDS if kind.method in ("topk", "random") or kind.density > 0.01]
DENSE = "dense LightSecAgg"
SECAGG_PLUS = "Flower's SecAgg+"
PAPER = "the paper's construction"
STYLES = {SECAGG_PLUS: (0, (3, 1, 1, 1)), DENSE: (0, (5, 2)), PAPER: (0, (1, 1.5))}
REACHED = (0.50, 0.55, 0.59)


@dataclass(frozen=True)
class Curve:
    """The rows of a result file."""

    rows: list[dict[str, str]]

    def text(self, column: str) -> str:
        """A setting."""
        return self.rows[0][column]

    def column(self, name: str) -> list[float]:
        """A measured column."""
        return [float(row[name]) for row in self.rows]

    @property
    def kind(self) -> Kind:
        """Method, density, construction and field; the first curves had one of the last two."""
        method = self.text("method")
        construction = "" if method == "plain" else self.rows[0].get("construction", "moments")
        field = DEFAULT_FIELD if method == "plain" else self.rows[0].get("field", DEFAULT_FIELD)
        density = float(self.text("density"))
        return Kind(method, density, construction, field=field)

    @property
    def finished(self) -> bool:
        """Whether the last round is there."""
        return int(self.rows[-1]["round"]) == int(self.text("rounds"))

    @property
    def sent(self) -> list[float]:
        """All bytes that a user has sent: before it had gradients, and with them."""
        pairs = zip(self.column("offline_bytes"), self.column("online_bytes"), strict=True)
        return [before + online for before, online in pairs]

    def share(self) -> float:
        """The protocol's share of the computing time of a round."""
        protocol, training = (
            self.column(f"{what}_seconds")[-1] for what in ("protocol", "training")
        )
        return protocol / (protocol + training)

    def first_at(self, accuracy: float) -> int | None:
        """The first row with this accuracy."""
        return next(
            (at for at, value in enumerate(self.column("accuracy")) if value >= accuracy), None
        )


def bytes_of_peers(first: Curve) -> dict[str, float]:
    """What a user sends in a round: dense LightSecAgg and the paper's construction at the rates of
    its theorem, with symbols of four bytes."""
    N, U, T = (int(first.text(name)) for name in ("users", "survivors", "colluders"))
    p = Parameters.choose(
        users=N, survivors=U, colluders=T, top_k=round(0.01 * LENGTH), length=LENGTH
    )
    part = LENGTH * theorem_r2(p)
    return {
        DENSE: SYMBOL * ((N - 1) * part + LENGTH + part),
        SECAGG_PLUS: SECAGG_PLUS_BYTES,
        PAPER: SYMBOL * ((N - 1) * 2 * LENGTH * part + LENGTH * (theorem_r1(p) + theorem_r2(p))),
    }


def seeds(curves: list[Curve]) -> dict[Kind, list[Curve]]:
    """The curves of each kind, by seed, in the order of the legend; all have as many rounds."""
    by_kind: dict[Kind, list[Curve]] = {}
    for kind in KINDS:
        same = [curve for curve in curves if curve.kind == kind]
        if same:
            by_kind[kind] = sorted(same, key=lambda curve: int(curve.text("seed")))
    return by_kind


def trainings_of_peers(by_kind: dict[Kind, list[Curve]]) -> dict[str, Kind]:
    """The training that each peer would do the same with other bytes, if there is its curve: top-K
    by the paper's construction ends where ours does, by either."""
    topk = MOMENTS if MOMENTS in by_kind else SKETCH
    wanted = {SECAGG_PLUS: PLAIN, DENSE: PLAIN, PAPER: topk}
    return {peer: kind for peer, kind in wanted.items() if kind in by_kind}


def accuracy_by_round(curves: list[Curve], drops: list[float], path: Path) -> None:
    """A panel for each drop-out rate."""
    figure, panels = plt.subplots(
        1,
        len(drops),
        figsize=(1.2 + 3.4 * len(drops), 3.6),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for panel, drop in zip(panels[0], drops, strict=True):
        same = [curve for curve in curves if float(curve.text("drop")) == drop]
        for kind, by_seed in seeds(same).items():
            label, colour = KINDS[kind]
            line(panel, by_seed[0].column("round"), by_seed, label=label, colour=colour)
        panel.set(title=f"{drop:.0%} of the users drop out", xlabel="round")
    finish(figure, panels[0], path)


def accuracy_by_bytes(curves: list[Curve], path: Path) -> None:
    """All bytes that a user has sent; ours, and what the same training would cost with others'
    protocols. The paper's construction is so far away that the axis has a gap."""
    figure, (near, far) = plt.subplots(
        1, 2, figsize=(9.5, 4.6), sharey=True, layout="constrained", width_ratios=(6, 1)
    )
    by_kind = seeds(curves)
    for kind, by_seed in by_kind.items():
        label, colour = KINDS[kind]
        if kind not in WITHOUT_BYTES:
            line(near, by_seed[0].sent, by_seed, label=label, colour=colour)
    for peer, kind in trainings_of_peers(by_kind).items():
        first = by_kind[kind][0]
        bytes_a_round = bytes_of_peers(first)[peer]
        label, colour = KINDS[kind]
        entries = label.split(",")[0] if peer == PAPER else "all entries"
        line(
            far if peer == PAPER else near,
            [bytes_a_round * n for n in first.column("round")],
            by_kind[kind],
            label=f"{entries}, by {peer}",
            colour=colour,
            style=STYLES[peer],
        )
    for panel in (near, far):
        panel.set_xscale("log")
    near.set_xlabel("bytes that a user has sent in all, before and with its gradients")
    far.spines["left"].set_visible(False)
    far.tick_params(axis="y", length=0)
    finish(figure, [near, far], path)


def line(
    panel: Axes,
    x: list[float],
    by_seed: list[Curve],
    label: str,
    colour: str,
    style: object = "-",
) -> None:
    """Test accuracy in percent: the mean of the seeds, and their range."""
    accuracy = [[100 * share for share in curve.column("accuracy")] for curve in by_seed]
    columns = list(zip(*accuracy, strict=True))
    if len(by_seed) > 1:
        label += f" ({len(by_seed)} seeds)"
        panel.fill_between(
            x, [min(c) for c in columns], [max(c) for c in columns], color=colour, alpha=0.15, lw=0
        )
    mean = [sum(column) / len(column) for column in columns]
    panel.plot(x, mean, label=label, color=colour, linestyle=style, linewidth=1.4)


def finish(figure: plt.Figure, panels: list[Axes], path: Path) -> None:
    """Labels, and the file; the same curves give the same bytes."""
    panels[0].set_ylabel("test accuracy, %")
    labelled: dict[str, object] = {}
    for panel in panels:
        panel.grid(visible=True, color="0.9", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            labelled.setdefault(label, handle)
    figure.legend(
        labelled.values(),
        labelled.keys(),
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=8,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    print(path.name, file=sys.stderr)


def markdown(columns: Sequence[str], left: int, lines: Iterable[Sequence[str]]) -> str:
    """A table whose first `left` columns are words."""
    marks = "".join("|--" if at < left else "|--:" for at in range(len(columns)))
    return "\n".join(
        [f"| {' | '.join(line)} |" for line in (columns,)]
        + [f"{marks}|"]
        + [f"| {' | '.join(line)} |" for line in lines]
    )


def table(curves: list[Curve]) -> str:
    """What came out, as Markdown; the accuracy after the last round, and its range over the last
    hundred."""
    columns = (
        "images", "method", "drop-outs", "seed", "rounds", "test accuracy", "before, MB",
        "with gradients, MB", "protocol's share",
    )  # fmt: skip
    lines = []
    for curve in curves:
        last = curve.rows[-1]
        drop, scale, accuracy = (float(last[name]) for name in ("drop", "scale", "accuracy"))
        before, online = (int(last[f"{what}_bytes"]) / 1e6 for what in ("offline", "online"))
        late = sorted(curve.column("accuracy")[-10:])
        lines.append(
            (
                f"{last['size']} × {last['size']}",
                KINDS[curve.kind][0] + (f", scaled by {scale:g}" if scale != 1 else ""),
                f"{drop:.0%}",
                last["seed"],
                last["round"],
                f"{accuracy:.1%} ({late[0]:.1%}..{late[-1]:.1%})",
                f"{before:,.0f}" if before >= 10 or not before else f"{before:.3f}",
                f"{online:,.0f}" if online >= 10 else f"{online:.1f}",
                f"{curve.share():.0%}",
            )
        )
    return markdown(columns, 2, lines)


def bytes_to_reach(curves: list[Curve]) -> str:
    """All bytes that a user sends until the accuracy is there for the first time, as Markdown: the
    mean of the seeds, and their range. Peers take the same training."""

    def cell(by_seed: Iterable[float | None]) -> str:
        every = list(by_seed)
        sent = [value for value in every if value is not None]
        if len(sent) < len(every):
            return "not reached" if len(every) == 1 else "not by all seeds"
        low, high = min(sent), max(sent)
        mean = sum(sent) / len(sent)
        spread = "" if len(sent) == 1 else f" ({amount(low)}..{amount(high)})"
        return amount(mean) + spread

    def amount(sent: float) -> str:
        return f"{sent / 1e6:,.1f} MB" if sent < 1e8 else f"{sent / 1e6:,.0f} MB"

    by_kind = seeds(curves)
    peers = trainings_of_peers(by_kind)
    lines = []
    for kind, by_seed in by_kind.items():
        rows = [[curve.first_at(accuracy) for curve in by_seed] for accuracy in REACHED]
        cells = [
            cell(None if at is None else c.sent[at] for c, at in zip(by_seed, row, strict=True))
            for row in rows
        ]
        lines.append((KINDS[kind][0], str(len(by_seed)), *cells))
        for peer, theirs in peers.items():
            if theirs == kind:
                bytes_a_round = bytes_of_peers(by_seed[0])[peer]
                cells = [
                    cell(
                        None if at is None else bytes_a_round * c.column("round")[at]
                        for c, at in zip(by_seed, row, strict=True)
                    )
                    for row in rows
                ]
                lines.append((f"the same, by {peer}", str(len(by_seed)), *cells))
    columns = ("method", "seeds", *(f"{accuracy:.0%}" for accuracy in REACHED))
    return markdown(columns, 1, lines)


def read(folder: Path, *, unfinished: bool = False) -> list[Curve]:
    """The curves of a folder, in the order of the table."""
    files = sorted(path for path in folder.glob("*.csv") if not path.name.endswith(".scales.csv"))
    every = [Curve(list(csv.DictReader(path.read_text().splitlines()))) for path in files]
    curves = [curve for curve in every if unfinished or curve.finished]
    return sorted(
        curves,
        key=lambda c: (
            c.text("size"),
            list(KINDS).index(c.kind),
            float(c.text("drop")),
            int(c.text("rounds")),
            int(c.text("seed")),
        ),
    )


def of(curves: list[Curve], size: int, drop: float, rounds: int) -> list[Curve]:
    """The curves of one training."""
    wanted = (str(size), drop, rounds)
    return [
        c
        for c in curves
        if (c.text("size"), float(c.text("drop")), int(c.text("rounds"))) == wanted
    ]


def main() -> None:
    """Read all curves, draw them, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="unfinished curves too")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--figures", type=Path, default=HERE / "figures")
    args = parser.parse_args()

    plt.rcParams |= {
        "svg.hashsalt": "cifar10",
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.titlesize": 9,
    }
    curves = read(args.results, unfinished=args.all)
    trainings = sorted({(int(c.text("size")), int(c.text("rounds"))) for c in curves})
    for size, rounds in trainings:
        same = [c for c in curves if (int(c.text("size")), int(c.text("rounds"))) == (size, rounds)]
        usual = rounds == max(r for s, r in trainings if s == size) if size == 16 else rounds == 400
        name = f"{size}x{size}" if usual else f"{size}x{size}-{rounds}rounds"
        drops = sorted({float(curve.text("drop")) for curve in same})
        accuracy_by_round(same, drops, args.figures / f"accuracy-{name}.svg")
        for drop in drops:
            path = args.figures / f"bytes-{name}-drop{100 * drop:02.0f}.svg"
            accuracy_by_bytes(of(same, size=size, drop=drop, rounds=rounds), path)
    print(table(curves))
    print()
    print(bytes_to_reach(of(curves, size=16, drop=0.3, rounds=800)))


if __name__ == "__main__":
    main()
