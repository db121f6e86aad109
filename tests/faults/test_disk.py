"""A full disk, folders that cannot be written, folders that go: exit 73, nothing lost, the round
goes on."""

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from crashes import STEPS, Step, hooked
from fault_lab import RECIPES, check_whole, scratch
from played import (
    Recipe,
    Result,
    Round,
    Stages,
    assert_one_error,
    in_child,
    judged,
    leftovers,
    linked_copy,
    must,
    shell,
)

ANOTHER = 65534
COMMANDS = ("offline", "mask", "freeze", "eliminate", "decode")
WRITERS = [step for step in STEPS if step[1] not in ("init", "run")]
BIG = {  # about 1.1 MB of shares a user
    "permutation": Recipe("big", users=3, top_k=3, length=300, masking=(1, 2, 3)),
    "sketch": Recipe(
        "big",
        users=3,
        top_k=20000,
        length=100_000,
        construction="sketch",
        picks=4,
        dealing="shares",
        masking=(1, 2, 3),
    ),
}


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A file system of that size; skips where none can be mounted."""
    with scratch() as folder:
        place = folder / "disk"
        place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
        if (
            not shutil.which("mount")
            or subprocess.run(mount, check=False, capture_output=True).returncode
        ):
            pytest.skip("no file system can be mounted here, not even by root")
        try:
            yield place
        finally:
            subprocess.run(["umount", "-l", str(place)], check=True)


def remount(place: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(place)], check=True)


@contextmanager
def started_on(disk: Path, step: Step) -> Iterator[Round]:
    """The round just before the step, on that disk."""
    state = step.start()
    shutil.copytree(state.folder, disk / "round")
    shutil.rmtree(state.folder)
    state.folder.symlink_to(disk / "round")
    try:
        yield state
    finally:
        state.folder.unlink()


@pytest.mark.needs_root
@pytest.mark.parametrize("room", ["40k", "700k", "1400k"])
@pytest.mark.parametrize("construction", BIG)
def test_a_full_disk(construction, room):
    """`offline` fails at another point for each size."""
    with small_disk("32m") as disk, scratch() as folder:
        state = Round(BIG[construction], disk / "round", folder / "inputs").prepare()
        must(*state.init())  # which looks whether there is room
        remount(disk, f"size={room}")
        full = 0
        for user in (1, 2, 3):
            result = judged(*state.offline(user))
            assert result.code in (0, 73), result
            full += result.code == 73
            assert leftovers(state.folder) == []
            check_whole(state.folder)
        assert full
        remount(disk, "size=32m")
        for command in state.left("init"):
            must(*command)
        state.check_aggregate()


@pytest.mark.needs_root
@pytest.mark.parametrize(("recipe", "name"), WRITERS)
def test_no_room_at_all(benches, recipe, name):
    step = Step(benches[recipe], name)
    with small_disk("16m") as disk, started_on(disk, step) as state:
        for folder in ("masked", "confirmed", "elimination"):
            (disk / "round" / folder).mkdir(exist_ok=True)
        fill(disk / "ballast")
        result = judged(*step.command)
        assert result.code == 73, result
        (disk / "ballast").unlink()
        step.recovers(state)


def fill(path: Path) -> None:
    """Write until nothing fits."""
    block = 1 << 20
    with path.open("wb", buffering=0) as stream:
        while block:
            try:
                stream.write(bytes(block))
            except OSError:
                block //= 2


def limited(limit: int) -> Callable[[], None]:
    """No file may grow beyond the limit."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


@pytest.mark.parametrize(("recipe", "name"), WRITERS)
def test_files_may_not_grow(benches, recipe, name):
    step = Step(benches[recipe], name)
    for limit in (0, 900):
        state = step.start()
        result = in_child(*step.command, before=limited(limit))
        assert result.code in (0, 73), (limit, result)
        assert limit or result.code == 73
        step.recovers(state)
        if (recipe, name) in (("shares", "offline"), ("sealed", "offline")):
            # in a new process: HDF5 notices the full disk when a file is closed, and does nothing
            # more at the end
            state = step.start()
            end = shell(*step.command, preexec_fn=limited(limit))
            assert end.returncode == 73, end
            assert_one_error(Result(end.returncode, end.stdout, end.stderr))
            step.recovers(state)


