"""Sealed shares: only their receiver can open them, only their sender can make them, and no plaintext is left.

Which identity a step takes, and whose keys, is in tests/commands/test_access.py; interruptions are in tests/faults.
"""

import shutil
import subprocess

import numpy as np
import pytest
from rounds import USERS, finish, make_keys, mask_all, rewrite, start

from topk_secagg.errors import BadData, CannotWrite, InputMissing
from topk_secagg.gradients.layout import Layout
from topk_secagg.protocol.constructions import construction
from topk_secagg.steps.eliminate import eliminate
from topk_secagg.steps.freeze import freeze
from topk_secagg.steps.offline import offline
from topk_secagg.storage import share as share_file
from topk_secagg.storage.artifacts import opened
from topk_secagg.storage.keys import Recipient, read_identity, read_recipients
from topk_secagg.storage.masked import read as read_masked

L = 60


@pytest.fixture
def keys(tmp_path):
    """The file with everybody's public keys, and each user's access."""
    return make_keys(tmp_path)


def sealed(tmp_path, keys, name="round", **options):
    recipients, access = keys
    return start(tmp_path / name, Layout.flat(L), recipients=recipients, access=access, top_k=6, **options)


def masked(space, tmp_path, keys, *, frozen=True):
    """All users mask, and the round is frozen; the gradients."""
    gradients = np.random.default_rng(0).uniform(-1, 1, (USERS, L))
    files = [tmp_path / f"g{n}.npy" for n in range(USERS)]
    for path, gradient in zip(files, gradients, strict=True):
        np.save(path, gradient)
    mask_all(space, files, keys[1])
    if frozen:
        freeze(space, access=keys[1][1])
    return gradients


def row_bytes(space, access, user=1, sender=2):
    """Some bytes of a share in the clear."""
    with share_file.opened_share(space, user, sender, identity=read_identity(access[user].identity)) as share:
        return share.artifact.read_rows(share.names[0], 0, 1).tobytes()


@pytest.mark.parametrize("kind", ["permutation", "moments"])
@pytest.mark.parametrize("randomness", ["cipher", "os"])
def test_a_sealed_round_gives_the_plain_sum_and_offline_again_changes_nothing(tmp_path, keys, kind, randomness):
    options = {"top_k": L, "construction": kind, "randomness": randomness}
    space = start(tmp_path / "round", Layout.flat(L), recipients=keys[0], access=keys[1], **options)
    for user in space.users():
        assert offline(space, user, randomness=randomness, access=keys[1][user]).written == 0
    gradients = masked(space, tmp_path, keys)
    total = finish(space, access=keys[1])
    assert np.abs(total - gradients.sum(axis=0)).max() <= 2 * USERS / space.session.parameters.scale
    assert {path.suffix for path in (space.root / "shares").rglob("from-*")} == {".age"}


