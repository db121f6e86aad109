"""A round that failed counts as published: its gradients are not sent again with other
survivors."""

import shutil
import stat
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from played import Round, call, datasets, document, every, must

from topk_secagg.algebra.randomness import KEY_BYTES, CipherRandomness
from topk_secagg.protocol.constructions import construction as construction_of
from topk_secagg.protocol.decoding import decode
from topk_secagg.protocol.messages import Sparse
from topk_secagg.protocol.round import answer, reader_of, sum_of_masked
from topk_secagg.rounds import mask as mask_step
from topk_secagg.storage import inputs, share_writer
from topk_secagg.storage.masked import read as read_masked
from topk_secagg.storage.share import SharesOfUser
from topk_secagg.storage.workspace import Workspace

ALL = (1, 2, 3, 4, 5)
HONEST = (1, 2, 3, 4)
CHEAT = 5
KEEPING = {"homes": True, "masking": ALL, "answering": HONEST}


def ledger(r: Round, user: int):
    session = Workspace(r.folder).session.id
    return document(r.home(user) / session / f"user-{user:02}.ledger.json")


def retry(r: Round, folder: str = "retry") -> Round:
    """Another session of the same users, with the same gradients and folders of secrets."""
    again = r.elsewhere(r.folder.with_name(folder))
    return again.play(upto="offline")


@pytest.fixture
def failed(new_round, monkeypatch):
    """A round in which user 5 dealt random shares, so that nobody can decode it; they are written
    out: keys and seeds cannot be dealt so."""
    r = new_round(dealing="shares", **KEEPING)
    must(*r.init())
    for user in HONEST:
        must(*r.offline(user))
    write_symbols = share_writer._write_symbols
    chance = np.random.default_rng(5)

    def random_shares(chunks, q):
        for chunk in chunks:
            noise = {
                name: chance.integers(0, q, rows.shape, dtype=np.uint32)
                for name, rows in chunk.shares.items()
            }
            yield chunk._replace(shares=noise)

    def write_random(space, users, *, chunks, **how):
        noise = random_shares(chunks, space.session.parameters.field)
        write_symbols(space, users, chunks=noise, **how)

    with monkeypatch.context() as patch:
        patch.setattr(share_writer, "_write_symbols", write_random)
        must(*r.offline(CHEAT))
    return r.play(after="offline", upto="answered")


def honest_sum(r: Round) -> Sparse:
    """What user 5 computes from the answers of the others, less its own terms in them."""
    space = Workspace(r.folder)
    p = space.session.parameters
    points = space.session.points
    survivors = [row["user"] for row in document(r.folder / "survivors.json")["survivors"]]
    shape = construction_of(p).answer_shape(len(survivors))
    x = {n: read_masked(space.session, space.masked_path(n), n).masked for n in survivors}
    own_x = {CHEAT: x.pop(CHEAT)}
    own_shape = shape if p.construction != "sketch" else replace(shape, survivor_count=1)
    answers = {}
    for n in r.recipe.answering:
        with SharesOfUser(space, n).opened(CHEAT) as share:  # which user 5 made
            own = answer(p, points, n, own_x, {CHEAT: share.read}, own_shape)
        y = datasets(space.answer_path(n))["y"].astype(np.uint64)
        rest = (y + p.field - own) % p.field
        answers[n] = reader_of(rest.astype(np.uint32))
    source = CipherRandomness(bytes(KEY_BYTES))
    honest_x = sum_of_masked(p, x.values(), shape)
    return decode(p, points, shape, answers, source, masked_sum=honest_x).total


def dense(r: Round, total: Sparse) -> list[int]:
    vector = [0] * r.recipe.length
    for k, value in zip(total.index.tolist(), total.value.tolist(), strict=True):
        vector[k] = value
    return vector


