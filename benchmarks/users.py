"""Whole rounds of many users: a `run` and the one that goes on with it, every step of every user
through files, with ResNet-20's shapes.

A row has the bytes that one user sends, the mean of both rounds (the sides of low rank differ):
payloads as `plan` counts them, and what files add to them. Beside that are all files of a round,
and seconds and memory of a `run`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from measuring import command
from models import resnet20, save_gradients
from paper_size import file_bytes, most_sent

from topk_secagg.rounds.costs import sent
from topk_secagg.storage.workspace import Workspace

TOP_K = "--density 0.001 --construction sketch"
THEORETIC = "--rank 2 --dealing shares --randomness os"  # information-theoretic
MOST_PAYLOAD = 45_000  # bytes, of THEORETIC
Point = dict[str, Any]


class Round(NamedTuple):
    """N, U and T, and how a gradient is reduced and shares are dealt."""

    users: int
    survivors: int
    colluders: int
    options: str


ROUNDS = (
    Round(10, 7, 3, TOP_K),
    Round(20, 15, 5, TOP_K),
    Round(40, 28, 12, TOP_K),
    Round(100, 70, 30, TOP_K),
    Round(10, 7, 3, "--rank 2"),
    Round(10, 7, 3, THEORETIC),
    Round(100, 70, 30, THEORETIC),
)


def measure(folder: Path, *, quick: bool) -> list[Point]:
    """All rounds."""
    rounds = [each for each in ROUNDS if each.users == 10] if quick else ROUNDS
    return [measured(folder, each) for each in rounds]


def measured(folder: Path, sizes: Round) -> Point:
    """A first round, and one that goes on with it."""
    source = save_gradients(folder / "gradients", resnet20(), sizes.users)
    options = ["--survivors", sizes.survivors, "--colluders", sizes.colluders]
    options += sizes.options.split(" ")
    randomness = ["--randomness", "os"] if sizes.options == THEORETIC else []
    first = folder / "first"
    later = folder / "later"
    runs = [
        command("run", first, "--gradients", source, *options),
        command(
            "run", later, "--gradients", source, "--from", first, "--saturate", "--again",
            *randomness,
        ),
    ]  # fmt: skip
    rounds = [of_round(root) for root in (first, later)]
    both = {name: mean(each[name] for each in rounds) for name in rounds[0] if name != "dealing"}
    for path in (first, later, source):
        shutil.rmtree(path)
    return {
        **sizes._asdict(),
        **both,
        "dealing": rounds[0]["dealing"],
        "seconds": mean(run.seconds for run in runs),
        "memory": max(run.memory for run in runs),
    }


def of_round(root: Path) -> Point:
    """The bytes of one round."""
    session = Workspace(root).session
    p = session.parameters
    payload = sent(p, in_series=session.keys_go_on)
    files = most_sent(root)
    return {
        "dealing": p.dealing,
        "payload_before": payload.before,
        "payload": payload.total,
        "before": files.before,
        "total": files.total,
        "files": file_bytes(*(path for path in root.rglob("*") if path.is_file())),
    }


def verdicts(point: Point) -> str:
    """What is wanted where secrecy is information-theoretic."""
    headers = point["before"] - point["payload_before"]
    wanted = {
        f"at most {MOST_PAYLOAD / 1000:.0f} kB in all": point["payload"] <= MOST_PAYLOAD,
        "headers of shares at most their payload": headers <= point["payload_before"],
    }
    return "; ".join(f"{what}: {'met' if met else 'not met'}" for what, met in wanted.items())


def rows(points: list[Point]) -> list[list[str]]:
    """A row for each round."""
    table = [
        [
            "N, U, T", "options", "dealt by", "kB before", "in all", "with headers", "",
            "MB of all files", "seconds of `run`", "MB of memory",
        ]
    ]  # fmt: skip
    for point in points:
        wanted = verdicts(point) if point["options"] == THEORETIC else ""
        sizes = [point[name] for name in ("payload_before", "payload", "total")]
        table.append(
            [
                f"{point['users']}, {point['survivors']}, {point['colluders']}",
                f"`{point['options']}`",
                point["dealing"],
                *(f"{size / 1e3:,.1f}" for size in sizes),
                wanted,
                f"{point['files'] / 1e6:,.1f}",
                f"{point['seconds']:.1f}",
                f"{point['memory']:.0f}",
            ]
        )
    return table
