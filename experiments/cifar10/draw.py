"""The figures and the table of the curves in RESULTS.

Usage: draw.py [--all] [--results RESULTS] [--figures FIGURES]

Draws the finished curves, or all with --all, and prints a Markdown table. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from topk_secagg.protocol.parameters import Parameters, theorem_r1, theorem_r2

HERE = Path(__file__).parent
LENGTH = 272_474
SYMBOL = 4  # bytes
METHODS = {
    ("plain", 0.01): ("no secure aggregation", "black"),
    ("topk-ef", 0.01): ("top-K 1 %, error feedback", "#0072b2"),
    ("topk-ef", 0.02): ("top-K 2 %, error feedback", "#56b4e9"),
    ("topk", 0.01): ("top-K 1 %", "#009e73"),
    ("random", 0.01): ("random-K 1 %", "#d55e00"),
}
DENSE, PAPER = "dense LightSecAgg", "the paper's construction"
PEERS = {  # whose bytes the same training would take
    ("plain", 0.01): (DENSE, "all entries, by dense LightSecAgg", (0, (5, 2))),
    ("topk-ef", 0.01): (PAPER, "top-K 1 %, by the paper's construction", (0, (1, 1.5))),
}


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
    def key(self) -> tuple[str, float]:
        """Method and density."""
        return self.text("method"), float(self.text("density"))

    @property
    def finished(self) -> bool:
        """Whether the last round is there."""
        return int(self.rows[-1]["round"]) == int(self.text("rounds"))

    def share(self) -> float:
        """The protocol's share of the computing time of a round."""
        protocol, training = (
            self.column(f"{what}_seconds")[-1] for what in ("protocol", "training")
        )
        return protocol / (protocol + training)


@dataclass(frozen=True)
class Peer:
    """Bytes that a user would send in a round, to the others offline and to everybody online."""

    offline: float
    online: float


def peers(first: Curve) -> dict[str, Peer]:
    """Dense LightSecAgg, and the paper's construction at the rates of its theorem, with symbols of
    four bytes."""
    N, U, T = (int(first.text(name)) for name in ("users", "survivors", "colluders"))
    p = Parameters.choose(
        users=N, survivors=U, colluders=T, top_k=round(0.01 * LENGTH), length=LENGTH
    )
    part = LENGTH * theorem_r2(p)
    return {
        DENSE: Peer(SYMBOL * (N - 1) * part, SYMBOL * (LENGTH + part)),
        PAPER: Peer(
            SYMBOL * (N - 1) * 2 * LENGTH * part, SYMBOL * LENGTH * (theorem_r1(p) + theorem_r2(p))
        ),
    }


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
        for key, (label, colour) in METHODS.items():
            for curve in curves:
                if curve.key == key and float(curve.text("drop")) == drop:
                    line(panel, curve.column("round"), curve, label, colour)
        panel.set(title=f"{drop:.0%} of the users drop out", xlabel="round")
    finish(figure, panels[0], path)


def accuracy_by_bytes(curves: list[Curve], path: Path) -> None:
    """Online alone, and offline too; ours, and what the same curves would cost with others'
    protocols."""
    figure, panels = plt.subplots(1, 2, figsize=(9.5, 4.4), sharey=True, layout="constrained")
    for panel, offline in zip(panels, (False, True), strict=True):
        for curve in sorted(curves, key=lambda curve: list(METHODS).index(curve.key)):
            label, colour = METHODS[curve.key]
            sent = curve.column("online_bytes")
            if offline:
                sent = [a + b for a, b in zip(sent, curve.column("offline_bytes"), strict=True)]
            line(panel, sent, curve, label, colour)
            if curve.key in PEERS:
                peer, name, style = PEERS[curve.key]
                each = peers(curve)[peer].online + offline * peers(curve)[peer].offline
                line(panel, [each * n for n in curve.column("round")], curve, name, colour, style)
        panel.set(
            xscale="log",
            xlabel=f"bytes a user has sent, {'offline and online' if offline else 'online'}",
        )
    finish(figure, panels, path)


def line(
    panel: Axes, x: list[float], curve: Curve, label: str, colour: str, style: object = "-"
) -> None:
    """Test accuracy in percent."""
    accuracy = [100 * share for share in curve.column("accuracy")]
    panel.plot(x, accuracy, label=label, color=colour, linestyle=style, linewidth=1.4)


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


def table(curves: list[Curve]) -> str:
    """What came out, as Markdown; the accuracy after the last round, and its range over the last
    hundred."""
    columns = (
        "images",
        "drop-outs",
        "method",
        "seed",
        "rounds",
        "test accuracy",
        "online, MB",
        "offline, MB",
        "protocol's share",
    )
    lines = [f"| {' | '.join(columns)} |", "|--|--:|--|--:|--:|--:|--:|--:|--:|"]
    for curve in curves:
        last = curve.rows[-1]
        drop, scale, accuracy = (float(last[name]) for name in ("drop", "scale", "accuracy"))
        name = METHODS[curve.key][0] + (f", scaled by {scale:g}" if scale != 1 else "")
        online, offline = (int(last[f"{what}_bytes"]) / 1e6 for what in ("online", "offline"))
        late = sorted(curve.column("accuracy")[-10:])
        lines.append(
            f"| {last['size']} × {last['size']} | {drop:.0%} | {name} | {last['seed']} | {last['round']} "
            f"| {accuracy:.1%} ({late[0]:.1%}..{late[-1]:.1%}) | {online:,.0f} | {offline:,.0f} | {curve.share():.0%} |"
        )
    return "\n".join(lines)


def read(folder: Path, *, unfinished: bool = False) -> list[Curve]:
    """The curves of a folder, in the order of the table."""
    files = sorted(path for path in folder.glob("*.csv") if not path.name.endswith(".scales.csv"))
    found = [Curve(list(csv.DictReader(path.read_text().splitlines()))) for path in files]
    curves = [curve for curve in found if unfinished or curve.finished]
    return sorted(
        curves,
        key=lambda c: (
            c.text("size"),
            float(c.text("drop")),
            list(METHODS).index(c.key),
            c.text("seed"),
        ),
    )


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
    for size in dict.fromkeys(curve.text("size") for curve in curves):
        mine = [curve for curve in curves if curve.text("size") == size]
        drops = sorted({float(curve.text("drop")) for curve in mine})
        accuracy_by_round(mine, drops, args.figures / f"accuracy-{size}x{size}.svg")
        for drop in drops:
            same = [curve for curve in mine if float(curve.text("drop")) == drop]
            accuracy_by_bytes(
                same, args.figures / f"bytes-{size}x{size}-drop{100 * drop:02.0f}.svg"
            )
    print(table(curves))


if __name__ == "__main__":
    main()
