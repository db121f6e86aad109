"""What must never be printed, stored in public, or used twice; with twins that break the guard on
purpose."""

import base64
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import element_of_order, sketch_of
from played import (
    RECIPES,
    Round,
    attributes,
    call,
    contents,
    datasets,
    document,
    edit,
    every,
    leftovers,
    must,
    python,
)

from topk_secagg.rounds import offline as offline_step
from topk_secagg.rounds import series, spend
from topk_secagg.storage import secret as secret_file
from topk_secagg.storage.workspace import Workspace

PUBLIC = ("session.json", "survivors.json", "aggregate.h5", "dealt/", "masked/", "elimination/")
Q = 4281076801


def ledger(r: Round, user: int = 1) -> Any:
    return document(r.folder / f"secrets/user-{user:02}.ledger.json")


def doubled(r: Round, user: int, folder: Path) -> Path:
    """Twice the gradient of a user: another input at the same places."""
    np.save(folder / "doubled.npy", 2 * np.load(r.gradient(user)))
    return folder / "doubled.npy"


ROUNDS = {
    "permutation": replace(RECIPES["permutation"], length=64, top_k=8),
    "shares": replace(RECIPES["sketch"], dealing="shares"),
    "keys": RECIPES["sketch"],
}


@pytest.fixture(scope="module", params=ROUNDS)
def transcript(request, tmp_path_factory):
    """A round with -v, again with --json, all its files inspected: the folder, and what was
    said."""
    base = tmp_path_factory.mktemp("transcript")
    r = Round(ROUNDS[request.param], base / "round", base / "inputs").prepare()
    said = []

    def say(*args):
        result = must(*args)
        said.append(result.out + result.err)

    for command in r.left(upto="decoded"):
        say(*command, "-v")
        say(*command, "--json", "-v")
    for flag in ("-v", "--json"):
        files = [path for path in r.folder.rglob("*") if path.suffix in (".h5", ".json")]
        say("inspect", *files, flag)
        say("status", r.folder, "--user", 1, flag)
        say("audit", r.folder, flag)
    say(*r.elsewhere(base / "run").run("-v"))
    for n in (1, 5):
        say("forget", shutil.copytree(r.folder, base / f"copy-{n}"), "--user", n, "-v")
    return r.folder, "".join(said)


def secret_keys(folder: Path) -> list[bytes]:
    """The keys of users' streams, and those of blocks that they drew and that they hold."""
    found = []
    for path in [*folder.glob("secrets/*.h5"), *folder.glob("shares/*/*.h5")]:
        for name, array in datasets(path).items():
            if name in ("key", "keys", "own"):
                found += [row.tobytes() for row in array.reshape(-1, 32) if row.any()]
    assert len(found) >= 5
    return found


def masks(folder: Path) -> Iterator[np.ndarray]:
    """The masks of all users as they would be stored, drawn or from keys."""
    space = Workspace(folder)
    session = space.session
    for n in space.users():
        own = () if session.family is None else series.read_chain(space, n).own
        yield secret_file.read(space, n).secret(session, n, own).mask.astype("<u4")


