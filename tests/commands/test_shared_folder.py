"""A folder that several share: where secrets are, what a copy of it gives away, and two accounts in
one round."""

import os
import shutil
import stat
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from played import (
    CONFIRMING,
    RECIPES,
    Result,
    Round,
    attributes,
    become,
    call,
    contents,
    datasets,
    flip,
    forked,
    in_child,
    must,
    waited,
)

from topk_secagg.storage.keys import read_identity
from topk_secagg.storage.workspace import Workspace

SHARED = replace(
    RECIPES["permutation"], name="shared", homes=True, **{**CONFIRMING, "colluders": 2}
)


def private_names(user: int, folder: Path) -> list[Path]:
    return [folder / f"user-{user:02}{end}" for end in (".h5", ".ledger.json", ".residual.h5")]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A finished sealed round in which every user has its own folder for its secrets."""
    base = tmp_path_factory.mktemp("shared")
    return Round(SHARED, base / "round", base / "inputs").prepare().play()


class TestSecretsElsewhere:
    def test_secret_ledger_and_residual_are_in_a_folder_named_by_the_session(
        self, new_round, tmp_path, monkeypatch
    ):
        r = new_round(residual=True)
        home = tmp_path / "home"
        must(*r.init())
        monkeypatch.setenv("TOPK_SECAGG_SECRETS", str(home))
        for user in r.recipe.everybody:
            must(*r.offline(user))
        for user in r.recipe.everybody:
            must(*r.mask(user))
        session = Workspace(r.folder).session
        names = {path.name for path in home.iterdir() if path.suffix != ".lock"}
        series = session.series_root[:16]
        of_users = {
            name
            for n in r.recipe.everybody
            for name in (f"user-{n:02}.sent", f"user-{n:02}.chain-{series}.h5")
        }
        assert names == {session.id, "input.key", *of_users}
        private = home / session.id
        assert set(private.glob("user-*")) == {
            path for user in r.recipe.everybody for path in private_names(user, private)
        }
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert not (r.folder / "secrets").exists()
        r.play(after="masked").check_sum(survivors=r.recipe.everybody)
        must(*r.forget(1))
        assert not (private / "user-01.h5").exists()

    @staticmethod
    def opened_by(r: Round, users: tuple[int, ...]) -> list[str]:
        """The files of the folder that hold a secret, and that these users can open."""
        from pyrage import decrypt

        found = []
        for name, (content, _) in contents(r.folder).items():
            if name.endswith(".age"):
                for user in users:
                    try:
                        decrypt(content, [read_identity(r.identity(user)).opener()])
                    except Exception:  # pyrage.DecryptError is not among the built-in kinds
                        continue
                    found.append(name)
            kind = attributes(r.folder / name)["kind"] if name.endswith(".h5") else ""
            if kind in ("secret", "share", "residual") or name.endswith(".ledger.json"):
                found.append(name)
        return sorted(found)

    def test_with_the_keys_of_t_users_only_their_own_shares_open(self, shared):
        assert len(contents(shared.folder)) == 3 + 25 + 5 + 4 + 4
        assert self.opened_by(shared, (2, 4)) == [
            f"shares/user-{user:02}/from-{sender:02}.h5.age"
            for user in (2, 4)
            for sender in shared.recipe.everybody
        ]

    def test_no_key_and_no_mask_is_in_any_file_of_the_folder(self, shared):
        everything = b"".join(content for content, _ in contents(shared.folder).values())
        secrets = list(shared.folder.parent.glob("home-*/*/user-*.h5"))
        assert len(secrets) == 5
        for path in secrets:
            found = datasets(path)
            assert found["key"].tobytes()[:8] not in everything
            assert found["mask"][:2].tobytes() not in everything
        for user in shared.recipe.everybody:
            identity = read_identity(shared.identity(user))
            assert identity.age.encode() not in everything
            assert identity.ed25519.encode() not in everything

    def test_the_search_finds_secrets_that_are_there(self, round_at):
        """The twin: a sealed round with its secrets in the folder, and a plain one."""
        sealed = round_at("decoded", sealed=True)
        private = sealed.private(3).relative_to(sealed.folder)
        assert f"{private}/user-03.h5" in self.opened_by(sealed, (2, 4))
        assert "shares/user-03/from-05.h5" in self.opened_by(round_at("decoded", "plain"), (2, 4))

    @pytest.mark.parametrize("sealed", [False, True])
    def test_a_copy_of_the_folder_has_no_fresh_ledger(self, new_round, refuses, tmp_path, sealed):
        r = new_round(sealed=sealed, homes=True).play(upto="offline")
        copy = r.elsewhere(shutil.copytree(r.folder, tmp_path / "copy"))
        np.save(tmp_path / "other.npy", 2 * np.load(r.gradient(1)))
        must(*r.mask(1))
        assert "another" in refuses(77, *copy.mask(1, gradient=tmp_path / "other.npy")).err
        must(*copy.mask(1))  # the same gradient gives the same X
        assert contents(copy.folder / "masked") == contents(r.folder / "masked")
        nowhere = ("--user", 1, "--gradient", r.gradient(1))
        if sealed:
            refuses(
                77, "mask", copy.folder, *nowhere, says="and its secrets would be in the folder"
            )
        else:
            refuses(66, "mask", copy.folder, *nowhere, says="user 1 has no secret")

    def test_with_secrets_in_the_folder_a_copy_masks_a_second_gradient(self, round_at, tmp_path):
        """The twin: why secrets belong elsewhere."""
        r, copy = round_at("offline"), round_at("offline", "copy")
        np.save(tmp_path / "other.npy", 2 * np.load(r.gradient(1)))
        must(*r.mask(1))
        must(*copy.mask(1, gradient=tmp_path / "other.npy"))


class TestForeignSecrets:
    WARNING = "is the secret of another user, and must not leave that user's machine"

    def commands(self, r: Round) -> list[tuple[object, ...]]:
        return [r.status(), r.decode(), ("audit", r.folder)]

    def test_secrets_of_others_are_named_by_status_decode_and_audit(self, round_at):
        r = round_at("answered")
        for user in (1, 4, 5):
            for path in private_names(user, r.folder / "secrets"):
                path.unlink(missing_ok=True)
        for command in self.commands(r):
            said = must(*command).err
            assert said.count(self.WARNING) == 2
            assert all(f"secrets/user-{n:02}.h5 {self.WARNING}" in said for n in (2, 3))
        own = must("status", r.folder, "--user", 2, "--json")
        assert own.json["foreign_secrets"] == [str(r.folder / "secrets/user-03.h5")]
        assert own.err.count(self.WARNING) == 1

    def test_one_person_with_all_users_and_one_user_alone_are_not_warned(self, round_at):
        everybody, forgotten, alone = (
            round_at("answered", name) for name in ("everybody", "forgotten", "alone")
        )
        must(*forgotten.forget(1))
        assert not (forgotten.folder / "secrets/user-01.h5").exists()
        for user in (2, 3, 4, 5):
            for path in private_names(user, alone.folder / "secrets"):
                path.unlink(missing_ok=True)
        for r in (everybody, forgotten, alone):
            for command in self.commands(r):
                assert self.WARNING not in must(*command).err
            assert self.WARNING not in must("status", r.folder, "--user", 1).err

    def test_a_session_that_is_not_sound_is_still_audited(self, round_at):
        r = round_at("answered")
        (r.folder / "session.json").write_text("{}")
        assert call("audit", r.folder).code == 65


# --- several accounts -----------------------------------------------------------------------------


def modes(folder: Path) -> dict[str, int]:
    """The modes of a folder, and of everything in it but locks and secrets."""
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode)
        for path in [folder, *folder.rglob("*")]
        if not path.name.endswith(".lock")
    }


@pytest.fixture
def closed():
    """With a umask of 077."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("closed")
