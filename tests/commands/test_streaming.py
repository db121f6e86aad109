"""`eliminate` reads of a share only the rows that X names, and checks each of them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from .cli_helpers import (
    Result,
    RunCli,
    aggregate,
    contents,
    copy_round,
    datasets,
    flip,
    leftovers,
    must,
    placed,
    sparse_top,
    words,
)

LENGTH, TOP, WIDTH, SCALE = 256, 6, 128, 2**20
OPTIONS = words(f"--users 3 --survivors 3 --colluders 1 --top-k {TOP} --length {LENGTH} --clip 682.6664")
USERS = (1, 2, 3)


def rows_named_by(folder: Path, user: int) -> list[int]:
    """The permuted indices in X, as `inspect` shows them."""
    found = must("inspect", folder / f"masked/user-{user:02}.h5", "--json").json["files"][0]
    rows = next(value for key, value in found.items() if "permuted" in key)
    assert len(rows) == TOP
    return [int(row) for row in rows]


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A round of three users over 256 coordinates, before the answers."""
    base = tmp_path_factory.mktemp("streaming")
    rng = np.random.default_rng(5)
    must("init", base / "round", *OPTIONS)
    assert json.loads((base / "round/session.json").read_text())["parameters"]["scale"] == SCALE
    for n in USERS:
        vector = rng.integers(-(2**20), 2**20, LENGTH) / SCALE
        np.save(base / f"g{n}.npy", vector)
        must("offline", base / "round", "--user", n)
        must("mask", base / "round", "--user", n, "--gradient", base / f"g{n}.npy")
    must("freeze", base / "round")
    return base


@pytest.fixture
def folder(frozen: Path, tmp_path: Path) -> Iterator[Path]:
    yield copy_round(frozen / "round", tmp_path / "round")
    shutil.rmtree(tmp_path / "round")


def plain_sum(frozen: Path) -> np.ndarray:
    total = sum(sparse_top(np.load(frozen / f"g{n}.npy"), TOP) for n in USERS) * SCALE
    return total.astype(np.int64) % (2**32 - 5)


def row_bytes(path: Path, name: str, row: int) -> tuple[int, int]:
    """Where a row of f or h lies in the file."""
    start, size = placed(path)[name]
    return start + row * (size // LENGTH), size // LENGTH


def answer_all(folder: Path) -> None:
    for n in USERS:
        must("eliminate", folder, "--user", n)
    must("decode", folder)


def test_the_round_decodes_exactly(frozen: Path, folder: Path) -> None:
    answer_all(folder)
    assert np.array_equal(aggregate(folder, LENGTH), plain_sum(frozen))


def test_rows_that_no_x_names_are_never_looked_at(frozen: Path, folder: Path) -> None:
    """All of them are overwritten with rubbish, and the sum is exact still."""
    spoiled = 0
    for sender in USERS:
        named = set(rows_named_by(folder, sender))
        for user in USERS:
            path = folder / f"shares/user-{user:02}/from-{sender:02}.h5"
            places = {name: placed(path)[name][0] for name in "fh"}
            with path.open("r+b") as stream:
                for row in set(range(LENGTH)) - named:
                    for name in "fh":
                        stream.seek(places[name] + row * WIDTH * 4)
                        stream.write(b"\xff" * WIDTH * 4)
                        spoiled += 1
    assert spoiled == 3 * 3 * 2 * (LENGTH - TOP)
    answer_all(folder)
    assert np.array_equal(aggregate(folder, LENGTH), plain_sum(frozen))


@pytest.mark.parametrize("name", ["f", "h"])
@pytest.mark.parametrize("which", [0, TOP - 1])
def test_one_bit_in_a_row_that_x_names_is_noticed(
    folder: Path, run_cli: RunCli, name: str, which: int
) -> None:
    path = folder / "shares/user-01/from-02.h5"
    start, size = row_bytes(path, name, rows_named_by(folder, 2)[which])
    before = contents(folder)
    for at in (start, start + size // 2, start + size - 1):
        flip(path, at, bit=3)
        result: Result = run_cli("eliminate", folder, "--user", 1)
        flip(path, at, bit=3)
        assert result.code == 65
        assert "from-02.h5" in result.err
        assert "checksum" in result.err
    ledger = "secrets/user-01.ledger.json"  # the answer is recorded before it is computed
    assert {**contents(folder), ledger: None} == {**before, ledger: None}
    assert leftovers(folder) == []


def test_two_rows_exchanged_with_their_checksums_are_noticed(folder: Path, run_cli: RunCli) -> None:
    """The digest of the file covers the table of checksums."""
    path = folder / "shares/user-01/from-02.h5"
    one, two = rows_named_by(folder, 2)[:2]
    content = bytearray(path.read_bytes())
    table, size = placed(path)["check"]
    each = size // LENGTH
    spots = [(row_bytes(path, name, one)[0], row_bytes(path, name, two)[0], WIDTH * 4) for name in "fh"]
    spots.append((table + one * each, table + two * each, each))
    for first, second, length in spots:
        kept = content[first : first + length]
        content[first : first + length] = content[second : second + length]
        content[second : second + length] = kept
    path.write_bytes(content)
    assert run_cli("eliminate", folder, "--user", 1).code == 65


def test_only_the_named_rows_and_the_checksums_are_read(
    folder: Path, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes read with pread from the share files, against what the rows take."""
    read: dict[str, int] = {}

    def name_of(fd: int) -> str:
        return Path(f"/proc/self/fd/{fd}").readlink().name

    real_v, real = os.preadv, os.pread

    def preadv(fd: int, buffers: object, *more: int) -> int:
        got = real_v(fd, buffers, *more)  # type: ignore[arg-type]
        read[name_of(fd)] = read.get(name_of(fd), 0) + got
        return got

    def pread(fd: int, *more: int) -> bytes:
        got = real(fd, *more)
        read[name_of(fd)] = read.get(name_of(fd), 0) + len(got)
        return got

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(os, "pread", pread)
    assert run_cli("eliminate", folder, "--user", 1).code == 0
    rows = 2 * TOP * WIDTH * 4
    table, structure = LENGTH * 2 * 32, 2048
    for sender in USERS:
        assert read[f"from-{sender:02}.h5"] >= rows
        assert read[f"from-{sender:02}.h5"] <= rows + 2 * table + structure
        assert read[f"from-{sender:02}.h5"] < 2 * LENGTH * WIDTH * 4 / 4


def test_inspect_checks_all_rows_of_a_share(folder: Path, run_cli: RunCli) -> None:
    path = folder / "shares/user-01/from-02.h5"
    assert run_cli("inspect", path).code == 0
    unnamed = next(row for row in range(LENGTH) if row not in rows_named_by(folder, 2))
    flip(path, row_bytes(path, "f", unnamed)[0])
    assert run_cli("inspect", path).code == 65


def test_the_answer_has_no_trace_of_the_unnamed_rows(frozen: Path, folder: Path) -> None:
    """The same shares, once whole and once with an unnamed row changed, give the same Y."""
    must("eliminate", folder, "--user", 1)
    before = datasets(folder / "elimination/user-01.h5")["y"]
    (folder / "elimination/user-01.h5").unlink()
    path = folder / "shares/user-01/from-02.h5"
    unnamed = next(row for row in range(LENGTH) if row not in rows_named_by(folder, 2))
    flip(path, row_bytes(path, "h", unnamed)[0])
    must("eliminate", folder, "--user", 1)
    assert np.array_equal(datasets(folder / "elimination/user-01.h5")["y"], before)
