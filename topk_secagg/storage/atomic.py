"""Files that appear whole or not at all, folders with the right mode, and locks between
processes."""

from __future__ import annotations

import fcntl
import glob
import os
import resource
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ..errors import Advice, BadData, Busy, CannotLock, CannotWrite, InputMissing, Refused

Array = npt.NDArray[Any]
PUBLIC = 0o644  # whatever the umask is: others take part with these files
PRIVATE = 0o600
OWN = 0o666  # as the umask has it: what a user makes for itself
_OTHER_FILES = 128  # that a process may have open besides those of a round
_TRIES = 10  # to make a file that others take for abandoned
_PAUSE_SECONDS = 0.01  # in which another process has looked whether a file is abandoned


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal to write into one clear error."""
    try:
        yield
    except OSError as error:
        raise CannotWrite(
            f"cannot write {path}: {reason(error)}", "check the folder's permissions and free space"
        ) from error


def reason(error: OSError) -> str:
    """Why the operating system refused, in a few words; HDF5 and age do not always know."""
    return error.strerror.lower() if error.strerror and error.errno else "the disk does not take it"


def open_regular(path: Path, hint: str, advice: Advice | None = None) -> IO[bytes]:
    """An ordinary file to read from; pipes and devices do not block."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise InputMissing("is not there", hint, advice, subject=path) from None
    except OSError as error:
        raise InputMissing(f"cannot read {path}: {reason(error)}", hint, advice) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise BadData("is not a file", hint, subject=path)
    return os.fdopen(fd, "rb")


def make_folder(path: Path, *, private: bool = False) -> None:
    """Create a folder and those above it; a private one is closed to others, and refused if it is
    theirs."""
    with writing(path):
        if path.is_file():
            hint = "choose another folder, or move that file away"
            raise CannotWrite(f"cannot write {path}: it is a file, and must be a folder", hint)
        path.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o777)
        if private:
            status = path.stat()
            check_own(status, path)
            if status.st_mode & 0o077:
                path.chmod(0o700)


def check_own(status: os.stat_result, path: Path) -> None:
    """Refuse to put a secret where somebody else has put a folder or a file."""
    if status.st_uid != os.geteuid():
        hint = "a secret goes only where nobody else can write: choose a folder of your own for it"
        raise Refused(f"{path} belongs to somebody else", hint, Advice.SECRETS)