@every
class TestTheAttack:
    """User 5 has the sum of all honest users; in the retry it wants that of all but user 1."""

    def test_the_round_fails_and_decode_says_what_that_means(self, failed, refuses):
        said = refuses(65, *failed.decode())
        assert "a round that failed counts as published" in said.err
        assert "do not send the same gradient again with other survivors" in said.err
        assert dense(failed, honest_sum(failed)) == failed.total(HONEST)

    def test_users_that_answered_do_not_mask_again(self, failed, refuses):
        again = retry(failed)
        for n in (2, 3, 4):
            said = refuses(77, *again.mask(n))
            assert f"{failed.folder}, and no sum is known" in said.err
            assert "decode that round first" in said.err
            assert f"topk-secagg decode {failed.folder} --secrets DIR" in said.err
            assert "mask --again sends it all the same" in said.err
            assert call(*failed.decode("--secrets", again.home(n))).code == 65
            assert ledger(failed, n)["outcome"] == "failed"
            said = refuses(77, *again.mask(n))
            assert "and that round failed" in said.err
            assert "counts as published" in said.err
            assert "--again" in said.err

    def test_without_the_check_the_retry_gives_the_entries_of_user_1(self, failed, monkeypatch):
        """The twin."""
        monkeypatch.setattr(mask_step, "sent_before", lambda *_, **__: [])
        again = replace(retry(failed), recipe=replace(failed.recipe, answering=(2, 3, 4)))
        for n in (2, 3, 4, 5):
            must(*again.mask(n))
        must(*again.freeze())
        for n in (2, 3, 4):
            must(*again.eliminate(n))
        first, second = honest_sum(failed), honest_sum(again)
        q = failed.recipe.field
        difference = [
            (a - b) % q for a, b in zip(dense(failed, first), dense(again, second), strict=True)
        ]
        assert difference == failed.total([1])
        assert any(difference)


def test_a_user_that_did_not_answer_is_refused_once_it_knows_that_the_round_failed(
    failed, refuses, tmp_path
):
    other = replace(failed, recipe=replace(failed.recipe, answering=(1, 2, 3, 5)))
    missed = other.elsewhere(tmp_path / "missed")
    shutil.copytree(failed.folder, missed.folder)
    (missed.folder / "elimination/user-04.h5").unlink()
    path = other.home(4) / Workspace(failed.folder).session.id / "user-04.ledger.json"
    path.write_bytes(path.read_bytes().replace(
        f'"answered": "{ledger(failed, 4)["answered"]}"'.encode(), b'"answered": null'
    ))  # fmt: skip
    again = retry(failed)
    assert str(failed.folder) in must(*again.mask(4)).err  # it is not known that the round failed
    must(*missed.eliminate(5))
    assert call(*missed.decode("--secrets", missed.home(4))).code == 65
    third = retry(failed, "third")
    assert "that round failed" in refuses(77, *third.mask(4)).err


def test_with_again_it_is_sent_with_a_warning(failed):
    again = retry(failed)
    said = must(*again.mask(1, "--again", "--json"))
    assert said.json["sent_before"] == [str(failed.folder)]
    assert f"masked the same gradient in the round in {failed.folder}" in said.err
    said = must(*again.mask(1, "--json"))  # the same step once more is no other round
    assert (said.json["sent_before"], said.err) == ([], "")


def test_a_round_that_failed_and_was_decoded_later_is_a_decoded_one(failed):
    """One more answer can make the difference; a sum that is known stays known."""
    assert call(*failed.decode("--secrets", failed.home(1))).code == 65
    session = Workspace(failed.folder).session
    assert ledger(failed, 1)["outcome"] == "failed"
    from topk_secagg.rounds.published import DECODED, FAILED, record_outcome

    space = Workspace(failed.folder, failed.home(1))
    for outcome in (DECODED, FAILED):
        record_outcome(space, outcome)
        assert ledger(failed, 1)["outcome"] == "decoded"
    assert space.session.id == session.id


