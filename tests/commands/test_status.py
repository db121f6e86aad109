"""`status` in every state of a round, for all users and for one; and steps whose input has not
arrived."""

import os
import shlex
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from played import CONFIRMING, Result, Round, call, edit, every, must, put

from topk_secagg.rounds import spend

ALL = [1, 2, 3, 4, 5]
LEDGER = "user-02.ledger.json"
ANSWERING = ("eliminate", "survivors.json of user 1")
KINDS: dict[str, dict[str, Any]] = {"plain": {}, "sealed": {"sealed": True}, "confirm": CONFIRMING}


def status(r: Round, *more: object) -> Any:
    return must(*r.status(*more, "--json")).json


def following(r: Round, *more: object) -> tuple[str | None, str | None]:
    """The next step, and what it waits for."""
    found = status(r, *more)["next"]
    assert found["ready"] == (found["waits_for"] is None)
    return found["step"], found["waits_for"]


def missing(r: Round, *more: object) -> list[str]:
    """The files that the next step waits for, by their names in the round."""
    return [str(Path(path).relative_to(r.folder)) for path in status(r, *more)["next"]["missing"]]


def sends(r: Round, user: int) -> list[str]:
    """What a user is to send, by the names in the round."""
    return [
        str(Path(row["path"]).relative_to(r.folder)) for row in status(r, "--user", user)["send"]
    ]


def shares(users: list[int], senders: list[int], r: Round) -> list[str]:
    end = "h5.age" if r.recipe.sealed else "h5"
    return [f"shares/user-{n:02}/from-{m:02}.{end}" for n in users for m in senders]


