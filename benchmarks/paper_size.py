"""The paper's experiment for real: N=10, U=5, T=3, K = 1 % of ResNet-20's 272,474 parameters, P = 4.

Usage: paper_size.py [FOLDER], a folder of ten gradients (experiments/export.py makes real ones); without it,
heavy-tailed random ones. Runs `topk-secagg run` with three drop-outs and with none, in turns with writing
and then reading as many bytes in the same folder, and compares what a user broadcasts with the paper's
rates and with dense LightSecAgg (one masked vector of L symbols and one share of L/(U-T)).
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
from floors import PROGRAM, command, read_floor, scratch, write_floor

LENGTH, USERS, SURVIVORS, COLLUDERS = 272_474, 10, 5, 3
OPTIONS = ["--survivors", SURVIVORS, "--colluders", COLLUDERS, "--density", 0.01, "--construction", "rotation"]
TURNS = 3


def gradients(folder: Path) -> Path:
    """Ten heavy-tailed random gradients."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for n in range(1, USERS + 1):
        values = np.clip(1e-3 * rng.standard_t(2, LENGTH), -1, 1).astype(np.float32)
        np.save(folder / f"user-{n:02}.npy", values)
    return folder


def broadcast(folder: Path) -> int:
    """The payload of X and Y of one user, as `decode` says it."""
    call = [str(PROGRAM), "decode", str(folder), "--json"]
    facts = json.loads(subprocess.run(call, check=True, capture_output=True).stdout)
    return int(facts["masked_payload_bytes"] + facts["answer_payload_bytes"])


def main() -> None:
    """Print every figure with what is wanted of it."""
    folder = scratch()
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else gradients(folder / "gradients")
    online, ratios, memory = {}, [], 0.0
    for turn in range(TURNS + 1):
        dropped = ["--drop-masking", "8,9,10"] if turn < TURNS else []
        run = command("run", folder / "round", "--gradients", source, *OPTIONS, *dropped)
        online["ten" if turn == TURNS else "seven"] = broadcast(folder / "round")
        sizes = [path.stat().st_size for path in folder.glob("round/shares/*/*")]
        shutil.rmtree(folder / "round")
        floor = write_floor(folder / "floor", len(sizes), sizes[0]) + read_floor(folder / "floor")
        shutil.rmtree(folder / "floor")
        print(f"run {run.seconds:.1f} s, floor {floor:.1f} s, ratio {run.seconds / floor:.2f}")
        ratios.append(run.seconds / floor)
        memory = max(memory, run.memory)
    print(f"offline files: {sum(sizes) / 1e9:.3f} GB in all (at most 1.0 wanted)")
    print(f"time: {statistics.median(ratios):.2f} times writing and reading them (at most 4 wanted)")
    print(f"memory: {memory:.0f} MB (at most 500 wanted)")
    print(f"online, seven survivors: {online['seven'] / 1e3:.1f} kB a user (at most 95 wanted)")
    print(f"online, ten survivors: {online['ten'] / 1e3:.1f} kB a user (at most 130 wanted)")
    k = round(0.01 * LENGTH)
    bits = np.log2(2**32 - 5)
    choices = sum(np.log2(LENGTH - i) - np.log2(i + 1) for i in range(k)) / bits
    paper = 4 * (k + choices + LENGTH / (SURVIVORS - COLLUDERS))
    print(f"the paper's rates: {paper / 1e3:.0f} kB; dense LightSecAgg: {4 * LENGTH * 1.5 / 1e3:.0f} kB")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
