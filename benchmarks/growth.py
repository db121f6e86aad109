"""How time, memory and bytes of each phase of `sketch` grow with L and N, by commands; with fitted
exponents and a plot.

A point is a round of the fewest users that may remain: T = 0.3 N, U = T + max(2, N/5). Shares are
written out, so that rounds of few and of many users do the same. Seconds and bytes are those of one
user, beyond the start-up of the command.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from measuring import command, gradients, subplots

PHASES = ("offline", "mask", "eliminate", "decode")
LEAST = 0.1  # seconds of all users: below, the spread of the start-up decides
KINDS = ("seconds", "memory", "bytes")
PICTURE = "![growth of seconds, memory and bytes](benchmarks/growth.svg)"  # in the document
Point = dict[str, Any]


def point(folder: Path, length: int, users: int, top_k: int, start: dict[str, float]) -> Point:
    """Seconds, MB and bytes of each phase."""
    colluders = 3 * users // 10
    survivors = colluders + max(2, users // 5)
    root = folder / "round"
    source = gradients(folder / "gradients", length, users, used=survivors)
    sizes = ["--users", users, "--survivors", survivors, "--colluders", colluders]
    sizes += ["--length", length, "--top-k", top_k]
    command("init", root, *sizes, "--construction", "sketch", "--dealing", "shares")
    who = ["--user", f"1-{survivors}"]
    files = {
        "offline": "shares/*/from-01.h5",
        "mask": "masked/user-01.h5",
        "eliminate": "elimination/user-01.h5",
    }
    point: Point = {
        "length": length,
        "users": users,
        "top_k": top_k,
        "survivors": survivors,
    }
    for phase in PHASES:
        if phase == "eliminate":
            command("freeze", root)
        options = {"mask": [*who, "--gradients", source, "--jobs", 1], "decode": []}.get(phase, who)
        measured = command(phase, root, *options)
        seconds = measured.seconds - start.get(phase, 0.0)
        point[phase] = {
            "seconds": max(seconds, 0.0) / (1 if phase == "decode" else survivors),
            "seen": seconds >= LEAST,
            "memory": measured.memory,
            "bytes": sum(
                path.stat().st_size for path in root.glob(files.get(phase, "aggregate.h5"))
            ),
        }
    shutil.rmtree(root)
    shutil.rmtree(source)
    return point


def sweeps(*, quick: bool) -> dict[str, tuple[str, list[tuple[int, int, int]]]]:
    """What grows, and the points: L, N and K."""
    lengths = [2**e for e in ((14, 17, 20) if quick else (14, 16, 18, 20, 22, 24, 25, 26))]
    users = (5, 10, 20) if quick else (5, 10, 20, 50, 100)
    return {
        "L at K = 512": ("length", [(length, 10, 512) for length in lengths]),
        "L at K = L/256": ("length", [(length, 10, length // 256) for length in lengths]),
        "N at L = 2^18, K = L/256": ("users", [(2**18, n, 1024) for n in users]),
    }


def measure(folder: Path, *, quick: bool) -> dict[str, Any]:
    """All points."""
    tiny = [point(folder, length=1000, users=10, top_k=10, start={}) for _ in range(3)]
    start = {
        phase: min(p[phase]["seconds"] * (1 if phase == "decode" else p["survivors"]) for p in tiny)
        for phase in PHASES
    }
    results: dict[str, Any] = {}
    for name, (variable, sizes) in sweeps(quick=quick).items():
        points = [
            point(folder, length=length, users=users, top_k=top_k, start=start)
            for length, users, top_k in sizes
        ]
        results[name] = {"variable": variable, "points": points}
    return results


def exponent(points: list[Point], variable: str, phase: str, kind: str) -> float | None:
    """e of c x^e by least squares on logarithms, over the three largest points; seconds only if
    they can be told from start-up in all three."""
    used = points[-3:]
    if kind == "seconds" and not all(p[phase]["seen"] for p in used):
        return None
    x, y = (
        [math.log(value) for value in values]
        for values in zip(*((p[variable], p[phase][kind]) for p in used), strict=True)
    )
    return round(float(np.polyfit(x, y, 1)[0]), 2)


def rows(results: dict[str, Any]) -> list[list[str]]:
    """Sweep, phase, and for each kind the first and last value with the exponent."""
    table = [
        ["growth with", "phase", "seconds a user", "e", "MB of memory", "e", "bytes a user", "e"]
    ]
    for name, sweep in results.items():
        for phase in PHASES:
            first, last = (sweep["points"][i][phase] for i in (0, -1))
            exponents = {
                kind: exponent(sweep["points"], variable=sweep["variable"], phase=phase, kind=kind)
                for kind in KINDS
            }
            fitted = {
                kind: "-" if e is None else f"{round(e, 2) + 0.0:.2f}"
                for kind, e in exponents.items()
            }
            shown = {
                kind: f"{first[kind]:{form}} .. {last[kind]:{form}}"
                for kind, form in zip(KINDS, (".3f", ".0f", ",.0f"), strict=True)
            }
            table.append(
                [name, phase, *(part for kind in KINDS for part in (shown[kind], fitted[kind]))]
            )
    return table


def draw(results: dict[str, Any], path: Path) -> None:
    """A panel for each sweep and kind; a line for each phase."""
    figure, axes = subplots(len(KINDS), len(results), figsize=(11, 7), sharex="col")
    for column, (name, sweep) in enumerate(results.items()):
        for row, kind in enumerate(KINDS):
            panel = axes[row][column]
            for phase in PHASES:
                shown = [p for p in sweep["points"] if kind != "seconds" or p[phase]["seen"]]
                panel.loglog(
                    [p[sweep["variable"]] for p in shown],
                    [p[phase][kind] for p in shown],
                    "o-",
                    markersize=3,
                    label=phase,
                )
            if row == 0:
                panel.set_title(f"growth with {name}")
            if column == 0:
                panel.set_ylabel(
                    {
                        "seconds": "seconds a user",
                        "memory": "MB of memory",
                        "bytes": "bytes a user",
                    }[kind]
                )
            if row == len(KINDS) - 1:
                panel.set_xlabel({"length": "L", "users": "N"}[sweep["variable"]])
            panel.grid(visible=True, linewidth=0.3)
    axes[0][0].legend()
    figure.savefig(path, metadata={"Date": None})
