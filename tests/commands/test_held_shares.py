"""What X says about the shares of others is true, is said only when it is enough, and stays so."""

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from played import Round, every, flip, judged, must, placed, python

from topk_secagg.errors import BadData
from topk_secagg.rounds import mask as mask_step
from topk_secagg.rounds import series as series_step
from topk_secagg.rounds.freeze import answerable, beyond_saving
from topk_secagg.storage.dealt import read as read_dealt
from topk_secagg.storage.masked import read as read_masked
from topk_secagg.storage.workspace import Workspace

ALL = (1, 2, 3, 4, 5)


def share(r: Round, user: int, sender: int):
    return Workspace(r.folder).share_path(user, sender)


def holds(r: Round, user: int) -> list[int]:
    space = Workspace(r.folder)
    return sorted(read_masked(space.session, space.masked_path(user), user).holds)


def noise_below_a_header(path):
    """An age file by its first lines, of the right size, that nobody can open."""
    content = path.read_bytes()
    header = content[: content.index(b"\n---") + 50]
    path.write_bytes(header + bytes(len(content) - len(header)))


def damaged_row(path):
    """A share that is sound but for one row."""
    table = next(name for name in placed(path) if name != "check")
    start, size = placed(path)[table]
    flip(path, start + size - 1)


def damaged_rows(path):
    """A share of which no row is what its checksum says."""
    content = bytearray(path.read_bytes())
    for name, (start, size) in placed(path).items():
        if name != "check":
            content[start : start + size] = bytes(
                byte ^ 1 for byte in content[start : start + size]
            )
    path.write_bytes(content)


def of_another_round(path):
    """A share of the same users in another session."""
    shutil.copy(path.parents[3] / "other" / path.relative_to(path.parents[2]), path)


SPOILED = {
    "noise": (True, noise_below_a_header, "does not open"),
    "another's": (True, lambda p: shutil.copy(p.with_name("from-05.h5.age"), p), "its sender is 5"),
    "a row": (False, damaged_row, "do not match their checksum"),
    "rows": (False, damaged_rows, "do not match their checksum"),
    "empty": (False, lambda p: p.write_bytes(b""), "it is damaged"),
    "a folder": (False, lambda p: (p.unlink(), p.mkdir()), "is not a file"),
    "another round": (False, of_another_round, "it belongs to another session"),
}


def reason(what: str, construction: str) -> str:
    """Why that share cannot be used; keys have no rows with checksums of their own."""
    if construction == "sketch" and what in ("a row", "rows"):
        return "does not match its digest"
    return SPOILED[what][2]


@every
@pytest.mark.parametrize("what", SPOILED)
def test_a_share_that_cannot_be_used_is_not_held_and_the_round_goes_on(
    round_at, what, construction
):
    sealed, spoil, _ = SPOILED[what]
    why = reason(what, construction)
    sizes = {"masking": ALL, "answering": (1, 2, 3, 5)}
    if what == "another round":
        round_at("offline", "other", name="other", **sizes)
    r = round_at("offline", sealed=sealed, **sizes)
    for n in (1, 2, 3):
        spoil(share(r, n, 4))
        said = must(*r.mask(n, "--json"))
        assert list(said.json["bad_shares"]) == ["4"]
        assert why in said.json["bad_shares"]["4"]
        assert f"the share of user 4 for user {n} is bad" in said.err
        assert said.json["missing_shares"] == []
        assert said.json["holds"] == holds(r, n) == [1, 2, 3, 5]
    for n in (4, 5):
        assert must(*r.mask(n)).err == ""
    assert must(*r.freeze("--json")).json["left_out"] == {"4": "too few users hold its share"}
    r.play(after="frozen").check_sum(survivors=(1, 2, 3, 5))


