"""The paper's experiment for real: N = 10 and T = 3 at ResNet-20's 272,474 parameters, by files.

For every choice it runs a first round, and a second one that goes on with it, and adds up the files
that one user sends: shares or keys for the others and the list of commitments before, X and Y with
the gradient. A broadcast counts once. Headers of files count; rounds are not sealed. Beside that is
what `plan` predicts for the first round. None of it is a time.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measuring import PROGRAM, command
from models import resnet20, save_gradients

USERS = 10
COLLUDERS = 3
WITHIN = 0.05  # of what `plan` predicts


@dataclass(frozen=True)
class Choice:
    """A way to run the round."""

    name: str
    survivors: int
    options: str

    @property
    def sizes(self) -> list[object]:
        """The options that say how large the round is."""
        fixed = ["--survivors", self.survivors, "--colluders", COLLUDERS]
        return [*fixed, *self.options.split(" ")]


ONE_PERCENT = "--density 0.01 --construction sketch"
CHOICES = (
    Choice("K = 1 %", 5, ONE_PERCENT),
    Choice("K = 1 %", 7, ONE_PERCENT),
    Choice("K = 1 %", 9, ONE_PERCENT),
    Choice("K = 1 %, field 65521", 7, f"{ONE_PERCENT} --field 65521"),
    Choice("K = 0.1 %", 7, "--density 0.001 --construction sketch"),
    Choice("K = 1 %, `--dealing shares`", 5, f"{ONE_PERCENT} --dealing shares"),
    Choice("K = 1 %, `--dealing shares`", 7, f"{ONE_PERCENT} --dealing shares"),
    Choice("rank 2", 7, "--rank 2"),
    Choice("rank 4", 7, "--rank 4"),
    Choice("rank 2, field 251", 7, "--rank 2 --field 251"),
    Choice("rank 2, `--dealing shares`", 7, "--rank 2 --dealing shares"),
    Choice("whole", 7, "--whole"),
    Choice("whole, field 65521", 7, "--whole --field 65521"),
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


def sent_by(root: Path, name: str) -> Sent:
    """What a user, such as user-01, has sent in a round."""
    receivers = [folder for folder in root.glob("shares/user-*") if folder.name != name]
    shares = [folder / f"{name.replace('user', 'from')}.h5" for folder in receivers]
    return Sent(
        before=file_bytes(*shares, root / f"dealt/{name}.json"),
        masked=file_bytes(root / f"masked/{name}.h5"),
        answer=file_bytes(root / f"elimination/{name}.h5"),
    )


def most_sent(root: Path) -> Sent:
    """What the user that sends most has sent."""
    names = [path.stem for path in root.glob("masked/user-*.h5")]
    return max((sent_by(root, name) for name in names), key=lambda sent: sent.total)


def planned(*sizes: object) -> dict[str, Any]:
    """What `plan` says of the choice."""
    call = [PROGRAM, "plan", *sizes, "--json"]
    done = subprocess.run(list(map(str, call)), check=True, capture_output=True)
    best: dict[str, Any] = json.loads(done.stdout)["best"]
    return best


def measure(folder: Path, *, quick: bool) -> list[dict[str, Any]]:
    """A first and a later round of every choice."""
    source = save_gradients(folder / "gradients", resnet20(), USERS)
    choices = CHOICES[1::6] if quick else CHOICES
    return [measured(folder, source, choice) for choice in choices]


def measured(folder: Path, source: Path, choice: Choice) -> dict[str, Any]:
    """A first round, and one that goes on with it."""
    first = folder / "first"
    later = folder / "later"
    like = source / "user-001.safetensors"
    command("run", first, "--gradients", source, *choice.sizes)
    command("run", later, "--gradients", source, "--from", first, "--saturate", "--again")
    sent = [asdict(most_sent(root)) | {"total": most_sent(root).total} for root in (first, later)]
    predicted = planned("--users", USERS, "--like", like, *choice.sizes)["file_bytes"]
    for root in (first, later):
        shutil.rmtree(root)
    return {
        "name": choice.name,
        "survivors": choice.survivors,
        "first": sent[0],
        "later": sent[1],
        "planned": predicted,
    }


def rows(results: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each choice."""
    table = [["kB", "U", "before", "X", "Y", "first round", "`plan`", "", "later round"]]
    for result in results:
        first = result["first"]
        agrees = abs(result["planned"] - first["total"]) <= WITHIN * first["total"]
        sizes = [*(first[name] for name in ("before", "masked", "answer", "total"))]
        table.append(
            [
                result["name"],
                str(result["survivors"]),
                *(f"{size / 1000:,.1f}" for size in (*sizes, result["planned"])),
                f"within {WITHIN:.0%}" if agrees else f"not within {WITHIN:.0%}",
                f"{result['later']['total'] / 1000:,.1f}",
            ]
        )
    return table
