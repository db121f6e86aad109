"""Flower's programs as processes: started in a folder of a test, waited for, and killed with all
that they started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

FLOWER = Path(sys.executable).parent  # where pip put its programs
LONG = 600  # seconds; ten times what anything here takes on an idle machine
MARK = "TOPK_SECAGG_TEST_PROCESS"  # in the environment of a process and of all that it starts


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def kill_marked(mark: str) -> None:
    """Kill every process whose mark begins so: Flower's programs start others, some of them in
    sessions of their own, which a signal to a group would not reach."""
    entry = f"{MARK}={mark}".encode()
    again = True
    while again:  # one may have started another meanwhile
        again = False
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if any(part.startswith(entry) for part in path.read_bytes().split(b"\0")):
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    again = True


class Process:
    """One program, with its output in a file."""

    def __init__(
        self, log: Path, command: list[str], environment: dict[str, str], folder: Path
    ) -> None:
        self.log = log
        self._mark = environment[MARK]
        with log.open("wb") as stream:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
            )

    def text(self) -> str:
        """Its output so far."""
        return self.log.read_text(errors="replace")

    def wait(self) -> int:
        """Until it ends; its exit code."""
        return self._process.wait(LONG)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Until the condition holds, which it must before the process ends."""
        deadline = time.monotonic() + LONG
        while not condition():
            assert self._process.poll() is None, f"it ended before: {what}\n{self.text()}"
            assert time.monotonic() < deadline, f"it takes too long: {what}\n{self.text()}"
            time.sleep(0.05)

    def kill(self) -> None:
        """With everything that it started."""
        kill_marked(self._mark)
        self._process.wait(LONG)


class Processes:
    """Programs that share a home for Flower below the folder of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "flower-home"
        self.home.mkdir()
        self._started: list[Process] = []
        http, control = free_ports(2)
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(http),
            "FLWR_LOCAL_CONTROL_API_PORT": str(control),
            "XDG_STATE_HOME": str(folder / "state"),
            "PATH": os.pathsep.join([str(FLOWER), os.environ.get("PATH", os.defpath)]),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "RAY_worker_niceness": "0",
            "NO_COLOR": "1",
            MARK: f"{folder}/",
        }

    def connect_to(self, address: str) -> None:
        """Let `flwr` call a SuperLink "here"."""
        (self.home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n'
            f'[superlink.here]\naddress = "{address}"\ninsecure = true\n'
        )

    def start(self, name: str, *command: object) -> Process:
        """Start a program."""
        process = Process(
            self.folder / f"{name}.log",
            list(map(str, command)),
            {**self.environment, MARK: f"{self.folder}/{name}/"},
            self.folder,
        )
        self._started.append(process)
        return process

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        kill_marked(f"{self.folder}/")
        for process in self._started:
            process.kill()
