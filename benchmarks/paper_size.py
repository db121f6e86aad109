"""The paper's experiment for real: N = 10 and T = 3 at ResNet-20's 272,474 parameters, by files.

Usage: paper_size.py [FOLDER] [--time], a folder of ten gradients (experiments/export.py makes real
ones); without it, heavy-tailed random ones. For every choice it runs a first round, and a second
one that goes on with it, and adds up the files that one user sends: shares or keys for the others
and the list of commitments before, X and Y with the gradient. A broadcast counts once. Headers of
files count; rounds are not sealed. Beside that is what `plan` predicts.

--time also measures a whole `run` of `moments`, in turns with writing and hashing as many bytes in
the same folder, and its memory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import PROGRAM, command, gradients, scratch, write_and_hash

LENGTH = 272_474
USERS = 10
COLLUDERS = 3
TURNS = 3
SECONDS_ALLOWED = 4.0  # beyond three times the floor
MEGABYTES_ALLOWED = 350
WITHIN = 0.05  # of what `plan` predicts


@dataclass(frozen=True)
class Choice:
    """A way to run the round, and the kB that a user may send in a first round."""

    name: str
    survivors: int
    options: tuple[object, ...]
    most: float | None = None
    density: float = 0.01


SKETCH = ("--construction", "sketch")
MOMENTS = ("--construction", "moments", "--picks", 2)
CHOICES = (
    Choice("sketch", 5, SKETCH, most=380),
    Choice("sketch", 7, SKETCH, most=315),
    Choice("sketch", 9, SKETCH, most=295),
    Choice("sketch, field 65521", 7, (*SKETCH, "--field", 65521), most=180),
    Choice("sketch, K = 0.1 %", 7, SKETCH, most=60, density=0.001),
    Choice("sketch, shares", 5, (*SKETCH, "--dealing", "shares")),
    Choice("sketch, shares", 7, (*SKETCH, "--dealing", "shares")),
    Choice("moments, P = 2", 5, MOMENTS, most=2830),
    Choice("moments, P = 2, --spare 0", 5, (*MOMENTS, "--spare", 0)),
)


@dataclass(frozen=True)
class Sent:
    """The bytes of the files that a user sends: before it has a gradient, X and Y."""

    before: int
    masked: int
    answer: int

    @property
    def total(self) -> int:
        """In all."""
        return self.before + self.masked + self.answer


def file_bytes(*paths: Path) -> int:
    """Of those that there are."""
    return sum(path.stat().st_size for path in paths if path.exists())


def sent_by(root: Path, user: int) -> Sent:
    """What a user has sent in a round."""
    name = f"user-{user:02}"
    receivers = [folder for folder in root.glob("shares/user-*") if folder.name != name]
    shares = [folder / f"from-{user:02}.h5" for folder in receivers]
    return Sent(
        before=file_bytes(*shares, root / f"dealt/{name}.json"),
        masked=file_bytes(root / f"masked/{name}.h5"),
        answer=file_bytes(root / f"elimination/{name}.h5"),
    )


def most_sent(root: Path) -> Sent:
    """What the user that sends most has sent."""
    return max((sent_by(root, user) for user in range(1, USERS + 1)), key=lambda sent: sent.total)


def facts(*arguments: object) -> dict[str, Any]:
    """What a command prints with --json."""
    call = [PROGRAM, *arguments, "--json"]
    done = subprocess.run(list(map(str, call)), check=True, capture_output=True)
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def sizes(choice: Choice) -> list[object]:
    """The options of a choice that say how large the round is."""
    return [
        *("--survivors", choice.survivors, "--colluders", COLLUDERS, "--density", choice.density),
        *choice.options,
    ]


def predicted(choice: Choice) -> int:
    """What `plan` says that a user sends in files, in all."""
    planned = facts("plan", "--users", USERS, "--length", LENGTH, *sizes(choice))
    return next(int(row["file_bytes"]) for row in planned["choices"] if row["recommended"])


def measured(folder: Path, source: Path, choice: Choice) -> list[str]:
    """A row of the table: a first round, and one that goes on with it."""
    first_round = folder / "first"
    later_round = folder / "later"
    command("run", first_round, "--gradients", source, *sizes(choice))
    command("run", later_round, "--gradients", source, "--from", first_round)
    first = most_sent(first_round)
    later = most_sent(later_round)
    for root in (first_round, later_round):
        shutil.rmtree(root)
    planned = predicted(choice)
    agrees = abs(planned - first.total) <= WITHIN * first.total
    wanted = "" if choice.most is None else f"{choice.most:,.0f}"
    met = "" if choice.most is None else ("met" if first.total <= 1000 * choice.most else "not met")
    kilobytes = [first.before, first.masked, first.answer, first.total, later.total, planned]
    return [
        choice.name,
        str(choice.survivors),
        *(f"{count / 1000:,.1f}" for count in kilobytes),
        "yes" if agrees else "no",
        wanted,
        met,
    ]


HEADER = (
    "kB of files that a user sends", "U", "before", "X", "Y", "first round", "later round",
    "plan", "within 5 %", "at most", ""
)  # fmt: skip


def print_table(rows: list[list[str]]) -> None:
    """Columns, aligned."""
    table = [list(HEADER), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print("  ".join(cells).rstrip(), flush=True)


def print_peers() -> None:
    """What others would send in every round."""
    fixed = ("--users", USERS, "--survivors", 5, "--colluders", COLLUDERS)
    planned = facts("plan", *fixed, "--density", 0.01, "--length", LENGTH)
    for row in planned["choices"][-3:]:
        before = row["offline_bytes"] / 1000
        total = row["total_bytes"] / 1000
        print(f"{row['construction']}, U = 5: {before:,.1f} kB before, {total:,.1f} kB in all")


def print_time(folder: Path, source: Path) -> None:
    """Time and memory of a whole round of `moments` with P = 4 and written-out shares."""
    options = ["--survivors", 5, "--colluders", COLLUDERS, "--density", 0.01]
    options += ["--construction", "moments", "--picks", 4, "--dealing", "shares"]
    ratios = []
    memory = 0.0
    for _ in range(TURNS + 1):
        root = folder / "round"
        run = command("run", root, "--gradients", source, *options, "--drop-masking", "8-10")
        shares = [path.stat().st_size for path in root.glob("shares/*/*")]
        shutil.rmtree(root)
        floor = write_and_hash(folder / "floor", len(shares), shares[0])
        print(f"run {run.seconds:.2f} s, floor {floor:.2f} s")
        ratios.append(run.seconds / (3 * floor + SECONDS_ALLOWED))
        memory = max(memory, run.memory)
    share = statistics.median(ratios[1:])
    allowed = f"three times writing and hashing the files plus {SECONDS_ALLOWED:.0f} s"
    print(f"time: {share:.2f} of {allowed} (at most 1 wanted)")
    print(f"memory: {memory:.0f} MB (at most {MEGABYTES_ALLOWED} wanted)")


def main(folder: Path) -> None:
    """Print every figure with what is wanted of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("gradients", nargs="?", type=Path, help="a folder of ten gradients")
    parser.add_argument("--time", action="store_true", help="measure time and memory too")
    arguments = parser.parse_args()
    source = arguments.gradients or gradients(folder / "gradients", LENGTH, USERS)
    print_table([measured(folder, source, choice) for choice in CHOICES])
    print_peers()
    if arguments.time:
        print_time(folder, source)


if __name__ == "__main__":
    with scratch() as where:
        main(where)
