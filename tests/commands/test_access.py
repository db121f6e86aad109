"""What a user trusts: the pinned session, the keys it knows, the freezer, and confirmations."""

import os
import random
import shutil

import pytest
from played import (
    CONFIRMING,
    Round,
    attributes,
    call,
    contents,
    document,
    edit,
    every,
    must,
)

import topk_secagg as ts
from topk_secagg.storage.atomic import make_folder

BEFORE = {
    "offline": "init",
    "mask": "offline",
    "freeze": "masked",
    "confirm": "frozen",
    "eliminate": "confirmed",
}


class TestSession:
    @pytest.mark.parametrize("step", ["offline", "mask", "freeze", "eliminate"])
    def test_another_session_than_the_pinned_one_is_refused(
        self, round_at, refuses, monkeypatch, step
    ):
        r = round_at(BEFORE[step])
        name = must(*r.init("--json")).json["session"]
        for pin in ("0" * 16, name[:20] + ("0" if name[20] != "0" else "1"), "f" * 64):
            assert name[:16] in refuses(77, *r.step(step), "--session", pin).err
        for pin in (name[:15], "", "x" * 16, name[:16] + "-"):
            assert "16" in refuses(2, *r.step(step), "--session", pin).err
        with monkeypatch.context() as patch:
            patch.setenv("TOPK_SECAGG_SESSION", "0" * 64)
            refuses(77, *r.step(step), says=f"this is session {name[:16]}, not 0000")
            patch.setenv("TOPK_SECAGG_SESSION", name)
            must(*r.step(step))
        for pin in (name, name[:16], name[:30].upper()):
            must(*r.step(step), "--session", pin)

    def test_every_step_prints_the_session_that_a_user_can_compare(self, new_round):
        r = new_round()
        pin = must(*r.init("--json")).json["session"][:16]
        for command in (r.init(), *r.left(after="init")):
            assert f"session {pin}" in must(*command).out, command
        for command in (("status", r.folder), ("audit", r.folder)):
            assert f"session {pin}" in must(*command).out, command


