"""Gradients as files of `torch.save`, read and written without torch and without unpickling.

Such a file is a zip of uncompressed members: `data/<key>` are the storages, plain arrays;
`data.pkl` says which storage, offset, size and stride make up each tensor; `byteorder` is the byte
order of the numbers.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from ..errors import BadData
from .tensors import Gradient, Tensor, called, refusing, stored, widen
from .torch_pickle import AGAIN, CHARACTER_COST, ONLY_TENSORS, Budget, Call, Name, Storage, run

DTYPES = {
    "torch.HalfStorage": "float16", "torch.BFloat16Storage": "bfloat16", "torch.FloatStorage": "float32",
    "torch.DoubleStorage": "float64", "torch.CharStorage": "int8", "torch.ShortStorage": "int16",
    "torch.IntStorage": "int32", "torch.LongStorage": "int64", "torch.ByteStorage": "uint8",
    "torch.BoolStorage": "bool",
}  # fmt: skip

_TENSOR_COST = 400  # bytes of a Tensor and its array without its values
_LEAF_COST = 240  # bytes of a leaf
_KEY_COST = 16  # bytes of each key that leads to a leaf
_MAX_PICKLE = 16 << 20  # bytes; a tensor takes some 150
_MAX_DEPTH = 32  # of containers in containers
_MAX_WRAPPED = 2  # a tensor with attributes in a Parameter
_MAX_DIMENSIONS = 32
_MAX_LISTED = 12  # entries in a hint
# what the entry of a checkpoint with the model is usually called
_MODELS = (
    "state_dict",
    "model_state_dict",
)

_ZIP_MAGIC = b"PK\x03\x04"
_OLD_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
# magic, flags, method, length of the name and of the extra field
_LOCAL_HEADER = struct.Struct("<4s2xHH16xHH")
# the flags that torch.save sets
_UTF8_NAME = 0x0800
_SIZES_FOLLOW = 0x0008
_DIRECTORY = 0x10  # among a member's attributes

# Tensors that are a storage, an offset, a size and a stride: how many arguments may follow these.
_STRIDED = {"torch._utils._rebuild_tensor": (0,), "torch._utils._rebuild_tensor_v2": (2, 3)}
_OF_NEW_TYPE = "torch._utils._rebuild_tensor_v3"
_PARAMETER = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_WITH_ATTRIBUTES = "torch._tensor._rebuild_from_type_v2"
_PLAIN_CLASSES = ("torch.Tensor", "torch.nn.parameter.Parameter")
_NO_VALUES = ("it is a meta tensor and has no values", "save a tensor of the cpu")
_REFUSED = {
    "torch._utils._rebuild_sparse_tensor": ("it is sparse", "save tensor.to_dense()"),
    "torch._utils._rebuild_sparse_csr_tensor": ("it is sparse", "save tensor.to_dense()"),
    "torch._utils._rebuild_qtensor": ("it is quantised", "save tensor.dequantize()"),
    "torch._utils._rebuild_nested_tensor": ("it is a nested tensor", "save list(tensor.unbind())"),
    "torch._utils._rebuild_meta_tensor_no_storage": _NO_VALUES,
}

_NO_ZIP_TOOL = "save the file with torch.save, not with a zip tool"
_CONVERT = "save tensor.to(torch.float32)"

# What `write` needs.
_ALIGNMENT = 64  # where torch starts a storage, so that the file can be memory-mapped
_HEADER_BYTES = 30  # of a zip member
_ZIP64_BYTES = 20  # that a large one has in addition
_PADDING = struct.Struct("<2sH")  # the extra field's tag and length
_ROOT = "archive"
_STORAGES = {dtype: kind.removeprefix("torch.") for kind, dtype in DTYPES.items()}
_ORDERED_DICT = b"ccollections\nOrderedDict\n)R"

Array = npt.NDArray[Any]
_Keys = tuple[str | int, ...]  # the keys of dicts and the positions in lists that lead to a value
_Leaves = list[tuple[_Keys, Any]]


def read(path: Path, entry: str = "") -> Gradient:
    """The tensors at `entry` of a torch file, in the file's order, without those that are None.

    A file that holds one tensor gives one Tensor with the name ""; a state_dict keeps its names; a
    list or tuple gives "0", "1", ...; the names of nested containers are joined with ".". `entry`
    is such a name, of a container or a tensor; if several have it because keys contain dots, the
    one with the longest keys is taken. Without `entry`, the entry of a checkpoint that is obviously
    its model is read.

    Tied tensors, which are the same view (storage, offset, size and stride), are listed once, under
    the name that comes first. Views that overlap in another way are tensors of their own.
    """
    with path.open("rb") as file, refusing(path):
        archive = _Archive(file)
        if archive.members["data.pkl"][1] > _MAX_PICKLE:
            raise BadData("its pickle is too large to describe only tensors", ONLY_TENSORS)
        content = run(archive.member("data.pkl").tobytes(), archive.budget)
        leaves = list(_leaves(content, archive.budget))
        start = _named(leaves, entry) if entry else _obvious(leaves)
        notes = (
            [f"took the entry {called(_name(start))} of the checkpoint"]
            if start and not entry
            else []
        )
        chosen = [
            (keys[len(start) :], leaf) for keys, leaf in leaves if keys[: len(start)] == start
        ]
        found: dict[str, Tensor | None] = {}
        ties: dict[str, str] = {}
        names: dict[int, str] = {}  # the first name of an array, by its id: `found` keeps it alive
        for keys, leaf in chosen:
            name = _name(keys)
            archive.budget.spend(CHARACTER_COST * len(name))
            if name in found or name in ties:
                raise BadData(f"two of its tensors are called {called(name)}", ONLY_TENSORS)
            if not _is_tensor(leaf) and (leaf is not None or not name):
                where = (
                    f"its entry {called(_name((*start, *keys)))}"
                    if start or keys
                    else "its content"
                )
                raise BadData(f"{where} is {_kind(leaf)}, not a tensor", *_choices_hint(leaves))
            if leaf is None:
                found[name] = None
                continue
            with refusing(f"its tensor {called(name)}" if name else "its tensor"):
                tensor = Tensor(name, *archive.array(leaf))
            first = names.setdefault(id(tensor.array), name)
            if first == name:
                found[name] = tensor
            else:
                ties[name] = first
        if not found:
            raise BadData("there is no tensor in it", *_choices_hint(leaves))
        tensors = [t for t in found.values() if t is not None]
        if not tensors:
            raise BadData("all that it holds is None", "save the gradients after loss.backward()")
        absent = [name for name, t in found.items() if t is None]
        return Gradient(
            tensors,
            absent,
            notes,
            sequence=all(len(k) == 1 and type(k[0]) is int for k, _ in chosen),
            ties=ties,
        )


class _Archive:
    """The zip of a torch file: no member is compressed, and no two overlap."""

    def __init__(self, file: io.BufferedReader) -> None:
        self.file = file
        self.size = file.seek(0, os.SEEK_END)
        self.budget = Budget(self.size)
        self.storages: dict[str, tuple[str, Array]] = {}  # key -> kind, values
        # (key of the storage, offset, size, stride) -> the array, so that tied tensors are one
        # object
        self.views: dict[tuple[Any, ...], Array] = {}
        file.seek(0)
        start = file.read(len(_OLD_MAGIC))
        if start == _OLD_MAGIC:
            hint = (
                "save it with a newer torch: torch.save(torch.load(path, weights_only=True), path)"
            )
            raise BadData("it is in the old format of torch.save, which is not a zip", hint)
        if start[:1] == b"\x80":
            raise BadData("it is a plain pickle, not a file of torch.save", ONLY_TENSORS)
        if start[:4] != _ZIP_MAGIC:
            raise BadData(
                "it is not a file of torch.save" if start else "it is empty", ONLY_TENSORS
            )
        with zipfile.ZipFile(file) as directory:
            infos = sorted(directory.infolist(), key=lambda info: info.header_offset)
        root = infos[0].filename.partition("/")[0] + "/"
        if any(info.filename == f"{root}constants.pkl" for info in infos):
            raise BadData("it is a TorchScript archive", "save torch.jit.load(path).state_dict()")
        self.members: dict[
            str, tuple[int, int, int]
        ] = {}  # name without the root -> offset, size, CRC
        free = 0
        for info in infos:
            name = info.filename.removeprefix(root)
            if not info.filename.startswith(root) or info.filename != info.orig_filename:
                self._refuse(info, "is not one of torch.save's")
            if info.external_attr & _DIRECTORY:
                # torch would use uninitialised memory as its content
                self._refuse(info, "is a directory")
            if name in self.members:
                self._refuse(info, "is there twice")
            if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
                self._refuse(info, "is compressed")
            if (
                info.header_offset < free
                or (begin := self._start(info)) + info.file_size > directory.start_dir
            ):
                self._refuse(info, "overlaps another one")
            free = begin + info.file_size
            self.members[name] = (begin, info.file_size, info.CRC)
        if infos[0].header_offset != 0:
            raise BadData("something lies in front of its zip", AGAIN)
        if "data.pkl" not in self.members:
            raise BadData("it is a zip, but not one of torch.save", ONLY_TENSORS)
        order = self.member("byteorder").tobytes() if "byteorder" in self.members else b"little"
        if order not in (b"little", b"big"):
            raise BadData("its byte order is neither little nor big", AGAIN)
        self.order: Literal["<", ">"] = "<" if order == b"little" else ">"

    @staticmethod
    def _refuse(info: zipfile.ZipInfo, why: str) -> NoReturn:
        raise BadData(f"its zip member {called(info.filename)} {why}", _NO_ZIP_TOOL)

    def _start(self, info: zipfile.ZipInfo) -> int:
        """The offset of the member's bytes; its local header must agree with the directory."""
        self.file.seek(min(info.header_offset, self.size))
        local = self.file.read(_LOCAL_HEADER.size)
        magic, flags, method, name_length, extra_length = _LOCAL_HEADER.unpack(local)
        name = info.filename.encode("utf-8" if flags & _UTF8_NAME else "cp437")
        if (magic, method, self.file.read(name_length)) != (_ZIP_MAGIC, zipfile.ZIP_STORED, name):
            self._refuse(info, "has two different headers")
        if (flags | info.flag_bits) & ~(_UTF8_NAME | _SIZES_FOLLOW):
            self._refuse(info, "is encrypted or of an unknown kind")
        return info.header_offset + _LOCAL_HEADER.size + int(name_length) + int(extra_length)

    def member(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a member, read once and checked against their CRC."""
        if name not in self.members:
            raise BadData(f"its zip member {called(name)} is missing", AGAIN)
        start, size, crc = self.members[name]
        self.file.seek(start)
        content = np.fromfile(self.file, np.uint8, size)
        if len(content) != size or zlib.crc32(content.data) != crc:
            hint = f"{AGAIN} (torch.serialization.set_crc32_options(False) also does this)"
            raise BadData(f"its zip member {called(name)} is damaged: the CRC does not match", hint)
        return content

    def array(self, call: Any, wrapped: int = 0) -> tuple[str, Array]:
        """The type's name and the values of a tensor."""
        match call:
            case Call(name, (inner, *_)) if name in _PARAMETER and wrapped < _MAX_WRAPPED:
                return self.array(inner, wrapped + 1)
            case Call(name, (Name(inner), Name(kind), tuple(arguments), _)) if (
                name == _WITH_ATTRIBUTES and kind in _PLAIN_CLASSES and wrapped < _MAX_WRAPPED
            ):
                return self.array(Call(inner, arguments), wrapped + 1)
            case Call(name, (Storage() as storage, offset, tuple(size), tuple(stride), *rest)) if (
                len(rest) in _STRIDED.get(name, ())
            ):
                values = self._storage(storage)
                # the flags conj and neg: torch applies them when it computes
                if len(rest) > 2 and rest[2]:
                    raise BadData(
                        "it is negated or conjugated lazily",
                        "save tensor.resolve_conj().resolve_neg()",
                    )
                return DTYPES[storage.kind], self._view(
                    storage.key, values, offset=offset, size=size, stride=stride
                )
            case Call(name, (_, _, _, _, _, _, Name(dtype), *_)) if name == _OF_NEW_TYPE:
                raise BadData(f"it is of the type {dtype.removeprefix('torch.')}", _CONVERT)
            case Call(name, _) if name in _REFUSED:
                raise BadData(*_REFUSED[name])
        raise BadData(
            "it is of a kind unknown here", "save a plain tensor: tensor.detach().clone()"
        )

    def _view(
        self, key: str, values: Array, offset: Any, size: tuple[Any, ...], stride: tuple[Any, ...]
    ) -> Array:
        """x[i, j, ...] = values[offset + i stride_0 + j stride_1 + ...] for i < size_0, j < size_1,
        ...

        The same view of the storage `key` is the same array.
        """
        numbers = (offset, *size, *stride)
        if (
            len(size) != len(stride)
            or len(size) > _MAX_DIMENSIONS
            or any(type(n) is not int for n in numbers)
        ):
            raise BadData("it has a size, stride or offset that no tensor has", AGAIN)
        if min(numbers) < 0:
            raise BadData("it has a negative size, stride or offset", AGAIN)
        view = (key, offset, size, stride)  # hashed only now: these are a text and integers
        if view in self.views:
            self.budget.spend(_TENSOR_COST)
            return self.views[view]
        count = math.prod(size)
        self.budget.spend(_TENSOR_COST + count * values.itemsize)
        if count == 0:
            return np.empty(size, values.dtype)
        if offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) >= len(
            values
        ):
            raise BadData("it reaches beyond its storage", AGAIN)
        steps = [step * values.itemsize for step in stride]
        self.views[view] = np.ndarray(
            size, values.dtype, values.data, offset * values.itemsize, steps
        )
        return self.views[view]

    def _storage(self, storage: Storage) -> Array:
        """The values of a storage, flat; bfloat16 is widened to float32."""
        if storage.device == "meta":
            raise BadData(*_NO_VALUES)
        if storage.kind.startswith("torch.Complex"):
            raise BadData("it is complex", "save torch.view_as_real(tensor)")
        if storage.kind not in DTYPES:
            raise BadData(f"it is in a {called(storage.kind)}", _CONVERT)
        if storage.key not in self.storages:
            raw = self.member(f"data/{storage.key}")
            dtype = DTYPES[storage.kind]
            self.storages[storage.key] = storage.kind, self._numbers(raw, dtype)
        kind, values = self.storages[storage.key]
        if kind != storage.kind or len(values) != storage.length:
            raise BadData("it is in a storage of another size or type than it says", AGAIN)
        return values

    def _numbers(self, raw: npt.NDArray[np.uint8], dtype: str) -> Array:
        if dtype == "bool":
            return raw.astype(np.bool_)  # as in torch, anything but 0 is True
        kind = np.dtype("uint16" if dtype == "bfloat16" else dtype)
        if len(raw) % kind.itemsize:
            raise BadData("it is in a storage that ends with a part of a number", AGAIN)
        values: Array = raw.view(kind.newbyteorder(self.order)).astype(kind, copy=False)
        return widen(values) if dtype == "bfloat16" else values


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Call) and "._rebuild_" in value.function


