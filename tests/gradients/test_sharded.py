"""A model in several files and their index: read as one, a shard at a time, and refused where they
disagree."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from topk_secagg.errors import BadData, InputMissing
from topk_secagg.gradients.files import read_gradient, write_gradient
from topk_secagg.gradients.layout import Layout
from topk_secagg.gradients.tensors import Gradient, Tensor, TensorInFile

STEMS = {".safetensors": "model", ".bin": "pytorch_model"}
every_kind = pytest.mark.parametrize("suffix", STEMS)


def tensor(name: str, size: int, start: float = 0, dtype: str = "float32") -> Tensor:
    return Tensor(name, dtype, np.arange(start, start + size, dtype=np.float32))


def saved(folder: Path, suffix: str, shards: list[list[Tensor]]) -> Path:
    """What save_pretrained leaves in a folder; the index."""
    stem = STEMS[suffix]
    weight_map = {}
    for number, part in enumerate(shards, start=1):
        name = f"{stem}-{number:05}-of-{len(shards):05}{suffix}"
        with (folder / name).open("wb") as stream:
            write_gradient(stream, suffix, Gradient(part))
        weight_map |= {t.name: name for t in part}
    total = sum(t.array.nbytes for part in shards for t in part)
    return indexed(folder, suffix, {"metadata": {"total_size": total}, "weight_map": weight_map})


def indexed(folder: Path, suffix: str, content: object) -> Path:
    path = folder / f"{STEMS[suffix]}{suffix}.index.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def weight_map(path: Path) -> dict[str, str]:
    return json.loads(path.read_text())["weight_map"]


@pytest.fixture(params=STEMS)
def suffix(request):
    return request.param


@pytest.fixture
def index(tmp_path, suffix):
    return saved(tmp_path, suffix, [[tensor("a", 3), tensor("b", 2)], [tensor("c", 4, 7)]])


def test_all_shards_are_one_gradient(index):
    found = read_gradient(index)
    assert [(t.name, t.dtype, t.shape) for t in found] == [
        ("a", "float32", (3,)),
        ("b", "float32", (2,)),
        ("c", "float32", (4,)),
    ]
    assert Layout.like(found).flatten(found).tolist() == [0, 1, 2, 0, 1, 7, 8, 9, 10]


def test_the_order_of_a_users_shards_does_not_matter(tmp_path, suffix, index):
    (tmp_path / "other").mkdir()
    shards = [[tensor("c", 4, 7)], [tensor("b", 2), tensor("a", 3)]]
    layout = Layout.like(read_gradient(index))
    other = read_gradient(saved(tmp_path / "other", suffix, shards))
    assert layout.flatten(other).tolist() == [0, 1, 2, 0, 1, 7, 8, 9, 10]


def test_tied_tensors_of_a_shard_stay_tied(tmp_path, suffix):
    path = saved(tmp_path, suffix, [[tensor("a", 3)], [tensor("b", 2)]])
    shard = tmp_path / weight_map(path)["b"]
    with shard.open("wb") as stream:
        write_gradient(stream, suffix, Gradient([tensor("b", 2)], ties={"head": "b"}))
    assert read_gradient(path).ties == {"head": "b"}  # which the index need not name


def test_a_shard_that_is_not_there_is_missing(index):
    shard = index.parent / weight_map(index)["c"]
    shard.unlink()
    with pytest.raises(InputMissing, match=f"{shard} is not there"):
        read_gradient(index)


def test_a_damaged_shard_is_named(index):
    shard = index.parent / weight_map(index)["c"]
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(BadData, match=f"^{shard}: it is damaged"):
        read_gradient(index)


def test_shards_of_another_save_are_refused(index):
    names = weight_map(index)
    missing = {**names, "d": names["c"]}
    with pytest.raises(BadData, match=r"tensor 'd' of \S+ is missing") as caught:
        read_gradient(indexed(index.parent, index.suffixes[0], {"weight_map": missing}))
    assert "one save" in caught.value.hint
    del names["b"]
    with pytest.raises(BadData, match=r"tensor 'b' is not in \S+\.index\.json"):
        read_gradient(indexed(index.parent, index.suffixes[0], {"weight_map": names}))


ELSEWHERE = ["../x", "/etc/x", "sub/x", "..\\x", "", ".", "..", "C:\\x", 3, None, ["x"]]


@pytest.mark.parametrize("where", ELSEWHERE, ids=str)
def test_an_index_leads_to_no_file_elsewhere(tmp_path, suffix, where):
    for shard in (where, f"{where}{suffix}" if where and isinstance(where, str) else where):
        if shard not in (f".{suffix}", f"..{suffix}"):
            with pytest.raises(BadData, match=f"and not in a {suffix} file beside it"):
                read_gradient(indexed(tmp_path, suffix, {"weight_map": {"a": shard}}))


def test_an_index_leads_to_no_other_format(tmp_path, suffix):
    other = ".bin" if suffix == ".safetensors" else ".safetensors"
    for shard in ("model.npy", f"model{suffix}.index.json", f"model{other}"):
        with pytest.raises(BadData, match=f"and not in a {suffix} file"):
            read_gradient(indexed(tmp_path, suffix, {"weight_map": {"a": shard}}))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"weight_map": {}}',
        '{"weight_map": ["a"]}',
        '{"weight_map": {"a": "x", "a": "y"}}',
        '{"weight_map": {"\\ud800": "x"}}',
        '{"weight_map":' + "[" * 100_000,
    ],
)
def test_an_index_that_makes_no_sense_is_damaged(tmp_path, suffix, content):
    with pytest.raises(BadData, match="it is damaged"):
        read_gradient(indexed(tmp_path, suffix, content))


def test_an_absurdly_large_index_is_refused_unread(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr("topk_secagg.gradients.formats.sharded._MAX_INDEX", 100)
    with pytest.raises(BadData, match="too large for an index"):
        read_gradient(indexed(tmp_path, suffix, " " * 101))


# Memory.

SHARDS, EACH = 8, 200_000


def peak(action) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def large(folder: Path, suffix: str, *, backwards: bool = False) -> Path:
    shards = [[tensor(f"w{n}", EACH, dtype="bfloat16")] for n in range(SHARDS)]
    return saved(folder, suffix, shards[::-1] if backwards else shards)


def in_memory(suffix: str) -> int:
    """The most that a shard takes while it is read: its bytes, and the same widened to float32."""
    return (2 + 4 + 4) * EACH + (64 << 10)


def test_no_more_than_the_flat_vector_and_one_shard_is_in_memory(tmp_path, suffix):
    """Also if a user's shards are in another order than the session's."""
    layout = Layout.like(read_gradient(large(tmp_path, suffix)))
    (tmp_path / "other").mkdir()
    path = large(tmp_path / "other", suffix, backwards=True)
    limit = 4 * EACH * SHARDS + in_memory(suffix)
    assert peak(lambda: layout.flatten(read_gradient(path))) < limit


def test_twin_with_every_shard_in_memory_it_is_more(tmp_path, suffix):
    path = large(tmp_path, suffix)
    kept = Gradient([Tensor(t.name, t.dtype, t.array) for t in read_gradient(path)])
    layout = Layout.like(kept)

    def eager() -> None:
        arrays = [Tensor(t.name, t.dtype, t.array) for t in read_gradient(path)]
        layout.flatten(Gradient(arrays))

    assert peak(eager) > 4 * EACH * SHARDS + in_memory(suffix)


def test_each_shard_is_read_once_for_its_tensors(tmp_path, monkeypatch):
    """In whatever order the session has them."""
    from topk_secagg.gradients.formats import sharded

    shards = [[tensor(f"{n}{name}", 2) for name in "ab"] for n in range(3)]
    gradient = read_gradient(saved(tmp_path, ".bin", shards))
    order = sorted(gradient, key=lambda t: t.name[::-1])  # 0a 1a 2a 0b 1b 2b
    layout = Layout.like(Gradient(order))
    assert all(isinstance(t, TensorInFile) for t in gradient)
    reads = []
    read_shard = sharded._read_shard
    monkeypatch.setattr(
        sharded, "_read_shard", lambda path: reads.append(path.name) or read_shard(path)
    )
    layout.flatten(gradient)
    assert len(reads) == 3