def test_no_plaintext_share_has_a_name_on_the_senders_disk_at_any_time(tmp_path, keys, monkeypatch):
    seen, secrets = [], set()
    seal = share_file.seal

    def watched(plain, path, recipient):
        plain.seek(0)
        secrets.add(plain.read()[-500:])
        seen.extend(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
        seal(plain, path, recipient)
        seen.append(path.read_bytes())

    monkeypatch.setattr(share_file, "seal", watched)
    space = sealed(tmp_path, keys)
    secrets.add(row_bytes(space, keys[1]))
    assert len(secrets) == USERS**2 + 1
    assert not any(secret in content for secret in secrets for content in set(seen))


def test_a_failing_disk_is_one_clear_error(tmp_path, keys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyrage.encrypt_io", full)
    with pytest.raises(CannotWrite, match="no space left"):
        sealed(tmp_path, keys)
    assert not list((tmp_path / "round" / "shares").rglob("*.age"))


def refused(space, access, match, error=BadData):
    before = sorted((space.root / "secrets").iterdir())
    with pytest.raises(error, match=match):
        eliminate(space, 1, access=access[1])
    assert not space.answer_path(1).exists()
    assert sorted((space.root / "secrets").iterdir()) == before, "no plaintext is left behind"


def test_damaged_swapped_replayed_and_missing_shares_are_refused_naming_the_sender(tmp_path, keys):
    space, other, access = sealed(tmp_path, keys), sealed(tmp_path, keys, "other"), keys[1]
    masked(space, tmp_path, keys)
    path = space.share_path(1, 2)
    good = path.read_bytes()
    for at in (10, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        refused(space, access, "user 2 does not open")
    path.write_bytes(good[: len(good) // 2])
    refused(space, access, "user 2 does not open")
    shutil.copy(space.share_path(1, 3), path)
    refused(space, access, "its sender is 3, not 2|user 2 did not sign it")
    shutil.copy(space.share_path(3, 2), path)
    refused(space, access, "user 2 does not open")
    shutil.copy(other.share_path(1, 2), path)
    refused(space, access, "another session")
    path.unlink()
    refused(space, access, "users 2 for user 1 have not arrived", InputMissing)
    path.write_bytes(good)
    eliminate(space, 1, access=access[1])


def test_a_share_that_a_third_user_forged_and_signed_itself_is_refused(tmp_path, keys, monkeypatch):
    space, access = sealed(tmp_path, keys), keys[1]
    masked(space, tmp_path, keys)
    c = construction(space.session.parameters)
    sharing = read_masked(space.session, space.masked_path(2), 2).sharing
    forger = read_identity(access[3].identity)
    with share_file.writing_shares(space, 2, [1], sharing, forger) as writer:
        for name in c.share_names:
            writer.put(name, 0, np.zeros((1, c.rows, c.width), dtype=np.uint32))
    refused(space, access, "user 2 did not sign it: the file is forged")
    # the twin: without the check of the signature the forgery would be believed
    monkeypatch.setattr(Recipient, "verify", lambda *_: True)
    eliminate(space, 1, access=access[1])


def test_an_x_that_its_user_did_not_sign_is_not_frozen(tmp_path, keys, monkeypatch):
    space, access = sealed(tmp_path, keys), keys[1]
    masked(space, tmp_path, keys, frozen=False)
    for signer in (None, read_identity(access[3].identity)):  # the old signature, and that of another user
        rewrite(space.masked_path(2), lambda _, datasets: datasets["value"].fill(1), signer)
        with pytest.raises(BadData, match="user 2 did not sign it"):
            freeze(space, [1, 2, 3], access=access[1])
    with monkeypatch.context() as patch:  # the twin: without the check everybody would answer the forged X
        patch.setattr(Recipient, "verify", lambda *_: True)
        freeze(space, access=access[1])
        eliminate(space, 1, access=access[1])


def test_recipients_that_are_not_one_valid_line_for_each_user_are_refused(tmp_path, keys):
    good = keys[0].read_text().splitlines()
    bad = tmp_path / "bad"
    head, key = good[0].split("ed25519:")
    same = good[1].split()
    for lines, match in (
        ([], "exactly one line for each"),
        (good[:3], "exactly one line for each"),
        (["what is this"], "a line is not"),
        (["1 age1xyz ed25519:00", *good[1:]], "not valid"),
        ([*good, good[0]], "two lines"),
        ([f"{good[0].split()[0]} {same[1]} {same[2]}", *good[1:]], "same key"),
        ([f"{head}ed25519:{key.upper()}", *good[1:]], "not valid"),  # a key has one spelling
        ([f"{head}ed25519:{key[:2]} {key[2:]}", *good[1:]], "a line is not"),
        (["9" * 5000 + good[0][1:], *good[1:]], "a line is not"),
    ):
        bad.write_text("\n".join(lines))
        with pytest.raises(BadData, match=match):
            read_recipients(bad, USERS)
    bad.write_text("\n# a comment\n".join(reversed(good)))
    assert [r.user for r in read_recipients(bad, USERS)] == [1, 2, 3, 4]


def test_a_new_secret_gets_new_sealed_shares(tmp_path, keys):
    """A sealed share does not show of which sharing it is: those of a lost secret must not stay."""
    space, access = sealed(tmp_path, keys), keys[1]
    space.secret_path(1).unlink()
    space.ledger_path(1).unlink()
    assert offline(space, 1, access=access[1]).written == USERS
    masked(space, tmp_path, keys)
    finish(space, access=access)


@pytest.mark.parametrize("content", [b"", b"age-encryption.org/v1\n-> X25519 a\n---", bytes(100_000)])
def test_an_invalid_sealed_share_is_written_again(tmp_path, keys, content):
    space, access = sealed(tmp_path, keys), keys[1]
    space.share_path(3, 1).write_bytes(content)
    assert offline(space, 1, access=access[1]).written == 1
    assert offline(space, 1, access=access[1]).written == 0


def test_a_forged_answer_does_not_keep_its_victim_from_answering(tmp_path, keys):
    space, access = sealed(tmp_path, keys), keys[1]
    masked(space, tmp_path, keys)
    eliminate(space, 2, access=access[2])
    shutil.copy(space.answer_path(2), space.answer_path(3))
    rewrite(space.answer_path(3), lambda attributes, _: attributes.update(user=3, survivors="0" * 64))
    eliminate(space, 3, access=access[3])


@pytest.mark.skipif(shutil.which("age") is None, reason="the age program is not installed")
def test_the_age_program_opens_what_is_sealed_here(tmp_path, keys):
    space, access = sealed(tmp_path, keys), keys[1]
    plain = tmp_path / "plain.h5"
    command = ["age", "-d", "-i", str(access[1].identity), "-o", str(plain), str(space.share_path(1, 2))]
    subprocess.run(command, check=True, timeout=60)
    with opened(plain, share_file.KIND) as artifact:
        assert artifact.attributes["sender"] == 2
        assert artifact.read_rows("f", 0, 1).tobytes() == row_bytes(space, access)
