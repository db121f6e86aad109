"""What checking the answers costs when none is wrong, and how long naming a wrong user takes.

Usage: decode.py. L = 272,474, N = 10, U = 5, T = 3, everybody answers; the decoding of open, verified
answer files with the check against the same without it.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from floors import command, scratch

from topk_secagg.algebra.randomness import CipherRandomness, fresh_key
from topk_secagg.protocol.decoding import _Decoder, decode
from topk_secagg.protocol.elimination import answer_shape
from topk_secagg.protocol.messages import AnswerRows
from topk_secagg.protocol.round import InMemoryAnswer
from topk_secagg.storage import survivors as survivors_file
from topk_secagg.storage.answer import opened_answer
from topk_secagg.storage.workspace import Workspace

LENGTH = 272_474
_PAIRS = 25  # measured in turn, a few milliseconds each
OPTIONS = ["--survivors", 5, "--colluders", 3, "--density", 0.01, "--construction", "moments", "--picks", 4]


def seconds(task: Callable[[], object]) -> float:
    """How long a task takes."""
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def opened(space: Workspace, files: ExitStack) -> dict[int, AnswerRows]:
    """Every answer, its digest checked."""
    survivors = survivors_file.read(space)
    return {n: files.enter_context(opened_answer(space, n, survivors)) for n in survivors.digests}


def measure(folder: Path) -> None:
    """One round, decoded in three ways."""
    command("run", folder / "round", "--gradients", folder / "gradients", *OPTIONS)
    space = Workspace(folder / "round")
    p, points = space.session.parameters, space.session.points
    shape = answer_shape(p, 10)

    def plain() -> None:
        with ExitStack() as files:
            answers = opened(space, files)
            _Decoder(p, points, len(answers), shape, answers, lambda _: None).total(sorted(answers))

    def checked() -> None:
        with ExitStack() as files:
            answers = opened(space, files)
            decode(p, points, len(answers), answers, CipherRandomness(fresh_key()))

    plain(), checked()
    pairs = [(seconds(plain), seconds(checked)) for _ in range(_PAIRS)]
    floor, usual = (statistics.median(times) for times in zip(*pairs, strict=True))
    with ExitStack() as files:
        whole = {n: InMemoryAnswer(y.read(0, shape.groups)) for n, y in opened(space, files).items()}
    whole[3].y[:, :] = np.random.default_rng(0).integers(p.field, size=whole[3].y.shape, dtype=np.uint32)
    found = decode(p, points, len(whole), whole, CipherRandomness(fresh_key()))
    named = seconds(lambda: decode(p, points, len(whole), whole, CipherRandomness(fresh_key())))
    print(f"checked: {usual / floor:.2f} times plain decoding (at most 1.3 wanted)")
    print(f"user {found.corrected} named and left out in {named / floor:.1f} times that")
    shutil.rmtree(folder / "round")


def main() -> None:
    """Print the two ratios."""
    folder = scratch()
    (folder / "gradients").mkdir()
    for n in range(10):
        values = 1e-3 * np.random.default_rng(n).standard_t(2, LENGTH)
        np.save(folder / "gradients" / f"{n}.npy", np.clip(values, -1, 1).astype(np.float32))
    measure(folder)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
