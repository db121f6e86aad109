"""One curve: ResNet-20 on CIFAR-10, trained by ten users whose updates are added up by the real
protocol.

Usage: train.py --data PATH --method topk-ef --drop 0.3 --work WORK

800 rounds with small images, 400 with whole ones, 134 with more local steps, 300 with more users.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from images import Cifar, Images

sys.path.insert(0, str(Path(__file__).parent.parent))
import curve

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Train one curve to its end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="CIFAR-10, in a folder or an archive"
    )
    parser.add_argument(
        "--size", type=int, default=16, choices=(16, 32), help="images are pooled to this"
    )
    curve.add_options(parser, RESULTS)
    args = parser.parse_args()

    torch.set_num_threads(1)
    s = curve.settings_of(args, task=f"{args.size}x{args.size}")
    training, tested = (Images(split, args.data, args.size) for split in ("train", "test"))
    curve.train(s, lambda: Cifar(training, tested, users=s.users, seed=s.seed), args)


if __name__ == "__main__":
    main()
