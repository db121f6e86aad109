"""Only what its user made for this round is a contribution: what has left is recognised as long as
the folder of secrets is there, and nothing but the user's word for one call sends it again."""

import hashlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from played import Round, must

from topk_secagg.rounds import mask as mask_step
from topk_secagg.storage import inputs

pytestmark = pytest.mark.rule(13)

ALL = (1, 2, 3, 4, 5)


@pytest.fixture
def construction():
    return "sketch"


@pytest.fixture
def skipped(new_round) -> Round:
    """A round in which all have masked and whose survivors have answered, and that gave no sum."""
    r = new_round(homes=True, residual=True, masking=ALL, answering=ALL)
    return r.play(upto="answered")


def following(r: Round, generation: int) -> Round:
    folder = r.folder.with_name(f"round-{generation}")
    return r.next_of_series(folder, "--generation", generation).play(after="init", upto="offline")


def test_an_app_that_trains_the_same_way_again_drops_out_in_every_later_round(skipped, refuses):
    """In the third round too: the second one was given up, and both were forgotten."""
    says = "user 1 has sent this gradient already"
    second = following(skipped, 1)
    refuses(77, *second.mask(1), says=says)
    must(*skipped.forget(1))
    refuses(77, *second.mask(1), says=says)
    third = following(second, 2)
    must(*second.forget(1, "--give-up"))
    refuses(77, *third.mask(1), says=says)


def test_no_variable_gives_the_users_word(skipped, refuses, monkeypatch):
    second = following(skipped, 1)
    for name in ("TOPK_SECAGG_AGAIN", "TOPK_SECAGG_MASK_AGAIN"):
        monkeypatch.setenv(name, "1")
    refuses(77, *second.mask(1), says="user 1 has sent this gradient already")
    must(*second.mask(1, "--again"))


def test_without_the_list_the_same_update_is_in_two_sums(skipped, monkeypatch):
    """The twin."""
    second = following(skipped, 1)
    monkeypatch.setattr(mask_step.inputs, "sent", lambda *_: [])
    must(*second.mask(1))


def guesses(r: Round) -> dict[str, bytes]:
    """What somebody would try out who has a guess of a user's gradient or residual: SHA-256 of its
    numbers, of its file, and what the program itself has in the files that hold it."""
    flat = np.load(r.gradient(1))
    with h5py.File(r.residual(1)) as file:
        kept = file["value"][...]
        own = bytes.fromhex(file.attrs["sha256"].decode())
    files = {"file": r.gradient(1), "file of the residual": r.residual(1)}
    texts = {name: path.read_bytes() for name, path in files.items()}
    for name, values in (("gradient", flat), ("residual", kept)):
        texts |= {f"{name}, {kind}": values.astype(kind).tobytes() for kind in ("<f8", "<f4")}
    return {name: hashlib.sha256(text).digest() for name, text in texts.items()} | {"own": own}


def found(r: Round, digest: bytes) -> list[Path]:
    """The files of users and of the round that have a digest, but the residual itself."""
    files = (path for folder in (r.folder, r.home(1)) for path in folder.rglob("*"))
    return [
        path
        for path in files
        if path.is_file() and not path.name.endswith("residual.h5")
        for content in [path.read_bytes()]
        if digest in content or digest.hex().encode() in content
    ]


def test_no_digest_of_a_gradient_or_a_residual_is_kept_without_a_key(skipped):
    assert {name: found(skipped, digest) for name, digest in guesses(skipped).items()} == {
        name: [] for name in guesses(skipped)
    }


def test_if_the_ledger_had_the_digest_of_the_residual_a_guess_could_be_tried_out(
    new_round, monkeypatch
):
    """The twin."""
    monkeypatch.setattr(inputs, "residual_digest", lambda _key, sha256: sha256)
    r = new_round(homes=True, residual=True, masking=ALL).play(upto="masked")
    assert [path.name for path in found(r, guesses(r)["own"])] == ["user-01.ledger.json"]