class TestHonestUsers:
    @pytest.fixture
    def decoded(self, new_round):
        return new_round(**KEEPING).play(upto="answered")

    def test_other_gradients_are_never_asked_about(self, decoded):
        later = retry(decoded)
        for n in ALL:
            said = must(*later.mask(n, "--json", gradient=decoded.gradient(n % 5 + 1)))
            assert (said.json["sent_before"], said.err) == ([], "")

    @pytest.mark.parametrize("how", ["decodes itself", "decodes and tidies up", "gets the sum"])
    def test_the_same_gradient_after_a_sum_that_is_known_is_only_warned_about(self, decoded, how):
        if how == "gets the sum":  # from somebody who decoded, and did not touch its ledger
            must(*decoded.decode())
            assert ledger(decoded, 1)["outcome"] is None
        else:
            must(*decoded.decode("--secrets", decoded.home(1)))
            assert ledger(decoded, 1)["outcome"] == "decoded"
        if how == "decodes and tidies up":
            shutil.rmtree(decoded.folder)
        said = must(*retry(decoded).mask(1, "--json"))
        assert said.json["sent_before"] == [str(decoded.folder)]
        assert "whoever has the sums of both can subtract them" in said.err

    def test_a_sum_of_another_survivor_set_is_not_the_one_that_was_answered(self, decoded, refuses):
        must(*decoded.decode())
        path = decoded.home(1) / Workspace(decoded.folder).session.id / "user-01.ledger.json"
        digest = ledger(decoded, 1)["answered"]
        path.write_bytes(path.read_bytes().replace(
            f'"answered": "{digest}"'.encode(), f'"answered": "{"0" * 64}"'.encode()
        ))  # fmt: skip
        assert "no sum is known" in refuses(77, *retry(decoded).mask(1)).err

    def test_who_was_left_out_sends_its_gradient_in_the_next_round(self, new_round):
        r = new_round(**KEEPING).play(upto="masked")
        must(*r.freeze("--only", "1-4"))
        said = must(*retry(r).mask(5, "--json"))
        assert (said.json["sent_before"], said.err) == ([], "")

    def test_forget_drops_the_digest(self, decoded):
        assert ledger(decoded, 1)["input"]
        must(*decoded.forget(1), "--secrets", decoded.home(1))
        assert ledger(decoded, 1)["input"] is None
        assert must(*retry(decoded).mask(1)).err == ""

    @pytest.mark.parametrize("stage", ["masked", "answered"])
    def test_a_round_that_is_given_up_is_not_forgotten_in_this(self, new_round, refuses, stage):
        """It counts as published: others may have its sum."""
        r = new_round(**KEEPING).play(upto=stage)
        must(*r.forget(2, "--give-up"))
        assert (ledger(r, 2)["forgotten"], ledger(r, 2)["input"] is None) == (True, False)
        again = retry(r)
        if stage == "answered":
            refuses(77, *again.mask(2), says="no sum is known")
            must(*r.decode("--secrets", again.home(2)))
        assert "masked the same gradient" in must(*again.mask(2)).err

    @pytest.mark.parametrize("outcome", ["decoded", "left out"])
    def test_it_is_where_the_sum_is_known_or_is_without_its_user(self, new_round, outcome):
        r = new_round(**KEEPING).play(upto="masked")
        if outcome == "decoded":
            r.play(after="masked", upto="decoded")
        else:
            must(*r.freeze("--only", "1,3,4"))
        must(*r.forget(2, "--give-up"))
        assert ledger(r, 2)["input"] is None

    def test_without_a_folder_of_secrets_rounds_know_nothing_of_each_other(self, new_round):
        r = new_round(masking=ALL, answering=HONEST).play(upto="answered")
        assert must(*retry(r).mask(1)).err == ""
        found = document(r.folder / "secrets/user-01.ledger.json")
        assert (found["folder"], len(found["input"])) == (None, 64)


class TestTheDigest:
    def test_its_key_is_private_and_the_same_for_all_users_of_a_folder(self, new_round):
        r = new_round().play(upto="offline")
        must("mask", r.folder, "--user", "all", "--gradients", r.inputs / "gradients")
        path = r.folder / "secrets/input.key"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        space = Workspace(r.folder)
        for n in ALL:
            expected = inputs.digest(path.read_bytes(), np.load(r.gradient(n)))
            assert document(space.ledger_path(n))["input"] == expected

    @pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 33])
    def test_a_damaged_key_is_refused(self, round_at, refuses, content):
        r = round_at("offline")
        (r.folder / "secrets/input.key").write_bytes(content)
        assert "is not a key of 32 bytes" in refuses(65, *r.mask(1)).err

    @given(
        st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9),
        st.binary(min_size=32, max_size=32),
        st.binary(min_size=32, max_size=32),
    )
    def test_it_depends_on_the_values_and_the_key_alone(self, values, key, other):
        single = np.array(values, dtype=np.float32)
        double = single.astype(np.float64)
        assert inputs.digest(key, single) == inputs.digest(key, double)
        assert inputs.digest(key, np.where(double == 0, -0.0, double)) == inputs.digest(key, double)
        changed = double.copy()
        changed[0] = 0.5 if double[0] != 0.5 else 2.0
        assert inputs.digest(key, changed) != inputs.digest(key, double)
        assert (inputs.digest(other, double) == inputs.digest(key, double)) == (key == other)

    def test_long_gradients_are_taken_piece_by_piece(self, monkeypatch):
        values = np.arange(10.0)
        key = bytes(32)
        whole = inputs.digest(key, values)
        monkeypatch.setattr(inputs, "_AT_ONCE", 3)
        assert inputs.digest(key, values) == whole