class TestNothingSecretIsShown:
    @staticmethod
    def secret_numbers(folder: Path) -> set[int]:
        """Masks, and the symbols of shares; small ones are left out, since sizes and counts are
        shown."""
        numbers = {number for mask in masks(folder) for number in mask[:200].tolist()}
        for path in folder.glob("shares/*/*.h5"):
            for name, array in datasets(path).items():
                if name in ("f", "h"):
                    numbers |= set(array.reshape(-1)[:200].tolist())
        assert len(numbers) > 100
        return {number for number in numbers if number > 10**7}

    @staticmethod
    def printed_numbers(text: str) -> set[int]:
        """Whole numbers; runs of digits within digests are none, and would agree with a secret now
        and then."""
        return set(map(int, re.findall(r"(?<![\w.])\d+(?![\w.])", text)))

    @staticmethod
    def test_the_key_and_the_digests_of_gradients_are_neither_printed_nor_public(transcript):
        folder, said = transcript
        key = (folder / "secrets/input.key").read_bytes()
        digests = [document(path)["input"] for path in folder.glob("secrets/*.ledger.json")]
        public = [file for name, (file, _) in contents(folder).items() if name.startswith(PUBLIC)]
        everything = b"".join(public) + said.encode()
        assert sum(digest is not None for digest in digests) == 4
        for text in (key, key.hex().encode(), *(d.encode() for d in digests if d)):
            assert text[:16] not in everything

    def test_no_mask_share_place_or_key_is_printed(self, transcript):
        folder, said = transcript
        assert not self.printed_numbers(said) & self.secret_numbers(folder)
        for path in folder.glob("secrets/*.h5"):
            place = datasets(path).get("place", np.zeros(0)).tolist()
            # fewer small numbers are printed now and then, as a list of users
            for start in range(len(place) - 7):
                assert ", ".join(map(str, place[start : start + 8])) not in said
        for key in secret_keys(folder):
            for text in (key.hex(), base64.b64encode(key).decode(), str(key), str(list(key))[1:-1]):
                assert text[:16] not in said

    def test_no_secret_is_in_a_public_file(self, transcript):
        folder, _ = transcript
        public = [file for name, (file, _) in contents(folder).items() if name.startswith(PUBLIC)]
        lists = [name for name in contents(folder) if name.startswith("dealt/")]
        assert len(public) == 3 + 4 + 3 + len(lists)
        assert len(lists) in (0, 5)
        everything = b"".join(public)
        for key in secret_keys(folder):
            for text in (key, key.hex().encode(), base64.b64encode(key)):
                assert text[:8] not in everything
        places = [datasets(path).get("place", np.zeros(0)) for path in folder.glob("secrets/*.h5")]
        for run, arrays in ((8, places), (2, masks(folder))):  # too many for a coincidence
            for array in arrays:
                for start in range(0, array.size - run + 1, run):
                    assert array[start : start + run].tobytes() not in everything

    def test_the_search_finds_a_leak_that_is_there(self, transcript):
        """The twin: the same search over what --reveal prints, and over the secret files."""
        folder, _ = transcript
        path = folder / "secrets/user-01.h5"
        whole = path.read_bytes()
        assert [key for key in secret_keys(folder) if key in whole]
        found = datasets(path)
        if "mask" not in found:
            return  # it follows from keys, which even --reveal does not show
        shown = must("inspect", path, "--reveal", "--json").out
        assert self.printed_numbers(shown) & self.secret_numbers(folder)
        name = "place" if "place" in found else "mask"
        assert ", ".join(map(str, found[name][:8].tolist())) in shown
        assert next(masks(folder))[:2].tobytes() in whole


class Died(BaseException):
    """The process is gone in the middle of a step."""


