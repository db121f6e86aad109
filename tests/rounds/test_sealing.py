"""Sealed shares: only their receiver can open them, only their sender can make them, and no
plaintext is left.

Which identity a step takes, and whose keys, is in tests/commands/test_access.py; interruptions are
in tests/faults.
"""

import shutil
import subprocess
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from played import Round, every, judged, must, rewrite

from topk_secagg.errors import CannotWrite
from topk_secagg.progress import unheard
from topk_secagg.protocol.constructions import construction as construction_of
from topk_secagg.protocol.messages import ShareChunk
from topk_secagg.storage import artifacts, keys, share_writer
from topk_secagg.storage import share as share_file
from topk_secagg.storage.artifacts import opened
from topk_secagg.storage.keys import read_identity
from topk_secagg.storage.masked import read as read_masked
from topk_secagg.storage.workspace import Workspace

SEALED = {"sealed": True, "length": 60, "top_k": 6}


def row_bytes(r: Round, user: int = 1, sender: int = 2) -> bytes:
    """Some bytes of a share that is not sealed."""
    identity = read_identity(r.identity(user))
    with share_file.SharesOfUser(Workspace(r.folder), user, identity).opened(sender) as share:
        return share.artifact.read_rows(share.names[0], 0, 1).tobytes()


@every
@pytest.mark.parametrize("randomness", ["cipher", "os"])
def test_a_sealed_round_gives_the_plain_sum_and_offline_again_changes_nothing(
    new_round, randomness
):
    # every byte from the operating system: then no share is drawn from a key
    r = new_round(sealed=True, dealing="shares" if randomness == "os" else None)
    must(*r.init())
    for written in (5, 0):
        for n in r.recipe.everybody:
            said = must(*r.offline(n, "--randomness", randomness, "--json")).json
            assert (said["shares_written"], said["randomness"]) == (written, randomness)
    r.play(after="offline").check_sum()
    assert {path.suffix for path in (r.folder / "shares").rglob("from-*")} == {".age"}


def test_no_plaintext_share_has_a_name_on_the_senders_disk_at_any_time(
    new_round, tmp_path, monkeypatch
):
    seen = []
    secrets = set()
    sealed = share_writer.sealed

    @contextmanager
    def watched(path, *how):
        with sealed(path, *how) as plain:
            yield plain
            plain.seek(0)
            secrets.add(plain.read()[-500:])
            seen.extend(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
        seen.append(path.read_bytes())

    monkeypatch.setattr(share_writer, "sealed", watched)
    secrets.add(row_bytes(new_round(**SEALED).play(upto="offline")))
    assert len(secrets) == 5**2 + 1
    assert not any(secret in content for secret in secrets for content in set(seen))


def test_a_full_disk_is_one_clear_error(round_at, monkeypatch, tmp_path):
    r = round_at("init", sealed=True)
    monkeypatch.setattr(keys, "whole_file", lambda _: Path("/dev/full").open("wb", buffering=0))  # noqa: SIM115
    result = judged(*r.offline(1))
    assert (result.code, "no space left" in result.err) == (73, True)
    assert not list((r.folder / "shares").rglob("*.age"))
    for size in (
        1,
        10**6,
    ):  # the library drops an error at the end, and makes another one of it before
        recipient = Workspace(r.folder).session.recipient(1)
        with (
            pytest.raises(CannotWrite, match="no space left"),
            keys.sealed(r.folder / "sealed", recipient, tmp_path) as plain,
        ):
            plain.write(bytes(size))


@pytest.mark.parametrize("size", [1, 10**6])
def test_a_disk_that_is_full_when_a_share_is_opened_is_not_blamed_on_its_sender(
    monkeypatch, tmp_path, size
):
    identity = keys.Identity.drawn("0" * 64)
    path = tmp_path / "sealed"
    with keys.sealed(path, identity.public(1), tmp_path) as plain:
        plain.write(bytes(size))
    full = partial(open, "/dev/full", "r+b")
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **how: full(how.get("buffering", -1)))
    with (
        pytest.raises(CannotWrite, match="no space left"),
        keys.unsealed(path, 1, largest=10**7, identity=identity, scratch=tmp_path),
    ):
        pass


