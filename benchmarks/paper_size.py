"""The paper's experiment for real: N=10, U=5, T=3 at ResNet-20's 272,474 parameters, with
`moments`.

Usage: paper_size.py [FOLDER], a folder of ten gradients (experiments/export.py makes real ones);
without it, heavy-tailed random ones. Runs `topk-secagg run` in turns with writing and hashing as
many bytes in the same folder, measures the files and what a user broadcasts, and compares with the
paper's rates and dense LightSecAgg.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from measuring import PROGRAM, Measured, command, gradients, scratch, write_and_hash

LENGTH, USERS, SURVIVORS, COLLUDERS = 272_474, 10, 5, 3
TURNS = 3
SECONDS_ALLOWED = 4.0  # beyond three times the floor


class Outcome(NamedTuple):
    """A round: its process, all offline files in bytes, and what a user broadcasts."""

    run: Measured
    shares: list[int]
    offline: int
    online: int


def whole_round(folder: Path, source: Path, *options: object) -> Outcome:
    """One round with `moments`."""
    root = folder / "round"
    fixed = ["--survivors", SURVIVORS, "--colluders", COLLUDERS, "--construction", "moments"]
    run = command("run", root, "--gradients", source, *fixed, *options)
    call = [str(PROGRAM), "decode", str(root), "--json"]
    facts: dict[str, Any] = json.loads(subprocess.run(call, check=True, capture_output=True).stdout)
    shares = [path.stat().st_size for path in root.glob("shares/*/*")]
    offline = sum(shares) + sum(path.stat().st_size for path in root.glob("secrets/*.h5"))
    shutil.rmtree(root)
    return Outcome(run, shares, offline, facts["masked_bytes"] + facts["answer_bytes"])


def main(folder: Path) -> None:
    """Print every figure with what is wanted of it."""
    source = (
        Path(sys.argv[1]) if len(sys.argv) > 1 else gradients(folder / "gradients", LENGTH, USERS)
    )
    seven, one_percent = ["--drop-masking", "8-10"], ["--density", 0.01]
    ratios, memory = [], 0.0
    for _ in range(TURNS + 1):
        found = whole_round(folder, source, *one_percent, "--picks", 4, *seven)
        files = sum(found.shares) // found.shares[0]
        floor = write_and_hash(folder / "floor", files, found.shares[0])
        print(f"run {found.run.seconds:.2f} s, floor {floor:.2f} s")
        ratios.append(found.run.seconds / (3 * floor + SECONDS_ALLOWED))
        memory = max(memory, found.run.memory)
    ten = whole_round(folder, source, *one_percent, "--picks", 4)
    spare = whole_round(folder, source, *one_percent, "--picks", 4, "--spare", 0)
    two = whole_round(folder, source, *one_percent, "--picks", 2)
    small = whole_round(folder, source, *one_percent, "--picks", 4, "--field", 65521)
    sparse = whole_round(folder, source, "--density", 0.001, "--picks", 4)
    print(f"offline files, P = 4: {found.offline / 1e6:.1f} MB in all (at most 92 wanted)")
    print(f"offline files, P = 2: {two.offline / 1e6:.1f} MB in all (at most 47 wanted)")
    print(f"offline files, P = 4, field 65521: {small.offline / 1e6:.1f} MB in all")
    print(
        f"offline files, P = 4, density 0.1 %: {sparse.offline / 1e6:.1f} MB in all (at most 11 wanted)"
    )
    print(f"online, seven survivors: {found.online / 1e3:.1f} kB a user (at most 92 wanted)")
    print(f"online, ten survivors: {ten.online / 1e3:.1f} kB a user (at most 125 wanted)")
    print(
        f"online, ten survivors, --spare 0: {spare.online / 1e3:.1f} kB a user (at most 48 wanted)"
    )
    print(f"online, ten survivors, field 65521: {small.online / 1e3:.1f} kB a user")
    print(
        f"online, ten survivors, density 0.1 %: {sparse.online / 1e3:.1f} kB a user (at most 14 wanted)"
    )
    share = statistics.median(ratios[1:])
    allowed = f"three times writing and hashing the files plus {SECONDS_ALLOWED:.0f} s"
    print(f"time: {share:.2f} of {allowed} (at most 1 wanted)")
    print(f"memory: {memory:.0f} MB (at most 350 wanted)")
    plan = [
        PROGRAM,
        "plan",
        "--json",
        "--users",
        USERS,
        "--survivors",
        SURVIVORS,
        "--colluders",
        COLLUDERS,
    ]
    plan += ["--density", 0.01, "--length", LENGTH]
    facts = json.loads(subprocess.run(list(map(str, plan)), check=True, capture_output=True).stdout)
    for row in facts["choices"][-2:]:
        offline, online = row["all_bytes"] / 1e6, row["online_bytes"] / 1e3
        print(f"{row['construction']}: {offline:,.1f} MB offline in all, {online:.0f} kB online")


if __name__ == "__main__":
    with scratch() as where:
        main(where)
