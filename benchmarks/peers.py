"""The phases in memory against FedML's LightSecAgg and Flower's SecAgg+, side by side.

A part of bench.py. N = 10, U = 5, T = 3; 7 users mask and 5 answer, in all systems: our `sketch` at
1 %, whole and low rank at rank 2, and the peers. The peers are installed into an environment of
their own, and every system runs in a process of its own on one core (`peer_workers.py`). Systems
take turns phase by phase, so that each ratio compares neighbours in time; the first turn only warms
up. Every result is compared with the plain sum: of all entries for the peers, of what was sent for
ours.

What counts. Input: a float32 gradient in memory. Offline: all ten users' secrets and shares
(Flower: keys and encrypted shares; ours: keys, and the masks that follow from them). Mask, of one
user: reduce or select (ours alone), quantise, mask. Answer, of one user: adding up, while drawing
the symbols of the keys that it holds, which can be done before, has a figure of its own against
AES-256-CTR alone. Decode: from the answers and the masked vectors to a dense vector of reals; ours
finds the places as well, or the next bases. Nothing is serialised or sent on the clock.

Bytes that a user sends, each message once, without headers. "packed": whole bytes that hold a
symbol of the system's own modulus (ours 4, FedML's 15-bit prime 2, Flower 4). "as sent": what the
peer's own code hands to its transport. "at 4 bytes": LightSecAgg with symbols as wide as ours, as
in the README. Its prime resolves steps of 2^-10, ours 5e-9.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from measuring import Figure

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = (272_474, 2_724_740)  # ResNet-20, once and ten times
PHASES = ("offline", "mask", "answer", "decode")
OWN_PHASES = ("draw", "cipher")  # before `answer`
ORDER = ("offline", "mask", "draw", "cipher", "answer", "decode")
OURS = ("sketch", "whole", "low-rank")
PEERS = ("lightsecagg", "flower")
# their secure aggregation is the same; 1.42 needs a certifi that some indexes lack
FLOWER = "flwr>=1.41,<1.43"
LIGHTSECAGG = "fedml/core/mpc/lightsecagg.py"
THREADS = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)

SHORT = "its prime of 15 bits needs 2 bytes a symbol, for steps of 2^-10; ours resolves 5e-9"
AGREED = "its keys do not grow with L, but its secrecy rests on key agreement"


class Compared(NamedTuple):
    """One of ours against a peer: these phases together, at most so many times the peer's, and why
    the peer may be ahead."""

    ours: str
    figure: str
    peer: str
    phases: tuple[str, ...]
    most: float | None = None
    remark: str = ""


def compared_times(ours: str) -> list[Compared]:
    """One of ours against both peers; more is wanted of `sketch`."""
    most = {"offline": 1, "mask": 1, "answer": 1, "decode": 1.5} if ours == "sketch" else {}
    names = {"offline": "offline of all users", "answer": "answer: adding up"}
    phases = [
        Compared(ours, names.get(phase, phase), "lightsecagg", (phase,), most.get(phase))
        for phase in PHASES
    ]
    online = ("mask", "answer", "decode")
    return [
        *phases,
        Compared(ours, "offline of all users", "flower", ("offline",), remark=AGREED),
        Compared(ours, " + ".join(online), "flower", online),
    ]


TIMES = [compared for name in OURS for compared in compared_times(name)]
DRAWING_AT_MOST = 4  # times AES-256-CTR alone
SHORT_STREAMS = "its streams are short: starting one takes as long as the cipher"
DRAWING = "words beyond the field are rejected, and streams are added up"
# the same for bytes: ours, peer, how the peer's symbols are counted; at most before, with the
# gradient and in all
BYTES: tuple[tuple[str, str, str, tuple[float | None, float | None, float | None], str], ...] = (
    ("sketch", "lightsecagg", "at 4 bytes", (1, 1 / 3, 1 / 3), ""),
    ("sketch", "lightsecagg", "packed", (None, None, None), SHORT),
    ("sketch", "flower", "packed", (None, 1 / 3, 1 / 3), AGREED),
    ("whole", "lightsecagg", "at 4 bytes", (1, None, None), ""),
    ("whole", "flower", "packed", (None, None, None), AGREED),
    ("low-rank", "lightsecagg", "packed", (1, 1 / 30, 1 / 30), ""),
    ("low-rank", "flower", "packed", (None, 1 / 30, 1 / 30), AGREED),
)
SENT = {
    "bytes before": ("offline",),
    "bytes with a gradient": ("online",),
    "bytes in all": ("offline", "online"),
}


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
    python = environment / "bin" / "python"
    lightsecagg = environment / "lightsecagg.py"
    wheels = environment / "wheels"

    def ran(*command: object) -> bool:
        return not subprocess.run(
            list(map(str, command)), capture_output=True, check=False
        ).returncode

    def pip(*arguments: object) -> bool:
        return ran(python, "-m", "pip", "--retries", 1, "--disable-pip-version-check", *arguments)

    runnable: dict[str, list[Path]] = {}
    if not python.exists() and not ran(sys.executable, "-m", "venv", environment):
        return runnable
    if not lightsecagg.exists() and pip("download", "--no-deps", "--dest", wheels, "fedml==0.9.6"):
        with zipfile.ZipFile(next(wheels.glob("fedml-*.whl"))) as wheel:
            lightsecagg.write_bytes(wheel.read(LIGHTSECAGG))
    if lightsecagg.exists() and pip("install", "numpy"):
        runnable["lightsecagg"] = [python, lightsecagg]
    if pip("install", FLOWER):
        runnable["flower"] = [python]
    return runnable


def phases_of(name: str) -> tuple[str, ...]:
    """What a system can be asked for."""
    return (*PHASES, *OWN_PHASES) if name in OURS else PHASES


def measure(
    lengths: Sequence[int], repeats: int, environment: Path = ROOT / ".venv-peers"
) -> dict[str, Any]:
    """The seconds of every repeat and the bytes, by length, system and phase; JSON can hold it."""
    peers = installed(environment)
    skipped = [name for name in PEERS if name not in peers]
    for name in skipped:
        print(f"{name} is skipped: it could not be installed", file=sys.stderr)
    workers = [
        *(Worker(name, Path(sys.executable)) for name in OURS),
        *(Worker(name, *peers[name]) for name in peers),
    ]
    versions: dict[str, str] = {}
    runs = []
    for length in lengths:
        seconds: dict[str, dict[str, list[float]]] = {
            w.name: {phase: [] for phase in phases_of(w.name)} for w in workers
        }
        sizes: dict[str, Any] = {}
        for turn in range(repeats + 1):
            versions |= {w.name: w.ask(length=length, seed=turn)["version"] for w in workers}
            for phase in ORDER:
                first = turn % len(workers)
                for worker in workers[first:] + workers[:first]:
                    if phase not in phases_of(worker.name):
                        continue
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
    every = []
    for run in results["runs"]:
        every += [
            of_times(run, compared)
            for compared in TIMES
            if {compared.ours, compared.peer} <= run["seconds"].keys()
        ]
        every += [of_drawing(run, name) for name in OURS if name in run["seconds"]]
        for ours, peer, count, most, remark in BYTES:
            if {ours, peer} <= run["bytes"].keys():
                every += of_bytes(run, ours=ours, peer=peer, count=count, most=most, remark=remark)
    return every


def of_times(run: dict[str, Any], compared: Compared) -> Figure:
    """Some phases of ours and of a peer."""
    ours, theirs = (
        together(run["seconds"][system], compared.phases)
        for system in (compared.ours, compared.peer)
    )
    return Figure(
        part="peers",
        name=f"{compared.ours}: {compared.figure}, L = {run['length']:,}",
        ours=ours,
        against=compared.peer,
        theirs=theirs,
        most=compared.most,
        remark=compared.remark,
    )


def of_drawing(run: dict[str, Any], name: str) -> Figure:
    """The symbols of the keys that a user holds, against the cipher alone."""
    seconds = run["seconds"][name]
    return Figure(
        part="peers",
        name=f"{name}: answer: drawing the symbols of keys, L = {run['length']:,}",
        ours=seconds["draw"],
        against="AES-256-CTR alone",
        theirs=seconds["cipher"],
        most=None if name == "low-rank" else DRAWING_AT_MOST,
        remark=SHORT_STREAMS if name == "low-rank" else DRAWING,
    )


def of_bytes(
    run: dict[str, Any],
    ours: str,
    peer: str,
    count: str,
    most: Sequence[float | None],
    remark: str,
) -> list[Figure]:
    """What a user sends before, with its gradient and in all."""
    compared = []
    for (label, parts), at_most in zip(SENT.items(), most, strict=True):
        own_bytes, peer_bytes = (
            float(sum(run["bytes"][system][how][part] for part in parts))
            for system, how in ((ours, "packed"), (peer, count))
        )
        compared.append(
            Figure(
                part="peers",
                name=f"{ours}: {label}, L = {run['length']:,}",
                ours=[own_bytes],
                against=f"{peer}, {count}",
                theirs=[peer_bytes],
                unit="bytes",
                most=at_most,
                remark=remark,
            )
        )
    return compared


def together(seconds: dict[str, list[float]], phases: Sequence[str]) -> list[float]:
    """The seconds of these phases together, in each repeat."""
    return [sum(parts) for parts in zip(*(seconds[phase] for phase in phases), strict=True)]
