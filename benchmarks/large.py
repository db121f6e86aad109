"""Beyond the paper's size, with `moments`: ResNet-50, a thousand million coordinates, a hundred
users.

Usage: large.py [resnet50] [billion] [hundred]. resnet50: a whole round of 25.6 million coordinates,
N=10, P=2, K = 1 %. billion: 10^9 coordinates, density 0.0001, N=10, P=2: offline, mask and
eliminate of a user, and decode; the gradient (4 GB) is generated in pieces into one .npy file,
which every user masks. hundred: N=100, U=70, T=30, L = 272,474, P=1: offline of 70 users, mask and
eliminate of three.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from measuring import PROGRAM, Measured, command, scratch

from topk_secagg.protocol.constructions import construction
from topk_secagg.storage.workspace import Workspace

SMALL = 272_474
LARGE = 25_600_000
BILLION = 10**9
TEN = ["--survivors", 5, "--colluders", 3, "--construction", "moments", "--picks", 2]
HUNDRED = ["--users", 100, "--survivors", 70, "--colluders", 30, "--density", 0.01, "--picks", 1]
_PIECE = 10**7


def gradient(path: Path, length: int) -> Path:
    """A heavy-tailed random gradient, made by a process of its own: its memory must not count for
    the next ones."""
    maker = multiprocessing.get_context("spawn").Process(target=make_gradient, args=(path, length))
    maker.start()
    maker.join()
    return path


def make_gradient(path: Path, length: int) -> None:
    """Write the gradient piece by piece."""
    path.parent.mkdir(exist_ok=True)
    values = np.lib.format.open_memmap(path, "w+", np.float32, (length,))
    rng = np.random.default_rng(0)
    for first in range(0, length, _PIECE):
        part = values[first : first + _PIECE]
        part[:] = np.clip(1e-3 * rng.standard_t(2, part.size), -1, 1)
    values.flush()


def print_measured(name: str, measured: Measured, wanted: str = "") -> None:
    """One line."""
    print(f"{name}: {measured.seconds:.1f} s, {measured.memory:.0f} MB{wanted}")


def resnet50(folder: Path) -> None:
    """A whole round at ResNet-50's size, a process for every phase of all users."""
    first = gradient(folder / "gradients" / "user-01.npy", LARGE)
    for n in range(2, 11):
        os.link(first, first.with_name(f"user-{n:02}.npy"))
    root = folder / "round"
    options = ["--density", 0.01, *TEN]
    plan = [str(PROGRAM), *map(str, ["plan", "--json", "--users", 10, *options, "--length", LARGE])]
    facts = json.loads(subprocess.run(plan, check=True, capture_output=True).stdout)
    predicted = next(c["all_bytes"] for c in facts["choices"] if c["recommended"])
    command("init", root, "--users", 10, *options, "--length", LARGE)
    print_measured(
        "25.6 million, offline of all",
        command("offline", root, "--user", "all"),
        " (below 1000 wanted)",
    )
    print_measured(
        "mask of all",
        command("mask", root, "--user", "all", "--gradients", first.parent, "--jobs", 1),
    )
    command("freeze", root)
    print_measured("eliminate of all", command("eliminate", root, "--user", "all"))
    print_measured("decode", command("decode", root))
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    print(f"disk: {size / 1e9:.2f} GB, predicted by plan {predicted / 1e9:.2f} GB")


def billion(folder: Path) -> None:
    """10^9 coordinates: every user shares and masks, one by one; five answer."""
    root = folder / "round"
    source = gradient(folder / "gradient.npy", BILLION)
    command("init", root, "--users", 10, "--density", 0.0001, *TEN, "--length", BILLION)
    for user in range(1, 11):
        offline = command("offline", root, "--user", user)
    print_measured("10^9 coordinates, offline of one user", offline)
    for user in range(1, 6):
        mask = command("mask", root, "--user", user, "--gradient", source)
    print_measured("mask of one user", mask)
    command("freeze", root)
    for user in range(1, 6):
        answer = command("eliminate", root, "--user", user)
    print_measured("eliminate of one user", answer)
    print_measured("decode", command("decode", root))


def hundred(folder: Path) -> None:
    """Three users' phases in a round of a hundred, of whom seventy mask."""
    root = folder / "round"
    source = gradient(folder / "gradient.npy", SMALL)
    command("init", root, *HUNDRED, "--length", SMALL, "--construction", "moments", "--distributed")
    c = construction(Workspace(root).session.parameters)
    print(f"a user of a hundred shares {100 * c.share_bytes / 1e6:.0f} MB")
    for user in range(1, 71):
        offline = command("offline", root, "--user", user)
        for other in range(4, 101):  # only users 1 to 3 answer here, so only their shares are kept
            (root / f"shares/user-{other:02}/from-{user:02}.h5").unlink()
    print_measured("offline of one user", offline)
    for user in range(70, 0, -1):  # user 1 is the last: it has its shares, and reads them
        mask = command("mask", root, "--user", user, "--gradient", source, "--without-them")
    print_measured("mask of one user", mask)
    print(
        "(freeze would leave out users whose shares were removed above; it is given what they held)"
    )
    frozen(root)
    for user in (1, 2, 3):
        answer = command("eliminate", root, "--user", user)
    print_measured("eliminate of one user", answer)


def frozen(root: Path) -> None:
    """survivors.json for all that have masked, whoever holds their shares."""
    from topk_secagg.storage import masked, survivors

    space = Workspace(root)
    files = {
        n: masked.read(space.session, space.masked_path(n), n) for n in space.present("masked")
    }
    space.survivors_path.write_bytes(
        survivors.content(
            space.session,
            survivors.rows_of(files),
            freezer=space.session.freezer,
            signer=None,
        )
    )


if __name__ == "__main__":
    for name in sys.argv[1:] or ["resnet50", "billion", "hundred"]:
        with scratch() as where:
            {"resnet50": resnet50, "billion": billion, "hundred": hundred}[name](where)
