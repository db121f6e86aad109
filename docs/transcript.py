"""Runs commands in a temporary folder and records what they print; cog puts it into documents.

Their random bytes are the same in every run.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

from click.testing import CliRunner
from topk_secagg_cli.main import cli

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fixtures"))
from deterministic import injected, source_of

FIXTURES = Path(__file__).parents[1] / "fixtures"
FIRST_RUN = "compiling kernels for the first time; this takes a few seconds"  # not in documents


class Transcript:
    """A shell session of topk-secagg commands, in a folder with a copy of some of fixtures/."""

    def __init__(self, *fixtures: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.root = Path(self._folder.name)
        self._source = source_of(3)
        for name in fixtures:
            shutil.copytree(FIXTURES / name, self.root / "fixtures" / name)

    def run(self, command: str, *, messages: bool = False) -> str:
        """One command and what it prints."""
        return f"$ topk-secagg {command}\n{self.quietly(command, messages=messages)}"

    def quietly(self, command: str, *, messages: bool = False) -> str:
        """What a command prints on standard output, and on standard error too if `messages` are
        wanted."""
        with chdir(self.root), injected(self._source):
            result = CliRunner().invoke(
                cli, shlex.split(command), prog_name="topk-secagg", catch_exceptions=False
            )
        if result.exit_code:
            raise RuntimeError(f"{command} exited with {result.exit_code}: {result.output}")
        lines = (result.output if messages else result.stdout).splitlines()
        return "\n".join(line for line in lines if line.strip() and line != FIRST_RUN) + "\n"

    def block(self, *commands: str, messages: bool = False) -> str:
        """Commands and their output as a code block."""
        return "```console\n" + "".join(self.run(c, messages=messages) for c in commands) + "```\n"

    def table(self, path: str, *names: str) -> str:
        """The datasets of a file with these names, as `inspect --reveal` shows them."""
        lines = self.quietly(f"inspect --reveal {path}").splitlines()
        shown = [line.strip() for line in lines if line.split()[:1] and line.split()[0] in names]
        return (
            f"```console\n$ topk-secagg inspect --reveal {path}\n...\n"
            + "\n".join(shown)
            + "\n```\n"
        )
