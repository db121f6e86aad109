"""Shares are larger than memory: they are written and read in parts, and every part that is read is
checked."""

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from played import (
    Recipe,
    Round,
    call,
    contents,
    datasets,
    document,
    edit,
    flip,
    leftovers,
    must,
    placed,
    write_tensors,
)

import topk_secagg as ts
from topk_secagg.gradients.files import read_gradient
from topk_secagg.gradients.tensors import Tensor, narrow, widen
from topk_secagg.protocol import construction as construction_module
from topk_secagg.protocol import sketch
from topk_secagg.rounds import decode as decode_step
from topk_secagg.storage import documents

LENGTH, TOP, WIDTH = 256, 6, 128
NAMED = {"length": LENGTH, "top_k": TOP, "users": 3, "masking": (1, 2, 3)}
USERS = (1, 2, 3)
WRITTEN_OUT = {
    "construction": "sketch", "dealing": "shares", "picks": 2, "top_k": 10, "length": 150
}  # fmt: skip


@pytest.fixture
def frozen(round_at):
    """A round of three users over 256 coordinates with the paper's construction, before the
    answers."""
    return round_at("frozen", **NAMED)


def rows_named_by(r: Round, user: int) -> list[int]:
    """The permuted indices in X, as `inspect` shows them."""
    found = must("inspect", r.folder / f"masked/user-{user:02}.h5", "--json").json["files"][0]
    rows = next(value for key, value in found.items() if "permuted" in key)
    assert len(rows) == TOP
    return [int(row) for row in rows]


