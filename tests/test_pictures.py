"""The pictures of the documents on a phone and on a desk: no text covers another, none is cut."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from browser import WIDTHS, measured

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
LEAST_TEXT = {390: 5.5, 1280: 10}  # pixels, in pictures of the README
PICTURES = sorted(
    {
        (document.parent / target).resolve()
        for document in (
            ROOT / "README.md",
            *ROOT.glob("docs/*.md"),
            *ROOT.glob("experiments/*.md"),
        )
        for target in re.findall(r"!\[[^]]*\]\(([^)\s]+\.svg)\)", document.read_text())
    }
)
# as a page of a forge shows a picture: no wider than the column
AROUND = """<!DOCTYPE html><body style="margin: 0"><style>
svg {{ display: block; max-width: 100%; height: auto }}</style>{picture}</body>"""
OVERLAPPING = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 780 40" font-size="20">
<text x="0" y="15">one</text><text x="10" y="20">another</text>
<text x="770" y="20">cut off</text></svg>"""


def in_page(picture: str) -> str:
    """A picture as it is on a page."""
    return AROUND.format(picture=picture[picture.index("<svg") :])


@pytest.fixture(scope="module")
def looks(tmp_path_factory):
    """What a browser measures, by picture and width."""
    folder = tmp_path_factory.mktemp("pictures")
    shown = {}
    for n, picture in enumerate(PICTURES):
        page = folder / f"{n}.html"
        page.write_text(in_page(picture.read_text()))
        shown |= {(picture, width): (page, width) for width in WIDTHS}
    broken = folder / "broken.html"
    broken.write_text(in_page(OVERLAPPING))
    shown["broken", 390] = (broken, 390)
    return measured(shown, folder)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_no_text_covers_another_or_is_cut_off(looks, picture, width):
    look = looks[picture, width]
    assert look["bad"] == []
    assert look["width"] == width
    if str(picture.relative_to(ROOT)) in README:
        assert look["smallest"] >= LEAST_TEXT[width]


def test_texts_that_cover_each_other_are_noticed(looks):
    """The twin."""
    kinds = [text.split(":")[0] for text in looks["broken", 390]["bad"]]
    assert "over" in kinds
    assert "cut" in kinds
