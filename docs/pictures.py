"""Draws the pictures of the README anew: a round in the terminal, and the page of an audit of it
(with Chromium)."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.text import Text
from transcript import Transcript

HERE = Path(__file__).parent
STEPS = (
    "init round --users 10 --survivors 5 --colluders 3 --density 0.01 \\\n"
    "    --like fixtures/gradients/user-01.pt",
    "offline round --user all",
    "mask round --user 1-9 --gradients fixtures/gradients",  # user 10 drops out
    "freeze round",
    "eliminate round --user 1-3,5-9",  # and user 4
    "decode round --output sum.pt",
)
COLUMNS = 100  # of the terminal
REPORT = (1280, 1394)  # pixels
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def folded(output: str) -> Iterator[str]:
    """Lines that differ in numbers only become the first and the last of them."""
    for _, same in groupby(output.splitlines(), lambda line: re.sub(r"\d+", "", line)):
        lines = list(same)
        yield from lines if len(lines) <= 3 else (lines[0], "...", lines[-1])


def draw_round(transcript: Transcript) -> str:
    """The steps of a round and what they print, as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    for step in STEPS:
        output = transcript.quietly(step.replace("\\\n", " "), messages=True)
        console.print(Text.assemble(("$ ", "green"), (f"topk-secagg {step}", "bold white")))
        for line in folded(output):
            console.print(Text(line))
    drawn = console.export_svg(
        title="a round of ten users, two of whom drop out", unique_id="round"
    )
    # any font of fixed width will do: the picture loads nothing from elsewhere
    return re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)


def draw_report(transcript: Transcript, picture: Path) -> None:
    """The page of the audit, as a browser shows it."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("Chromium is needed to draw the report")
    transcript.quietly("audit round --report audit.html")
    with tempfile.TemporaryDirectory() as profile:
        options = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--no-first-run",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            f"--window-size={REPORT[0]},{REPORT[1]}",
            f"--screenshot={picture}",
        )
        page = (transcript.root / "audit.html").as_uri()  # our own
        command = [browser, *options, page]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603


if __name__ == "__main__":
    shell = Transcript("gradients")
    (HERE / "round.svg").write_text(draw_round(shell))
    draw_report(shell, HERE / "report.png")