def _kind(value: Any) -> str:
    match value:
        case Call(name, _) | Name(name):
            return f"a {name}"
    return "None" if value is None else f"of the type {type(value).__name__.strip('_').lower()}"


def _name(keys: _Keys) -> str:
    return ".".join(map(str, keys))


def _leaves(value: Any, budget: Budget, keys: _Keys = ()) -> Iterator[tuple[_Keys, Any]]:
    """Everything in `value` that is not a container, with the keys (text) and positions (numbers)
    that lead there."""
    budget.spend(_LEAF_COST + _KEY_COST * len(keys))
    if type(value) not in (dict, list, tuple):
        yield keys, value
        return
    if len(keys) == _MAX_DEPTH:
        raise BadData(
            f"its containers are nested over {_MAX_DEPTH} deep, or in themselves", ONLY_TENSORS
        )
    for key, item in value.items() if type(value) is dict else enumerate(value):
        yield from _leaves(item, budget, (*keys, key))


def _only_tensors(leaves: Iterable[Any]) -> bool:
    """Whether there are tensors, and no other values except None."""
    return {True} == {_is_tensor(leaf) for leaf in leaves if leaf is not None}


def _named(leaves: _Leaves, entry: str) -> _Keys:
    """The path that `entry` names; of several the one with the longest keys, which are the
    fewest."""
    found = [
        keys[:n] for keys, _ in leaves for n in range(1, len(keys) + 1) if _name(keys[:n]) == entry
    ]
    if not found:
        raise BadData(f"there is no entry {called(entry)} in it", *_choices_hint(leaves))
    return min(found, key=len)


