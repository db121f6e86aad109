"""Loading, sparsifying and quantising a 25-million-parameter gradient against numpy on the same bytes.

Usage: mask.py. The floor reads the 100 MB with numpy and runs np.argpartition on them. For every
construction and format the same steps that `mask` runs are timed in a process of its own, with its
largest resident memory (less what the libraries take before any work).
"""

from __future__ import annotations

import multiprocessing
import shutil
import time
from pathlib import Path

import numpy as np
from floors import scratch

from topk_secagg.gradients.files import write_gradient
from topk_secagg.gradients.layout import Layout
from topk_secagg.gradients.tensors import Tensor

LENGTH = 25_000_000
K = LENGTH // 100


def floor(path: Path, _picks: int) -> None:
    """What numpy needs to read the bytes and find the K largest."""
    gradient = np.fromfile(path, dtype=np.float32)
    np.argpartition(np.abs(gradient), LENGTH - K)


def ours(path: Path, picks: int) -> None:
    """What `mask` does before it masks."""
    from topk_secagg.gradients.files import read_gradient
    from topk_secagg.gradients.quantize import quantise
    from topk_secagg.gradients.sparsify import select_top
    from topk_secagg.protocol.parameters import Parameters

    p = Parameters.choose(
        users=10,
        survivors=5,
        colluders=3,
        top_k=K,
        length=LENGTH,
        clip=8.0,
        construction="moments" if picks else "permutation",
        picks=picks or None,
    )
    tensors = read_gradient(path)
    flat = Layout.like(tensors).flatten(tensors)
    index = select_top(p, flat)
    quantise(p, flat[index].astype(np.float64), source())


def source() -> object:
    """A stream for the rounding."""
    from topk_secagg.algebra.randomness import CipherRandomness, fresh_key

    return CipherRandomness(fresh_key())


def peak() -> int:
    """The largest resident memory of this process so far, in kB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def measured(work: object, path: Path, picks: int, queue: object) -> None:
    """Run `work` and report seconds and megabytes above the start."""
    import topk_secagg.algebra.randomness
    import topk_secagg.gradients.sparsify  # noqa: F401 - loaded before the clock starts

    before = peak()
    start = time.perf_counter()
    work(path, picks)  # type: ignore[operator]
    seconds = time.perf_counter() - start
    queue.put((seconds, (peak() - before) / 1000))  # type: ignore[attr-defined]


def best(work: object, path: Path, picks: int = 0) -> tuple[float, float]:
    """The shortest of three processes."""
    context = multiprocessing.get_context("spawn")
    runs = []
    for _ in range(3):
        queue = context.Queue()
        child = context.Process(target=measured, args=(work, path, picks, queue))
        child.start()
        runs.append(queue.get())
        child.join()
    return min(runs)


def main() -> None:
    """Print a line for each construction and format."""
    folder = scratch()
    rng = np.random.default_rng(0)
    gradient = rng.standard_normal(LENGTH, dtype=np.float32)
    gradient.tofile(folder / "raw")
    tensors = [Tensor("a", "float32", gradient[: LENGTH // 2]), Tensor("b", "float32", gradient[LENGTH // 2 :])]
    for suffix in (".npy", ".npz", ".pt", ".safetensors"):
        with (folder / f"gradient{suffix}").open("wb") as stream:
            write_gradient(stream, suffix, tensors)
    seconds, memory = best(floor, folder / "raw")
    size = gradient.nbytes / 1e6
    print(f"floor: {seconds:.2f} s, {memory / size:.1f} times its size in memory")
    for suffix in (".npy", ".npz", ".pt", ".safetensors"):
        for picks in (0, 1, 4):
            took, used = best(ours, folder / f"gradient{suffix}", picks)
            name = f"moments, P = {picks}" if picks else "permutation"
            print(f"{suffix}, {name}: {took / seconds:.2f} times the floor, {used / size:.1f} times its size")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