def die_instead_of_renaming(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the process end at the moment at which a file would get its name."""
    for function in ("replace", "rename"):
        real = getattr(os, function)

        def fatal(source: object, target: object, real: Any = real, **how: object) -> None:
            if str(target).endswith(name):
                raise Died
            real(source, target, **how)

        monkeypatch.setattr(os, function, fatal)


SENT = [  # at which stage, by which step, in which file, and the entry of the ledger
    ("offline", "mask", "masked/user-01.h5", "masked"),
    ("masked", "freeze", "survivors.json", "frozen"),
    ("frozen", "eliminate", "elimination/user-01.h5", "answered"),
]


@pytest.mark.rule(19)
class TestTheLedgerComesFirst:
    @every
    @pytest.mark.parametrize(("stage", "step", "file", "line"), SENT)
    def test_what_is_sent_is_in_the_ledger_before_it_appears(
        self, round_at, refuses, monkeypatch, tmp_path, stage, step, file, line
    ):
        r = round_at(stage)
        with monkeypatch.context() as patch:
            die_instead_of_renaming(patch, file)
            with pytest.raises(Died):
                call(*r.step(step))
        assert not (r.folder / file).exists()
        recorded = ledger(r)[line]
        assert recorded is not None
        if step == "mask":
            second = r.mask(1, gradient=doubled(r, 1, tmp_path))
            refuses(77, *second, says="already masked another input")
        elif step == "freeze":
            refuses(
                77, *r.freeze("--only", "1-3"), says="survivors of this round are fixed already"
            )
        else:
            frozen = (r.folder / "survivors.json").read_bytes()
            edit(r.folder / "survivors.json", lambda content: content["survivors"].pop())
            refuses(77, *r.eliminate(1), says="another survivor set")
            (r.folder / "survivors.json").write_bytes(frozen)
        must(*r.step(step))
        assert ledger(r)[line] == recorded

    @pytest.mark.parametrize(("stage", "step", "file", "_line"), SENT)
    def test_the_ledger_is_on_the_disk_before_the_file_gets_its_name(
        self, round_at, monkeypatch, stage, step, file, _line
    ):
        """Synced: the ledger, then its folder, and only then is the public file renamed."""
        r = round_at(stage)
        name = Path(file).name
        parent = (r.folder / file).parent.name
        events = []
        real = os.replace

        def replace(source, target):
            events.append(("rename", "/".join(Path(str(target)).parts[-2:])))
            real(source, target)

        monkeypatch.setattr(
            os,
            "fsync",
            lambda fd: events.append(("sync", Path(f"/proc/self/fd/{fd}").readlink().name)),
        )
        monkeypatch.setattr(os, "replace", replace)
        must(*r.step(step))
        at_ledger = events.index(("rename", "secrets/user-01.ledger.json"))
        at_public = events.index(("rename", f"{parent}/{name}"))
        assert any(
            what == "sync" and ".user-01.ledger.json." in file for what, file in events[:at_ledger]
        ), events
        assert ("sync", "secrets") in events[at_ledger:at_public]
        assert any(what == "sync" and f".{name}." in file for what, file in events[:at_public])
        assert ("sync", parent) in events[at_public:]

    @every
    def test_the_secret_is_on_the_disk_before_any_share_and_all_shares_before_x(
        self, round_at, refuses, monkeypatch
    ):
        r = round_at("init")
        with monkeypatch.context() as patch:
            die_instead_of_renaming(patch, "secrets/user-01.h5")
            with pytest.raises(Died):
                call(*r.offline(1))
        assert list(r.folder.glob("shares/*/*")) == []
        with monkeypatch.context() as patch:
            die_instead_of_renaming(patch, "shares/user-03/from-01.h5")
            with pytest.raises(Died):
                call(*r.offline(1))
        sharing = attributes(r.folder / "secrets/user-01.h5")["sharing"]
        assert ledger(r)["shared"] is None
        assert leftovers(r.folder) == []
        assert "not complete" in refuses(66, *r.mask(1)).err
        must(*r.offline(1))
        assert {attributes(path)["sharing"] for path in r.folder.glob("shares/*/from-01.h5")} == {
            sharing
        }


# Prints every file that is opened for writing below a folder
WATCH = """
import os, sys
folder = sys.argv.pop(1)
def watch(event, details):
    if event == "open" and folder in str(details[0]):
        if (details[2] or 0) & (os.O_WRONLY | os.O_RDWR):
            print("WRITES", details[0], flush=True)
sys.addaudithook(watch)
from topk_secagg_cli.main import main
main()
"""


def test_what_is_refused_never_reaches_a_public_folder(round_at, tmp_path):
    """Not even for a moment, under a temporary name: killed at that moment, it would stay there."""
    r = round_at("answered")
    mask = r.mask(1, "-q", gradient=doubled(r, 1, tmp_path))
    edit(r.folder / "survivors.json", lambda content: content["survivors"].pop())
    for folder, command in (("masked", mask), ("elimination", r.eliminate(1, "-q"))):
        end = python(WATCH, r.folder / folder, *command)
        assert (end.returncode, end.stdout) == (77, ""), end


@pytest.mark.rule(1, 2)
class TestMasksAreUsedOnce:
    def test_rounding_is_the_same_when_masked_again(self, new_round, tmp_path):
        """1/3 is no multiple of a step, so its rounding is drawn; twice the same."""
        r = new_round().play(upto="offline")
        np.save(tmp_path / "g.npy", np.full(4, 1 / 3))
        must(*r.mask(1, gradient=tmp_path / "g.npy"))
        before = contents(r.folder)
        (r.folder / "masked/user-01.h5").unlink()
        must(*r.mask(1, gradient=tmp_path / "g.npy"))
        assert contents(r.folder) == before

    @every
    def test_without_the_ledger_two_x_reveal_how_their_inputs_differ(
        self, round_at, refuses, tmp_path, monkeypatch
    ):
        """The twin: the check is what protects. A user that masks its gradient and twice its
        gradient."""
        from topk_secagg.storage.ledger import Ledger

        r = round_at("masked")
        more = doubled(r, 1, tmp_path)
        refuses(77, *r.mask(1, gradient=more), says="already masked another input")
        x = [datasets(r.folder / "masked/user-01.h5")["value"].astype(object)]
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "refuse_second_x", lambda *_: None)
            patch.setattr(spend, "finish_masked", lambda *_: False)
            patch.setattr(spend, "check_place", lambda *_: None)
            must(*r.mask(1, gradient=more))
        x.append(datasets(r.folder / "masked/user-01.h5")["value"].astype(object))
        if r.recipe.construction == "permutation":
            assert sorted((x[1] - x[0]) % Q) == sorted(w for _, w in r.sent(1))
        else:  # of 5 buckets with 30 places
            sketch = sketch_of(r.sent(1), 5, len(x[0]) // 5, element_of_order(30, Q), Q)
            assert list((x[1] - x[0]) % Q) == [v for row in sketch for v in row]

    def test_in_two_rounds_the_difference_of_two_x_reveals_nothing(self, round_at):
        """The other twin: the same gradient in two rounds."""
        x = [
            datasets(round_at("masked", name, name=name).folder / "masked/user-01.h5")[
                "value"
            ].astype(np.int64)
            for name in ("permutation", "other")
        ]
        assert 0 not in (x[1] - x[0]) % Q

    @every
    def test_without_the_ledger_two_answers_reveal_one_users_input(
        self, round_at, refuses, monkeypatch
    ):
        """The twin of 77 in eliminate: sums over U1 and over U1 without user 4 differ by what user
        4 sent."""
        from topk_secagg.storage.ledger import Ledger

        r = round_at("decoded")
        edit(r.folder / "survivors.json", lambda content: content["survivors"].pop())
        refuses(77, *r.eliminate(1), says="another survivor set")
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "check_survivors", lambda *_, **__: None)
            for n in (1, 2, 3):
                (r.folder / f"elimination/user-{n:02}.h5").unlink()
                must(*r.eliminate(n))
        must(*r.decode())
        r.check_sum(survivors=(1, 2, 3))  # r.total of all four minus this one is r.sent(4)


class TestTheSecretAndItsShares:
    def test_a_secret_lost_after_sharing_is_not_drawn_again(self, round_at, refuses):
        r = round_at("offline")
        (r.folder / "secrets/user-01.h5").unlink()
        assert "new round" in refuses(77, *r.offline(1)).err

    @pytest.mark.parametrize("sealed", [False, True])
    def test_no_second_secret_is_drawn_where_the_first_is_in_another_folder(
        self, round_at, refuses, tmp_path, monkeypatch, sealed
    ):
        r = round_at("init", sealed=sealed)
        mine = tmp_path / "mine"
        if sealed:
            shutil.copytree(r.secrets(3), mine)  # a copy of the keys, before anything was spent
        in_mine = ("offline", r.folder, "--user", 3, "--secrets", mine)
        must(*in_mine)
        dealt = contents(r.folder)
        words = ("user 3 has dealt in this round already", "name their folder: --secrets DIR")
        refuses(77, *r.offline(3), says=words)
        status = must(*r.status("--user", 3, "--json")).json
        (problem,) = status["problems"]
        assert "its secret is not in" in problem
        assert status["next"]["step"] == "offline"  # which says what to do
        must(*in_mine)
        assert contents(r.folder) == dealt

        # the twin: shares that others may hold already are replaced by those of another secret
        monkeypatch.setattr(offline_step, "_check_first_time", lambda *_: None)
        must(*r.offline(3))
        replaced = contents(r.folder)
        shares = [name for name in dealt if name.startswith("shares/")]
        assert len(shares) >= 4
        assert all(replaced[name] != dealt[name] for name in shares)

    @pytest.mark.parametrize("shown_by", ["masked/user-03.h5", "survivors.json"])
    @every
    def test_no_second_secret_is_drawn_where_a_user_has_masked(
        self, round_at, refuses, construction, shown_by
    ):
        """In a later round of a series nothing is dealt, and shares may be erased as soon as others
        have theirs: a new ledger would take another gradient, and answer another survivor set."""
        r = round_at("frozen", later=construction == "sketch")
        for path in (*r.folder.glob("secrets/user-03.*"), *r.folder.glob("shares/*/from-03.h5")):
            path.unlink()
        gone = "survivors.json" if shown_by != "survivors.json" else "masked/user-03.h5"
        (r.folder / gone).unlink()
        refuses(77, *r.offline(3), says="user 3 has masked in this round already")
        assert "has masked in this round" in must("status", r.folder, "--user", 3).err

    def test_secrets_in_the_round_are_found_by_what_the_hint_says(
        self, round_at, refuses, monkeypatch, tmp_path
    ):
        """No --secrets leads to them."""
        r = round_at("offline")
        where = "they are in the folder of the round, /round/secrets"
        says = (where, "leave out --secrets, and unset TOPK_SECAGG_SECRETS")
        monkeypatch.setenv("TOPK_SECAGG_SECRETS", str(tmp_path / "mine"))
        call(*r.offline(3))  # which makes the folder
        refuses(66, *r.mask(3), says=says)
        refuses(77, *r.offline(3), says=says)
        monkeypatch.delenv("TOPK_SECAGG_SECRETS")
        must(*r.mask(3))

    @pytest.mark.parametrize("sealed", [False, True])
    def test_a_planted_file_does_not_keep_a_user_from_dealing(self, round_at, sealed):
        """What only has the name of a list or a share is replaced, and a pipe is not waited for."""
        r = round_at("init", sealed=sealed)
        end = "h5.age" if sealed else "h5"
        for name in ("dealt/user-03.json", f"shares/user-04/from-03.{end}"):
            path = r.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"junk")
        if r.recipe.construction == "sketch":
            (r.folder / "dealt/user-03.json").unlink()
            os.mkfifo(r.folder / "dealt/user-03.json")
        r.play(upto="decoded")
        r.check_sum()
        if r.recipe.construction == "sketch":
            assert document(r.folder / "dealt/user-03.json")["user"] == 3

    @pytest.mark.parametrize("sealed", [False, True])
    def test_a_pipe_in_the_place_of_its_list_does_not_stop_a_user(self, round_at, sealed):
        r = round_at("offline", sealed=sealed, construction="sketch")
        path = r.folder / "dealt/user-03.json"
        before = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        must(*r.offline(3))
        assert path.read_bytes() == before

    def test_a_step_without_the_folder_of_secrets_asks_for_it(self, round_at, refuses, tmp_path):
        r = round_at("offline")
        shutil.move(r.folder / "secrets", tmp_path / "mine")
        refuses(66, *r.mask(1), says=("user 1 has no secret in", "--secrets DIR"))
        if r.recipe.construction == "sketch":
            must("init", tmp_path / "next", "--from", r.folder)
            further = ("offline", tmp_path / "next", "--from", r.folder, "--user", 1)
            hint = "run offline first, or name the folder of its secrets: --secrets DIR"
            says = ("ledger.json is not there", hint)
            refuses(66, *further, says=says)

    def test_a_secret_lost_before_sharing_is_drawn_again(self, round_at):
        r = round_at("offline")
        (r.folder / "secrets/user-01.h5").unlink()
        edit(r.folder / "secrets/user-01.ledger.json", lambda content: content.update(shared=None))
        must(*r.offline(1))
        sharing = attributes(r.folder / "secrets/user-01.h5")["sharing"]
        assert {attributes(path)["sharing"] for path in r.folder.glob("shares/*/from-01.h5")} == {
            sharing
        }

    @every
    def test_lost_and_damaged_shares_come_back_the_same(self, round_at):
        r = round_at("masked")
        before = contents(r.folder)
        (r.folder / "shares/user-01/from-02.h5").unlink()
        path = r.folder / "shares/user-03/from-02.h5"
        path.write_bytes(path.read_bytes()[:-1])
        assert must(*r.offline(2, "--json")).json["shares_written"] == 2
        assert contents(r.folder) == before

    def test_another_secret_of_the_same_user_is_not_shared_once_one_is(self, round_at, refuses):
        """A secret from elsewhere (an old backup) must not overwrite the shares that others
        hold."""
        r, other = round_at("masked"), round_at("masked", "elsewhere")
        for name in ("user-01.h5", "user-01.ledger.json"):
            (other.folder / "secrets" / name).unlink()
        for path in (
            *other.folder.glob("shares/*/from-01.*"),
            *other.folder.glob("dealt/user-01.*"),
            *other.folder.glob("masked/user-01.*"),
        ):
            path.unlink()
        must(*other.offline(1))
        shutil.copy(other.folder / "secrets/user-01.h5", r.folder / "secrets/user-01.h5")
        refuses(77, *r.offline(1), says="user-01.h5 is not the secret whose shares were made")


class TestRandomnessOfTheSystem:
    OS = ("--randomness", "os")

    @pytest.fixture
    def interrupted(self, round_at, monkeypatch):
        """The offline step of user 1 ended when some shares had their names."""
        r = round_at("init")
        with monkeypatch.context() as patch:
            die_instead_of_renaming(patch, "shares/user-03/from-01.h5")
            with pytest.raises(Died):
                call(*r.offline(1, *self.OS))
        assert attributes(r.folder / "secrets/user-01.h5")["randomness"] == "os"
        return r

    def test_after_an_interruption_a_new_secret_comes_from_the_system_again(self, interrupted):
        before = attributes(interrupted.folder / "secrets/user-01.h5")["sharing"]
        assert must(*interrupted.offline(1, "--json")).json["randomness"] == "os"
        after = attributes(interrupted.folder / "secrets/user-01.h5")["sharing"]
        assert after != before
        assert {
            attributes(path)["sharing"] for path in interrupted.folder.glob("shares/*/from-01.h5")
        } == {after}

    def test_shares_of_two_runs_do_not_mix(self, interrupted, refuses, tmp_path):
        """User 1 already sent a share of the first run; all the rest is of the second run."""
        written = sorted(interrupted.folder.glob("shares/*/from-01.h5"))[0]
        shutil.copy(written, tmp_path / "old.h5")
        interrupted.play(after="init", upto="frozen")
        shutil.copy(tmp_path / "old.h5", written)
        receiver = int(written.parent.name.removeprefix("user-"))
        assert "sharing" in refuses(65, *interrupted.eliminate(receiver)).err

    def test_a_finished_run_changes_nothing_and_cannot_make_a_lost_share_again(
        self, round_at, refuses
    ):
        r = round_at("init")
        must(*r.offline(1, *self.OS))
        before = contents(r.folder)
        must(*r.offline(1, *self.OS))
        assert contents(r.folder) == before
        (r.folder / "shares/user-02/from-01.h5").unlink()
        gone = "shares of user 1 are gone, and their noise cannot be drawn again"
        refuses(77, *r.offline(1, *self.OS), says=gone)
        refuses(77, *r.offline(1), says=gone)
        cipher = round_at("offline", "cipher").offline(1, *self.OS)
        refuses(77, *cipher, says="not every byte of it is from the operating system")


class TestWhoMayRead:
    def test_a_secret_that_others_may_read_causes_a_warning(self, round_at):
        r = round_at("offline")
        (r.folder / "secrets/user-01.h5").chmod(0o644)
        assert "chmod 600" in must(*r.mask(1, "-q")).err
        assert "others may read" in must("inspect", r.folder / "secrets/user-01.h5").out

    @every
    def test_with_umask_0_no_secret_is_open_even_under_a_temporary_name(
        self, new_round, monkeypatch
    ):
        r = new_round()
        seen = {}
        real = os.replace

        def look(source, target):
            seen[Path(str(target))] = Path(str(source)).stat().st_mode & 0o777
            real(source, target)

        monkeypatch.setattr(os, "replace", look)
        old = os.umask(0)
        try:
            r.play()
        finally:
            os.umask(old)
        for name, (_, mode) in contents(r.folder).items():
            private = name.startswith(("secrets/", "shares/"))
            at_first = seen.get(r.folder / name, mode)  # but where lines are added to a file
            assert mode == at_first == (0o600 if private else 0o644), name
        for path in (r.folder / "secrets", *r.folder.glob("shares/user-*")):
            assert path.stat().st_mode & 0o077 == 0, path
