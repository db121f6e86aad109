"""basis.h5: who lacks the sum from which it follows reads it, and takes none but the session's."""

import shutil

import numpy as np
import pytest
from played import ROOT, contents, datasets, flip, must, rewrite

from topk_secagg.algebra import bases
from topk_secagg.errors import BadData
from topk_secagg.storage import basis
from topk_secagg.storage.workspace import Workspace

ARCHIVE = ROOT / "fixtures" / "archive" / "v1"
FIRST = "low-rank-keys-plain"
NEXT = f"{FIRST}-next"
ABSENT = 4  # who has not masked in the archived rounds


@pytest.fixture
def rounds(tmp_path):
    """The archived series, whose files are as private as they must be."""
    for name in (FIRST, NEXT):
        shutil.copytree(ARCHIVE / name, tmp_path / name)
    for path in tmp_path.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return tmp_path


@pytest.fixture
def latest(rounds):
    """The second round before it was frozen."""
    folder = rounds / NEXT
    (folder / "survivors.json").unlink()
    (folder / "aggregate.h5").unlink()
    shutil.rmtree(folder / "elimination")
    (folder / "secrets" / "decoded.json").unlink()
    return folder


def damaged(path):
    flip(path, path.stat().st_size - 3)


def truncated(path):
    path.write_bytes(path.read_bytes()[:-4])


def foreign(path):
    """That of the other round, which has another shape, and names another session."""
    other = FIRST if path.parent.name == NEXT else NEXT
    shutil.copy(ARCHIVE / other / "basis.h5", path)


def of_another_session(path):
    """Of the same shape."""
    rewrite(path, lambda attributes, _: attributes.update(session="a" * 64))


def of_a_user(path):
    rewrite(path, lambda attributes, _: attributes.update(user=1))


def another_digest(path):
    """Sound by itself, but not the one that session.json names."""

    def moved(_, arrays):
        arrays["value"] = arrays["value"].copy()
        arrays["value"][0] += 1

    rewrite(path, moved)


def wider(path):
    rewrite(path, lambda _, arrays: arrays.update(value=arrays["value"].astype("<f8")))


def longer(path):
    rewrite(
        path, lambda _, arrays: arrays.update(value=np.append(arrays["value"], [0]).astype("<i4"))
    )


def another_kind(path):
    shutil.copy(path.with_name("masked") / "user-01.h5", path)


def a_folder(path):
    path.unlink()
    path.mkdir()


WRONG = {
    damaged: "it is damaged",
    truncated: "basis.h5",
    foreign: "basis.h5",
    of_another_session: "session",
    of_a_user: "user",
    another_digest: "it is not the basis of this session",
    wider: "its datasets do not fit its kind",
    longer: "value has shape",
    another_kind: "kind",
    a_folder: "basis.h5",
}
wrong = pytest.mark.parametrize("spoil", WRONG, ids=lambda spoil: spoil.__name__)


def masking(folder):
    """The step of the user that has not masked."""
    gradient = folder / f"gradient-{ABSENT:02}.npz"
    return "mask", folder, "--user", ABSENT, "--gradient", gradient, "--saturate"


@wrong
@pytest.mark.rule(14)
def test_a_decoder_takes_none_but_the_sessions(rounds, refuses, spoil):
    """And does not take the round for one that failed."""
    (rounds / NEXT / "secrets" / "decoded.json").unlink()
    (rounds / NEXT / "aggregate.h5").unlink()
    spoil(rounds / NEXT / "basis.h5")
    said = refuses(65, "decode", rounds / NEXT, says=WRONG[spoil]).err
    assert "counts as published" not in said


@wrong
@pytest.mark.rule(14)
def test_nor_does_a_user_without_the_last_sum(rounds, latest, refuses, spoil):
    (rounds / FIRST / "aggregate.h5").unlink()
    spoil(latest / "basis.h5")
    refuses(65, *masking(latest), says=WRONG[spoil])


def test_one_that_is_missing_is_asked_for(rounds, latest, refuses):
    said = ("basis.h5 is not there", "hint: fetch it from the user that started the round")
    (latest / "basis.h5").unlink()
    (rounds / FIRST / "aggregate.h5").rename(rounds / "kept.h5")
    refuses(66, *masking(latest), says=said)
    (rounds / "kept.h5").rename(rounds / FIRST / "aggregate.h5")
    must(*masking(latest))  # who has the sum needs none
    (rounds / FIRST / "basis.h5").unlink()
    refuses(66, "decode", rounds / FIRST, says=said)


@wrong
def test_who_has_the_last_sum_does_not_read_it(rounds, latest, spoil):
    """And sends the same X, whatever is there."""
    other = shutil.copytree(latest, rounds / "other")
    spoil(latest / "basis.h5")
    for folder in (latest, other):
        must(*masking(folder))
    x = [contents(folder / "masked")[f"user-{ABSENT:02}.h5"][0] for folder in (latest, other)]
    assert x[0] == x[1]


@pytest.mark.rule(14)
def test_without_the_check_another_sum_is_decoded(rounds, monkeypatch):
    """The twin."""
    folder = rounds / NEXT
    must("decode", folder, "--output", rounds / "right.npz")
    another_digest(folder / "basis.h5")
    monkeypatch.setattr(basis, "digest", lambda _: Workspace(folder).session.basis)
    must("decode", folder, "--output", rounds / "wrong.npz")
    right, other = np.load(rounds / "right.npz"), np.load(rounds / "wrong.npz")
    assert not np.array_equal(right["conv.weight"], other["conv.weight"])


def test_what_is_written_is_read_and_has_the_sessions_digest(rounds):
    space = Workspace(rounds / FIRST)
    before = space.basis_path.read_bytes()
    found = basis.read(space)
    assert [each.shape for each in found] == [(6, 2), (0, 0), (8, 2), (0, 0)]
    assert bases.digest(found) == space.session.basis
    space.basis_path.unlink()
    basis.write(space, found)
    assert space.basis_path.read_bytes() == before
    assert datasets(space.basis_path)["value"].dtype == np.dtype("<i4")


def test_a_round_that_projects_nothing_has_no_file(tmp_path):
    root = shutil.copytree(ARCHIVE / "whole-keys-plain", tmp_path / "round")
    assert not (root / "basis.h5").exists()
    assert all(each.size == 0 for each in basis.of_round(Workspace(root)))
    shutil.copy(ARCHIVE / FIRST / "basis.h5", root / "basis.h5")
    with pytest.raises(BadData):
        basis.read(Workspace(root))
    must("decode", root)  # which does not read it
