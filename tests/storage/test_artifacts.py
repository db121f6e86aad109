"""What is checked of a file, and when: its shape before anything is read, every bit of it, its bytes once."""

import os
import shutil
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
from rounds import ROOT, rewrite

from topk_secagg.errors import BadData
from topk_secagg.storage import aggregate, answer, hdf5_parser, masked, residual, secret, survivors
from topk_secagg.storage.artifacts import Artifact, opened
from topk_secagg.storage.share import opened_share
from topk_secagg.storage.workspace import Workspace

ARCHIVE = ROOT / "fixtures" / "archive" / "v1"


@pytest.fixture
def name():
    return "moments"


@pytest.fixture
def space(name, tmp_path):
    """A finished round."""
    shutil.copytree(ARCHIVE / name, tmp_path / "round")
    return Workspace(tmp_path / "round")


def read_masked(space: Workspace) -> masked.MaskedFile:
    return masked.read(space.session, space.masked_path(1), 1)


def read_share(space: Workspace) -> None:
    with opened_share(space, 2, 1) as share:
        share.check_all()


def read_answer(space: Workspace) -> None:
    with answer.opened_answer(space, 1, survivors.read(space)):
        pass


def read_aggregate(space: Workspace) -> None:
    with opened(space.aggregate_path, aggregate.KIND) as artifact:
        aggregate.parsed(space, artifact)


def read_residual(space: Workspace) -> None:
    residual.read(space.root / "residual-01.h5", 1, space.session.parameters.length)


READERS: dict[str, Callable[[Workspace], object]] = {
    "secrets/user-01.h5": lambda space: secret.read(space, 1),
    "shares/user-02/from-01.h5": read_share,
    "masked/user-01.h5": read_masked,
    "elimination/user-01.h5": read_answer,
    "aggregate.h5": read_aggregate,
    "residual-01.h5": read_residual,
}


@pytest.mark.parametrize("file", READERS)
def test_every_bit_of_a_file_counts(space, file, monkeypatch):
    """With any one bit turned it is refused: by the schema, the digest, a row's checksum or a gap."""
    monkeypatch.setattr(
        hdf5_parser, "lookup3", lru_cache(64)(hdf5_parser.lookup3)
    )  # only for speed
    read, path = READERS[file], space.root / file
    content = path.read_bytes()
    read(space)
    with path.open("r+b", buffering=0) as stream:
        for at, byte in enumerate(content):
            for bit in range(8):
                os.pwrite(stream.fileno(), bytes([byte ^ 1 << bit]), at)
                try:
                    read(space)
                except BadData:
                    continue
                pytest.fail(f"bit {bit} of byte {at} does not matter")
            os.pwrite(stream.fileno(), bytes([byte]), at)
    read(space)


def test_what_is_used_is_what_was_checked(space, monkeypatch):
    """An X that is changed in place after its digest was checked could unmask its owner."""
    path, before, digest = (
        space.masked_path(1),
        read_masked(space).masked.value.tolist(),
        Artifact.digest,
    )

    def then_changed(artifact, *look):
        result = digest(artifact, *look)
        if read_again:
            artifact.loaded.clear()
        with path.open("r+b") as file:
            file.seek(artifact.datasets["value"].offset)
            file.write(b"\1\0\0\0" * len(before))
        return result

    content, read_again = path.read_bytes(), False
    monkeypatch.setattr(Artifact, "digest", then_changed)
    assert read_masked(space).masked.value.tolist() == before
    path.write_bytes(content)
    read_again = True
    assert read_masked(space).masked.value.tolist() == [1] * len(before)
    monkeypatch.undo()
    with pytest.raises(BadData, match="does not match its digest"):
        read_masked(space)


def test_a_file_of_another_size_is_refused_before_it_is_read(space, monkeypatch):
    rewrite(
        space.masked_path(1),
        lambda _, datasets: datasets.update(index=np.zeros(1 << 20, dtype="|u1")),
    )
    monkeypatch.setattr(Artifact, "digest", lambda *_: pytest.fail("its content was read"))
    with pytest.raises(BadData, match="index has shape"):
        read_masked(space)


@pytest.mark.parametrize("name", ["moments-spare"])
@pytest.mark.parametrize(
    "file", ["secrets/user-01.h5", "masked/user-01.h5", "elimination/user-01.h5"]
)
def test_symbols_of_another_width_are_refused(space, file):
    """In a field below 2^16 a symbol has two bytes, and in no file more."""

    def widen(_, datasets):
        datasets.update(
            {name: d.astype("<u4") for name, d in datasets.items() if d.dtype == np.dtype("<u2")}
        )

    READERS[file](space)
    rewrite(space.root / file, widen)
    with pytest.raises(BadData, match="has type <u4, not <u2"):
        READERS[file](space)
