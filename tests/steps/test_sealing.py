"""Sealed shares: nobody else can open them, nobody else can make them, and no plaintext is left anywhere."""

from __future__ import annotations

import errno
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from topk_secagg.errors import BadData, CannotWrite, InputMissing, UsageError
from topk_secagg.gradients.layout import Layout
from topk_secagg.protocol.parameters import Parameters
from topk_secagg.steps.decode import decode
from topk_secagg.steps.eliminate import eliminate
from topk_secagg.steps.freeze import freeze
from topk_secagg.steps.init import init
from topk_secagg.steps.keygen import keygen
from topk_secagg.steps.mask import mask
from topk_secagg.steps.offline import offline
from topk_secagg.storage import sealing
from topk_secagg.storage.artifacts import opened, write_artifact
from topk_secagg.storage.keys import Identity, read_identity, read_recipients
from topk_secagg.storage.sealing import sealed_share_rows

USERS, L = 4, 60


@pytest.fixture
def keys(tmp_path):
    lines = [keygen(n, tmp_path / f"{n}.identity").line() for n in range(1, USERS + 1)]
    (tmp_path / "recipients").write_text("\n".join(reversed(lines)) + "\n# a comment\n")
    return {n: tmp_path / f"{n}.identity" for n in range(1, USERS + 1)}


def start(tmp_path, keys, name="round", **options):
    chosen = {"users": USERS, "survivors": 3, "colluders": 1, "top_k": 6, "length": L, **options}
    recipients = read_recipients(tmp_path / "recipients", USERS)
    space = init(tmp_path / name, Parameters.choose(**chosen), Layout.flat(L), recipients=recipients)
    for user in space.users():
        offline(space, user, identity=keys[user])
    return space


def masked(space, tmp_path, keys):
    gradients = np.random.default_rng(0).uniform(-1, 1, (USERS, L))
    for user in space.users():
        np.save(tmp_path / "g.npy", gradients[user - 1])
        mask(space, user, tmp_path / "g.npy", identity=keys[user])
    freeze(space)
    return gradients


def row_bytes(space, keys, user=1, sender=2):
    """Some bytes of a share in the clear."""
    s = space.session
    with sealed_share_rows(
        s.parameters,
        space.share_path(user, sender),
        s.header(user, sender=sender),
        s.recipients[sender - 1],
        read_identity(keys[user]),
        space.root / "secrets",
    ) as share:
        return share.artifact.read_rows("f", 0, 1).tobytes()


@pytest.mark.parametrize("construction", ["permutation", "rotation"])
@pytest.mark.parametrize("randomness", ["cipher", "os"])
def test_a_sealed_round_gives_the_plain_sum(tmp_path, keys, construction, randomness):
    recipients = read_recipients(tmp_path / "recipients", USERS)
    p = Parameters.choose(users=USERS, survivors=3, colluders=1, top_k=L, length=L, construction=construction)
    space = init(tmp_path / "round", p, Layout.flat(L), recipients=recipients)
    for user in space.users():
        offline(space, user, randomness, identity=keys[user])
        assert offline(space, user, randomness, identity=keys[user]).written == 0
    gradients = masked(space, tmp_path, keys)
    for user in (1, 2, 4):
        eliminate(space, user, identity=keys[user])
    decode(space, tmp_path / "sum.npy")
    total = np.load(tmp_path / "sum.npy")
    assert np.abs(total - gradients.sum(axis=0)).max() <= USERS / p.scale
    assert {path.suffix for path in (space.root / "shares").rglob("from-*")} == {".age"}


def test_no_plaintext_share_is_on_the_senders_disk_at_any_time(tmp_path, keys, monkeypatch):
    seen = []
    feed = sealing._Cipher.feed

    def watched(self, piece):
        seen.extend(path for path in tmp_path.rglob("*") if path.is_file())
        feed(self, piece)

    monkeypatch.setattr(sealing._Cipher, "feed", watched)
    space = start(tmp_path, keys)
    secret = row_bytes(space, keys)
    assert seen
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or secret not in path.read_bytes()
    assert all(".age" in path.name for path in seen if "shares" in path.parts)


def test_an_interrupted_offline_leaves_nothing_half_sealed_and_goes_on(tmp_path, keys, monkeypatch):
    with monkeypatch.context() as patch:
        finish = sealing._Cipher.finish
        calls = []

        def interrupted(self):
            calls.append(1)
            if len(calls) == 3:
                raise KeyboardInterrupt
            finish(self)

        patch.setattr(sealing._Cipher, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path, keys)
    assert not list((tmp_path / "round" / "shares").rglob("*.age"))
    assert not list((tmp_path / "round").rglob("*.tmp"))


