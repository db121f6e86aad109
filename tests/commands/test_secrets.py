"""What must never be printed, stored in public, or used twice; with twins that break the guard on purpose."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from .cli_helpers import (
    ANSWERING,
    EXAMPLE_OPTIONS,
    MASKING,
    SYMBOLS,
    USERS,
    RunCli,
    aggregate,
    attributes,
    contents,
    datasets,
    edit,
    gradient,
    invoke,
    leftovers,
    must,
    play,
    python,
    sparse_top,
    words,
)
from .conftest import Refuses, RoundAt

# five users, 2^20 steps per unit: multiples of 2^-20 are quantised exactly
EXACT = (*EXAMPLE_OPTIONS, "--clip", "409.5998")
SCALE = 2**20

PUBLIC = ("session.json", "survivors.json", "aggregate.h5", "masked/", "elimination/")


def ledger(folder: Path, user: int = 1) -> dict[str, str | None]:
    content: dict[str, str | None] = json.loads((folder / f"secrets/user-{user:02}.ledger.json").read_text())
    return content


LENGTH = 64


@pytest.fixture(scope="module")
def transcript(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A round with -v, again with --json, all its files inspected: the folder, and what was said."""
    base = tmp_path_factory.mktemp("transcript")
    rng = np.random.default_rng(3)
    for n in USERS:
        np.save(base / f"g{n}.npy", rng.uniform(0.25, 1, LENGTH).astype(np.float32))
    options = words(f"--users 5 --survivors 3 --colluders 1 --top-k 8 --length {LENGTH}")
    folder, said = base / "round", []

    def say(*args: object) -> None:
        result = must(*args)
        said.append(result.out + result.err)

    say("init", folder, *options, "-v")
    for n in USERS:
        say("offline", folder, "--user", n, "-v")
        say("offline", folder, "--user", n, "--json")
    for n in MASKING:
        mask = ("mask", folder, "--user", n, "--gradient", base / f"g{n}.npy")
        say(*mask, "-v")
        say(*mask, "--json", "-v")
    for flag in ("-v", "--json"):
        say("freeze", folder, flag)
        for n in ANSWERING:
            say("eliminate", folder, "--user", n, flag)
        say("decode", folder, flag)
        for name in contents(folder):
            say("inspect", folder / name, flag)
    say("run", base / "run", "--gradients", base, *options[2:-2], "-v")
    return folder, "".join(said)


class TestNothingSecretIsShown:
    @staticmethod
    def secret_numbers(folder: Path) -> set[int]:
        """Masks, and the symbols of shares; small ones are left out, since sizes and counts are shown."""
        numbers: set[int] = set()
        for path in [*folder.glob("secrets/*.h5"), *folder.glob("shares/*/*.h5")]:
            found = datasets(path)
            for name in ("mask", "f", "h"):
                if name in found:
                    numbers |= set(found[name].reshape(-1)[:2000].tolist())
        return {number for number in numbers if number > 10**7}

    def test_no_mask_and_no_share_is_printed(self, transcript: tuple[Path, str]) -> None:
        folder, said = transcript
        printed = {int(word) for word in "".join(c if c.isdigit() else " " for c in said).split()}
        assert printed & self.secret_numbers(folder) == set()

    def test_no_place_is_printed(self, transcript: tuple[Path, str]) -> None:
        folder, said = transcript
        for path in folder.glob("secrets/*.h5"):
            place = datasets(path)["place"].tolist()
            for start in range(len(place) - 3):
                assert ", ".join(map(str, place[start : start + 4])) not in said

    def test_no_key_is_printed(self, transcript: tuple[Path, str]) -> None:
        folder, said = transcript
        for path in folder.glob("secrets/*.h5"):
            key = datasets(path)["key"].tobytes()
            for text in (key.hex(), base64.b64encode(key).decode(), str(key), str(list(key))[1:-1]):
                assert text[:16] not in said

    def test_no_secret_is_in_a_public_file(self, transcript: tuple[Path, str]) -> None:
        folder, _ = transcript
        public = [file for name, (file, _) in contents(folder).items() if name.startswith(PUBLIC)]
        assert len(public) == 3 + len(MASKING) + len(ANSWERING)
        everything = b"".join(public)
        for path in folder.glob("secrets/*.h5"):
            found = datasets(path)
            key = found["key"].tobytes()
            for text in (key, key.hex().encode(), base64.b64encode(key)):
                assert text[:8] not in everything
            for name, run in (("place", 4), ("mask", 2)):  # so many that chance does not make them
                symbols = found[name].astype("<u4")
                for start in range(0, symbols.size, run):
                    assert symbols[start : start + run].tobytes() not in everything

    def test_the_search_would_find_a_leak(self, transcript: tuple[Path, str]) -> None:
        """The twin: the same search over what --reveal prints, and over the secret files."""
        folder, _ = transcript
        shown = must("inspect", folder / "secrets/user-01.h5", "--reveal", "--json").out
        printed = {int(word) for word in "".join(c if c.isdigit() else " " for c in shown).split()}
        assert printed & self.secret_numbers(folder)
        found = datasets(folder / "secrets/user-01.h5")
        assert ", ".join(map(str, found["place"][:4].tolist())) in shown
        assert found["mask"][:2].tobytes() in (folder / "secrets/user-01.h5").read_bytes()