def test_no_room_to_open_a_sealed_share():
    with scratch() as folder:
        recipe = replace(RECIPES["sealed"], length=4000, top_k=400)
        step = Step(Stages(recipe, folder), "eliminate")
        for limit in (2500, 6000):
            state = step.start()
            result = in_child(*step.command, before=limited(limit))
            assert result.code == 73, result
            step.recovers(state)


@pytest.mark.needs_root
@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_became_read_only(benches, name):
    step = Step(benches["permutation"], name)
    with small_disk("16m") as disk, started_on(disk, step) as state:
        remount(disk, "ro")
        result = judged(*step.command)
        remount(disk, "rw")
        assert result.code == 73, result
        step.recovers(state)


@pytest.mark.needs_root
@pytest.mark.parametrize("name", COMMANDS)
def test_folders_of_another_account(benches, name):
    """All can be read, and nothing written; a secret would not even be tried there."""
    step = Step(benches["permutation"], name)
    state = step.start()
    for path in (state.folder, *state.folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    result = in_child(*step.command, before=lambda: os.setuid(ANOTHER))
    assert result.code == (73 if name == "decode" else 77), result
    step.recovers(state)


@pytest.mark.needs_root
@pytest.mark.parametrize("kind", ["a file", "a pipe"])
def test_the_lock_of_another_account(benches, kind):
    """An account that may write to the folder can decode, even if another one made its lock."""
    state = benches["permutation"].at("answered")
    for path in (state.folder, *state.folder.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o644)
    lock = state.folder / f".account-{ANOTHER}.lock"
    if kind == "a pipe":
        os.mkfifo(lock, 0o644)
    else:
        lock.touch(0o600)
    assert in_child(*state.decode(), before=lambda: os.setuid(ANOTHER)).code == 0


def test_more_users_than_files_may_be_open():
    def few():
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )

    with scratch() as folder:
        state = Round(
            replace(RECIPES["permutation"], users=60), folder / "round", folder / "inputs"
        ).prepare()
        must(*state.init())
        assert in_child(*state.offline(1), before=few).code == 0


@pytest.mark.needs_root
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("mask", "secrets/user-01.h5"),
        ("eliminate", "shares/user-01/from-02.h5"),
        ("decode", "survivors.json"),
    ],
)
def test_files_that_may_not_be_read(benches, name, path):
    bench = benches["permutation"]
    step = Step(bench, name)
    state = step.start()
    copy = state.folder.with_name("own")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(state.folder, copy)
    for one in (copy, *copy.rglob("*")):
        os.chown(one, ANOTHER, ANOTHER)
        one.chmod(0o700 if one.is_dir() else 0o600)
    (copy / path).chmod(0)
    command = [copy if part == state.folder else part for part in step.command]
    result = in_child(*command, before=lambda: os.setuid(ANOTHER))
    assert result.code == 66, result
    assert leftovers(copy) == []
    (copy / path).chmod(0o600)
    assert in_child(*command, before=lambda: os.setuid(ANOTHER)).code == 0
    shutil.rmtree(copy)


@pytest.mark.parametrize("name", ["offline", "mask", "eliminate", "decode"])
def test_a_folder_that_is_moved_while_a_command_runs(benches, name):
    """The folder of the round is moved away at the first temporary file."""
    bench = benches["permutation"]
    step = Step(bench, name)
    state = step.start()
    away = state.folder.with_name("moved")
    before = linked_copy(state.folder, state.folder.with_name("before"))

    def hook():
        rename = os.rename

        def strike(_at, _name):
            if not away.exists() and leftovers(state.folder):
                rename(state.folder, away)

        hooked(strike)

    result = in_child(*step.command, before=hook)
    assert result.code in (66, 73), result
    shutil.rmtree(state.folder, ignore_errors=True)
    away.rename(state.folder)
    step.again(state)
    step.finish(state)
    shutil.rmtree(before)
