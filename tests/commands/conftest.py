"""Rounds at every stage, built once and copied, and the command line as a function."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from .cli_helpers import (
    EXAMPLE_OPTIONS,
    Result,
    RunCli,
    assert_one_error,
    contents,
    copy_round,
    invoke,
    leftovers,
    play,
)

RoundAt = Callable[..., Path]
Refuses = Callable[..., Result]


@pytest.fixture(scope="package", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """A test does not have to survive a power cut; the order of syncs is tested on its own."""
    with mock.patch.object(os, "fsync", return_value=None):
        yield


@pytest.fixture
def run_cli(capfd: pytest.CaptureFixture[str]) -> RunCli:
    """run_cli("mask", folder, ...) -> Result(code, out, err)."""

    def run(*args: object) -> Result:
        capfd.readouterr()
        code = invoke(*args)
        return Result(code, *capfd.readouterr())

    return run


def _stages(folder: Path, *more: str) -> Path:
    """The example of the paper, with a copy of the round after every stage."""
    play(
        folder / "round",
        options=(*EXAMPLE_OPTIONS, *more),
        after=lambda stage: shutil.copytree(folder / "round", folder / stage),
    )
    return folder


@pytest.fixture(scope="package")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _stages(tmp_path_factory.mktemp("stages"))


@pytest.fixture(scope="package")
def other_stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a session of its own."""
    return _stages(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="package")
def seeded_stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same from a public seed: every byte is the same in every run of these tests."""
    return _stages(tmp_path_factory.mktemp("seeded"), "--insecure-seed", "7")


@pytest.fixture
def round_at(stages: Path, tmp_path: Path) -> RoundAt:
    """round_at("masked"): a copy of the example's round, up to that stage."""
    return lambda stage, name="round": copy_round(stages / stage, tmp_path / name)


@pytest.fixture
def other_round_at(other_stages: Path, tmp_path: Path) -> RoundAt:
    return lambda stage, name="other": copy_round(other_stages / stage, tmp_path / name)


@pytest.fixture
def seeded_round_at(seeded_stages: Path, tmp_path: Path) -> RoundAt:
    return lambda stage, name="seeded": copy_round(seeded_stages / stage, tmp_path / name)


@pytest.fixture
def refuses(run_cli: RunCli, tmp_path: Path) -> Refuses:
    """refuses(65, "decode", folder): that exit code, one clear error, and nothing changed anywhere."""

    def check(code: int, *args: object) -> Result:
        before = contents(tmp_path)
        result = run_cli(*args)
        assert_one_error(result.code, result.out, result.err)
        assert result.code == code, result
        assert leftovers(tmp_path) == []
        assert contents(tmp_path) == before
        return result

    return check