@pytest.mark.parametrize("kind", KINDS)
class TestEveryState:
    """One person runs all users in one folder."""

    @pytest.fixture
    def at(self, round_at, kind):
        return lambda stage: round_at(stage, stage, **KINDS[kind])

    def test_nothing_yet_and_some_have_shared(self, at):
        r = at("init")
        assert following(r) == ("offline", "shares of users 1, 2, 3, 4, 5")
        assert following(r, "--user", 2) == ("offline", None)
        assert status(r, "--user", 2)["send"] == []
        assert [row["holds"] for row in status(r)["users"]] == [None] * 5
        for user in (1, 2):
            must(*r.offline(user))
        assert following(r) == ("offline", "shares of users 3, 4, 5")
        assert missing(r) == shares([1, 2], [3, 4, 5], r)
        assert following(r, "--user", 2) == ("mask", "shares of users 3, 4, 5 for user 2")
        assert missing(r, "--user", 2) == shares([2], [3, 4, 5], r)
        found = status(r, "--user", 2)
        assert found["next"]["possible"] is False  # two users could not answer for each other
        assert [row["to"] for row in found["send"]] == [f"user {m} only" for m in (1, 3, 4, 5)]
        assert [row["path"] for row in found["send"]] == [
            str(r.folder / name) for name in shares([1, 3, 4, 5], [2], r)
        ]

    def test_some_have_masked(self, at):
        r = at("offline")
        assert following(r) == ("freeze", "X of users 1, 2, 3, 4, 5")
        assert following(r, "--user", 2) == ("mask", None)
        must(*r.mask(2))
        assert status(r)["next"]["possible"] is False
        assert missing(r) == [f"masked/user-{n:02}.h5" for n in (1, 3, 4, 5)]
        waits = ("freeze", "X of users 1, 3, 4, 5") if r.recipe.confirm else ANSWERING
        assert following(r, "--user", 2) == waits
        assert str(r.folder / "masked/user-02.h5") in [
            row["path"] for row in status(r, "--user", 2)["send"]
        ]

    def test_masked(self, at):
        r = at("masked")
        late = [n for n in ALL if n not in r.recipe.masking]
        waits = f"X of user {late[0]}" if late else None
        found = status(r)
        assert [row["user"] for row in found["users"] if row["masked"] == "yes"] == list(
            r.recipe.masking
        )
        assert (found["next"]["step"], found["next"]["waits_for"], found["next"]["possible"]) == (
            "freeze",
            waits,
            True,
        )
        assert following(r, "--user", 1) == ("freeze", waits)

    def test_frozen(self, at):
        r = at("confirmed")
        found = status(r)
        assert found["survivors"] == list(r.recipe.masking)
        waits = f"answers of users {', '.join(map(str, r.recipe.masking))}"
        assert (found["next"]["step"], found["next"]["waits_for"]) == ("decode", waits)
        assert following(r, "--user", 2) == ("eliminate", None)
        # others have confirmed it; elsewhere nothing shows that the freezer has sent it
        assert ("survivors.json" in sends(r, 1)) is not r.recipe.confirm
        assert "survivors.json" not in sends(r, 2)
        if 5 not in r.recipe.masking:
            assert following(r, "--user", 5) == ("decode", waits)  # the sum is for it too
            must(*r.forget(5))
            assert following(r, "--user", 5) == ("decode", waits)

    def test_answered(self, at):
        r = at("answered")
        silent = [n for n in r.recipe.masking if n not in r.recipe.answering]
        waits = ("decode", f"answer of user {silent[0]}")  # which would check the others
        assert following(r) == following(r, "--user", 1) == waits
        assert status(r)["next"]["possible"] is True
        assert "; decode can be run without it\nnext: topk-secagg decode" in must(*r.status()).out
        if r.recipe.confirm:
            assert following(r, "--user", silent[0]) == ("confirm", None)
            must(*r.confirm(silent[0]))
        assert following(r, "--user", silent[0]) == ("eliminate", None)
        (r.folder / "elimination/user-01.h5").unlink()
        assert following(r) == ("decode", f"answers of users 1, {silent[0]}")
        assert status(r)["next"]["possible"] is (len(r.recipe.answering) > r.recipe.survivors)
        assert missing(r) == [f"elimination/user-{n:02}.h5" for n in (1, silent[0])]
        assert following(r, "--user", 1) == ("eliminate", None)  # it can be made again

    def test_decoded(self, at):
        r = at("decoded")
        assert following(r) == (None, None)
        assert "nothing is left to do" in must(*r.status()).out
        assert following(r, "--user", 1) == ("forget", None)
        must(*r.forget(1))
        assert following(r, "--user", 1) == (None, None)
        assert status(r, "--user", 1)["send"] == []
        rows = [line.split() for line in must(*r.status()).out.splitlines()]
        assert [row[1] for row in rows if row[:1] == ["1"]] == ["erased"]
        assert "erased" not in [row[1] for row in rows if row[:1] == ["2"]]


def test_missing_and_given_confirmations(round_at, refuses):
    r = round_at("masked", **{**CONFIRMING, "masking": (1, 2, 3, 4)})
    must(*r.freeze("--user", 2))
    assert following(r) == ("confirm", "4 more confirmations of users 1, 2, 3, 4, 5")
    assert following(r, "--user", 5) == ("confirm", None)  # though it dropped out
    assert str(r.folder / "survivors.json") in [
        row["path"] for row in status(r, "--user", 2)["send"]
    ]
    for user in (1, 5):
        must(*r.confirm(user))
    waits = ("eliminate", "2 more confirmations of users 2, 3, 4")
    assert following(r, "--user", 1) == waits
    assert missing(r, "--user", 1) == [f"confirmed/user-{n:02}.json" for n in (2, 3, 4)]
    assert "missing: users 2, 3, 4" in refuses(66, *r.eliminate(1)).err
    assert following(r, "--user", 5) == ("decode", "2 more confirmations of users 2, 3, 4")
    for user in (2, 3):
        must(*r.confirm(user))
    assert following(r, "--user", 1) == ("eliminate", None)
    assert [row["confirmed"] for row in status(r)["users"]] == [True, True, True, False, True]
    assert "confirmed" in must(*r.status()).out


