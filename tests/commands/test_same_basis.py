"""Everybody projects on the same basis: who can compute another one refuses, before anything
leaves.

What a damaged or exchanged basis.h5 does is in tests/storage/test_basis.py.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from played import call, document, must, put, rewrite

from topk_secagg.algebra.bases import digest
from topk_secagg.gradients.quantise import dequantise
from topk_secagg.rounds import bases as of_bases
from topk_secagg.storage import basis as basis_file
from topk_secagg.storage.workspace import Workspace

USERS = range(1, 5)
SIZE = 6  # of a square matrix: both sides have symbols of the same number
OPTIONS = ("--users", 4, "--survivors", 3, "--colluders", 1, "--rank", 1, "--clip", 20)
DIFFERS = "the basis of this session is not the one that follows from the last sum"


@dataclass(frozen=True)
class Series:
    """A folder with a first round that was played, and a second one that was started."""

    root: Path

    def __truediv__(self, name):
        return self.root / name

    def masking(self, n, name="second"):
        return "mask", self / name, "--user", n, "--gradient", self / f"g{n}.npz"

    def start(self, name, *options):
        must("init", self / name, *options)

    def offline(self, name, *follows):
        for n in USERS:
            must("offline", self / name, "--user", n, *follows)

    def finish(self, name):
        for n in USERS:
            must(*self.masking(n, name))
        must("freeze", self / name)
        for n in USERS:
            must("eliminate", self / name, "--user", n)
        must("decode", self / name)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    series = Series(tmp_path_factory.mktemp("series"))
    rng = np.random.default_rng(0)
    for n in USERS:
        np.savez(series / f"g{n}.npz", w=rng.normal(size=(SIZE, SIZE)))
    series.start("first", *OPTIONS, "--like", series / "g1.npz")
    series.offline("first")
    series.finish("first")
    return series


@pytest.fixture
def series(played, tmp_path):
    """The first round alone."""
    return Series(shutil.copytree(played.root, tmp_path / "series"))


def forge(folder, bases):
    """Whoever starts a round writes what it likes, and all digests are right."""
    put(folder / "session.json", digest(bases), "basis")
    (folder / "basis.h5").unlink()
    basis_file.write(Workspace(folder), bases)


def pushed():
    """It looks at the first row alone."""
    basis = np.zeros((SIZE, 1), np.int32)
    basis[0] = 1 << 20
    return [basis]


def turned(folder):
    """The right basis with one entry moved by 2^-20."""
    (basis,) = basis_file.read(Workspace(folder))
    basis[0] += 1
    return [basis]


def start_second(series, how):
    """A second round on another basis than the one that follows."""
    second = series / "second"
    series.start("second", "--from", series / "first")
    if how == "pushed":
        forge(second, pushed())
    elif how == "one entry moved":
        forge(second, turned(second))
    elif how == "that of the last round, on its side":
        assert document(second / "session.json")["side"] == "left"
        put(second / "session.json", "right", "side")
        forge(second, basis_file.read(Workspace(series / "first")))
    elif how == "drawn anew":
        put(second / "session.json", None, "before")
        forge(second, pushed())
    else:
        raise ValueError(how)
    series.offline("second", "--from", series / "first")


FORGED = ["pushed", "one entry moved", "that of the last round, on its side", "drawn anew"]


@pytest.mark.rule(14)
@pytest.mark.parametrize("how", FORGED)
def test_whoever_has_the_last_sum_takes_no_other_basis(series, refuses, how):
    start_second(series, how)
    for n in USERS:
        refuses(65, *series.masking(n), says=DIFFERS)
    audited = call("audit", series / "second")
    assert audited.code == 65
    assert "it is not the one that follows from the last sum" in audited.out


@pytest.mark.rule(14)
def test_the_twin_that_does_not_compare_projects_on_what_somebody_chose(series, monkeypatch):
    """One row of every gradient, and so of the sum, is all that is sent."""
    start_second(series, "pushed")
    monkeypatch.setattr(of_bases, "_known", lambda *_: None)
    series.finish("second")
    must("decode", series / "second", "--output", series / "sum.npz")
    total = np.load(series / "sum.npz")["w"]
    given = sum(np.load(series / f"g{n}.npz")["w"] for n in USERS)
    assert np.allclose(total[0], given[0], atol=0.1)
    assert not np.any(total[1:])


@pytest.mark.rule(14)
def test_who_cannot_compare_stays_alone(series, refuses):
    """A user without the last sum believes the session; the others do not, and there is no sum."""
    start_second(series, "pushed")
    for n in (1, 2, 3):
        refuses(65, *series.masking(n), says=DIFFERS)
    kept = (series / "first" / "aggregate.h5").rename(series / "kept.h5")
    must(*series.masking(4))
    kept.rename(series / "first" / "aggregate.h5")
    refuses(69, "freeze", series / "second", says="1")


@pytest.mark.rule(14)
def test_who_has_another_sum_refuses(series, refuses):
    """A copy of the last sum that is sound, and not the others'."""
    series.start("second", "--from", series / "first")
    series.offline("second", "--from", series / "first")
    must(*series.masking(1))

    session = Workspace(series / "first").session

    def other(_, arrays):
        value = arrays["value"][::-1].copy()
        real = dequantise(session.fixed_point, np.arange(SIZE), value.astype(np.uint32))
        arrays.update(value=value, real=real)

    rewrite(series / "first" / "aggregate.h5", other)
    refuses(65, *series.masking(2), says=DIFFERS)


@pytest.mark.rule(14)
def test_a_first_basis_is_that_of_the_nonce(series, refuses):
    series.start("other", *OPTIONS, "--like", series / "g1.npz")
    forge(series / "other", pushed())
    series.offline("other")
    refuses(65, *series.masking(1, "other"), says="the basis of this session is not")


def test_the_round_that_nobody_forged_goes_on(series):
    series.start("second", "--from", series / "first")
    series.offline("second", "--from", series / "first")
    series.finish("second")
    assert "nothing failed" in must("audit", series / "second").out