@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_public_files_of_a_sealed_round_can_be_read_by_all_with_any_umask(
    new_round, tmp_path, mode
):
    r = new_round(homes=True, **CONFIRMING)
    r.folder.mkdir()
    r.folder.chmod(mode)
    r.play()
    must(*r.decode("--output", tmp_path / "sum.npy"))
    for name, found in modes(r.folder).items():
        assert found == (mode if (r.folder / name).is_dir() else 0o644), name
    (lock,) = r.folder.glob(".*lock")
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600  # or others could hold it
    assert (
        stat.S_IMODE((tmp_path / "sum.npy").stat().st_mode) == 0o600
    )  # this one is the user's own
    for user in r.recipe.everybody:
        assert {found for name, found in modes(r.home(user)).items() if name != "."} == {
            0o700,
            0o600,
        }


@pytest.mark.usefixtures("closed")
def test_folders_of_a_plain_round_follow_the_umask(new_round):
    r = new_round().play()
    assert {mode for name, mode in modes(r.folder).items() if (r.folder / name).is_dir()} == {0o700}


def as_account(uid: int, *args: object) -> Result:
    """A command as another account."""
    return in_child(*args, before=lambda: become(uid))


def account(user: int) -> int:
    """The account of a user: two accounts for five users. Root owns the folder and starts the
    round."""
    return 1001 + user % 2 if user else 0