def allow_open_files(number: int) -> None:
    """Let this process hold `number` more files open, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def whole_file(path: Path, mode: int = PUBLIC) -> Iterator[IO[bytes]]:
    """A new file that takes the name `path`, durably, when the block ends without error.

    Until then it has a temporary name beside it. It is only written through the descriptor with
    which it was made, so that nobody can put another file in its place. What killed processes left
    is removed.
    """
    with writing(path):
        _remove_abandoned(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            fd = _open_temporary(temporary, mode)
            with os.fdopen(fd, "w+b") as stream:
                if mode == PRIVATE:
                    check_own(os.fstat(fd), temporary)
                elif mode == PUBLIC:
                    os.fchmod(fd, mode)
                yield stream
                stream.flush()
                os.fsync(fd)
                if not os.path.samestat(os.fstat(fd), os.lstat(temporary)):
                    raise Refused(
                        f"somebody replaced {temporary}", "use a folder that only you can write to"
                    )
                temporary.replace(path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def _open_temporary(temporary: Path, mode: int) -> int:
    """A descriptor of a new file, with a lock as a sign of life for `_is_abandoned`.

    Another process may have taken the file for abandoned before it had its lock, and removed it:
    then it is made again.
    """
    for _ in range(_TRIES):
        fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, mode)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # somebody is just looking whether it is abandoned
            time.sleep(_PAUSE_SECONDS)
        except OSError:  # a file system without locks
            return fd
        if os.path.lexists(temporary):  # (if it is another one now, `whole_file` will see that)
            return fd
        os.close(fd)
    raise CannotWrite(f"somebody removes {temporary} again and again", "run this again")


def erase(*paths: Path) -> tuple[list[Path], list[Path]]:
    """Remove files durably, with what killed processes left of them: those that were there, and
    those of other accounts, which stay."""
    erased = []
    kept = []
    changed = set()
    try:
        for path in paths:
            if _remove_abandoned(path):
                changed.add(path.parent)
            try:
                path.unlink()
            except FileNotFoundError:
                continue
            except PermissionError:
                if path.stat().st_uid == os.geteuid():
                    raise
                kept.append(path)
            else:
                erased.append(path)
                changed.add(path.parent)
    finally:
        for folder in changed:
            sync_folder(folder)
    return erased, kept


def _remove_abandoned(path: Path) -> bool:
    """Remove what killed processes have left of a file with this name; whether there was any."""
    removed = False
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        if _is_abandoned(leftover):
            with suppress(FileNotFoundError, PermissionError):
                leftover.unlink()
                removed = True
    return removed


def _is_abandoned(temporary: Path) -> bool:
    """Whether a temporary file is of this account, and no process is writing it any more."""
    try:
        fd = os.open(temporary, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:  # it is nothing that this program has made
        return temporary.lstat().st_uid == os.geteuid()
    with os.fdopen(fd, "rb"):
        if os.fstat(fd).st_uid != os.geteuid():
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
        return True


def write_whole(path: Path, content: bytes, mode: int = PUBLIC) -> None:
    """Write `content` so that a reader sees the old file or the new one, never half of it."""
    with whole_file(path, mode) as stream:
        stream.write(content)


def mark_done(*paths: Path) -> None:
    """Give files that are as they should be the time of now, in this order: so Make sees that their
    step was done. A file of another account stays as it is, and so does one that is missing."""
    for path in paths:
        with suppress(OSError):  # the time is a courtesy, and no reason to fail
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                os.utime(path, follow_symlinks=False)


def pwrite_all(fd: int, data: memoryview, offset: int) -> None:
    """Write all bytes at an offset."""
    while data:
        done = os.pwrite(fd, data, offset)
        data = data[done:]
        offset = offset + done


def pread_into(fd: int, out: Array, offset: int) -> Array:
    """Fill an array, which must be contiguous, from `offset` on.

    Unlike what `np.frombuffer` gives, it can be written to afterwards, as the kernels want.
    """
    data = out.reshape(-1).view(np.uint8)
    done = 0
    while done < data.size:
        got = os.preadv(fd, [data[done:].data], offset + done)
        if not got:
            raise BadData(
                "a file became shorter while it was read", "let no other program write to the round"
            )
        done += got
    return out


# locks: `flock` of a file that nobody else can open


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path` in a folder closed to others; a second process gets Busy."""
    with writing(path):
        fd = _open_lock(path)
    with os.fdopen(fd, "rb"):
        try:
            _flock(fd, path)
        except OSError as error:
            raise CannotLock(
                f"cannot lock {path}: {reason(error)}",
                "a second process could use the same secret: keep secrets on a local disk",
                Advice.SECRETS,
            ) from error
        yield


@contextmanager
def lock_unless_foreign(path: Path) -> Iterator[None]:
    """Hold the lock file `path` in a folder where others may write; a second process gets Busy.

    If others could hold this lock, there is none: they would decide who may go on. That is so if
    the file is theirs, or open to them, or no file at all. What runs under such a lock must be safe
    without it.
    """
    try:
        fd = _open_lock(path)
    except OSError:
        yield
        return
    with os.fdopen(fd, "rb"):
        if _is_own(os.fstat(fd)):
            with suppress(OSError):  # a file system without locks
                _flock(fd, path)
        yield


def _open_lock(path: Path) -> int:
    """A descriptor of a lock file, which is made if there is none.

    A file that was there keeps its mode: it could be a hard link to another one.
    """
    how = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, how | os.O_CREAT, PRIVATE)


def _is_own(status: os.stat_result) -> bool:
    """Whether it is a file of this account that no other account can open, and so none can lock."""
    closed = not status.st_mode & 0o077
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and closed


def _flock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Busy(
            f"another process is at work on {path.parent}",
            "wait for it to end, then run this again",
        ) from None


@contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Hold the private lock file `path` for a moment; a second process or thread waits."""
    with writing(path):
        fd = _open_lock(path)
    with os.fdopen(fd, "rb"):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            raise CannotLock(
                f"cannot lock {path}: {reason(error)}",
                "two users that mask at once could make two keys of which one is lost: "
                "keep secrets on a local disk",
                Advice.SECRETS,
            ) from error
        yield