@pytest.fixture
def a_look_is_enough(monkeypatch):
    """Whether a share is there counts, and the list that was published with it."""

    def opened(space, user, _):
        there = {m: None for m in space.users() if space.share_path(user, m).exists()}
        return mask_step._Shares(there, [], {})

    honest = series_step._compared

    def compared(root, user, dealer, identity):
        try:
            return honest(root, user, dealer, identity)
        except BadData:
            unread = dict.fromkeys(root.session.blocks_of(user), bytes(32))
            return unread, read_dealt(root, dealer).digest

    monkeypatch.setattr(mask_step, "_opened", opened)
    monkeypatch.setattr(series_step, "_compared", compared)


@every
@pytest.mark.parametrize("what", ["noise", "rows"])
@pytest.mark.usefixtures("a_look_is_enough")
def test_if_a_look_were_enough_the_round_would_be_lost(round_at, refuses, what, construction):
    """The twin: all five are frozen, and three of them hold what they cannot use."""
    sealed, spoil, why = SPOILED[what]
    r = round_at("offline", sealed=sealed, masking=ALL, answering=ALL)
    for n in (1, 2, 3):
        spoil(share(r, n, 4))
    for n in ALL:
        must(*r.mask(n))
    assert must(*r.freeze("--json")).json["survivors"] == list(ALL)
    for n in ALL:
        said = judged(*r.eliminate(n))
        refused = construction == "permutation" and n in (1, 2, 3)
        assert (said.code, why in said.err) == ((65, True) if refused else (0, False))
    if construction == "permutation":
        assert "2 sound answers, and 3 are needed" in refuses(69, *r.decode()).err
    else:
        says = "do not agree with each other"
        refuses(65, *r.decode(), says=says, besides=("decoded.json",))


def test_checking_shares_loads_neither_numba_nor_galois(round_at):
    r = round_at("offline", sealed=True)
    code = (
        "import sys\nfrom topk_secagg_cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "print([name for name in ('numba', 'galois') if name in sys.modules])"
    )
    said = python(code, *r.mask(1, "--quiet"))
    assert (said.stdout, said.returncode) == ("[]\n", 0), said.stderr