def _obvious(leaves: _Leaves) -> _Keys:
    """The only flat container of tensors in a dict, or the only one with a usual name.

    () if there is no such entry, or if everything beside it is tensors too.
    """
    below: dict[str, _Leaves] = {}
    for keys, leaf in leaves:
        if keys and type(keys[0]) is str:
            below.setdefault(keys[0], []).append((keys, leaf))
    flat = [
        key
        for key, own in below.items()
        if _only_tensors(x for _, x in own) and all(len(k) == 2 for k, _ in own)
    ]
    found = [key for key in flat if key in _MODELS] or flat
    if len(found) != 1 or _only_tensors(leaf for keys, leaf in leaves if keys[0] != found[0]):
        return ()
    return (found[0],)


def _choices_hint(leaves: _Leaves) -> tuple[str, str]:
    """A hint with the largest entries that contain only tensors, and its topic."""
    other = [keys for keys, leaf in leaves if leaf is not None and not _is_tensor(leaf)]
    mixed = {keys[:n] for keys in other for n in range(len(keys) + 1)}
    tensors = (keys for keys, leaf in leaves if _is_tensor(leaf))
    choices = list(
        dict.fromkeys(next(k[:n] for n in range(len(k) + 1) if k[:n] not in mixed) for k in tensors)
    )
    if choices == [()]:
        return "the file holds nothing but tensors", "no-entry"
    if not choices:
        return ONLY_TENSORS, ""
    more = f", ... ({len(choices)} in all)" if len(choices) > _MAX_LISTED else ""
    names = ", ".join(called(_name(keys)) for keys in choices[:_MAX_LISTED])
    return f"entries with tensors are {names}{more}", "entry"


