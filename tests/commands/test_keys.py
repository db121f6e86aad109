"""Dealing by keys that can be checked: who is dealt wrong keys notices, and nobody answers with
them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from oracle import plain_sum
from played import Round, call, datasets, document, edit, judged, must, put, rewrite, words

from topk_secagg.errors import BadData
from topk_secagg.protocol.constructions import construction as construction_of
from topk_secagg.protocol.deal import next_key
from topk_secagg.protocol.family import lacking_coalition
from topk_secagg.protocol.messages import Sparse
from topk_secagg.rounds import decode as decode_step
from topk_secagg.rounds import eliminate as eliminate_step
from topk_secagg.rounds import freeze as freeze_step
from topk_secagg.rounds import inspect as inspect_step
from topk_secagg.rounds import series as series_step
from topk_secagg.storage import chain as chain_file
from topk_secagg.storage import dealt as dealt_file
from topk_secagg.storage import secret as secret_file
from topk_secagg.storage import share as share_file
from topk_secagg.storage import share_writer
from topk_secagg.storage.dealt import Dealt
from topk_secagg.storage.keys import read_identity
from topk_secagg.storage.ledger import Ledger
from topk_secagg.storage.masked import read as read_masked
from topk_secagg.storage.workspace import Workspace

ALL = (1, 2, 3, 4, 5)
FIVE = {"masking": ALL, "answering": ALL}  # U + T + 1: enough that one wrong answer is named
CHEAT = 4  # the dealer
VICTIM = 1  # an honest user
plain_and_sealed = pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])


@pytest.fixture
def construction():
    return "sketch"


def signer(r: Round, user: int):
    return read_identity(r.identity(user)) if r.recipe.sealed else None


def chain_of(r: Round, user: int) -> chain_file.Chain:
    space = r.space(user)
    return chain_file.read(series_step.chain_path(space, user), space.session, user)


def own_keys(r: Round, dealer: int) -> tuple[bytes, ...]:
    return chain_of(r, dealer).own


def deal_keys(r: Round, keys: tuple[bytes, ...], users=(VICTIM,), dealer: int = CHEAT) -> None:
    """The dealer sends these users other keys, signed and sealed as it should be."""
    space = r.space(dealer)
    share_writer.write_keys(
        space,
        users=list(users),
        deal=space.session.deal(dealer, secret_file.read(space, dealer).sharing),
        own_keys=keys,
        signer=signer(r, dealer),
    )


def list_of(r: Round, keys: tuple[bytes, ...], dealer: int = CHEAT) -> bytes:
    """The dealer's list of commitments to other keys."""
    return dealt_file.content(Workspace(r.folder).session, dealer, keys, signer(r, dealer))


def list_path(r: Round, dealer: int = CHEAT) -> Path:
    return Workspace(r.folder).dealt_path(dealer)


def share_path(r: Round, user: int = VICTIM, dealer: int = CHEAT) -> Path:
    return Workspace(r.folder).share_path(user, dealer)


def answered(r: Round, user: int = VICTIM) -> bool:
    """Whether a user has answered, by its file or by its ledger."""
    space = r.space(user)
    ledger = Ledger.read(space.ledger_path(user), space.session.id, user)
    there = space.answer_path(user).exists()
    assert there == (ledger.answered is not None)
    return there


def holds(r: Round, user: int) -> list[int]:
    space = Workspace(r.folder)
    return sorted(read_masked(space.session, space.masked_path(user), user).holds)


def changed(keys: tuple[bytes, ...], at: int, key: bytes) -> tuple[bytes, ...]:
    return (*keys[:at], key, *keys[at + 1 :])


def blocks_of(r: Round, user: int) -> list[int]:
    """Where the user's blocks are in the family."""
    family = Workspace(r.folder).session.family or ()
    return [at for at, block in enumerate(family) if user in block]


def other_keys(r: Round) -> tuple[bytes, ...]:
    """Keys that are all wrong, each of them for its block."""
    return tuple(bytes(byte ^ 1 for byte in key) for key in own_keys(r, CHEAT))


def one_bit(r: Round, keys):
    at = blocks_of(r, VICTIM)[0]
    return changed(keys, at, bytes([keys[at][0] ^ 1]) + keys[at][1:])


def zeros(r: Round, keys):
    return changed(keys, blocks_of(r, VICTIM)[0], bytes(32))


def of_another_block(r: Round, keys):
    first, second, *_ = blocks_of(r, VICTIM)
    return changed(keys, first, keys[second])


def of_another_dealer(r: Round, keys):
    at = blocks_of(r, VICTIM)[0]
    return changed(keys, at, own_keys(r, 5)[at])


def of_the_next_generation(r: Round, keys):
    at = blocks_of(r, VICTIM)[0]
    return changed(keys, at, next_key(keys[at]))