class TestKeys:
    @pytest.mark.parametrize("step", ["offline", "mask", "confirm", "eliminate"])
    def test_a_session_with_other_keys_than_a_user_knows_is_refused(
        self, round_at, refuses, tmp_path, step
    ):
        r = round_at(BEFORE[step], **CONFIRMING)
        lines = r.recipients.read_text().splitlines()
        mine = tmp_path / "mine"
        mine.write_text("\n".join(reversed(lines)) + "\n")
        other = must("keygen", "--user", 3, "--secrets", tmp_path / "other").out
        theirs = tmp_path / "theirs"
        theirs.write_text("\n".join([*lines[:2], other.strip(), *lines[3:]]))
        assert "other keys for user 3" in refuses(77, *r.step(step), "--recipients", theirs).err
        nowhere = ("--recipients", tmp_path / "nowhere")
        refuses(66, *r.step(step), *nowhere, says="/nowhere is not there")
        mine_short = tmp_path / "short"
        mine_short.write_text(lines[0] + "\n")
        says = "/short does not have exactly one line for each of the 5 users"
        refuses(65, *r.step(step), "--recipients", mine_short, says=says)
        must(*r.step(step), "--recipients", mine)

    @pytest.mark.parametrize("step", ["offline", "mask", "eliminate"])
    def test_a_user_with_keys_does_not_take_part_in_a_round_without(self, round_at, refuses, step):
        r, sealed = round_at(BEFORE[step]), round_at("init", "sealed", sealed=True)
        assert "not sealed" in refuses(77, *r.step(step), "--identity", sealed.identity(1)).err
        assert "no keys" in refuses(77, *r.step(step), "--recipients", sealed.recipients).err

    @pytest.mark.parametrize("step", BEFORE)
    def test_only_the_right_identity_that_others_cannot_read_is_accepted(
        self, round_at, refuses, tmp_path, step
    ):
        r = round_at(BEFORE[step], **CONFIRMING)
        by = ["--user", 1] * (step == "freeze")
        plain = [*r.step(step), *by]
        open_to_all = tmp_path / "open.identity"
        shutil.copyfile(r.identity(1), open_to_all)
        (tmp_path / "junk").write_text("AGE-SECRET-KEY-1junk\n")
        (tmp_path / "junk").chmod(0o600)
        at = plain.index("--secrets")
        refuses(77, *plain[:at], *plain[at + 2 :], says="which `keygen` made the user's identity")
        assert "chmod 600" in refuses(77, *plain, "--identity", open_to_all).err
        assert "not an identity file" in refuses(65, *plain, "--identity", tmp_path / "junk").err
        says = ("not an identity file of", "but has public keys")  # which anybody may read
        refuses(65, *plain, "--identity", r.recipients, says=says)
        said = refuses(65, *plain, "--identity", r.identity(2)).err
        assert "does not hold the keys" in said
        assert "of user 2" in said
        refuses(66, *plain, "--identity", tmp_path / "gone", says="/gone is not there")
        if step not in ("freeze", "confirm"):
            several = [
                step,
                r.folder,
                "--user",
                "1,2",
                "--identity",
                r.identity(1),
                *plain[at : at + 2],
            ]
            if step == "mask":
                several += ["--gradients", r.inputs / "gradients"]
            refuses(2, *several, says="--identity belongs to one user")
        open_to_all.chmod(0o600)
        must(*plain, "--identity", open_to_all)

    def test_recipients_that_are_not_one_line_for_each_user_start_no_round(
        self, new_round, refuses
    ):
        r = new_round(sealed=True)
        lines = r.recipients.read_text().splitlines()
        head, key = lines[0].split("ed25519:")
        for content, match in (
            ([], "exactly one line for each"),
            (lines[:4], "exactly one line for each"),
            (["what is this"], "a line is not"),
            (["1 age1xyz ed25519:00", *lines[1:]], "not valid"),
            ([*lines, lines[0]], "two lines"),
            ([f"1 {lines[1][2:]}", *lines[1:]], "same key"),
            ([f"{head}ed25519:{key.upper()}", *lines[1:]], "not valid"),  # a key has one spelling
            ([f"{head}ed25519:{key[:2]} {key[2:]}", *lines[1:]], "a line is not"),
            (["9" * 5000 + lines[0][1:], *lines[1:]], "a line is not"),
        ):
            r.recipients.write_text("\n".join(content))
            assert match in refuses(65, *r.init()).err
        r.recipients.unlink()
        refuses(66, *r.init(), says="recipients is not there")
        assert not (r.folder / "session.json").exists()
        r.recipients.write_text("\n# a comment\n".join(reversed(lines)))
        must(*r.init())
        assert [row["user"] for row in document(r.folder / "session.json")["recipients"]] == [
            1,
            2,
            3,
            4,
            5,
        ]

    def test_keys_are_private_and_made_once(self, tmp_path, refuses):
        folder = tmp_path / "mine"
        make = ("keygen", "--secrets", folder, "--user")
        public = must(*make, 1).out
        assert public.startswith("1 age1")
        assert folder.stat().st_mode & 0o777 == 0o700
        before = contents(folder)
        assert {mode for _, mode in before.values()} == {0o600}
        assert set(before) == {"user-01.identity", "folder.json"}
        assert must(*make, 1).out == public
        assert contents(folder) == before
        assert must(*make, 2).out.startswith("2 age1")  # several users may have one folder
        assert contents(folder).items() > before.items()
        refuses(2, *make, 0, says="there is no user 0")


