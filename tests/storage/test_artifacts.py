"""What is checked of a file, and when: its shape before anything is read, every bit of it, its
bytes once."""

import os
import shutil
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np
import pytest
from played import ROOT, rewrite

from topk_secagg.errors import BadData
from topk_secagg.protocol.constructions import construction
from topk_secagg.review.audit import collect_evidence
from topk_secagg.rounds.eliminate import eliminate
from topk_secagg.storage import (
    aggregate,
    answer,
    basis,
    chain,
    hdf5_parser,
    masked,
    residual,
    secret,
    survivors,
)  # fmt: skip
from topk_secagg.storage.artifacts import Artifact, Content, Draft, Table, opened, write_hashed
from topk_secagg.storage.atomic import whole_file
from topk_secagg.storage.hdf5_writer import new_file
from topk_secagg.storage.keys import Identity
from topk_secagg.storage.kinds import ARTIFACT_KINDS, check_size
from topk_secagg.storage.ledger import Ledger
from topk_secagg.storage.share import SharesOfUser
from topk_secagg.storage.workspace import Workspace

ARCHIVE = ROOT / "fixtures" / "archive" / "v1"


LOW_RANK = "low-rank-keys-plain"


@pytest.fixture
def name(request):
    """The archived round; only low rank has a basis."""
    file = getattr(request.node, "callspec", None) and request.node.callspec.params.get("file")
    return LOW_RANK if file == "basis.h5" else "permutation-shares-plain"


@pytest.fixture
def space(name, tmp_path):
    """A finished round."""
    shutil.copytree(ARCHIVE / name, tmp_path / "round")
    return Workspace(tmp_path / "round")


def read_masked(space: Workspace) -> masked.MaskedFile:
    return masked.read(space.session, space.masked_path(1), 1)


def read_share(space: Workspace) -> None:
    with SharesOfUser(space, 2).opened(1) as share:
        share.check_all()


def read_answer(space: Workspace) -> None:
    with answer.opened_answer(space, 1, survivors.read(space)):
        pass


def read_aggregate(space: Workspace) -> None:
    with opened(space.aggregate_path, aggregate.KIND) as artifact:
        aggregate.parsed(space, artifact)


def read_residual(space: Workspace) -> None:
    session = space.session
    digest = Ledger.read(space.ledger_path(1), session.id, 1).residual
    length = session.layout.length
    residual.read(space, 1, session=session.id, digest=digest, length=length)


def read_chain(space: Workspace) -> None:
    chain.read(space.chain_path(1), space.session, 1)


READERS: dict[str, Callable[[Workspace], object]] = {
    "secrets/user-01.h5": lambda space: secret.read(space, 1),
    "shares/user-02/from-01.h5": read_share,
    "masked/user-01.h5": read_masked,
    "elimination/user-01.h5": read_answer,
    "aggregate.h5": read_aggregate,
    "basis.h5": basis.read,
    "secrets/user-01.residual.h5": read_residual,
    "secrets/user-01.chain.h5": read_chain,
}


@pytest.mark.parametrize("file", READERS)
def test_every_bit_of_a_file_counts(space, file, monkeypatch):
    """With any one bit turned it is refused: by the schema, the digest, a row's checksum or a
    gap."""
    monkeypatch.setattr(
        hdf5_parser, "lookup3", lru_cache(64)(hdf5_parser.lookup3)
    )  # only for speed
    read = READERS[file]
    path = space.root / file
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
    path = space.masked_path(1)
    before = read_masked(space).masked.value.tolist()
    digest = Artifact.digest

    def then_changed(artifact, *look):
        result = digest(artifact, *look)
        if read_again:
            artifact.loaded.clear()
        with path.open("r+b") as file:
            file.seek(artifact.datasets["value"].offset)
            file.write(b"\1\0\0\0" * len(before))
        return result

    content = path.read_bytes()
    read_again = False
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
    monkeypatch.setattr(Artifact, "digest", lambda *_, **__: pytest.fail("its content was read"))
    with pytest.raises(BadData, match="index has shape"):
        read_masked(space)


@pytest.mark.parametrize("name", ["sketch-shares-plain"])
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


