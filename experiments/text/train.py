"""One curve: a small transformer on Python's documentation, trained by ten users whose updates are
added up by the real protocol.

Usage: train.py --data /usr/share/doc/python3.11/html/_sources --method topk-ef --work WORK

The texts are those of Debian's package python3.11-doc. 300 rounds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import texts
import torch
from authors import Chapters

sys.path.insert(0, str(Path(__file__).parent.parent))
import curve

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Train one curve to its end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder _sources")
    curve.add_options(parser, RESULTS)
    args = parser.parse_args()

    torch.set_num_threads(1)
    s = curve.settings_of(args, task="text")
    owned = texts.users(args.data, s.users)
    curve.train(s, lambda: Chapters(owned, seed=s.seed), args)


if __name__ == "__main__":
    main()
