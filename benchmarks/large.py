"""ResNet-50's size, 25.6 million parameters, and a hundred users.

Usage: large.py [resnet50] [hundred]. The first runs a whole round with N=10, P=1, K = 1 % and compares its
disk with what `plan` foretold and its time per coordinate with that of ResNet-20's size at P=4, per
coordinate and pick; both against their own floors. The second runs N=100, U=70, T=30 at L = 272,474, P=1 for
the offline phase of all users, and masking and elimination of three.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from floors import PROGRAM, Measured, command, scratch

from topk_secagg.protocol.parameters import Parameters
from topk_secagg.steps.freeze import freeze
from topk_secagg.storage.workspace import Workspace

SMALL, LARGE = 272_474, 25_600_000
TEN_USERS = ["--survivors", 5, "--colluders", 3, "--density", 0.01]
HUNDRED_USERS = ["--users", 100, "--survivors", 70, "--colluders", 30, "--density", 0.01]


def gradients(folder: Path, length: int, users: int) -> Path:
    """One heavy-tailed random gradient, under the names of all users."""
    folder.mkdir()
    values = np.clip(1e-3 * np.random.default_rng(0).standard_t(2, length), -1, 1).astype(np.float32)
    np.save(folder / "user-001.npy", values)
    for n in range(2, users + 1):
        os.link(folder / "user-001.npy", folder / f"user-{n:03}.npy")
    return folder


def used(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def whole_round(folder: Path, length: int, picks: int) -> tuple[Measured, int]:
    """A round of ten users; its time, memory and bytes on disk."""
    source = gradients(folder / "gradients", length, 10)
    options = [*TEN_USERS, "--construction", "rotation", "--picks", picks, "--drop-masking", "8,9,10"]
    run = command("run", folder / "round", "--gradients", source, *options)
    size = used(folder / "round")
    shutil.rmtree(folder / "round")
    shutil.rmtree(source)
    return run, size


def resnet50() -> None:
    """The whole round at ResNet-50's size."""
    folder = scratch()
    plan = [str(PROGRAM), *map(str, ["plan", "--json", "--users", 10, *TEN_USERS, "--length", LARGE])]
    facts = json.loads(subprocess.run(plan, check=True, capture_output=True).stdout)
    foretold = next(c["all_bytes"] for c in facts["choices"] if c["picks"] == 1)
    small, _ = whole_round(folder, SMALL, 4)
    large, size = whole_round(folder, LARGE, 1)
    before = small.seconds / SMALL / 4
    after = large.seconds / LARGE
    print(f"25.6 million: {large.seconds:.0f} s, {large.memory:.0f} MB (at most 1500 wanted)")
    print(f"disk: {size / 1e9:.2f} GB, plan foretold {foretold / 1e9:.2f} GB")
    print(f"per coordinate and pick: {after / before:.2f} times that of ResNet-20's size (at most 1.5 wanted)")
    shutil.rmtree(folder)


def hundred() -> None:
    """Three users' phases in a round of a hundred."""
    folder = scratch()
    root = folder / "round"
    source = gradients(folder / "gradients", SMALL, 1) / "user-001.npy"
    options = ["--length", SMALL, "--construction", "rotation", "--picks", 1, "--distributed"]
    command("init", root, *HUNDRED_USERS, *options)
    p: Parameters = Workspace(root).session.parameters
    print(f"a user shares {p.users * p.share_bytes / 1e6:.0f} MB")
    survivors = range(1, 71)
    for user in survivors:
        run = command("offline", root, "--user", user)
        mask = command("mask", root, "--user", user, "--gradient", source)
        for other in range(4, 101):  # only users 1 to 3 go on, so only their shares are kept
            (root / f"shares/user-{other:02}/from-{user:02}.h5").unlink()
    print(f"offline {run.seconds:.1f} s, {run.memory:.0f} MB; mask {mask.seconds:.1f} s, {mask.memory:.0f} MB")
    freeze(Workspace(root))
    for user in (1, 2, 3):
        answer = command("eliminate", root, "--user", user)
    print(f"eliminate {answer.seconds:.1f} s, {answer.memory:.0f} MB")
    shutil.rmtree(folder)


if __name__ == "__main__":
    for name in sys.argv[1:] or ["resnet50", "hundred"]:
        {"resnet50": resnet50, "hundred": hundred}[name]()
