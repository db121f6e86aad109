"""The phases in memory against FedML's LightSecAgg and Flower's SecAgg+, side by side.

A part of bench.py. N = 10, U = 5, T = 3; 7 users mask and 5 answer, in all three systems. The peers
are installed into an environment of their own, and every system runs in a process of its own on one
core (`peer_workers.py`). Systems take turns phase by phase, so that each ratio compares neighbours
in time; the first turn only warms up. Every result is compared with the plain sum: of all entries
for the peers, of what was sent for ours.

What counts. Input: a float32 gradient in memory. Offline: all ten users' secrets and shares
(Flower: keys and encrypted shares). Mask, of one user: select (ours alone), quantise, mask. Answer,
of one user. Decode: from the answers, and for the peers from the masked vectors, to a dense vector
of reals; ours finds the places as well. Nothing is serialised or sent on the clock.

Bytes that a user sends, each message once, without headers. "packed": whole bytes that hold a
symbol of the system's own modulus (ours 4, FedML's 15-bit prime 2, Flower 4). "as sent": what the
peer's own code hands to its transport. "at 4 bytes": LightSecAgg with symbols as wide as ours, as
in the README. Its prime resolves steps of 2^-10, ours 5e-9.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring import Figure, subplots

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = (27_247, 272_474, 2_724_740)
PHASES = ("offline", "mask", "answer", "decode")
PEERS = ("lightsecagg", "flower")
# their secure aggregation is the same; 1.42 needs a certifi that some indexes lack
FLOWER = "flwr>=1.41,<1.43"
LIGHTSECAGG = "fedml/core/mpc/lightsecagg.py"
THREADS = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)

SHORT = "its prime of 15 bits needs 2 bytes a symbol, for steps of 2^-10; ours resolves 5e-9"
SELECTS = "it selects nothing: it sends everything"
CALLS = "at this size, most of ours is Python between the kernels"
KEYS = "its keys and seeds do not grow with L, but its masks are no longer hidden from unbounded adversaries"

# ours against a peer: figure, peer, phases, at most, and why the peer may be ahead
TIMES: tuple[tuple[str, str, tuple[str, ...], float | None, str], ...] = (
    (
        "offline of all users",
        "lightsecagg",
        ("offline",),
        1 / 2,
        "it draws from a generator that is not cryptographic",
    ),
    ("offline of all users", "flower", ("offline",), None, KEYS),
    ("mask", "lightsecagg", ("mask",), None, SELECTS),
    ("answer", "lightsecagg", ("answer",), None, CALLS),
    ("mask + answer", "lightsecagg", ("mask", "answer"), 1, CALLS),
    (
        "decode",
        "lightsecagg",
        ("decode",),
        3,
        "it knows all places, and multiplies by one small matrix",
    ),
    ("mask + answer + decode", "flower", ("mask", "answer", "decode"), 1 / 5, ""),
)
# the same for bytes: offline or online, peer, how the peer's symbols are counted
BYTES: tuple[tuple[str, str, str, float | None, str], ...] = (
    ("offline", "lightsecagg", "at 4 bytes", 1, ""),
    ("offline", "lightsecagg", "packed", None, SHORT),
    ("offline", "flower", "packed", None, KEYS),
    ("online", "lightsecagg", "at 4 bytes", 1 / 12, ""),
    ("online", "lightsecagg", "packed", None, SHORT),
    ("online", "flower", "packed", 1 / 12, ""),
)


def on_one_core() -> None:
    """The same core for every system, where the operating system can say so."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class Worker:
    """A system in its process, which answers one line of JSON for each that it gets."""

    def __init__(self, name: str, python: Path, *arguments: object) -> None:
        command = [python, Path(__file__).with_name("peer_workers.py"), name, *arguments]
        self.name = name
        self.process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **THREADS},
            preexec_fn=on_one_core,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Its answer; a check that fails ends the process, and so the benchmark."""
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} stopped at {request}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """End the process."""
        self.process.communicate()


def installed(environment: Path) -> dict[str, list[Path]]:
    """The peers that can run: the interpreter of each, and what its worker is given."""
    python, file, wheels = (
        environment / "bin" / "python",
        environment / "lightsecagg.py",
        environment / "wheels",
    )

    def ran(*command: object) -> bool:
        return not subprocess.run(
            list(map(str, command)), capture_output=True, check=False
        ).returncode

    def pip(*arguments: object) -> bool:
        return ran(python, "-m", "pip", "--retries", 1, "--disable-pip-version-check", *arguments)

    found: dict[str, list[Path]] = {}
    if not python.exists() and not ran(sys.executable, "-m", "venv", environment):
        return found
    if not file.exists() and pip("download", "--no-deps", "--dest", wheels, "fedml==0.9.6"):
        with zipfile.ZipFile(next(wheels.glob("fedml-*.whl"))) as wheel:
            file.write_bytes(wheel.read(LIGHTSECAGG))
    if file.exists() and pip("install", "numpy"):
        found["lightsecagg"] = [python, file]
    if pip("install", FLOWER):
        found["flower"] = [python]
    return found


def measure(
    lengths: Sequence[int], repeats: int, environment: Path = ROOT / ".venv-peers"
) -> dict[str, Any]:
    """The seconds of every repeat and the bytes, by length, system and phase; JSON can hold it."""
    peers = installed(environment)
    skipped = [name for name in PEERS if name not in peers]
    for name in skipped:
        print(f"{name} is skipped: it could not be installed", file=sys.stderr)
    workers = [
        Worker("ours", Path(sys.executable)),
        *(Worker(name, *peers[name]) for name in peers),
    ]
    versions: dict[str, str] = {}
    runs = []
    for length in lengths:
        seconds: dict[str, dict[str, list[float]]] = {
            w.name: {phase: [] for phase in PHASES} for w in workers
        }
        sizes: dict[str, Any] = {}
        for turn in range(repeats + 1):
            versions |= {w.name: w.ask(length=length, seed=turn)["version"] for w in workers}
            for phase in PHASES:
                first = turn % len(workers)
                for worker in workers[first:] + workers[:first]:
                    answer = worker.ask(phase=phase)
                    if turn:
                        seconds[worker.name][phase].append(answer["seconds"])
                    sizes |= {worker.name: answer["bytes"]} if "bytes" in answer else {}
        runs.append({"length": length, "seconds": seconds, "bytes": sizes})
    for worker in workers:
        worker.stop()
    return {"versions": versions, "skipped": skipped, "repeats": repeats, "runs": runs}


def figures(results: dict[str, Any]) -> list[Figure]:
    """Every phase and every count of bytes, at every length."""
    found = []
    for run in results["runs"]:
        length = f"L = {run['length']:,}"
        for figure, name, phases, most, why in TIMES:
            if name in run["seconds"]:
                ours, theirs = (
                    together(run["seconds"][system], phases) for system in ("ours", name)
                )
                found.append(
                    Figure(
                        "peers", f"{figure}, {length}", ours, name, theirs, most=most, remark=why
                    )
                )
        for figure, name, count, most, why in BYTES:
            if name in run["bytes"]:
                sizes = [
                    [run["bytes"]["ours"]["packed"][figure]],
                    [run["bytes"][name][count][figure]],
                ]
                against = f"{name}, {count}"
                label = f"{figure} bytes a user, {length}"
                found.append(
                    Figure("peers", label, sizes[0], against, sizes[1], "bytes", most, why)
                )
    return found


def together(seconds: dict[str, list[float]], phases: Sequence[str]) -> list[float]:
    """The seconds of these phases together, in each repeat."""
    return [sum(parts) for parts in zip(*(seconds[phase] for phase in phases), strict=True)]


def draw(results: dict[str, Any], path: Path) -> None:
    """Seconds of each phase, and bytes that a user sends, against L."""
    figure, axes = subplots(1, len(PHASES) + 2, figsize=(13, 2.8))
    runs = results["runs"]
    for name in results["versions"]:
        for panel, phase in zip(axes, PHASES, strict=False):
            points = [
                (run["length"], statistics.median(run["seconds"][name][phase])) for run in runs
            ]
            panel.loglog(*zip(*points, strict=True), "o-", markersize=3, label=name)
            panel.set_title({"offline": "offline of all users, s"}.get(phase, f"{phase}, s"))
        for panel, phase in zip(axes[len(PHASES) :], ("offline", "online"), strict=True):
            count = "at 4 bytes" if name == "lightsecagg" else "packed"
            panel.loglog(
                *zip(
                    *((run["length"], run["bytes"][name][count][phase]) for run in runs),
                    strict=True,
                ),
                "o-",
                markersize=3,
            )
            panel.set_title(f"{phase} bytes a user")
    for panel in axes:
        panel.set_xlabel("L")
        panel.grid(visible=True, linewidth=0.3)
    axes[0].legend()
    figure.savefig(path, metadata={"Date": None})