WRONG_KEYS = [one_bit, zeros, of_another_block, of_another_dealer, of_the_next_generation]
NOT_PUBLISHED = "is not the one that it published"
OTHER_LIST = f"user {CHEAT} gave this user another list of keys than the one that its X names"
NOT_ENTERED = f"has not entered the keys of user {CHEAT}: its X does not name them"


class TestOneWrongKey:
    """A dealer gives one user a key to which it is not committed."""

    @plain_and_sealed
    @pytest.mark.parametrize("wrong", WRONG_KEYS)
    def test_its_receiver_names_it_and_the_round_goes_on(self, round_at, refuses, sealed, wrong):
        r = round_at("offline", sealed=sealed, **FIVE)
        deal_keys(r, wrong(r, own_keys(r, CHEAT)))
        said = must(*r.mask(VICTIM, "--json"))
        assert list(said.json["bad_shares"]) == [str(CHEAT)]
        assert NOT_PUBLISHED in said.json["bad_shares"][str(CHEAT)]
        assert f"the share of user {CHEAT} for user {VICTIM} is bad" in said.err
        assert said.json["missing_shares"] == []
        assert said.json["holds"] == holds(r, VICTIM) == [1, 2, 3, 5]
        for n in (2, 3, 4, 5):
            assert must(*r.mask(n)).err == ""
            assert holds(r, n) == list(ALL)
        assert must(*r.freeze("--json")).json["survivors"] == list(ALL)
        refuses(66, *r.eliminate(VICTIM), says=NOT_ENTERED)
        assert not answered(r)
        for n in (2, 3, 4, 5):
            must(*r.eliminate(n))
        assert must(*r.decode("--json")).json["corrected"] == []
        r.check_sum(answering=(2, 3, 4, 5))

    @plain_and_sealed
    def test_who_deals_them_to_many_is_left_out(self, round_at, sealed):
        r = round_at("offline", sealed=sealed, masking=ALL, answering=(1, 2, 3, 5))
        deal_keys(r, other_keys(r), users=(1, 2, 3))
        for n in ALL:
            must(*r.mask(n))
        left_out = must(*r.freeze("--json")).json["left_out"]
        assert left_out == {str(CHEAT): "too few users hold its share"}
        r.play(after="frozen").check_sum(survivors=(1, 2, 3, 5))

    @plain_and_sealed
    @pytest.mark.parametrize("wrong", WRONG_KEYS)
    def test_if_keys_were_not_compared_an_honest_user_would_be_named(
        self, round_at, monkeypatch, sealed, wrong
    ):
        """The twin: the dealer frames whoever it likes, in a sealed round with words of guilt."""
        r = round_at("offline", sealed=sealed, **FIVE)
        deal_keys(r, wrong(r, own_keys(r, CHEAT)))
        monkeypatch.setattr(Dealt, "check", lambda *_, **__: None)
        r.play(after="offline")
        said = must(*r.decode("--json"))
        assert said.json["corrected"] == [VICTIM]
        told = must(*r.decode()).out
        assert f"WRONG ANSWERS from user {VICTIM}" in told
        assert ("lied" in told) == sealed

    @plain_and_sealed
    @pytest.mark.parametrize("stage", ["masked", "frozen"])
    def test_keys_that_were_compared_stay(self, round_at, sealed, stage):
        """What comes afterwards in their place is not looked at any more."""
        r = round_at(stage, sealed=sealed, **FIVE)
        deal_keys(r, one_bit(r, own_keys(r, CHEAT)))
        list_path(r).write_bytes(list_of(r, other_keys(r)))
        r.play(after=stage).check_sum(answering=ALL)


WHEN = ("offline", "masked", "frozen")


class TestNobodyHonestIsNamed:
    """Whomever a dealer gives wrong keys, and whenever: who answers answers rightly."""

    @pytest.mark.parametrize("stage", WHEN)
    @pytest.mark.parametrize("users", [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 5)])
    def test_by_decode(self, round_at, stage, users):
        r = round_at(stage, **FIVE)
        deal_keys(r, other_keys(r), users=users)
        for command in r.left(after=stage, upto="frozen"):
            must(*command)
        survivors = [row["user"] for row in document(r.folder / "survivors.json")["survivors"]]
        codes = {n: judged(*r.eliminate(n)).code for n in survivors}
        fooled = users if CHEAT in survivors and stage == "offline" else ()
        assert codes == {n: 66 if n in fooled else 0 for n in survivors}
        result = judged(*r.decode("--json"))
        if len(survivors) - len(fooled) < r.recipe.survivors:
            assert result.code == 69
            assert re.search(r"sound answers?, and 3 are needed", result.err)
        else:
            assert (result.code, result.json["corrected"]) == (0, [])
            r.check_sum(survivors=survivors)

    @pytest.mark.parametrize("users", [(1,), (2,), (5,)])
    def test_without_the_check_each_of_them_would_be(self, round_at, monkeypatch, users):
        """The twin."""
        r = round_at("offline", **FIVE)
        deal_keys(r, other_keys(r), users=users)
        monkeypatch.setattr(Dealt, "check", lambda *_, **__: None)
        r.play(after="offline")
        assert must(*r.decode("--json")).json["corrected"] == list(users)