class TestTooEarly:
    @pytest.fixture
    def early(self, round_at):
        """Four users, of which three must survive; user 1 has two of the shares."""
        r = round_at("offline", users=4)
        for m in (3, 4):
            share(r, 1, m).rename(r.folder / f"late-{m}")
        return r

    def test_mask_waits_until_the_shares_of_u_users_are_there(self, early, refuses):
        assert not must("status", early.folder, "--user", 1, "--json").json["next"]["possible"]
        said = refuses(66, *early.mask(1))
        assert "holds the shares of 2 users" in said.err
        assert "at least 3; missing: users 3, 4" in said.err
        assert "--without-them" in said.err
        (early.folder / "late-3").rename(share(early, 1, 3))
        assert must("status", early.folder, "--user", 1, "--json").json["next"]["possible"]
        assert must(*early.mask(1, "--json")).json["missing_shares"] == [4]

    def test_shares_that_cannot_be_used_do_not_count_and_are_named(self, early, refuses):
        for m in (3, 4):
            (early.folder / f"late-{m}").rename(share(early, 1, m))
            damaged_row(share(early, 1, m))
        said = refuses(66, *early.mask(1)).err
        assert "the share of user 3 is bad" in said
        assert "the share of user 4 is bad" in said
        assert "missing" not in said

    def test_who_masks_without_them_on_purpose_may(self, early):
        said = must(*early.mask(1, "--without-them", "--json"))
        assert said.json["missing_shares"] == [3, 4]
        assert holds(early, 1) == [1, 2]
        for n in (2, 3, 4):
            must(*early.mask(n))
        assert must(*early.freeze("--json")).json["survivors"] == [1, 2, 3, 4]
        for n in (2, 3, 4):  # three that hold everything answer for all four
            must(*early.eliminate(n))
        must(*early.decode())
        early.check_sum(survivors=(1, 2, 3, 4))

    def test_masking_again_does_not_repeat_what_is_no_longer_true(self, early):
        said = must(*early.mask(1, "--without-them"))
        assert "has not received the shares of users 3, 4" in said.err
        again = must(*early.mask(1, "--json"))  # X is made, and there is nothing to ask any more
        assert (again.json["missing_shares"], again.json["holds"], again.err) == ([], [1, 2], "")
        for m in (3, 4):
            (early.folder / f"late-{m}").rename(share(early, 1, m))
        assert must(*early.mask(1, "--json")).json == again.json
        assert holds(early, 1) == [1, 2]

    def test_without_the_check_two_early_users_end_the_round(self, early, refuses, monkeypatch):
        """The twin: and freeze says that it is over, whoever masks yet."""
        monkeypatch.setattr(mask_step, "_check_enough", lambda *_, **__: None)
        for m in (3, 4):
            share(early, 2, m).unlink()
        for n in (1, 2):
            must(*early.mask(n))
        said = refuses(69, *early.freeze())
        assert "beyond saving" in said.err
        assert "users that lack some: 1, 2" in said.err
        assert "start a new round" in said.err
        for n in (3, 4):
            must(*early.mask(n))
        assert "beyond saving" in refuses(69, *early.freeze()).err

    def test_status_does_not_say_freeze_before_enough_users_hold_each_others_shares(
        self, round_at, refuses
    ):
        """Once it counted the X, and `status --wait` came back too early."""
        r = round_at("offline", users=4)
        share(r, 2, 4).unlink()
        for n in (1, 2, 4):
            must(*r.mask(n))
        says = "no 3 users yet that hold each other's shares (users that lack some: 2)"
        refuses(69, *r.freeze(), says=says)
        for args in ([], ["--user", 1]):
            following = must("status", r.folder, *args, "--json").json["next"]
            assert (following["step"], following["waits_for"]) == ("freeze", "X of user 3")
            assert not following["possible"]
        must(*r.mask(3))
        assert must("status", r.folder, "--json").json["next"]["ready"]
        assert must(*r.freeze("--json")).json["survivors"] == [1, 2, 3, 4]

    def test_a_round_that_can_be_saved_is_not_called_lost(self, early, refuses):
        must(*early.mask(1, "--without-them"))
        must(*early.mask(2))
        said = refuses(69, *early.freeze())
        assert "2 users have masked soundly" in said.err
        assert "beyond saving" not in said.err


@pytest.mark.parametrize("folder", ["round/secrets", "another folder"])
def test_mask_before_offline_says_so(round_at, refuses, tmp_path, folder):
    r = round_at("init" if folder == "round/secrets" else "offline")
    more = [] if folder == "round/secrets" else ["--secrets", tmp_path / "elsewhere"]
    said = refuses(66, *r.mask(1, *more))
    assert "user 1 has no secret in" in said.err
    hint = "run offline first" if not more else "they are in the folder of the round"
    assert f"hint: {hint}" in said.err


def test_a_secret_without_its_ledger_is_still_not_used(round_at, refuses):
    r = round_at("offline")
    (r.folder / "secrets/user-01.ledger.json").unlink()
    assert "without its ledger" in refuses(66, *r.mask(1)).err


@given(st.data())
def test_beyond_saving_is_said_only_of_rounds_that_nobody_can_save(data):
    """Whatever users that have not masked yet come to hold, `freeze` finds no set."""
    users = range(1, data.draw(st.integers(2, 6)) + 1)
    need = data.draw(st.integers(1, len(users)))
    sets = st.frozensets(st.sampled_from(list(users)))
    holds = data.draw(st.dictionaries(st.sampled_from(list(users)), sets))
    later = {n: data.draw(sets) for n in users if n not in holds}
    everything = {n: frozenset(users) for n in users if n not in holds}
    if beyond_saving(holds, users, need):
        for more in (later, everything):
            assert answerable(holds | more, need) == []