@pytest.fixture
def open_folder():
    """A folder that every account can get to: those of pytest are closed."""
    folder = Path(tempfile.mkdtemp(prefix="topk-secagg-accounts-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.needs_root
class TestTwoAccounts:
    """Users 1, 3 and 5 have one account, users 2 and 4 another; ROUND is a folder for all, with the
    sticky bit."""

    @pytest.fixture
    def r(self, open_folder, shared):
        # everything that a round and its audit need is loaded now, by an account that can read it
        must("audit", shared.folder)
        r = Round(SHARED, open_folder / "round", open_folder / "inputs").prepare()
        r.folder.mkdir()
        r.folder.chmod(0o1777)
        for user in r.recipe.everybody:
            for path in (r.home(user), *r.home(user).iterdir()):
                os.chown(path, account(user), account(user))
        return r

    def own(self, user: int, *command: object) -> Result:
        """A step of a user, by its account; it must succeed."""
        result = as_account(account(user), *command)
        assert result.code == 0, (command, result)
        return result

    def play(self, r: Round, upto: str = "decoded") -> Round:
        for stage, commands in r.commands().items():
            for command in commands:
                user = (
                    command[command.index("--user") + 1]
                    if "--user" in command
                    else int(stage != "init")
                )
                self.own(user, *command)
            if stage == upto:
                break
        return r

    def status(self, r: Round, user: int, *more: object) -> Any:
        return self.own(user, "status", r.folder, "--user", user, *more, "--json").json

    def test_they_run_a_round_in_one_folder(self, r):
        self.play(r).check_sum()
        owners = {path.stat().st_uid for path in (r.folder / "masked").iterdir()}
        assert owners == {1001, 1002}
        assert not (r.folder / "secrets").exists()
        for user in (1, 2):
            said = self.status(r, user, "--secrets", r.home(user))
            assert said["next"]["step"] == "forget"
            assert [row["answered"] for row in said["users"]] == ["yes"] * 4 + [""]
            assert as_account(account(user), "audit", r.folder, "-q").code == 0

    def test_decoding_again_finds_the_same_sum_and_another_sum_stays_and_is_reported(self, r):
        self.play(r)
        before = contents(r.folder)
        output = r.home(2) / "sum.npy"
        decode = ("decode", r.folder, "--secrets", r.home(2))
        self.own(2, *decode, "--output", output)
        assert np.load(output).any()
        assert contents(r.folder) == before
        flip(r.folder / "aggregate.h5", 2000)
        said = as_account(account(2), *decode)
        assert (said.code, "aggregate.h5" in said.err) == (73, True)

    def test_forgetting_leaves_others_what_they_need_and_what_is_theirs(self, r):
        self.play(r)
        forget = r.forget(1, "--json")
        said = self.own(1, *forget).json
        assert said["needed_by"] == [5]
        assert said["kept"] == [
            str(r.folder / f"shares/user-01/from-{n:02}.h5.age") for n in (2, 4)
        ]
        assert not list(r.home(1).glob("*/user-01.h5"))
        assert (r.folder / "shares/user-05/from-01.h5.age").exists()
        self.own(5, *r.eliminate(5))
        self.own(1, *forget)

    def test_no_account_can_replace_or_remove_a_file_of_another(self, r):
        """What an account can do to the folder by itself, without the program."""
        self.play(r)
        before = contents(r.folder)
        targets = [
            path
            for path in r.folder.rglob("*")
            if path.is_file() and path.stat().st_uid == account(1)
        ]
        assert len(targets) > 15
        assert not self.changed_by(account(2), targets)
        assert contents(r.folder) == before
        r.folder.chmod(0o777)  # the twin: without the sticky bit
        assert self.changed_by(account(2), [r.folder / "survivors.json"])

    @staticmethod
    def changed_by(uid: int, targets: list[Path]) -> bool:
        """Whether an account can overwrite, replace or remove one of these files."""

        def attempt() -> Result:
            become(uid)
            for path in targets:
                planted = path.with_name(f"planted-{uid}")
                for change in (
                    lambda path=path: path.write_bytes(b""),
                    lambda path=path, planted=planted: (
                        planted.write_bytes(b""),
                        planted.replace(path),
                    ),
                    lambda path=path: path.unlink(),
                ):
                    try:
                        change()
                    except OSError:
                        planted.unlink(missing_ok=True)
                    else:
                        return Result(1, "", "")
            return Result(0, "", "")

        return waited(forked(attempt)) == 1

    def test_a_file_in_the_place_of_an_x_is_reported(self, r):
        """The account of user 2 writes an X of user 1 before user 1 does, signed with the wrong
        key."""
        self.play(r, "offline")
        self.own(2, *r.mask(2))
        shutil.copy(r.folder / "masked/user-02.h5", r.folder / "masked/user-01.h5")
        os.chown(r.folder / "masked/user-01.h5", account(2), account(2))
        said = as_account(account(1), *r.mask(1))
        assert (said.code, "masked/user-01.h5" in said.err) == (73, True)
        assert (
            self.status(r, 1, "--secrets", r.home(1))["users"][0]["masked"]
            == "its user is 2, not 1"
        )

    def test_temporary_files_and_secrets_of_another_account_do_not_matter(self, r):
        self.own(0, *r.init())
        self.own(1, *r.offline(1))
        says = "its secrets would be in the folder of the round"
        said = as_account(account(2), "offline", r.folder, "--user", 2)
        assert (said.code, says in said.err) == (77, True)
        (r.folder / "shares/user-03/.from-02.h5.age.1.tmp").touch()
        self.own(2, *r.offline(2))
        for more in ((), ("--secrets", r.home(2))):
            found = self.status(r, 2, *more)
            assert found["foreign_secrets"] == []
        assert found["users"][1]["holds"] == [1, 2]
