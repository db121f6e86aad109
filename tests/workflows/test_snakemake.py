"""The round as a workflow, on the cores of this machine: who fails or hangs drops out, and the
round goes on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from played import ROOT, SCRIPT, Recipe, Round

import topk_secagg as ts

WORKFLOWS = ROOT / "workflows"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
SNAKEMAKE = shutil.which("snakemake", path=PATH)
# a program that hangs when user 4 masks, and else does what it should
HANGS = f"""#!/bin/sh
case "$*" in "mask "*"--user 04 "*) exec sleep 600 ;; esac
exec {SCRIPT} "$@"
"""


def test_every_profile_names_its_executor_or_cores():
    found = {
        path.parent.name: path.read_text() for path in WORKFLOWS.glob("profiles/*/config.yaml")
    }
    assert set(found) == {"local", "slurm", "kubernetes"}
    assert "cores: all" in found["local"]
    assert all(f"executor: {name}" in found[name] for name in ("slurm", "kubernetes"))


@pytest.mark.skipif(
    SNAKEMAKE is None, reason="snakemake is not installed: pip install '.[workflows]'"
)
class TestWorkflow:
    @pytest.fixture
    def r(self, tmp_path):
        r = Round(
            Recipe("workflow", masking=(1, 2, 5), answering=(1, 2, 5)), tmp_path / "round", tmp_path
        ).prepare()
        np.save(r.gradient(3), np.full(4, np.nan))
        (tmp_path / "program").write_text(HANGS)
        (tmp_path / "program").chmod(0o755)
        return r

    def run(
        self, r: Round, *more: str, init: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        recipe = r.recipe
        if init is None:
            init = f"--clip {recipe.clip!r} --construction {recipe.construction}"
        config = [
            f"round={r.folder}", f"gradients={r.inputs}/gradients/user-{{user}}.npy", "users=5",
            "colluders=1",
            "top_k=2", f"init='{init}'", "seconds=15", f"program={r.inputs}/program",
            f"output={r.inputs}/sum.npy", *more,
        ]  # fmt: skip
        command = [
            str(SNAKEMAKE),
            "--snakefile",
            WORKFLOWS / "Snakefile",
            "--profile",
            WORKFLOWS / "profiles/local",
        ]
        return subprocess.run(
            [*map(str, command), "--cores", "2", "--config", *config],
            cwd=r.inputs, env=os.environ | {"PATH": PATH}, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip

    def test_a_failing_and_a_hanging_user_drop_out(self, r):
        end = self.run(r, "survivors=3")
        assert end.returncode == 0, end.stderr
        r.check_sum(survivors=(1, 2, 5), answering=(1, 2, 5))
        assert (r.inputs / "sum.npy").exists()
        jobs = r.folder.with_name("round.jobs")
        became = [(jobs / f"mask-{n:02}").read_text().split() for n in r.recipe.everybody]
        assert became == [["done"], ["done"], ["dropped", "65"], ["dropped", "124"], ["done"]]
        assert "NaN" in (jobs / "mask-03.log").read_text()
        again = self.run(r, "survivors=3")
        assert again.returncode == 0
        assert "Nothing to be done" in again.stderr

    def test_too_few_users_end_the_workflow(self, r):
        for n in (2, 4):
            np.save(r.gradient(n), np.full(4, np.inf))
        (r.inputs / "program").write_text(f'#!/bin/sh\nexec {SCRIPT} "$@"\n')
        end = self.run(r, "survivors=3")
        assert end.returncode != 0
        assert "2 users have masked soundly, and 3 must survive" in end.stderr
        assert not (r.inputs / "sum.npy").exists()

    def test_a_second_round_goes_on_with_the_keys_of_the_first(self, tmp_path):
        everybody = (1, 2, 3, 4, 5)
        recipe = Recipe("series", construction="sketch", top_k=4, masking=everybody)
        r = Round(recipe, tmp_path / "round", tmp_path).prepare()
        (tmp_path / "program").write_text(f'#!/bin/sh\nexec {SCRIPT} "$@"\n')
        (tmp_path / "program").chmod(0o755)
        plain = sum(np.load(r.gradient(n)) for n in everybody)
        first = self.run(r, "survivors=3", "top_k=4")
        assert first.returncode == 0, first.stderr
        later = r.elsewhere(tmp_path / "later")
        more = (f"from={r.folder}", f"output={tmp_path}/later.npy")
        second = self.run(later, *more, init="")
        assert second.returncode == 0, second.stderr
        for name in ("sum", "later"):
            assert np.array_equal(np.load(tmp_path / f"{name}.npy"), plain)
        assert not (later.folder / "shares").exists()

    @pytest.fixture
    def rounds(self, tmp_path):
        """Three rounds' gradients in folders, and a program that runs."""
        everybody = (1, 2, 3, 4, 5)
        recipe = Recipe("rounds", construction="sketch", top_k=4, masking=everybody)
        r = Round(recipe, tmp_path / "round", tmp_path).prepare()
        for i in (1, 2, 3):
            folder = tmp_path / "gradients" / str(i)
            folder.mkdir()
            for n in everybody:
                np.save(folder / f"user-{n:02}.npy", i * np.load(r.gradient(n)))
        (tmp_path / "program").write_text(f'#!/bin/sh\nexec {SCRIPT} "$@"\n')
        (tmp_path / "program").chmod(0o755)
        return r

    @pytest.mark.parametrize("series", [True, False], ids=["series", "independent"])
    def test_several_rounds_are_a_series_or_independent(self, rounds, series):
        inputs = rounds.inputs
        end = self.run(
            rounds,
            *("survivors=3", "top_k=4", "rounds=3", f"series={'yes' if series else 'no'}"),
            f"gradients={inputs}/gradients/{{round}}/user-{{user}}.npy",
            "output={round}.sum.npy",
            init=f"--clip {3 * rounds.recipe.clip!r} --construction sketch",
        )
        assert end.returncode == 0, end.stderr
        folders = [inputs / f"round-{i}" for i in (1, 2, 3)]
        plain = sum(np.load(rounds.gradient(n)) for n in rounds.recipe.everybody)
        for i, folder in enumerate(folders, start=1):
            found = np.load(inputs / f"{folder.name}.sum.npy")
            assert found == pytest.approx(i * plain, rel=1e-4)
        rows = ts.log(folders).rows
        assert [row.generation for row in rows] == ([0, 1, 2] if series else [0, 0, 0])
        assert len({row.series for row in rows}) == (1 if series else 3)

    @pytest.mark.parametrize("missing", ["users", "survivors", "colluders"])
    def test_a_missing_setting_is_named(self, tmp_path, missing):
        given = [f"{k}=3" for k in ("users", "survivors", "colluders") if k != missing]
        end = subprocess.run(
            [str(SNAKEMAKE), "--snakefile", str(WORKFLOWS / "Snakefile"), "-n", "--config", *given],
            cwd=tmp_path, env=os.environ | {"PATH": PATH}, capture_output=True, text=True,
            timeout=100, check=False,
        )  # fmt: skip
        assert end.returncode != 0
        said = end.stdout + end.stderr
        assert f"--config {missing}=... is missing" in said
        assert "KeyError" not in said
