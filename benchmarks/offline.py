"""`offline` at N=10, U=5, T=3, L=4096 (671 MB a user) against writing and fsyncing the same bytes.

Usage: offline.py. The two take turns and each removes its files before the other starts, so that both find
the disk in the same state (the first writes to fresh blocks of a virtual disk can take several times as
long); the first turn only warms up. Whole processes are measured, start-up included.
"""

from __future__ import annotations

import shutil
import statistics

from floors import command, scratch, write_floor

USERS, LENGTH, BLOCKS = 10, 4096, 2
PARAMETERS = ["--users", USERS, "--survivors", 5, "--colluders", 3, "--top-k", 41, "--length", LENGTH]
TURNS = 4


def main() -> None:
    """Print the ratio of each turn and the largest memory."""
    folder = scratch()
    ratios = []
    for _ in range(TURNS):
        floor = write_floor(folder / "floor", USERS, 2 * LENGTH * LENGTH // BLOCKS * 4)
        shutil.rmtree(folder / "floor")
        command("init", folder / "round", *PARAMETERS, "--construction", "permutation")
        run = command("offline", folder / "round", "--user", 1)
        shutil.rmtree(folder / "round")
        ratios.append(run.seconds / floor)
        print(f"floor {floor:.2f} s, offline {run.seconds:.2f} s: {ratios[-1]:.2f}; {run.memory:.0f} MB")
    print(f"offline: {statistics.median(ratios[1:]):.2f} times the floor (at most 3 wanted; below 400 MB)")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