class TestAFileIsCompleteOnceItIsBuilt:
    KIND = masked.KIND
    TABLES = staticmethod(
        lambda: {
            "index": Table(np.arange(5, dtype="|u1")),
            "value": Table(np.arange(7, dtype="<u4"), lambda part: part * np.uint32(3)),
            "holds": Table(np.ones(1, dtype="|u1")),
        }
    )
    ATTRIBUTES = MappingProxyType(
        {"session": "0" * 64, "user": 1, "sharing": "1" * 64, "weight": "1.0"}
    )

    @pytest.fixture
    def identity(self):
        return Identity.drawn("2" * 64)

    def test_its_digest_and_signature_are_there_before_it_is_written(self, identity, tmp_path):
        """The ledger names the digest of X before X appears; writing it changes nothing any
        more."""
        attributes = dict(self.ATTRIBUTES)
        content = Content.of(Draft(self.KIND, attributes, identity), self.TABLES())
        assert attributes == self.ATTRIBUTES
        before = dict(content.attributes)
        assert before["sha256"] == content.digest
        assert before["signature"] == identity.sign("masked", content.digest)
        content.write(tmp_path / "x.h5")
        assert content.attributes == before
        with opened(tmp_path / "x.h5", self.KIND) as artifact:
            artifact.verify()
            assert artifact.attributes == before

    def test_hashed_before_or_on_the_way_it_has_the_same_bytes(self, identity, tmp_path):
        draft = Draft(self.KIND, self.ATTRIBUTES, identity)
        content = Content.of(draft, self.TABLES())
        content.write(tmp_path / "before.h5")
        assert write_hashed(tmp_path / "way.h5", draft, self.TABLES()) == content.digest
        assert (tmp_path / "way.h5").read_bytes() == (tmp_path / "before.h5").read_bytes()

    def test_nothing_can_be_added_later(self, space):
        content = Content.of(Draft(self.KIND, self.ATTRIBUTES), self.TABLES())
        with pytest.raises(FrozenInstanceError):
            content.attributes = {}
        with (
            opened(space.masked_path(1), masked.KIND) as artifact,
            pytest.raises(FrozenInstanceError),
        ):
            artifact.kind = secret.KIND

    def test_a_kind_that_is_not_signed_has_no_signature(self, identity):
        header = {**self.ATTRIBUTES, "randomness": "os"}
        del header["weight"]
        attributes = Draft(secret.KIND, header, identity).completed("0" * 64)
        assert "signature" not in attributes

    def test_one_without_attributes_never_appears(self, tmp_path):
        def write_no_attributes():
            shapes = {"index": ("|u1", (1,))}
            with (
                whole_file(tmp_path / "x.h5") as stream,
                new_file(stream, shapes, self.KIND.datasets) as file,
            ):
                file.put("index", 0, np.ones(1, dtype="|u1"))

        with pytest.raises(ValueError, match="left without its attributes"):
            write_no_attributes()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["permutation-shares-plain", "sketch-shares-plain", "sketch-keys-plain-next"]
)
def test_the_size_of_y_is_the_same_wherever_it_is_known(space):
    """In the construction, the file, the reader, an audit, and the report of the step."""
    c = construction(space.session.parameters)
    survivor_set = survivors.read(space)
    users = list(space.present("elimination"))
    evidence = collect_evidence(space)
    sizes = set()
    for user in users:
        with answer.opened_answer(space, user, survivor_set) as y:
            sizes |= {y.payload, y.artifact.datasets["y"].size, c.bytes_of_answer(y.shape)}
    report = eliminate(space, users[0])
    sizes |= {report.answer_bytes, evidence.payloads()["Y"]}
    sizes.add(c.answer_bytes(len(survivor_set.users)))
    assert len(sizes) == 1


@pytest.mark.parametrize("kind", ARTIFACT_KINDS, ids=lambda kind: kind.name)
def test_every_kind_has_a_largest_size(kind, tmp_path):
    """A file of the round fits, and one byte less would be too little for some."""
    paths = {
        "secret": "secrets/user-01.h5",
        "chain": "secrets/user-01.chain.h5",
        "share": "shares/user-02/from-01.h5",
        "masked": "masked/user-01.h5",
        "elimination": "elimination/user-01.h5",
        "residual": "secrets/user-01.residual.h5",
        "aggregate": "aggregate.h5",
        "basis": "basis.h5",
    }
    shutil.copytree(ARCHIVE / LOW_RANK, tmp_path / "round")
    space = Workspace(tmp_path / "round")
    with opened(space.root / paths[kind.name], kind) as artifact:
        check_size(artifact, space.session)
        name, dataset = next(iter(artifact.datasets.items()))
        larger = replace(dataset, size=dataset.size + (1 << 20))
        with pytest.raises(BadData, match="larger than any such file"):
            check_size(
                replace(artifact, datasets={**artifact.datasets, name: larger}),
                space.session,
            )
