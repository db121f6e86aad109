"""Files of version 1 stay readable and decode to the same sum."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import h5py
import pytest
from played import ROOT, attributes, audited, contents, datasets

from topk_secagg.errors import Refused
from topk_secagg.rounds import init
from topk_secagg.rounds.decode import decode
from topk_secagg.rounds.eliminate import eliminate
from topk_secagg.rounds.inspect import inspect
from topk_secagg.storage.documents import DOCUMENT_KINDS
from topk_secagg.storage.kinds import ARTIFACT_KINDS

SUM = ("index", "value", "real")
ARCHIVE = ROOT / "fixtures" / "archive" / "v1"
spec = importlib.util.spec_from_file_location("make_archive", ARCHIVE.parent / "make.py")
make = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make)


@pytest.fixture
def archive(tmp_path):
    """A copy, as private as it must be, which git does not keep."""
    root = tmp_path / "v1"
    shutil.copytree(ARCHIVE, root)
    for path in root.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return root


@pytest.fixture(params=make.ROUNDS)
def space(request, archive):
    return make.opened_round(archive, request.param)


@pytest.fixture(params=[name for name in make.ROUNDS if not make.has_later(name)])
def last(request, archive):
    """A round from which no user has gone on to another one."""
    return make.opened_round(archive, request.param)


# HDF5 2 writes a few bytes of its metadata otherwise than HDF5 1.14, and the archive is of HDF5 2
WRITES_AS_THE_ARCHIVE = h5py.version.hdf5_version_tuple[0] == 2


def files_of(folder: Path) -> dict[str, object]:
    """What every file holds: its bytes, or, if HDF5 may have written the same otherwise, its
    content."""
    found: dict[str, object] = {name: content for name, (content, _) in contents(folder).items()}
    if not WRITES_AS_THE_ARCHIVE:
        for path in folder.rglob("*.h5"):
            values = {name: array.tolist() for name, array in datasets(path).items()}
            found[path.relative_to(folder).as_posix()] = (attributes(path), values)
    return found


def test_all_rounds_are_there_and_they_are_small():
    folders = {path.name for path in ARCHIVE.iterdir() if path.is_dir()}
    assert folders == {*make.ROUNDS, make.homes(ARCHIVE).name}
    assert sum(path.stat().st_size for path in ARCHIVE.rglob("*") if path.is_file()) < 1_500_000


def test_every_kind_of_file_is_there_and_intact(archive):
    files = [
        path
        for path in archive.rglob("*")
        if path.suffix in (".h5", ".json") and path.name not in ("expected.json", "folder.json")
    ]
    reports = [inspect(path) for path in files]
    assert [report.path for report in reports if not report.intact] == []
    assert {report.kind for report in reports} == {
        *(kind.name for kind in ARTIFACT_KINDS),
        *DOCUMENT_KINDS,
    } - {"folder"}


def test_a_round_has_the_files_of_its_dealing_and_trust(space):
    made = make.ROUNDS[space.root.name]
    by_keys = space.session.family is not None
    shares = list(space.root.glob("shares/*/*"))
    assert len(shares) == (0 if made.after and by_keys else 16)
    assert {path.suffix for path in shares} <= {".h5" if made.trust == make.PLAIN else ".age"}
    assert len(list(space.root.glob("dealt/*"))) == (4 if by_keys and not made.after else 0)
    assert len(list(space.root.glob("confirmed/*"))) == (4 if made.trust == make.CONFIRMED else 0)


def test_every_value_is_as_recorded(space):
    assert make.values(space) == json.loads((space.root / "expected.json").read_text())


def test_steps_that_are_repeated_change_nothing(space, archive):
    before = files_of(archive)
    make.play(space)
    assert files_of(archive) == before


def test_who_went_on_to_the_next_round_answers_no_earlier_one(archive):
    """The keys of the second round are there, and those of the first are not."""
    first = make.opened_round(archive, "sketch-keys-confirmed")
    with pytest.raises(Refused, match="user 4 has gone on to generation 1"):
        eliminate(first, 4, **make.access(first))


def test_the_archive_made_again_has_the_same_files(tmp_path, monkeypatch):
    """All but the sealed shares, which age encrypts differently every time.

    The family of keys is that of the archive: a later version may search otherwise, and find
    another one that is as good.
    """
    family = make.opened_round(ARCHIVE, "sketch-keys-plain").session.family
    monkeypatch.setattr(init, "find_family", lambda *_: family)
    make.main(tmp_path / "again")
    before, after = files_of(ARCHIVE), files_of(tmp_path / "again")
    assert set(after) == set(before)
    differing = [name for name in after if after[name] != before[name]]
    assert [name for name in differing if not name.endswith(".age")] == []


def test_a_late_answer_agrees(last):
    made = make.ROUNDS[last.root.name]
    before = make.values(last)["files"]["aggregate.h5"]
    for user in set(made.masking) - set(make.ANSWERING):
        eliminate(last, user, **make.access(last))
    report = decode(last, secrets=last.secrets)
    assert report.answering == list(made.masking)
    assert report.corrected == []
    after = make.values(last)["files"]["aggregate.h5"]
    assert [after.get(name) for name in SUM] == [before.get(name) for name in SUM]


def test_the_audit_finds_no_fault(space, archive):
    identities = sorted(archive.glob("secrets/*.identity")) if space.session.recipients else []
    findings = audited(space, identities)
    assert [finding for finding in findings if finding.verdict == "fail"] == []
    assert len(findings) > 10