def test_who_dropped_out_decodes_once_enough_others_have_confirmed(round_at):
    """Once it was to confirm, for which it needs every X, and after it had forgotten too."""
    r = round_at("masked", **{**CONFIRMING, "masking": (1, 2, 3, 4)})
    must(*r.freeze())
    for user in (1, 2, 3, 4):
        assert following(r, "--user", 5) == ("confirm", None)
        must(*r.confirm(user))
    assert following(r, "--user", 5) == ("decode", "answers of users 1, 2, 3, 4")
    must(*r.forget(5))
    (r.folder / "confirmed/user-05.json").unlink(missing_ok=True)
    assert following(r, "--user", 5) == ("decode", "answers of users 1, 2, 3, 4")


def test_the_table_and_the_json_agree(round_at):
    r = round_at("answered")
    lines = must("status", r.folder, "--user", 4).out.splitlines()
    table = [line.split() for line in lines if line.split()[:1] in [[str(n)] for n in ALL]]
    assert table[0] == ["1", "all", "5", "yes", "yes", "yes"]
    assert table[4] == ["5", "all", "5", "dropped", "out"]
    assert f"next: topk-secagg eliminate {r.folder} --user 4" in lines
    assert status(r, "--user", 4)["next"]["command"] == f"topk-secagg eliminate {r.folder} --user 4"
    assert not any(line.startswith("waiting for") for line in lines)


class TestAFolderOfOneUser:
    """Every user has its own machine."""

    @pytest.fixture(params=KINDS)
    def r(self, request, round_at, tmp_path):
        """User 2 alone; `there` is the round from which files come."""
        self.there = round_at("answered", "there", **KINDS[request.param])
        before = round_at("offline", "before", **KINDS[request.param])
        self.shared = (before.private(2) / LEDGER).read_bytes()
        (tmp_path / "own").mkdir()
        self.here = self.there.elsewhere(tmp_path / "own")
        self.bring("session.json")
        return self.here

    def bring(self, *patterns: str) -> None:
        """Files arrive."""
        for pattern in patterns:
            for source in self.there.folder.glob(pattern):
                target = self.here.folder / source.relative_to(self.there.folder)
                target.parent.mkdir(exist_ok=True, parents=True)
                shutil.copy(source, target)

    def bring_secrets(self, *names: str) -> None:
        """Files of the user's private folder are there again."""
        private = self.there.private(2).relative_to(self.there.folder)
        self.bring(*(str(private / name) for name in names))
        self.here.at_home()

    def test_what_is_missing_at_each_step(self, r, refuses):
        assert following(r, "--user", 2) == ("offline", None)
        self.bring("shares/user-02/from-0[23].*", "shares/*/from-02.*")
        self.bring("secrets/folder.json", "secrets/user-02.identity")
        self.bring_secrets("user-02.h5")
        ledger = r.private(2) / LEDGER
        ledger.write_bytes(self.shared)
        assert following(r, "--user", 2) == ("mask", "shares of users 1, 4, 5 for user 2")
        assert status(r)["foreign_secrets"] == []
        self.bring("masked/user-02.h5")
        self.bring_secrets(LEDGER)
        edit(ledger, lambda entries: entries.update(answered=None, confirmed=None))
        waits = ("freeze", "X of users 1, 3, 4, 5") if r.recipe.confirm else ANSWERING
        assert following(r, "--user", 2) == waits
        if not r.recipe.confirm:
            assert missing(r, "--user", 2) == ["survivors.json"]
        assert "survivors.json" in refuses(66, *r.eliminate(2)).err
        self.bring("survivors.json", "confirmed/*")
        if r.recipe.confirm:
            assert following(r, "--user", 2) == ("confirm", "X of users 1, 3, 4, 5")
            assert "no X has arrived from users 1, 3, 4, 5" in refuses(66, *r.confirm(2)).err
            self.bring("masked/*")
            must(*r.confirm(2))
        inputs = [n for n in r.recipe.masking if n != 2]
        for n in inputs:  # what was here to be confirmed is lost again
            (r.folder / f"masked/user-{n:02}.h5").unlink(missing_ok=True)
        others = [n for n in inputs if n != 3]
        listed = [", ".join(map(str, users)) for users in (inputs, others)]
        assert following(r, "--user", 2) == (
            "eliminate",
            f"X of users {listed[0]}, shares of users {listed[1]} for user 2",
        )
        assert missing(r, "--user", 2) == [
            *(f"masked/user-{n:02}.h5" for n in inputs),
            *shares([2], others, r),
        ]
        assert f"no X has arrived from users {listed[0]}" in refuses(66, *r.eliminate(2)).err
        self.bring("masked/*")
        assert (
            f"no share for user 2 has arrived from users {listed[1]}"
            in refuses(66, *r.eliminate(2)).err
        )
        self.bring("shares/user-02/*")
        assert following(r, "--user", 2) == ("eliminate", None)
        must(*r.eliminate(2))
        silent = ", ".join(str(n) for n in r.recipe.masking if n != 2)
        assert following(r, "--user", 2) == ("decode", f"answers of users {silent}")
        assert f"missing: users {silent}" in refuses(69, *r.decode()).err
        self.bring("elimination/*")
        assert following(r, "--user", 2) == ("decode", self.silent(r))
        must(*r.decode())
        r.check_sum()

    def test_a_store_of_public_files_alone(self, r):
        assert following(r) == ("offline", "shares of users 1, 2, 3, 4, 5")
        self.bring("masked/user-01.h5")
        expected = [n for n in ALL if n != 1]
        assert following(r) == ("freeze", f"X of users {', '.join(map(str, expected))}")
        self.bring("masked/*", "survivors.json", "confirmed/*")
        assert following(r)[0] == "decode"
        self.bring("elimination/*")
        assert following(r) == ("decode", self.silent(r))

    def silent(self, r: Round) -> str:
        (user,) = set(r.recipe.masking) - set(r.recipe.answering)
        return f"answer of user {user}"

    def test_a_user_that_came_too_late_has_only_to_decode(self, r):
        self.bring("survivors.json", "confirmed/*", "masked/*")
        answers = f"answers of users {', '.join(map(str, r.recipe.masking))}"
        late = [n for n in ALL if n not in r.recipe.masking]
        assert [following(r, "--user", n) for n in late] == [("decode", answers)] * len(late)


