"""The example of experiments/digits: three ways to drive the same federated training, by commands
and files only."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DIGITS = Path(__file__).parents[2] / "experiments" / "digits"
ROUNDS = 2


def test_without_scikit_learn_there_is_a_sentence_and_no_folder(tmp_path):
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").write_text("raise ModuleNotFoundError('sklearn')")
    end = subprocess.run(
        [sys.executable, DIGITS / "model.py", "start", tmp_path / "work"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert end.returncode == 1
    assert end.stderr == (
        "the digits come from scikit-learn, which is not installed: pip install scikit-learn\n"
    )
    assert not (tmp_path / "work").exists()


def test_all_three_ways_train_a_model_and_agree(tmp_path):
    pytest.importorskip("sklearn")
    ways = {
        "python": [sys.executable, DIGITS / "loop.py", tmp_path / "python", str(ROUNDS)],
        "shell": ["sh", DIGITS / "loop.sh", tmp_path / "shell", str(ROUNDS)],
        "make": [
            "make",
            "-s",
            "-f",
            DIGITS / "Makefile",
            f"WORK={tmp_path / 'make'}",
            f"ROUNDS={ROUNDS}",
        ],
    }
    bin_folder = Path(sys.executable).parent
    environment = os.environ | {
        "PYTHON": sys.executable,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
    }
    running = {
        way: subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for way, command in ways.items()
    }
    printed = {way: process.communicate() for way, process in running.items()}
    accuracies = {}
    for way, (out, errors) in printed.items():
        assert (running[way].returncode, errors) == (0, ""), way
        accuracies[way] = [
            float(share) for share in re.findall(r"([\d.]+)% of the test images", out)
        ]
        assert len(accuracies[way]) == 1 + ROUNDS
        assert accuracies[way][-1] > accuracies[way][0] + 40
        last = tmp_path / way / str(ROUNDS) / "round" / "secrets"
        assert sorted(path.name for path in last.glob("*.residual.h5")) == [
            f"user-{user:02}.residual.h5" for user in range(1, 11) if user != ROUNDS
        ]
    # only the rounding, a few billionths, differs from one to the other
    assert accuracies["python"] == pytest.approx(accuracies["shell"], abs=1)
    assert accuracies["python"] == pytest.approx(accuracies["make"], abs=1)
