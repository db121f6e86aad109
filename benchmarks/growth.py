"""How time, memory and bytes of each phase of `moments` grow with L, N and P, by commands; with
fitted exponents and a plot. And whole rounds of `sketch` with more and more users.

A point is a round of the fewest users that may remain: T = 0.3 N, U = T + max(2, N/5). Seconds and
bytes are those of one user, beyond the start-up of the command.

A row of `sketch` is a `run` through files with all users: its seconds and memory, the files that
one user sends, and all files beside what `plan` predicts.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from measuring import command, gradients, subplots
from paper_size import facts, file_bytes, sent_by

PHASES = ("offline", "mask", "eliminate", "decode")
LEAST = 0.1  # seconds of all users: below, the spread of the start-up decides
KINDS = ("seconds", "memory", "bytes")
Point = dict[str, Any]
MANY_USERS = ((10, 7, 3), (20, 15, 5), (40, 28, 12), (100, 70, 30))  # N, U and T
MANY_LENGTH = 272_474
MANY_DENSITY = 0.001
PLAN_WITHIN = 0.05


def point(
    folder: Path, length: int, users: int, picks: int, top_k: int, start: dict[str, float]
) -> Point:
    """Seconds, MB and bytes of each phase."""
    colluders = 3 * users // 10
    survivors = colluders + max(2, users // 5)
    root = folder / "round"
    source = gradients(folder / "gradients", length, users, used=survivors)
    sizes = [
        "--users",
        users,
        "--survivors",
        survivors,
        "--colluders",
        colluders,
        "--length",
        length,
    ]
    command("init", root, *sizes, "--top-k", top_k, "--construction", "moments", "--picks", picks)
    who = ["--user", f"1-{survivors}"]
    files = {
        "offline": "shares/*/from-01.h5",  # of `moments`, which publishes no list
        "mask": "masked/user-01.h5",
        "eliminate": "elimination/user-01.h5",
    }
    point: Point = {
        "length": length,
        "users": users,
        "picks": picks,
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


def sweeps(*, quick: bool) -> dict[str, tuple[str, list[tuple[int, int, int, int]]]]:
    """What grows, and the points: L, N, P and K."""
    lengths = [2**e for e in ((14, 17, 20) if quick else (14, 16, 18, 20, 22, 24, 25, 26))]
    users = (5, 10, 20) if quick else (5, 10, 20, 50, 100)
    picks = (1, 4) if quick else (1, 2, 4, 8, 16)
    return {
        "L at K = 512": ("length", [(length, 10, 2, 512) for length in lengths]),
        "L at K = L/256": ("length", [(length, 10, 2, length // 256) for length in lengths]),
        "N at L = 2^18, K = L/256": ("users", [(2**18, n, 2, 1024) for n in users]),
        "P at L = 2^20, K = L/64": ("picks", [(2**20, 10, p, 2**14) for p in picks]),
    }


def measure(folder: Path, *, quick: bool) -> dict[str, Any]:
    """All points."""
    tiny = [point(folder, length=1000, users=10, picks=2, top_k=10, start={}) for _ in range(3)]
    start = {
        phase: min(p[phase]["seconds"] * (1 if phase == "decode" else p["survivors"]) for p in tiny)
        for phase in PHASES
    }
    results: dict[str, Any] = {}
    for name, (variable, sizes) in sweeps(quick=quick).items():
        points = [
            point(folder, length=length, users=users, picks=picks, top_k=top_k, start=start)
            for length, users, picks, top_k in sizes
        ]
        results[name] = {"variable": variable, "points": points}
    return results


def many_users(folder: Path, *, quick: bool) -> list[Point]:
    """Whole rounds of `sketch` with more and more users."""
    rounds = MANY_USERS[:2] if quick else MANY_USERS
    length = MANY_LENGTH // 10 if quick else MANY_LENGTH
    return [
        with_users(folder, users=users, survivors=survivors, colluders=colluders, length=length)
        for users, survivors, colluders in rounds
    ]


def with_users(folder: Path, users: int, survivors: int, colluders: int, length: int) -> Point:
    """One `run` of so many users, with what `plan` predicts of it."""
    root = folder / "round"
    source = gradients(folder / "gradients", length, users)
    fixed = ["--survivors", survivors, "--colluders", colluders, "--density", MANY_DENSITY]
    fixed += ["--construction", "sketch"]
    planned = next(
        row
        for row in facts("plan", "--users", users, "--length", length, *fixed)["choices"]
        if row["recommended"]
    )
    measured = command("run", root, "--gradients", source, *fixed)
    sent = sent_by(root, 1)
    parameters = json.loads((root / "session.json").read_text())["parameters"]
    point = {
        "users": users,
        "survivors": survivors,
        "colluders": colluders,
        "length": length,
        "top_k": parameters["top_k"],
        "picks": parameters["picks"],
        "dealing": parameters["dealing"],
        "before": sent.before,
        "masked": sent.masked,
        "answer": sent.answer,
        "total": sent.total,
        "planned": planned["file_bytes"],
        "files": file_bytes(*(path for path in root.rglob("*") if path.is_file())),
        "planned_files": planned["all_bytes"],
        "seconds": measured.seconds,
        "memory": measured.memory,
    }
    shutil.rmtree(root)
    shutil.rmtree(source)
    return point


def many_rows(points: list[Point]) -> list[list[str]]:
    """A row for each number of users."""
    table = [
        [
            "N, U, T", "dealt by", "kB before", "X", "Y", "in all", "`plan`", "MB of all files",
            "`plan`", "within 5 %", "seconds of `run`", "MB of memory",
        ]
    ]  # fmt: skip
    for point in points:
        pairs = [(point["planned"], point["total"]), (point["planned_files"], point["files"])]
        agrees = all(abs(planned - real) <= PLAN_WITHIN * real for planned, real in pairs)
        sizes = [point[name] for name in ("before", "masked", "answer", "total", "planned")]
        table.append(
            [
                f"{point['users']}, {point['survivors']}, {point['colluders']}",
                point["dealing"],
                *(f"{size / 1e3:,.1f}" for size in sizes),
                f"{point['files'] / 1e6:,.1f}",
                f"{point['planned_files'] / 1e6:,.1f}",
                "yes" if agrees else "no",
                f"{point['seconds']:.1f}",
                f"{point['memory']:.0f}",
            ]
        )
    return table


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
                panel.set_xlabel({"length": "L", "users": "N", "picks": "P"}[sweep["variable"]])
            panel.grid(visible=True, linewidth=0.3)
    axes[0][0].legend()
    figure.savefig(path, metadata={"Date": None})
