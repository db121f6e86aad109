"""What was sent is not sent again, by mistake or with other survivors: whether or not the round
gave a sum, and whatever was forgotten."""

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


def session(r: Round) -> str:
    return Workspace(r.folder).session.id


def retry(r: Round, folder: str = "retry") -> Round:
    """Another session of the same users, with the same gradients and folders of secrets."""
    again = r.elsewhere(r.folder.with_name(folder))
    return again.play(upto="offline")


@pytest.fixture
def failed(new_round, monkeypatch):
    """A round in which user 5 dealt random shares, so that nobody can decode it; they are written
    out: keys cannot be dealt so."""
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
            own = answer(p, own_x, {CHEAT: share.read}, own_shape)
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
@pytest.mark.rule(10, 13)
class TestTheAttack:
    """User 5 has the sum of all honest users; in the retry it wants that of all but user 1."""

    def test_the_round_fails_and_decode_says_what_that_means(self, failed, refuses):
        said = refuses(65, *failed.decode(), besides=("decoded.json",))
        assert "a round that failed counts as published" in said.err
        assert "do not send the same gradient again with other survivors" in said.err
        assert dense(failed, honest_sum(failed)) == failed.total(HONEST)

    @pytest.mark.parametrize("decoded", [False, True])
    def test_users_do_not_mask_again(self, failed, refuses, decoded):
        again = retry(failed)
        for n in (2, 3, 4):
            if decoded:
                assert call("decode", failed.folder, "--secrets", again.home(n)).code == 65
            says = (
                f"user {n} has sent this gradient already, in session {session(failed)[:16]}",
                "counts as published",
                "--again is your word",
            )
            refuses(77, *again.mask(n), says=says, besides=(f"user-{n:02}.ledger.json",))

    def test_without_the_check_the_retry_gives_the_entries_of_user_1(self, failed, monkeypatch):
        """The twin."""
        monkeypatch.setattr(mask_step, "_sent_elsewhere", lambda *_, **__: [])
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


def test_with_again_it_is_sent_with_a_warning(failed):
    again = retry(failed)
    said = must(*again.mask(1, "--again", "--json"))
    assert said.json["sent_before"] == [session(failed)]
    assert f"masked the same gradient in session {session(failed)[:16]}" in said.err
    said = must(*again.mask(1, "--again", "--json"))  # the same step once more is no other round
    assert (said.json["sent_before"], said.err) == ([], "")


class TestHonestUsers:
    @pytest.fixture
    def answered(self, new_round):
        return new_round(**KEEPING).play(upto="answered")

    def check_refused(self, refuses, r: Round, user: int) -> None:
        says = f"user {user} has sent this gradient already, in session {session(r)[:16]}"
        refuses(77, *retry(r).mask(user), says=says, besides=(f"user-{user:02}.ledger.json",))

    def test_other_gradients_are_never_asked_about(self, answered):
        later = retry(answered)
        for n in ALL:
            said = must(*later.mask(n, "--json", gradient=answered.gradient(n % 5 + 1)))
            assert (said.json["sent_before"], said.err) == ([], "")

    @pytest.mark.parametrize("how", ["nobody decodes", "decodes", "forgets", "tidies up"])
    def test_the_same_gradient_is_refused_whatever_became_of_the_round(
        self, answered, refuses, how
    ):
        if how != "nobody decodes":
            must(*answered.decode())
        if how == "forgets":
            must(*answered.forget(1))
        name = session(answered)
        again = retry(answered)
        if how == "tidies up":
            shutil.rmtree(answered.folder)
        says = f"user 1 has sent this gradient already, in session {name[:16]}"
        refuses(77, *again.mask(1), says=says, besides=("user-01.ledger.json",))

    def test_even_where_only_the_list_of_what_was_sent_is_left(self, answered, refuses):
        shutil.rmtree(answered.private(1))
        self.check_refused(refuses, answered, 1)

    def test_without_that_list_it_would_be_sent(self, answered, monkeypatch):
        """The twin."""
        monkeypatch.setattr(inputs, "sent", lambda *_: [])
        must(*retry(answered).mask(1))

    @pytest.mark.parametrize("stage", ["masked", "answered"])
    def test_a_round_that_is_given_up_counts_too(self, new_round, refuses, stage):
        """Others may have its sum."""
        r = new_round(**KEEPING).play(upto=stage)
        must(*r.forget(2, "--give-up"))
        self.check_refused(refuses, r, 2)

    @pytest.mark.parametrize("forgets", [False, True])
    def test_who_was_left_out_sends_its_gradient_in_the_next_round(self, new_round, forgets):
        r = new_round(**KEEPING).play(upto="masked")
        must(*r.freeze("--only", "1-4"))
        if forgets:
            must(*r.forget(5))
        said = must(*retry(r).mask(5, "--json"))
        assert (said.json["sent_before"], said.err) == ([], "")

    def test_a_gradient_of_zeros_may_be_sent_again(self, answered, tmp_path):
        """Who has nothing to say may say so again."""
        np.save(tmp_path / "zeros.npy", np.zeros(answered.recipe.length))
        for name in ("one", "two"):
            said = must(*retry(answered, name).mask(1, "--json", gradient=tmp_path / "zeros.npy"))
            assert said.json["sent_before"] == []

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
