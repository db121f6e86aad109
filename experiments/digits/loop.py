"""Federated training by commands and files: loop.py WORK [ROUNDS]. WORK is a new folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import model

TOPK = shutil.which("topk-secagg", path=Path(sys.executable).parent) or "topk-secagg"


def main(work: Path, rounds: int) -> None:
    """Every round: the users' updates are files, the command adds them up, everybody takes the
    step."""
    print(f"before round 1: {model.start(work):.1%} of the test images")
    first = {"survivors": 5, "colluders": 3, "density": 0.1}
    for n in range(1, rounds + 1):
        options = {
            # a later round goes on from the one before
            **(first if n == 1 else {"from": work / str(n - 1) / "round"}),
            "clip": 4,
            "gradients": work / str(n) / "updates",
            "weights": work / "weights.csv",
            "drop-masking": (n - 1) % model.USERS + 1,  # user n drops out of round n, and so on
            "output": work / str(n) / "mean.npz",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        flags = ["--feedback", "--mean", "--quiet"]
        command = [TOPK, "run", work / str(n) / "round", *arguments, *flags]
        subprocess.run(command, check=True)  # noqa: S603
        print(f"after round {n}: {model.step(work, n):.1%} of the test images", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20)