class TestTwoLists:
    """A dealer commits itself to other keys towards some users than its X says."""

    def dealt_twice(self, r: Round, users) -> bytes:
        """Mask all; these users have seen another list, with keys that fit it; that list."""
        first = list_path(r).read_bytes()
        second = list_of(r, other_keys(r))
        deal_keys(r, other_keys(r), users=users)
        list_path(r).write_bytes(second)
        for n in users:
            assert must(*r.mask(n, "--json")).json["holds"] == list(ALL)
        list_path(r).write_bytes(first)
        for n in ALL:
            if n not in users:
                assert must(*r.mask(n, "--json")).json["holds"] == list(ALL)
        return second

    @plain_and_sealed
    def test_the_digests_differ_and_who_has_the_other_list_does_not_answer(
        self, round_at, refuses, sealed
    ):
        r = round_at("offline", sealed=sealed, **FIVE)
        second = self.dealt_twice(r, [VICTIM])
        space = Workspace(r.folder)
        lists = {n: read_masked(space.session, space.masked_path(n), n).lists[CHEAT] for n in ALL}
        own = read_masked(space.session, space.masked_path(CHEAT), CHEAT).dealt
        assert [n for n in ALL if lists[n] != own] == [VICTIM]
        assert must(*r.freeze("--json")).json["survivors"] == list(ALL)
        refuses(65, *r.eliminate(VICTIM), says=(OTHER_LIST, "do not answer"))
        assert not answered(r)
        list_path(r).write_bytes(second)
        for n in (2, 3, 4, 5):
            must(*r.eliminate(n))
        assert must(*r.decode("--json")).json["corrected"] == []
        r.check_sum(answering=(2, 3, 4, 5))

    @plain_and_sealed
    def test_without_the_check_an_honest_user_would_be_named(self, round_at, monkeypatch, sealed):
        """The twin: the victim's keys fit the list that it was shown."""
        r = round_at("offline", sealed=sealed, **FIVE)
        self.dealt_twice(r, [VICTIM])
        must(*r.freeze())
        monkeypatch.setattr(eliminate_step, "check_keys_of", lambda *_: None)
        r.play(after="frozen")
        assert must(*r.decode("--json")).json["corrected"] == [VICTIM]

    @plain_and_sealed
    def test_freeze_leaves_out_a_dealer_whose_list_too_few_have(self, round_at, sealed):
        r = round_at("offline", sealed=sealed, masking=ALL, answering=(1, 2, 3, 5))
        self.dealt_twice(r, [1, 2, 3])
        left_out = must(*r.freeze("--json")).json["left_out"]
        assert left_out == {str(CHEAT): "too few users hold its share"}
        r.play(after="frozen").check_sum(survivors=(1, 2, 3, 5))

    @plain_and_sealed
    def test_a_dealer_whose_x_names_a_list_that_nobody_has_is_left_out(self, round_at, sealed):
        r = round_at("masked", sealed=sealed, masking=ALL, answering=(1, 2, 3, 5))
        rewrite(
            Workspace(r.folder).masked_path(CHEAT),
            lambda attributes, _: attributes.update(dealt="ab" * 32),
            signer(r, CHEAT),
        )
        left_out = must(*r.freeze("--json")).json["left_out"]
        assert left_out == {str(CHEAT): "too few users hold its share"}
        r.play(after="frozen").check_sum(survivors=(1, 2, 3, 5))

    def test_if_freeze_did_not_compare_lists_too_few_could_answer(
        self, round_at, refuses, monkeypatch
    ):
        """The twin."""
        r = round_at("offline", **FIVE)
        self.dealt_twice(r, [1, 2, 3])
        monkeypatch.setattr(freeze_step, "with_agreed_lists", dict)
        assert must(*r.freeze("--json")).json["survivors"] == list(ALL)
        for n in (1, 2, 3):
            refuses(65, *r.eliminate(n), says=OTHER_LIST)
        for n in (4, 5):
            must(*r.eliminate(n))
        refuses(69, *r.decode(), says="2 sound answers, and 3 are needed")


def signed_by_another(r: Round) -> bytes:
    session = Workspace(r.folder).session
    return dealt_file.content(session, CHEAT, own_keys(r, CHEAT), signer(r, 5))


def unsigned(r: Round) -> bytes:
    return dealt_file.content(Workspace(r.folder).session, CHEAT, own_keys(r, CHEAT), None)


def one_digit(r: Round) -> bytes:
    """A commitment with another digit, to a key that the victim does not hold."""
    content = document(list_path(r))
    family = Workspace(r.folder).session.family or ()
    at = next(at for at, block in enumerate(family) if VICTIM not in block)
    digits = content["commitments"][at]
    content["commitments"][at] = f"{int(digits[0], 16) ^ 1:x}{digits[1:]}"
    return (json.dumps(content, indent=2) + "\n").encode()