class Died(BaseException):
    """The process is gone in the middle of a step."""


def die_instead_of_renaming(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the process end at the moment at which a file would get its name."""
    for function in ("replace", "rename"):
        real = getattr(os, function)

        def fatal(source: object, target: object, real: object = real, **how: object) -> None:
            if str(target).endswith(name):
                raise Died
            real(source, target, **how)  # type: ignore[operator]

        monkeypatch.setattr(os, function, fatal)


class TestTheLedgerComesFirst:
    def test_x_is_in_the_ledger_before_it_appears(
        self, round_at: RoundAt, refuses: Refuses, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = round_at("offline")
        with monkeypatch.context() as patch:
            die_instead_of_renaming(patch, "masked/user-01.h5")
            with pytest.raises(Died):
                invoke("mask", folder, "--user", 1, "--gradient", gradient(1))
        assert not (folder / "masked/user-01.h5").exists()
        recorded = ledger(folder)["masked"]
        assert recorded is not None
        refuses(77, "mask", folder, "--user", 1, "--gradient", gradient(2))
        assert run_cli("mask", folder, "--user", 1, "--gradient", gradient(1)).code == 0
        assert attributes(folder / "masked/user-01.h5")["sha256"] == recorded

    def test_the_survivor_set_is_in_the_ledger_before_y_appears(
        self, round_at: RoundAt, refuses: Refuses, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = round_at("frozen")
        with monkeypatch.context() as patch:
            die_instead_of_renaming(patch, "elimination/user-01.h5")
            with pytest.raises(Died):
                invoke("eliminate", folder, "--user", 1)
        assert not (folder / "elimination/user-01.h5").exists()
        recorded = ledger(folder)["answered"]
        assert recorded is not None
        frozen = (folder / "survivors.json").read_bytes()
        edit(folder / "survivors.json", lambda document: document["survivors"].pop())
        refuses(77, "eliminate", folder, "--user", 1)
        (folder / "survivors.json").write_bytes(frozen)
        assert run_cli("eliminate", folder, "--user", 1).code == 0
        assert attributes(folder / "elimination/user-01.h5")["survivors"] == recorded

    @pytest.mark.parametrize(("stage", "step"), [("offline", "mask"), ("frozen", "eliminate")])
    def test_the_ledger_is_on_the_disk_before_the_file_gets_its_name(
        self, round_at: RoundAt, monkeypatch: pytest.MonkeyPatch, stage: str, step: str
    ) -> None:
        """Synced: the ledger, then its folder, and only then is the public file renamed."""
        folder = round_at(stage)
        events: list[tuple[str, str]] = []

        def sync(fd: int) -> None:
            events.append(("sync", Path(f"/proc/self/fd/{fd}").readlink().name))

        real = os.replace

        def replace(source: object, target: object) -> None:
            events.append(("rename", "/".join(Path(str(target)).parts[-2:])))
            real(source, target)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(os, "replace", replace)
        more = ("--gradient", gradient(1)) if step == "mask" else ()
        assert invoke(step, folder, "--user", 1, *more) == 0
        public = "masked" if step == "mask" else "elimination"
        at_ledger = events.index(("rename", "secrets/user-01.ledger.json"))
        at_public = events.index(("rename", f"{public}/user-01.h5"))
        assert any(what == "sync" and ".user-01.ledger.json." in name for what, name in events[:at_ledger]), (
            events
        )
        assert ("sync", "secrets") in events[at_ledger:at_public]
        assert any(what == "sync" and ".user-01.h5." in name for what, name in events[:at_public])
        assert ("sync", public) in events[at_public:]

    def test_the_secret_is_on_the_disk_before_any_share(
        self, round_at: RoundAt, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = round_at("init")
        with monkeypatch.context() as patch:
            die_instead_of_renaming(patch, "secrets/user-01.h5")
            with pytest.raises(Died):
                invoke("offline", folder, "--user", 1)
        assert list(folder.glob("shares/*/*")) == []
        with monkeypatch.context() as patch:
            die_instead_of_renaming(patch, "shares/user-03/from-01.h5")
            with pytest.raises(Died):
                invoke("offline", folder, "--user", 1)
        sharing = attributes(folder / "secrets/user-01.h5")["sharing"]
        assert ledger(folder)["shared"] is None
        assert leftovers(folder) == []
        assert run_cli("offline", folder, "--user", 1).code == 0
        for path in folder.glob("shares/*/from-01.h5"):
            assert attributes(path)["sharing"] == sharing

    def test_masking_before_all_shares_are_written_is_refused(
        self, round_at: RoundAt, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = round_at("init")
        with monkeypatch.context() as patch:
            die_instead_of_renaming(patch, "from-01.h5")
            with pytest.raises(Died):
                invoke("offline", folder, "--user", 1)
        refuses(66, "mask", folder, "--user", 1, "--gradient", gradient(1))


class TestEveryMomentToDie:
    """A child process is killed at every creating, renaming and removing of a file, one after the other."""

    @staticmethod
    def counts(event: str, details: tuple[object, ...], folder: Path) -> bool:
        """Whether an event is a moment at which something below the folder changes."""
        if event == "open":
            writes = isinstance(details[2], int) and details[2] & (os.O_WRONLY | os.O_RDWR)
            return bool(writes) and str(folder) in str(details[0])
        return event in ("os.rename", "os.remove", "os.mkdir") and str(folder) in str(details[0])

    def killed_at(self, moment: int, folder: Path, *args: object) -> bool:
        """Fork, run the command, and end without clean-up at the given event below the folder."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside idle threads is fine here
            child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        left = moment

        def watch(event: str, details: tuple[object, ...]) -> None:
            nonlocal left
            if self.counts(event, details, folder):
                if not left:
                    os._exit(42)
                left -= 1

        sys.addaudithook(watch)
        os._exit(invoke(*args, "-q"))

    def moments(self, source: Path, folder: Path, *args: object) -> Iterator[int]:
        """Every moment at which the command can be killed, each in a fresh copy of the round."""
        for moment in range(1000):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(source, folder)
            if not self.killed_at(moment, folder, *args):
                assert moment >= 4, "the events were not noticed"
                return
            yield moment

    @pytest.mark.parametrize(
        ("before", "after", "step"),
        [
            ("init", "offline", "offline"),
            ("offline", "masked", "mask"),
            ("masked", "frozen", "freeze"),
            ("frozen", "answered", "eliminate"),
            ("answered", "decoded", "decode"),
        ],
    )
    def test_repeating_the_step_gives_the_very_same_files(
        self, seeded_stages: Path, tmp_path: Path, before: str, after: str, step: str
    ) -> None:
        folder = tmp_path / "round"
        own = {"offline": ("--user", 1), "mask": ("--user", 1, "--gradient", gradient(1)),
               "eliminate": ("--user", 1)}.get(step, ())  # fmt: skip
        expected = contents(seeded_stages / after)
        for moment in self.moments(seeded_stages / before, folder, step, folder, *own):
            # no file has its name before it is whole
            for name, file in contents(folder).items():
                if not Path(name).name.startswith(".") and not name.endswith("ledger.json"):
                    assert file == expected[name], (moment, name)
            must(step, folder, *own)
            assert leftovers(folder) == [], moment
            for name, file in contents(folder).items():  # other users' ledgers are one step behind
                assert file == expected[name] or name.endswith("ledger.json"), (moment, name)
            assert ledger(folder) == ledger(seeded_stages / after), moment

    def test_an_x_in_the_public_folder_is_always_in_the_ledger(self, stages: Path, tmp_path: Path) -> None:
        """Even under a temporary name: whoever copies masked/ would have two X of the same masks."""
        folder = tmp_path / "round"
        mask = ("mask", folder, "--user", 1, "--gradient", gradient(1))
        for moment in self.moments(stages / "offline", folder, *mask):
            for path in [p for p in folder.rglob("masked/*") if p.stat().st_size]:
                assert ledger(folder)["masked"] is not None, (moment, path)

    def test_a_y_in_the_public_folder_is_always_in_the_ledger(self, stages: Path, tmp_path: Path) -> None:
        folder = tmp_path / "round"
        for moment in self.moments(stages / "frozen", folder, "eliminate", folder, "--user", 1):
            for path in [p for p in folder.rglob("elimination/*") if p.stat().st_size]:
                assert ledger(folder)["answered"] is not None, (moment, path)


# Prints every file that is opened for writing below a folder
WATCH = """
import os, sys
folder = sys.argv.pop(1)
def watch(event, details):
    if event == "open" and folder in str(details[0]) and (details[2] or 0) & (os.O_WRONLY | os.O_RDWR):
        print("WRITES", details[0], flush=True)
sys.addaudithook(watch)
from topk_secagg_cli.main import main
main()
"""


def test_a_refused_second_gradient_never_reaches_the_public_folder(round_at: RoundAt) -> None:
    """Not even for a moment, under a temporary name: killed at that moment, it would stay there."""
    folder = round_at("masked")
    end = python(WATCH, folder / "masked", "mask", folder, "--user", 1, "--gradient", gradient(2), "-q")
    assert end.returncode == 77, end
    assert end.stdout == ""


def test_a_refused_second_answer_never_reaches_the_public_folder(round_at: RoundAt) -> None:
    folder = round_at("answered")
    edit(folder / "survivors.json", lambda document: document["survivors"].pop())
    end = python(WATCH, folder / "elimination", "eliminate", folder, "--user", 1, "-q")
    assert end.returncode == 77, end
    assert end.stdout == ""


class TestMasksAreUsedOnce:
    def test_a_deleted_x_comes_back_the_same_or_not_at_all(
        self, round_at: RoundAt, refuses: Refuses, run_cli: RunCli
    ) -> None:
        folder = round_at("masked")
        before = contents(folder)
        (folder / "masked/user-01.h5").unlink()
        refuses(77, "mask", folder, "--user", 1, "--gradient", gradient(2))
        assert run_cli("mask", folder, "--user", 1, "--gradient", gradient(1)).code == 0
        assert contents(folder) == before

    def test_rounding_is_the_same_when_masked_again(self, tmp_path: Path) -> None:
        """1/3 is no multiple of a step, so its rounding is drawn; twice the same."""
        folder = play(tmp_path / "round", "offline", options=EXACT)
        np.save(tmp_path / "g.npy", np.full(4, 1 / 3))
        must("mask", folder, "--user", 1, "--gradient", tmp_path / "g.npy")
        before = contents(folder)
        (folder / "masked/user-01.h5").unlink()
        must("mask", folder, "--user", 1, "--gradient", tmp_path / "g.npy")
        assert contents(folder) == before

    def test_without_its_ledger_a_secret_is_not_used(self, round_at: RoundAt, refuses: Refuses) -> None:
        folder = round_at("frozen")
        (folder / "secrets/user-01.ledger.json").unlink()
        for step in (("mask", "--gradient", gradient(2)), ("eliminate",), ("offline",)):
            refuses(66, step[0], folder, "--user", 1, *step[1:])

    @staticmethod
    def differences(folder: Path, one: Path, two: Path) -> list[int]:
        """X of one gradient minus X of the other, both masked by user 1 in the same round."""
        values = []
        for path in (one, two):
            must("mask", folder, "--user", 1, "--gradient", path)
            values.append(datasets(folder / "masked/user-01.h5")["value"].astype(np.int64))
        return sorted(((values[0] - values[1]) % SYMBOLS).tolist())

    def test_without_the_ledger_two_x_reveal_the_difference(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The twin: the check is what protects."""
        from topk_secagg.storage.ledger import Ledger

        folder = play(tmp_path / "round", "offline", options=EXACT)
        np.save(tmp_path / "one.npy", np.array([3.0, -2.0, 0.0, 0.0]))
        np.save(tmp_path / "two.npy", np.array([2.5, -4.0, 0.0, 0.0]))
        with monkeypatch.context() as patch:
            for name in ("spend_masks", "check_masks"):
                patch.setattr(Ledger, name, lambda self, *_: self)
            patch.setattr("topk_secagg.steps.mask.sent_before", lambda *_: set())
            found = self.differences(folder, tmp_path / "one.npy", tmp_path / "two.npy")
        assert found == sorted([int(0.5 * SCALE), int(2.0 * SCALE)])
        # and with the check in place the second is refused
        (folder / "masked/user-01.h5").unlink()
        must("mask", folder, "--user", 1, "--gradient", tmp_path / "one.npy")
        assert invoke("mask", folder, "--user", 1, "--gradient", tmp_path / "two.npy") == 77

    def test_in_two_rounds_the_difference_of_two_x_reveals_nothing(self, tmp_path: Path) -> None:
        """The other twin: the same comparison across rounds shows nothing."""
        np.save(tmp_path / "one.npy", np.array([3.0, -2.0, 0.0, 0.0]))
        values = []
        for name in ("a", "b"):
            folder = play(tmp_path / name, "offline", options=EXACT, users=[1])
            must("mask", folder, "--user", 1, "--gradient", tmp_path / "one.npy")
            values.append(datasets(folder / "masked/user-01.h5")["value"].astype(np.int64))
        assert 0 not in ((values[0] - values[1]) % SYMBOLS).tolist()


class TestOneSurvivorSet:
    def test_without_the_ledger_two_answers_reveal_one_users_input(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The twin of 77 in eliminate: sums over U1 and over U1 without user 4 differ by what user 4 sent."""
        from topk_secagg.storage.ledger import Ledger

        folder = play(tmp_path / "round", options=EXACT)
        everybody = aggregate(folder)
        edit(folder / "survivors.json", lambda document: document["survivors"].pop())
        assert invoke("eliminate", folder, "--user", 1) == 77
        with monkeypatch.context() as patch:
            for name in ("answer", "check_answer"):
                patch.setattr(Ledger, name, lambda self, *_: self)
            patch.setattr("topk_secagg.steps.eliminate.answered_before", lambda *_: None)
            for n in ANSWERING:
                must("eliminate", folder, "--user", n)
            must("decode", folder)
        sent = sparse_top(np.load(gradient(4)).astype(float), 2) * SCALE
        assert np.array_equal((everybody - aggregate(folder)) % SYMBOLS, sent.astype(np.int64) % SYMBOLS)


class TestTheSecretAndItsShares:
    def test_a_secret_lost_after_sharing_is_not_drawn_anew(self, round_at: RoundAt, refuses: Refuses) -> None:
        folder = round_at("offline")
        (folder / "secrets/user-01.h5").unlink()
        assert "new round" in refuses(77, "offline", folder, "--user", 1).err

    def test_a_secret_lost_before_sharing_is_drawn_anew(self, round_at: RoundAt, run_cli: RunCli) -> None:
        folder = round_at("offline")
        (folder / "secrets/user-01.h5").unlink()
        edit(folder / "secrets/user-01.ledger.json", lambda document: document.update(shared=None))
        assert run_cli("offline", folder, "--user", 1).code == 0
        sharing = attributes(folder / "secrets/user-01.h5")["sharing"]
        for path in folder.glob("shares/*/from-01.h5"):
            assert attributes(path)["sharing"] == sharing

    def test_lost_shares_come_back_the_same(self, round_at: RoundAt, run_cli: RunCli) -> None:
        folder = round_at("masked")
        before = contents(folder)
        for n in (1, 3):
            (folder / f"shares/user-{n:02}/from-02.h5").unlink()
        assert run_cli("offline", folder, "--user", 2, "--json").json["shares_written"] == 2
        assert contents(folder) == before

    def test_another_secret_of_the_same_user_is_not_shared_once_one_is(
        self, round_at: RoundAt, run_cli: RunCli, tmp_path: Path
    ) -> None:
        """A secret from elsewhere (an old backup) must not overwrite the shares that others hold."""
        folder = round_at("masked")
        other = tmp_path / "elsewhere"
        shutil.copytree(folder, other)
        for name in ("user-01.h5", "user-01.ledger.json"):
            (other / "secrets" / name).unlink()
        must("offline", other, "--user", 1)
        shutil.copy(other / "secrets/user-01.h5", folder / "secrets/user-01.h5")
        before = contents(folder)
        assert run_cli("offline", folder, "--user", 1).code in (65, 77)
        assert contents(folder) == before


class TestRandomnessOfTheSystem:
    OS = ("--randomness", "os")

    def interrupted(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            die_instead_of_renaming(patch, "shares/user-03/from-01.h5")
            with pytest.raises(Died):
                invoke("offline", folder, "--user", 1, *self.OS)

    def test_an_interrupted_run_draws_a_new_secret(
        self, round_at: RoundAt, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = round_at("init")
        self.interrupted(folder, monkeypatch)
        before = attributes(folder / "secrets/user-01.h5")
        assert before["randomness"] == "os"
        assert run_cli("offline", folder, "--user", 1, *self.OS).code == 0
        after = attributes(folder / "secrets/user-01.h5")
        assert after["sharing"] != before["sharing"]
        for path in folder.glob("shares/*/from-01.h5"):
            assert attributes(path)["sharing"] == after["sharing"]

    def test_an_interrupted_run_stays_with_the_system_whatever_the_next_call_says(
        self, round_at: RoundAt, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = round_at("init")
        self.interrupted(folder, monkeypatch)
        assert run_cli("offline", folder, "--user", 1, "--json").json["randomness"] == "os"

    def test_a_finished_run_is_repeated_without_change(self, round_at: RoundAt, run_cli: RunCli) -> None:
        folder = round_at("init")
        assert run_cli("offline", folder, "--user", 1, *self.OS).code == 0
        before = contents(folder)
        assert run_cli("offline", folder, "--user", 1, *self.OS).code == 0
        assert contents(folder) == before

    def test_a_share_lost_after_completion_cannot_be_made_again(
        self, round_at: RoundAt, refuses: Refuses, run_cli: RunCli
    ) -> None:
        folder = round_at("init")
        assert run_cli("offline", folder, "--user", 1, *self.OS).code == 0
        (folder / "shares/user-02/from-01.h5").unlink()
        refuses(77, "offline", folder, "--user", 1, *self.OS)
        refuses(77, "offline", folder, "--user", 1)

    def test_shares_of_two_runs_do_not_mix(
        self, round_at: RoundAt, refuses: Refuses, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """User 1 already sent a share of the first run to user 2; all the rest is of the second run."""
        folder = round_at("init")
        self.interrupted(folder, monkeypatch)
        old = folder.parent / "old.h5"
        written = next(iter(sorted(folder.glob("shares/*/from-01.h5"))), None)
        assert written is not None, "no share had its name when the run was interrupted"
        shutil.copy(written, old)
        receiver = int(written.parent.name.removeprefix("user-"))
        assert run_cli("offline", folder, "--user", 1, *self.OS).code == 0
        for n in (2, 3, 4, 5):
            must("offline", folder, "--user", n)
        for n in MASKING:
            must("mask", folder, "--user", n, "--gradient", gradient(n))
        must("freeze", folder)
        shutil.copy(old, written)
        assert "sharing" in refuses(65, "eliminate", folder, "--user", receiver).err

    def test_the_round_is_exact(self, tmp_path: Path) -> None:
        folder = play(tmp_path / "round", "init", options=EXACT)
        for n in USERS:
            must("offline", folder, "--user", n, *self.OS)
        for n in MASKING:
            must("mask", folder, "--user", n, "--gradient", gradient(n))
        must("freeze", folder)
        for n in ANSWERING:
            must("eliminate", folder, "--user", n)
        must("decode", folder)
        total = sum(sparse_top(np.load(gradient(n)).astype(float), 2) for n in MASKING) * SCALE
        assert np.array_equal(aggregate(folder), total.astype(np.int64) % SYMBOLS)


class TestWhoMayRead:
    def test_a_secret_that_others_may_read_is_complained_about(
        self, round_at: RoundAt, run_cli: RunCli
    ) -> None:
        folder = round_at("offline")
        (folder / "secrets/user-01.h5").chmod(0o644)
        result = run_cli("mask", folder, "--user", 1, "--gradient", gradient(1), "-q")
        assert result.code == 0
        assert "chmod 600" in result.err
        assert "others may read" in run_cli("inspect", folder / "secrets/user-01.h5").out

    def test_a_generous_umask_opens_no_secret(self, tmp_path: Path) -> None:
        old = os.umask(0)
        try:
            folder = play(tmp_path / "round")
        finally:
            os.umask(old)
        for name, (_, mode) in contents(folder).items():
            if name.startswith(("secrets/", "shares/")):
                assert mode == 0o600, name
        for path in (folder / "secrets", *folder.glob("shares/user-*")):
            assert path.stat().st_mode & 0o077 == 0, path

    def test_temporary_files_of_secrets_are_closed_to_others_too(
        self, round_at: RoundAt, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = round_at("init")
        seen: dict[str, int] = {}
        real = os.replace

        def look(source: object, target: object) -> None:
            seen[Path(str(target)).name] = Path(str(source)).stat().st_mode & 0o777
            real(source, target)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "replace", look)
        assert invoke("offline", folder, "--user", 1, "-q") == 0
        assert set(seen) == {"user-01.h5", "user-01.ledger.json", "from-01.h5"}
        assert set(seen.values()) == {0o600}