def test_an_absent_user_does_not_stop_the_round(new_round):
    r = new_round()
    must(*r.init())
    for user in (1, 2, 3, 4):
        must(*r.offline(user))
    assert following(r) == ("offline", "shares of user 5")
    for user in (1, 2, 3):
        must(*r.mask(user))
    found = status(r)["next"]
    assert (found["step"], found["waits_for"], found["possible"]) == (
        "freeze",
        "X of users 4, 5",
        True,
    )
    found = status(r, "--user", 4)["next"]
    assert (found["step"], found["waits_for"], found["possible"]) == (
        "mask",
        "share of user 5 for user 4",
        True,
    )
    assert "waiting for X of users 4, 5; freeze can be run without them\n" in must(*r.status()).out
    waits = "waiting for share of user 5 for user 4; mask can be run without it\n"
    assert waits in must("status", r.folder, "--user", 4).out


def next_command(result: Result) -> list[str]:
    """The command that status prints to be pasted; none while it waits, or when all is done."""
    lines = result.out.splitlines()
    found = [line.removeprefix("next: ") for line in lines if line.startswith("next: ")]
    assert len(found) <= 1, "one next step"
    assert len(found) + any(line.startswith("then: ") for line in lines) <= 1
    waiting = any(line.startswith("waiting for") for line in lines)
    return shlex.split(found[0]) if found and not waiting else []