def too_short(r: Round) -> bytes:
    content = document(list_path(r))
    del content["commitments"][-1]
    return (json.dumps(content, indent=2) + "\n").encode()


def of_another_session(r: Round) -> bytes:
    return list_path(replace(r, folder=r.folder.with_name("other"))).read_bytes()


BAD_LISTS = {  # what it is, in which rounds, and what is said of it
    "forged": (signed_by_another, [True], "did not sign it: the file is forged"),
    "unsigned": (unsigned, [True], "did not sign it: the file is forged"),
    "one digit, sealed": (one_digit, [True], "did not sign it: the file is forged"),
    "of another session": (of_another_session, [False, True], "belongs to another session or user"),
    "of another user": (
        lambda r: list_path(r, 5).read_bytes(),
        [False, True],
        "belongs to another session or user",
    ),
    "truncated": (
        lambda r: list_path(r).read_bytes()[:-40],
        [False, True],
        "is not a JSON document of this program",
    ),
    "too short": (too_short, [False, True], "does not have a commitment for every block"),
    "empty": (lambda _: b"", [False, True], "is not a JSON document of this program"),
    "spelled otherwise": (
        lambda r: list_path(r).read_bytes() + b"\n",
        [False, True],
        "does not have a commitment for every block",
    ),
    "too large": (
        lambda r: list_path(r).read_bytes() + b" " * (1 << 20),
        [False, True],
        "is too large",
    ),
}
BAD_LIST_CASES = [
    pytest.param(make, sealed, says, id=f"{name}, {'sealed' if sealed else 'plain'}")
    for name, (make, where, says) in BAD_LISTS.items()
    for sealed in where
]


class TestBadLists:
    @pytest.mark.parametrize(("make", "sealed", "says"), BAD_LIST_CASES)
    def test_a_dealer_without_a_sound_list_is_not_held_nor_answered(
        self, round_at, refuses, make, sealed, says
    ):
        if make is of_another_session:
            round_at("offline", "other", sealed=sealed, name="other", **FIVE)
        r = round_at("offline", sealed=sealed, **FIVE)
        bad = make(r)
        sound = list_path(r).read_bytes()
        list_path(r).write_bytes(bad)
        said = must(*r.mask(VICTIM, "--json"))
        assert list(said.json["bad_shares"]) == [str(CHEAT)]
        assert says in said.json["bad_shares"][str(CHEAT)]
        assert holds(r, VICTIM) == [1, 2, 3, 5]
        list_path(r).write_bytes(sound)
        for n in (2, 3, 4, 5):
            must(*r.mask(n))
        must(*r.freeze())
        refuses(66, *r.eliminate(VICTIM), says=NOT_ENTERED)
        assert not answered(r)
        list_path(r).write_bytes(bad)  # after it was compared nobody reads it again
        for n in (2, 3, 4, 5):
            must(*r.eliminate(n))
        assert must(*r.decode("--json")).json["corrected"] == []
        r.check_sum(answering=(2, 3, 4, 5))

    def test_without_signatures_an_innocent_dealer_would_be_accused(self, round_at, monkeypatch):
        """The twin: somebody replaced the list, and it reads as if the dealer had lied."""
        r = round_at("offline", sealed=True, **FIVE)
        forged = dealt_file.content(Workspace(r.folder).session, CHEAT, other_keys(r), signer(r, 5))
        list_path(r).write_bytes(forged)
        before = must(*r.mask(VICTIM, "--json")).json["bad_shares"][str(CHEAT)]
        assert "forged" in before
        assert NOT_PUBLISHED not in before
        r = round_at("offline", "twin", sealed=True, **FIVE)
        list_path(r).write_bytes(forged)
        monkeypatch.setattr(dealt_file, "check_signature", lambda *_, **__: None)
        after = must(*r.mask(VICTIM, "--json")).json["bad_shares"][str(CHEAT)]
        assert NOT_PUBLISHED in after

    def test_a_plain_list_with_another_digit_is_another_list(self, round_at, refuses):
        """The victim's own keys fit it, and it is still not the one that X names."""
        r = round_at("offline", **FIVE)
        sound = list_path(r).read_bytes()
        list_path(r).write_bytes(one_digit(r))
        assert must(*r.mask(VICTIM, "--json")).json["holds"] == list(ALL)
        list_path(r).write_bytes(sound)
        for n in (2, 3, 4, 5):
            must(*r.mask(n))
        must(*r.freeze())
        refuses(65, *r.eliminate(VICTIM), says=OTHER_LIST)
        assert not answered(r)

    @plain_and_sealed
    def test_a_missing_list_is_a_missing_share(self, round_at, sealed):
        r = round_at("offline", sealed=sealed, **FIVE)
        list_path(r).rename(r.folder / "later")
        said = must(*r.mask(VICTIM, "--json"))
        assert said.json["missing_shares"] == [CHEAT]
        assert f"has not received the shares of user {CHEAT}" in said.err
        assert holds(r, VICTIM) == [1, 2, 3, 5]
        (r.folder / "later").rename(list_path(r))
        for n in (2, 3, 4, 5):
            must(*r.mask(n))
        must(*r.freeze())
        list_path(r).unlink()
        for n in (2, 3, 4, 5):
            must(*r.eliminate(n))
        assert must(*r.decode("--json")).json["corrected"] == []


