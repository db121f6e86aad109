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
