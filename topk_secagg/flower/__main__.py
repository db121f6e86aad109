"""python -m topk_secagg.flower FOLDER: a node leaves the trainings that did not end.

FOLDER is what `topk-secagg-folder` names. The secrets of these trainings are erased; ledgers and
digests stay, so that nothing can be sent a second time. No SuperNode may run meanwhile.
"""

from __future__ import annotations

import sys
from logging import ERROR, INFO
from pathlib import Path

from flwr.supercore import log

from .leaving import leave
from .node import Training


def main() -> int:
    """Leave them all."""
    if len(sys.argv) != 2:
        log(ERROR, "%s", __doc__)
        return 2
    home = Path(sys.argv[1])
    secrets = home / "secrets" if (home / "secrets").is_dir() else home
    for path in sorted(home.glob("training-*")):
        training = Training(path, secrets)
        state = training.state()
        if state is not None and not state.ended:
            leave(training)
            log(INFO, "topk-secagg: left training %s", training.series[:16])
    return 0


if __name__ == "__main__":
    sys.exit(main())