class TestLate:
    """Keys that arrive late."""

    @plain_and_sealed
    def test_after_mask_they_are_not_entered_any_more(self, round_at, refuses, sealed):
        """X says whose keys its user holds, and that stays so."""
        r = round_at("offline", sealed=sealed, **FIVE)
        late = r.folder / "late"
        share_path(r).rename(late)
        assert must(*r.mask(VICTIM, "--json")).json["missing_shares"] == [CHEAT]
        for n in (2, 3, 4, 5):
            must(*r.mask(n))
        must(*r.freeze())
        late.rename(share_path(r))
        assert must(*r.mask(VICTIM, "--json")).json["holds"] == [1, 2, 3, 5]
        refuses(66, *r.eliminate(VICTIM), says=NOT_ENTERED)
        assert not answered(r)
        for n in (2, 3, 4, 5):
            must(*r.eliminate(n))
        assert must(*r.decode("--json")).json["corrected"] == []
        r.check_sum(answering=(2, 3, 4, 5))

    @plain_and_sealed
    def test_before_mask_they_count_when_it_runs_again(self, round_at, refuses, sealed):
        r = round_at("offline", sealed=sealed, **FIVE)
        moved = {m: r.folder / f"late-{m}" for m in (3, 4, 5)}
        for m, late in moved.items():
            share_path(r, dealer=m).rename(late)
        said = refuses(66, *r.mask(VICTIM), says="holds the shares of 2 users").err
        assert "missing: users 3, 4, 5" in said
        for m, late in moved.items():
            late.rename(share_path(r, dealer=m))
        assert must(*r.mask(VICTIM, "--json")).json["holds"] == list(ALL)


# what a share file holds


def give(r: Round, user: int, found: dict[str, np.ndarray]) -> None:
    """Put another content into a plain share of CHEAT, with a valid digest."""

    def change(_, datasets):
        datasets.clear()
        datasets.update(found)

    rewrite(share_path(r, user), change)


def content_of(r: Round, user: int) -> dict[str, np.ndarray]:
    """The datasets of a plain share of CHEAT."""
    return datasets(share_path(r, user))


@pytest.mark.parametrize(
    ("change", "count"), [(lambda keys: keys[:-1], 2), (lambda keys: np.vstack([keys, keys]), 6)]
)
def test_a_share_with_too_few_or_too_many_keys_is_not_held(round_at, change, count):
    r = round_at("offline", **FIVE)
    give(r, VICTIM, {"keys": np.ascontiguousarray(change(content_of(r, VICTIM)["keys"]))})
    said = must(*r.mask(VICTIM, "--json")).json
    assert f"its keys has shape ({count}, 32), not (3, 32)" in said["bad_shares"][str(CHEAT)]
    assert said["holds"] == [1, 2, 3, 5]


DEALINGS = ("keys", "shares")
PAIRS = [("keys", "shares"), ("shares", "keys")]


class TestNoChoice:
    """A dealer cannot choose its dealing: all deal as the session says."""

    @pytest.mark.parametrize(("agreed", "sent"), PAIRS)
    def test_mask_does_not_count_it_as_held(self, round_at, agreed, sent):
        other = round_at("offline", "other", dealing=sent, **FIVE)
        r = round_at("offline", dealing=agreed, **FIVE)
        give(r, VICTIM, content_of(other, VICTIM))
        said = must(*r.mask(VICTIM, "--json")).json
        assert list(said["bad_shares"]) == [str(CHEAT)]
        assert "another construction or dealing" in said["bad_shares"][str(CHEAT)]
        assert CHEAT not in said["holds"]

    def test_nor_does_eliminate_read_keys_where_shares_are_written_out(self, round_at, refuses):
        other = round_at("offline", "other", dealing="keys", **FIVE)
        r = round_at("frozen", dealing="shares", **FIVE)
        give(r, VICTIM, content_of(other, VICTIM))
        refuses(65, *r.eliminate(VICTIM), says="it belongs to another construction or dealing")
        assert not answered(r)


# families of blocks in session.json


def with_family(r: Round, family: list[list[int]]) -> None:
    put(r.folder / "session.json", family, "family")


def all_with(user: int) -> list[list[int]]:
    """Every block that has this user: it holds every key."""
    others = [n for n in ALL if n != user]
    return sorted(sorted((user, *pair)) for pair in combinations(others, 2))


