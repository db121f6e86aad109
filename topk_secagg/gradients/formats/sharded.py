"""A model in several files, its shards, and an index that says which tensor lies in which:
save_pretrained writes both.

However many shards there are, one is in memory at a time.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ...errors import BadData
from ..tensors import AnyTensor, Gradient, TensorInFile, called
from . import format_read, strict_json
from .malformed import reading, refusing

_MAX_INDEX = 16 << 20  # bytes; a tensor takes some 100
_AGAIN = "copy the index and all shards again, from one save"


def read(path: Path) -> Gradient:
    """The tensors of all shards, shard after shard."""
    with refusing(path):
        if path.stat().st_size > _MAX_INDEX:
            raise BadData("it is too large for an index", _AGAIN)
        shard_of = _weight_map(path)
    whole = Gradient([])
    memory = _OneShard()
    for name in dict.fromkeys(shard_of.values()):
        shard = path.parent / name
        part = _read_shard(shard)
        _check_agrees(path, shard, part, {t for t, where in shard_of.items() if where == name})
        whole += [memory.without_values(shard, tensor) for tensor in part]
        whole.absent += part.absent
        whole.ties |= part.ties
    return whole


def _weight_map(path: Path) -> dict[str, str]:
    """The file of each tensor: {"weight_map": {"tensor": "file"}}."""
    match strict_json.parse(path.read_bytes()):
        case {"weight_map": dict(shard_of)} if shard_of:
            suffix = Path(path.name.removesuffix(".index.json")).suffix
            for tensor, shard in shard_of.items():
                _check_shard(tensor, shard, suffix)
            return shard_of
    raise ValueError("no weight_map")


def _check_shard(tensor: str, shard: Any, suffix: str) -> None:
    """Refuse what is no file beside the index, or of another format than its name says."""
    is_name = isinstance(shard, str) and Path(shard).name == shard and "\\" not in shard
    if not is_name or Path(shard).suffix != suffix:
        raise BadData(
            f"it has tensor {called(tensor)} in {str(shard)[:80]!r}, and not in a {suffix} file "
            "beside it",
            _AGAIN,
        )


def _read_shard(path: Path) -> Gradient:
    with reading(path):
        return format_read(path).reader.read(path)


def _check_agrees(index: Path, shard: Path, part: Gradient, named: set[str]) -> None:
    """Refuse a shard with other tensors than the index names there; it need not name tied ones."""
    there = {*(t.name for t in part), *part.absent}
    for tensor in sorted(named - there - part.ties.keys()):
        raise BadData(f"{shard}: tensor {called(tensor)} of {index.name} is missing", _AGAIN)
    for tensor in sorted(there - named):
        raise BadData(f"{shard}: tensor {called(tensor)} is not in {index.name}", _AGAIN)


class _OneShard:
    """The shard that was read last."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._tensors: dict[str, AnyTensor] = {}

    def without_values(self, path: Path, tensor: AnyTensor) -> TensorInFile:
        """A tensor of a shard, whose values are read again when somebody asks for them."""
        if isinstance(tensor, TensorInFile):
            return tensor
        name, dtype, array = tensor
        return TensorInFile(name, dtype, array.shape, partial(self._values, path, name))

    def _values(self, path: Path, name: str) -> npt.NDArray[Any]:
        if path != self._path:
            self._tensors = {}  # before the next one is read
            self._tensors = {t.name: t for t in _read_shard(path)}
            self._path = path
        return self._tensors[name].array
