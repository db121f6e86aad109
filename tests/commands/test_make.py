"""A plain Makefile over a round: it runs what depends on a changed file, and then nothing."""

import os
import re
import shutil
import subprocess

import numpy as np
import pytest
from played import ROOT, SCRIPT, must

from topk_secagg.storage import atomic

LONG_AGO = 1_000_000_000  # seconds since 1970
MAKEFILE = """
USERS := 01 02
SHARES := $(USERS:%=round/shares/user-02/from-%.h5)
sum.npy: $(USERS:%=round/elimination/user-%.h5)
	$(TOPK) decode round --output $@
round/session.json: like.npy
	$(TOPK) init round --users 2 --survivors 2 --colluders 1 --top-k 2 --like like.npy --clip 2000
round/shares/user-02/from-%.h5: round/session.json
	$(TOPK) offline round --user $*
round/masked/user-%.h5: gradients/user-%.npy $(SHARES)
	$(TOPK) mask round --user $* --gradient $<
round/survivors.json: $(USERS:%=round/masked/user-%.h5)
	$(TOPK) freeze round
round/elimination/user-%.h5: round/survivors.json
	$(TOPK) eliminate round --user $*
.SECONDARY:
"""


SERIES = """
SKETCH := --construction sketch --clip 2000
sum-2.npy: sum-1.npy
sum-%.npy: round-%/elimination/user-03.h5
	$(TOPK) decode round-$* --output $@
round-1/session.json:
	$(TOPK) init round-1 --users 3 --survivors 2 --colluders 1 --top-k 4 --length 4 $(SKETCH)
round-2/session.json: sum-1.npy
	$(TOPK) init round-2 --from round-1
round-1/secrets/user-03.h5: round-1/session.json
	$(TOPK) offline round-1 --user all
round-2/secrets/user-03.h5: round-2/session.json
	$(TOPK) offline round-2 --user all --from round-1
%/masked/user-03.h5: %/secrets/user-03.h5
	$(TOPK) mask $* --user all --gradients gradients
%/survivors.json: %/masked/user-03.h5
	$(TOPK) freeze $*
%/elimination/user-03.h5: %/survivors.json
	$(TOPK) eliminate $* --user all
.SECONDARY:
"""


def outdated(path):
    os.utime(path, (LONG_AGO, LONG_AGO))


def is_new(path):
    return path.stat().st_mtime > LONG_AGO


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_runs_what_depends_on_a_changed_file_and_then_nothing(new_round):
    r = new_round(users=2, survivors=2)
    folder = r.inputs
    shutil.copy(r.gradient(1), folder / "like.npy")
    (folder / "Makefile").write_text(MAKEFILE)

    def steps():
        """The steps that Make runs, each with its user."""
        end = subprocess.run(
            ["make", f"TOPK={SCRIPT}"], cwd=folder, capture_output=True, text=True, check=False
        )
        assert end.returncode == 0, end.stderr
        return re.findall(
            rf"^{re.escape(str(SCRIPT))} (\w+) round(?: --user 0(\d))?", end.stdout, re.M
        )

    def of_all(*names):
        return [(name, n) for name in names for n in "12"]

    last = [("freeze", ""), *of_all("eliminate"), ("decode", "")]
    assert sorted(steps()) == sorted([("init", ""), *of_all("offline", "mask"), *last])
    assert steps() == []
    os.utime(r.gradient(2))
    assert sorted(steps()) == sorted([("mask", "2"), *last])
    os.utime(folder / "like.npy")
    assert sorted(steps()) == sorted([("init", ""), *of_all("offline", "mask"), *last])
    assert steps() == []


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_help_lists_every_target_in_two_columns():
    said = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    lines = {line.split()[0]: line for line in said}
    assert {"demo", "test-oldest", "test-newest", "test-workflows", "lint-workflows"} <= set(lines)
    assert {len(re.match(r"\S+ +", line)[0]) for line in lines.values()} == {17}


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("ready", [".ready", ".ready-dev"])
def test_make_removes_what_an_install_before_compiled_which_would_hide_the_source(tmp_path, ready):
    """pip leaves files that it did not install, and Python takes a folder for a package."""
    environment = tmp_path / "environment"
    left_over = environment / "lib/python3.11/site-packages/topk_secagg"
    (left_over / "algebra/__pycache__").mkdir(parents=True)
    (environment / "bin").mkdir()
    for name in ("pip", "python"):
        (environment / "bin" / name).symlink_to(shutil.which("true"))
    subprocess.run(
        ["make", f"VENV={environment}", environment / ready],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    assert (environment / ready).exists()
    assert left_over.parent.exists()
    assert not left_over.exists()


def test_make_runs_a_series_of_two_rounds_and_then_nothing(new_round):
    r = new_round(users=3, survivors=2)
    folder = r.inputs
    (folder / "Makefile").write_text(SERIES)
    make = ["make", f"TOPK={SCRIPT}"]
    end = subprocess.run(make, cwd=folder, capture_output=True, text=True, check=False)
    assert end.returncode == 0, end.stderr
    plain = sum(np.load(r.gradient(n)) for n in (1, 2, 3))
    for generation in (1, 2):
        found = np.load(folder / f"sum-{generation}.npy")
        assert np.allclose(found, plain, atol=1e-4)  # three steps of the quantiser are less
    assert not (folder / "round-2/shares").exists()
    again = subprocess.run(make, cwd=folder, capture_output=True, text=True, check=False)
    assert "is up to date" in again.stdout


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
def test_a_step_that_finds_its_file_as_it_should_be_gives_it_a_new_time(round_at, sealed):
    r = round_at("decoded", sealed=sealed)
    suffix = "h5.age" if sealed else "h5"
    made = {
        r.init(): "session.json",
        r.offline(2): f"shares/user-05/from-02.{suffix}",
        r.mask(2): "masked/user-02.h5",
        r.freeze(): "survivors.json",
        r.eliminate(2): "elimination/user-02.h5",
        r.decode(): "aggregate.h5",
    }
    for command, name in made.items():
        path = r.folder / name
        before = path.read_bytes()
        outdated(path)
        must(*command)
        assert (name, is_new(path), path.read_bytes() == before) == (name, True, True)


def test_a_mask_whose_residual_is_committed_and_a_settled_residual_get_a_new_time(round_at):
    r = round_at("decoded", residual=True)
    r.prepare_folder()
    x = r.folder / "masked/user-02.h5"
    outdated(x)
    must(*r.mask(2))
    assert is_new(x)


def test_a_file_of_another_account_a_link_and_a_missing_one_stay_as_they_are(tmp_path, monkeypatch):
    own, missing, link = (tmp_path / name for name in ("own", "missing", "link"))
    own.write_text("")
    link.symlink_to(own)
    outdated(own)
    atomic.mark_done(missing, link)
    assert (missing.exists(), is_new(own)) == (False, False)
    account = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: account + 1)
    atomic.mark_done(own)
    assert not is_new(own)
    monkeypatch.setattr(os, "geteuid", lambda: account)
    atomic.mark_done(own)
    assert is_new(own)