@pytest.mark.parametrize("kind", ["plain", "sealed with confirmations and secrets elsewhere"])
def test_what_status_prints_leads_through_a_whole_round(new_round, kind):
    """Every user does what status prints, word for word but for the name of its gradient."""
    sealed = kind != "plain"
    r = new_round(users=4, masking=(1, 2, 3, 4), sealed=sealed, confirm=sealed, homes=sealed)
    must(*r.init())
    session = document_id(r)
    steps: dict[int, list[str]] = {n: [] for n in r.recipe.everybody}

    def given(user: int) -> list[object]:
        if not sealed:
            return []
        keys = ["--identity", r.identity(user), "--recipients", r.recipients]
        return [*keys, "--secrets", r.home(user), "--session", session[:20]]

    for user in [*r.recipe.everybody] * 8:
        command = next_command(must("status", r.folder, "--user", user, *given(user)))
        if not command:
            continue
        assert command[0] == "topk-secagg"
        words = [str(r.gradient(user)) if word == "FILE" else word for word in command[1:]]
        if words[0] not in ("decode", "forget"):  # which may take fewer options
            assert {str(word) for word in given(user)} <= set(words)
        must(*words)
        steps[user].append(words[0])
    own = ["offline", "mask", *["confirm"] * sealed, "eliminate"]
    last = [step for n in r.recipe.everybody for step in steps[n] if step in ("freeze", "decode")]
    assert last == ["freeze", "decode"]
    for user, done in steps.items():
        assert [step for step in done if step in own] == own
        assert done[-1] == "forget"
        said = must("status", r.folder, "--user", user, *given(user)).out
        assert said.splitlines()[-1] == "nothing is left to do"
    r.check_sum(survivors=(1, 2, 3, 4), answering=(1, 2, 3, 4))


def document_id(r: Round) -> str:
    return must("status", r.folder, "--json").json["session"]


def test_without_a_user_it_prints_what_somebody_can_run(round_at):
    """One person who runs all users of a plain round."""
    r = round_at("init")
    command = must(*r.status()).out.splitlines()[-1]
    assert command == f"next: topk-secagg offline {r.folder} --user 1,2,3,4,5"
    must(*shlex.split(command)[2:])
    lines = must(*r.status()).out.splitlines()
    assert lines[-2:] == [
        "waiting for X of users 1, 2, 3, 4, 5",
        f"then: topk-secagg freeze {r.folder}",
    ]


def test_what_status_does_not_know_is_left_to_the_user(round_at, monkeypatch):
    r = round_at("init", sealed=True)
    command = f"topk-secagg offline {r.folder} --user 2 --secrets"
    found = must("status", r.folder, "--user", 2, "--json").json
    assert found["next"]["command"] == f"{command} DIR"
    monkeypatch.setenv("TOPK_SECAGG_SECRETS", str(r.secrets(2)))
    found = must("status", r.folder, "--user", 2, "--json").json
    assert found["next"]["command"] == f"{command} {r.secrets(2)}"
    must("offline", r.folder, "--user", 2)  # which takes it from the environment too


def test_options_with_spaces_can_be_pasted(round_at, tmp_path):
    r = round_at("init", folder="my round")
    found = status(r, "--user", 2, "--secrets", tmp_path / "my secrets")
    words = shlex.split(found["next"]["command"])
    assert words[2:] == [
        str(r.folder), "--user", "2", "--secrets", str(tmp_path / "my secrets")
    ]  # fmt: skip
    must(*words[1:])
    assert list((tmp_path / "my secrets").glob("*/user-02.h5"))


def test_status_refuses_another_session_and_other_keys(round_at, refuses, tmp_path):
    r = round_at("init", sealed=True)
    said = refuses(77, "status", r.folder, "--session", "0" * 16).err
    assert "this is session" in said
    lines = r.recipients.read_text().splitlines()
    other = must("keygen", "--user", 2, "--secrets", tmp_path / "other").out
    (tmp_path / "mine").write_text("\n".join([lines[0], other.strip(), *lines[2:]]) + "\n")
    said = refuses(77, "status", r.folder, "--recipients", tmp_path / "mine").err
    assert "other keys for user 2" in said


def test_problems_are_named(round_at):
    r = round_at("answered")
    (r.folder / "masked/user-02.h5").write_bytes(b"rubbish")
    shutil.copy(r.folder / "elimination/user-01.h5", r.folder / "elimination/user-03.h5")
    (r.folder / "secrets/user-04.ledger.json").write_text("{}")
    found = status(r, "--user", 4)
    assert "it is damaged" in found["users"][1]["masked"]
    assert found["users"][2]["answered"] == "its user is 1, not 3"
    (problem,) = found["problems"]  # and not that it is elsewhere
    assert "user-04.ledger.json" in problem
    (r.folder / "survivors.json").write_text("{}")
    said = must("status", r.folder)
    assert "warning:" in said.err  # a long path begins a line of its own
    assert "survivors.json" in said.err
    assert following(r)[0] == "freeze"