def row_bytes(path: Path, name: str, row: int) -> tuple[int, int]:
    """Where a row of f or h lies in the file."""
    start, size = placed(path)[name]
    return start + row * (size // LENGTH), size // LENGTH


def test_rows_that_no_x_names_are_never_looked_at(frozen):
    """All of them are overwritten with rubbish, and the sum is exact still."""
    spoiled = 0
    for sender in USERS:
        named = set(rows_named_by(frozen, sender))
        for user in USERS:
            path = frozen.folder / f"shares/user-{user:02}/from-{sender:02}.h5"
            places = {name: placed(path)[name][0] for name in "fh"}
            with path.open("r+b") as stream:
                for row in set(range(LENGTH)) - named:
                    for name in "fh":
                        stream.seek(places[name] + row * WIDTH * 4)
                        stream.write(b"\xff" * WIDTH * 4)
                        spoiled += 1
    assert spoiled == 3 * 3 * 2 * (LENGTH - TOP)
    frozen.play(after="frozen").check_sum()


@pytest.mark.parametrize("name", ["f", "h"])
@pytest.mark.parametrize("which", [0, TOP - 1])
def test_one_bit_in_a_row_that_x_names_is_noticed(frozen, name, which):
    path = frozen.folder / "shares/user-01/from-02.h5"
    start, size = row_bytes(path, name, rows_named_by(frozen, 2)[which])
    check_noticed(frozen, path, (start, start + size // 2, start + size - 1))


def test_one_bit_in_any_row_is_noticed_where_all_are_read(round_at):
    r = round_at("frozen", **WRITTEN_OUT)
    path = r.folder / "shares/user-01/from-02.h5"
    start, size = placed(path)["f"]
    check_noticed(r, path, range(start, start + size, 97))


def check_noticed(r: Round, path: Path, positions: object) -> None:
    before = contents(r.folder)
    for at in positions:
        flip(path, at, bit=3)
        result = call(*r.eliminate(1))
        flip(path, at, bit=3)
        assert result.code == 65
        assert "from-02.h5" in result.err
        assert "checksum" in result.err
    ledger = "secrets/user-01.ledger.json"  # which notes what survivors it saw
    assert document(r.folder / ledger)["answered"] is None
    assert {**contents(r.folder), ledger: None} == {**before, ledger: None}
    assert leftovers(r.folder) == []


def test_two_rows_exchanged_with_their_checksums_are_noticed(frozen):
    """The digest of the file covers the table of checksums."""
    path = frozen.folder / "shares/user-01/from-02.h5"
    one, two = rows_named_by(frozen, 2)[:2]
    content = bytearray(path.read_bytes())
    table, size = placed(path)["check"]
    each = size // LENGTH
    spots = [
        (row_bytes(path, name, one)[0], row_bytes(path, name, two)[0], WIDTH * 4) for name in "fh"
    ]
    spots.append((table + one * each, table + two * each, each))
    for first, second, length in spots:
        kept = content[first : first + length]
        content[first : first + length] = content[second : second + length]
        content[second : second + length] = kept
    path.write_bytes(content)
    assert call(*frozen.eliminate(1)).code == 65


def test_only_the_named_rows_and_the_checksums_are_read(frozen, monkeypatch):
    """Bytes read with pread from the share files, against what the rows take."""
    read = {}
    real_v, real = os.preadv, os.pread

    def note(fd, count):
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        read[name] = read.get(name, 0) + count

    def preadv(fd, buffers, *more):
        got = real_v(fd, buffers, *more)
        note(fd, got)
        return got

    def pread(fd, *more):
        got = real(fd, *more)
        note(fd, len(got))
        return got

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(os, "pread", pread)
    must(*frozen.eliminate(1))
    rows = 2 * TOP * WIDTH * 4
    table = LENGTH * 2 * 32
    structure = 2048
    for sender in USERS:
        assert rows <= read[f"from-{sender:02}.h5"] <= rows + 2 * table + structure
        assert read[f"from-{sender:02}.h5"] < 2 * LENGTH * WIDTH * 4 / 4


def test_memory_does_not_grow_with_the_shares(tmp_path, monkeypatch):
    """With small buffers, a round of four times the size needs hardly more, though its shares are
    far larger. (Those of `sketch` are no larger than its X.)"""
    monkeypatch.setattr(construction_module, "CHUNK_SYMBOLS", 1 << 14)
    monkeypatch.setattr(
        documents.read_bytes, "__defaults__", (1 << 16,)
    )  # which it makes room for at once
    peaks = []
    shared = []
    for times in (1, 1, 4):  # the first loads what is needed
        recipe = Recipe(
            "permutation", users=3, masking=(1, 2, 3), length=150 * times, top_k=10 * times
        )
        name = f"{len(peaks)}"
        r = Round(recipe, tmp_path / name, tmp_path / f"inputs-{name}").prepare()
        commands = r.commands()
        found = {}
        for stage in ("init", "offline", "masked", "frozen", "answered"):
            *others, last = commands[stage]
            for command in others:
                must(*command)
            tracemalloc.start()
            must(*last)
            found[stage] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        peaks.append(found)
        shared.append(sum(path.stat().st_size for path in r.folder.glob("shares/*/from-01.h5")))
    for stage in ("offline", "answered"):
        assert peaks[2][stage] - peaks[1][stage] < (shared[2] - shared[1]) / 8, (peaks, shared)


def test_y_does_not_depend_on_the_size_of_the_parts(round_at, monkeypatch):
    r = round_at("answered", **WRITTEN_OUT)
    path = r.folder / "elimination/user-01.h5"
    before = datasets(path)["y"]
    ledger = r.private(1) / "user-01.ledger.json"
    edit(ledger, lambda lines: lines.update(answered=None))
    path.unlink()
    for module in (construction_module, sketch):
        monkeypatch.setattr(module, "CHUNK_SYMBOLS", 1)  # one group at a time
    must(*r.eliminate(1))
    assert np.array_equal(datasets(path)["y"], before)


SIDE, MATRICES = 1024, 5  # five million parameters
ITSELF = 10 << 20  # what the program takes with gradients of any size


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """A gradient of bfloat16 in two shards, with its index; how many bytes they have."""
    folder = tmp_path_factory.mktemp("shards")
    chance = np.random.default_rng(0)
    names = [f"layers.{i}.weight" for i in range(MATRICES)]
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        own = [
            Tensor(name, "bfloat16", chance.normal(0, 1e-3, (SIDE, SIDE)).astype(np.float32))
            for name in names
            if files[name] == file
        ]
        write_tensors(folder / file, own)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return index, sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def peak_of(step: Callable[[], object]) -> int:
    """The most bytes that a step has at once."""
    tracemalloc.start()
    try:
        step()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("how", [{"rank": 4}, {"density": 0.01}], ids=["low rank", "top-K"])
def test_no_step_takes_more_than_three_times_the_file(shards, tmp_path, monkeypatch, how):
    index, size = shards
    r = tmp_path / "round"
    rules = {"users": 3, "survivors": 2, "colluders": 1, "clip": 0.01, **how}
    most = {
        "init": peak_of(lambda: ts.init(r, like=index, **rules)),
        "offline": max(peak_of(lambda n=n: ts.offline(r, n)) for n in USERS),
        "mask": max(peak_of(lambda n=n: ts.mask(r, n, index, saturate=True)) for n in USERS),
        "freeze": peak_of(lambda: ts.freeze(r)),
        "eliminate": max(peak_of(lambda n=n: ts.eliminate(r, n)) for n in USERS),
        "decode": peak_of(lambda: ts.decode(r, tmp_path / "sum.safetensors")),
    }
    allowed = 3 * size + ITSELF
    assert {name: peak for name, peak in most.items() if peak > allowed} == {}
    whole = ts.decode(r).total
    written = {t.name: t.array for t in read_gradient(tmp_path / "sum.safetensors")}
    assert list(written) == list(whole)
    for name, array in whole.items():
        assert np.array_equal(written[name], widen(narrow(array)))
    # the twin: the sum is written from one flat vector
    at_once = property(lambda report: report.session.layout.unflatten(report.vector))
    monkeypatch.setattr(decode_step.DecodeReport, "tensors", at_once)
    assert peak_of(lambda: ts.decode(r, tmp_path / "sum.safetensors")) > allowed
