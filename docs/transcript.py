"""Runs commands in a temporary folder and records what they print; cog puts it into documents."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from contextlib import chdir
from pathlib import Path

from click.testing import CliRunner
from topk_secagg_cli.main import cli

FIXTURES = Path(__file__).parent.parent / "fixtures"


class Transcript:
    """A shell session of topk-secagg commands over a copy of fixtures/example."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.root = Path(self._folder.name)
        shutil.copytree(FIXTURES / "example", self.root / "fixtures" / "example")

    def run(self, command: str) -> str:
        """One command and what it prints."""
        return f"$ topk-secagg {command}\n{self.quietly(command)}"

    def quietly(self, command: str) -> str:
        """What a command prints."""
        with chdir(self.root):
            result = CliRunner().invoke(cli, shlex.split(command), prog_name="topk-secagg", catch_exceptions=False)
        return "\n".join(line for line in result.stdout.splitlines() if line.strip()) + "\n"

    def block(self, *commands: str) -> str:
        """Commands and their output as a code block."""
        return "```console\n" + "".join(map(self.run, commands)) + "```\n"

    def table(self, path: str, *names: str) -> str:
        """The datasets of a file with these names, as `inspect --reveal` shows them."""
        lines = self.quietly(f"inspect --reveal {path}").splitlines()
        shown = [line.strip() for line in lines if line.split()[:1] and line.split()[0] in names]
        return f"```console\n$ topk-secagg inspect --reveal {path}\n...\n" + "\n".join(shown) + "\n```\n"