def test_an_answer_of_another_session_is_named_as_such(round_at, new_round):
    """It is for other survivors too, but that is not what is wrong with it."""
    r = round_at("answered")
    other = new_round("other").play(upto="answered")
    shutil.copy(other.folder / "elimination/user-01.h5", r.folder / "elimination/user-01.h5")
    assert status(r)["users"][0]["answered"] == "it belongs to another session"
    assert status(r)["users"][1]["answered"] == "yes"
    (r.folder / "survivors.json").unlink()
    assert status(r)["users"][0]["answered"] == "it belongs to another session"
    assert status(r)["users"][1]["answered"] == "there is no sound survivors.json that it answers"


def test_a_damaged_sum_is_a_problem_and_decoded_again(round_at):
    r = round_at("decoded")
    assert following(r) == (None, None)
    assert status(r)["problems"] == []
    os.truncate(r.folder / "aggregate.h5", 700)
    assert following(r) == ("decode", "answer of user 4")
    (problem,) = status(r)["problems"]
    assert "aggregate.h5" in problem
    must("decode", r.folder)
    assert status(r)["problems"] == []


class Died(BaseException):
    """The process is gone in the middle of a step."""


def died(*_):
    raise Died


STOPPED = [("offline", "mask"), ("masked", "freeze"), ("confirmed", "eliminate")]


@pytest.mark.parametrize(
    ("stage", "step", "kind"),
    [
        *((stage, step, kind) for stage, step in STOPPED for kind in ("plain", "sealed")),
        ("frozen", "confirm", "confirm"),
    ],
)
def test_a_step_that_was_stopped_is_proposed_until_it_has_gone_on(
    round_at, monkeypatch, stage, step, kind
):
    """Between the line in the ledger and the file in its place."""
    r = round_at(stage, **KINDS[kind])
    with monkeypatch.context() as patch:
        patch.setattr(spend, "_put", died)
        with pytest.raises(Died):
            call(*r.step(step))
    assert following(r, "--user", 1) == (step, None)
    must(*r.step(step))
    assert following(r, "--user", 1)[0] != step


class TestALostSecret:
    """Nobody is told that nothing is left to do while a step of the user is due."""

    def test_after_the_freeze_the_step_that_is_due_says_where_it_is_looked_for(
        self, round_at, refuses
    ):
        r = round_at("frozen")
        for n in (3, 5):  # a survivor, and one that never masked
            (r.folder / f"secrets/user-{n:02}.ledger.json").unlink()
            (r.folder / f"secrets/user-{n:02}.h5").unlink()
        assert "its secret is not in" in status(r, "--user", 3)["problems"][0]
        assert following(r, "--user", 3) == ("eliminate", None)
        refuses(66, *r.eliminate(3), says="name the folder of its secrets: --secrets DIR")
        assert following(r, "--user", 5) == ("decode", "answers of users 1, 2, 3, 4")

    @pytest.mark.parametrize("stage", ["frozen", "confirmed"])
    def test_where_users_confirm_that_is_first_to_confirm(self, round_at, stage):
        r = round_at(stage, **CONFIRMING)
        (r.private(3) / "user-03.ledger.json").unlink()
        step = "confirm" if stage == "frozen" else "eliminate"
        assert following(r, "--user", 3) == (step, None)

    def test_a_user_that_has_answered_needs_none(self, round_at):
        r = round_at("answered")
        (r.folder / "secrets/user-03.ledger.json").unlink()
        assert following(r, "--user", 3) == ("decode", "answer of user 4")

    @every
    def test_a_planted_share_that_looks_sealed_stops_neither_status_nor_offline(self, round_at):
        """Who moves files can put one there; without the identity nobody sees what is in it."""
        r = round_at("init", sealed=True)
        must(*r.offline(1))
        planted = r.folder / "shares/user-03/from-03.h5.age"
        planted.parent.mkdir(exist_ok=True)
        shutil.copy(r.folder / "shares/user-02/from-01.h5.age", planted)
        assert following(r, "--user", 3) == ("offline", None)
        r.play(upto="decoded")
        r.check_sum()