def read_alone(r: Round, reader: int, sender: int) -> list[tuple[int, int]]:
    """What one user reads of another's X, with the keys that it holds and zeros for the others."""
    space = Workspace(r.folder)
    s = space.session
    x = read_masked(s, space.masked_path(sender), sender)
    with share_file.SharesOfUser(space, reader).opened(sender) as share:
        keys = tuple(share.keys.get(block, bytes(32)) for block in s.family)
    c = construction_of(s.parameters)
    sparse = c.unmask(c.secret_of_keys(s.deal(sender, x.sharing), keys), x.masked)
    return sorted(zip(sparse.index.tolist(), sparse.value.tolist(), strict=True))


MALFORMED_FAMILIES = {
    "unsorted blocks": (lambda f: f[::-1], "the blocks are not distinct and in increasing"),
    "unsorted users": (lambda f: [f[0][::-1], *f[1:]], "is not 3 users in increasing order"),
    "a block twice": (lambda f: [f[0], *f], "the blocks are not distinct and in increasing"),
    "a user twice": (lambda f: [[1, 1, 2], *f], "is not 3 users in increasing order"),
    "user 0": (lambda f: [[0, 1, 2], *f], "is not 3 users in increasing order"),
    "user 6": (lambda f: [*f, [4, 5, 6]], "is not 3 users in increasing order"),
    "two users": (lambda f: [[1, 2], *f], "is not 3 users in increasing order"),
    "no users": (lambda f: [[], *f], "is not 3 users in increasing order"),
    "too many blocks": (lambda f: f * 103, "a family of 515 blocks, and 512 are the most"),
    "very many blocks": (lambda f: f * 20_000, "its family is not what a session has there"),
    "a large block": (
        lambda f: [list(range(1, 70_000)), *f],
        "its family is not what a session has there",
    ),
    "no blocks": (lambda _: [], "user 1 would learn more than the sum"),
    "no list": (lambda _: 7, "its family is not what a session has there"),
    "words": (lambda _: [["one", "two", "three"]], "its family is not what a session has"),
    "none": (lambda _: None, "a family of blocks, or none, against the parameters"),
}


class TestFamilies:
    READER = 3
    LEARNS = "user 3 would learn more than the sum from these keys"

    def failing(self, r: Round) -> list[tuple[str, str]]:
        """The points at which an audit fails."""
        result = call("audit", r.folder, "--json")
        assert result.code == 65
        return [(f["point"], f["why"]) for f in result.json["findings"] if f["verdict"] == "fail"]

    def test_a_family_that_fails_the_condition_is_refused_by_every_dealer(self, round_at, refuses):
        r = round_at("init", **FIVE)
        with_family(r, all_with(self.READER))
        for n in ALL:
            refuses(65, *r.offline(n), says=(self.LEARNS, "session.json"))
        (failed,) = self.failing(r)
        assert failed[1] == self.LEARNS

    def test_each_block_of_a_small_family_is_needed(self, round_at, refuses):
        r = round_at("init", **FIVE)
        family = document(r.folder / "session.json")["family"]
        for at in range(len(family)):
            fewer = [block for i, block in enumerate(family) if i != at]
            with_family(r, fewer)
            space = Workspace(r.folder)
            (who,) = lacking_coalition(space.session.parameters, space.session.points, fewer)
            refuses(65, *r.offline(1), says=f"user {who} would learn more than the sum")

    def test_without_the_condition_one_user_reads_the_others(self, round_at, monkeypatch):
        """The twin, and that the same attack fails with the family that `init` found."""
        r = round_at("init", **FIVE)
        with_family(r, all_with(self.READER))
        monkeypatch.setattr(series_step, "check_family", lambda *_: None)
        r.play(after="init")
        r.check_sum(answering=ALL)
        for n in (1, 2, 4, 5):
            assert read_alone(r, self.READER, n) == sorted(r.sent(n))
        honest = round_at("decoded", "honest", **FIVE)
        for n in (1, 2, 4, 5):
            with pytest.raises(BadData):
                read_alone(honest, self.READER, n)

    @pytest.mark.parametrize("what", MALFORMED_FAMILIES)
    def test_what_is_no_family_is_refused(self, round_at, refuses, what):
        change, says = MALFORMED_FAMILIES[what]
        r = round_at("init", **FIVE)
        edit(r.folder / "session.json", lambda s: s.update(family=change(s["family"])))
        refuses(65, *r.offline(2), says=says)
        assert self.failing(r)

    def test_too_many_coalitions_are_refused_before_any_is_looked_at(self, refuses, tmp_path):
        folder = tmp_path / "many"
        sizes = words("--users 40 --survivors 28 --colluders 12 --top-k 4 --length 400")
        how = ("--construction", "sketch", "--picks", 2)
        said = refuses(2, "init", folder, *sizes, *how, "--dealing", "keys", says="no family")
        assert "shares" in said.err
        must("init", folder, *sizes, *how)
        put(folder / "session.json", "keys", "parameters", "dealing")
        put(folder / "session.json", [], "family")
        refuses(65, "offline", folder, "--user", 1, says="coalitions are too many for keys")


