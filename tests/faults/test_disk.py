"""A full disk, folders that cannot be written, folders that go: exit 73, nothing lost, the round goes on."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from crashes import Step
from fault_lab import (
    RECIPES,
    Bench,
    Recipe,
    Result,
    Round,
    call,
    check_ending,
    check_whole,
    forked,
    judged,
    leftovers,
    linked_copy,
    must,
    scratch,
    waited,
)

NOBODY = 65534
COMMANDS = ("offline", "mask", "freeze", "eliminate", "decode")
BIG = Recipe("big", users=3, survivors=3, colluders=1, blocks=2, top_k=3, length=300, masking=(1, 2, 3))


@pytest.fixture(scope="module")
def benches() -> Iterator[dict[str, Bench]]:
    with scratch() as folder:
        yield {name: Bench(RECIPES[name], folder / name) for name in ("permutation", "residual", "sealed")}


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A file system of that size; skips where none can be mounted."""
    with scratch() as folder:
        place = folder / "disk"
        place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
        if (
            os.geteuid()
            or not shutil.which("mount")
            or subprocess.run(mount, check=False, capture_output=True).returncode
        ):
            pytest.skip("only root can mount a file system, and not everywhere")
        try:
            yield place
        finally:
            subprocess.run(["umount", "-l", str(place)], check=True)


def remount(place: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(place)], check=True)


def as_child(*command: object, before: Callable[[], object] = lambda: None) -> Result:
    """A command in a fork, for limits and identities that cannot be taken back."""
    out, into = os.pipe()

    def task() -> None:
        before()
        result = call(*command)
        os.write(into, repr((result.code, result.out, result.err)).encode())

    code = waited(forked(task))
    os.close(into)
    with os.fdopen(out) as stream:
        text = stream.read()
    assert code == 0, (code, text)
    result = Result(*eval(text))
    check_ending(command, result)
    return result


@pytest.mark.parametrize("room", ["40k", "200k", "700k", "1400k", "2200k"])
def test_a_full_disk(room: str) -> None:
    """offline needs about 1.1 MB a user: it fails at another point for each size."""
    with small_disk("32m") as disk, scratch() as folder:
        state = Round(BIG, disk / "round", folder / "inputs")
        state.prepare()
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
        state.play(after="init")
        state.check_aggregate()


@pytest.mark.parametrize("name", ["mask", "freeze", "eliminate", "decode"])
@pytest.mark.parametrize("recipe", ["permutation", "residual", "sealed"])
def test_no_room_at_all(benches: dict[str, Bench], recipe: str, name: str) -> None:
    if recipe != "permutation" and name in ("freeze", "decode"):
        pytest.skip("the same as in a plain round")
    with small_disk("16m") as disk:
        bench = benches[recipe]
        step = Step(bench, name)
        shutil.rmtree(bench.round.folder, ignore_errors=True)
        bench.round.folder.symlink_to(disk / "round")
        try:
            shutil.copytree(bench.kept(step.stage), disk / "round")
            for folder in ("masked", "elimination"):
                (disk / "round" / folder).mkdir(exist_ok=True)
            with (disk / "ballast").open("wb") as stream:
                stream.write(bytes(1))
            fill(disk / "ballast")
            result = judged(*step.command)
            assert result.code == 73, result
            assert leftovers(disk / "round") == []
            (disk / "ballast").unlink()
            step.again(bench.round)
            step.finish(bench.round)
        finally:
            bench.round.folder.unlink()


def fill(path: Path) -> None:
    """Write until nothing fits."""
    block = 1 << 20
    with path.open("ab", buffering=0) as stream:
        while block:
            try:
                stream.write(bytes(block))
            except OSError:
                block //= 2