class TestTheFreezer:
    def frozen_by(self, r: Round, user: int, *more: object) -> tuple[object, ...]:
        return (*r.freeze("--user", user), *more)

    @every
    def test_only_the_freezer_freezes_and_with_its_own_ledger(self, new_round, refuses):
        r = new_round()
        must(*r.init("--freezer", 3))
        r.play(after="init", upto="masked")
        for user in (1, 2, 5):
            assert "user 3 freezes" in refuses(77, *r.freeze("--user", user)).err
        assert must(*r.freeze("--json")).json["freezer"] == 3
        assert document(r.folder / "survivors.json")["freezer"] == 3
        frozen = {
            n: document(r.folder / f"secrets/user-{n:02}.ledger.json")["frozen"]
            for n in range(1, 6)
        }
        assert [n for n in frozen if frozen[n]] == [3]
        must(*r.freeze("--user", 3))
        r.play(after="frozen").check_sum()

    @every
    def test_there_is_never_a_second_set(self, round_at, refuses):
        r = round_at("frozen")
        path = r.folder / "survivors.json"
        before = path.read_bytes()
        for only in ("1,2,3", "2,3,4"):
            assert "1, 2, 3, 4" in refuses(77, *r.freeze("--only", only)).err
        path.unlink()
        assert "fixed already: 1, 2, 3, 4" in refuses(77, *r.freeze("--only", "1,2,3")).err
        (r.folder / "masked/user-04.h5").rename(r.folder / "masked/elsewhere")
        must(*r.freeze())  # exactly the set in the ledger, whatever is in masked/ now
        assert path.read_bytes() == before

    def test_survivors_that_the_freezer_did_not_write_are_refused(self, round_at, refuses):
        r, twin = round_at("masked"), round_at("frozen", "twin")
        shutil.copy(twin.folder / "survivors.json", r.folder / "survivors.json")
        assert "did not write it" in refuses(77, *r.freeze()).err

    def test_the_survivors_of_another_freezer_are_not_answered(self, round_at, refuses):
        r = round_at("frozen")
        edit(r.folder / "survivors.json", lambda content: content.update(freezer=2))
        assert "user 1 freezes" in refuses(65, *r.eliminate(3)).err

    def test_survivors_that_the_freezer_did_not_sign_are_not_answered(self, round_at, refuses):
        r = round_at("frozen", sealed=True)
        path = r.folder / "survivors.json"
        signature = document(path)["signature"]
        for forged in (
            None,
            "",
            "0" * 128,
            signature[:-1] + ("0" if signature[-1] != "0" else "1"),
        ):
            edit(path, lambda content, forged=forged: content.update(signature=forged))
            assert "did not sign" in refuses(65, *r.eliminate(3)).err
        edit(
            path,
            lambda content: content.update(signature=signature, survivors=content["survivors"][:3]),
        )
        assert "did not sign" in refuses(65, *r.eliminate(3)).err

    def test_in_a_round_with_confirmations_any_user_may_freeze(self, round_at):
        r = round_at("masked", **CONFIRMING)
        written = [
            must(*how).json["written"]
            for how in (r.freeze("--user", 4, "--json"), r.freeze("--json"))
        ]
        assert written == [True, False]
        assert document(r.folder / "survivors.json")["freezer"] is None
        r.play(after="frozen").check_sum()


@pytest.mark.rule(2)
class TestConfirmations:
    @pytest.fixture
    def frozen(self, round_at):
        """Before anybody has confirmed: more than (5+1)/2 must."""
        r = round_at("masked", **CONFIRMING)
        must(*r.freeze())
        return r

    def test_no_user_answers_before_more_than_half_of_n_and_t_have_confirmed(self, frozen, refuses):
        lines = {
            5: "1 of 4 confirmations is here: user 5",
            2: "2 of 4 confirmations are here: users 2, 5",
        }
        for n in (5, 2, 4):
            assert "4 must" in refuses(66, *frozen.eliminate(1)).err
            assert (
                lines.get(n, "3 of 4 confirmations are here: users") in must(*frozen.confirm(n)).out
            )
            said = must(*frozen.confirm(n, "--json")).json
        assert (said["confirmed"], said["needed"]) == ([2, 4, 5], 4)
        assert "missing: users 1, 3" in refuses(66, *frozen.eliminate(1)).err
        assert "enough confirmations are here: users 1, 2, 4, 5" in must(*frozen.confirm(1)).out
        must(*frozen.eliminate(1))

    def test_only_sound_confirmations_of_this_very_set_count(self, frozen, round_at, refuses):
        for n in (1, 2, 3):
            must(*frozen.confirm(n))
        path = frozen.folder / "confirmed/user-04.json"
        missing = "3 users have confirmed these survivors, and 4 must; missing: users 4, 5"
        twin = round_at("masked", "twin", **CONFIRMING)
        must(*twin.freeze("--only", "1-4"))
        must(*twin.confirm(4))  # the same user and session, but another set
        shutil.copy(twin.folder / "confirmed/user-04.json", path)
        refuses(66, *frozen.eliminate(1), says=missing)
        shutil.copy(frozen.folder / "confirmed/user-03.json", path)
        refuses(66, *frozen.eliminate(1), says=missing)
        for key, value in (
            ("user", 4),
            ("signature", "0" * 128),
            ("signature", None),
            ("session", "0" * 64),
        ):
            edit(path, lambda content, key=key, value=value: content.update({key: value}))
            refuses(66, *frozen.eliminate(1), says=missing)
        path.write_bytes(b"{")
        refuses(66, *frozen.eliminate(1), says=missing)
        must(*frozen.confirm(4))  # which nobody else can keep it from
        must(*frozen.eliminate(1))

    def test_a_user_confirms_and_answers_one_set_only(self, frozen, round_at, refuses):
        for n in (1, 2, 3, 4):
            must(*frozen.confirm(n))
        before = contents(frozen.folder)
        must(*frozen.confirm(2))
        assert contents(frozen.folder) == before
        twin = round_at("masked", "twin", **CONFIRMING)
        must(*twin.freeze("--user", 3, "--only", "1-4"))
        for n in (1, 2, 3, 5):
            must(*twin.confirm(n))
        shutil.copytree(twin.folder / "confirmed", frozen.folder / "confirmed", dirs_exist_ok=True)
        shutil.copy(twin.folder / "survivors.json", frozen.folder / "survivors.json")
        assert "already confirmed another" in refuses(77, *frozen.confirm(2)).err
        assert "already confirmed another" in refuses(77, *frozen.eliminate(2)).err
        must(*frozen.confirm(5))  # which has confirmed nothing here yet

    def test_confirming_makes_sense_only_with_keys(self, round_at, new_round, refuses):
        for sealed in (False, True):
            r = round_at("frozen", f"sealed-{sealed}", sealed=sealed)
            refuses(2, *r.confirm(1), says="users do not confirm in this round")
        refuses(2, *new_round("unsealed").init("--confirm"), says="there are no keys")
        few = new_round("few", sealed=True, confirm=True)
        assert "U > (N + T) / 2: at least 4" in refuses(2, *few.init()).err
        assert attributes(r.folder / "masked/user-01.h5")["signature"]

    def test_there_is_nothing_to_confirm_before_the_freeze(self, round_at, refuses):
        masked = round_at("masked", **CONFIRMING)
        refuses(66, *masked.confirm(1), says="survivors.json is not there")