# a freezer that lies in survivors.json


@plain_and_sealed
class TestLyingFreezer:
    """In the round in which keys were dealt; test_series.py has the later ones."""

    @pytest.mark.parametrize("name", ["sharing", "dealt"])
    def test_own_row_is_checked(self, round_at, refuses, sealed, name):
        r = round_at("frozen", sealed=sealed, **FIVE)
        r.lie(2, **{name: "ab" * 32})
        refuses(65, *r.eliminate(2), says=("X of user 2 that this user did not send", "do not"))
        assert not answered(r, 2)

    def test_another_sharing_of_others_opens_nothing(self, round_at, refuses, sealed):
        """The answers are about masks that nobody used."""
        r = round_at("frozen", sealed=sealed, **FIVE)
        r.lie(2, sharing="ab" * 32)
        for n in (3, 4, 5):
            must(*r.eliminate(n))
        refuses(65, *r.decode(), says="is not the file that was frozen")

    def test_another_list_of_others_is_not_answered(self, round_at, refuses, sealed):
        r = round_at("frozen", sealed=sealed, **FIVE)
        r.lie(2, dealt="ab" * 32)
        for n in (3, 4, 5):
            refuses(65, *r.eliminate(n), says="user 2 gave this user another list of keys")
            assert not answered(r, n)
        refuses(65, *r.decode(), says="is not the file that was frozen")


# words for a user that decoding names


@plain_and_sealed
@pytest.mark.parametrize("dealing", DEALINGS)
def test_only_sealed_keys_make_who_is_named_guilty(round_at, sealed, dealing):
    r = round_at("answered", sealed=sealed, dealing=dealing, **FIVE)

    def wrong(_, found):
        found["y"][0, 0] ^= 1

    rewrite(Workspace(r.folder).answer_path(2), wrong, signer(r, 2))
    said = must(*r.decode()).out
    assert "WRONG ANSWERS from user 2" in said
    audit = call("audit", r.folder, "--json")
    assert audit.code == 65
    (why,) = (
        f["why"]
        for f in audit.json["findings"]
        if f["verdict"] == "fail" and "polynomial of the other answers" in f["why"]
    )
    if sealed and dealing == "keys":
        assert "who is named lied, or its machine is faulty" in said
        assert "its user lied, or its machine is faulty" in why
        assert "innocent" not in said + why
    else:
        assert "who is named may be innocent, a bad share has the same effect" in said
        assert "its user may be innocent, as a bad share has the same effect" in why
        assert "lied" not in said + why
    r.check_sum(answering=ALL)


# answering in `sketch`, and options


@pytest.mark.rule(3)
class TestAnswering:
    def test_it_needs_no_x_of_others_and_decoding_needs_all(self, round_at, refuses):
        r = round_at("frozen", **FIVE)
        (r.folder / "masked").rename(r.folder / "elsewhere")
        for n in ALL:
            must(*r.eliminate(n))
        without_x = "a sketch cannot be decoded without every X of the survivors"
        said = refuses(66, *r.decode(), says=without_x)
        assert "no X has arrived from users 1, 2, 3, 4, 5" in said.err
        (r.folder / "elsewhere").rename(r.folder / "masked")
        Workspace(r.folder).masked_path(4).rename(r.folder / "late")
        assert "no X has arrived from user 4" in refuses(66, *r.decode(), says=without_x).err
        (r.folder / "late").rename(Workspace(r.folder).masked_path(4))
        must(*r.decode())
        r.check_sum(answering=ALL)

    FOREIGN = {  # noqa: RUF012 - what lies in the place of user 4's X, and what is said of it
        "of another user": ("masked/user-05.h5", "its user is 5, not 4"),
        "of another session": ("../other/masked/user-04.h5", "it belongs to another session"),
        "another one of the same user": ("another", "is not the file that was frozen"),
    }

    @pytest.mark.parametrize("what", FOREIGN)
    def test_no_other_x_is_added_up(self, round_at, refuses, what):
        """In sealed rounds too; and a foreign file here does not mean that the round failed."""
        source, says = self.FOREIGN[what]
        round_at("masked", "other", sealed=True, name="other", **FIVE)
        r = round_at("answered", sealed=True, **FIVE)
        path = Workspace(r.folder).masked_path(CHEAT)
        sound = path.read_bytes()
        if source == "another":  # signed by its user, after the freeze
            rewrite(path, lambda _, found: found["value"].fill(1), signer(r, CHEAT))
        else:
            path.write_bytes((r.folder / source).read_bytes())
        refuses(65, *r.decode(), says=says)
        path.write_bytes(sound)
        must(*r.decode())
        r.check_sum(answering=ALL)

    def test_if_any_x_were_added_up_one_user_could_replace_the_sum_after_all_answered(
        self, round_at, monkeypatch
    ):
        """The twin: it knows its own mask, and so what it puts into the sum."""
        r = round_at("answered", sealed=True, **FIVE)
        space = Workspace(r.folder)
        p = space.session.parameters
        c = construction_of(p)
        stored = secret_file.read(r.space(CHEAT), CHEAT)
        secret = stored.secret(space.session, CHEAT, own_keys(r, CHEAT))
        other = c.mask(secret, Sparse(np.array([7]), np.array([1234], dtype=np.uint32)))

        def replaced(_, found):
            found["value"][:] = other.value.view(found["value"].dtype)

        rewrite(space.masked_path(CHEAT), replaced, signer(r, CHEAT))
        monkeypatch.setattr(decode_step, "each_frozen", each_as_it_is)
        must(*r.decode())
        found = datasets(r.folder / "aggregate.h5")
        honest = plain_sum([r.sent(n) for n in ALL if n != CHEAT], p.length, p.field)
        honest[7] = (honest[7] + 1234) % p.field
        assert found["index"].tolist() == [k for k, v in enumerate(honest) if v]
        assert found["value"].tolist() == [v for v in honest if v]

    @pytest.mark.parametrize("command", ["eliminate", "decode"])
    def test_nobody_is_in_the_set_twice(self, round_at, refuses, command):
        r = round_at("answered" if command == "decode" else "frozen", **FIVE)
        edit(r.folder / "survivors.json", lambda s: s["survivors"].insert(1, s["survivors"][0]))
        refuses(65, *r.step(command, 2), says="does not name each user once")