@pytest.mark.parametrize(
    ("recipe", "name"), [*(("permutation", name) for name in COMMANDS), ("sealed", "offline"), ("sealed", "eliminate")]
)
def test_files_may_not_grow(benches: dict[str, Bench], recipe: str, name: str) -> None:
    step = Step(benches[recipe], name)
    for limit in (0, 100, 2500):
        state = step.start()

        def limited(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        result = as_child(*step.command, before=limited)
        assert result.code in (0, 73), (limit, result)
        assert limit or result.code == 73
        assert leftovers(state.folder) == []
        check_whole(state.folder)
        step.again(state)
    step.finish(state)


def test_no_room_to_open_a_sealed_share() -> None:
    with scratch() as folder:
        step = Step(Bench(replace(RECIPES["sealed"], length=40), folder), "eliminate")
        for limit in (2500, 6000):
            state = step.start()

            def limited(limit: int = limit) -> None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

            result = as_child(*step.command, before=limited)
            assert result.code == 73, result
            assert leftovers(state.folder) == []
            step.again(state)
            step.finish(state)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_became_read_only(benches: dict[str, Bench], name: str) -> None:
    with small_disk("16m") as disk:
        bench = benches["permutation"]
        step = Step(bench, name)
        shutil.rmtree(bench.round.folder, ignore_errors=True)
        bench.round.folder.symlink_to(disk / "round")
        try:
            shutil.copytree(bench.kept(step.stage), disk / "round")
            remount(disk, "ro")
            result = judged(*step.command)
            remount(disk, "rw")
            assert result.code == 73, result
            step.again(bench.round)
            step.finish(bench.round)
        finally:
            bench.round.folder.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("name", COMMANDS)
def test_folders_of_somebody_else(benches: dict[str, Bench], name: str) -> None:
    """All can be read, and nothing written."""
    bench = benches["permutation"]
    step = Step(bench, name)
    state = step.start()
    for path in (state.folder, *state.folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    result = as_child(*step.command, before=lambda: os.setuid(NOBODY))
    assert result.code == 73, result
    assert leftovers(state.folder) == []
    step.again(state)
    step.finish(state)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_the_lock_of_somebody_else(benches: dict[str, Bench]) -> None:
    """Whoever may write to the folder can freeze, though another user's process made the lock file."""
    state = benches["permutation"].at("masked")
    for path in (state.folder, *state.folder.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o644)
    assert as_child(*state.freeze(), before=lambda: os.setuid(NOBODY)).code == 0


def test_more_users_than_files_may_be_open() -> None:
    def limited() -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))

    with scratch() as folder:
        users = tuple(range(1, 61))
        recipe = replace(RECIPES["permutation"], users=60, masking=users, answering=users)
        state = Round(recipe, folder / "round", folder / "inputs")
        state.prepare()
        must(*state.init())
        assert as_child(*state.offline(1), before=limited).code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(
    ("name", "path"),
    [("mask", "secrets/user-01.h5"), ("eliminate", "shares/user-01/from-02.h5"), ("decode", "survivors.json")],
)
def test_files_that_may_not_be_read(benches: dict[str, Bench], name: str, path: str) -> None:
    bench = benches["permutation"]
    step = Step(bench, name)
    state = step.start()
    copy = state.folder.with_name("own")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(state.folder, copy)
    for one in (copy, *copy.rglob("*")):
        os.chown(one, NOBODY, NOBODY)
        one.chmod(0o700 if one.is_dir() else 0o600)
    (copy / path).chmod(0)
    command = [copy if part == state.folder else part for part in step.command]
    result = as_child(*command, before=lambda: os.setuid(NOBODY))
    assert result.code == 66, result
    assert leftovers(copy) == []
    (copy / path).chmod(0o600)
    assert as_child(*command, before=lambda: os.setuid(NOBODY)).code == 0
    shutil.rmtree(copy)


@pytest.mark.parametrize(
    ("name", "gone", "code"),
    [
        ("offline", "", {66}),
        ("mask", "secrets", {66}),
        ("mask", "", {66}),
        ("freeze", "masked", {69}),
        ("freeze", "", {66}),
        ("eliminate", "masked", {66}),
        ("eliminate", "shares", {66}),
        ("eliminate", "secrets", {66}),
        ("decode", "elimination", {69}),
        ("decode", "", {66}),
    ],
)
def test_a_folder_that_went(benches: dict[str, Bench], name: str, gone: str, code: set[int]) -> None:
    bench = benches["permutation"]
    step = Step(bench, name)
    state = step.start()
    away = state.folder.with_name("away")
    (state.folder / gone).rename(away)
    result = judged(*step.command)
    assert result.code in code, result
    if (state.folder / gone).exists():
        shutil.rmtree(state.folder / gone)
    away.rename(state.folder / gone)
    step.again(state)
    step.finish(state)


@pytest.mark.parametrize("name", ["offline", "mask", "eliminate", "decode"])
def test_a_folder_that_goes_while_a_command_runs(benches: dict[str, Bench], name: str) -> None:
    """The folder of the round is moved away at the first temporary file."""
    from crashes import hooked

    bench = benches["permutation"]
    step = Step(bench, name)
    state = step.start()
    away = state.folder.with_name("moved")
    before = linked_copy(state.folder, state.folder.with_name("before"))

    def hook() -> None:
        rename = os.rename

        def strike(_at: int, _name: str) -> None:
            if not away.exists() and leftovers(state.folder):
                rename(state.folder, away)

        hooked(strike)

    result = as_child(*step.command, before=hook)
    assert result.code in (66, 73), result
    shutil.rmtree(state.folder, ignore_errors=True)
    away.rename(state.folder)
    step.again(state)
    step.finish(state)
    shutil.rmtree(before)


@pytest.mark.parametrize("output", ["nowhere/sum.npy", "file/sum.npy", "folder.npy", "/dev/full/sum.npy"])
def test_an_output_that_cannot_be_written(benches: dict[str, Bench], tmp_path: Path, output: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.npy").mkdir()
    state = benches["permutation"].at("answered")
    result = judged(*state.decode(), "--output", tmp_path / output)
    assert result.code == 73, result
    assert leftovers(tmp_path) == []
    must(*state.decode())
    state.check_aggregate()


def test_a_big_round_has_the_size_that_the_tests_think() -> None:
    with scratch() as folder:
        state = Round(replace(BIG), folder / "round", folder / "inputs")
        state.prepare()
        must(*state.init())
        must(*state.offline(1))
        size = sum(path.stat().st_size for path in (folder / "round").rglob("*.h5"))
        assert 1_000_000 < size < 1_300_000
