"""Everything that is measured, in one run: start-up, kernels, floors, low rank, peers, growth and
bytes.

Usage: bench.py [--quick] [--only PART]... [--output FOLDER]. Prints a table, and writes
results.json and plots to the folder. Every figure is a ratio to a floor or a peer that was measured
in turns with it, with the spread over repeats.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import floors
import growth
import kernels
import low_rank
import paper_size
import peers
import startup
import users
from measuring import Figure, machine, scratch

PARTS = ("start-up", "kernels", "floors", "low rank", "peers", "growth", "users", "bytes")
TABLES = {"growth": growth.rows, "users": users.rows, "bytes": paper_size.rows}
HEADER = ["", "figure", "ours", "against", "theirs", "ratio (least..most)", "wanted", ""]


def measure(parts: list[str], *, quick: bool) -> dict[str, Any]:
    """All results; JSON can hold them."""
    repeats = 2 if quick else 5
    results: dict[str, Any] = {"machine": machine(), "quick": quick, "figures": []}
    for part in parts:
        with scratch() as folder:
            figures: list[Figure] = []
            if part == "start-up":
                figures = startup.figures(folder, repeats)
            elif part == "kernels":
                figures = kernels.figures(repeats)
            elif part == "floors":
                figures = floors.figures(folder, 2_560_000 if quick else 25_600_000)
            elif part == "low rank":
                figures = low_rank.figures(folder, quick=quick)
            elif part == "peers":
                measured = peers.measure(peers.LENGTHS[:2] if quick else peers.LENGTHS, repeats)
                results["peers"] = measured
                figures = peers.figures(measured)
            elif part == "growth":
                results["growth"] = growth.measure(folder, quick=quick)
            elif part == "users":
                results["users"] = users.measure(folder, quick=quick)
            else:
                results["bytes"] = paper_size.measure(folder, quick=quick)
            results["figures"] += [
                asdict(figure) | {"ratio": figure.ratio, "met": figure.met} for figure in figures
            ]
    return results


def rows(results: dict[str, Any]) -> list[list[str]]:
    """The table of ratios."""
    table = [HEADER]
    for f in results["figures"]:
        low, high = min(f["ratios"]), max(f["ratios"])
        amount = AMOUNTS[f["unit"]]
        spread = f"{f['ratio']:.3g}" if low == high else f"{f['ratio']:.3g} ({low:.3g}..{high:.3g})"
        wanted = "" if f["most"] is None else f"at most {f['most']:.3g}"
        verdict = {None: "", True: "met", False: "not met"}[f["met"]]
        reason = f["remark"] if f["ratio"] > 1 or f["met"] is False else ""
        remark = ": ".join(filter(None, (verdict, reason)))
        table.append(
            [
                f["part"],
                f["name"],
                amount(f["ours"]),
                f["against"],
                amount(f["theirs"]),
                spread,
                wanted,
                remark,
            ]
        )
    return table


AMOUNTS = {
    "s": lambda values: (
        f"{median(values):.2f} s" if median(values) >= 1 else f"{1000 * median(values):.3g} ms"
    ),
    "bytes": lambda values: f"{median(values) / 1000:,.1f} kB",
}


def text(table: list[list[str]]) -> str:
    """Columns, aligned."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]
    return "\n".join(lines)


def markdown(table: list[list[str]]) -> str:
    """The same for a document."""
    head, *lines = (f"| {' | '.join(line)} |" for line in table)
    return "\n".join([head, "|--" * len(table[0]) + "|", *lines])


def main() -> None:
    """Measure, print, write, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="smaller sizes and fewer repeats: about three minutes"
    )
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="measure this part; can be repeated"
    )
    parser.add_argument("--output", type=Path, help="folder for results.json and the plots")
    options = parser.parse_args()
    results = measure(options.only or list(PARTS), quick=options.quick)
    earlier = options.output / "results.json" if options.output else None
    if options.only and earlier and earlier.exists():  # other parts stay as they were measured
        before = json.loads(earlier.read_text())
        others = [f for f in before["figures"] if f["part"] not in options.only]
        figures = sorted(others + results["figures"], key=lambda f: PARTS.index(f["part"]))
        results = before | results | {"figures": figures}
    print(", ".join(f"{key} {value}" for key, value in results["machine"].items()))
    if results["figures"]:
        print(text(rows(results)))
    for part, table in TABLES.items():
        if part in results:
            print(text(table(results[part])))
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        if "growth" in results:
            growth.draw(results["growth"], options.output / "growth.svg")


if __name__ == "__main__":
    main()
