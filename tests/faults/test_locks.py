"""Locks in a folder that others can write to: nobody else can hold them, and they open nothing."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from fault_lab import check_whole
from played import Round, become, call, forked, in_child, is_root, leftovers, must, waited
from test_together import at_once

from topk_secagg.storage import atomic
from topk_secagg.storage.workspace import LOCK_NAME

OWN = f".account-{os.geteuid()}.lock"
NAMES = (".lock", OWN)
OTHER = 1001  # an account


@contextmanager
def held(path: Path, mode: int = 0o644, owner: int | None = None) -> Iterator[None]:
    """A lock file that somebody else put there and holds."""
    path.unlink(missing_ok=True)
    with path.open("w") as stream:
        path.chmod(mode)
        if owner is not None:
            os.chown(path, owner, owner)
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextmanager
def nothing_held() -> Iterator[None]:
    yield


def chmodding(path: Path) -> int:
    """As lock files were opened before: with the mode that they should have."""
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW, 0o644)
    os.fchmod(fd, 0o644)
    return fd


@pytest.fixture
def answered(round_at):
    return round_at("answered")


class TestALockThatOthersHold:
    @pytest.mark.parametrize("name", NAMES)
    def test_nobody_is_kept_from_decoding(self, answered, name):
        with held(answered.folder / name):
            must(*answered.decode())
            must("status", answered.folder)
            must("audit", answered.folder)
        answered.check_sum()

    def test_nobody_is_kept_from_starting_a_round(self, new_round):
        r = new_round()
        r.folder.mkdir()
        with held(r.folder / ".lock"), held(r.folder / OWN):
            must(*r.init())

    def test_if_any_lock_counted_others_could_stop_it(self, answered, refuses, monkeypatch):
        """The twin."""
        monkeypatch.setattr(atomic, "_is_own", lambda _: True)
        with held(answered.folder / OWN):
            assert "another process" in refuses(75, *answered.decode()).err

    @pytest.mark.skipif(not is_root(), reason="only root can give files away")
    def test_a_closed_file_of_another_account_does_not_count(self, answered, monkeypatch, refuses):
        with held(answered.folder / OWN, mode=0o600, owner=OTHER):
            must(*answered.decode())
            monkeypatch.setattr(atomic, "_is_own", lambda _: True)  # the twin
            refuses(75, *answered.decode(), says="another process")

    def test_a_lock_of_ones_own_counts(self, answered, refuses):
        with held(answered.folder / OWN, mode=0o600):
            assert "another process" in refuses(75, *answered.decode()).err

    @pytest.mark.skipif(not is_root(), reason="only root can become two other accounts")
    def test_an_account_that_tries_every_lock_stops_no_other(self, round_at):
        """The folder is open to all. One account takes hold of whatever it can, another one
        decodes."""
        import shutil
        import tempfile

        answered = round_at("answered")
        base = Path(tempfile.mkdtemp(prefix="topk-secagg-locks-"))
        base.chmod(0o755)
        r = answered.elsewhere(shutil.copytree(answered.folder, base / "round"))
        for path in (r.folder, *r.folder.rglob("*")):
            path.chmod(0o1777 if path == r.folder else 0o755 if path.is_dir() else 0o644)
        ready, told = os.pipe()
        done, stop = os.pipe()

        def attack() -> None:
            os.close(stop)
            become(OTHER + 1)
            streams = []
            for name in (".lock", f".account-{OTHER}.lock", ".decode.lock"):
                stream = (r.folder / name).open("w")
                with suppress(OSError):
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                streams.append(stream)
            os.write(told, b"1")
            os.read(done, 1)

        attacker = forked(attack)
        os.close(done)
        try:
            assert os.read(ready, 1) == b"1"
            result = in_child(*r.decode(), before=lambda: become(OTHER))
        finally:
            os.close(stop)
            waited(attacker)
            os.close(ready)
            os.close(told)
        assert result.code == 0, result
        r.check_sum()
        shutil.rmtree(base)


class TestWhatALockOpens:
    @pytest.mark.parametrize("name", NAMES)
    def test_a_private_file_under_the_name_of_a_lock_stays_private(
        self, answered, new_round, tmp_path, name
    ):
        private = tmp_path / "private"
        private.touch(0o600)
        (answered.folder / name).unlink(missing_ok=True)
        (answered.folder / name).hardlink_to(private)
        must(*answered.decode())
        fresh = new_round("fresh")
        fresh.folder.mkdir()
        (fresh.folder / name).hardlink_to(private)
        must(*fresh.init())
        assert stat.S_IMODE(private.stat().st_mode) == 0o600

    def test_a_lock_that_is_given_its_mode_opens_it(self, answered, tmp_path, monkeypatch):
        """The twin."""
        private = tmp_path / "private"
        private.touch(0o600)
        (answered.folder / OWN).unlink(missing_ok=True)
        (answered.folder / OWN).hardlink_to(private)
        monkeypatch.setattr(atomic, "_open_lock", chmodding)
        must(*answered.decode())
        assert stat.S_IMODE(private.stat().st_mode) == 0o644

    def link(self, answered: Round, target: Path) -> None:
        (answered.folder / OWN).unlink(missing_ok=True)
        (answered.folder / OWN).symlink_to(target)

    def test_a_link_is_not_followed(self, answered, tmp_path):
        self.link(answered, tmp_path / "made")
        must(*answered.decode())
        assert not (tmp_path / "made").exists()

    def test_a_lock_that_follows_links_makes_files(self, answered, tmp_path, monkeypatch):
        """The twin."""
        self.link(answered, tmp_path / "made")
        monkeypatch.setattr(os, "O_NOFOLLOW", 0)
        must(*answered.decode())
        assert (tmp_path / "made").exists()


class TestWithoutALock:
    @pytest.mark.parametrize("lock", ["free", "held by somebody else"])
    def test_several_decodes_at_once_write_one_sum(self, benches, lock):
        state = benches["permutation"].at("answered")
        with nothing_held() if lock == "free" else held(state.folder / OWN):
            for number in (2, 5):
                codes = at_once(*[state.decode()] * number)
                assert 0 in codes, codes
                assert set(codes) <= ({0, 75} if lock == "free" else {0}), codes
        assert leftovers(state.folder) == []
        check_whole(state.folder)
        state.check_aggregate()

    def test_a_file_that_is_being_written_is_left_alone(self, tmp_path):
        path = tmp_path / "file"
        with atomic.whole_file(path) as first:
            first.write(b"first")
            (temporary,) = tmp_path.glob(".file.*.tmp")
            assert not atomic._is_abandoned(temporary)
        temporary.touch()
        assert atomic._is_abandoned(temporary)
        with atomic.whole_file(path) as second:
            second.write(b"second")
        assert [p.name for p in tmp_path.iterdir()] == ["file"]

    @pytest.mark.parametrize("locked", [False, True])
    def test_a_file_that_is_removed_before_it_has_its_lock_is_made_again(
        self, tmp_path, monkeypatch, locked
    ):
        """Another process takes it for abandoned, and may still hold its own lock on it."""
        path = tmp_path / "file"
        flock = fcntl.flock
        removed = []

        def too_late(fd: int, how: int) -> None:
            if how & fcntl.LOCK_SH and not removed:
                (temporary,) = tmp_path.glob(".file.*.tmp")
                assert atomic._is_abandoned(temporary)
                temporary.unlink()
                removed.append(temporary)
                if locked:
                    raise BlockingIOError(errno.EWOULDBLOCK, "held")
            flock(fd, how)

        monkeypatch.setattr(atomic.fcntl, "flock", too_late)
        atomic.write_whole(path, b"content")
        assert len(removed) == 1
        assert path.read_bytes() == b"content"
        assert [p.name for p in tmp_path.iterdir()] == ["file"]

    @pytest.mark.skipif(not is_root(), reason="only root can give files away")
    def test_a_temporary_file_of_another_account_is_left_alone(self, tmp_path):
        temporary = tmp_path / ".file.1.tmp"
        temporary.touch()
        os.chown(temporary, OTHER, OTHER)
        atomic.write_whole(tmp_path / "file", b"")
        assert temporary.exists()

    def test_on_a_file_system_without_locks_users_stop_and_decoding_goes_on(
        self, answered, refuses, monkeypatch
    ):
        def no_locks(*_: object) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(fcntl, "flock", no_locks)
        said = refuses(73, *answered.eliminate(1)).err
        assert "no locks available" in said
        assert "--secrets DIR" in said
        must(*answered.decode())
        monkeypatch.setattr(fcntl, "flock", lambda *_, **__: None)  # the twin: as if it had locked
        assert call(*answered.eliminate(1)).code == 0

    def test_without_locks_the_key_of_the_inputs_is_not_made_by_two_at_once(
        self, round_at, refuses, monkeypatch
    ):
        """Where only waiting for a lock fails, the step of a user is locked already."""
        r = round_at("offline")
        flock = fcntl.flock

        def no_waiting(fd: int, how: int) -> None:
            if how == fcntl.LOCK_EX:
                raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
            flock(fd, how)

        monkeypatch.setattr(fcntl, "flock", no_waiting)
        said = refuses(73, *r.mask(1)).err
        assert "no locks available" in said
        assert ".input.lock" in said
        assert "two users that mask at once could make two keys" in said
        assert "--secrets DIR" in said
        assert not (r.folder / "masked/user-01.h5").exists()
        monkeypatch.setattr(fcntl, "flock", flock)  # the twin
        must(*r.mask(1))


def test_the_names_of_locks_are_those_that_a_round_leaves(round_at):
    """`.lock` alone is none of them: no version writes it."""
    r = round_at("decoded")
    left = {path.name for path in r.folder.rglob("*.lock")}
    assert {".user-01.lock", ".input.lock", OWN} <= left
    assert all(LOCK_NAME.fullmatch(name) for name in left)
    assert LOCK_NAME.fullmatch(".run.lock")
    assert not LOCK_NAME.fullmatch(".lock")