def test_a_session_that_fits_no_file_is_a_problem(round_at):
    r = round_at("answered")
    assert status(r)["problems"] == []
    put(r.folder / "session.json", "00" * 16, "nonce")
    assert "no X and no Y here belongs to" in status(r)["problems"][-1]


def test_with_a_session_that_fits_no_file_nothing_is_proposed_and_nothing_sent(round_at):
    r = round_at("answered")
    put(r.folder / "session.json", "00" * 16, "nonce")
    for user in ((), ("--user", 2)):
        found = status(r, *user)
        assert (found["next"]["step"], found["next"]["command"]) == (None, None)
        assert (found["next"]["ready"], found["next"]["possible"]) == (False, False)
        assert found["send"] == []
        shown = must(*r.status(*user)).out
        assert "waiting for the session.json of this round" in shown
        assert "nothing is left to do" not in shown
        assert call(*r.status(*user, "--wait", 0)).code == 75


def test_what_has_evidently_arrived_is_not_sent_again(round_at):
    """A share once its receiver's X says so, X once another user froze it."""
    r = round_at("offline", construction="sketch", dealing="keys")
    end = "h5"
    listed = "dealt/user-02.json"
    assert sends(r, 2) == [*(f"shares/user-{m:02}/from-02.{end}" for m in (1, 3, 4, 5)), listed]
    must(*r.mask(1))
    must(*r.mask(2))
    mine = "masked/user-02.h5"
    others = [f"shares/user-{m:02}/from-02.{end}" for m in (3, 4, 5)]
    assert sends(r, 2) == [*others, listed, mine]
    for user in (3, 4):
        must(*r.mask(user))
    must(*r.freeze())
    assert sends(r, 2) == [others[-1], listed]
    assert "survivors.json" in sends(r, 1)
    must(*r.mask(5))
    assert sends(r, 2) == []
    assert sends(r, 5) == ["masked/user-05.h5"]  # which is not among the survivors
    must(*r.eliminate(2))
    assert sends(r, 2) == ["elimination/user-02.h5"]
    assert "survivors.json" not in sends(r, 1)  # it was answered


def test_status_needs_a_session_and_a_user_of_the_round(round_at, refuses, tmp_path):
    refuses(
        66,
        "status",
        tmp_path / "nowhere",
        says=("there is no folder /nowhere", "check the name of the folder"),
    )
    started = round_at("init")
    refuses(2, "status", started.folder, "--user", 6, says="there is no user 6 in this round")


@pytest.mark.parametrize(
    ("seconds", "says"),
    [("nan", "nan is not a number of seconds"), ("-1", "-1.0 is not in the range x>=0")],
)
def test_status_waits_for_a_number_of_seconds(round_at, refuses, seconds, says):
    folder = round_at("offline").folder
    refuses(2, "status", folder, "--wait", seconds, says=f"invalid value for '--wait': {says}")


def test_status_waits_until_the_file_arrives_or_the_time_is_up_and_not_if_the_step_is_ready(
    round_at,
):
    r = round_at("offline")
    path = r.folder / "shares/user-02/from-03.h5"
    away = path.rename(path.with_name("away"))
    wait = ("status", r.folder, "--user", 2, "--json", "--wait")
    result = call(*wait, 0)
    assert (result.code, result.json["next"]["waits_for"]) == (75, "share of user 3 for user 2")
    assert "mask still waits for share of user 3 for user 2" in result.err
    assert "waiting for share" not in result.err  # it did not wait
    timer = threading.Timer(0.2, os.rename, (away, path))
    timer.start()
    waited = must(*wait, 60)
    assert waited.json["next"]["ready"] is True
    assert waited.err == "waiting for share of user 3 for user 2\n"  # once, at first
    timer.join()
    must(*wait, 600)
    must("status", round_at("decoded", "done").folder, "--wait", 600)