def test_a_failing_disk_is_one_clear_error(tmp_path, keys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyrage.encrypt_io", full)
    with pytest.raises(CannotWrite, match="no space left"):
        start(tmp_path, keys)
    assert not list((tmp_path / "round" / "shares").rglob("*.age"))


def test_the_wrong_or_no_identity_is_refused(tmp_path, keys):
    space = start(tmp_path, keys)
    masked(space, tmp_path, keys)
    with pytest.raises(UsageError, match="sealed"):
        eliminate(space, 1)
    with pytest.raises(BadData, match="does not hold the keys"):
        eliminate(space, 1, identity=keys[2])
    with pytest.raises(InputMissing):
        eliminate(space, 1, identity=tmp_path / "missing")
    (tmp_path / "junk").write_text("AGE-SECRET-KEY-1junk\n")
    with pytest.raises(BadData, match="not an identity file"):
        eliminate(space, 1, identity=tmp_path / "junk")
    with pytest.raises(UsageError, match="sealed"):
        offline(space, 1)


def refused(space, keys, match, error=BadData):
    before = sorted((space.root / "secrets").iterdir())
    with pytest.raises(error, match=match):
        eliminate(space, 1, identity=keys[1])
    assert not space.answer_path(1).exists()
    assert sorted((space.root / "secrets").iterdir()) == before, "no plaintext is left behind"


def test_damaged_swapped_replayed_and_missing_shares_are_refused_naming_the_sender(tmp_path, keys):
    space = start(tmp_path, keys)
    other = start(tmp_path, keys, "other")
    masked(space, tmp_path, keys)
    path = space.share_path(1, 2)
    good = path.read_bytes()
    for at in (10, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        refused(space, keys, "user 2 does not open")
    path.write_bytes(good[: len(good) // 2])
    refused(space, keys, "user 2 does not open")
    shutil.copy(space.share_path(1, 3), path)
    refused(space, keys, "user 2 did not sign it")
    shutil.copy(space.share_path(3, 2), path)
    refused(space, keys, "user 2 does not open")
    shutil.copy(other.share_path(1, 2), path)
    refused(space, keys, "another session")
    path.unlink()
    refused(space, keys, "is not there", InputMissing)
    path.write_bytes(good)
    eliminate(space, 1, identity=keys[1])


def test_a_share_that_a_third_user_forged_and_signed_itself_is_refused(tmp_path, keys, monkeypatch):
    space = start(tmp_path, keys)
    masked(space, tmp_path, keys)
    s = space.session
    with opened(space.masked_path(2), "masked") as artifact:
        sharing = artifact.attributes["sharing"]
    forged = {1: space.share_path(1, 2)}
    attributes = s.header(1, sender=2, sharing=sharing)
    with sealing.sealing_shares(s.parameters, forged, attributes, s.recipients, read_identity(keys[3])) as writer:
        zeros = np.zeros((1, s.parameters.rows, s.parameters.width), dtype=np.uint32)
        writer.write("f", 0, zeros)
        writer.write("h", 0, zeros)
    refused(space, keys, "user 2 did not sign it: the file is forged")
    # the twin: without the check of the signature the forgery would be believed
    monkeypatch.setattr(sealing, "check_signature", lambda *_: None)
    eliminate(space, 1, identity=keys[1])


def test_masked_inputs_and_answers_that_their_user_did_not_sign_are_refused(tmp_path, keys, monkeypatch):
    space = start(tmp_path, keys)
    masked(space, tmp_path, keys)
    space.survivors_path.unlink()
    path = space.masked_path(2)
    good = path.read_bytes()
    with opened(path, "masked") as artifact:
        attributes = {k: v for k, v in artifact.attributes.items() if k != "sha256"}
        datasets = {name: artifact.read(name) for name in artifact.datasets}
    zeros = {name: np.zeros_like(array) if name == "value" else array for name, array in datasets.items()}
    for signature in (attributes["signature"], "", read_identity(keys[3]).sign("masked", "0" * 64)):
        write_artifact(path, "masked", {**attributes, "signature": signature}, zeros)
        with pytest.raises(BadData, match="user 2 did not sign it"):
            freeze(space)
    with monkeypatch.context() as patch:  # the twin: without the check everybody would answer the forged X
        patch.setattr("topk_secagg.storage.public.check_signature", lambda *_: None)
        freeze(space)
        eliminate(space, 1, identity=keys[1])
    space.survivors_path.unlink()
    path.write_bytes(good)
    with pytest.raises(UsageError, match="signed"):
        mask(space, 2, tmp_path / "g.npy")


def test_keys_are_private_and_never_overwritten(tmp_path, keys):
    assert keys[1].stat().st_mode & 0o777 == 0o600
    with pytest.raises(CannotWrite):
        keygen(1, keys[1])
    assert read_identity(keys[1]).public(1) != read_identity(keys[2]).public(1)
    assert Identity.generate() != Identity.generate()


@pytest.mark.parametrize("content", ["", "1 age1xyz ed25519:00\n", "what is this\n", "1 a b\n2 a b\n"])
def test_recipients_that_are_not_one_valid_line_for_each_user_are_refused(tmp_path, keys, content):
    good = (tmp_path / "recipients").read_text().splitlines()
    (tmp_path / "bad").write_text(content)
    with pytest.raises(BadData):
        read_recipients(tmp_path / "bad", USERS)
    (tmp_path / "bad").write_text("\n".join([*good, good[0]]))
    with pytest.raises(BadData, match="two lines"):
        read_recipients(tmp_path / "bad", USERS)
    same = good[1].split()
    (tmp_path / "bad").write_text("\n".join([f"{good[0].split()[0]} {same[1]} {same[2]}", *good[1:4]]))
    with pytest.raises(BadData, match="same key"):
        read_recipients(tmp_path / "bad", USERS)


def test_a_key_has_one_spelling_and_a_user_a_sane_number(tmp_path, keys):
    good = (tmp_path / "recipients").read_text().splitlines()
    head, key = good[0].split("ed25519:")
    for bad in (f"{head}ed25519:{key.upper()}", f"{head}ed25519:{key[:2]} {key[2:]}", "9" * 5000 + good[0][1:]):
        (tmp_path / "bad").write_text("\n".join([bad, *good[1:]]))
        with pytest.raises(BadData):
            read_recipients(tmp_path / "bad", USERS)


@pytest.mark.parametrize("pieces", [0, 1, 3])
def test_a_cipher_that_cannot_write_fails_and_does_not_wait_for_ever(pieces):
    """/dev/full refuses every byte; small shares are written only after the last piece came."""
    failures = []

    def work():
        with sealing._Cipher(Identity.generate().public(1), Path("/dev/full")) as cipher:
            try:
                for _ in range(pieces):
                    cipher.feed(bytes(70_000))
                cipher.feed(b"x")
                cipher.finish()
            except OSError as error:
                failures.append(error.errno)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert failures == [errno.ENOSPC]


def test_a_new_secret_gets_new_sealed_shares(tmp_path, keys):
    """A sealed share does not show of which sharing it is: those of a lost secret must not stay."""
    space = start(tmp_path, keys)
    space.secret_path(1).unlink()
    space.ledger_path(1).unlink()
    assert offline(space, 1, identity=keys[1]).written == USERS
    masked(space, tmp_path, keys)
    for user in space.users():
        eliminate(space, user, identity=keys[user])


@pytest.mark.parametrize("content", [b"", b"age-encryption.org/v1\n-> X25519 a\n---", bytes(100_000)])
def test_what_is_no_sealed_share_is_written_again(tmp_path, keys, content):
    space = start(tmp_path, keys)
    space.share_path(3, 1).write_bytes(content)
    assert offline(space, 1, identity=keys[1]).written == 1
    assert offline(space, 1, identity=keys[1]).written == 0


def test_a_forged_answer_does_not_keep_its_victim_from_answering(tmp_path, keys):
    space = start(tmp_path, keys)
    masked(space, tmp_path, keys)
    space.answer_path(3).parent.mkdir()
    p = space.session.parameters
    forged = np.zeros((p.groups, p.answer_width(USERS)), dtype="<u4")
    header = space.session.header(3, survivors="0" * 64)
    write_artifact(space.answer_path(3), "elimination", header, {"y": forged})
    eliminate(space, 3, identity=keys[3])


@pytest.mark.skipif(shutil.which("age") is None, reason="the age program is not installed")
def test_the_age_program_opens_what_is_sealed_here(tmp_path, keys):
    space = start(tmp_path, keys)
    plain = tmp_path / "plain.h5"
    subprocess.run(
        ["age", "-d", "-i", str(keys[1]), "-o", str(plain), str(space.share_path(1, 2))], check=True, timeout=60
    )
    with opened(plain, "share") as artifact:
        assert artifact.attributes["sender"] == 2
        assert artifact.read_rows("f", 0, 1).tobytes() == row_bytes(space, keys)