def test_damaged_swapped_replayed_and_missing_shares_are_refused_naming_the_sender(
    round_at, refuses
):
    r = round_at("frozen", **SEALED)
    other = r.elsewhere(r.folder.with_name("other"))
    other.prepare_folder()  # with the same keys
    other.play(upto="offline")
    path = r.folder / "shares/user-01/from-02.h5.age"
    good = path.read_bytes()
    for at in (10, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert "user 2 does not open" in refuses(65, *r.eliminate(1)).err
    path.write_bytes(good[: len(good) // 2])
    assert "user 2 does not open" in refuses(65, *r.eliminate(1)).err
    for source, said in (
        (r.folder / "shares/user-01/from-03.h5.age", "its sender is 3, not 2"),
        (r.folder / "shares/user-03/from-02.h5.age", "user 2 does not open"),
        (other.folder / "shares/user-01/from-02.h5.age", "another session"),
    ):
        shutil.copy(source, path)
        assert said in refuses(65, *r.eliminate(1)).err
    path.unlink()
    assert "no share for user 1 has arrived from user 2" in refuses(66, *r.eliminate(1)).err
    path.write_bytes(good)
    must(*r.eliminate(1))


def test_a_share_that_a_third_user_forged_and_signed_itself_is_refused(
    round_at, refuses, monkeypatch
):
    r = round_at("frozen", **SEALED)
    space = Workspace(r.folder)
    c = construction_of(space.session.parameters)
    sharing = read_masked(space.session, space.masked_path(2), 2).sharing
    zeros = np.zeros((r.recipe.users, c.rows, c.width), dtype=np.uint32)
    chunk = ShareChunk(0, c.rows, dict.fromkeys(c.share_names, zeros))
    share_writer._write_symbols(
        space,
        [1],
        deal=space.session.deal(2, sharing),
        chunks=[chunk],
        signer=read_identity(r.identity(3)),
        progress=unheard,
    )
    assert "user 2 did not sign it: the file is forged" in refuses(65, *r.eliminate(1)).err
    # the twin: without the check of the signature the forgery would be believed
    monkeypatch.setattr(artifacts, "check_signature", lambda *_, **__: None)
    must(*r.eliminate(1))


@pytest.mark.rule(17)
def test_an_x_that_its_user_did_not_sign_is_not_frozen(round_at, refuses, monkeypatch):
    r = round_at("masked", **SEALED)
    for signer in (
        None,
        read_identity(r.identity(3)),
    ):  # the old signature, and that of another user
        rewrite(
            r.folder / "masked/user-02.h5", lambda _, datasets: datasets["value"].fill(1), signer
        )
        assert "user 2 did not sign it" in refuses(65, *r.freeze("--only", "1-3")).err
    # the twin: without the check everybody would answer the forged X
    monkeypatch.setattr(artifacts, "check_signature", lambda *_, **__: None)
    must(*r.freeze())
    must(*r.eliminate(1))


def test_a_new_secret_gets_new_sealed_shares(round_at):
    """A sealed share does not show of which sharing it is: those of a lost secret must not stay."""
    r = round_at("offline", **SEALED)
    for name in ("user-01.h5", "user-01.ledger.json"):
        (r.private(1) / name).unlink()
    (r.folder / "shares/user-01/from-01.h5.age").unlink()  # which shows that user 1 has dealt
    assert must(*r.offline(1, "--json")).json["shares_written"] == 5
    r.play(after="offline").check_sum()


@pytest.mark.parametrize(
    "content", [b"", b"age-encryption.org/v1\n-> X25519 a\n---", bytes(100_000)]
)
def test_an_invalid_sealed_share_is_written_again(round_at, content):
    r = round_at("offline", **SEALED)
    (r.folder / "shares/user-03/from-01.h5.age").write_bytes(content)
    for written in (1, 0):
        assert must(*r.offline(1, "--json")).json["shares_written"] == written


def test_a_forged_answer_does_not_keep_its_victim_from_answering(round_at):
    r = round_at("frozen", **SEALED)
    must(*r.eliminate(2))
    forged = r.folder / "elimination/user-03.h5"
    shutil.copy(r.folder / "elimination/user-02.h5", forged)
    rewrite(forged, lambda attributes, _: attributes.update(user=3, survivors_sha256="0" * 64))
    must(*r.eliminate(3))


@pytest.mark.skipif(shutil.which("age") is None, reason="the age program is not installed")
def test_the_age_program_opens_what_is_sealed_here(round_at, tmp_path):
    r = round_at("offline", **SEALED)
    plain = tmp_path / "plain.h5"
    share = r.folder / "shares/user-01/from-02.h5.age"
    subprocess.run(["age", "-d", "-i", r.identity(1), "-o", plain, share], check=True, timeout=60)
    with opened(plain, share_file.KIND) as artifact:
        artifact.verify()
        assert artifact.attributes["sender"] == 2
        assert artifact.read_rows("f", 0, 1).tobytes() == row_bytes(r)