def write(stream: IO[bytes], tensors: Gradient) -> None:
    """Write a state_dict of the tensors, a list if they are a sequence, or a single tensor if its
    name is empty.

    The same tensors give the same bytes. A bfloat16 tensor is rounded from its float32 array, ties
    to even. Tied tensors share a storage, so that torch ties them again.
    """
    with zipfile.ZipFile(stream, "w") as archive:
        _add(archive, "data.pkl", _pickle(tensors))
        _add(archive, "byteorder", b"little")
        for key, tensor in enumerate(tensors):
            _add(archive, f"data/{key}", stored(tensor).data)
        # No .format_version: with it torch may compute where its own writer would have put the
        # storages.
        _add(archive, "version", b"3\n")


def _pickle(tensors: Gradient) -> bytes:
    calls = {t.name: _call(key, t) for key, t in enumerate(tensors)}
    calls |= {name: calls[first] for name, first in tensors.ties.items()}
    if tensors.sequence:
        places = map(str, range(len(calls) + len(tensors.absent)))
        return b"\x80\x02](" + b"".join(calls.get(place, b"N") for place in places) + b"e."
    if list(calls) == [""]:
        return b"\x80\x02" + calls[""] + b"."
    items = [_plain(name) + call for name, call in calls.items()]
    return b"\x80\x02" + _ORDERED_DICT + b"(" + b"".join(items) + b"u."


