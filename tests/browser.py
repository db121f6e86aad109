"""Pages and pictures as headless Chromium shows them, measured in frames of given widths."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import pytest

WIDTHS = (390, 1280)  # pixels: a phone and a desk
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--allow-file-access-from-files",
    "--hide-scrollbars",
    "--window-size=1400,1000",
)
_PATIENCE = 100  # seconds

# Of what can be seen: the width of all, the smallest text (as it is drawn, with the scale of its
# figure), what sticks out on either side, and texts of a figure that are cut off or overlap.
_MEASURE = """
const box = e => e.getBoundingClientRect();
const name = e => e.tagName + ": " + e.textContent.slice(0, 40);
function measure(frame) {
  const page = frame.contentDocument, all = [];
  page.querySelectorAll("details").forEach(e => e.open = true);
  for (const e of page.body.querySelectorAll("*")) if (e.getClientRects().length) all.push(e);
  const texts = all.filter(e => [...e.childNodes].some(c => c.nodeType == 3 && c.data.trim()));
  const area = m => Math.sqrt(Math.abs(m.a * m.d - m.b * m.c));
  const scale = e => e.getScreenCTM ? area(e.getScreenCTM()) : 1;
  const size = e => parseFloat(frame.contentWindow.getComputedStyle(e).fontSize) * scale(e);
  const out = e => box(e).left < -0.5 || box(e).right > frame.clientWidth + 0.5;
  const bad = all.filter(e => out(e) && !e.closest("[clip-path]")).map(name);
  for (const figure of page.querySelectorAll("svg")) {
    const drawn = [...figure.querySelectorAll("text")], edge = box(figure);
    for (const [i, e] of drawn.entries()) {
      const a = box(e);
      const beside = a.left < edge.left - 1 || a.right > edge.right + 1;
      if (beside || a.bottom > edge.bottom + 1) bad.push("cut: " + name(e));
      for (const other of drawn.slice(i + 1)) {
        const b = box(other), wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 0.5 && high > 3) bad.push("over: " + name(e));
      }
    }
  }
  const smallest = Math.min(...texts.map(size));
  return {width: page.documentElement.scrollWidth, smallest: smallest, bad: bad};
}
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(measure);
  document.querySelector("pre").textContent = JSON.stringify(found);
});
"""


def measured(
    shown: Mapping[Hashable, tuple[Path, int]], folder: Path
) -> dict[Hashable, dict[str, Any]]:
    """What a browser measures of each file at its width; one run for all. Skips where none starts.

    `folder` is for files of its own.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium is installed, and only a browser can tell how this looks")
    frames = (
        f'<iframe src="{path.as_uri()}" width="{width}" height="900" style="border: 0"></iframe>'
        for path, width in shown.values()
    )
    page = folder / "all.html"
    page.write_text(f"<script>{_MEASURE}</script><pre>nothing measured</pre>{''.join(frames)}")
    own = (f"--user-data-dir={folder / 'profile'}", "--dump-dom", page.as_uri())
    try:
        out = subprocess.run(
            [browser, *OPTIONS, *own],
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        out = ""
    found = re.search("<pre>(.*?)</pre>", out, re.DOTALL)
    if found is None:
        pytest.skip(f"{browser} does not start here")
    return dict(zip(shown, json.loads(html.unescape(found[1])), strict=True))
