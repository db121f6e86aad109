"""Files of version 1 stay readable and decode to the same sum."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import h5py
import pytest
from played import ROOT, attributes, contents, datasets

from topk_secagg.review.audit import audit
from topk_secagg.rounds.decode import decode
from topk_secagg.rounds.eliminate import eliminate
from topk_secagg.rounds.inspect import inspect
from topk_secagg.storage.workspace import Workspace

ARCHIVE = ROOT / "fixtures" / "archive" / "v1"
spec = importlib.util.spec_from_file_location("make_archive", ARCHIVE.parent / "make.py")
make = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make)


@pytest.fixture
def keys(tmp_path):
    """The keys of the sealed round, as private as they must be."""
    folder = tmp_path / "keys"
    folder.mkdir()
    for path in [*ARCHIVE.glob("*.identity"), ARCHIVE / "recipients.txt"]:
        shutil.copy(path, folder)
        (folder / path.name).chmod(0o600)
    return folder


@pytest.fixture(params=make.ROUNDS)
def space(request, tmp_path):
    return Workspace(copied(request.param, tmp_path))


def copied(name: str, folder: Path) -> Path:
    """A round of the archive, with the earlier one of its series beside it."""
    root = folder / name
    shutil.copytree(ARCHIVE / name, root)
    for path in [*root.glob("secrets/**"), *root.glob("shares/*/**"), *root.glob("s*/**/*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)  # which git does not keep
    if make.ROUNDS[name].after:
        copied(make.ROUNDS[name].after, folder)
    return root


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
    assert {path.name for path in ARCHIVE.iterdir() if path.is_dir()} == set(make.ROUNDS)
    assert sum(path.stat().st_size for path in ARCHIVE.rglob("*") if path.is_file()) < 550_000


def test_every_file_is_intact(space):
    files = [
        p
        for p in space.root.rglob("*")
        if p.suffix in (".h5", ".json") and p.name != "expected.json"
    ]
    kinds = {inspect(path).kind for path in files if inspect(path).intact}
    assert all(inspect(path).intact for path in files)
    sealed = bool(space.session.recipients)
    assert kinds >= {
        "session",
        "secret",
        "ledger",
        "masked",
        "survivors",
        "elimination",
        "aggregate",
    }
    if space.session.series is not None:
        assert "held" in kinds
        return
    assert kinds >= ({"confirmation"} if sealed else {"share"})
    assert sealed or len(list(space.root.rglob("from-*.h5"))) == 16
    assert ("dealt" in kinds) == (space.session.family is not None)


def test_every_value_is_as_recorded(space):
    assert make.values(space) == json.loads((space.root / "expected.json").read_text())


def test_steps_that_are_repeated_change_nothing(space, keys):
    before = files_of(space.root)
    make.play(space, keys, make.ROUNDS[space.root.name])
    assert files_of(space.root) == before


def test_the_same_round_made_again_has_the_same_files(space, keys, tmp_path, monkeypatch):
    """Of a sealed one all but the shares, which age encrypts differently every time.

    The family of keys is that of the archive: a later version may search otherwise, and find
    another one that is as good.
    """
    family = space.session.family
    monkeypatch.setattr(make.init, "find_family", lambda *_: family)
    made = make.ROUNDS[space.root.name]
    (tmp_path / "made").mkdir()
    if made.after:
        shutil.copytree(tmp_path / made.after, tmp_path / "made" / made.after)
    again = make.start(tmp_path / "made" / space.root.name, keys, made)
    make.play(again, keys, made)
    for name, later in make.ROUNDS.items():  # which the ledgers note
        if later.after == space.root.name:
            make.play(make.start(again.root.with_name(name), keys, later), keys, later)
    before, after = files_of(space.root), files_of(again.root)
    before.pop("expected.json")
    assert set(after) == set(before)
    assert [
        name for name in after if after[name] != before[name] and not name.endswith(".age")
    ] == []


def test_a_late_answer_agrees(space, keys):
    made = make.ROUNDS[space.root.name]
    late = [user for user in made.masking if user not in (made.fallback or made.answering)]
    for user in late:
        eliminate(space, user, fallback=bool(made.fallback), **make.access(space, keys, user))
    before = make.values(space)["aggregate"]
    report = decode(space)
    assert report.answering == list(made.masking)
    assert report.corrected == []
    after = make.values(space)["aggregate"]
    assert (after["index"], after["value"]) == (before["index"], before["value"])


def test_the_audit_finds_no_fault(space, keys):
    identities = sorted(keys.glob("*.identity")) if space.session.recipients else []
    assert [finding for finding in audit(space, identities) if finding.verdict == "fail"] == []