@pytest.mark.needs_root
def test_plain_shares_are_not_put_into_a_folder_of_another_account(round_at, refuses):
    for step, stage in (("offline", "init"), ("mask", "offline"), ("eliminate", "frozen")):
        r = round_at(stage, step)
        os.chown(r.folder, 65534, 65534)
        assert "belongs to another account" in refuses(77, *r.step(step)).err
    sealed = round_at("init", "sealed", sealed=True)
    os.chown(sealed.folder, 65534, 65534)
    must(*sealed.offline(1))


@pytest.mark.needs_root
def test_what_is_refused_leaves_nothing_in_the_secrets_of_another_account(
    round_at, refuses, tmp_path
):
    r = round_at("init")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    for command in (r.offline(1), r.mask(1), r.forget(1)):
        refuses(77, *command, "--secrets", theirs, says="belongs to somebody else")
        assert list(theirs.iterdir()) == []


@pytest.mark.needs_root
def test_without_the_check_it_leaves_a_folder(round_at, refuses, tmp_path, monkeypatch):
    """The twin."""
    r = round_at("init")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    monkeypatch.setattr(
        ts.Workspace, "_make_private", lambda self: make_folder(self.private, private=True)
    )
    refuses(77, *r.offline(1), "--secrets", theirs, says="belongs to somebody else")
    assert list(theirs.iterdir()) != []


def test_init_from_another_round_copies_everything_but_the_nonce(new_round, refuses, tmp_path):
    r = new_round(**CONFIRMING, homes=True).play()
    for more in ("--users=5", "--confirm", "--freezer=2"):
        option = more.partition("=")[0]
        says = ("comes from the other round", f"--from takes {option} from that round")
        refuses(2, "init", tmp_path / "next", "--from", r.folder, more, says=says)
    nowhere = ("--from", tmp_path / "nowhere")
    refuses(66, "init", tmp_path / "next", *nowhere, says="there is no folder /nowhere")
    said = must("init", tmp_path / "next", "--from", r.folder, "--json").json
    assert (said["written"], said["sealed"], said["confirmations"]) == (True, True, 4)
    old, new = document(r.folder / "session.json"), document(tmp_path / "next/session.json")
    assert old.pop("nonce") != new.pop("nonce")
    root = r.space().session_id
    assert new == old | {"before": root, "series": {"root": root, "generation": 1}}
    assert list(contents(tmp_path / "next")) == ["session.json"]
    assert call("init", tmp_path / "next", "--from", r.folder, "--json").json["written"] is False
    must("decode", r.folder, "--secrets", r.home(5))  # which did not answer, and sees the sum
    following = r.elsewhere(tmp_path / "next")
    following.steps = following.write_gradients(random.Random(2))
    following.play(after="init").check_sum()


def test_who_is_not_the_freezer_is_told_who_freezes(round_at, refuses):
    r = round_at("masked", sealed=True)
    says = ["does not hold the keys", "this is the identity of user 3, and user 1 freezes"]
    refuses(65, *r.freeze("--identity", r.identity(3)), says=says)
