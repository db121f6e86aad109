"""docs/recipe.py, which shares no code with the library, finds the sums that the library finds."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from played import rewrite

import topk_secagg as ts

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "docs" / "recipe.py"


ARCHIVE = ROOT / "fixtures" / "archive" / "v1"
ARCHIVED = sorted(path.parent.name for path in ARCHIVE.glob("*/session.json"))


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    """A round by keys over real gradients, and the paper's example; both with drop-outs."""
    folder = tmp_path_factory.mktemp("rounds")
    keys = ts.run(
        folder / "keys",
        ROOT / "fixtures" / "gradients",
        survivors=5,
        colluders=3,
        density=0.01,
        construction="sketch",
        drop_masking=[10],
        drop_elimination=[4],
    )
    assert keys.round.session.family
    permutation = ts.run(
        folder / "permutation",
        ROOT / "fixtures" / "example",
        survivors=3,
        colluders=1,
        top_k=2,
        construction="permutation",
        drop_masking=[5],
        drop_elimination=[4],
    )
    return {"keys": keys, "permutation": permutation}


def by_recipe(root, *output, program=RECIPE):
    return subprocess.run(
        [sys.executable, program, root, *output], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", ["keys", "permutation"])
def test_the_recipe_finds_the_sum_of_the_library(rounds, name):
    done = by_recipe(rounds[name].round.root)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{rounds[name].decoded.nonzero} coordinates are not zero")


@pytest.mark.parametrize("name", ["keys", "permutation"])
def test_it_refuses_the_sum_of_other_answers(rounds, name, tmp_path):
    """One symbol of an answer beyond the U that determine the sum is another one."""
    root = shutil.copytree(rounds[name].round.root, tmp_path / "copy")
    path = root / "elimination" / ("user-09.h5" if name == "keys" else "user-03.h5")
    content = bytearray(path.read_bytes())
    with h5py.File(path) as file:
        at = file["y"].id.get_offset()
    content[at] ^= 1
    path.write_bytes(content)
    assert "is damaged" in by_recipe(root).stderr
    without_digests = re.sub(r"    assert content.hexdigest.*\n", "", RECIPE.read_text())
    program = tmp_path / "program.py"
    program.write_text(without_digests)
    done = by_recipe(root, program=program)
    assert done.returncode == 1
    expected = "answers disagree" if name == "keys" else "aggregate.h5 has another sum"
    assert expected in done.stderr


def test_it_refuses_an_x_that_was_not_frozen(rounds, tmp_path):
    root = shutil.copytree(rounds["keys"].round.root, tmp_path / "copy")
    shutil.copy(root / "masked" / "user-02.h5", root / "masked" / "user-01.h5")
    assert "another X" in by_recipe(root).stderr


@pytest.mark.parametrize("name", ARCHIVED)
def test_it_finds_the_sum_of_every_archived_round_and_its_tensors(name, tmp_path):
    """Every construction and reduction, bit for bit."""
    done = by_recipe(ARCHIVE / name, tmp_path / "sum.npz")
    assert (done.returncode, done.stderr) == (0, "")
    root = shutil.copytree(ARCHIVE / name, tmp_path / "round")
    ts.decode(root, output=tmp_path / "library.npz")
    recipe, library = (np.load(tmp_path / f"{by}.npz") for by in ("sum", "library"))
    assert set(recipe) == set(library)
    for each in library:
        assert np.array_equal(recipe[each].astype(library[each].dtype), library[each]), each


@pytest.mark.parametrize(
    ("name", "file", "said"),
    [
        ("low-rank-keys-plain", "basis.h5", "another basis"),
        ("low-rank-keys-plain-next", "aggregate.h5", "other reals"),
        ("top-k-and-whole-keys-plain", "aggregate.h5", "other reals"),
    ],
)
def test_it_refuses_another_basis_and_other_reals(name, file, said, tmp_path):
    """Files whose own digest is right."""

    def changed(_, datasets):
        of_file = "value" if file == "basis.h5" else "real"
        datasets[of_file] = datasets[of_file] * 2

    root = shutil.copytree(ARCHIVE / name, tmp_path / "round")
    rewrite(root / file, changed)
    done = by_recipe(root, tmp_path / "sum.npz")
    assert done.returncode == 1
    assert said in done.stderr


def test_it_shares_no_code_with_the_library():
    assert "topk" not in RECIPE.read_text()
