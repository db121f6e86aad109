"""How much of the energy of as many largest entries (K = 1 %) the P largest of every bucket keep.

Usage: energy.py [--exclude PATTERN] OUT, the folder that export.py wrote. Prints two Markdown
tables.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from topk_secagg.gradients.files import read_gradient
from topk_secagg.gradients.layout import Layout
from topk_secagg.gradients.select import top_k
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.parameters import Parameters

DENSITY = 0.01
PICKS = (2, 4, 8, 16)


def main() -> None:
    """Print what every step's gradients are like, and what each P keeps of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument(
        "--exclude", action="append", default=[], help="leave out tensors of such names"
    )
    args = parser.parse_args()
    folders = sorted(args.out.glob("step-*"), key=lambda folder: int(folder.name[5:]))
    steps = {int(folder.name[5:]): gradients(folder, args.exclude) for folder in folders}

    print("| step | users | L | K | energy of the top K in all (mean) | largest magnitude |")
    print("|--:|--:|--:|--:|--:|--:|")
    for step, users in steps.items():
        L = users[0].size
        K = round(DENSITY * L)
        share = np.mean([energy(g[top_k(g, K)]) / energy(g) for g in users])
        largest = max(np.abs(g).max() for g in users)
        print(f"| {step} | {len(users)} | {L:,} | {K:,} | {share:.1%} | {largest:.3g} |")

    print("\n| step | P | B | B P | kept (mean) | kept (least) | random (mean) |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for step, users in steps.items():
        for P in PICKS:
            p = parameters(users[0].size, P)
            c = construction(p)
            rng = np.random.default_rng([step, P])
            picked = [kept(g, c.select(g)) for g in users]
            random = [kept(g, c.select(rng.random(p.length))) for g in users]
            print(
                f"| {step} | {P} | {p.buckets} | {p.buckets * P} "
                f"| {np.mean(picked):.1%} | {min(picked):.1%} | {np.mean(random):.1%} |"
            )


def kept(gradient: np.ndarray, index: np.ndarray) -> float:
    """The energy of a selection, divided by that of the best one of its size."""
    return energy(gradient[index]) / energy(gradient[top_k(gradient, index.size)])


def gradients(folder: Path, exclude: list[str]) -> list[np.ndarray]:
    """Every user's gradient as a flat vector."""
    files = [read_gradient(path) for path in sorted(folder.glob("user-*.pt"))]
    return [Layout.like(tensors, exclude=exclude).flatten(tensors) for tensors in files]


def parameters(length: int, picks: int) -> Parameters:
    """A round of ten users, five of which survive and three collude."""
    return Parameters.choose(
        users=10,
        survivors=5,
        colluders=3,
        top_k=round(DENSITY * length),
        length=length,
        construction="sketch",
        picks=picks,
    )


def energy(values: np.ndarray) -> float:
    """The sum of squares."""
    return float(np.square(values, dtype=np.float64).sum())


if __name__ == "__main__":
    main()
