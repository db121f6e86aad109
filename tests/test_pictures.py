"""The pictures of the documents on a phone and on a desk: no text covers another, none is cut."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest
from browser import WIDTHS, measured
from played import must

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


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """The texts of the picture that `plan` draws, as boxes in pixels, and the picture's width."""
    figure = pytest.importorskip("matplotlib.figure")
    kept = []
    save = figure.Figure.savefig

    def keep(own, *args, **how):
        save(own, *args, **how)
        kept.append(own)

    monkeypatch.setattr(figure.Figure, "savefig", keep)

    def draw(*sizes):
        like = ROOT / "fixtures" / "gradients" / "user-01.pt"
        must("plan", "--users", 10, "--survivors", 7, "--colluders", 3, "--like", like, *sizes,
             "--plot", tmp_path / "plan.png")  # fmt: skip
        return texts_of(kept[-1])

    return draw


def texts_of(figure):
    """What can be read in a figure: each text with its box, and the size of its letters."""
    figure.draw_without_rendering()  # in its own resolution
    (axes,) = figure.axes
    (legend,) = figure.legends
    ticks = [
        label
        for axis in (axes.xaxis, axes.yaxis)
        for label, at in zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True)
        if min(axis.get_view_interval()) <= at <= max(axis.get_view_interval())
    ]
    labels = [axes.xaxis.label, axes.yaxis.label]
    texts = [t for t in (*axes.texts, *legend.get_texts(), *ticks, *labels) if t.get_text()]
    return {text: text.get_window_extent().extents / figure.bbox.width for text in texts}


def overlapping(texts):
    """The texts of which one covers another."""
    return [
        (a.get_text(), b.get_text())
        for (a, (left, low, right, high)), (b, (west, south, east, north)) in combinations(
            texts.items(), 2
        )
        if min(right, east) > max(left, west) and min(high, north) > max(low, south)
    ]


SIZES = {
    "both": ("--density", "0.001,0.01,0.1", "--rank", "1,2,4"),
    "one": ("--density", "0.01"),
    "ranks": ("--rank", "1,2,3,4,8"),
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_the_picture_of_plan_can_be_read(drawn, sizes):
    """At 640 pixels too, where its letters are a sixtieth of its width."""
    texts = drawn(*sizes)
    assert overlapping(texts) == []
    for text, (left, low, right, high) in texts.items():
        assert 0 <= left < right <= 1, text
        assert 0 <= low < high <= 1, text
        assert text.get_fontsize() / (8 * 72) * 640 >= 10, text


def test_texts_that_cover_each_other_in_a_plot_are_noticed(drawn):
    """The twin."""
    texts = drawn(*SIZES["one"])
    first, second, *_ = texts
    assert overlapping(texts | {second: texts[first]}) == [(first.get_text(), second.get_text())]


def test_texts_that_cover_each_other_are_noticed(looks):
    """The twin."""
    kinds = [text.split(":")[0] for text in looks["broken", 390]["bad"]]
    assert "over" in kinds
    assert "cut" in kinds