def _call(key: int, tensor: Tensor) -> bytes:
    """_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks), a contiguous
    tensor."""
    size = tensor.array.shape
    stride = tuple(math.prod(size[axis + 1 :]) for axis in range(len(size)))
    kind = f"ctorch\n{_STORAGES[tensor.dtype]}\n".encode()
    storage = (
        _plain("storage") + kind + _plain(str(key)) + _plain("cpu") + _plain(tensor.array.size)
    )
    arguments = (
        b"("
        + storage
        + b"tQ"
        + _plain(0)
        + _plain(size)
        + _plain(stride)
        + _plain(False)
        + _ORDERED_DICT
    )
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"tR"


def _plain(value: str | int | tuple[int, ...]) -> bytes:
    """The part of a pickle that pushes a value: all but PROTO and STOP."""
    return pickle.dumps(value, protocol=2)[2:-1]


def _add(archive: zipfile.ZipFile, name: str, content: bytes | memoryview) -> None:
    """Add a member whose bytes begin at a multiple of 64, with the padding field that torch
    uses."""
    info = zipfile.ZipInfo(f"{_ROOT}/{name}")
    info.create_system = 0  # the same bytes on every system
    large = len(content) > zipfile.ZIP64_LIMIT
    header = _HEADER_BYTES + len(info.filename) + _PADDING.size + (_ZIP64_BYTES if large else 0)
    padding = -(archive.start_dir + header) % _ALIGNMENT
    info.extra = _PADDING.pack(b"FB", padding) + b"Z" * padding
    with archive.open(info, "w", force_zip64=large) as member:
        member.write(content)