class TestRandomness:
    def test_every_byte_from_the_system_is_for_shares_alone(self, round_at, refuses):
        r = round_at("init", dealing="keys", **FIVE)
        said = refuses(2, *r.offline(1, "--randomness", "os"), says="this round deals keys")
        assert "--dealing shares" in said.err

    def test_run_then_deals_shares(self, new_round):
        r = new_round(**FIVE)
        must(*r.run("--randomness", "os"))
        r.check_sum(answering=ALL)
        assert document(r.folder / "session.json")["parameters"]["dealing"] == "shares"
        assert not (r.folder / "dealt").exists()
        must(*r.run("--randomness", "os"))  # once more, which changes nothing

    def test_run_does_not_change_a_dealing_that_was_asked_for(self, new_round, refuses):
        r = new_round(dealing="keys", **FIVE)
        refuses(2, *r.run("--randomness", "os"), says="this round deals keys")


class TestInspect:
    @pytest.mark.parametrize("reveal", [(), ("--reveal",)])
    def test_a_share_shows_its_dealing_and_never_a_key(self, round_at, reveal):
        r = round_at("offline", dealing="keys", **FIVE)
        path = share_path(r)
        secret = datasets(path)["keys"]
        said = must("inspect", path, "--json", *reveal)
        assert said.json["files"][0]["dealing"] == "keys"
        assert said.json["files"][0]["datasets"]["keys"]["values"] == "secret"
        table = must("inspect", path, *reveal)
        assert "dealing" in table.out
        for text in (said.out, table.out):
            assert not shown(secret, text)

    @pytest.mark.parametrize("name", ["user-01.h5", "user-01.chain.h5"])
    def test_nor_do_the_files_of_a_user(self, round_at, name):
        r = round_at("masked", **FIVE)
        path = r.private(1) / name
        said = (
            must("inspect", path, "--reveal").out + must("inspect", path, "--reveal", "--json").out
        )
        secret = {"key", "keys", "own"} & set(datasets(path))
        assert secret
        for each in secret:
            assert not shown(datasets(path)[each], said)

    def test_shares_are_shown_as_shares(self, round_at):
        r = round_at("offline", dealing="shares", **FIVE)
        said = must("inspect", share_path(r), "--json").json["files"][0]
        assert (said["dealing"], said["datasets"]["f"]["values"]) == ("shares", "secret")

    def test_if_keys_were_like_other_datasets_they_would_be_shown(self, round_at, monkeypatch):
        """The twin."""
        r = round_at("offline", **FIVE)
        monkeypatch.setattr(inspect_step, "_NEVER_SHOWN", set())
        said = must("inspect", share_path(r), "--reveal", "--json").out
        assert shown(datasets(share_path(r))["keys"], said)


def shown(secret: np.ndarray, text: str) -> bool:
    """Whether four bytes of a secret in a row are in a text, in hexadecimal or as numbers."""
    content = secret.tobytes()
    pieces = [content[at : at + 4] for at in range(0, len(content), 4)]
    return any(
        piece.hex() in text.lower() or ", ".join(map(str, piece)) in text for piece in pieces
    )


def each_as_it_is(space, survivors):
    """Every X of U1, whichever it is."""
    for n in survivors.users:
        yield n, read_masked(space.session, space.masked_path(n), n)
