"""The library reference of Python's documentation, dealt out to users by chapter.

Debian's package python3.11-doc holds it as reStructuredText, in the folder
/usr/share/doc/python3.11/html/_sources; nothing need be installed, `dpkg -x` unpacks it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

LETTERS = "\n" + "".join(map(chr, range(32, 127)))  # every other character is left out
INDEX = "library/index"
HELD_OUT = 10  # the last tenth of every page is for the test

Text = npt.NDArray[np.uint8]  # the place of each character in LETTERS

_TOCTREE = re.compile(r"^\.\. toctree::\n((?:[ \t]+.*\n|\n)*)", re.MULTILINE)


@dataclass(frozen=True)
class Owned:
    """What a user has: chapters, and their text for training and for the test."""

    chapters: tuple[str, ...]
    training: Text
    tested: Text


def users(folder: Path, count: int) -> list[Owned]:
    """The chapters in their order, cut into runs of about the same length."""
    every = {name: list(pages(folder, name)) for name in children(folder, INDEX)}
    lengths = np.array([sum(map(len, texts)) for texts in every.values()])
    middles = np.cumsum(lengths) - lengths / 2
    owner = (count * middles / lengths.sum()).astype(int)
    names = np.array(list(every))
    return [
        owned({str(name): every[name] for name in names[owner == user]}) for user in range(count)
    ]


def owned(chapters: dict[str, list[Text]]) -> Owned:
    """The last tenth of every page is not trained on."""
    texts = [text for pages_of_one in chapters.values() for text in pages_of_one]
    cuts = [len(text) - len(text) // HELD_OUT for text in texts]
    return Owned(
        chapters=tuple(chapters),
        training=np.concatenate([text[:cut] for text, cut in zip(texts, cuts, strict=True)]),
        tested=np.concatenate([text[cut:] for text, cut in zip(texts, cuts, strict=True)]),
    )


def pages(folder: Path, name: str) -> list[Text]:
    """A page, and those that its tables of contents name."""
    below = [text for child in children(folder, name) for text in pages(folder, child)]
    return [encoded(source(folder, name)), *below]


def children(folder: Path, name: str) -> list[str]:
    """The pages that a page's tables of contents name."""
    lines = "\n".join(_TOCTREE.findall(source(folder, name))).split("\n")
    entries = [line.strip() for line in lines if line.strip() and line.strip()[0] != ":"]
    parent = name.rpartition("/")[0]
    return [f"{parent}/{entry.removesuffix('.rst')}" for entry in entries]


def source(folder: Path, name: str) -> str:
    """The text of a page."""
    path = folder / f"{name}.rst.txt"
    if not path.exists():
        raise SystemExit(f"{path} is missing: give the folder _sources of Debian's python3.11-doc")
    return path.read_text(encoding="utf-8")


def encoded(text: str) -> Text:
    """Places in LETTERS."""
    places = np.full(256, 255, dtype=np.uint8)
    places[np.frombuffer(LETTERS.encode(), dtype=np.uint8)] = np.arange(len(LETTERS))
    found = places[np.frombuffer(text.encode("ascii", "ignore"), dtype=np.uint8)]
    return found[found < len(LETTERS)]
