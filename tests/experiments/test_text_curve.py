"""A curve of experiments/text in miniature, and how its texts are dealt out. Needs PyTorch."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs_torch

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path[:0] = [str(EXPERIMENTS), str(EXPERIMENTS / "text")]
import authors  # noqa: E402
import curve  # noqa: E402
import texts  # noqa: E402

CHAPTERS = 12


@pytest.fixture
def sources(tmp_path):
    """Twelve chapters of one page each, and one page with a page below it."""
    folder = tmp_path / "sources"
    (folder / "library").mkdir(parents=True)
    names = "\n".join(f"   chapter{n}.rst" for n in range(CHAPTERS))
    (folder / "library/index.rst.txt").write_text(
        f"Library\n\n.. toctree::\n   :maxdepth: 2\n\n{names}\n\nNot a page.\n"
    )
    for n in range(CHAPTERS):
        (folder / f"library/chapter{n}.rst.txt").write_text(f"chapter {n}. " * 200)
    with (folder / "library/chapter3.rst.txt").open("a") as stream:
        stream.write("\n\n.. toctree::\n\n   below.rst\n")
    (folder / "library/below.rst.txt").write_text("Below: a ↦ b\n" * 200)
    return folder


def text_of(places):
    """The letters again."""
    return "".join(texts.LETTERS[place] for place in places)


def test_every_chapter_has_one_user_and_the_end_of_every_page_is_held_out(sources):
    owned = texts.users(sources, 4)
    dealt = [name for own in owned for name in own.chapters]
    assert dealt == [f"library/chapter{n}" for n in range(CHAPTERS)]
    (own,) = (own for own in owned if "library/chapter3" in own.chapters)
    assert "Below: a  b\n" in text_of(own.training)  # the arrow is no letter of ours
    assert "Below: a  b\n" in text_of(own.tested)
    whole = sum(len(own.training) + len(own.tested) for own in owned)
    assert sum(len(own.tested) for own in owned) == pytest.approx(whole / 10, rel=0.01)


def test_a_folder_without_the_texts_is_named(tmp_path):
    with pytest.raises(SystemExit, match="python3"):
        texts.users(tmp_path, 10)


def test_an_interrupted_curve_gives_the_rows_of_one_that_was_not(sources, tmp_path):
    torch.set_num_threads(1)
    owned = texts.users(sources, 4)
    settings = curve.Settings(
        task="text",
        method="plain",
        density=0.01,
        scale=1.0,
        drop=0.3,
        rounds=3,
        seed=0,
        steps=1,
        users=4,
    )

    def start(work):
        task = authors.Chapters(owned, seed=0)
        return curve.Curve(settings, task, work, "curve")

    whole = start(tmp_path / "whole").run(3)
    start(tmp_path / "parts").run(2)
    resumed = start(tmp_path / "parts")
    resumed.run(3, tmp_path)
    found = list(csv.DictReader((tmp_path / f"{settings.name}.csv").read_text().splitlines()))
    losses = [float(row["test_loss"]) for row in found]
    assert losses == [row["test_loss"] for row in whole]
    assert losses[-1] < np.log(len(texts.LETTERS))
    assert settings.name == "text-drop30-plain-1steps-4users-3rounds"
